// Peaceman-Rachford, second version, in the emulator against f64 in the space domain.
#define EMU
#include <algorithm>
#include "fourier_pr2.cu"
#include "reference.h"
template <int ACT, bool DELTA> std::vector<float> test(int n, float tol, int count, const std::vector<float>& w, const std::vector<float>& k, const std::vector<float>& start, unsigned seed, bool check = true) {
  size_t len = 48 * 1024; std::vector<float> g = start, sym = symbols_reference(48, 32, w);
  std::vector<uint32_t> high(FF * 48 * 48), low(high.size()), half((size_t)FF * n * 48, 0x7e007e00u); std::vector<float2> spec((size_t)FF * n * 48, {NAN, NAN}), partial(2 * n * 3, {NAN, NAN}); std::vector<int> its(n, -1); std::vector<FourierRecord> rec(2 * n, {NAN, NAN, 77, 0});
  emu::launch((int)high.size() / 256, 1, 1, 256, 0, [&] { fourier_pack2((const float2*)sym.data(), high.data(), low.data(), (int)high.size()); });
  Fourier2Args a{g.data(), k.data(), spec.data(), half.data(), high.data(), low.data(), partial.data(), rec.data(), its.data(), n, 0, tol}; std::vector<int> full(n, 0);
  for (int i = 0; i <= count; i++) { a.iteration = i; emu::launch(n * 3, 1, 1, 256, F_PLANE_SMEM, [&] { fourier_plane2<ACT, DELTA>(a); }, seed + i);
    for (int s = 0; s < n; s++) full[s] += rec[(i & 1) * n + s].mode == F_FULL; if (i < count) emu::launch(FF, 1, 1, 128, F2_PRODUCT_SMEM, [&] { fourier_product2<DELTA>(a); }, seed); }
  if (check) for (int s = 0; s < n; s++) { std::vector<double> ref(start.begin() + s * len, start.begin() + (s + 1) * len); double r = splitting_reference(48, 32, w, ACT == F_RELU, &k[s * len], ref, its[s]);
    float2* p = &partial[((count & 1) * n + s) * 3]; printf("fourier2 act %d delta %d sample %d: error %.2e after %d (%d full), residual %.6e (f64 %.6e)\n", ACT, DELTA, s, relative_error(&g[s * len], ref), its[s], full[s], std::sqrt(p[0].x + p[1].x + p[2].x) / (1e-5 + std::sqrt(p[0].y + p[1].y + p[2].y)), r); fflush(stdout); }
  return g;
}
int main(int argc, char**) {
  size_t len = 48 * 1024; std::vector<float> w = random_weights(48, 0.6, 3), k = random_normal(2 * len, 1.0, 4), g = random_normal(2 * len, 1.0, 5); for (size_t i = 0; i < len; i++) k[i] *= 0.01f;
  test<F_RELU, false>(1, 0.f, 2, w, k, g, 1); std::vector<float> both = test<F_RELU, true>(2, 1e-4f, 12, w, k, g, 1);
  std::vector<float> one = test<F_RELU, true>(1, 1e-4f, 12, w, {k.begin() + len, k.end()}, {g.begin() + len, g.end()}, 9, false); printf("fourier2 any batch: %s\n", memcmp(one.data(), &both[len], len * 4) ? "DIFFERENT" : "same bits");
  if (argc > 1) test<F_TANH, true>(1, 1e-6f, 20, w, k, g, 1);
}
