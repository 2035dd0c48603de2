// Solves by Anderson's method on chip, in the emulator, against the same method in f64.
#define EMU
#include <algorithm>
#include "../../crates/engine/src/cuda/kernels/onchip_anderson.cuh"
#include "reference.h"
#include "packed.h"
static int C, S; static size_t len;
static int failures = 0;
static void check(bool holds, const char* what) { if (!holds) { failures++; printf("  FAILED: %s\n", what); } }
struct Map { std::vector<float> w; bool adjoint, inner, normalised; const float *states, *gradients, *inverses; float shift, base, power; bool has_power; const float *drive, *slope;
  std::vector<double> operator()(const std::vector<double>& z) const {
    auto u = conv_reference(C, S, S, w, z, adjoint);
    if (adjoint && normalised) { for (size_t i = 0; i < len; i++) u[i] += drive[i];
      for (int c = 0; c < S * C; c++) { double inner = 0; for (int r = 0; r < S; r++) inner += states[r * S * C + c] * u[r * S * C + c]; for (int r = 0; r < S; r++) { size_t i = r * S * C + c; u[i] = slope[i] * (u[i] - inner * gradients[i]) * inverses[c]; } }
      return u; }
    for (size_t i = 0; i < len; i++) { if (adjoint) { u[i] = slope[i] * (u[i] + drive[i]); continue; }
      double s = std::tanh(inner ? u[i] + drive[i] : u[i]), outer = inner ? shift : drive[i] + shift; u[i] = (has_power ? std::pow(s + base, power) : s) + outer; }
    if (normalised) for (int c = 0; c < S * C; c++) { double most = 0; for (int r = 0; r < S; r++) most = std::max(most, std::fabs(u[r * S * C + c])); for (int r = 0; r < S; r++) u[r * S * C + c] /= most; }
    return u; } };
