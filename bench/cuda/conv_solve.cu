// z = tanh(W z) + y + shift (outer) and z = tanh(W z + y) + shift (inner), W a 3x3 zero-padded convolution: the whole Picard solve of
// a batch in one launch, one cluster per image. See conv_core.cuh for the method and the counts.
#include "conv_core.cuh"
#define X(name, c, h, w, cl, warps, mt, per_sm)                                                          \
  KERNEL(32 * warps, per_sm) conv_solve_outer_##name(const ConvArgs a) {                                 \
    ConvSolve<ConvShape<c, h, w, cl, warps, mt>, OUTER> s(a);                                            \
    s.run();                                                                                             \
  }                                                                                                      \
  KERNEL(32 * warps, per_sm) conv_solve_inner_##name(const ConvArgs a) {                                 \
    ConvSolve<ConvShape<c, h, w, cl, warps, mt>, INNER> s(a);                                            \
    s.run();                                                                                             \
  }
CONV_SHAPES(X)
#undef X
