// A sample on a cluster of blocks, everything of it on chip (Hopper): convolutions of 48 channels of 32 x 32 and of 32 of 28 x 28, zero padded. What
// solves by Anderson's method (onchip_anderson.cuh) and integrations (onchip_ode.cuh) share.
//
// Each block of the cluster has a tile of the image. In its shared memory are the weights (f16 halves) and the argument with its halo (f16 halves);
// a thread has the same few numbers of every state. The shapes differ in how the products are shared out among 512 threads: see there.
#pragma once
#include <cstring>
#include "dev.cuh"

#ifdef EMU
DEV void pair_barrier(int) { block_barrier(); }
/// An address in the shared memory of another block of the cluster.
struct Remote { uint32_t addr, rank; };
DEV Remote remote(uint32_t addr, uint32_t rank) { return {addr, rank}; }
DEV void flow_store(Remote to, int off, Remote bar, uint32_t value) { flow_store(to.addr + off, bar.addr, bar.rank, value); }
DEV uint32_t warp_largest(uint32_t x) {
  for (int o = 16; o; o >>= 1) {
    uint32_t other = bits_of(shfl_xor(from_bits(x), o));
    x = x > other ? x : other;
  }
  return x;
}
DEV float2 read_now(const float2* p) { return *p; }
template <class T> DEV T* of_device(T* p) { return p; }
DEV float log2_fast(float x) { return log2f(x); }
DEV uint32_t warp_or(uint32_t x) {
  for (int bit = 0; bit < 3; bit++) x |= warp_any(x >> bit & 1) ? 1u << bit : 0u;
  return x;
}
#else
struct Remote { uint32_t addr; };
DEV Remote remote(uint32_t addr, uint32_t rank) {
  Remote there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there.addr) : "r"(addr), "r"(rank));
  return there;
}
DEV void flow_store(Remote to, int off, Remote bar, uint32_t value) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to.addr + off), "r"(value), "r"(bar.addr) : "memory");
}
/// A barrier of two warps, the ones of this number.
DEV void pair_barrier(int pair) { asm volatile("bar.sync %0, 64;" ::"r"(1 + pair) : "memory"); }
DEV float log2_fast(float x) { float r; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
/// An address that was read from device memory and is one of it: the compiler does not know.
template <class T> DEV T* of_device(T* p) {
  __builtin_assume(__isGlobal(p));
  return p;
}
/// A load that stays where it is written.
DEV float2 read_now(const float2* p) {
  float2 x;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "l"(p) : "memory");
  return x;
}
DEV uint32_t warp_or(uint32_t x) { return __reduce_or_sync(0xffffffffu, x); }
DEV uint32_t warp_largest(uint32_t x) { return __reduce_max_sync(0xffffffffu, x); }
#endif

/// 48 channels of 32 x 32 by eight blocks, 16 rows and 8 columns each: two squares of 8 x 8 pixels. Warpgroups 0 and 1 multiply high halves by high
/// halves and low ones of the weights, a square each, 2 and 3 the low halves of the argument; then each thread of a pair gives the other half of its sums. A thread has one
/// pixel and 12 of its channels.
struct Tiles32 {
  static constexpr int C = 48, SIDE = 32, ROWS = 16, COLS = 8, PIXELS = 185, OWN = 1;
  static constexpr bool SHARED_PRODUCTS = true;
  static constexpr int NEXT8 = (COLS + 2) * 16;
};
/// 32 channels of 28 x 28 by four blocks, 14 rows and columns each. With its halo a row has 16 pixels: a warp's 16 rows of a product are a row of
/// the tile and two pixels that are nobody's; of the last two warps all are. A thread has two pixels and 8 of their channels.
struct Tiles28 {
  static constexpr int C = 32, SIDE = 28, ROWS = 14, COLS = 14, PIXELS = 256, OWN = 2;
  static constexpr bool SHARED_PRODUCTS = false;
  static constexpr int NEXT8 = 128;
};

