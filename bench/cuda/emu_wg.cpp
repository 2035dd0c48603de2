// The convolutional solve on warpgroup products, in the emulator against f64.
#define EMU
#include <algorithm>
#include "conv_wg.cu"
#include "reference.h"
template <class S, int KIND, bool FLOW, bool FAST> void test(const char* name, double gain, float tol, unsigned seed, bool from = false) {
  constexpr int C = S::C, H = S::H, W = S::W, N = 2; size_t len = (size_t)C * H * W;
  std::vector<float> w = random_weights(C, gain, 7), y = KIND == ADJOINT ? random_normal(N * len, 1e-5, 3) : random_injection(N * len, 3), slope(N * len), z(N * len, NAN), extra(N * len, NAN), start = random_normal(N * len, 1.0, 4);
  for (size_t i = 0; i < len; i++) y[i] *= 0.2f;
  { Rng r(5); for (float& s : slope) s = (float)r.uniform(); }
  std::vector<uint4> hi(9 * C * C / 8), lo(hi.size()); Report rep[N]{};
  emu::launch((int)(hi.size() + 255) / 256, 1, 1, 256, 0, [&] { pack_wg_weights<C>(w.data(), hi.data(), lo.data(), KIND == ADJOINT); });
  ConvArgs a{hi.data(), lo.data(), y.data(), slope.data(), from ? start.data() : nullptr, z.data(), extra.data(), rep, 1.2f, KIND == ADJOINT ? 0.f : 1.f, tol, 100, nullptr};
  emu::launch(N * S::CL, 1, S::CL, S::THREADS, S::SMEM, [&] { auto s = std::make_unique<ConvWg<S, KIND, FLOW, FAST>>(a); s->run(); }, seed);
  for (int k = 0; k < N; k++) {
    std::vector<double> ref = KIND == ADJOINT ? adjoint_reference(C, H, W, w, &slope[k * len], &y[k * len]) : solve_reference(C, H, W, w, &y[k * len], 1.2f, KIND == INNER), p = conv_reference(C, H, W, w, ref, KIND == ADJOINT);
    for (size_t i = 0; i < len; i++) { double t = std::tanh(p[i] + (KIND == INNER ? y[k * len + i] : 0)); p[i] = KIND == ADJOINT ? p[i] + y[k * len + i] : 1 - t * t; }
    printf("%s kind %d fast %d tol %g%s sample %d: error %.2e, extra %.2e, %d iterations, %d refreshes, residual %.2e, outcome %d\n", name, KIND, FAST, tol, from ? " from" : "", k, relative_error(&z[k * len], ref), relative_error(&extra[k * len], p), rep[k].iterations, rep[k].refreshes, rep[k].residual, rep[k].outcome); fflush(stdout);
  }
}
int main(int argc, char**) {
  using A = WgShape<32, 28, 28, 2, 2, 4, 2>; using B = WgShape<48, 32, 32, 2, 2, 4, 0>;
  using A1 = WgShape<32, 28, 28, 1, 2, 7, 2>;
  test<A, OUTER, true, true>("f32x2", 1.0, 1e-6f, 2); test<A, ADJOINT, true, false>("a32x2", 1.0, 1e-6f, 3); test<A1, OUTER, false, true>("f32x1", 1.0, 1e-6f, 3);
  test<B, OUTER, true, false>("a48x2", 1.0, 1e-6f, 4);
  if (argc > 1) { test<A, INNER, true, false>("a32x2", 1.0, 1e-6f, 5, true); test<B, ADJOINT, false, false>("w48x2", 1.0, 1e-6f, 6); test<B, OUTER, false, false>("w48x2", 1.0, 1e-3f, 7); test<B, OUTER, true, true>("f48x2", 1.0, 1e-6f, 4); }
}
