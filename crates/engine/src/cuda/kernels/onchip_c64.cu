// Solves on chip, 64 x 64 x 64: a sixteenth of an image per block. See onchip.cuh.
#include "onchip.cuh"

using Shape = OnchipShape<64, 64, 64, 16, 2, 2, 1, 2>;

extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) __cluster_dims__(16, 1, 1) onchip_solve_c64(const OnchipArgs a) {
  OnchipConv<Shape, FORWARD> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) __cluster_dims__(16, 1, 1) onchip_adjoint_c64(const OnchipArgs a) {
  OnchipConv<Shape, ADJOINT> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) __cluster_dims__(16, 1, 1) onchip_slopes_c64(const OnchipSlopesArgs a) { onchip_slopes<Shape>(a); }
extern "C" __global__ void __launch_bounds__(256) onchip_pack_c64(const float* w, uint4* forward, uint4* backward, float* sums) {
  onchip_pack<64>(w, forward, backward);
  onchip_sums<64>(w, sums);
}