template <class Tiles> struct OnchipTiles {
  static constexpr int C = Tiles::C, SIDE = Tiles::SIDE, ROWS = Tiles::ROWS, COLS = Tiles::COLS, GROUPS = SIDE / COLS, CL = 2 * GROUPS;
  static constexpr int THREADS = 512, WARPS = 16;
  static constexpr int NT = C / 8, KC = C / 16, OWN = Tiles::OWN, PAIRS = OWN * NT;
  static constexpr int PITCH = COLS + 2, PLANE = Tiles::PIXELS * 16, STEP = 4 * PLANE, HALVES = KC * STEP;
  // Some threads have pixels that are nobody's. All of theirs are zeros, and they say and store nothing.
  static constexpr bool LOOSE = OWN * WARPS * 8 > ROWS * COLS;
  // Bytes of the high or low halves of the weights, and of two f16 for each pair of numbers that the threads have of a state.
  static constexpr int WEIGHTS = 9 * C * C * 2, ARRAY = PAIRS * THREADS * 4;
  static constexpr int AT_WEIGHTS = HALVES, AT_GIVEN = AT_WEIGHTS + 2 * WEIGHTS, AT_SLOTS = AT_GIVEN + 4 * THREADS * 4, SLOTS = CL * WARPS * 4;
  static constexpr int AT_OWN = AT_SLOTS + 2 * SLOTS, AT_SUMS = AT_OWN + 8 * WARPS * 4, AT_FLOWS = AT_SUMS + 2 * 8 * 8, AT_SCALES = AT_FLOWS + 32, TILES_SHARED = AT_SCALES + C * 4;
  static constexpr double LEN = (double)SIDE * SIDE * C;
  static_assert(SIDE == 2 * ROWS && (ROWS + 2) * PITCH <= Tiles::PIXELS && CL * 8 * 8 <= SLOTS, "room");

  const uint4* packed;      // the weights, as pack_for_warpgroups has them, then what each output's sums are to be multiplied by
  unsigned char* sm;
  uint32_t base;
  int rank, band, group, sample, warp, lane, role, square;
  int turns;
  int row;                  // of this thread's pixels in their tile
  __device__ explicit OnchipTiles(const uint4* weights) : packed(weights) {}

  // Pair p: two channels of n-tile p % NT, of this thread's pixel p / NT.
  DEV int col(int pixel) const { return (lane >> 2) + 8 * pixel; }
  DEV bool owns(int pixel) const { return !LOOSE || (row < ROWS && col(pixel) < COLS); }
  DEV size_t global(int p) const { return (((size_t)sample * SIDE + band * ROWS + row) * SIDE + group * COLS + col(p / NT)) * C + p % NT * 8 + (lane & 3) * 2; }
  /// The numbers of a pair in a batch's array.
  DEV float2 pair(const float* of, int p) const { return owns(p / NT) ? read_only(reinterpret_cast<const float2*>(of + global(p))) : make_float2(0.0f, 0.0f); }
  /// Where bytes that another block sends are counted: two in turn for the meetings, and two for what a kernel needs besides.
  DEV uint32_t flow() const { return base + AT_FLOWS + (turns & 1) * 8; }
  DEV uint32_t own_flow(uint32_t turn) const { return base + AT_FLOWS + 16 + (turn & 1) * 8; }
  DEV uint32_t& word(int at) const { return *reinterpret_cast<uint32_t*>(sm + at); }
  /// What `sum_up` found: for each of the first two warps.
  DEV double* sums(int of) const { return reinterpret_cast<double*>(sm + AT_SUMS) + 8 * of; }

  /// Brings the weights, and clears the argument and `bytes` from `at` on.
  DEV void begin(int at, int bytes) {
    sm = dyn_smem();
    base = smem_addr(sm);
    rank = (int)cluster_rank();
    band = rank & 1, group = rank >> 1;
    sample = block_index() / CL;
    warp = warp_uniform(thread_index() >> 5);
    lane = thread_index() & 31;
    role = warp >> 3, square = (warp >> 2) & 1;
    row = Tiles::SHARED_PRODUCTS ? square * 8 + (warp & 3) * 2 + role : warp;
    turns = 0;
    if (thread_index() == 0) for (int k = 0; k < 4; k++) flow_init(base + AT_FLOWS + 8 * k);
    // Of each eight channels the high halves, then the low ones: a product takes both.
    for (int i = thread_index(); i < WEIGHTS / 16; i += THREADS)
      for (int half = 0; half < 2; half++) copy_async(base + AT_WEIGHTS + 16 * ((i / C * 2 + half) * C + i % C), packed + half * (WEIGHTS / 16) + i);
    // Here and not where they are used: who waits for what another block sends forgets what was read of device memory.
    if (thread_index() < C) word(AT_SCALES + 4 * thread_index()) = bits_of(reinterpret_cast<const float*>(packed + 2 * WEIGHTS / 16)[thread_index()]);
    clear(0, HALVES);
    clear(at, bytes);
    copies_arrived();
    // Nobody may store into this block before it has begun.
    cluster_barrier();
  }
  DEV void clear(int at, int bytes) const {
    for (int i = thread_index(); i < bytes / 16; i += THREADS) reinterpret_cast<uint4*>(sm + at)[i] = uint4{0, 0, 0, 0};
  }

  // ---- meetings ----
  /// Sums over the whole sample, for the first two warps: all threads bring their parts. Then, with LARGEST, the largest of all `size`, as a float's bits.
  /// `meanwhile` is done by the second warp before it waits for other blocks.
  template <bool LARGEST, int VALUES, class Meanwhile> DEV void sum_up(const float (&parts)[VALUES], uint32_t size, const Meanwhile& meanwhile) {
    constexpr int SENT = VALUES + LARGEST;
    static_assert(SENT <= 8, "a lane for each");
    // Each exchange leaves a lane with half as many sums; in the end four lanes have the same one.
    float sums[8];
#pragma unroll
    for (int v = 0; v < 8; v++) sums[v] = v < VALUES ? parts[v] : 0.0f;
#pragma unroll
    for (int half = 4; half > 0; half /= 2) {
      bool upper = lane & 4 * half;
#pragma unroll
      for (int v = 0; v < half; v++) {
        float given = shfl_xor(upper ? sums[v] : sums[v + half], 4 * half);
        sums[v] = (upper ? sums[v + half] : sums[v]) + given;
      }
    }
    sums[0] += shfl_xor(sums[0], 2);
    sums[0] += shfl_xor(sums[0], 1);
    if ((lane & 3) == 0 && lane / 4 < VALUES) *reinterpret_cast<float*>(sm + AT_OWN + (lane / 4 * WARPS + warp) * 4) = sums[0];
    if (LARGEST) {
      size = warp_largest(size);
      if (lane == 0) word(AT_OWN + (VALUES * WARPS + warp) * 4) = size;
    }
    block_barrier();
    uint32_t slots = AT_SLOTS + (turns & 1) * SLOTS, bar = flow();
    int v = lane & 7;
    if (warp == 0) {
      if (lane == 0) flow_expect(bar, CL * SENT * 8);
      if (v < SENT) {
        double sum = 0.0;
#pragma unroll
        for (int k = 0; k < WARPS; k += 4) {
          float4 four = *reinterpret_cast<const float4*>(sm + AT_OWN + (v * WARPS + k) * 4);
          if (LARGEST && v == VALUES) sum = larger(larger(sum, larger(four.x, four.y)), larger(four.z, four.w));
          else sum += ((double)four.x + (double)four.y) + ((double)four.z + (double)four.w);
        }
        uint32_t halves[2];
        memcpy(halves, &sum, 8);
        uint32_t to = base + slots + (rank * SENT + v) * 8;
        for (int other = lane >> 3; other < CL; other += 4)
          for (int k = 0; k < 2; k++) flow_store(to + 4 * k, bar, other, halves[k]);
      }
    }
    if (warp == 1) meanwhile();
    if (warp < 2) {
      flow_wait(bar, (turns >> 1) & 1);
      if (lane < SENT) {
        double sum = 0.0;
#pragma unroll
        for (int k = 0; k < CL; k += 2) {
          double x = part_of<SENT>(slots, k), y = part_of<SENT>(slots, k + 1);
          sum = LARGEST && lane == VALUES ? larger(sum, larger(x, y)) : sum + (x + y);
        }
        this->sums(warp)[lane] = sum;
      }
      warp_barrier();
    }
    turns++;
  }
  template <bool LARGEST, int VALUES> DEV void sum_up(const float (&parts)[VALUES], uint32_t size) {
    sum_up<LARGEST>(parts, size, [] {});
  }
  /// Not less than a NaN.
  static DEV double larger(double x, double y) { return x != x || x > y ? x : y; }
  template <int SENT> DEV double part_of(uint32_t slots, int block) const { return *reinterpret_cast<const double*>(sm + slots + (block * SENT + lane) * 8); }

  // ---- the argument ----
  /// Numbers of this thread, as scaled halves, to where the products find them, borders also to the neighbours.
  DEV void put_halves(const float (&x)[2 * PAIRS], float scale) const {
#pragma unroll
    for (int pixel = 0; pixel < OWN; pixel++)
      if (owns(pixel)) put_pixel(pixel, x, scale);
  }
  /// Bytes that the neighbours' borders are.
  DEV uint32_t border_bytes() const { return COLS * C * 4 + ((group > 0) + (group < GROUPS - 1)) * (ROWS + 1) * C * 4; }
  DEV void put_pixel(int pixel, const float (&numbers)[2 * PAIRS], float scale) const {
    // Of n-tile 0: the high halves of this thread's pair.
    int at = ((row + 1) * PITCH + col(pixel) + 1) * 16 + (lane & 3) * 4;
    uint32_t halves[2 * NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
      int p = pixel * NT + n;
      float x = numbers[2 * p] * scale, y = numbers[2 * p + 1] * scale;
      uint32_t high = pack_f16(x, y);
      float2 h = unpack_f16(high);
      halves[2 * n] = high, halves[2 * n + 1] = pack_f16(x - h.x, y - h.y);
      word(at + plane(n)) = halves[2 * n], word(at + plane(n) + 2 * PLANE) = halves[2 * n + 1];
    }
    bool down = band == 0 ? row == ROWS - 1 : row == 0, left = col(pixel) == 0 && group > 0, right = col(pixel) == COLS - 1 && group < GROUPS - 1;
    int vertical = (band == 0 ? -ROWS : ROWS) * PITCH * 16, sideways = left ? COLS * 16 : -COLS * 16, beside = left ? rank - 2 : rank + 2;
    if (left || right) send(at + sideways, beside, halves);
    if (down) send(at + vertical, rank ^ 1, halves);
    if (down && (left || right)) send(at + vertical + sideways, beside ^ 1, halves);
  }
  /// Where the halves of an n-tile lie: [16 channels][high, low][8 channels].
  static DEV int plane(int n) { return ((n / 2) * 4 + n % 2) * PLANE; }
  DEV void send(int at, int other, const uint32_t (&halves)[2 * NT]) const {
    Remote to = remote(base + at, other), bar = remote(flow(), other);
#pragma unroll
    for (int n = 0; n < NT; n++) {
      flow_store(to, plane(n), bar, halves[2 * n]);
      flow_store(to, plane(n) + 2 * PLANE, bar, halves[2 * n + 1]);
    }
  }

  // ---- products ----
  /// Begins products of halves of the argument with the weights: with their high halves, and with the low ones too where there are sums for both.
  template <int T> DEV void multiply(float (&sums)[T][4], uint64_t pixels, uint64_t weights) const {
    wgmma_ready(sums);
    wgmma_fence();
#pragma unroll
    for (int down = 0; down < 3; down++)
#pragma unroll
      for (int right = 0; right < 3; right++)
#pragma unroll
        for (int k = 0; k < KC; k++)
          wgmma_f16(sums, pixels + (down * PITCH + right + k * (STEP / 16)), weights + ((down * 3 + right) * NT + 2 * k) * (2 * C), right + k > 0 ? 1 : down);
    wgmma_commit();
  }
  /// The sums of both halves of the weights.
  static DEV float both(const float (&sums)[2 * NT][4], int n, int k) { return sums[n][k] + sums[NT + n][k]; }
  /// What a sum of the products is multiplied by: of the channels of an n-tile.
  DEV float2 sum_scale(int n) const { return *reinterpret_cast<const float2*>(sm + AT_SCALES + (n * 8 + (lane & 3) * 2) * 4); }
  /// W of the argument, for this thread's numbers. `meanwhile` is done while the tensor cores multiply.
  template <class Meanwhile> DEV void convolve(float scale, float (&u)[2 * PAIRS], const Meanwhile& meanwhile) {
    // Opaque: else all addresses are made before the first iteration, and spilled.
    uint32_t from = opaque(base);
    uint64_t weights = wgmma_factor(from + AT_WEIGHTS, 2 * C * 16, 128);
    uint64_t pixels = wgmma_factor(from + (Tiles::SHARED_PRODUCTS ? square * 8 * PITCH : (warp >> 2) * 64) * 16, PLANE, Tiles::NEXT8), low = pixels + 2 * PLANE / 16;
    float total[NT][4], high[2 * NT][4], back = inverse_power(scale);
    if constexpr (Tiles::SHARED_PRODUCTS) {
      if (role == 0) {
        multiply(high, pixels, weights);
        meanwhile();
        wgmma_wait<0>();
        wgmma_ready(high);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int k = 0; k < 4; k++) total[n][k] = both(high, n, k);
      } else {
        multiply(total, low, weights);
        meanwhile();
        wgmma_wait<0>();
        wgmma_ready(total);
      }
      share_sums(total, back, u);
    } else {
      multiply(high, pixels, weights);
      multiply(total, low, weights);
      meanwhile();
      wgmma_wait<0>();
      wgmma_ready(high);
      wgmma_ready(total);
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        float2 by = sum_scale(p % NT);
        int k = p / NT * 2;
        u[2 * p] = (both(high, p % NT, k) + total[p % NT][k]) * back * by.x;
        u[2 * p + 1] = (both(high, p % NT, k + 1) + total[p % NT][k + 1]) * back * by.y;
      }
    }
  }
  DEV void convolve(float scale, float (&u)[2 * PAIRS]) { convolve(scale, u, [] {}); }
  /// A pixel's sums are in two threads: the first has the upper pixel's in the end, the second the lower one's.
  DEV void share_sums(const float (&total)[NT][4], float back, float (&u)[2 * PAIRS]) {
    float* given = reinterpret_cast<float*>(sm + AT_GIVEN) + (warp & 7) * 2 * 2 * 64;
#pragma unroll
    for (int first = 0; first < NT; first += 2) {
#pragma unroll
      for (int n = first; n < first + 2; n++)
        *reinterpret_cast<float2*>(given + (role * 2 + n - first) * 64 + 2 * lane) =
            role == 0 ? make_float2(total[n][2], total[n][3]) : make_float2(total[n][0], total[n][1]);
      pair_barrier(warp & 7);
#pragma unroll
      for (int n = first; n < first + 2; n++) {
        float2 other = *reinterpret_cast<const float2*>(given + ((role ^ 1) * 2 + n - first) * 64 + 2 * lane);
        float2 by = sum_scale(n);
        float x = role == 0 ? total[n][0] : total[n][2], y = role == 0 ? total[n][1] : total[n][3];
        u[2 * n] = (x + other.x) * back * by.x;
        u[2 * n + 1] = (y + other.y) * back * by.y;
      }
      pair_barrier(warp & 7);
    }
  }
};
