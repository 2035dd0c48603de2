// A small CPU emulator of a CUDA grid: every thread is a fiber, warp collectives and barriers are rendezvous. Clusters
// run together; the order in which warps are resumed is random (seeded), so missing barriers have a chance to show.
// Shared memory starts as NaNs. Slow, exact about indices and synchronisation, silent about time.
#pragma once
#include <ucontext.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <vector>
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
struct alignas(8) uint2 { uint32_t x, y; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#define DEV inline
#define __host__
#define __global__
#define __device__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __restrict__
#define HAS_CLUSTER 1
namespace emu {
struct Gate { int waiting = 0, of = 0; uint64_t generation = 0; };
struct Block { std::vector<unsigned char> smem; Gate gate; bool any = false, result = false; int index, index_y; uint32_t rank; };
struct Warp { Gate gate; void* args[32]; };
struct Fiber { ucontext_t ctx; std::unique_ptr<char[]> stack; int tid; Block* block; Warp* warp; Gate* blocked = nullptr; uint64_t seen = 0; bool done = false; };
struct State { std::vector<Block> blocks; std::vector<Warp> warps; std::vector<Fiber> fibers; Gate cluster; ucontext_t main; Fiber* now = nullptr; int grid, block_threads; std::function<void()> body; std::mt19937 rng{1}; uint64_t remote_stores = 0; };
inline State& st() { static State s; return s; }
inline void entry() { st().body(); st().now->done = true; swapcontext(&st().now->ctx, &st().main); }
template <class F> inline void arrive(Gate& gate, F&& last) {
  Fiber* me = st().now;
  if (++gate.waiting == gate.of) { last(); gate.waiting = 0; gate.generation++; return; }
  me->blocked = &gate; me->seen = gate.generation;
  swapcontext(&me->ctx, &st().main);
}
inline void launch(int grid, int grid_y, int cluster, int threads, size_t smem, std::function<void()> body, unsigned seed = 1) {
  State& s = st(); s.grid = grid; s.block_threads = threads; s.body = body; s.rng.seed(seed);
  for (int by = 0; by < grid_y; by++) for (int first = 0; first < grid; first += cluster) {
    s.blocks.assign(cluster, Block{}); s.warps.assign(cluster * ((threads + 31) / 32), Warp{}); s.fibers.clear(); s.fibers.resize(cluster * threads);
    s.cluster = Gate{}; s.cluster.of = cluster * threads;
    for (int b = 0; b < cluster; b++) {
      s.blocks[b].smem.assign(smem + 1024, 0xff); s.blocks[b].gate.of = threads; s.blocks[b].index = first + b; s.blocks[b].index_y = by; s.blocks[b].rank = b;
      for (int t = 0; t < threads; t++) {
        Fiber& f = s.fibers[b * threads + t]; f.tid = t; f.block = &s.blocks[b]; f.warp = &s.warps[b * ((threads + 31) / 32) + t / 32]; f.warp->gate.of++;
        f.stack.reset(new char[65536]); getcontext(&f.ctx); f.ctx.uc_stack.ss_sp = f.stack.get(); f.ctx.uc_stack.ss_size = 65536; f.ctx.uc_link = &s.main; makecontext(&f.ctx, entry, 0);
      }
    }
    int warps = (int)s.warps.size(), per = (threads + 31) / 32;
    for (;;) {
      bool all = true, any = false;
      int w0 = s.rng() % warps;
      for (int k = 0; k < warps; k++) {
        int w = (w0 + k) % warps, b = w / per, lo = b * threads + (w % per) * 32, hi = std::min(lo + 32, (b + 1) * threads);
        bool moved = true; int rounds = 1 + s.rng() % 64;
        while (moved && rounds-- > 0) { moved = false;
          for (int i = lo; i < hi; i++) { Fiber& f = s.fibers[i]; if (f.done) continue; all = false;
            if (f.blocked) { if (f.blocked->generation == f.seen) continue; f.blocked = nullptr; }
            s.now = &f; moved = any = true; swapcontext(&s.main, &f.ctx); } }
      }
      if (all) break;
      if (!any) { fprintf(stderr, "emu: deadlock\n"); abort(); }
    }
  }
}
inline float half_to_float(uint16_t h) { _Float16 x; memcpy(&x, &h, 2); return (float)x; }
inline uint16_t float_to_half(float f) { _Float16 x = (_Float16)f; uint16_t h; memcpy(&h, &x, 2); return h; }
inline uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
inline float flt(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
inline uint16_t float_to_bf(float f) { uint32_t u = bits(f); return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16); }
inline float bf_to_float(uint16_t h) { return flt((uint32_t)h << 16); }
inline unsigned char* base(Block* b) { return (unsigned char*)(((uintptr_t)b->smem.data() + 1023) & ~(uintptr_t)1023); }
inline unsigned char* at(uint32_t addr, size_t n, Block* b = nullptr) { if (!b) b = st().now->block; if (addr + n > b->smem.size() - 1024) { fprintf(stderr, "emu: shared address %u out of range\n", addr); abort(); } return base(b) + addr; }
template <class A, class F> inline void warp_op(A& a, F&& all) { Warp* w = st().now->warp; w->args[st().now->tid & 31] = &a; arrive(w->gate, [&] { A* p[32]; for (int i = 0; i < 32; i++) p[i] = (A*)w->args[i]; all(p); }); }
struct Ld { uint32_t addr; uint32_t* r; Block* b; };
inline void ldmatrix(uint32_t* r, uint32_t addr, int count, bool trans) {
  Ld a{addr, r, st().now->block};
  warp_op(a, [=](Ld** p) {
    for (int m = 0; m < count; m++) { uint16_t t[8][8];
      for (int i = 0; i < 8; i++) { if (p[m * 8 + i]->addr & 15) { fprintf(stderr, "emu: ldmatrix alignment\n"); abort(); } memcpy(t[i], at(p[m * 8 + i]->addr, 16, p[0]->b), 16); }
      for (int l = 0; l < 32; l++) { int i = l / 4, j = 2 * (l % 4); p[l]->r[m] = trans ? (uint32_t)t[j][i] | (uint32_t)t[j + 1][i] << 16 : (uint32_t)t[i][j] | (uint32_t)t[i][j + 1] << 16; } } });
}
struct Mma { float* d; const uint32_t* a; uint32_t b0, b1; };
template <bool BF> inline void mma(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
  Mma x{d, a, b0, b1};
  warp_op(x, [](Mma** p) { float A[16][16], B[16][8];
    auto cv = [](uint32_t v, int h) { uint16_t x = (uint16_t)(v >> (16 * h)); return BF ? bf_to_float(x) : half_to_float(x); };
    for (int l = 0; l < 32; l++) { int g = l / 4, t = l % 4; for (int h = 0; h < 2; h++) {
      A[g][2 * t + h] = cv(p[l]->a[0], h); A[g + 8][2 * t + h] = cv(p[l]->a[1], h); A[g][2 * t + 8 + h] = cv(p[l]->a[2], h); A[g + 8][2 * t + 8 + h] = cv(p[l]->a[3], h);
      B[2 * t + h][g] = cv(p[l]->b0, h); B[2 * t + 8 + h][g] = cv(p[l]->b1, h); } }
    float D[16][8] = {};
    for (int i = 0; i < 16; i++) for (int k = 0; k < 16; k++) for (int j = 0; j < 8; j++) D[i][j] += A[i][k] * B[k][j];
    for (int l = 0; l < 32; l++) { int g = l / 4, t = l % 4; for (int h = 0; h < 2; h++) { p[l]->d[h] += D[g][2 * t + h]; p[l]->d[2 + h] += D[g + 8][2 * t + h]; } } });
}
struct Wg { float (*d)[4]; uint64_t a, b; int keep, tid; Block* block; };
template <int T> inline void wgmma(float (*d)[4], uint64_t a, uint64_t b, int keep) {
  Wg x{d, a, b, keep, st().now->tid, st().now->block};
  warp_op(x, [](Wg** p) {
    auto get = [&](uint64_t f, int r, int k) { uint32_t addr = (uint32_t)(f & 0x3fff) << 4, kn = (uint32_t)(f >> 16 & 0x3fff) << 4, n8 = (uint32_t)(f >> 32 & 0x3fff) << 4; uint16_t h; memcpy(&h, at(addr + r / 8 * n8 + k / 8 * kn + r % 8 * 16 + k % 8 * 2, 2, p[0]->block), 2); return half_to_float(h); };
    int w = p[0]->tid / 32 % 4; float A[16][16], B[T * 8][16];
    for (int l = 1; l < 32; l++) if (p[l]->a != p[0]->a || p[l]->b != p[0]->b || p[l]->keep != p[0]->keep) { fprintf(stderr, "emu: wgmma not uniform\n"); abort(); }
    for (int k = 0; k < 16; k++) { for (int r = 0; r < 16; r++) A[r][k] = get(p[0]->a, 16 * w + r, k); for (int n = 0; n < T * 8; n++) B[n][k] = get(p[0]->b, n, k); }
    for (int l = 0; l < 32; l++) for (int n = 0; n < T; n++) for (int e = 0; e < 4; e++) { int r = l / 4 + (e >> 1) * 8, c = n * 8 + l % 4 * 2 + (e & 1); float s = 0; for (int k = 0; k < 16; k++) s += A[r][k] * B[c][k]; p[l]->d[n][e] = (p[0]->keep ? p[l]->d[n][e] : 0.0f) + s; } });
}
// Both factors bf16, the contraction from row to row.
template <int T> inline void wgmma_turned(float (*d)[4], uint64_t a, uint64_t b, int keep) {
  Wg x{d, a, b, keep, st().now->tid, st().now->block};
  warp_op(x, [](Wg** p) {
    auto get = [&](uint64_t f, int n, int k) { uint32_t addr = (uint32_t)(f & 0x3fff) << 4, kn = (uint32_t)(f >> 16 & 0x3fff) << 4, n8 = (uint32_t)(f >> 32 & 0x3fff) << 4; uint16_t h; memcpy(&h, at(addr + n / 8 * n8 + k / 8 * kn + k % 8 * 16 + n % 8 * 2, 2, p[0]->block), 2); return bf_to_float(h); };
    int w = p[0]->tid / 32 % 4; float A[16][16], B[T * 8][16];
    for (int l = 1; l < 32; l++) if (p[l]->a != p[0]->a || p[l]->b != p[0]->b || p[l]->keep != p[0]->keep) { fprintf(stderr, "emu: wgmma not uniform\n"); abort(); }
    for (int k = 0; k < 16; k++) { for (int r = 0; r < 16; r++) A[r][k] = get(p[0]->a, 16 * w + r, k); for (int n = 0; n < T * 8; n++) B[n][k] = get(p[0]->b, n, k); }
    for (int l = 0; l < 32; l++) for (int n = 0; n < T; n++) for (int e = 0; e < 4; e++) { int r = l / 4 + (e >> 1) * 8, c = n * 8 + l % 4 * 2 + (e & 1); float s = 0; for (int k = 0; k < 16; k++) s += A[r][k] * B[c][k]; p[l]->d[n][e] = (p[0]->keep ? p[l]->d[n][e] : 0.0f) + s; } });
}
struct Shfl { float v, *out; int o; };
}  // namespace emu
DEV unsigned char* dyn_smem() { return emu::base(emu::st().now->block); }
DEV uint32_t smem_addr(const void* p) { return (uint32_t)((const unsigned char*)p - emu::base(emu::st().now->block)); }
DEV uint32_t cluster_rank() { return emu::st().now->block->rank; }
DEV void cluster_barrier() { emu::arrive(emu::st().cluster, [] {}); }
DEV void block_barrier() { emu::arrive(emu::st().now->block->gate, [] {}); }
namespace emu { struct Flow { int16_t phase, pending; int32_t tx; }; inline void flow_check(Flow* f) { if (f->pending < 0) { fprintf(stderr, "emu: flow\n"); abort(); } if (!f->pending && !f->tx) { f->phase ^= 1; f->pending = 1; } } }
DEV void flow_init(uint32_t bar) { *(emu::Flow*)emu::at(bar, 8) = {0, 1, 0}; }
DEV void flow_expect(uint32_t bar, uint32_t bytes) { auto* f = (emu::Flow*)emu::at(bar, 8); f->tx += bytes; f->pending--; emu::flow_check(f); }
DEV void flow_wait(uint32_t bar, uint32_t phase) { while ((uint32_t)((emu::Flow*)emu::at(bar, 8))->phase == phase) swapcontext(&emu::st().now->ctx, &emu::st().main); }
DEV void flow_store(uint32_t addr, uint32_t bar, uint32_t rank, uint32_t v) { emu::Block* b = &emu::st().blocks.at(rank); memcpy(emu::at(addr, 4, b), &v, 4); auto* f = (emu::Flow*)emu::at(bar, 8, b); f->tx -= 4; emu::flow_check(f); }
DEV void copy_async(uint32_t to, const void* from) { memcpy(emu::at(to, 16), from, 16); }
DEV void copies_arrived() {}
DEV bool block_any(bool p) { emu::Block* b = emu::st().now->block; b->any |= p; emu::arrive(b->gate, [&] { b->result = b->any; b->any = false; }); bool r = b->result; emu::arrive(b->gate, [] {}); return r; }
DEV void store_remote(uint32_t addr, uint32_t rank, uint32_t v) { if (rank >= emu::st().blocks.size()) { fprintf(stderr, "emu: rank %u\n", rank); abort(); } memcpy(emu::at(addr, 4, &emu::st().blocks[rank]), &v, 4); emu::st().remote_stores++; }
DEV void warp_barrier() { emu::arrive(emu::st().now->warp->gate, [] {}); }
DEV void ldmatrix_x4(uint32_t (&r)[4], uint32_t a) { emu::ldmatrix(r, a, 4, false); }
DEV void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t a) { emu::ldmatrix(r, a, 4, true); }
DEV void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t a) { emu::ldmatrix(r, a, 2, true); }
DEV void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { emu::mma<false>(d, a, b0, b1); }
DEV void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { emu::mma<true>(d, a, b0, b1); }
DEV uint64_t wgmma_factor(uint32_t addr, uint32_t next_k, uint32_t next8) { return (uint64_t)((addr & 0x3ffffu) >> 4) | (uint64_t)(next_k >> 4) << 16 | (uint64_t)(next8 >> 4) << 32; }
DEV void wgmma_fence() {}
DEV void wgmma_commit() {}
template <int LEFT> DEV void wgmma_wait() {}
DEV void async_fence() {}
DEV void async_fence_own() {}
template <int T> DEV void wgmma_f16(float (&d)[T][4], uint64_t a, uint64_t b, int keep) { emu::wgmma<T>(d, a, b, keep); }
template <int T> DEV void wgmma_bf16_turned(float (&d)[T][4], uint64_t a, uint64_t b, int keep) { emu::wgmma_turned<T>(d, a, b, keep); }
template <int T> DEV void wgmma_ready(float (&)[T][4]) {}
DEV float tanh_approx(float x) { float t = tanhf(x); return t * (1 + 0.0004f); }
DEV float shfl_xor(float v, int o) { float out; emu::Shfl a{v, &out, o}; emu::warp_op(a, [](emu::Shfl** p) { for (int l = 0; l < 32; l++) *p[l]->out = p[l ^ p[l]->o]->v; }); return out; }
DEV float warp_sum(float v) { for (int o = 16; o; o >>= 1) v += shfl_xor(v, o); return v; }
DEV void prefetch_l2(const void*) {}
DEV bool warp_any(bool p) { float v = p ? 1.0f : 0.0f; for (int o = 16; o; o >>= 1) v += shfl_xor(v, o); return v > 0; }
DEV int warp_uniform(int x) { return x; }
DEV float warp_uniform(float x) { return x; }
DEV void compiler_fence() {}
DEV int opaque(int x) { return x; }
DEV uint32_t pack_f16(float lo, float hi) { return emu::float_to_half(lo) | (uint32_t)emu::float_to_half(hi) << 16; }
DEV float2 unpack_f16(uint32_t v) { return {emu::half_to_float((uint16_t)v), emu::half_to_float((uint16_t)(v >> 16))}; }
DEV uint32_t pack_bf16(float lo, float hi) { return emu::float_to_bf(lo) | (uint32_t)emu::float_to_bf(hi) << 16; }
DEV float2 unpack_bf16(uint32_t v) { return {emu::bf_to_float((uint16_t)v), emu::bf_to_float((uint16_t)(v >> 16))}; }
DEV float exp2_fast(float x) { return exp2f(x); }
DEV float rcp_fast(float x) { return 1.0f / x; }
DEV float rsqrtf(float x) { return 1.0f / sqrtf(x); }
DEV float sqrt_fast(float x) { return sqrtf(x); }
DEV float sqrt_exact(float x) { return sqrtf(x); }
DEV float min_nan(float a, float b) { return a != a || b != b ? NAN : a < b ? a : b; }
DEV uint32_t bits_of(float x) { return emu::bits(x); }
DEV float from_bits(uint32_t x) { return emu::flt(x); }
DEV int thread_index() { return emu::st().now->tid; }
DEV int block_index() { return emu::st().now->block->index; }
DEV int block_index_y() { return emu::st().now->block->index_y; }
DEV int grid_size() { return emu::st().grid; }
DEV int block_size() { return emu::st().block_threads; }
template <class T> DEV T read_only(const T* p) { return *p; }
DEV float4 read_latest(const float4* p) { return *p; }
