// Whole solves by Anderson's method on chip: 48 channels of 32 x 32. See onchip_anderson.cuh.
#include "onchip_anderson.cuh"

ANDERSON_KERNELS(48_32, Tiles32, 8)