/// anderson.cuh in f64, window 5.
static int reference(const Map& F, std::vector<double>& z, double tol, int most, double ridge, int& outcome, double& residual) {
  std::vector<std::vector<double>> fs, rs; bool accelerated = false; std::vector<double> f; double last = 0, ff = 0;
  for (int it = 1;; it++) {
    auto g = F(z); double rr = 0, gg = 0; std::vector<double> r(len); for (size_t i = 0; i < len; i++) { r[i] = g[i] - z[i]; rr += r[i] * r[i]; gg += g[i] * g[i]; }
    if (!accelerated || rr < last) { f = g; fs.insert(fs.begin(), g); rs.insert(rs.begin(), r); if (fs.size() > 5) { fs.pop_back(); rs.pop_back(); } last = rr; ff = gg; }
    else { fs.resize(1); rs.resize(1); f = fs[0]; }
    accelerated = false; residual = std::sqrt(last) / (1e-5 + std::sqrt(ff));
    if (residual <= tol || it >= most) { outcome = residual <= tol ? 0 : 1; z = f; return it; }
    int n = fs.size(); z = f; if (n < 2) continue;
    std::vector<std::vector<double>> G(n, std::vector<double>(n)); std::vector<double> s(n), b(n);
    for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) { double d = 0; for (size_t k = 0; k < len; k++) d += rs[i][k] * rs[j][k]; G[i][j] = d; }
    for (int i = 0; i < n; i++) s[i] = b[i] = 1 / std::sqrt(G[i][i]);
    for (int i = 0; i < n; i++) for (int j = 0; j < n; j++) G[i][j] = i == j ? 1 + ridge : G[i][j] * s[i] * s[j];
    for (int p = 0; p < n; p++) for (int i = p + 1; i < n; i++) { double q = G[i][p] / G[p][p]; for (int j = p; j < n; j++) G[i][j] -= q * G[p][j]; b[i] -= q * b[p]; }
    double total = 0; std::vector<double> x(n); for (int p = n; p-- > 0;) { double v = b[p]; for (int j = p + 1; j < n; j++) v -= G[p][j] * x[j]; x[p] = v / G[p][p]; } for (int p = 0; p < n; p++) total += x[p] *= s[p];
    std::vector<double> next(len, 0.0); bool positive = true, were = true; for (int p = 0; p < n; p++) for (size_t k = 0; k < len; k++) next[k] += x[p] / total * fs[p][k];
    for (size_t k = 0; k < len; k++) { positive &= next[k] > 0; were &= f[k] > 0; }
    if (positive || !were) { z = next; accelerated = true; }
  }
}
template <class Tiles> static void test(const char* name, double gain, bool adjoint, bool inner, bool has_power, bool normalised, double tol, int most, unsigned seed, double allowed) {
  const int n = 2; auto w = random_weights(C, gain, 7); auto p = packed_halves(C, w, adjoint); uint32_t bad = 0;
  std::vector<float> drive = adjoint ? random_normal(n * len, 1e-3, 3) : random_injection(n * len, 3), slope(n * len), z(n * len, 1.0f); { Rng r(5); for (float& x : slope) x = (float)r.uniform(); }
  for (size_t i = 0; i < len; i++) drive[i] *= 0.2f;
  if (adjoint) for (size_t i = 0; i < n * len; i++) z[i] = slope[i] * drive[i];
  std::vector<float> states = random_injection(n * len, 11), gradients = random_normal(n * len, 0.05, 12), inverses(n * S * C, 0.7f); std::vector<float> start = z; std::vector<OnchipReport> reports(n);
  OnchipAnderson a{p.data(), drive.data(), slope.data(), states.data(), gradients.data(), inverses.data(), z.data(), z.data(), reports.data(), nullptr, nullptr, &bad, tol, 1e-4, 1.2f, 2.0f, 0.5f, inner, has_power, (uint32_t)most};
  auto go = [&](auto kernel) { using K = decltype(kernel); emu::launch(n * K::CL, 1, K::CL, 512, K::SHARED, [&] { auto s = std::make_unique<K>(a); s->run(); }, seed); };
  if (adjoint && normalised) go(AndersonOnChip<Tiles, ANDERSON_ADJOINT, true>(a)); else if (adjoint) go(AndersonOnChip<Tiles, ANDERSON_ADJOINT, false>(a));
  else if (normalised) go(AndersonOnChip<Tiles, ANDERSON_FORWARD, true>(a)); else go(AndersonOnChip<Tiles, ANDERSON_FORWARD, false>(a));
  for (int k = 0; k < n; k++) {
    Map F{w, adjoint, inner, normalised, &states[k * len], &gradients[k * len], &inverses[k * S * C], 1.2f, 2.0f, 0.5f, has_power, &drive[k * len], &slope[k * len]};
    std::vector<double> ref(start.begin() + k * len, start.begin() + (k + 1) * len); int outcome; double residual; int its = reference(F, ref, tol, most, 1e-4, outcome, residual);
    double e = relative_error(&z[k * len], ref);
    printf("%s sample %d: %u iterations (f64 %d), outcome %u (%d), residual %.3e (%.3e), apart %.2e\n", name, k, reports[k].iterations, its, reports[k].outcome, outcome, reports[k].residual, residual, e); fflush(stdout);
    check(e < allowed && reports[k].outcome == (uint32_t)outcome && std::abs((int)reports[k].iterations - its) <= 1, name);
  }
}
/// Every other way to end, and the bits of a sample anywhere and in any order of warps.
template <class Tiles> static void ends() {
  auto w = random_weights(C, 2.0, 7); auto p = packed_halves(C, w, false); uint32_t bad = 0; using K = AndersonOnChip<Tiles, ANDERSON_FORWARD, false>;
  auto solve = [&](const std::vector<float>& y, double tol, uint32_t most, bool inner, unsigned seed, std::vector<float>& z) {
    int n = y.size() / len; z.assign(y.size(), 1.0f); std::vector<OnchipReport> reports(n);
    OnchipAnderson a{p.data(), y.data(), nullptr, nullptr, nullptr, nullptr, z.data(), z.data(), reports.data(), nullptr, nullptr, &bad, tol, 1e-4, 1.2f, 0, 1, inner, false, most};
    emu::launch(n * K::CL, 1, K::CL, 512, K::SHARED, [&] { auto s = std::make_unique<K>(a); s->run(); }, seed); return reports; };
  auto y = random_injection(len, 3); std::vector<float> z, turned;
  auto end = [&](double tol, uint32_t most, bool inner, uint32_t outcome, uint32_t iterations, const char* what) { auto r = solve(y, tol, most, inner, 1, z)[0]; printf("%s: outcome %u after %u iterations, residual %.2e\n", what, r.outcome, r.iterations, r.residual); fflush(stdout); check(r.outcome == outcome && (!iterations || r.iterations == iterations), what); };
  end(1e-3, 1, false, 1, 1, "one application"); end(0.0, 400, false, 2, 0, "tolerance 0");
  y[5] = NAN; end(1e-3, 50, true, 3, 1, "NaN injected"); y[5] = INFINITY; end(1e-3, 50, true, 3, 1, "infinity injected"); end(1e-3, 50, false, 3, 1, "infinity added"); y[5] = 0.0f; bad = 1; end(1e-3, 50, false, 3, 1, "bad weights"); bad = 0;
  auto two = random_injection(2 * len, 3), other = two; for (size_t i = 0; i < len; i++) two[i] *= 0.2f; std::copy_n(&two[0], len, &other[len]); std::copy_n(&two[len], len, &other[0]);
  solve(two, 1e-4, 50, false, 9, z); solve(other, 1e-4, 50, false, 10, turned); check(!memcmp(&z[0], &turned[len], len * 4) && !memcmp(&z[len], &turned[0], len * 4), "same bits anywhere");
  // Samples that end together: the images of the last iterations are those of solves with as many, each gap that of its iteration.
  const uint32_t limit = 7; OnchipTogether together{limit, 0, 0}; std::vector<float> start(2 * len, 1.0f), answers(ANSWERS * 2 * len, -1.0f); std::vector<OnchipGap> gaps(20 * 2, OnchipGap{-1, -1});
  OnchipAnderson a{p.data(), two.data(), nullptr, nullptr, nullptr, nullptr, start.data(), answers.data(), nullptr, &together, gaps.data(), &bad, 1e-3, 1e-4, 1.2f, 0, 1, false, false, 20};
  auto go = [&] { emu::launch(2 * K::CL, 1, K::CL, 512, K::SHARED, [&] { auto s = std::make_unique<K>(a); s->run(); }, 3); };
  go();
  for (uint32_t it = limit - ANSWERS + 1; it <= limit; it++) { auto r = solve(two, 0.0, it, false, 1, z); check(!memcmp(z.data(), &answers[it % ANSWERS * 2 * len], 2 * len * 4), "an answer of samples that end together");
    for (int k = 0; k < 2; k++) { OnchipGap g = gaps[(it - 1) * 2 + k]; check(std::sqrt(g.difference) / (1e-5 + std::sqrt(g.size)) == r[k].residual, "a gap of samples that end together"); } }
  check(gaps[limit * 2].size == -1, "no iterations beyond the limit");
  together.known = 1; std::fill(answers.begin(), answers.end(), -1.0f); go(); check(answers[0] == -1.0f, "nothing is done for what is known");
}
template <class Tiles> static void all() {
  C = Tiles::C, S = Tiles::SIDE, len = (size_t)C * S * S; printf("== %d channels of %d x %d\n", C, S, S);
  ends<Tiles>();
  test<Tiles>("plain, 3 iterations", 1.0, false, false, false, false, 1e-9, 3, 1, 1e-5);
  test<Tiles>("normalised", 3.0, false, false, false, true, 1e-4, 40, 6, 3e-4);
  test<Tiles>("normalised adjoint", 1.5, true, false, false, true, 1e-5, 40, 7, 1e-4);
  test<Tiles>("plain", 2.5, false, false, false, false, 1e-3, 40, 1, 3e-3);
  test<Tiles>("adjoint", 2.0, true, false, false, false, 1e-5, 40, 2, 1e-4);
  test<Tiles>("power", 2.0, false, false, true, false, 1e-5, 40, 3, 1e-4);
  test<Tiles>("inner", 2.0, false, true, false, false, 1e-6, 40, 4, 1e-5);
  test<Tiles>("does not converge", 30.0, false, false, false, false, 1e-3, 14, 5, 1e9);
  test<Tiles>("normalised, does not converge", 30.0, false, false, false, true, 1e-3, 14, 8, 1e9);
}
int main() {
  all<Tiles28>(); all<Tiles32>();
  printf(failures ? "%d FAILED\n" : "all passed\n", failures); return failures != 0;
}
