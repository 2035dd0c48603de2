#!/bin/bash
# What "accuracy with a proof" (RESULTS.md) still lacks, on a GPU: seeds of one row and a row without crops of what the layer and what
# the recipe gives on CIFAR-10, and CIFAR-10 with a bounded gain. What is there is not made again; begun runs go on.
#   bench/gpu-proofs.sh [SECONDS]      stops after so many seconds (default: when all is made)
# SUBDEQ (the program), DATA (the data sets), JOBS (runs side by side), OUT (ledgers), RUNS may be set.
set -u
cd "$(dirname "$0")/.."
export CUDA_DEVICE_MAX_CONNECTIONS=32 # with the usual 8, of more runs side by side some wait for the kernels of others; under MPS there is room for three such processes
limit=${1:-0}
export SUBDEQ=${SUBDEQ:-target/release/subdeq} DATA=${DATA:-../shared/data} JOBS=${JOBS:-4} OUT=${OUT:-results} RUNS=${RUNS:-runs}
everything() {
  mkdir -p "$OUT/lipschitz"
  images() {
    "$SUBDEQ" reproduce images --only "$1" --models "$2" --seeds "$3" --jobs "$JOBS" --device cuda --data-dir "$DATA" --out "$OUT" --runs "$RUNS" > /dev/null
  }
  gain() { # a network whose gain is held, and what is proved of its answers
    local run=$RUNS/cifar10-gain-$1 begun=()
    [ -e "$run/config.toml" ] && begun=(--resume)
    "$SUBDEQ" train --data cifar10 --arch conv --split standard --lipschitz "$1" --blocks 48,96,128 --augment flip,crop4 --epochs 30 --device cuda \
      --data-dir "$DATA" --out "$run" "${begun[@]}" &&
      "$SUBDEQ" eval "$run" --radii 0.14117647058823529 --attack 1000 --data-dir "$DATA" --device cuda --json > "$OUT/lipschitz/cifar10-gain-$1.json"
  }
  images svhn monotone-tied+ 5 &
  images cifar10 subdeq-tanh+,subdeq-normalized-tanh+,mondeq-relu+,monotone+,monotone-product+,monotone-tied+no-norm,monotone-tied+no-dropout,monotone-tied+no-crops,monotone-tied+two-blocks 3 &
  gain 4 &
  local failed=0 job
  for job in $(jobs -p); do wait "$job" || failed=1; done
  return $failed
}
export -f everything
if [ "$limit" -gt 0 ]; then
  timeout --signal=TERM --kill-after=10 "$limit" bash -c everything
else
  everything
fi
ended=$?
"$SUBDEQ" reproduce images --only mnist-dense,mnist-conv,cifar10,svhn --no-runs --data-dir "$DATA" --out "$OUT" > /dev/null
[ $ended -eq 124 ] && echo "the time is up: call it again to go on"
exit $ended
