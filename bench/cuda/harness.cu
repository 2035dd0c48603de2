// Measures the kernels of this folder: correctness against f64 on the host, determinism, then time. One part per process
// (./harness PART), so that a failure stays where it is; one JSON object per line on stdout and in $OUT/results.jsonl.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>
#include <numeric>
#include <string>
#include <thread>
#include <vector>
#include "conv_wg.cuh"
#include "reference.h"

// ---- kernels of the other files ----
#define X(name, c, h, w, cl, warps, mt, per_sm)                     \
  extern "C" __global__ void conv_solve_outer_##name(const ConvArgs); \
  extern "C" __global__ void conv_solve_inner_##name(const ConvArgs); \
  extern "C" __global__ void conv_adjoint_##name(const ConvArgs);
CONV_SHAPES(X)
#undef X
#define X(name, c, h, w, cl, groups, mt, wide, flow, fast)                     \
  extern "C" __global__ void conv_solve_outer_##name(const ConvArgs); \
  extern "C" __global__ void conv_solve_inner_##name(const ConvArgs); \
  extern "C" __global__ void conv_adjoint_##name(const ConvArgs);
WG_SHAPES(X)
#undef X
extern "C" __global__ void pack_wg_32(const float*, uint4*, uint4*, int);
extern "C" __global__ void pack_wg_48(const float*, uint4*, uint4*, int);
extern "C" __global__ void conv_ablate1_c48x4(const ConvArgs);
extern "C" __global__ void conv_ablate2_c48x4(const ConvArgs);
extern "C" __global__ void conv_ablate4_c48x4(const ConvArgs);
extern "C" __global__ void pack_conv_32(const float*, uint4*, uint4*, int);
extern "C" __global__ void pack_conv_48(const float*, uint4*, uint4*, int);
extern "C" __global__ void pack_conv_64(const float*, uint4*, uint4*, int);
#define GRADS(X) X(32, 28, 28, 4, 1, 46720) X(48, 32, 32, 4, 2, 74368) X(64, 64, 64, 4, 4, 187776)
#define X(c, h, w, rows, splits, smem)                                              \
  extern "C" __global__ void conv_wgrad_c##c(const float*, const float*, float*);    \
  extern "C" __global__ void conv_wgrad_sum_c##c(const float*, int, float*);
GRADS(X)
#undef X
struct DenseReport { int iterations, outcome; float residual; int refreshes; };
struct DenseArgs { const float *w, *y, *slope; float *state, *extra; DenseReport* reports; float shift, start, tolerance; int max_iterations; };
extern "C" __global__ void dense_solve_outer_87(const DenseArgs);
extern "C" __global__ void dense_solve_inner_87(const DenseArgs);
extern "C" __global__ void dense_adjoint_87(const DenseArgs);
extern "C" __global__ void dense4_solve_outer_87(const DenseArgs);
extern "C" __global__ void dense4_solve_inner_87(const DenseArgs);
extern "C" __global__ void dense4_adjoint_87(const DenseArgs);
extern "C" __global__ void conv_wgrad2_c48(const float*, const float*, float*);
extern "C" __global__ void conv_wgrad2_c32(const float*, const float*, float*);
struct FourierArgs { float* g; const float* k; float2* spectrum; const uint2* matrices; float2* partial; int* iterations; int n, iteration; float tolerance; };
extern "C" __global__ void fourier_plane_relu_48x32(const FourierArgs);
extern "C" __global__ void fourier_plane_tanh_48x32(const FourierArgs);
extern "C" __global__ void fourier_product_48x32(const FourierArgs);
extern "C" __global__ void fourier_pack_48x32(const float2*, uint2*, int);
struct FourierRecord { float scale, err; int mode; int pad; };
struct Fourier2Args { float* g; const float* k; float2* spectrum; uint32_t* half; const uint32_t *high, *low; float2* partial; FourierRecord* records; int* iterations; int n, iteration; float tolerance; };
#define F2(name) extern "C" __global__ void fourier2_plane_relu##name##_48x32(const Fourier2Args); extern "C" __global__ void fourier2_plane_tanh##name##_48x32(const Fourier2Args);
F2() F2(_two) F2(_f32)
#undef F2
extern "C" __global__ void fourier2_product_48x32(const Fourier2Args);
extern "C" __global__ void fourier2_product_f32_48x32(const Fourier2Args);
extern "C" __global__ void fourier2_pack_48x32(const float2*, uint32_t*, uint32_t*, int);

