// Runs the convolution kernels in the emulator against the f64 reference.
#define EMU
#define KEEP_X
#include <algorithm>
#include "conv_solve.cu"
#undef KERNEL
#define KERNEL(threads, per_sm) extern "C" __global__ void __launch_bounds__(threads, per_sm)
#include "conv_adjoint.cu"
#include "reference.h"
#include <chrono>
template <class S> void check_banks(const char* name) {
  int worst = 1;
  for (int p = 0; p + 8 <= S::PIXELS; p++) for (int c = 0; c < S::C / 8; c++) { int hit[8] = {}; for (int i = 0; i < 8; i++) worst = std::max(worst, ++hit[S::chunk(p + i, c) / 16 % 8]); }
  std::vector<int> seen(S::BUF / 16, 0); for (int p = 0; p < S::PIXELS; p++) for (int c = 0; c < S::C / 8; c++) seen[S::chunk(p, c) / 16]++;
  bool once = std::all_of(seen.begin(), seen.end(), [](int x) { return x == 1; });
  for (int p = 0; p < S::PIXELS; p++) for (int h = 0; h < 2; h++) for (int k = 0; k < S::KC; k++) if ((int)S::along(S::chunk(p, h), k) != S::chunk(p, 2 * k + h)) { printf("along wrong\n"); exit(1); }
  printf("%s: smem %d, bank ways %d, chunk map %s\n", name, S::SMEM, worst, once ? "one to one" : "WRONG"); if (!once || worst != 1) exit(1);
}
template <class S, int KIND> void test(const char* name, double gain, float tol, int start, unsigned seed) {
  auto t0 = std::chrono::steady_clock::now();
  constexpr int C = S::C, H = S::H, W = S::W; size_t len = (size_t)C * H * W;
  std::vector<float> w = random_weights(C, gain, 7), y = KIND == ADJOINT ? random_normal(len, 1e-5, 3) : random_injection(len, 3), slope(len), z(len, NAN), extra(len, NAN);
  { Rng r(5); for (float& s : slope) s = (float)r.uniform(); }
  std::vector<uint4> hi(9 * C * C / 8), lo(hi.size()); Report rep{};
  emu::launch((int)(hi.size() + 255) / 256, 1, 1, 256, 0, [&] { pack_conv_weights<C>(w.data(), hi.data(), lo.data(), KIND == ADJOINT); });
  ConvArgs a{hi.data(), lo.data(), y.data(), slope.data(), nullptr, z.data(), extra.data(), &rep, 1.2f, KIND == ADJOINT ? 0.f : (float)start, tol, 100, nullptr};
  emu::launch(S::CL, 1, S::CL, S::THREADS, S::SMEM, [&] { auto s = std::make_unique<ConvSolve<S, KIND>>(a); s->run(); }, seed);
  std::vector<double> ref = KIND == ADJOINT ? adjoint_reference(C, H, W, w, slope.data(), y.data()) : solve_reference(C, H, W, w, y.data(), 1.2f, KIND == INNER);
  double e2 = 0; if (KIND == ADJOINT) { auto p = conv_reference(C, H, W, w, ref, true); for (size_t i = 0; i < len; i++) p[i] += y[i]; e2 = relative_error(extra.data(), p); }
  uint32_t hash = 2166136261u; for (float x : z) hash = (hash ^ bits_of(x)) * 16777619u;
  printf("%s kind %d gain %.1f tol %g: error %.2e (g %.2e), %d iterations, %d refreshes, residual %.2e, outcome %d, hash %08x, %.1f s\n", name, KIND, gain, tol, relative_error(z.data(), ref), e2, rep.iterations, rep.refreshes, rep.residual, rep.outcome, hash,
         std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count()); fflush(stdout);
}
/// Several samples at once: the bits of a sample do not depend on where it is.
template <class S> void test_positions(const char* name) {
  constexpr int C = S::C, N = 3; size_t len = (size_t)C * S::H * S::W;
  std::vector<float> w = random_weights(C, 1.0, 7), y = random_injection(N * len, 3), turned(N * len), z(N * len, NAN), z2(N * len, NAN); std::vector<Report> rep(N);
  for (int s = 0; s < N; s++) for (size_t i = 0; i < len; i++) { y[s * len + i] *= 0.2f + s; } for (int s = 0; s < N; s++) std::copy_n(&y[s * len], len, &turned[(N - 1 - s) * len]);
  std::vector<uint4> hi(9 * C * C / 8), lo(hi.size());
  emu::launch((int)(hi.size() + 255) / 256, 1, 1, 256, 0, [&] { pack_conv_weights<C>(w.data(), hi.data(), lo.data(), false); });
  for (int k = 0; k < 2; k++) { ConvArgs a{hi.data(), lo.data(), k ? turned.data() : y.data(), nullptr, nullptr, k ? z2.data() : z.data(), nullptr, rep.data(), 1.2f, 1.f, 1e-4f, 100, nullptr};
    emu::launch(N * S::CL, 1, S::CL, S::THREADS, S::SMEM, [&] { auto s = std::make_unique<ConvSolve<S, OUTER>>(a); s->run(); }, 9 + k); }
  bool same = true; for (int s = 0; s < N; s++) same &= !memcmp(&z[s * len], &z2[(N - 1 - s) * len], len * 4);
  printf("%s positions: %s (%d %d %d iterations)\n", name, same ? "same bits" : "DIFFERENT", rep[0].iterations, rep[1].iterations, rep[2].iterations);
}
int main(int argc, char**) {
  using A = ConvShape<32, 28, 28, 2, 8, 4>; using A1 = ConvShape<32, 28, 28, 4, 4, 4>; using B = ConvShape<48, 32, 32, 2, 8, 4>; using D = ConvShape<48, 32, 32, 4, 4, 4>; using E = ConvShape<64, 64, 64, 16, 8, 2>;
  check_banks<A>("c32x2"); check_banks<A1>("c32x4"); check_banks<B>("c48x2"); check_banks<D>("c48x4"); check_banks<E>("c64x16");
  test_positions<A1>("c32x4"); test_positions<A>("c32x2");
  test<A, OUTER>("c32x2", 1.0, 1e-6f, 1, 1);
  test<A, OUTER>("c32x2", 1.0, 1e-6f, 1, 77);
  test<A, OUTER>("c32x2", 1.0, 1e-3f, 0, 5);
  test<A, INNER>("c32x2", 1.0, 1e-6f, 1, 2);
  test<A, ADJOINT>("c32x2", 1.0, 1e-6f, 0, 2);
  test<A1, OUTER>("c32x4", 1.0, 1e-6f, 1, 3);
  test<D, OUTER>("c48x4", 1.0, 1e-6f, 1, 4);
  test<B, OUTER>("c48x2", 1.0, 1e-6f, 1, 4);
  if (argc > 1) { test<E, OUTER>("c64x16", 1.0, 1e-6f, 1, 4); test<E, ADJOINT>("c64x16", 1.0, 1e-6f, 0, 4); test<A, OUTER>("c32x2", 2.0, 1e-6f, 1, 1); }
}
