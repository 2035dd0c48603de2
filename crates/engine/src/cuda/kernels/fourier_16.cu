// Peaceman-Rachford's splitting of circular convolutions of images of 16 x 16 pixels.
#include "fourier.cuh"

PLANES(16)