// ---- plumbing ----
static int failures = 0;
#define CHECK(call)                                                                                                      \
  do {                                                                                                                   \
    cudaError_t e_ = (call);                                                                                             \
    if (e_ != cudaSuccess) {                                                                                             \
      emit("{\"error\":\"%s\",\"at\":\"%s:%d\",\"call\":\"%s\"}", cudaGetErrorString(e_), __FILE__, __LINE__, #call);    \
      exit(2);                                                                                                           \
    }                                                                                                                    \
  } while (0)
std::string part_name;
void emit(const char* format, ...) {
  char text[4000];
  va_list list;
  va_start(list, format);
  vsnprintf(text, sizeof text, format, list);
  va_end(list);
  std::string line = std::string("{\"part\":\"") + part_name + "\"," + (text + 1);
  printf("%s\n", line.c_str());
  fflush(stdout);
  if (const char* out = getenv("OUT")) {
    if (FILE* f = fopen((std::string(out) + "/results.jsonl").c_str(), "a")) { fprintf(f, "%s\n", line.c_str()); fclose(f); }
  }
}
static size_t allocated = 0;
template <class T> struct Gpu {
  T* p = nullptr;
  size_t n;
  explicit Gpu(size_t n_) : n(n_) { CHECK(cudaMalloc(&p, n * sizeof(T))); allocated += n * sizeof(T); poison(); }
  Gpu(const std::vector<T>& v) : Gpu(v.size()) { CHECK(cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice)); }
  ~Gpu() { cudaFree(p); allocated -= n * sizeof(T); }
  void poison() { CHECK(cudaMemset(p, 0xff, n * sizeof(T))); }  // NaNs
  std::vector<T> get() const { std::vector<T> v(n); CHECK(cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost)); return v; }
};
template <class F> double median_us(int repeats, F&& launch) {
  for (int i = 0; i < 5; i++) launch();
  CHECK(cudaDeviceSynchronize());
  cudaEvent_t a, b;
  CHECK(cudaEventCreate(&a));
  CHECK(cudaEventCreate(&b));
  std::vector<float> t(repeats);
  for (float& x : t) { CHECK(cudaEventRecord(a)); launch(); CHECK(cudaEventRecord(b)); CHECK(cudaEventSynchronize(b)); CHECK(cudaEventElapsedTime(&x, a, b)); }
  CHECK(cudaGetLastError());
  std::sort(t.begin(), t.end());
  return 1e3 * t[repeats / 2];
}
template <class A> void launch(void (*kernel)(A), int grid, int cluster, int threads, size_t smem, const A& args) {
  static std::set<const void*> prepared;
  if (!prepared.count((const void*)kernel)) {
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    if (cluster > 8) CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    prepared.insert((const void*)kernel);
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = smem;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
  config.attrs = &attribute;
  config.numAttrs = cluster > 1 ? 1 : 0;
  CHECK(cudaLaunchKernelEx(&config, kernel, args));
}
static void verdict(const char* what, bool ok, const char* detail) {
  if (!ok) failures++;
  emit("{\"check\":\"%s\",\"ok\":%s,%s}", what, ok ? "true" : "false", detail);
}
template <class... T> std::string text(const char* f, T... t) { char b[1000]; snprintf(b, sizeof b, f, t...); return b; }
template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) { return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * sizeof(T)); }

