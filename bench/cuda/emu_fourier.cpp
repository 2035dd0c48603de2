// Peaceman-Rachford in the emulator against f64 in the space domain.
#define EMU
#include <algorithm>
#include "fourier_pr.cu"
#include "reference.h"
template <int ACT> void test(int n, float tol, int count) {
  size_t len = 48 * 1024; std::vector<float> w = random_weights(48, 0.6, 3), k = random_normal(n * len, 1.0, 4), g = random_normal(n * len, 1.0, 5), start = g, sym = symbols_reference(48, 32, w);
  std::vector<uint2> m(FF * 48 * 48); std::vector<float2> spec((size_t)FF * n * 48, {NAN, NAN}), partial(2 * n * 3, {NAN, NAN}); std::vector<int> its(n, -1);
  emu::launch((int)m.size() / 256, 1, 1, 256, 0, [&] { fourier_pack((const float2*)sym.data(), m.data(), (int)m.size()); });
  FourierArgs a{g.data(), k.data(), spec.data(), m.data(), partial.data(), its.data(), n, 0, tol};
  for (int i = 0; i <= count; i++) { a.iteration = i; emu::launch(n * 3, 1, 1, 256, F_PLANE_SMEM, [&] { fourier_plane<ACT>(a); }, i); if (i < count) emu::launch(FF, 1, 1, 256, F_PRODUCT_SMEM, [&] { fourier_product(a); }); }
  for (int s = 0; s < n; s++) { std::vector<double> ref(start.begin() + s * len, start.begin() + (s + 1) * len); double r = splitting_reference(48, 32, w, ACT == F_RELU, &k[s * len], ref, its[s]);
    float2* p = &partial[((count & 1) * n + s) * 3]; printf("fourier act %d sample %d: error %.2e after %d, residual %.6e (f64 %.6e)\n", ACT, s, relative_error(&g[s * len], ref), its[s], std::sqrt(p[0].x + p[1].x + p[2].x) / (1e-5 + std::sqrt(p[0].y + p[1].y + p[2].y)), r); }
}
int main() { test<F_RELU>(2, 0.f, 2); test<F_TANH>(1, 0.1f, 6); }
