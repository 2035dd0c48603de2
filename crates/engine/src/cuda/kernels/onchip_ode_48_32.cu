// Integrations on chip: 48 channels of 32 x 32. See onchip_ode.cuh.
#include "onchip_ode.cuh"

ODE_KERNELS(48_32, Tiles32, 8)
