// Solves on chip, 32 x 28 x 28: a whole image per block. See onchip.cuh.
#include "onchip.cuh"

using Shape = OnchipShape<32, 28, 28, 1, 2, 7, 2, 3>;

extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) onchip_solve_c32(const OnchipArgs a) {
  OnchipConv<Shape, FORWARD> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) onchip_adjoint_c32(const OnchipArgs a) {
  OnchipConv<Shape, ADJOINT> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 1) onchip_slopes_c32(const OnchipSlopesArgs a) { onchip_slopes<Shape>(a); }
extern "C" __global__ void __launch_bounds__(256) onchip_pack_c32(const float* w, uint4* forward, uint4* backward, float* sums) {
  onchip_pack<32>(w, forward, backward);
  onchip_sums<32>(w, sums);
}