// ---- the convolutional solves ----
template <class S> struct Conv {
  static constexpr int C = S::C, H = S::H, W = S::W;
  static constexpr size_t LEN = (size_t)C * H * W;
  using Kernel = void (*)(const ConvArgs);
  Kernel outer, inner, adjoint;
  const char* name;
  struct Weights {
    Gpu<float> w;
    Gpu<uint4> high, low;
    Weights(const std::vector<float>& host, bool transposed) : w(host), high(9 * C * C / 8), low(9 * C * C / 8) {
      int blocks = (9 * C * C / 8 + 255) / 256;
      auto pack = S::WG ? (C == 32 ? pack_wg_32 : pack_wg_48) : C == 32 ? pack_conv_32 : C == 48 ? pack_conv_48 : pack_conv_64;
      pack<<<blocks, 256>>>(w.p, high.p, low.p, transposed);
      CHECK(cudaGetLastError());
    }
  };
  ConvArgs args(const Weights& w, const float* y, float* z, float* extra, Report* reports, float tolerance, int most, float start = 1.0f, const float* slope = nullptr, float shift = 1.2f) {
    return ConvArgs{w.high.p, w.low.p, y, slope, nullptr, z, extra, reports, shift, start, tolerance, most, nullptr};
  }
  void go(Kernel k, int n, const ConvArgs& a) { launch<const ConvArgs>(k, n * S::CL, S::CL, S::THREADS, S::SMEM, a); }

  void resources(Kernel k, const char* which) {
    cudaFuncAttributes f;
    CHECK(cudaFuncGetAttributes(&f, (const void*)k));
    CHECK(cudaFuncSetAttribute((const void*)k, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SMEM));
    int clusters = -1, blocks = -1;
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void*)k, S::THREADS, S::SMEM));
    if (S::CL > 1) {
      if (S::CL > 8) CHECK(cudaFuncSetAttribute((const void*)k, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
      cudaLaunchConfig_t config = {};
      config.gridDim = dim3(S::CL);
      config.blockDim = dim3(S::THREADS);
      config.dynamicSmemBytes = S::SMEM;
      cudaLaunchAttribute attribute;
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = S::CL;
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
      config.attrs = &attribute;
      config.numAttrs = 1;
      CHECK(cudaOccupancyMaxActiveClusters(&clusters, (const void*)k, &config));
    }
    emit("{\"resources\":\"%s\",\"registers\":%d,\"local_bytes\":%zu,\"smem\":%d,\"threads\":%d,\"blocks_per_sm\":%d,\"active_clusters\":%d}", which, f.numRegs, f.localSizeBytes, S::SMEM, S::THREADS, blocks, clusters);
  }

  void correctness() {
    int n = C == 64 ? 2 : 4;
    std::vector<float> w = random_weights(C, 1.0, 11), y = random_injection(n * LEN, 12), v = random_normal(n * LEN, 1e-5, 13);
    Weights forward(w, false), backward(w, true);
    Gpu<float> gy(y), gv(v), z(n * LEN), slopes(n * LEN), q(n * LEN), g(n * LEN);
    Gpu<Report> reports(n);
    for (int inner_ = 0; inner_ < 2; inner_++) {
      z.poison(); slopes.poison();
      go(inner_ ? inner : outer, n, args(forward, gy.p, z.p, slopes.p, reports.p, 1e-6f, 200));
      CHECK(cudaDeviceSynchronize());
      std::vector<float> hz = z.get(), hs = slopes.get();
      std::vector<Report> r = reports.get();
      std::vector<double> error(n), slope_error(n);
      std::vector<std::thread> team;
      for (int s = 0; s < n; s++) team.emplace_back([&, s] {
        std::vector<double> ref = solve_reference(C, H, W, w, &y[s * LEN], 1.2f, inner_), u = conv_reference(C, H, W, w, ref, false);
        error[s] = relative_error(&hz[s * LEN], ref);
        for (size_t i = 0; i < LEN; i++) { double t = std::tanh(u[i] + (inner_ ? y[s * LEN + i] : 0.0f)); u[i] = 1 - t * t; }
        slope_error[s] = relative_error(&hs[s * LEN], u);
      });
      for (auto& t : team) t.join();
      for (int s = 0; s < n; s++)
        verdict(inner_ ? "inner" : "outer", error[s] < 1e-5 && slope_error[s] < 1e-4 && r[s].outcome == 0 && r[s].residual <= 1e-6f,
                text("\"sample\":%d,\"error\":%.3e,\"slope_error\":%.3e,\"iterations\":%d,\"refreshes\":%d,\"residual\":%.3e,\"outcome\":%d", s, error[s], slope_error[s], r[s].iterations, r[s].refreshes, r[s].residual, r[s].outcome).c_str());
      if (inner_) continue;
      go(adjoint, n, args(backward, gv.p, q.p, g.p, reports.p, 1e-6f, 200, 0.0f, slopes.p));
      CHECK(cudaDeviceSynchronize());
      std::vector<float> hq = q.get(), hg = g.get();
      r = reports.get();
      team.clear();
      for (int s = 0; s < n; s++) team.emplace_back([&, s] {
        std::vector<double> ref = adjoint_reference(C, H, W, w, &hs[s * LEN], &v[s * LEN]), p = conv_reference(C, H, W, w, ref, true);
        for (size_t i = 0; i < LEN; i++) p[i] += v[s * LEN + i];
        error[s] = relative_error(&hq[s * LEN], ref);
        slope_error[s] = relative_error(&hg[s * LEN], p);
      });
      for (auto& t : team) t.join();
      for (int s = 0; s < n; s++)
        verdict("adjoint", error[s] < 1e-5 && slope_error[s] < 1e-5 && r[s].outcome == 0,
                text("\"sample\":%d,\"error_q\":%.3e,\"error_g\":%.3e,\"iterations\":%d,\"refreshes\":%d,\"residual\":%.3e,\"outcome\":%d", s, error[s], slope_error[s], r[s].iterations, r[s].refreshes, r[s].residual, r[s].outcome).c_str());
    }
  }

  void determinism(int n) {
    std::vector<float> w = random_weights(C, 1.0, 21), y = random_injection(n * LEN, 22);
    // Samples that need different numbers of iterations.
    for (int s = 0; s < n; s++) for (size_t i = 0; i < LEN; i++) y[s * LEN + i] *= 0.1f + 0.03f * (s % 40);
    Weights forward(w, false);
    Gpu<float> gy(y), z(n * LEN);
    Gpu<Report> reports(n);
    auto solve = [&](const Gpu<float>& in, int count) { z.poison(); go(outer, count, args(forward, in.p, z.p, nullptr, reports.p, 1e-5f, 200)); CHECK(cudaDeviceSynchronize()); return z.get(); };
    std::vector<float> one = solve(gy, n), two = solve(gy, n);
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    Rng r(5);
    for (int i = n - 1; i > 0; i--) std::swap(order[i], order[r.next() % (i + 1)]);
    std::vector<float> mixed(n * LEN);
    for (int s = 0; s < n; s++) std::copy_n(&y[order[s] * LEN], LEN, &mixed[s * LEN]);
    Gpu<float> gmixed(mixed);
    std::vector<float> three = solve(gmixed, n);
    bool permuted = true;
    for (int s = 0; s < n; s++) permuted &= !memcmp(&three[s * LEN], &one[order[s] * LEN], LEN * 4);
    std::vector<float> few = solve(gmixed, 3);
    for (int s = 0; s < 3; s++) permuted &= !memcmp(&few[s * LEN], &one[order[s] * LEN], LEN * 4);
    bool finite = std::all_of(one.begin(), one.end(), [](float x) { return std::isfinite(x); });
    verdict("determinism", same(one, two) && permuted && finite, text("\"same_run\":%s,\"permuted\":%s,\"finite\":%s", same(one, two) ? "true" : "false", permuted ? "true" : "false", finite ? "true" : "false").c_str());
  }

  void time(int n) {
    std::vector<float> slow = random_weights(C, 1.8, 31), fast = random_weights(C, 1.0, 32), y = random_injection(n * LEN, 33), v = random_normal(n * LEN, 1e-5, 34);
    Weights ws(slow, false), wf(fast, false), wsb(slow, true), wfb(fast, true);
    Gpu<float> gy(y), gv(v), z(n * LEN), slopes(n * LEN), q(n * LEN), g(n * LEN);
    Gpu<Report> reports(n);
    double flop = 2.0 * 9 * C * C * H * W * n;
    auto means = [&](double& iterations, double& refreshes, int& most) {
      iterations = refreshes = 0; most = 0;
      for (const Report& r : reports.get()) { iterations += r.iterations; refreshes += r.refreshes; most = std::max(most, r.iterations); }
      iterations /= n; refreshes /= n;
    };
    double iterations, refreshes;
    int most;
    // Per iteration: the same slow problem cut after 6 and after 18 iterations; no refresh falls between (reported).
    for (int which = 0; which < 3; which++) {
      const char* what = which == 0 ? "outer" : which == 1 ? "inner" : "adjoint";
      if (which == 1 && S::WG) continue;
      if (which == 2) { go(outer, n, args(ws, gy.p, z.p, slopes.p, reports.p, 1e-4f, 100)); CHECK(cudaDeviceSynchronize()); }
      const int cuts[4] = {1, 3, 6, 18};
      double us[4], ref[4];
      for (int i = 0; i < 4; i++) {
        ConvArgs a = which == 2 ? args(wsb, gv.p, q.p, g.p, reports.p, 1e-30f, cuts[i], 0.0f, slopes.p) : args(ws, gy.p, z.p, slopes.p, reports.p, 1e-30f, cuts[i]);
        us[i] = median_us(50, [&] { go(which == 0 ? outer : which == 1 ? inner : adjoint, n, a); });
        means(iterations, refreshes, most);
        ref[i] = refreshes;
      }
      // Plain iterations alone (3 to 6, if no refresh fell there), and what a refresh costs more than one of them.
      double plain = (us[2] - us[1]) / 3, mean = (us[3] - us[2]) / 12, tf = flop / plain * 1e-6;
      emit("{\"time\":\"%s iteration\",\"shape\":\"%dx%dx%d\",\"batch\":%d,\"us\":%.2f,\"tflops\":%.1f,\"of_990\":%.3f,\"refreshes_3_to_6\":%.2f,\"us_mean_6_to_18\":%.2f,\"refreshes_6_to_18\":%.2f,\"us_refresh\":%.1f,\"us_1\":%.1f,\"us_6\":%.1f,\"us_18\":%.1f}", what, C, H, W, n, plain, tf, tf / 990, ref[2] - ref[1], mean, ref[3] - ref[2], ref[3] > ref[2] ? plain + (mean - plain) * 12 / (ref[3] - ref[2]) : 0.0, us[0], us[2], us[3]);
    }
    for (int adjoint_ = 0; adjoint_ < 2; adjoint_++) for (float tolerance : {1e-3f, 1e-6f}) {
      ConvArgs a = adjoint_ ? args(wfb, gv.p, q.p, g.p, reports.p, tolerance, 100, 0.0f, slopes.p) : args(wf, gy.p, z.p, slopes.p, reports.p, tolerance, 100);
      double us = median_us(50, [&] { go(adjoint_ ? adjoint : outer, n, a); });
      means(iterations, refreshes, most);
      emit("{\"time\":\"%s solve\",\"shape\":\"%dx%dx%d\",\"batch\":%d,\"tolerance\":%g,\"us\":%.1f,\"iterations\":%.2f,\"most\":%d,\"refreshes\":%.2f,\"us_per_iteration\":%.2f,\"peak_mib\":%.1f}", adjoint_ ? "adjoint" : "outer", C, H, W, n, tolerance, us, iterations, most, refreshes, us / iterations, allocated / 1048576.0);
    }
  }
  void all() {
    resources(outer, "outer");
    resources(inner, "inner");
    resources(adjoint, "adjoint");
    correctness();
    determinism(C == 64 ? 24 : 64);
    time(C == 64 ? 64 : 128);
  }
};

