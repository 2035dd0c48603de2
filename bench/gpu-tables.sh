#!/bin/bash
# Makes the runs of the paper's convolutional columns that the ledgers in results/ still lack, on a GPU; when all are there, it does
# nothing. Every run is written to its ledger as it ends, and begun runs go on from their last epoch (runs/), so this may be
# stopped at any time and called again.
#   bench/gpu-tables.sh [SECONDS]      stops after so many seconds (default: when all runs are made)
# Where minutes are few, runs that end soon first (one of these took 41 s of an H200, by the share that it had):
#   COLUMNS=svhn MODELS=monotone,monotone-tied,mondeq-relu bench/gpu-tables.sh 600
# SUBDEQ (the program), DATA (the data sets), COLUMNS, MODELS, SEEDS, JOBS (runs side by side per column), OUT (ledgers), RUNS may be set.
set -u
cd "$(dirname "$0")/.."
export CUDA_DEVICE_MAX_CONNECTIONS=32 # with the usual 8, of more runs side by side some wait for the kernels of others; under MPS there is room for three such processes
limit=${1:-0}
SUBDEQ=${SUBDEQ:-target/release/subdeq}
DATA=${DATA:-../shared/data}
COLUMNS=${COLUMNS:-mnist-conv cifar10 svhn}
MODELS=${MODELS:-subdeq-normalized-tanh,subdeq-tanh,node-relu,node-tanh,mondeq-relu,mondeq-tanh,explicit-tanh,subdeq-abs-normalized-tanh,subdeq-normalized-power-tanh,subdeq-power-tanh,subdeq-normalized-tanh-30,subdeq-tanh-30,excitatory,split-sign,power-ratio,monotone,monotone-product,monotone-tied}
SEEDS=${SEEDS:-5}
JOBS=${JOBS:-2} # per column. More end no sooner: ten heavy runs shared an H200 as if they took turns, and none had ended after nine minutes
OUT=${OUT:-results}
RUNS=${RUNS:-runs}
everything() { # the columns side by side, each seed by seed: every row has its first run before any has its second
  for c in $COLUMNS; do
    "$SUBDEQ" reproduce images --only "$c" --models "$MODELS" --seeds "$SEEDS" --jobs "$JOBS" --device cuda --data-dir "$DATA" \
      --out "$OUT" --runs "$RUNS" > /dev/null & # its table has one column: the last line below writes the whole
  done
  local failed=0 job
  for job in $(jobs -p); do wait "$job" || failed=1; done
  return $failed
}
export -f everything
export SUBDEQ DATA COLUMNS MODELS SEEDS JOBS OUT RUNS
if [ "$limit" -gt 0 ]; then
  timeout --signal=TERM --kill-after=10 "$limit" bash -c everything
else
  everything
fi
ended=$?
"$SUBDEQ" reproduce images --only "mnist-dense,${COLUMNS// /,}" --no-runs --data-dir "$DATA" --out "$OUT" > /dev/null
for c in $COLUMNS; do
  made=$(grep -c '"model":' "$OUT/$c.json" 2> /dev/null)
  echo "$c: ${made:-0} runs in $OUT/$c.json"
done
[ $ended -eq 124 ] && echo "the time is up: call it again to go on" && exit 124
exit $ended
