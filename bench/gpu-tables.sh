#!/bin/bash
# Makes the runs of the paper's convolutional columns that the ledgers in results/ still lack, on a GPU; when all are there, it does
# nothing. Every run is written to its ledger as it ends, and begun runs go on from their last epoch (runs/), so this may be
# stopped at any time and called again.
#   bench/gpu-tables.sh [SECONDS]      stops after so many seconds (default: when all runs are made)
# Where minutes are few, runs that end soon first (one of these took 41 s of an H200, by the share that it had):
#   COLUMNS=svhn MODELS=monotone,monotone-tied,mondeq-relu bench/gpu-tables.sh 600
# SUBDEQ (the program), DATA (the data sets), COLUMNS, MODELS, SEEDS, WORKERS and JOBS, OUT (ledgers), RUNS, LOGS may be set.
#
# What was measured on an H200 is in it: six runs at once, two in each of three processes under MPS, keep the GPU busy while some of them
# make certificates on the CPU; more than three processes are refused, with half as many connections too. Rows that are made of short
# launches wait twenty times as long beside solves that hold whole multiprocessors for a millisecond, so rows of one kind run beside each other.
set -u
cd "$(dirname "$0")/.."
limit=${1:-0}
export SUBDEQ=${SUBDEQ:-target/release/subdeq} DATA=${DATA:-../shared/data} OUT=${OUT:-results} RUNS=${RUNS:-runs} LOGS=${LOGS:-runs/logs}
export SEEDS=${SEEDS:-5} WORKERS=${WORKERS:-3} JOBS=${JOBS:-2} # JOBS: in each of the workers
COLUMNS=${COLUMNS:-mnist-conv cifar10 svhn}
on_chip=subdeq-normalized-tanh-30,subdeq-tanh-30,subdeq-normalized-tanh,subdeq-tanh,subdeq-power-tanh,subdeq-abs-normalized-tanh,subdeq-normalized-power-tanh,excitatory,split-sign,power-ratio
short_launches=mondeq-relu,mondeq-tanh,monotone,monotone-tied,monotone-product,explicit-tanh
integrated=node-relu,node-tanh
export CUDA_DEVICE_MAX_CONNECTIONS=32 # with the usual 8, of more runs side by side some wait for the kernels of others

# `COLUMN MODEL` of each row that lacks runs: kind by kind, and of each kind column by column.
missing_rows() {
  local kind c m made
  for kind in on_chip short_launches integrated; do
    for c in $COLUMNS; do
      for m in ${!kind//,/ }; do
        [ -n "${MODELS:-}" ] && [[ ",$MODELS," != *",$m,"* ]] && continue
        made=$(grep -c "\"model\":\"$m\",\"seed\":[0-$((SEEDS - 1))]," "$OUT/$c.json" 2> /dev/null)
        [ "${made:-0}" -lt "$SEEDS" ] && echo "$c $m"
      done
    done
  done
}
next_row() { (flock 9 && sed -n 1p "$queue" && sed -i 1d "$queue") 9> "$queue.lock"; }
# Makes rows until there are none. Fails if one of them failed.
worker() {
  local row c m failed=0
  while row=$(next_row) && [ -n "$row" ]; do
    read -r c m <<< "$row"
    echo "$(date +%T) begun $c $m"
    if "$SUBDEQ" reproduce images --only "$c" --models "$m" --seeds "$SEEDS" --jobs "$JOBS" --threads "$threads" --device cuda --data-dir "$DATA" \
      --out "$OUT" --runs "$RUNS" > "$LOGS/$c-$m.txt" 2>&1; then # its table has one row: the last lines below write the whole
      echo "$(date +%T) ended $c $m"
    else
      failed=1
      echo "$(date +%T) failed $c $m: $(tail -n 1 "$LOGS/$c-$m.txt") (all it said: $LOGS/$c-$m.txt)" >&2
    fi
  done
  return $failed
}
everything() {
  local failed=0 k job
  for k in $(seq "$WORKERS"); do worker & done
  for job in $(jobs -p); do wait "$job" || failed=1; done
  return $failed
}
[[ "$limit" =~ ^[0-9]+$ ]] || { echo "gpu-tables: '$limit' is not a number of seconds" >&2; exit 2; }
command -v "$SUBDEQ" > /dev/null || { echo "gpu-tables: there is no program $SUBDEQ: cargo build --release -p subdeq-cli makes it, SUBDEQ=.. names another" >&2; exit 2; }
mkdir -p "$OUT" "$LOGS" || exit 1
queue=$(mktemp) || exit 1
trap 'rm -f "$queue" "$queue.lock"' EXIT
missing_rows > "$queue"
threads=$(($(nproc) / (WORKERS * JOBS))) # for certificates: a run's part of the cores
[ "$threads" -gt 0 ] || threads=1
export queue threads
export -f next_row worker everything
ended=0
if [ -s "$queue" ]; then
  "$SUBDEQ" devices --device cuda > /dev/null || exit 1 # one sentence, not one for each row
  # Processes take turns on a GPU without MPS, and with it run side by side. Where it is there already, that one is used.
  nvidia-cuda-mps-control -d > /dev/null 2>&1 && own_mps=yes
  if [ "$limit" -gt 0 ]; then
    timeout --signal=TERM --kill-after=10 "$limit" bash -c everything
  else
    everything
  fi
  ended=$?
  [ "${own_mps:-}" = yes ] && echo quit | nvidia-cuda-mps-control > /dev/null
fi
# The tables have all columns, whichever were asked for; how an entry of a ledger is known needs its data set.
"$SUBDEQ" reproduce images --only mnist-dense,mnist-conv,cifar10,svhn --no-runs --data-dir "$DATA" --out "$OUT" > /dev/null || echo "gpu-tables: the tables in $OUT were not written, for the reason above" >&2
for c in $COLUMNS; do
  made=$(grep -c '"model":' "$OUT/$c.json" 2> /dev/null)
  echo "$c: ${made:-0} runs in $OUT/$c.json"
done
[ $ended -eq 124 ] && echo "the time is up: call it again to go on"
exit $ended
