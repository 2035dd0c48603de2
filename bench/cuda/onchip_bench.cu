// Measures the engine's convolutional solves on chip (crates/engine/src/cuda/kernels/onchip.cuh): correctness against f64 on the host,
// then time. One shape per process: ./onchip c48.
#include <thread>
#include "plumbing.h"
#include "reference.h"
#include "../../crates/engine/src/cuda/kernels/onchip.cuh"

#define SHAPES(X) X(c48, 48, 32, 32, 2, 2, 4, 0, 3, 128) X(c32, 32, 28, 28, 1, 2, 7, 2, 3, 128) X(c16, 16, 28, 28, 1, 2, 7, 2, 3, 256) X(c64, 64, 64, 64, 16, 2, 2, 1, 2, 64)
#define X(name, ...)                                                         \
  extern "C" __global__ void onchip_solve_##name(const OnchipArgs);          \
  extern "C" __global__ void onchip_adjoint_##name(const OnchipArgs);        \
  extern "C" __global__ void onchip_slopes_##name(const OnchipSlopesArgs);   \
  extern "C" __global__ void onchip_pack_##name(const float*, uint4*, uint4*, float*);
SHAPES(X)
#undef X

template <class S> struct Onchip {
  static constexpr int C = S::C, H = S::H, W = S::W;
  static constexpr size_t LEN = (size_t)C * H * W;
  void (*solve)(const OnchipArgs);
  void (*adjoint)(const OnchipArgs);
  void (*slopes)(const OnchipSlopesArgs);
  void (*pack)(const float*, uint4*, uint4*, float*);
  int batch;
  struct Weights {
    Gpu<float> w, sums;
    Gpu<uint4> forward, backward;
    Gpu<uint32_t> bad;
    Weights(const Onchip& o, const std::vector<float>& host) : w(host), sums(9 * C), forward(9 * C * C / 4), backward(9 * C * C / 4), bad(1) {
      CHECK(cudaMemset(bad.p, 0, 4));
      o.pack<<<std::max(9 * C * C / 4, 32 * C) / 256 + 1, 256>>>(w.p, forward.p, backward.p, sums.p);
      CHECK(cudaGetLastError());
    }
  };
  template <class A> void go(void (*kernel)(const A), int n, const A& a) const { launch<const A>(kernel, n * S::CL, S::CL, S::THREADS, S::SHARED, a); }
  struct Batch {
    Gpu<float> y, state, d;
    Gpu<OnchipReport> reports;
    Gpu<uint32_t> refreshes;
    Batch(int n, const std::vector<float>& drive) : y(drive), state(n * LEN), d(n * LEN), reports(n), refreshes(n) {}
  };
  OnchipArgs args(const Weights& w, const Batch& b, bool back, float tolerance, int most) const {
    return OnchipArgs{back ? w.backward.p : w.forward.p, w.sums.p, b.y.p, b.d.p, nullptr, w.bad.p, b.state.p, b.reports.p, b.refreshes.p,
                      back ? 0.0f : 1.2f, back ? 0.0f : 1.0f, tolerance, (uint32_t)most, 0, 0};
  }
  void correctness() const {
    const int n = 3;
    std::vector<float> w = random_weights(C, 1.0, 11), y = random_injection(n * LEN, 12), v = random_normal(n * LEN, 1e-5, 13);
    Weights weights(*this, w);
    Batch f(n, y), b(n, v);
    go(solve, n, args(weights, f, false, 1e-6f, 200));
    go(slopes, n, OnchipSlopesArgs{weights.forward.p, f.y.p, f.state.p, b.d.p, 0});
    go(adjoint, n, args(weights, b, true, 1e-6f, 200));
    CHECK(cudaDeviceSynchronize());
    std::vector<float> z = f.state.get(), d = b.d.get(), g = b.state.get();
    auto rf = f.reports.get(), rb = b.reports.get();
    auto nf = f.refreshes.get(), nb = b.refreshes.get();
    double e[n][3];
    std::vector<std::thread> team;
    for (int s = 0; s < n; s++) team.emplace_back([&, s] {
      std::vector<double> ref = solve_reference(C, H, W, w, &y[s * LEN], 1.2f, false), u = conv_reference(C, H, W, w, ref, false);
      e[s][0] = relative_error(&z[s * LEN], ref);
      for (double& x : u) x = 1 - std::tanh(x) * std::tanh(x);
      e[s][1] = relative_error(&d[s * LEN], u);
      std::vector<double> p = conv_reference(C, H, W, w, adjoint_reference(C, H, W, w, &d[s * LEN], &v[s * LEN]), true);
      for (size_t i = 0; i < LEN; i++) p[i] += v[s * LEN + i];
      e[s][2] = relative_error(&g[s * LEN], p);
    });
    for (auto& t : team) t.join();
    for (int s = 0; s < n; s++)
      verdict("on chip", e[s][0] < 3e-6 && e[s][1] < 1e-5 && e[s][2] < 1e-5 && rf[s].outcome == 0 && rb[s].outcome == 0,
              text("\"sample\":%d,\"error_z\":%.2e,\"error_slopes\":%.2e,\"error_g\":%.2e,\"iterations\":[%u,%u],\"refreshes\":[%u,%u],\"outcomes\":[%u,%u]",
                   s, e[s][0], e[s][1], e[s][2], rf[s].iterations, rb[s].iterations, nf[s], nb[s], rf[s].outcome, rb[s].outcome).c_str());
  }
  void time() const {
    int n = batch;
    std::vector<float> y = random_injection(n * LEN, 33), v = random_normal(n * LEN, 1e-5, 34);
    Weights slow(*this, random_weights(C, 1.8, 31)), fast(*this, random_weights(C, 1.0, 32));
    Batch f(n, y), b(n, v);
    go(solve, n, args(slow, f, false, 1e-4f, 100));
    auto slopes_at = [&](const Weights& w) { go(slopes, n, OnchipSlopesArgs{w.forward.p, f.y.p, f.state.p, b.d.p, 0}); };
    slopes_at(slow);
    double flop = 2.0 * 9 * C * C * H * W * n;
    for (int back = 0; back < 2; back++) {
      const int cuts[4] = {1, 3, 6, 18};
      double us[4], refreshes[4];
      for (int i = 0; i < 4; i++) {
        OnchipArgs a = args(slow, back ? b : f, back, 1e-30f, cuts[i]);
        us[i] = median_us(30, [&] { go(back ? adjoint : solve, n, a); });
        refreshes[i] = 0;
        for (uint32_t r : (back ? b : f).refreshes.get()) refreshes[i] += (double)r / n;
      }
      // Plain iterations alone (3 to 6), the first, and what a refresh costs.
      double plain = (us[2] - us[1]) / 3, more = refreshes[3] - refreshes[2];
      emit("{\"time\":\"%s iteration\",\"batch\":%d,\"us\":%.2f,\"tflops\":%.0f,\"us_1\":%.1f,\"us_3\":%.1f,\"us_6\":%.1f,\"us_18\":%.1f,\"refreshes\":[%.2f,%.2f,%.2f,%.2f],\"us_refresh\":%.1f}", back ? "adjoint" : "solve",
           n, plain, flop / plain * 1e-6, us[0], us[1], us[2], us[3], refreshes[0], refreshes[1], refreshes[2], refreshes[3], more > 0 ? plain + (us[3] - us[2] - 12 * plain) / more : 0.0);
    }
    go(solve, n, args(fast, f, false, 1e-4f, 100));
    slopes_at(fast);
    for (int back = 0; back < 2; back++) for (float tolerance : {1e-3f, 1e-6f}) {
      OnchipArgs a = args(fast, back ? b : f, back, tolerance, 100);
      double us = median_us(30, [&] { go(back ? adjoint : solve, n, a); }), iterations = 0, refreshes = 0;
      for (const OnchipReport& r : (back ? b : f).reports.get()) iterations += (double)r.iterations / n;
      for (uint32_t r : (back ? b : f).refreshes.get()) refreshes += (double)r / n;
      emit("{\"time\":\"%s\",\"batch\":%d,\"tolerance\":%g,\"us\":%.1f,\"iterations\":%.2f,\"refreshes\":%.2f}", back ? "adjoint" : "solve", n, tolerance, us, iterations, refreshes);
    }
    emit("{\"time\":\"slopes\",\"batch\":%d,\"us\":%.1f}", n, median_us(30, [&] { slopes_at(fast); }));
    emit("{\"time\":\"pack\",\"us\":%.1f}", median_us(30, [&] { pack<<<std::max(9 * C * C / 4, 32 * C) / 256 + 1, 256>>>(fast.w.p, fast.forward.p, fast.backward.p, fast.sums.p); }));
  }
};

int main(int argc, char** argv) {
  part_name = argc > 1 ? argv[1] : "c48";
#define X(name, c, h, w, cl, groups, mt, wide, flight, batch)                                                                                        \
  if (part_name == #name) {                                                                                                                 \
    Onchip<OnchipShape<c, h, w, cl, groups, mt, wide, flight>> o{onchip_solve_##name, onchip_adjoint_##name, onchip_slopes_##name, onchip_pack_##name, batch}; \
    o.correctness();                                                                                                                        \
    o.time();                                                                                                                               \
  }
  SHAPES(X)
#undef X
  emit("{\"done\":true,\"failures\":%d}", failures);
  return failures ? 1 : 0;
}
