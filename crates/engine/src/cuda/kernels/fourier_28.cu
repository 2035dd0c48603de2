// Peaceman-Rachford's splitting of circular convolutions of images of 28 x 28 pixels.
#include "fourier.cuh"

PLANES(28)
