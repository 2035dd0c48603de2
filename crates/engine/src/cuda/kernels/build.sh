#!/bin/bash
# Compiles the kernels to PTX, which is committed: a build of the crate needs no CUDA toolkit. The first line of each file is a hash of
# what it was compiled from; a test of the engine compares it. nvcc as PyPI has it (nvidia-cuda-nvcc, nvidia-nvvm, nvidia-cuda-crt,
# nvidia-cuda-cccl, nvidia-cuda-runtime 13.0) or from CUDA_HOME.
set -e
cd "$(dirname "$0")"
CUDA_HOME=${CUDA_HOME:-/work/cuda-venv/lib/python3.11/site-packages/nvidia/cu13}
usual="common.cuh images.cuh map.cuh mma.cuh product.cuh prox.cuh solve.cuh"
for source in ${@:-*.cu}; do
  name=${source%.cu}
  # What uses Hopper's own instructions runs on compute capability 9.0 alone.
  case $name in
    onchip_c*) target=compute_90a headers="dev.cuh onchip_report.cuh onchip.cuh" ;;
    onchip_ode*) target=compute_90a headers="dev.cuh onchip_tiles.cuh onchip_ode.cuh" ;;
    onchip_anderson*) target=compute_90a headers="dev.cuh onchip_report.cuh onchip_tiles.cuh onchip_anderson.cuh" ;;
    warpgroup_*) target=compute_90a headers="$usual" ;;
    anderson_clusters) target=compute_90 headers="$usual" ;;
    *) target=compute_80 headers="$usual" ;;
  esac
  case $name in
    fourier*) headers+=" copies.cuh fourier.cuh ripples.cuh" ;;
    convolutions) headers+=" copies.cuh convolutions.cuh" ;;
    warpgroup_convolutions) headers+=" copies.cuh convolutions.cuh dev.cuh" ;;
    convolution_gradients) headers+=" copies.cuh" ;;
    anderson) headers+=" anderson.cuh" ;;
    anderson_clusters) headers+=" anderson.cuh dev.cuh" ;;
  esac
  nice "$CUDA_HOME/bin/nvcc" -std=c++17 -O3 -arch=$target -ptx -o "$name.tmp" "$name.cu"
  # A warpgroup's products that wait for each other cost a third of a solve (C7511 and its neighbours), and nothing else shows it.
  if [ $target = compute_90a ] && "$CUDA_HOME/bin/ptxas" -arch=sm_90a -o /dev/null "$name.tmp" 2>&1 | grep serialized; then
    rm "$name.tmp"
    echo "$source: not written" >&2
    exit 1
  fi
  { python3 - $headers "$name.cu" <<'PYTHON'
import sys
text = b"".join(open(f, "rb").read() for f in sys.argv[1:])
h = 0xcbf29ce484222325
for byte in text: h = (h ^ byte) * 0x100000001b3 & 0xffffffffffffffff
print(f"// source {h:016x}")
PYTHON
    cat "$name.tmp"; } > "$name.ptx"
  rm "$name.tmp"
done
wc -c *.ptx
