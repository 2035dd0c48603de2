// Measures the kernels of this folder: correctness against f64 on the host, determinism, then time. One part per process
// (./harness PART), so that a failure stays where it is; one JSON object per line on stdout and in $OUT/results.jsonl.
#include <numeric>
#include <thread>
#include "plumbing.h"
#include "reference.h"

// ---- kernels of the other files ----
#define GRADS(X) X(32, 28, 28, 4, 1, 46720) X(48, 32, 32, 4, 2, 74368) X(64, 64, 64, 4, 4, 187776)
#define X(c, h, w, rows, splits, smem)                                              \
  extern "C" __global__ void conv_wgrad_c##c(const float*, const float*, float*);    \
  extern "C" __global__ void conv_wgrad_sum_c##c(const float*, int, float*);
GRADS(X)
#undef X
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
#define X(c, h, w, rows, splits, smem) if (part_name == "wgrad" #c) wgrad<c, h, w, rows, splits, smem>(conv_wgrad_c##c, conv_wgrad_sum_c##c);
  GRADS(X)
#undef X
  if (part_name == "wgrad48b") wgrad<48, 32, 32, 4, 2, 2 * 74368>(conv_wgrad2_c48, conv_wgrad_sum_c48);
  if (part_name == "wgrad32b") wgrad<32, 28, 28, 4, 1, 2 * 46720>(conv_wgrad2_c32, conv_wgrad_sum_c32);
  if (part_name == "fourier") fourier();
  if (part_name == "fourier2") fourier2();
  cudaDeviceSynchronize();
  emit("{\"done\":true,\"failures\":%d}", failures);
  return failures ? 1 : 0;
}
