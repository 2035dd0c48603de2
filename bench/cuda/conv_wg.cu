// The convolutional solves and adjoints on warpgroup products, see conv_wg.cuh.
#include "conv_wg.cuh"
#define X(name, c, h, w, cl, groups, mt, wide, flow, fast)                                                                                              \
  KERNEL(128 * groups, 1) conv_solve_outer_##name(const ConvArgs a) { ConvWg<WgShape<c, h, w, cl, groups, mt, wide>, OUTER, flow, fast> s(a); s.run(); } \
  KERNEL(128 * groups, 1) conv_solve_inner_##name(const ConvArgs a) { ConvWg<WgShape<c, h, w, cl, groups, mt, wide>, INNER, flow, fast> s(a); s.run(); } \
  KERNEL(128 * groups, 1) conv_adjoint_##name(const ConvArgs a) { ConvWg<WgShape<c, h, w, cl, groups, mt, wide>, ADJOINT, flow, fast> s(a); s.run(); }
WG_SHAPES(X)
#undef X
