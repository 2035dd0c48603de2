// The engine's convolutional solves on chip, in the emulator against f64: fixed points, adjoints, slopes, every way to end.
#define EMU
#include <algorithm>
#include "../../crates/engine/src/cuda/kernels/onchip.cuh"
#include "reference.h"
static int failures = 0;
static void check(bool holds, const char* what) { if (!holds) { failures++; printf("  FAILED: %s\n", what); } }
struct Packed { std::vector<uint4> forward, backward; std::vector<float> sums; };
template <int C> Packed packed(const std::vector<float>& w) {
  Packed p{std::vector<uint4>(9 * C * C / 4), std::vector<uint4>(9 * C * C / 4), std::vector<float>(9 * C, NAN)};
  int blocks = std::max((9 * C * C / 4 + 255) / 256, (C * 32 + 255) / 256);
  emu::launch(blocks, 1, 1, 256, 0, [&] { onchip_pack<C>(w.data(), p.forward.data(), p.backward.data()); onchip_sums<C>(w.data(), p.sums.data()); });
  return p;
}
template <class S> struct Test {
  static constexpr int C = S::C, H = S::H, W = S::W;
  static constexpr size_t len = (size_t)C * H * W;
  const char* name;
  std::vector<float> w;
  Packed p;
  uint32_t bad = 0;
  float* q = nullptr;
  Test(const char* n, double gain) : name(n), w(random_weights(C, gain, 7)), p(packed<C>(w)) {}
  template <int KIND> std::vector<OnchipReport> run(int n, const std::vector<float>& drive, const std::vector<float>& slope, std::vector<float>& state, std::vector<uint32_t>& refreshes, float tol, uint32_t most, bool inner, bool given, unsigned seed) {
    std::vector<OnchipReport> reports(n); refreshes.assign(n, 0);
    OnchipArgs a{(KIND == ADJOINT ? p.backward : p.forward).data(), p.sums.data(), drive.data(), slope.data(), q, &bad, state.data(), reports.data(), refreshes.data(), KIND == ADJOINT ? 0.f : 1.2f, KIND == ADJOINT ? 0.f : 1.f, tol, most, inner, given};
    emu::launch(n * S::CL, 1, S::CL, S::THREADS, S::SHARED, [&] { auto s = std::make_unique<OnchipConv<S, KIND>>(a); s->run(); }, seed);
    return reports;
  }
  void forward(float tol, bool inner, bool given, unsigned seed, double allowed) {
    const int n = 2;
    std::vector<float> y = random_injection(n * len, 3), z = random_normal(n * len, 1.0, 4);
    for (size_t i = 0; i < len; i++) y[i] *= 0.2f;
    if (!given) std::fill(z.begin(), z.end(), NAN);
    std::vector<uint32_t> refreshes;
    auto r = run<FORWARD>(n, y, {}, z, refreshes, tol, 100, inner, given, seed);
    for (int k = 0; k < n; k++) {
      int steps; auto ref = solve_reference(C, H, W, w, &y[k * len], 1.2f, inner);
      // The true residual of the answer's argument cannot be seen; that of the answer is smaller still where the map contracts.
      std::vector<double> zk(&z[k * len], &z[k * len] + len), f = conv_reference(C, H, W, w, zk, false); double d = 0, s = 0;
      for (size_t i = 0; i < len; i++) { double y0 = y[k * len + i], x = inner ? std::tanh(f[i] + y0) + 1.2f : std::tanh(f[i]) + y0 + 1.2f; d += (x - zk[i]) * (x - zk[i]); s += x * x; } (void)steps;
      double e = relative_error(&z[k * len], ref), residual = std::sqrt(d) / (1e-5 + std::sqrt(s));
      printf("%s%s tol %g%s sample %d: error %.2e, residual %.2e (reported %.2e), %u iterations, %u refreshes, outcome %u\n", name, inner ? " inner" : "", tol, given ? " given" : "", k, e, residual, r[k].residual, r[k].iterations, refreshes[k], r[k].outcome); fflush(stdout);
      check(e < allowed && residual <= tol * 1.2 + 2e-7 && r[k].outcome == 0, "fixed point");
    }
  }
  void adjoint(float tol, unsigned seed, double allowed) {
    const int n = 2;
    std::vector<float> v = random_normal(n * len, 1e-3, 3), slope(n * len), g(n * len, NAN);
    for (size_t i = 0; i < len; i++) v[i] *= 10.0f;
    { Rng r(5); for (float& s : slope) s = (float)r.uniform(); }
    std::vector<uint32_t> refreshes;
    // D g goes where D is.
    std::vector<float> product = slope;
    q = product.data();
    auto r = run<ADJOINT>(n, v, product, g, refreshes, tol, 100, false, false, seed);
    q = nullptr;
    bool multiplied = true;
    for (size_t i = 0; i < n * len; i++) multiplied &= product[i] == slope[i] * g[i];
    check(multiplied, "D g");
    for (int k = 0; k < n; k++) {
      auto p = conv_reference(C, H, W, w, adjoint_reference(C, H, W, w, &slope[k * len], &v[k * len]), true);
      for (size_t i = 0; i < len; i++) p[i] += v[k * len + i];
      double e = relative_error(&g[k * len], p);
      printf("%s adjoint tol %g sample %d: error of g %.2e, reported %.2e, %u iterations, %u refreshes, outcome %u\n", name, tol, k, e, r[k].residual, r[k].iterations, refreshes[k], r[k].outcome); fflush(stdout);
      check(e < allowed && r[k].outcome == 0, "adjoint");
    }
    // A fixed number of applications: g is W' q + v of the last q, from q = D v on.
    r = run<ADJOINT>(1, v, slope, g, refreshes, 0.0f, 2, false, false, seed + 1);
    std::vector<double> q(len), t;
    for (size_t i = 0; i < len; i++) q[i] = slope[i] * (double)v[i];
    double residual = 0;
    for (int k = 0; k < 2; k++) { t = conv_reference(C, H, W, w, q, true); double d = 0, s = 0; for (size_t i = 0; i < len; i++) { double x = slope[i] * (t[i] + v[i]); d += (x - q[i]) * (x - q[i]); s += x * x; q[i] = x; } residual = std::sqrt(d) / (1e-5 + std::sqrt(s)); }
    t = conv_reference(C, H, W, w, q, true); for (size_t i = 0; i < len; i++) t[i] += v[i];
    double e = relative_error(g.data(), t), off = std::fabs(r[0].residual / residual - 1);
    printf("%s adjoint, two applications: error of g %.2e, of the residual %.2e, outcome %u\n", name, e, off, r[0].outcome);
    check(e < 1e-3 && off < 1e-3 && r[0].outcome == 1 && r[0].iterations == 2, "two applications");
  }
  void slopes(bool inner) {
    std::vector<float> z = random_injection(len, 9), y = random_injection(len, 10), d(len, NAN);
    OnchipSlopesArgs a{p.forward.data(), y.data(), z.data(), d.data(), inner};
    emu::launch(S::CL, 1, S::CL, S::THREADS, S::SHARED, [&] { onchip_slopes<S>(a); }, 3);
    auto u = conv_reference(C, H, W, w, std::vector<double>(z.begin(), z.end()), false);
    for (size_t i = 0; i < len; i++) { double t = std::tanh(u[i] + (inner ? y[i] : 0.0)); u[i] = 1 - t * t; }
    double e = relative_error(d.data(), u);
    printf("%s slopes%s: error %.2e\n", name, inner ? " inner" : "", e);
    check(e < 1e-6, "slopes");
  }
  void ends() {
    std::vector<float> y = random_injection(len, 3), z(len, NAN); std::vector<uint32_t> refreshes;
    auto end = [&](float tol, uint32_t most, bool inner, uint32_t outcome, uint32_t least, uint32_t mostly, const char* what) {
      auto r = run<FORWARD>(1, y, {}, z, refreshes, tol, most, inner, false, 1)[0];
      printf("%s, %s: outcome %u after %u iterations, %u refreshes, residual %.2e\n", name, what, r.outcome, r.iterations, refreshes[0], r.residual); fflush(stdout);
      check(r.outcome == outcome && r.iterations >= least && r.iterations <= mostly, what);
    };
    end(1e-3f, 1, false, 1, 1, 1, "one application");
    end(0.0f, 100, false, 2, 20, 100, "tolerance 0");
    y[5] = NAN; end(1e-3f, 50, true, 3, 1, 1, "NaN injected");
    y[5] = INFINITY; end(1e-3f, 50, true, 3, 1, 1, "infinity injected"); end(1e-3f, 50, false, 3, 1, 1, "infinity added");
    y[5] = 0.0f; bad = 1; end(1e-3f, 50, false, 3, 1, 1, "bad weights"); bad = 0;
    std::vector<float> keep = w; w = random_weights(C, 40.0, 7); p = packed<C>(w);
    end(1e-3f, 12, false, 1, 12, 12, "weights that do not contract"); w = keep; p = packed<C>(w);
  }
  /// The bits of a sample do not depend on where it is, nor on the order of warps.
  void positions() {
    const int n = 3;
    std::vector<float> y = random_injection(n * len, 3), turned(n * len), z(n * len, NAN), z2(n * len, NAN); std::vector<uint32_t> refreshes;
    for (int s = 0; s < n; s++) for (size_t i = 0; i < len; i++) y[s * len + i] *= 0.2f + s;
    for (int s = 0; s < n; s++) std::copy_n(&y[s * len], len, &turned[(n - 1 - s) * len]);
    auto r = run<FORWARD>(n, y, {}, z, refreshes, 1e-4f, 100, false, false, 9); run<FORWARD>(n, turned, {}, z2, refreshes, 1e-4f, 100, false, false, 10);
    bool same = true; for (int s = 0; s < n; s++) same &= !memcmp(&z[s * len], &z2[(n - 1 - s) * len], len * 4);
    printf("%s positions: %s (%u %u %u iterations)\n", name, same ? "same bits" : "DIFFERENT", r[0].iterations, r[1].iterations, r[2].iterations); fflush(stdout);
    check(same, "positions");
  }
  void all(bool thorough) {
    slopes(false); forward(1e-3f, false, false, 1, 3e-3); forward(1e-6f, false, false, 2, 3e-6); adjoint(1e-6f, 3, 1e-5);
    if (!thorough) return;
    slopes(true); forward(1e-6f, true, false, 4, 3e-6); forward(1e-6f, false, true, 5, 3e-6); forward(1e-4f, true, true, 6, 3e-4); adjoint(1e-3f, 7, 3e-3); ends(); positions();
  }
};
int main(int argc, char** argv) {
  bool thorough = argc > 1; const char* only = argc > 2 ? argv[2] : "";
  auto wanted = [&](const char* name) { return !*only || !strcmp(only, name); };
  if (wanted("c16")) Test<OnchipShape<16, 28, 28, 1, 2, 7, 2, 3>>("c16", 1.0).all(thorough);
  if (wanted("c32")) Test<OnchipShape<32, 28, 28, 1, 2, 7, 2, 3>>("c32", 1.0).all(thorough);
  if (wanted("c48")) Test<OnchipShape<48, 32, 32, 2, 2, 4, 0, 3>>("c48", 1.0).all(thorough);
  if (wanted("c64") && (thorough || *only)) Test<OnchipShape<64, 64, 64, 16, 2, 2, 1, 2>>("c64", 1.0).all(thorough);
  printf(failures ? "%d FAILED\n" : "all passed\n", failures);
  return failures != 0;
}
