// Peaceman-Rachford's splitting of circular convolutions of images of 32 x 32 pixels.
#include "ripples.cuh"

PLANES(32)
RIPPLES(32)
