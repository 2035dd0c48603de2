#!/bin/bash
# A GPU that is lent for minutes, on a machine without Rust and without a network: what goes there, what runs there, what comes back.
#   bench/lent-gpu.sh pack            here: program, the engine's tests, tune.cu (if NVCC names one), peers and data sets, as pieces
#                                     of at most 31 MB in lent/ (which git ignores)
#   bench/lent-gpu.sh take PIECE..    there, once lent/PIECE has been carried: puts it aside, in $LENT (~/lent). The first one starts the clock.
#   bench/lent-gpu.sh go SECONDS      there, after the piece `program`, in a session of its own: (setsid ~/lent/bench/lent-gpu.sh go 1700 < /dev/null > /dev/null 2>&1 &)
#                                     tests, speeds beside the peers, and the runs that the tables lack, until so many seconds after the start
#   bench/lent-gpu.sh home SECONDS    there: waits until then or until everything has ended; logs, ledgers and runs go to $OUT again and again
# What is measured is alone on the GPU while data sets are on their way. PROGRAM and PEERS (the folder of torch_peer.py) may be set for `pack`.
set -u
cd "$(dirname "$0")/.." || exit 1
repository=$PWD lent=${LENT:-$HOME/lent}
now() { echo $(($(date +%s) - $(cat "$lent/start"))); }
say() { echo "$(now) $(date +%T) $*" >> "$lent/log/go.txt"; }

pack() {
  local program=${PROGRAM:-target/dist/subdeq} peers=${PEERS:-../shared/peer} data=${SUBDEQ_DATA:-../shared/data} tests piece=0 size=0 file bytes
  [ -n "${PROGRAM:-}" ] || cargo build --profile dist -p subdeq-cli || exit 1
  tests=$(cargo test -p subdeq-engine --test engine --no-run 2>&1 | sed -n 's/.*(\(.*engine-.*\))$/\1/p')
  [ -x "$tests" ] || { echo "lent-gpu: the engine's tests were not built" >&2; exit 1; }
  rm -rf lent && mkdir -p lent/program && cp "$program" lent/program/subdeq && cp "$tests" lent/program/engine || exit 1
  cp "$peers"/torch_peer.py bench/torch_monotone_peer.py lent/program/
  if [ -n "${NVCC:-}" ]; then
    "$NVCC" -std=c++17 -O3 -w -gencode arch=compute_80,code=sm_90 -L"$(dirname "$NVCC")/../lib" -I crates/engine/src/cuda/kernels -DFOURIER_FILE='"fourier.cu"' \
      -DRIPPLES_FILE='"ripples.cuh"' bench/cuda/tune.cu -o lent/program/tune || exit 1
  fi
  strip lent/program/subdeq lent/program/engine && xz -6 -T0 lent/program/{subdeq,engine} || exit 1
  [ ! -f lent/program/tune ] || { strip lent/program/tune && xz -6 lent/program/tune; }
  for file in "$data"/{mnist,svhn,cifar10}/*; do
    bytes=$(stat -c %s "$file")
    if [ $piece -eq 0 ] || [ $((size + bytes)) -gt 31000000 ]; then piece=$((piece + 1)) size=0; fi
    size=$((size + bytes))
    mkdir -p "lent/data$piece/$(basename "$(dirname "$file")")" && cp "$file" "lent/data$piece/$(basename "$(dirname "$file")")/" || exit 1
  done
  du -sm lent/*
}
take() {
  local piece
  mkdir -p "$lent/log" "$lent/data"
  [ -f "$lent/start" ] || date +%s > "$lent/start"
  for piece; do
    if [ "$piece" = program ]; then
      cp -r lent/program/* "$lent/" && xz -df "$lent"/*.xz && cp -r results "$lent/results" && cp -r bench "$lent/bench" || exit 1
    else
      cp -r "lent/$piece/." "$lent/data/" || exit 1
    fi
    echo "$piece: $(now) s"
  done
}
bench() { timeout 90 ./subdeq bench --device cuda "$@" 2>> log/bench.err >> log/bench.jsonl; say "bench $*"; }
peer() { timeout 120 python3 "$@" 2>> log/bench.err >> log/bench.jsonl; say "peer $*"; }
# A data set has come when it can be read: once, since what was decoded is kept.
decoded() {
  until ./subdeq data show "$1" --data-dir data > "log/$1.txt" 2>&1; do
    [ "$(now)" -lt "$2" ] || return
    sleep 1
  done
  say "decoded $1"
}
go() {
  local end=$1 case set right=yes
  cd "$lent" || exit 1
  export SUBDEQ_CACHE=$lent/cache
  nvidia-smi --query-gpu=name,driver_version --format=csv,noheader >> log/go.txt
  for set in mnist cifar10 svhn; do decoded $set "$end" & done
  timeout 300 ./engine cuda > log/engine.txt 2>&1 || right=no
  say "the engine's tests: $right"
  [ ! -x tune ] || { timeout 60 ./tune > log/tune.txt 2>&1; say tune; }
  bench --case cifar-conv --model monotone-product --repeats 50
  peer torch_monotone_peer.py --case cifar-conv --repeats 50
  bench --case cifar-conv --model monotone --repeats 50
  for case in cifar-conv mnist-dense mnist-conv tiny-conv; do
    bench --case $case --repeats 60
    peer torch_peer.py bench --case $case --variant tuned --repeats 50
  done
  peer torch_peer.py bench --case cifar-conv --variant faithful --repeats 50
  timeout 300 ./subdeq devices --check > log/check.txt 2>&1
  say "devices --check: rc $?"
  wait
  SUBDEQ=$lent/subdeq timeout 300 bench/resume-bits.sh cuda --data cifar10 --epochs 2 --data-dir "$lent/data" > log/resume.txt 2>&1
  say "killed and resumed: $(tail -n 1 log/resume.txt)"
  if [ $right = yes ] && [ $((end - $(now))) -gt 60 ]; then
    SUBDEQ=$lent/subdeq DATA=$lent/data OUT=$lent/results RUNS=$lent/runs LOGS=$lent/log bench/gpu-tables.sh $((end - $(now))) > log/tables.txt 2>&1
    say "tables: rc $?"
  fi
  touch ended
}
home() {
  while :; do
    tar czf "$lent/home.tmp" -C "$lent" --ignore-failed-read $(cd "$lent" && ls -d log results runs 2> /dev/null)
    cp "$lent/home.tmp" "$OUT/home.tmp" && mv "$OUT/home.tmp" "$OUT/home.tgz"
    [ ! -f "$lent/ended" ] && [ "$(now)" -lt "$1" ] || break
    sleep 10
  done
  cat "$lent/log/go.txt"
}
case ${1:-} in
  pack | take | go | home) "$@" ;;
  *) sed -n '2,/^set/s/^# \{0,1\}//p' "$repository/bench/lent-gpu.sh" >&2; exit 2 ;;
esac
