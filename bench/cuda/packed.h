// Weights as pack_for_warpgroups has them, for the emulator.
#pragma once
#include <algorithm>
#include <cmath>
inline std::vector<uint4> packed_halves(int C, const std::vector<float>& w, bool transposed) {
  std::vector<uint16_t> h(2 * 9 * C * C); std::vector<float> scales(C);
  for (int o = 0; o < C; o++) {
    float most = 0; auto at = [&](int t, int i) { return transposed ? w[(i * C + o) * 9 + 8 - t] : w[(o * C + i) * 9 + t]; };
    for (int t = 0; t < 9; t++) for (int i = 0; i < C; i++) most = std::max(most, std::fabs(at(t, i)));
    float to = exp2f(std::floor(13 - log2f(most))); scales[o] = 1 / to;
    for (int t = 0; t < 9; t++) for (int i = 0; i < C; i++) {
      float x = at(t, i) * to; uint16_t hi = emu::float_to_half(x), lo = emu::float_to_half(x - emu::half_to_float(hi));
      size_t k = (((size_t)(t * C + i) / 8) * C + o) * 8 + i % 8; h[k] = hi; h[9 * C * C + k] = lo; } }
  std::vector<uint4> p((2 * 9 * C * C * 2 + C * 4) / 16); memcpy(p.data(), h.data(), h.size() * 2); memcpy((char*)p.data() + h.size() * 2, scales.data(), C * 4); return p;
}
