// f64 references on the host, the plainest code that is right, and the random test problems. Layout [n][H][W][C].
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
struct Rng {
  uint64_t s;
  explicit Rng(uint64_t seed) : s(seed * 0x9E3779B97F4A7C15ull + 0x1234567) { for (int i = 0; i < 4; i++) next(); }
  uint64_t next() { s ^= s << 13; s ^= s >> 7; s ^= s << 17; return s; }
  double uniform() { return (double)(next() >> 11) / 9007199254740992.0; }
  double normal() { double u = uniform() + 1e-300, v = uniform(); return std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v); }
};
/// out[h][w][o] = sum_tap,i W[o][i][tap] in[h + dy - 1][w + dx - 1][i]; transposed: its transpose.
inline std::vector<double> conv_reference(int C, int H, int W, const std::vector<float>& w, const std::vector<double>& in, bool transposed) {
  std::vector<double> out((size_t)H * W * C, 0.0), k((size_t)9 * C * C);
  for (int o = 0; o < C; o++) for (int i = 0; i < C; i++) for (int t = 0; t < 9; t++) {
    if (transposed) k[((8 - t) * C + o) * C + i] = w[(o * C + i) * 9 + t]; else k[(t * C + i) * C + o] = w[(o * C + i) * 9 + t]; }
  for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) for (int t = 0; t < 9; t++) {
    int r = y + t / 3 - 1, c = x + t % 3 - 1;
    if (r < 0 || r >= H || c < 0 || c >= W) continue;
    const double* p = &in[((size_t)r * W + c) * C]; double* q = &out[((size_t)y * W + x) * C];
    for (int i = 0; i < C; i++) { double v = p[i]; const double* row = &k[((size_t)t * C + i) * C]; for (int o = 0; o < C; o++) q[o] += v * row[o]; } }
  return out;
}
inline double norm_of(const std::vector<double>& v) { double s = 0; for (double x : v) s += x * x; return std::sqrt(s); }
/// The fixed point of tanh(Wz [+ y]) [+ y] + shift, to about 1e-13.
inline std::vector<double> solve_reference(int C, int H, int W, const std::vector<float>& w, const float* y, double shift, bool inner, int* iterations = nullptr) {
  std::vector<double> z((size_t)H * W * C, 1.0);
  for (int k = 1; k <= 400; k++) {
    std::vector<double> u = conv_reference(C, H, W, w, z, false); double d = 0, s = 0;
    for (size_t i = 0; i < z.size(); i++) { double f = inner ? std::tanh(u[i] + y[i]) + shift : std::tanh(u[i]) + y[i] + shift; d += (f - z[i]) * (f - z[i]); s += f * f; z[i] = f; }
    if (iterations) *iterations = k;
    if (std::sqrt(d) <= 1e-12 * std::sqrt(s)) break;
  }
  return z;
}
/// q = D (W^T q + v)
inline std::vector<double> adjoint_reference(int C, int H, int W, const std::vector<float>& w, const float* slope, const float* v) {
  std::vector<double> q((size_t)H * W * C, 0.0);
  for (int k = 1; k <= 400; k++) {
    std::vector<double> p = conv_reference(C, H, W, w, q, true); double d = 0, s = 0;
    for (size_t i = 0; i < q.size(); i++) { double f = slope[i] * (p[i] + v[i]); d += (f - q[i]) * (f - q[i]); s += f * f; q[i] = f; }
    if (std::sqrt(d) <= 1e-12 * std::sqrt(s)) break;
  }
  return q;
}
inline double relative_error(const float* a, const std::vector<double>& b) { double d = 0, s = 0; for (size_t i = 0; i < b.size(); i++) { d += (a[i] - b[i]) * (a[i] - b[i]); s += b[i] * b[i]; } return std::sqrt(d / s); }
/// Weights as PyTorch draws them, +- gain / sqrt(fan in).
inline std::vector<float> random_weights(int C, double gain, uint64_t seed) { Rng r(seed); std::vector<float> w((size_t)C * C * 9); double b = gain / std::sqrt(9.0 * C); for (float& x : w) x = (float)((2 * r.uniform() - 1) * b); return w; }
inline std::vector<float> random_injection(size_t n, uint64_t seed) { Rng r(seed); std::vector<float> y(n); for (float& x : y) { double g = r.normal() * 0.5; x = (float)(g > 0 ? g : 0); } return y; }
inline std::vector<float> random_normal(size_t n, double size, uint64_t seed) { Rng r(seed); std::vector<float> y(n); for (float& x : y) x = (float)(r.normal() * size); return y; }
/// Circular 3x3 kernel [out][in][9] -> complex matrices at the frequencies of the half spectrum, [column * S + row][out][in] as (re, im).
inline std::vector<float> symbols_reference(int C, int S, const std::vector<float>& w) {
  std::vector<float> out((size_t)(S / 2 + 1) * S * C * C * 2);
  for (int kx = 0; kx <= S / 2; kx++) for (int ky = 0; ky < S; ky++) for (int o = 0; o < C; o++) for (int i = 0; i < C; i++) {
    double re = 0, im = 0;
    for (int t = 0; t < 9; t++) { double p = 6.283185307179586476925 * ((t / 3 - 1) * ky + (t % 3 - 1) * kx) / S; re += w[(o * C + i) * 9 + t] * std::cos(p); im += w[(o * C + i) * 9 + t] * std::sin(p); }
    size_t at = 2 * ((((size_t)kx * S + ky) * C + o) * C + i); out[at] = (float)re; out[at + 1] = (float)im; }
  return out;
}
/// g <- W (2 prox(g) - g) + k, W circular, `count` times; relative residual of the last.
inline double splitting_reference(int C, int S, const std::vector<float>& w, bool relu, const float* k, std::vector<double>& g, int count) {
  double residual = 0;
  for (int n = 0; n < count; n++) {
    std::vector<double> u(g.size()), next(g.size());
    for (size_t i = 0; i < g.size(); i++) u[i] = 2 * (relu ? std::max(g[i], 0.0) : std::tanh(g[i])) - g[i];
    for (int y = 0; y < S; y++) for (int x = 0; x < S; x++) for (int t = 0; t < 9; t++) {
      const double* p = &u[((size_t)((y + t / 3 - 1 + S) % S) * S + (x + t % 3 - 1 + S) % S) * C]; double* q = &next[((size_t)y * S + x) * C];
      for (int o = 0; o < C; o++) { double s = 0; for (int i = 0; i < C; i++) s += w[(o * C + i) * 9 + t] * p[i]; q[o] += s; } }
    double d = 0, s = 0; for (size_t i = 0; i < g.size(); i++) { next[i] += k[i]; d += (next[i] - g[i]) * (next[i] - g[i]); s += next[i] * next[i]; }
    g = next; residual = std::sqrt(d) / (1e-5 + std::sqrt(s)); }
  return residual;
}
