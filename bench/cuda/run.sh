#!/bin/bash
# Builds and measures everything on the device machine: bash bench/cuda/run.sh [part ...]. One JSON object per line on stdout and in
# $OUT/results.jsonl. Every part is a process with a time limit of its own; a part that fails does not stop the others.
cd "$(dirname "$0")"
export OUT=${OUT:-$PWD/out} B=${BUILD:-/tmp/subdeq-cuda-build}; mkdir -p "$OUT" "$B"  # built outside: a carried folder is replaced by the next call
NVCC=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
FLAGS="-std=c++17 -O3 -Xcompiler -O3,-march=native -gencode=arch=compute_90a,code=sm_90a -Xptxas -v"
[ -n "$CUDART" ] && FLAGS="$FLAGS -L$CUDART"
KERNELS=../../crates/engine/src/cuda/kernels ONCHIP="c48 c32 c16 c64"
t0=$(date +%s)
compile() { # object source flags; nothing to do if neither source nor headers nor flags have changed
  local key=$(cat $2 $KERNELS/dev.cuh $KERNELS/onchip.cuh plumbing.h fourier_pr.cu reference.h | md5sum; echo "$FLAGS $3")
  [ -f $B/$1.o ] && [ "$key" = "$(cat $B/$1.key 2>/dev/null)" ] && return
  rm -f $B/$1.o $B/$1.key
  timeout 200 $NVCC $FLAGS $3 -c -o $B/$1.o $2 > $B/$1.log 2>&1 || { echo "{\"part\":\"build\",\"error\":\"$1\"}" | tee -a "$OUT/results.jsonl"; grep -m3 error $B/$1.log; return; }
  echo "$key" > $B/$1.key
}
jobs_limit=${JOBS:-16}
run_limited() { while [ $(jobs -rp | wc -l) -ge $jobs_limit ]; do sleep 0.2; done; "$@" & }
for s in $ONCHIP; do run_limited compile onchip_$s $KERNELS/onchip_$s.cu ""; done  # the longest first
for f in conv_wgrad fourier_pr fourier_pr2 harness onchip_bench; do run_limited compile $f $f.cu ""; done
wait
link() { # program objects
  local program=$1; shift
  $NVCC -std=c++17 -gencode=arch=compute_90a,code=sm_90a ${CUDART:+-L$CUDART} -o $B/$program $(printf "$B/%s.o " "$@") -lpthread > $B/link.log 2>&1 || { cat $B/link.log; echo "{\"part\":\"link $program\",\"error\":\"failed\"}" | tee -a "$OUT/results.jsonl"; }
}
link harness harness conv_wgrad fourier_pr fourier_pr2
link onchip onchip_bench $(printf "onchip_%s " $ONCHIP)
cat $B/onchip_*.log $B/conv_*.log $B/fourier*.log $B/harness.log 2>/dev/null | grep -E "Compiling|spill|Used|serialized" > "$OUT/ptxas.log"
echo "{\"part\":\"build\",\"seconds\":$(( $(date +%s) - t0 ))}" | tee -a "$OUT/results.jsonl"
[ -n "$BUILD_ONLY" ] && exit 0
nvidia-smi --query-gpu=name,clocks.sm,clocks.mem,power.draw --format=csv,noheader
PARTS=${@:-c48 c32 c16 c64 fourier2 wgrad48b wgrad32b wgrad48 wgrad32 ceilings}
for p in $PARTS; do
  [ $(( $(date +%s) - t0 )) -gt ${LIMIT:-105} ] && { echo "{\"part\":\"$p\",\"error\":\"skipped, out of time\"}" | tee -a "$OUT/results.jsonl"; continue; }
  case $p in c[0-9]*) program=onchip ;; *) program=harness ;; esac
  timeout -k 2 ${PART_LIMIT:-15} $B/$program $p; rc=$?
  [ $rc -ge 2 ] && echo "{\"part\":\"$p\",\"error\":\"exit status $rc (124: time limit)\"}" | tee -a "$OUT/results.jsonl"
done
[ -n "$TORCH" ] && timeout -k 5 100 python3 torch_ref.py 2> "$OUT/torch.err" | tee -a "$OUT/results.jsonl"
echo "{\"part\":\"all\",\"seconds\":$(( $(date +%s) - t0 ))}" | tee -a "$OUT/results.jsonl"
# A short table last: the reply of the device tool carries the end of the output.
python3 - <<'P'
import json, os
for line in open(os.environ["OUT"] + "/results.jsonl"):
    for bad, good in ((":nan", ":NaN"), (":-nan", ":NaN"), (":inf", ":Infinity"), (":-inf", ":-Infinity")): line = line.replace(bad, good)
    try: r = json.loads(line)
    except ValueError: print("UNREADABLE", line.strip()[:300]); continue
    if isinstance(r.get("error"), str) or r.get("ok") is False: print("FAILED", line.strip()[:300])
    elif "time" in r or "torch" in r: print(" ".join(f"{k}={v}" for k, v in r.items() if k != "part"), f"[{r.get('part')}]")
P
