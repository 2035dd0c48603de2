// Peaceman-Rachford's splitting of circular convolutions of images of 28 x 28 pixels.
#include "ripples.cuh"

PLANES(28)
RIPPLES(28)