/// What the parts of an iteration cost: differences to the whole one.
void ablate() {
  using S = ConvShape<48, 32, 32, 4, 4, 4>;
  Conv<S> conv{conv_solve_outer_c48x4, nullptr, nullptr, "c48x4"};
  int n = 128;
  std::vector<float> w = random_weights(48, 1.8, 31), y = random_injection(n * conv.LEN, 33);
  Conv<S>::Weights ws(w, false);
  Gpu<float> gy(y), z(n * conv.LEN);
  Gpu<Report> reports(n);
  Conv<S>::Kernel kernels[] = {conv_solve_outer_c48x4, conv_ablate1_c48x4, conv_ablate2_c48x4, conv_ablate4_c48x4};
  const char* names[] = {"whole", "without products", "without tanh", "without cluster barrier"};
  for (int k = 0; k < 4; k++) {
    double t[2];
    for (int i = 0; i < 2; i++) t[i] = median_us(50, [&] { conv.go(kernels[k], n, conv.args(ws, gy.p, z.p, nullptr, reports.p, -1.0f, i ? 18 : 6)); });
    emit("{\"time\":\"ablation c48x4: %s\",\"us\":%.2f,\"us_6\":%.1f,\"us_18\":%.1f}", names[k], (t[1] - t[0]) / 12, t[0], t[1]);
  }
}

