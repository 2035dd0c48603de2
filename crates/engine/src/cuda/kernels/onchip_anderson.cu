// Whole solves by Anderson's method on chip. See onchip_anderson.cuh.
#include "onchip_anderson.cuh"

#define SOLVE(name, kind, normalised)                                                                                                              \
  extern "C" __global__ void __launch_bounds__(512, 1) __cluster_dims__(8, 1, 1) onchip_anderson_##name(const __grid_constant__ OnchipAnderson a) { \
    AndersonOnChip<kind, normalised> solve(a);                                                                                                      \
    solve.run();                                                                                                                                    \
  }
SOLVE(solve, ANDERSON_FORWARD, false)
SOLVE(solve_normalised, ANDERSON_FORWARD, true)
SOLVE(adjoint, ANDERSON_ADJOINT, false)
SOLVE(adjoint_normalised, ANDERSON_ADJOINT, true)
