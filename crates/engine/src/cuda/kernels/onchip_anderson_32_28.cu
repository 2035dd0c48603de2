// Whole solves by Anderson's method on chip: 32 channels of 28 x 28. See onchip_anderson.cuh.
#include "onchip_anderson.cuh"

ANDERSON_KERNELS(32_28, Tiles28, 4)
