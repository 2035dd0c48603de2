// Integrations on chip, in the emulator, against the same method in f64: ends, steps, gradients for starts and weights.
#define EMU
#include <algorithm>
#include "../../crates/engine/src/cuda/kernels/onchip_ode.cuh"
#include "reference.h"
#include "packed.h"
static int C, S; static size_t len; static int failures = 0;
static void check(bool holds, const char* what) { if (!holds) { failures++; printf("  FAILED: %s\n", what); } }
static const double A[7][6] = {{}, {1. / 5}, {3. / 40, 9. / 40}, {44. / 45, -56. / 15, 32. / 9}, {19372. / 6561, -25360. / 2187, 64448. / 6561, -212. / 729}, {9017. / 3168, -355. / 33, 46732. / 5247, 49. / 176, -5103. / 18656}, {35. / 384, 0, 500. / 1113, 125. / 192, -2187. / 6784, 11. / 84}};
static const double E[7] = {71. / 57600, 0, -71. / 16695, 71. / 1920, -17253. / 339200, 22. / 525, -1. / 40};
typedef std::vector<double> Vec;
struct Step { double h; Vec z, k[6]; };
struct Reference { Vec end, gradient; std::vector<Step> steps; int rejected = 0; double time = 0; };
static Vec stage_of(const std::vector<float>& w, const Vec& p, bool relu) { Vec u = conv_reference(C, S, S, w, p, false); for (double& x : u) x = relu ? std::max(x, 0.0) : std::tanh(x); return u; }
static Reference integrate(const std::vector<float>& w, Vec z, bool relu, double tol, double first, int tries) {
  Reference r; double h = first; Vec k0 = stage_of(w, z, relu);
  while (tries-- > 0) {
    Step s{h, z, {k0}}; Vec p, last;
    for (int i = 1; i <= 6; i++) { p = z; for (int j = 0; j < i; j++) for (size_t n = 0; n < len; n++) p[n] += h * A[i][j] * s.k[j][n]; (i < 6 ? s.k[i] : last) = stage_of(w, p, relu); }
    double sum = 0; for (size_t n = 0; n < len; n++) { double e = E[6] * last[n]; for (int j = 0; j < 6; j++) e += E[j] * s.k[j][n]; e *= h / (tol + tol * std::max(std::fabs(z[n]), std::fabs(p[n]))); sum += e * e; }
    double error = std::sqrt(sum / len);
    if (error <= 1) { r.steps.push_back(s); r.time += h; z = p; k0 = last; } else r.rejected++;
    if (error <= 1 && r.time >= 1 - 1e-12) { r.time = 1; break; }
    h *= std::min(5.0, std::max(0.2, 0.9 * std::pow(std::max(error, 1e-10), -0.2))); if (h > (1 - r.time) * (1 - 1e-9)) h = 1 - r.time;
  }
  r.end = z; return r;
}
static void pull_back(const std::vector<float>& w, Reference& r, Vec v, bool relu, Vec& gw) {
  for (size_t n = r.steps.size(); n-- > 0;) {
    const Step& s = r.steps[n]; Vec g[6];
    for (int i = 5; i >= 0; i--) {
      Vec q(len), p = s.z; for (int j = 0; j < i; j++) for (size_t m = 0; m < len; m++) p[m] += s.h * A[i][j] * s.k[j][m];
      for (size_t m = 0; m < len; m++) { double x = A[6][i] * v[m]; for (int j = i + 1; j < 6; j++) x += A[j][i] * g[j][m]; q[m] = s.h * x * (relu ? s.k[i][m] > 0 : 1 - s.k[i][m] * s.k[i][m]); }
      for (int y = 0; y < S; y++) for (int x = 0; x < S; x++) for (int t = 0; t < 9; t++) { int a = y + t / 3 - 1, b = x + t % 3 - 1; if (a < 0 || a >= S || b < 0 || b >= S) continue;
        for (int o = 0; o < C; o++) { double e = q[((size_t)y * S + x) * C + o]; double* row = &gw[((size_t)o * 9 + t) * C]; const double* in = &p[((size_t)a * S + b) * C]; for (int c = 0; c < C; c++) row[c] += e * in[c]; } }
      g[i] = conv_reference(C, S, S, w, q, true);
    }
    for (auto& x : g) for (size_t m = 0; m < len; m++) v[m] += x[m];
  }
  r.gradient = v;
}
struct Found { std::vector<float> end, gradient, gw; std::vector<OnchipOdeReport> reports; };
/// With room for so many steps, the first `kept` of which have a piece.
template <class Tiles> static Found run(const std::vector<float>& w, const std::vector<float>& start, const std::vector<float>& v, bool relu, double tol, double first, uint32_t tries, uint32_t room, uint32_t kept, unsigned seed, uint32_t bad = 0, bool back = true) {
  const size_t n = start.size() / len; auto forward = packed_halves(C, w, false), transposed = packed_halves(C, w, true);
  Found r; r.end.assign(n * len, NAN); r.gradient.assign(n * len, NAN); r.reports.resize(n);
  std::vector<std::vector<uint32_t>> points(kept + 3, std::vector<uint32_t>(6 * n * len, 0x7fc07fc0)); std::vector<std::vector<float>> stages(kept + 3, std::vector<float>(6 * n * len, NAN));
  std::vector<double> sizes(room * n, NAN); std::vector<float> later((room > kept ? room - kept : 0) * n * len, NAN);
  std::vector<OdePiece> pieces; for (uint32_t k = 0; k < kept + 3; k++) pieces.push_back({points[k].data(), stages[k].data()});
  OnchipOde a{forward.data(), start.data(), r.end.data(), r.reports.data(), pieces.data(), sizes.data(), later.data(), &bad, first, tol, tol, {}, tries, room, kept, relu, {}, 0};
  for (int i = 0; i < 7; i++) { for (int j = 0; j < 6; j++) a.tableau.a[i][j] = (float)A[i][j]; a.tableau.e[i] = (float)E[i]; }
  using F = OdeForward<Tiles>; using B = OdeBack<Tiles>; using G = OdeGradient<Tiles>;
  auto go = [&](auto kernel, const OnchipOde& a) { using K = decltype(kernel); emu::launch(n * K::CL, 1, K::CL, 512, K::SHARED, [&] { auto s = std::make_unique<K>(a); s->run(); }, seed++); };
  go(F(a), a);
  if (!back) return r;
  const int blocks = 5; r.gw.assign(9 * C * C, 0.0f); r.gradient = v;
  auto span = [&](OdeSpan span) {
    OnchipOde b = a; b.span = span; b.weights = transposed.data(); b.from = b.to = r.gradient.data(); go(B(b), b);
    std::vector<float> parts((size_t)blocks * 9 * C * C, NAN); OnchipOdeGradient g{r.reports.data(), pieces.data(), parts.data(), span, (uint32_t)n};
    emu::launch(blocks, 1, 1, 384, G::SHARED, [&] { auto s = std::make_unique<G>(g); s->run(); }, seed++);
    for (int k = 0; k < blocks; k++) for (int i = 0; i < 9 * C * C; i++) r.gw[i] += parts[(size_t)k * 9 * C * C + i]; };
  uint32_t most = 0; for (auto& x : r.reports) most = std::max(most, x.accepted);
  for (uint32_t step = most; step-- > kept;) { OnchipOde again = a; again.span = {step, step + 1, kept + 1}; go(F(again), again); span(again.span); }
  span({0, kept, 0});
  return r;
}
template <class Tiles> static void all() {
  C = Tiles::C, S = Tiles::SIDE, len = (size_t)C * S * S; printf("== %d channels of %d x %d\n", C, S, S);
  auto problem = [&](double gain, bool relu, double tol, double first, uint32_t tries, uint32_t kept, unsigned seed, const char* name, double allowed) {
    const size_t n = 2; auto w = random_weights(C, gain, 7); auto start = random_injection(n * len, 3), v = random_normal(n * len, 1e-3, 5); for (size_t i = 0; i < len; i++) start[i] *= 0.1f;
    auto found = run<Tiles>(w, start, v, relu, tol, first, tries, 8, kept, seed); Vec gw(9 * C * C, 0.0);
    for (size_t k = 0; k < n; k++) {
      auto r = integrate(w, Vec(start.begin() + k * len, start.begin() + (k + 1) * len), relu, tol, first, tries); pull_back(w, r, Vec(v.begin() + k * len, v.begin() + (k + 1) * len), relu, gw);
      const auto& report = found.reports[k]; double e = relative_error(&found.end[k * len], r.end), g = relative_error(&found.gradient[k * len], r.gradient);
      printf("%s, sample %zu: %u steps and %u rejected (f64 %zu and %d), outcome %u at %.6f, apart %.1e, gradient %.1e\n", name, k, report.accepted, report.rejected, r.steps.size(), r.rejected, report.outcome, report.time, e, g); fflush(stdout);
      check(e < allowed && g < (relu ? 1e-2 : 20 * allowed) && report.accepted == r.steps.size() && (int)report.rejected == r.rejected && std::fabs(report.time - r.time) < 1e-3, name);
    }
    double g = relative_error(found.gw.data(), gw); printf("%s: gradient of the weights %.1e\n", name, g); fflush(stdout); check(g < (relu ? 1e-2 : 20 * allowed), name);
    return found;
  };
  problem(2.0, false, 1e-3, 0.289, 100, 8, 1, "tanh", 1e-6);
  problem(2.0, true, 1e-3, 0.289, 100, 8, 3, "relu", 1e-6);
  auto many = problem(6.0, false, 1e-4, 0.7, 100, 8, 5, "tanh, some rejected", 2e-5), few = problem(6.0, false, 1e-4, 0.7, 100, 1, 15, "one step kept", 2e-5); check(many.end == few.end, "same ends whatever is kept");
  problem(2.0, false, 1e-4, 0.1, 3, 8, 7, "three tries", 1e-6);
  // Every other way to end; the same bits anywhere, with any room.
  auto w = random_weights(C, 2.0, 7); auto y = random_injection(len, 3); std::vector<float> none;
  auto end = [&](const std::vector<float>& w, const std::vector<float>& y, uint32_t room, uint32_t bad, uint32_t outcome, const char* what) { auto r = run<Tiles>(w, y, none, false, 1e-3, 0.289, 100, room, 8, 1, bad, false).reports[0]; printf("%s: outcome %u after %u steps\n", what, r.outcome, r.accepted); fflush(stdout); check(r.outcome == outcome, what); };
  end(w, y, 1, 0, ODE_NO_ROOM, "no room"); end(w, y, 8, 1, ODE_NOT_FINITE, "bad weights");
  auto spoiled = y; spoiled[5] = NAN; end(w, spoiled, 8, 0, ODE_NOT_FINITE, "NaN at the start"); spoiled[5] = INFINITY; end(w, spoiled, 8, 0, ODE_NOT_FINITE, "infinity at the start");
  for (float size : {1e-20f, 1e12f}) { auto sized = y; for (float& x : sized) x = (x + 1) * size; auto r = integrate(w, Vec(sized.begin(), sized.end()), true, 1e-2, 0.5, 100); auto found = run<Tiles>(w, sized, none, true, 1e-2, 0.5, 100, 12, 8, 1, 0, false); double e = relative_error(found.end.data(), r.end); printf("numbers of %.0e: %u steps (f64 %zu), apart %.1e\n", size, found.reports[0].accepted, r.steps.size(), e); check(e < 1e-6, "any size"); }
  { auto two = random_injection(2 * len, 3), v = random_normal(2 * len, 1e-3, 5), turned = two, back = v; for (size_t i = 0; i < len; i++) two[i] *= 0.1f; std::copy_n(&two[0], len, &turned[len]); std::copy_n(&two[len], len, &turned[0]); std::copy_n(&v[0], len, &back[len]); std::copy_n(&v[len], len, &back[0]);
    auto a = run<Tiles>(w, two, v, false, 1e-3, 0.289, 100, 8, 8, 11), b = run<Tiles>(w, turned, back, false, 1e-3, 0.289, 100, 6, 4, 21); check(!memcmp(&a.end[0], &b.end[len], len * 4) && !memcmp(&a.end[len], &b.end[0], len * 4) && !memcmp(&a.gradient[0], &b.gradient[len], len * 4) && !memcmp(&a.gradient[len], &b.gradient[0], len * 4), "same bits anywhere"); }
}
int main() {
  all<Tiles28>(); all<Tiles32>();
  printf(failures ? "%d FAILED\n" : "all passed\n", failures); return failures != 0;
}
