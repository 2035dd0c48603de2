#!/bin/bash
# Builds libcuda.so, a driver without a GPU, from the engine's kernels (no nvcc needed) and runs a command with it:
#   bench/cuda/emu_driver.sh cargo test -p subdeq-engine cuda
# Slow; says nothing about time, nor about what the GPU's own arithmetic does.
set -e
here=$(cd "$(dirname "$0")" && pwd); kernels=$here/../../crates/engine/src/cuda/kernels; out=${TMPDIR:-/tmp}/emu-driver; mkdir -p "$out"
# Not those with Hopper's own instructions: emu.sh emulates those on chip, without a driver.
# All in one file, so what a file defines for itself must end with it.
usual=$(grep -L '^\.target sm_90' "$kernels"/*.ptx)
for ptx in $usual; do f=${ptx%.ptx}.cu; echo "#include \"$f\""; sed -n 's/^#define \([A-Za-z_0-9]*\).*/#undef \1/p' "$f"; done > "$out/kernels.inc"
cat $usual | sed -n 's/^\.visible \.entry \([a-z_0-9]*\)(.*/KERNEL(\1)/p' > "$out/list.inc"
g++ -O2 -std=c++17 -march=native -ffp-contract=off -w -shared -fPIC -DKERNELS="\"$out/kernels.inc\"" -DLIST="\"$out/list.inc\"" -I "$kernels" -o "$out/libcuda.so" "$here/emu_driver.cpp"
LD_LIBRARY_PATH="$out${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" "$@"