// ---- the weight gradient ----
template <int C, int H, int W, int ROWS, int SPLITS, int SMEM> void wgrad(void (*part)(const float*, const float*, float*), void (*sum)(const float*, int, float*)) {
  constexpr size_t LEN = (size_t)C * H * W;
  CHECK(cudaFuncSetAttribute((const void*)part, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
  cudaFuncAttributes f;
  CHECK(cudaFuncGetAttributes(&f, (const void*)part));
  emit("{\"resources\":\"wgrad c%d\",\"registers\":%d,\"local_bytes\":%zu,\"smem\":%d}", C, f.numRegs, f.localSizeBytes, SMEM);
  int n = C == 64 ? 64 : 128;
  std::vector<float> q = random_normal(n * LEN, 1e-5, 41), z = random_injection(n * LEN, 42);
  for (float& x : z) x += 1.2f;
  Gpu<float> gq(q), gz(z), parts((size_t)n * SPLITS * 9 * C * C), dw(9 * C * C);
  auto go = [&](int count) {
    part<<<count * SPLITS, 256, SMEM>>>(gq.p, gz.p, parts.p);
    sum<<<9 * C * C / 32, 128, 512>>>(parts.p, count * SPLITS, dw.p);
  };
  go(4);
  CHECK(cudaDeviceSynchronize());
  std::vector<float> got = dw.get();
  std::vector<std::vector<double>> refs(4, std::vector<double>(9 * C * C, 0.0));
  std::vector<std::thread> team;
  for (int s = 0; s < 4; s++) team.emplace_back([&, s] {
    std::vector<double>& ref = refs[s];  // [tap][o][i]
    for (int y = 0; y < H; y++) for (int x = 0; x < W; x++) for (int t = 0; t < 9; t++) {
      int r = y + t / 3 - 1, c = x + t % 3 - 1;
      if (r < 0 || r >= H || c < 0 || c >= W) continue;
      const float *a = &q[s * LEN + ((size_t)y * W + x) * C], *b = &z[s * LEN + ((size_t)r * W + c) * C];
      for (int o = 0; o < C; o++) for (int i = 0; i < C; i++) ref[((size_t)t * C + o) * C + i] += (double)a[o] * b[i];
    }
  });
  for (auto& t : team) t.join();
  std::vector<double> ref(9 * C * C, 0.0);
  for (int t = 0; t < 9; t++) for (int o = 0; o < C; o++) for (int i = 0; i < C; i++) for (int s = 0; s < 4; s++) ref[((size_t)o * C + i) * 9 + t] += refs[s][((size_t)t * C + o) * C + i];
  double error = relative_error(got.data(), ref);
  verdict("wgrad", error < 1e-4, text("\"error\":%.3e", error).c_str());
  parts.poison(); dw.poison(); go(n); CHECK(cudaDeviceSynchronize());
  std::vector<float> one = dw.get();
  parts.poison(); dw.poison(); go(n); CHECK(cudaDeviceSynchronize());
  verdict("wgrad determinism", same(one, dw.get()) && std::isfinite(one[0]), "\"runs\":2");
  double us = median_us(50, [&] { go(n); }), us1 = median_us(50, [&] { part<<<n * SPLITS, 256, SMEM>>>(gq.p, gz.p, parts.p); });
  double tf = 2.0 * 9 * C * C * H * W * n / us * 1e-6, floor_us = std::max(3 * 2.0 * 9 * C * C * H * W * n / 990e6, 8.0 * n * LEN / 4.3e6);
  emit("{\"time\":\"wgrad\",\"shape\":\"%dx%dx%d\",\"batch\":%d,\"us\":%.2f,\"us_parts\":%.2f,\"tflops\":%.1f,\"tflops_issued\":%.1f,\"of_roofline\":%.3f,\"peak_mib\":%.1f}", C, H, W, n, us, us1, tf, 3 * tf, floor_us / us, allocated / 1048576.0);
}

// ---- dense ----
void dense(bool four) {
  constexpr int N = 87;
  for (int n : {128, 256}) {
    Rng r(51);
    std::vector<float> w(N * N), y(n * N), v(n * N);
    for (float& x : w) x = (float)((2 * r.uniform() - 1) / std::sqrt(87.0));
    for (float& x : y) x = (float)std::max(0.0, 0.5 * r.normal());
    for (float& x : v) x = (float)(1e-5 * r.normal());
    Gpu<float> gw(w), gy(y), gv(v), z(n * N), slopes(n * N), q(n * N), g(n * N);
    Gpu<DenseReport> reports(n);
    size_t smem = 2 * 96 * 4 + 192;
    auto outer = four ? dense4_solve_outer_87 : dense_solve_outer_87, inner = four ? dense4_solve_inner_87 : dense_solve_inner_87, adjoint = four ? dense4_adjoint_87 : dense_adjoint_87;
    auto go = [&](void (*k)(const DenseArgs), const DenseArgs& a) { launch<const DenseArgs>(k, n, 1, four ? 384 : 96, smem, a); };
    auto reference = [&](int kind, const float* slope, const float* in, int s) {
      std::vector<double> x(N, kind == 2 ? 0.0 : 1.0), u(N);
      for (int k = 0; k < 300; k++) {
        for (int i = 0; i < N; i++) { double t = 0; for (int j = 0; j < N; j++) t += (double)(kind == 2 ? w[j * N + i] : w[i * N + j]) * x[j]; u[i] = t; }
        for (int i = 0; i < N; i++) x[i] = kind == 2 ? slope[i] * (u[i] + in[s * N + i]) : kind == 1 ? std::tanh(u[i] + in[s * N + i]) + 1.2f : std::tanh(u[i]) + in[s * N + i] + 1.2f;
      }
      return x;
    };
    for (int kind = 0; kind < 3; kind++) {
      if (kind == 2) { go(outer, DenseArgs{gw.p, gy.p, nullptr, z.p, slopes.p, reports.p, 1.2f, 1.0f, 1e-6f, 100}); CHECK(cudaDeviceSynchronize()); }
      auto kernel = kind == 0 ? outer : kind == 1 ? inner : adjoint;
      Gpu<float>& out = kind == 2 ? q : z;
      DenseArgs a = kind == 2 ? DenseArgs{gw.p, gv.p, slopes.p, q.p, g.p, reports.p, 0.0f, 0.0f, 1e-6f, 100} : DenseArgs{gw.p, gy.p, nullptr, z.p, slopes.p, reports.p, 1.2f, 1.0f, 1e-6f, 100};
      out.poison(); go(kernel, a); CHECK(cudaDeviceSynchronize());
      std::vector<float> one = out.get(), hs = slopes.get();
      double worst = 0;
      for (int s = 0; s < n; s += n / 4) worst = std::max(worst, relative_error(&one[s * N], reference(kind, &hs[s * N], kind == 2 ? v.data() : y.data(), s)));
      std::vector<DenseReport> rep = reports.get();
      out.poison(); go(kernel, a); CHECK(cudaDeviceSynchronize());
      verdict("dense", worst < 1e-5 && same(one, out.get()) && rep[0].outcome == 0, text("\"kind\":%d,\"batch\":%d,\"error\":%.3e,\"iterations\":%d,\"residual\":%.3e,\"same_run\":%s", kind, n, worst, rep[0].iterations, rep[0].residual, same(one, out.get()) ? "true" : "false").c_str());
      if (kind == 1) continue;
      double t[2];
      a.tolerance = 0.0f;
      for (int i = 0; i < 2; i++) { a.max_iterations = i ? 30 : 10; t[i] = median_us(50, [&] { go(kernel, a); }); }
      a.tolerance = 1e-3f; a.max_iterations = 100;
      double us = median_us(50, [&] { go(kernel, a); });
      emit("{\"time\":\"dense %s\",\"batch\":%d,\"us_30_iterations\":%.2f,\"us_per_iteration\":%.3f,\"us_solve_1e-3\":%.2f,\"gflops\":%.0f,\"peak_mib\":%.2f}", kind == 2 ? "adjoint" : "outer", n, t[1], (t[1] - t[0]) / 20, us, 2.0 * N * N * n * 20 / (t[1] - t[0]) * 1e-3, allocated / 1048576.0);
    }
  }
}

// ---- Peaceman-Rachford in the frequency domain ----
void fourier() {
  constexpr int C = 48, S = 32, F = 17 * 32, PLANE = 32 * 264 * 8 + 64, PRODUCT = 48 * 52 * 8, N = 128;
  constexpr size_t LEN = (size_t)C * S * S;
  std::vector<float> w = random_weights(C, 0.6, 61), k = random_normal(N * LEN, 1.0, 62), g0 = random_normal(N * LEN, 1.0, 63), symbols = symbols_reference(C, S, w);
  Gpu<float> gs(symbols), gk(k), start(g0), g(N * LEN);
  Gpu<uint2> matrices((size_t)F * C * C);
  Gpu<float2> spectrum((size_t)F * N * C), partial(2 * N * 3);
  Gpu<int> iterations(N);
  fourier_pack_48x32<<<F * C * C / 256, 256>>>((const float2*)gs.p, matrices.p, F * C * C);
  CHECK(cudaGetLastError());
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  for (auto kernel : {fourier_plane_relu_48x32, fourier_plane_tanh_48x32}) {
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, PLANE));
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
  }
  // Runs samples [first, first + n) for `count` iterations. Parts of the batch share the memory of the spectra.
  auto iterate = [&](bool relu, int first, int n, int count, float tolerance) {
    FourierArgs a{g.p + first * LEN, gk.p + first * LEN, spectrum.p, matrices.p, partial.p + 2 * 3 * first, iterations.p + first, n, 0, tolerance};
    for (a.iteration = 0; a.iteration <= count; a.iteration++) {
      (relu ? fourier_plane_relu_48x32 : fourier_plane_tanh_48x32)<<<n * 3, 256, PLANE, stream>>>(a);
      if (a.iteration < count) fourier_product_48x32<<<F, 256, PRODUCT, stream>>>(a);
    }
    CHECK(cudaGetLastError());
  };
  auto reset = [&] { CHECK(cudaMemcpy(g.p, start.p, N * LEN * 4, cudaMemcpyDeviceToDevice)); spectrum.poison(); partial.poison(); };
  std::vector<float> whole;
  for (int relu = 0; relu < 2; relu++) {
    reset();
    iterate(relu, 0, N, 60, 1e-6f);
    CHECK(cudaStreamSynchronize(stream));
    std::vector<float> one = g.get();
    std::vector<int> its = iterations.get();
    std::vector<double> error(4), residual(4);
    std::vector<std::thread> team;
    for (int j = 0; j < 4; j++) team.emplace_back([&, j] { int s = j * 37; std::vector<double> ref(g0.begin() + s * LEN, g0.begin() + (s + 1) * LEN); residual[j] = splitting_reference(C, S, w, relu, &k[s * LEN], ref, its[s]); error[j] = relative_error(&one[s * LEN], ref); });
    for (auto& t : team) t.join();
    reset();
    iterate(relu, 0, N, 60, 1e-6f);
    CHECK(cudaStreamSynchronize(stream));
    bool again = same(one, g.get());
    reset();  // in parts of another size: same bits for every sample
    for (int first = 0; first < N; first += 40) iterate(relu, first, std::min(40, N - first), 60, 1e-6f);
    CHECK(cudaStreamSynchronize(stream));
    bool parts = same(one, g.get());
    double worst = *std::max_element(error.begin(), error.end());
    verdict("fourier", worst < 1e-5 && residual[0] < 3e-6 && again && parts, text("\"relu\":%d,\"error\":%.3e,\"iterations\":%d,\"residual_f64\":%.3e,\"same_run\":%s,\"any_batch\":%s", relu, worst, its[0], residual[0], again ? "true" : "false", parts ? "true" : "false").c_str());
  }
  for (int chunk : {128, 64, 43, 32}) {
    double t[2];
    for (int i = 0; i < 2; i++) {
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      reset();
      CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      for (int first = 0; first < N; first += chunk) iterate(true, first, std::min(chunk, N - first), i ? 12 : 2, 0.0f);
      CHECK(cudaStreamEndCapture(stream, &graph));
      CHECK(cudaGraphInstantiate(&exec, graph, 0));
      // Never from converged states: the numbers would be the same, but let them be alive.
      t[i] = median_us(50, [&] { CHECK(cudaGraphLaunch(exec, 0)); });
      CHECK(cudaGraphExecDestroy(exec));
      CHECK(cudaGraphDestroy(graph));
    }
    double us = (t[1] - t[0]) / 10;
    emit("{\"time\":\"Peaceman-Rachford iteration\",\"shape\":\"48x32x32\",\"batch\":128,\"chunk\":%d,\"us\":%.2f,\"tb_per_s\":%.2f,\"of_4.3TBs_floor\":%.3f,\"peak_mib\":%.1f}", chunk, us, 192.0 / us, 192.0 / 4.3 / us, allocated / 1048576.0);
  }
  FourierArgs a{g.p, gk.p, spectrum.p, matrices.p, partial.p, iterations.p, N, 1, 0.0f};
  double plane = median_us(50, [&] { fourier_plane_relu_48x32<<<N * 3, 256, PLANE>>>(a); }), product = median_us(50, [&] { fourier_product_48x32<<<F, 256, PRODUCT>>>(a); });
  emit("{\"time\":\"Peaceman-Rachford kernels\",\"batch\":128,\"us_plane\":%.2f,\"us_product\":%.2f}", plane, product);
}

