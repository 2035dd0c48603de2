// Weights in the order in which the tensor cores take them, see pack_conv_weights in conv_core.cuh; once per change of the weights.
#include "conv_wg.cuh"
KERNEL(256, 1) pack_conv_32(const float* w, uint4* high, uint4* low, int transposed) { pack_conv_weights<32>(w, high, low, transposed != 0); }
KERNEL(256, 1) pack_conv_48(const float* w, uint4* high, uint4* low, int transposed) { pack_conv_weights<48>(w, high, low, transposed != 0); }
KERNEL(256, 1) pack_conv_64(const float* w, uint4* high, uint4* low, int transposed) { pack_conv_weights<64>(w, high, low, transposed != 0); }
KERNEL(256, 1) pack_wg_32(const float* w, uint4* high, uint4* low, int transposed) { pack_wg_weights<32>(w, high, low, transposed != 0); }
KERNEL(256, 1) pack_wg_48(const float* w, uint4* high, uint4* low, int transposed) { pack_wg_weights<48>(w, high, low, transposed != 0); }
