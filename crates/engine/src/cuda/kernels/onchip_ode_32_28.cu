// Integrations on chip: 32 channels of 28 x 28. See onchip_ode.cuh.
#include "onchip_ode.cuh"

ODE_KERNELS(32_28, Tiles28, 4)