/// The second version's variants: f32 (as the first, one wave), delta with three and with two plane blocks per SM; whole batch or two halves on two streams.
void fourier2() {
  constexpr int C = 48, S = 32, F = 17 * 32, PLANE = 32 * 264 * 8 + 64, PRODUCT = 39936, N = 128;
  constexpr size_t LEN = (size_t)C * S * S;
  using Kernel = void (*)(const Fourier2Args);
  struct Variant { const char* name; Kernel relu, tanh, product; bool delta; } variants[] = {
    {"f32", fourier2_plane_relu_f32_48x32, fourier2_plane_tanh_f32_48x32, fourier2_product_f32_48x32, false},
    {"delta3", fourier2_plane_relu_48x32, fourier2_plane_tanh_48x32, fourier2_product_48x32, true},
    {"delta2", fourier2_plane_relu_two_48x32, fourier2_plane_tanh_two_48x32, fourier2_product_48x32, true}};
  std::vector<float> w = random_weights(C, 0.6, 61), k = random_normal(N * LEN, 1.0, 62), g0 = random_normal(N * LEN, 1.0, 63), symbols = symbols_reference(C, S, w);
  for (int s = 0; s < N; s++) for (size_t i = 0; i < LEN; i++) k[s * LEN + i] *= 0.02f + 0.01f * (s % 100);  // different samples, different numbers of iterations
  Gpu<float> gs(symbols), gk(k), start(g0), g(N * LEN);
  Gpu<uint32_t> high((size_t)F * C * C), low((size_t)F * C * C), half((size_t)F * N * C);
  Gpu<float2> spectrum((size_t)F * N * C), partial(2 * N * 3);
  Gpu<FourierRecord> records(2 * N);
  Gpu<int> iterations(N);
  fourier2_pack_48x32<<<F * C * C / 256, 256>>>((const float2*)gs.p, high.p, low.p, F * C * C);
  CHECK(cudaGetLastError());
  cudaStream_t streams[2];
  for (auto& s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  cudaEvent_t fork, join;
  CHECK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
  CHECK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
  auto reset = [&] { CHECK(cudaMemcpy(g.p, start.p, N * LEN * 4, cudaMemcpyDeviceToDevice)); spectrum.poison(); half.poison(); partial.poison(); records.poison(); CHECK(cudaDeviceSynchronize()); };
  for (auto& v : variants) {
    for (Kernel kernel : {v.relu, v.tanh, v.product}) {
      int smem = kernel == v.product ? PRODUCT : PLANE, threads = kernel == v.product ? 128 : 256, blocks;
      CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
      CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
      CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void*)kernel, threads, smem));
      emit("{\"resources\":\"%s %s\",\"blocks_per_sm\":%d}", v.name, kernel == v.product ? "product" : "plane", blocks);
    }
    auto args = [&](int first, int n, float tolerance) { return Fourier2Args{g.p + first * LEN, gk.p + first * LEN, spectrum.p + (size_t)F * C * first, half.p + (size_t)F * C * first, high.p, low.p, partial.p + 6 * first, records.p + 2 * first, iterations.p + first, n, 0, tolerance}; };
    auto iterate = [&](bool relu, int first, int n, int count, float tolerance, cudaStream_t stream) {
      Fourier2Args a = args(first, n, tolerance);
      for (a.iteration = 0; a.iteration <= count; a.iteration++) {
        (relu ? v.relu : v.tanh)<<<n * 3, 256, PLANE, stream>>>(a);
        if (a.iteration < count) v.product<<<F, 128, PRODUCT, stream>>>(a);
      }
      CHECK(cudaGetLastError());
    };
    for (int relu = 0; relu < 2; relu++) {
      reset();
      iterate(relu, 0, N, 60, 1e-6f, streams[0]);
      CHECK(cudaDeviceSynchronize());
      std::vector<float> one = g.get();
      std::vector<int> its = iterations.get();
      std::vector<double> error(4), residual(4);
      std::vector<std::thread> team;
      for (int j = 0; j < 4; j++) team.emplace_back([&, j] { int s = j * 37; std::vector<double> ref(g0.begin() + s * LEN, g0.begin() + (s + 1) * LEN); residual[j] = splitting_reference(C, S, w, relu, &k[s * LEN], ref, its[s]); error[j] = relative_error(&one[s * LEN], ref); });
      for (auto& t : team) t.join();
      reset();
      iterate(relu, 0, N, 60, 1e-6f, streams[0]);
      CHECK(cudaDeviceSynchronize());
      bool again = same(one, g.get());
      reset();
      for (int first = 0; first < N; first += 40) iterate(relu, first, std::min(40, N - first), 60, 1e-6f, streams[0]);
      CHECK(cudaDeviceSynchronize());
      bool parts = same(one, g.get());
      double worst = *std::max_element(error.begin(), error.end());
      verdict("fourier2", worst < 1e-5 && residual[0] < 3e-6 && again && parts, text("\"variant\":\"%s\",\"relu\":%d,\"error\":%.3e,\"iterations\":[%d,%d],\"residual_f64\":%.3e,\"same_run\":%s,\"any_batch\":%s", v.name, relu, worst, its[0], its[37], residual[0], again ? "true" : "false", parts ? "true" : "false").c_str());
    }
    for (int split = 0; split < 3; split++) {  // whole; two halves one after the other; two halves on two streams
      double t[2];
      for (int i = 0; i < 2; i++) {
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        reset();
        CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
        CHECK(cudaMemcpyAsync(g.p, start.p, N * LEN * 4, cudaMemcpyDeviceToDevice, streams[0]));
        int count = i ? 12 : 2;
        if (split == 0) iterate(true, 0, N, count, 0.0f, streams[0]);
        else {
          if (split == 2) { CHECK(cudaEventRecord(fork, streams[0])); CHECK(cudaStreamWaitEvent(streams[1], fork, 0)); }
          iterate(true, 0, N / 2, count, 0.0f, streams[0]);
          iterate(true, N / 2, N / 2, count, 0.0f, streams[split - 1]);
          if (split == 2) { CHECK(cudaEventRecord(join, streams[1])); CHECK(cudaStreamWaitEvent(streams[0], join, 0)); }
        }
        CHECK(cudaStreamEndCapture(streams[0], &graph));
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        t[i] = median_us(30, [&] { CHECK(cudaGraphLaunch(exec, 0)); });
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
      }
      double us = (t[1] - t[0]) / 10, mb = v.delta ? 108.0 : 192.0;
      emit("{\"time\":\"Peaceman-Rachford iteration\",\"variant\":\"%s\",\"how\":\"%s\",\"shape\":\"48x32x32\",\"batch\":128,\"us\":%.2f,\"tb_per_s\":%.2f,\"peak_mib\":%.1f}", v.name, split == 0 ? "whole" : split == 1 ? "halves" : "two streams", us, mb / us, allocated / 1048576.0);
    }
    reset();
    iterate(true, 0, N, 4, 0.0f, streams[0]);  // into the middle, where changes are under way
    Fourier2Args a = args(0, N, 0.0f);
    a.iteration = 5;
    CHECK(cudaDeviceSynchronize());
    double plane = median_us(50, [&] { v.relu<<<N * 3, 256, PLANE>>>(a); }), product = median_us(50, [&] { v.product<<<F, 128, PRODUCT>>>(a); });
    int full = 0;
    for (auto& r : records.get()) full += r.mode == 0;
    emit("{\"time\":\"Peaceman-Rachford kernels\",\"variant\":\"%s\",\"batch\":128,\"us_plane\":%.2f,\"us_product\":%.2f,\"full_records\":%d}", v.name, plane, product, full);
  }
}

