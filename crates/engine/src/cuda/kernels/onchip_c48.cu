// Solves on chip, 48 x 32 x 32: half an image per block. See onchip.cuh.
#include "onchip.cuh"

using Shape = OnchipShape<48, 32, 32, 2, 2, 4, 0, 3>;

extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) __cluster_dims__(2, 1, 1) onchip_solve_c48(const OnchipArgs a) {
  OnchipConv<Shape, FORWARD> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) __cluster_dims__(2, 1, 1) onchip_adjoint_c48(const OnchipArgs a) {
  OnchipConv<Shape, ADJOINT> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) __cluster_dims__(2, 1, 1) onchip_slopes_c48(const OnchipSlopesArgs a) { onchip_slopes<Shape>(a); }
extern "C" __global__ void __launch_bounds__(256) onchip_pack_c48(const float* w, uint4* forward, uint4* backward, float* sums) {
  onchip_pack<48>(w, forward, backward);
  onchip_sums<48>(w, sums);
}
