// What every measuring program of this folder needs: results as JSON lines, memory on the GPU, times.
#pragma once
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>
#include "dev.cuh"

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
/// The cluster's size is the kernel's own; more than 8 blocks need leave.
template <class A> void launch(void (*kernel)(A), int grid, int cluster, int threads, size_t smem, const A& args) {
  static std::set<const void*> prepared;
  if (prepared.insert((const void*)kernel).second) {
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    if (cluster > 8) CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  }
  kernel<<<grid, threads, smem>>>(args);
  CHECK(cudaGetLastError());
}
static void verdict(const char* what, bool ok, const char* detail) {
  if (!ok) failures++;
  emit("{\"check\":\"%s\",\"ok\":%s,%s}", what, ok ? "true" : "false", detail);
}
template <class... T> std::string text(const char* f, T... t) { char b[1000]; snprintf(b, sizeof b, f, t...); return b; }
template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) { return a.size() == b.size() && !memcmp(a.data(), b.data(), a.size() * sizeof(T)); }