__global__ void spin_copy(const float4* a, float4* b, size_t n) { for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) b[i] = a[i]; }
/// mma.sync from registers alone: 24 independent sums per warp, 8 warps per SM.
__global__ void __launch_bounds__(256, 1) mma_ceiling(float* out, int rounds) {
  float acc[24][4];
  uint32_t a[4] = {0x3a003a00u + threadIdx.x * 0x00010001u, 0x3c003c00u, 0x38003800u, 0x34003400u};
  for (int i = 0; i < 24; i++) for (int k = 0; k < 4; k++) acc[i][k] = 0.0f;
#pragma unroll 1
  for (int r = 0; r < rounds; r++)
#pragma unroll
    for (int i = 0; i < 24; i++) mma_f16(acc[i], a, 0x20002000u + i, 0x24002400u + r);
  float s = 0.0f;
  for (int i = 0; i < 24; i++) for (int k = 0; k < 4; k++) s += acc[i][k];
  out[blockIdx.x * 256 + threadIdx.x] = s;
}
void ceilings() {
  cudaDeviceProp p;
  CHECK(cudaGetDeviceProperties(&p, 0));
  emit("{\"device\":\"%s\",\"sms\":%d,\"l2_mib\":%d,\"smem_block\":%zu,\"smem_sm\":%zu}", p.name, p.multiProcessorCount, p.l2CacheSize >> 20, p.sharedMemPerBlockOptin, p.sharedMemPerMultiprocessor);
  {
    Gpu<float> out(132 * 256);
    double us = median_us(50, [&] { mma_ceiling<<<132, 256>>>(out.p, 2000); });
    emit("{\"ceiling\":\"mma.sync m16n8k16 f16\",\"tflops\":%.1f}", 132.0 * 8 * 2000 * 24 * 4096 / us * 1e-6);
  }
  for (size_t mib : {8, 24, 2048}) {
    size_t n = (mib << 20) / 16;
    Gpu<float4> a(n), b(n);
    double us = median_us(50, [&] { spin_copy<<<132 * 4, 512>>>(a.p, b.p, n); });
    emit("{\"ceiling\":\"copy\",\"mib\":%zu,\"tb_per_s\":%.2f}", mib, 32.0 * n / us * 1e-6);
  }
}

