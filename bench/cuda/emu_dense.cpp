// The dense solve in the emulator against f64.
#define EMU
#include <algorithm>
#include "dense_solve.cu"
#include "reference.h"
template <int KIND, bool FOUR> void test() {
  constexpr int N = 87, B = 5; Rng r(3); std::vector<float> w(N * N), y(B * N), slope(B * N), z(B * N, NAN), extra(B * N, NAN); std::vector<DenseReport> rep(B);
  for (float& x : w) x = (float)((2 * r.uniform() - 1) / std::sqrt(87.0)); for (float& x : y) x = (float)std::max(0.0, 0.5 * r.normal()); for (float& x : slope) x = (float)r.uniform();
  DenseArgs a{w.data(), y.data(), slope.data(), z.data(), extra.data(), rep.data(), 1.2f, KIND == DENSE_ADJOINT ? 0.f : 1.f, 1e-6f, 100};
  emu::launch(B, 1, 1, FOUR ? 384 : 96, 2 * 96 * 4 + 192, [&] { if (FOUR) dense_solve4<N, KIND>(a); else dense_solve<N, KIND>(a); });
  std::vector<double> ref(B * N, 1.0), u(B * N), g(B * N);
  for (int s = 0; s < B; s++) for (int k = 0; k < 300; k++) { std::vector<double> n(N); for (int i = 0; i < N; i++) { double v = 0; for (int j = 0; j < N; j++) v += (KIND == DENSE_ADJOINT ? w[j * N + i] : w[i * N + j]) * ref[s * N + j]; u[s * N + i] = v;
      n[i] = KIND == DENSE_ADJOINT ? slope[s * N + i] * (v + y[s * N + i]) : KIND == DENSE_INNER ? std::tanh(v + y[s * N + i]) + 1.2f : std::tanh(v) + y[s * N + i] + 1.2f; } for (int i = 0; i < N; i++) ref[s * N + i] = n[i]; }
  for (size_t i = 0; i < g.size(); i++) { double t = std::tanh(KIND == DENSE_INNER ? u[i] + y[i] : u[i]); g[i] = KIND == DENSE_ADJOINT ? u[i] + y[i] : 1 - t * t; }
  printf("dense%s kind %d: error %.2e, extra %.2e, iterations %d, outcome %d, residual %.2e\n", FOUR ? "4" : "", KIND, relative_error(z.data(), ref), relative_error(extra.data(), g), rep[0].iterations, rep[0].outcome, rep[0].residual);
}
int main() { test<DENSE_OUTER, false>(); test<DENSE_INNER, false>(); test<DENSE_ADJOINT, false>(); test<DENSE_OUTER, true>(); test<DENSE_INNER, true>(); test<DENSE_ADJOINT, true>(); }
