// Solves on chip, 16 x 28 x 28: a whole image per block, two blocks per SM. See onchip.cuh.
#include "onchip.cuh"

using Shape = OnchipShape<16, 28, 28, 1, 2, 7, 2, 3>;

extern "C" __global__ void __launch_bounds__(Shape::THREADS, 2) onchip_solve_c16(const OnchipArgs a) {
  OnchipConv<Shape, FORWARD> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 2) onchip_adjoint_c16(const OnchipArgs a) {
  OnchipConv<Shape, ADJOINT> solve(a);
  solve.run();
}
extern "C" __global__ void __launch_bounds__(Shape::THREADS, 2) onchip_slopes_c16(const OnchipSlopesArgs a) { onchip_slopes<Shape>(a); }
extern "C" __global__ void __launch_bounds__(256) onchip_pack_c16(const float* w, uint4* forward, uint4* backward, float* sums) {
  onchip_pack<16>(w, forward, backward);
  onchip_sums<16>(w, sums);
}
