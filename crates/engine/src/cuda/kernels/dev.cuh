// What a kernel needs from the machine, under one name on the GPU and in the host emulator (emu.h, -DEMU).
// Kernels use nothing but these functions, so every kernel of this folder also runs, thread by thread, on a CPU.
#pragma once
#include <cstdint>
#include <cfloat>
#include <cmath>

#ifdef EMU
#include "emu.h"
#else
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>

#define DEV __device__ __forceinline__

/// The block's dynamic shared memory. Kernels use no static shared memory at all.
DEV unsigned char* dyn_smem() {
  extern __shared__ __align__(1024) unsigned char raw[];
  return raw;
}
DEV uint32_t smem_addr(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// ---- clusters (Hopper); a kernel that needs them traps on older machines -------------------------------------------
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define HAS_CLUSTER 1
#else
#define HAS_CLUSTER 0
#endif
DEV uint32_t cluster_rank() {
#if HAS_CLUSTER
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
#else
  return 0;
#endif
}
/// Barrier of all threads of the cluster; orders shared-memory accesses, those to other blocks too.
DEV void cluster_barrier() {
#if HAS_CLUSTER
  // Not `.aligned`: some callers come out of a divergent branch.
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
#else
  __trap();
#endif
}
/// Stores into the shared memory of another block of the cluster, at the address that `addr` has in this block.
DEV void store_remote(uint32_t addr, uint32_t rank, uint32_t value) {
#if HAS_CLUSTER
  asm volatile("{\n\t.reg .b32 ra;\n\tmapa.shared::cluster.u32 ra, %0, %1;\n\tst.shared::cluster.u32 [ra], %2;\n\t}"
               ::"r"(addr), "r"(rank), "r"(value) : "memory");
#endif
}
DEV void store_remote(uint32_t addr, uint32_t rank, double value) {
#if HAS_CLUSTER
  asm volatile("{\n\t.reg .b32 ra;\n\tmapa.shared::cluster.u32 ra, %0, %1;\n\tst.shared::cluster.f64 [ra], %2;\n\t}"
               ::"r"(addr), "r"(rank), "d"(value) : "memory");
#endif
}
// ---- barriers in shared memory that count bytes: stores into another block that say when they have arrived, without a fence --------
DEV void flow_init(uint32_t bar) {
#if HAS_CLUSTER
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(bar) : "memory");
#endif
}
/// By one thread, once per phase: so many bytes will come.
DEV void flow_expect(uint32_t bar, uint32_t bytes) {
#if HAS_CLUSTER
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
#endif
}
DEV void flow_wait(uint32_t bar, uint32_t phase) {
#if HAS_CLUSTER
  asm volatile("{\n\t.reg .pred p;\n\tFLOW_WAIT_%=:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n\t@!p bra FLOW_WAIT_%=;\n\t}" ::"r"(bar), "r"(phase) : "memory");
#endif
}
DEV void flow_store(uint32_t addr, uint32_t bar, uint32_t rank, uint32_t value) {
#if HAS_CLUSTER
  asm volatile("{\n\t.reg .b32 ra, rb;\n\tmapa.shared::cluster.u32 ra, %0, %2;\n\tmapa.shared::cluster.u32 rb, %1, %2;\n\tst.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [ra], %3, [rb];\n\t}"
               ::"r"(addr), "r"(bar), "r"(rank), "r"(value) : "memory");
#endif
}
// ---- copies from device memory into shared memory that pass no register: 16 bytes each -----------------------------------------------
DEV void copy_async(uint32_t to, const void* from) { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory"); }
/// Those of this thread have arrived.
DEV void copies_arrived() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Volatile, as the ldmatrix below is: the compiler keeps volatile assembly in order, so no load passes a barrier.
DEV void block_barrier() { asm volatile("bar.sync 0;" ::: "memory"); }

/// A barrier of the block that says whether any thread brought true.
DEV bool block_any(bool p) { return __syncthreads_or(p) != 0; }
/// Whether any lane brought true.
DEV bool warp_any(bool p) { return __any_sync(0xffffffffu, p) != 0; }
DEV void warp_barrier() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

// ---- warp collectives -----------------------------------------------------------------------------------------------
DEV void ldmatrix_x4(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr));
}
DEV void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr));
}
DEV void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(addr));
}
/// d += a b, 16 x 8 x 16, f16 products, f32 sums.
DEV void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/// d += a b, 16 x 8 x 16, bf16 products, f32 sums.
DEV void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// ---- warpgroup products (Hopper, sm_90a): 64 x N x 16, both factors in shared memory -------------------------------
/// A factor without swizzle: 8 rows of 8 numbers (16 bytes each) lie together (128 bytes); `next8` bytes to the next 8 rows, `next_k` to the next 8
/// numbers of the contraction. Adding bytes / 16 to it moves it.
DEV uint64_t wgmma_factor(uint32_t addr, uint32_t next_k, uint32_t next8) {
  return (uint64_t)((addr & 0x3ffffu) >> 4) | (uint64_t)(next_k >> 4) << 16 | (uint64_t)(next8 >> 4) << 32;
}
#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
DEV void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LEFT> DEV void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory"); }
/// Ordinary stores to shared memory become visible to the tensor cores.
DEV void async_fence() { asm volatile("fence.proxy.async;" ::: "memory"); }
/// The same for stores to this block's own shared memory: no fence of the whole GPU.
DEV void async_fence_own() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// d (+)= a b; `keep` = 0 forgets what was in d. d[n-tile][...] is as in mma_f16, warp w of the group having rows 16 w ...
DEV void wgmma_f16(float (&d)[2][4], uint64_t a, uint64_t b, int keep) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %10, 0;\n\twgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, %8, %9, p, 1, 1, 0, 0;\n\t}"
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3])
               : "l"(a), "l"(b), "r"(keep));
}
DEV void wgmma_f16(float (&d)[4][4], uint64_t a, uint64_t b, int keep) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\twgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 0, 0;\n\t}"
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
               : "l"(a), "l"(b), "r"(keep));
}
DEV void wgmma_f16(float (&d)[6][4], uint64_t a, uint64_t b, int keep) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %26, 0;\n\twgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, %24, %25, p, 1, 1, 0, 0;\n\t}"
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3])
               : "l"(a), "l"(b), "r"(keep));
}
DEV void wgmma_f16(float (&d)[8][4], uint64_t a, uint64_t b, int keep) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %34, 0;\n\twgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, p, 1, 1, 0, 0;\n\t}"
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3])
               : "l"(a), "l"(b), "r"(keep));
}
DEV void wgmma_f16(float (&d)[12][4], uint64_t a, uint64_t b, int keep) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %50, 0;\n\twgmma.mma_async.sync.aligned.m64n96k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47}, %48, %49, p, 1, 1, 0, 0;\n\t}"
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3]), "+f"(d[6][0]), "+f"(d[6][1]), "+f"(d[6][2]), "+f"(d[6][3]), "+f"(d[7][0]), "+f"(d[7][1]), "+f"(d[7][2]), "+f"(d[7][3]), "+f"(d[8][0]), "+f"(d[8][1]), "+f"(d[8][2]), "+f"(d[8][3]), "+f"(d[9][0]), "+f"(d[9][1]), "+f"(d[9][2]), "+f"(d[9][3]), "+f"(d[10][0]), "+f"(d[10][1]), "+f"(d[10][2]), "+f"(d[10][3]), "+f"(d[11][0]), "+f"(d[11][1]), "+f"(d[11][2]), "+f"(d[11][3])
               : "l"(a), "l"(b), "r"(keep));
}
/// The same of bf16 numbers, where what is contracted goes from row to row: `next8` bytes to the next 8 numbers that lie together, `next_k` to the next 8 rows.
DEV void wgmma_bf16_turned(float (&d)[4][4], uint64_t a, uint64_t b, int keep) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %18, 0;\n\twgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, %16, %17, p, 1, 1, 1, 1;\n\t}"
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3])
               : "l"(a), "l"(b), "r"(keep));
}
DEV void wgmma_bf16_turned(float (&d)[6][4], uint64_t a, uint64_t b, int keep) {
  asm volatile("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %26, 0;\n\twgmma.mma_async.sync.aligned.m64n48k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23}, %24, %25, p, 1, 1, 1, 1;\n\t}"
               : "+f"(d[0][0]), "+f"(d[0][1]), "+f"(d[0][2]), "+f"(d[0][3]), "+f"(d[1][0]), "+f"(d[1][1]), "+f"(d[1][2]), "+f"(d[1][3]), "+f"(d[2][0]), "+f"(d[2][1]), "+f"(d[2][2]), "+f"(d[2][3]), "+f"(d[3][0]), "+f"(d[3][1]), "+f"(d[3][2]), "+f"(d[3][3]), "+f"(d[4][0]), "+f"(d[4][1]), "+f"(d[4][2]), "+f"(d[4][3]), "+f"(d[5][0]), "+f"(d[5][1]), "+f"(d[5][2]), "+f"(d[5][3])
               : "l"(a), "l"(b), "r"(keep));
}
#else
DEV void wgmma_fence() { __trap(); }
DEV void wgmma_commit() {}
template <int LEFT> DEV void wgmma_wait() {}
DEV void async_fence() {}
DEV void async_fence_own() {}
template <int T> DEV void wgmma_f16(float (&)[T][4], uint64_t, uint64_t, int) {}
template <int T> DEV void wgmma_bf16_turned(float (&)[T][4], uint64_t, uint64_t, int) {}
#endif
/// The results may be used from here on (after the wait).
template <int T> DEV void wgmma_ready(float (&d)[T][4]) {
#pragma unroll
  for (int i = 0; i < T; i++) asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
}
DEV float tanh_approx(float x) { float r; asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
/// Sum over the warp, the same bits in every lane (a butterfly adds the same pairs everywhere).
DEV float warp_sum(float v) {
#pragma unroll
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
  return v;
}
DEV float shfl_xor(float v, int o) { return __shfl_xor_sync(0xffffffffu, v, o); }

/// Asks for the line of `p` to be brought into L2.
DEV void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
/// A number that is the same in all lanes, so that the compiler knows it.
DEV int warp_uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
DEV float warp_uniform(float x) { return __shfl_sync(0xffffffffu, x, 0); }
/// Keeps the compiler from moving memory accesses across.
DEV void compiler_fence() { asm volatile("" ::: "memory"); }
/// The same number, about which the compiler knows nothing.
DEV int opaque(int x) { asm volatile("" : "+r"(x)); return x; }

// ---- numbers --------------------------------------------------------------------------------------------------------
DEV uint32_t pack_f16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DEV float2 unpack_f16(uint32_t v) {
  __half2 h = *reinterpret_cast<__half2*>(&v);
  return __half22float2(h);
}
DEV uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
DEV float2 unpack_bf16(uint32_t v) {
  return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
}
DEV float exp2_fast(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float rcp_fast(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float sqrt_fast(float x) { float r; asm("sqrt.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
DEV float sqrt_exact(float x) { return __fsqrt_rn(x); }
/// The smaller one, or NaN if one of them is.
DEV float min_nan(float a, float b) { float r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b)); return r; }
DEV uint32_t bits_of(float x) { return __float_as_uint(x); }
DEV float from_bits(uint32_t x) { return __uint_as_float(x); }
DEV int thread_index() { return threadIdx.x; }
DEV int block_index() { return blockIdx.x; }
DEV int block_index_y() { return blockIdx.y; }
DEV int grid_size() { return gridDim.x; }
DEV int block_size() { return blockDim.x; }
template <class T> DEV T read_only(const T* p) { return __ldg(p); }
/// What other blocks of the cluster may have written in this launch (before a barrier): past the L1 cache.
DEV float4 read_latest(const float4* p) { return __ldcg(p); }
#endif

/// The products of a row of three taps: 16 channels of the pixels each STEP bytes, neighbouring pixels 16 apart; weights of all 8 T channels in
/// and out, [tap][8 channels in][channel out]. `keep` = 0 forgets what was in the sums.
template <int STEP, int T> DEV void wgmma_taps(float (&sums)[T][4], uint64_t pixels, uint64_t weights, int keep) {
#pragma unroll
  for (int right = 0; right < 3; right++)
#pragma unroll
    for (int k = 0; k < T / 2; k++) {
      wgmma_f16(sums, pixels + (right + k * (STEP / 16)), weights + (right * T + 2 * k) * (8 * T), keep);
      keep = 1;
    }
}

#define KERNEL(threads, per_sm) extern "C" __global__ void __launch_bounds__(threads, per_sm)

// tanh to about 1.2e-7 (absolute), from one exponential and one reciprocal. The argument is clipped above, where tanh is one to
// the last bit: products of exponentials stay finite. Below the exponential just becomes zero. A NaN stays one.
DEV float exp_2x(float x) { return exp2_fast(min_nan(x, 10.0f) * 2.885390081777927f); }
/// (1 - tanh(x)) / 2
DEV float tanh_rest(float x) { return rcp_fast(exp_2x(x) + 1.0f); }
DEV float tanh_exact(float x) { return 1.0f - 2.0f * tanh_rest(x); }
/// tanh(b) - tanh(a) = 2 (e^2b - e^2a) / ((e^2a + 1)(e^2b + 1)): two exponentials and one reciprocal.
DEV float tanh_change(float a, float b) {
  float ea = exp_2x(a), eb = exp_2x(b);
  return 2.0f * (eb - ea) * rcp_fast((ea + 1.0f) * (eb + 1.0f));
}
/// The power of two that brings `size` to [1/4, 1/2); 1 where there is no such.
DEV float scale_for(float size) {
  int e = (int)((bits_of(size) >> 23) & 255u);     // biased exponent
  if (e < 27 || e > 227) return 1.0f;              // zero, tiny, huge, infinite, NaN
  return from_bits((uint32_t)(252 - e) << 23);     // 2^(-2 - (e - 127)) * [1, 2) in [1/4, 1/2)
}
DEV float inverse_power(float s) { return from_bits((uint32_t)(254 << 23) - bits_of(s)); }  // 1 / s, s a power of two
