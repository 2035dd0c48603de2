// Peaceman-Rachford's splitting of circular convolutions of images of 8 x 8 pixels.
#include "fourier.cuh"

PLANES(8)
