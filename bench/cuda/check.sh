#!/bin/bash
# Compiles every kernel file here (no GPU needed): cubin for sm_90a with the resource report, PTX for sm_80.
cd "$(dirname "$0")"; export CUDA_HOME=${CUDA_HOME:-/work/cuda-venv/lib/python3.11/site-packages/nvidia/cu13}; mkdir -p build
for f in ${@:-conv_wgrad fourier_pr fourier_pr2 ../../crates/engine/src/cuda/kernels/onchip_c{16,32,48,64}}; do [ -f $f.cu ] || continue; o=build/$(basename $f)
  nice $CUDA_HOME/bin/nvcc -std=c++17 -O3 -gencode=arch=compute_90a,code=sm_90a -Xptxas -v -cubin -o $o.sm_90a.cubin $f.cu > $o.ptxas.log 2>&1; echo "$f sm_90a rc $?"
  grep -E 'error|warning|serialized' $o.ptxas.log | head -20
  grep -E "Compiling entry|Used|spill" $o.ptxas.log | sed -E "s/ptxas info *: //; s/Compiling entry function '([^']*)'.*/\1/" | paste - - - | awk '{print "  ",$0}' | sed -E 's/bytes stack frame,/stack/; s/Used ([0-9]+) registers.*/\1 regs/'
  [ -n "$SM80" ] && { nice $CUDA_HOME/bin/nvcc -std=c++17 -O3 -arch=sm_80 -ptx -o $o.sm_80.ptx $f.cu; echo "$f sm_80 ptx rc $?"; }
done