int main(int argc, char** argv) {
  part_name = argc > 1 ? argv[1] : "ceilings";
  if (part_name == "ceilings") ceilings();
#define X(name, c, h, w, cl, warps, mt, per_sm)                                                                                      \
  if (part_name == #name) Conv<ConvShape<c, h, w, cl, warps, mt>>{conv_solve_outer_##name, conv_solve_inner_##name, conv_adjoint_##name, #name}.all();
  CONV_SHAPES(X)
#undef X
#define X(c, h, w, rows, splits, smem) if (part_name == "wgrad" #c) wgrad<c, h, w, rows, splits, smem>(conv_wgrad_c##c, conv_wgrad_sum_c##c);
  GRADS(X)
#undef X
#define X(name, c, h, w, cl, groups, mt, wide, flow, fast)                                                                                      \
  if (part_name == #name) Conv<WgShape<c, h, w, cl, groups, mt, wide>>{conv_solve_outer_##name, conv_solve_inner_##name, conv_adjoint_##name, #name}.all();
  WG_SHAPES(X)
#undef X
  if (part_name == "dense") dense(false);
  if (part_name == "dense4") dense(true);
  if (part_name == "wgrad48b") wgrad<48, 32, 32, 4, 2, 2 * 74368>(conv_wgrad2_c48, conv_wgrad_sum_c48);
  if (part_name == "wgrad32b") wgrad<32, 28, 28, 4, 1, 2 * 46720>(conv_wgrad2_c32, conv_wgrad_sum_c32);
  if (part_name == "fourier") fourier();
  if (part_name == "fourier2") fourier2();
  if (part_name == "ablate") ablate();
  cudaDeviceSynchronize();
  emit("{\"done\":true,\"failures\":%d}", failures);
  return failures ? 1 : 0;
}
