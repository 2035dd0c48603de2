// The weight gradient in the emulator against f64.
#define EMU
#include <algorithm>
#include "conv_wgrad.cu"
#include "reference.h"
template <class S, bool TWO> void test(const char* name) {
  constexpr int C = S::C, H = S::H, W = S::W, N = 2; size_t len = (size_t)C * H * W;
  std::vector<float> q = random_normal(N * len, 1e-5, 1), z = random_injection(N * len, 2), parts((size_t)N * S::SPLITS * 9 * C * C, NAN), dw(9 * C * C, NAN);
  emu::launch(N * S::SPLITS, 1, 1, 256, (TWO ? 2 : 1) * S::SMEM, [&] { if (TWO) wgrad_part2<S>(q.data(), z.data(), parts.data()); else wgrad_part<S>(q.data(), z.data(), parts.data()); });
  emu::launch(9 * C * C / 32, 1, 1, 128, 512, [&] { wgrad_sum<C>(parts.data(), N * S::SPLITS, dw.data()); });
  std::vector<double> ref(9 * C * C, 0.0);
  for (int n = 0; n < N; n++) for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) for (int t = 0; t < 9; t++) { int r = y + t / 3 - 1, c = x + t % 3 - 1; if (r < 0 || r >= H || c < 0 || c >= W) continue;
    const float *a = &q[n * len + (y * W + x) * C], *b = &z[n * len + (r * W + c) * C]; for (int o = 0; o < C; o++) for (int i = 0; i < C; i++) ref[(o * C + i) * 9 + t] += (double)a[o] * b[i]; }
  printf("wgrad %s: smem %d, error %.2e\n", name, S::SMEM, relative_error(dw.data(), ref));
}
int main() { test<GradShape<32, 28, 28, 4, 1>, false>("c32"); test<GradShape<48, 32, 32, 4, 2>, false>("c48"); test<GradShape<32, 28, 28, 4, 1>, true>("c32, two sets"); test<GradShape<48, 32, 32, 4, 2>, true>("c48, two sets"); }
