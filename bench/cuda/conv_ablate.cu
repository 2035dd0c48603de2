// Where an iteration's time goes: the forward solve of 48 x 32 x 32 without its products (1), without tanh (2), without the cluster barrier (4,
// replaced by the block's). Only for timing, with a tolerance below zero; not for the engine.
#include "conv_core.cuh"
#define ABLATED(name, c, h, w, cl, warps, mt, per_sm)                                                                             \
  KERNEL(32 * warps, per_sm) conv_ablate1_##name(const ConvArgs a) { ConvSolve<ConvShape<c, h, w, cl, warps, mt>, OUTER, 1> s(a); s.run(); } \
  KERNEL(32 * warps, per_sm) conv_ablate2_##name(const ConvArgs a) { ConvSolve<ConvShape<c, h, w, cl, warps, mt>, OUTER, 2> s(a); s.run(); } \
  KERNEL(32 * warps, per_sm) conv_ablate4_##name(const ConvArgs a) { ConvSolve<ConvShape<c, h, w, cl, warps, mt>, OUTER, 4> s(a); s.run(); }
CONV_SHAPES(ABLATED)
