// The adjoint of a convolutional equilibrium, q = D (W^T q + v), D the slopes of the activation at the solution (stored once by
// the forward solve), started at zero; then g = W^T q + v is the gradient for an outer injection, q that for an inner one, and
// q with z gives the weight gradient. The whole solve in one launch, as the forward one; the weights are packed transposed.
//
// The equation is linear, so the next change is D times the product of the last: the pointwise part reads D (4 bytes per
// number, 25 MB per iteration for 128 x 48 x 32 x 32, out of L2) and nothing else.
#include "conv_core.cuh"
#define X(name, c, h, w, cl, warps, mt, per_sm)                                                          \
  KERNEL(32 * warps, per_sm) conv_adjoint_##name(const ConvArgs a) {                                     \
    ConvSolve<ConvShape<c, h, w, cl, warps, mt>, ADJOINT> s(a);                                          \
    s.run();                                                                                             \
  }
CONV_SHAPES(X)
#undef X
