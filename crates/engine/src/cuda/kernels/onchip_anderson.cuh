// Whole solves by Anderson's method in one launch, everything of a sample on chip (Hopper): convolutions of 48 channels of 32 x 32 and of 32 of
// 28 x 28, zero padded.
//
// A sample has a cluster of blocks, each of them a tile of the image. In its shared memory a block has the weights (f16 halves), the
// argument with its halo (f16 halves), and what is kept of the last four pairs: residuals and differences of images, f16 as in anderson.cuh.
// Argument, image and the image before are in registers. Nothing but y (or v and the slopes) is read from device memory in an iteration.
// The shapes differ in how the products are shared out among 512 threads: see there.
//
// Two meetings of the cluster in an iteration: sums (products of residuals) to all blocks, whose first warps decide, each the same; then borders of the next argument
// and votes on it. Who has what comes in a meeting knows that all had what came in the one before.
#pragma once
#include <cstring>
#include "onchip_report.cuh"

#ifdef EMU
DEV void pair_barrier(int) { block_barrier(); }
/// An address in the shared memory of another block of the cluster.
struct Remote { uint32_t addr, rank; };
DEV Remote remote(uint32_t addr, uint32_t rank) { return {addr, rank}; }
DEV void flow_store(Remote to, int off, Remote bar, uint32_t value) { flow_store(to.addr + off, bar.addr, bar.rank, value); }
DEV float log2_fast(float x) { return log2f(x); }
DEV double reciprocal(double x) { return 1.0 / x; }
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
DEV uint32_t warp_or(uint32_t x) { return __reduce_or_sync(0xffffffffu, x); }
/// From 20 bits by two steps of Newton's: no branches for numbers that do not come here.
DEV double reciprocal(double x) {
  double r;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
  r = fma(r, fma(-x, r, 1.0), r);
  return fma(r, fma(-x, r, 1.0), r);
}
DEV float log2_fast(float x) { float r; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
#endif

/// A batch whose samples end together: how many iterations are made, and whether it is known after how many all end (`judge_together`).
struct OnchipTogether {
  uint32_t limit, known, end;
};
struct OnchipGap { double difference, size; };
struct OnchipAnderson {
  const uint4* weights;   // as pack_for_warpgroups has them, then what each output's sums are to be multiplied by
  const float* drive;     // y, or v: [sample][row][column][channel], as all states
  const float* slope;     // D of an adjoint
  // The derivative of a normalisation: normalised states, gradients of their norms, and what they were multiplied by: one for each column.
  const float* states;
  const float* gradients;
  const float* inverses;
  const float* start;
  float* state;           // the answer; may be where the start is
  OnchipReport* reports;
  // Null, or samples end together: then `state` has room for the images of the last ANSWERS iterations, that of iteration i at i % ANSWERS.
  const OnchipTogether* together;
  OnchipGap* gaps;        // [iteration][sample]
  const uint32_t* bad;    // not 0: a weight is not finite
  double tolerance, ridge;
  float shift, base, power;
  uint32_t inner, has_power, max_iterations;
};
enum { ANDERSON_FORWARD, ANDERSON_ADJOINT };
// As in solve.cu.
constexpr uint32_t ANSWERS = 4;

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

template <class Tiles, int KIND, bool NORMALISED> struct AndersonOnChip {
  static constexpr int C = Tiles::C, SIDE = Tiles::SIDE, ROWS = Tiles::ROWS, COLS = Tiles::COLS, GROUPS = SIDE / COLS, CL = 2 * GROUPS;
  static constexpr int THREADS = 512, WARPS = 16, WINDOW = 5, KEPT = 4;
  static constexpr int NT = C / 8, KC = C / 16, OWN = Tiles::OWN, PAIRS = OWN * NT;
  static constexpr int PITCH = COLS + 2, PLANE = Tiles::PIXELS * 16, STEP = 4 * PLANE, HALVES = KC * STEP;
  // Some threads have pixels that are nobody's. All of theirs are zeros, and they say and store nothing.
  static constexpr bool LOOSE = OWN * WARPS * 8 > ROWS * COLS;
  static constexpr int WEIGHTS = 9 * C * C * 2, ARRAY = PAIRS * THREADS * 4, VALUES = 6;
  static constexpr int AT_WEIGHTS = HALVES, AT_RESIDUALS = AT_WEIGHTS + 2 * WEIGHTS, AT_DIFFERENCES = AT_RESIDUALS + KEPT * ARRAY;
  static constexpr int AT_GIVEN = AT_DIFFERENCES + KEPT * ARRAY, AT_COLUMNS = AT_GIVEN + 4 * THREADS * 4, COLUMNS = 2 * PAIRS * 32 * 4, AT_SLOTS = AT_COLUMNS + 2 * COLUMNS, SLOTS = CL * WARPS * 4;
  static constexpr int AT_OWN = AT_SLOTS + 2 * SLOTS, AT_KNOWN = AT_OWN + VALUES * WARPS * 4, AT_FLOWS = AT_KNOWN + 768, SHARED = AT_FLOWS + 24;
  static constexpr double LEN = (double)SIDE * SIDE * C;
  static_assert(SIDE == 2 * ROWS && (ROWS + 2) * PITCH <= Tiles::PIXELS && CL * VALUES * 8 <= SLOTS && SHARED <= 232448, "room");

  // What is known of the sample. The first warp has the history and the next combination, the second one the end: at the same time.
  struct Known {
    double sums[2][8];      // for each of the two
    double gram[WINDOW][WINDOW], residual;
    float backs[KEPT], steps[KEPT];
    uint32_t count, newest, place, accelerated, helped, solved;
    float to;               // what the next pair is multiplied by
    double difference, size, best;
    uint32_t since, ended;
    float scale;            // what the next argument is multiplied by
    uint32_t spoiled;       // y or v or a weight is not finite
  };
  static_assert(sizeof(Known) <= 768, "room");

  // What a thread may say of its part of a combination: it is not finite, not positive, and the image was not.
  static constexpr uint32_t NOT_FINITE = 1, NOT_POSITIVE = 2, WAS_NOT = 4;

  const OnchipAnderson& a;
  unsigned char* sm;
  uint32_t base;
  int rank, band, group, sample, warp, lane, role, square;
  uint32_t limit;           // of iterations
  int turns, exchanges;
  int row;                  // of this thread's pixels in their tile
  float z[2 * PAIRS], f[2 * PAIRS], before[2 * PAIRS];
  __device__ explicit AndersonOnChip(const OnchipAnderson& args) : a(args) {}

  DEV Known& known() const { return *reinterpret_cast<Known*>(sm + AT_KNOWN); }
  // Pair p: two channels of n-tile p % NT, of this thread's pixel p / NT.
  DEV int col(int pixel) const { return (lane >> 2) + 8 * pixel; }
  DEV bool owns(int pixel) const { return !LOOSE || (row < ROWS && col(pixel) < COLS); }
  DEV size_t global(int p) const { return (((size_t)sample * SIDE + band * ROWS + row) * SIDE + group * COLS + col(p / NT)) * C + p % NT * 8 + (lane & 3) * 2; }
  /// The numbers of a pair in a batch's array.
  DEV float2 pair(const float* of, int p) const { return owns(p / NT) ? read_only(reinterpret_cast<const float2*>(of + global(p))) : make_float2(0.0f, 0.0f); }
  DEV uint32_t flow() const { return base + AT_FLOWS + (turns & 1) * 8; }
  DEV uint32_t& word(int at) const { return *reinterpret_cast<uint32_t*>(sm + at); }
  DEV int residual_at(int place, int p) const { return AT_RESIDUALS + (place * PAIRS + p) * THREADS * 4 + thread_index() * 4; }
  DEV int difference_at(int place, int p) const { return residual_at(place, p) + (AT_DIFFERENCES - AT_RESIDUALS); }

  /// For arguments of about this size: their root mean square becomes 32 to 64, so that low halves keep 11 bits and high ones do not overflow.
  static DEV float argument_scale(double squares) { return 128.0f * pair_scale(squares); }
  /// What residuals of this size and their differences are kept by, as f16.
  static DEV float pair_scale(double squares) { return scale_for(sqrt_fast((float)(squares * (1.0 / LEN)))); }
  DEV void begin() {
    sm = dyn_smem();
    base = smem_addr(sm);
    rank = (int)cluster_rank();
    band = rank & 1, group = rank >> 1;
    sample = block_index() / CL;
    limit = a.together && a.together->limit && a.together->limit < a.max_iterations ? a.together->limit : a.max_iterations;
    warp = warp_uniform(thread_index() >> 5);
    lane = thread_index() & 31;
    role = warp >> 3, square = (warp >> 2) & 1;
    row = Tiles::SHARED_PRODUCTS ? square * 8 + (warp & 3) * 2 + role : warp;
    turns = exchanges = 0;
    if (thread_index() == 0) for (int k = 0; k < 3; k++) flow_init(base + AT_FLOWS + 8 * k);
    // Of each eight channels the high halves, then the low ones: a product takes both.
    for (int i = thread_index(); i < WEIGHTS / 16; i += THREADS)
      for (int half = 0; half < 2; half++) copy_async(base + AT_WEIGHTS + 16 * ((i / C * 2 + half) * C + i % C), a.weights + half * (WEIGHTS / 16) + i);
    clear(0, HALVES);
    // Pairs that are not there are zeros, and have no share.
    clear(AT_RESIDUALS, 2 * KEPT * ARRAY);
    copies_arrived();
    // Nobody may store into this block before it has begun.
    cluster_barrier();
  }

  DEV void clear(int at, int bytes) const {
    for (int i = thread_index(); i < bytes / 16; i += THREADS) reinterpret_cast<uint4*>(sm + at)[i] = uint4{0, 0, 0, 0};
  }

  // ---- meetings ----
  /// Sums over the whole sample, for the first two warps: all threads bring their parts.
  DEV void sum_up(const float (&parts)[VALUES]) {
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
    block_barrier();
    uint32_t slots = AT_SLOTS + (turns & 1) * SLOTS, bar = flow();
    int v = lane & 7;
    if (warp == 0) {
      if (lane == 0) flow_expect(bar, CL * VALUES * 8);
      if (v < VALUES) {
        double sum = 0.0;
#pragma unroll
        for (int k = 0; k < WARPS; k += 4) {
          float4 four = *reinterpret_cast<const float4*>(sm + AT_OWN + (v * WARPS + k) * 4);
          sum += ((double)four.x + (double)four.y) + ((double)four.z + (double)four.w);
        }
        uint32_t halves[2];
        memcpy(halves, &sum, 8);
        uint32_t to = base + slots + (rank * VALUES + v) * 8;
        for (int other = lane >> 3; other < CL; other += 4)
          for (int k = 0; k < 2; k++) flow_store(to + 4 * k, bar, other, halves[k]);
      }
    }
    if (warp < 2) {
      flow_wait(bar, (turns >> 1) & 1);
      if (lane < VALUES) {
        double sum = 0.0;
#pragma unroll
        for (int k = 0; k < CL; k += 2) sum += part_of(slots, k) + part_of(slots, k + 1);
        known().sums[warp][lane] = sum;
      }
      warp_barrier();
    }
    turns++;
  }
  DEV double part_of(uint32_t slots, int block) const { return *reinterpret_cast<const double*>(sm + slots + (block * VALUES + lane) * 8); }
  /// The argument, as scaled halves, to where the products find it, borders also to the neighbours. Whether it may stay there, by what all
  /// threads of the cluster say of it.
  DEV bool put(float scale, uint32_t vote) {
#pragma unroll
    for (int pixel = 0; pixel < OWN; pixel++)
      if (owns(pixel)) put_pixel(pixel, scale);
    uint32_t said = warp_or(vote);
    uint32_t slots = AT_SLOTS + (turns & 1) * SLOTS, bar = flow();
    if (lane < CL) flow_store(base + slots + (rank * WARPS + warp) * 4, bar, lane, said);
    if (thread_index() == 0) flow_expect(bar, SLOTS + COLS * C * 4 + ((group > 0) + (group < GROUPS - 1)) * (ROWS + 1) * C * 4);
    async_fence_own();
    block_barrier();
    flow_wait(bar, (turns >> 1) & 1);
    async_fence_own();
    uint32_t all = 0;
#pragma unroll
    for (int i = 0; i < SLOTS / 256; i++) {
      uint2 two = *reinterpret_cast<const uint2*>(sm + slots + (i * 32 + lane) * 8);
      all |= two.x | two.y;
    }
    all = warp_or(all);
    turns++;
    return !(all & NOT_FINITE) && (!(all & NOT_POSITIVE) || (all & WAS_NOT));
  }
  DEV void put_pixel(int pixel, float scale) const {
    // Of n-tile 0: the high halves of this thread's pair.
    int at = ((row + 1) * PITCH + col(pixel) + 1) * 16 + (lane & 3) * 4;
    uint32_t halves[2 * NT];
#pragma unroll
    for (int n = 0; n < NT; n++) {
      int p = pixel * NT + n;
      float x = z[2 * p] * scale, y = z[2 * p + 1] * scale;
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

  // ---- the map ----
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
  DEV float2 sum_scale(int n) const { return read_only(reinterpret_cast<const float2*>(reinterpret_cast<const float*>(a.weights + 2 * WEIGHTS / 16) + n * 8 + (lane & 3) * 2)); }
  /// W of the argument, for this thread's numbers.
  DEV void convolve(float scale, float (&u)[2 * PAIRS]) {
    // Opaque: else all addresses are made before the first iteration, and spilled.
    uint32_t from = opaque(base);
    uint64_t weights = wgmma_factor(from + AT_WEIGHTS, 2 * C * 16, 128);
    uint64_t pixels = wgmma_factor(from + (Tiles::SHARED_PRODUCTS ? square * 8 * PITCH : (warp >> 2) * 64) * 16, PLANE, Tiles::NEXT8), low = pixels + 2 * PLANE / 16;
    float total[NT][4], high[2 * NT][4], back = inverse_power(scale);
    if constexpr (Tiles::SHARED_PRODUCTS) {
      if (role == 0) {
        multiply(high, pixels, weights);
        wgmma_wait<0>();
        wgmma_ready(high);
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
          for (int k = 0; k < 4; k++) total[n][k] = both(high, n, k);
      } else {
        multiply(total, low, weights);
        wgmma_wait<0>();
        wgmma_ready(total);
      }
      share_sums(total, back, u);
    } else {
      multiply(high, pixels, weights);
      multiply(total, low, weights);
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

  // ---- columns of the image, which two blocks share ----
  /// A number for each column of the tile: [one of this thread's numbers][lane]. Those of this block, or of the one below or above.
  DEV uint32_t& column(int other, int i) const { return word(AT_COLUMNS + other * COLUMNS + (i * 32 + lane) * 4); }
  /// This block's numbers to the other one, and the other's here.
  DEV void exchange_columns() {
    uint32_t bar = base + AT_FLOWS + 16, at = AT_COLUMNS + 4 * thread_index();
    block_barrier();
    if (thread_index() == 0) flow_expect(bar, COLUMNS);
    if (thread_index() < COLUMNS / 4) flow_store(base + at + COLUMNS, bar, rank ^ 1, word(at));
    flow_wait(bar, exchanges & 1);
    exchanges++;
  }
  static DEV float joined(float x, float y) { return KIND == ANDERSON_FORWARD ? fmaxf(x, y) : x + y; }
  /// The largest number of each column of the tile, or the sum of all, in a fixed order: of what `of` says that threads have.
  template <class Of> DEV void join_columns(const Of& of) {
    float* given = reinterpret_cast<float*>(sm + AT_GIVEN);
#pragma unroll
    for (int first = 0; first < 2 * PAIRS; first += 4) {
      block_barrier();
#pragma unroll
      for (int i = 0; i < 4; i++) given[(warp * 4 + i) * 32 + lane] = of(first + i);
      block_barrier();
      if (warp < 4) {
        float some[4];
#pragma unroll
        for (int k = 0; k < 4; k++) some[k] = given[(k * 4 + warp) * 32 + lane];
#pragma unroll
        for (int k = 4; k < WARPS; k++) some[k % 4] = joined(some[k % 4], given[(k * 4 + warp) * 32 + lane]);
        column(0, first + warp) = bits_of(joined(joined(some[0], some[1]), joined(some[2], some[3])));
      }
    }
    exchange_columns();
  }
  DEV float joined_column(int i) const { return joined(from_bits(column(band, i)), from_bits(column(band ^ 1, i))); }
  /// Divides columns by their largest numbers.
  DEV void normalise() {
    join_columns([&](int i) { return fabsf(f[i]); });
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) f[i] = owns(i / 2 / NT) ? f[i] * (1.0f / joined_column(i)) : 0.0f;
  }
  /// s(W z + y) + shift or s(W z) + y + shift, s a tanh or a power of one.
  DEV void image(const float (&u)[2 * PAIRS], const float2 (&y)[PAIRS]) {
    float inside = a.inner ? 1.0f : 0.0f, outside = 1.0f - inside;
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) f[i] = tanh_exact(fmaf(inside, i & 1 ? y[i / 2].y : y[i / 2].x, u[i]));
    if (a.has_power) {
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) f[i] = exp2_fast(a.power * log2_fast(f[i] + a.base));
    }
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) f[i] = owns(i / 2 / NT) ? f[i] + fmaf(outside, i & 1 ? y[i / 2].y : y[i / 2].x, a.shift) : 0.0f;
  }
  /// f = F(z).
  DEV void apply(float scale) {
    constexpr bool BACK = KIND == ANDERSON_ADJOINT;
    float2 y[PAIRS], d[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      y[p] = pair(a.drive, p);
      d[p] = BACK ? pair(NORMALISED ? a.states : a.slope, p) : make_float2(0.0f, 0.0f);
    }
    float u[2 * PAIRS];
    convolve(scale, u);
    if constexpr (BACK && LOOSE) {
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) u[i] = owns(i / 2 / NT) ? u[i] : 0.0f;
    }
    if constexpr (BACK && NORMALISED) {
      float inner[2 * PAIRS];
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        u[2 * p] += y[p].x, u[2 * p + 1] += y[p].y;
        inner[2 * p] = d[p].x * u[2 * p], inner[2 * p + 1] = d[p].y * u[2 * p + 1];
      }
      float2 slope[PAIRS];
#pragma unroll
      for (int p = 0; p < PAIRS; p++) slope[p] = pair(a.slope, p);
      join_columns([&](int i) { return inner[i]; });
#pragma unroll
      for (int p = 0; p < PAIRS; p++) {
        float2 gradient = pair(a.gradients, p), inverse = inverse_of(p);
        f[2 * p] = slope[p].x * ((u[2 * p] - joined_column(2 * p) * gradient.x) * inverse.x);
        f[2 * p + 1] = slope[p].y * ((u[2 * p + 1] - joined_column(2 * p + 1) * gradient.y) * inverse.y);
      }
    } else if constexpr (BACK) {
#pragma unroll
      for (int p = 0; p < PAIRS; p++) f[2 * p] = d[p].x * (u[2 * p] + y[p].x), f[2 * p + 1] = d[p].y * (u[2 * p + 1] + y[p].y);
    } else {
      image(u, y);
      if (NORMALISED) normalise();
    }
  }
  /// What the pair's columns were multiplied by.
  DEV float2 inverse_of(int p) const {
    size_t at = ((size_t)sample * SIDE + group * COLS + col(p / NT)) * C + p % NT * 8 + (lane & 3) * 2;
    return owns(p / NT) ? read_only(reinterpret_cast<const float2*>(a.inverses + at)) : make_float2(0.0f, 0.0f);
  }

  // ---- Anderson's step, as anderson.cuh has it ----
  /// The parts of the new pair's products, and the pair into its place.
  DEV void put_pair(float (&parts)[VALUES]) {
    const Known& k = known();
    uint32_t newest = k.place, next = (newest + 1) % KEPT;
    float to = k.to;
#pragma unroll
    for (int v = 0; v < VALUES; v++) parts[v] = 0.0f;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float r0 = f[2 * p] - z[2 * p], r1 = f[2 * p + 1] - z[2 * p + 1];
      // The condition keeps the compiler from reading everything at once, into more registers than there are.
      if (k.count) {
#pragma unroll
        for (int age = 0; age < KEPT; age++) {
          float2 old = unpack_f16(word(residual_at((newest + KEPT - age) % KEPT, p)));
          parts[age] = fmaf(r0, old.x, fmaf(r1, old.y, parts[age]));
        }
      }
      parts[4] = fmaf(r0, r0, fmaf(r1, r1, parts[4]));
      parts[5] = fmaf(f[2 * p], f[2 * p], fmaf(f[2 * p + 1], f[2 * p + 1], parts[5]));
      word(residual_at(next, p)) = pack_f16(r0 * to, r1 * to);
      word(difference_at(next, p)) = pack_f16((f[2 * p] - before[2 * p]) * to, (f[2 * p + 1] - before[2 * p + 1]) * to);
    }
  }
  /// What becomes of the new pair: by two warps, the same in every block.
  DEV void decide(uint32_t iteration) {
    if (warp < 2 && lane == 0) {
      if (warp == 0) take_pair(); else conclude(iteration);
    }
  }
  /// A combination helped if it has come nearer.
  static DEV bool helps(uint32_t accelerated, double residual, double before) { return !accelerated || residual < before; }
  DEV void take_pair() {
    Known& k = known();
    const double(&sums)[8] = k.sums[0];
    k.helped = helps(k.accelerated, sums[4], k.residual);
    if (!k.helped) {
      k.count = 1;
    } else {
      uint32_t kept = k.count < KEPT ? k.count : KEPT, next = k.count == 0 ? 0 : (k.newest + 1) % WINDOW;
      for (uint32_t age = 0; age < kept; age++) {
        uint32_t slot = (k.newest + WINDOW - age) % WINDOW;
        k.gram[next][slot] = k.gram[slot][next] = sums[age] * (double)k.backs[(k.place + KEPT - age) % KEPT];
      }
      k.gram[next][next] = sums[4];
      k.count = k.count + 1 < WINDOW ? k.count + 1 : WINDOW;
      k.newest = next;
      k.place = (k.place + 1) % KEPT;
      k.backs[k.place] = inverse_power(k.to);
      k.residual = sums[4];
    }
    k.solved = combination();
    k.to = pair_scale(k.residual);
  }
  DEV void conclude(uint32_t iteration) {
    Known& k = known();
    const double(&sums)[8] = k.sums[1];
    if (helps(k.accelerated, sums[4], k.difference)) k.difference = sums[4], k.size = sums[5];
    k.scale = argument_scale(k.size);
    double size = k.spoiled ? (double)NAN : k.size;
    if (a.together) {
      if (rank == 0) a.gaps[(size_t)(iteration - 1) * (grid_size() / CL) + sample] = OnchipGap{k.difference, size};
      k.ended = iteration >= limit;
      return;
    }
    double residual = sqrt(k.difference) / (1e-5 + sqrt(size));
    if (residual < k.best) { k.best = residual; k.since = 0; } else k.since++;
    const uint32_t RUNNING = 4;
    uint32_t outcome = RUNNING;
    if (!(size <= DBL_MAX) || residual != residual) outcome = ONCHIP_NOT_FINITE;
    else if (residual <= a.tolerance) outcome = ONCHIP_CONVERGED;
    else if (k.since >= ONCHIP_PATIENCE && k.best <= ONCHIP_ROUNDING) outcome = ONCHIP_STAGNATED;
    else if (iteration >= limit) outcome = ONCHIP_ITERATION_LIMIT;
    k.ended = outcome < RUNNING;
    if (k.ended && rank == 0) a.reports[sample] = OnchipReport{iteration, outcome, residual};
  }
  /// As `combination` of anderson.cuh, by one thread, in registers: (G + ridge diag G) w = 1 by L D L', not scaled to a unit diagonal, which
  /// elimination without pivoting does not notice. Pairs that are not there have a row of the unit matrix, and no share.
  DEV bool combination() {
    Known& k = known();
    int count = (int)k.count;
    if (count < 2) return false;
    double g[WINDOW][WINDOW], w[WINDOW], inverse[WINDOW];
    bool fine = true;
#pragma unroll
    for (int i = 0; i < WINDOW; i++) {
      int slot = ((int)k.newest + WINDOW - i) % WINDOW;
#pragma unroll
      for (int j = 0; j <= i; j++) g[i][j] = i < count ? k.gram[slot][((int)k.newest + WINDOW - j) % WINDOW] : i == j ? 1.0 : 0.0;
      w[i] = i < count ? 1.0 : 0.0;
    }
#pragma unroll
    for (int i = 0; i < WINDOW; i++) {
      double least = 1e-13 * g[i][i], pivot = i < count ? g[i][i] + a.ridge * g[i][i] : 1.0;
      // g[i][j], j < i, are L D by now.
#pragma unroll
      for (int j = 0; j < i; j++) pivot -= g[i][j] * g[i][j] * inverse[j];
      fine = fine && pivot > least;
      inverse[i] = reciprocal(pivot);
#pragma unroll
      for (int j = 0; j < i; j++) w[i] -= g[i][j] * inverse[j] * w[j];
#pragma unroll
      for (int below = i + 1; below < WINDOW; below++)
#pragma unroll
        for (int j = 0; j < i; j++) g[below][i] -= g[below][j] * g[i][j] * inverse[j];
    }
    double total = 0.0;
#pragma unroll
    for (int i = WINDOW; i-- > 0;) {
      w[i] *= inverse[i];
#pragma unroll
      for (int j = i + 1; j < WINDOW; j++) w[i] -= g[j][i] * inverse[i] * w[j];
      total += w[i];
    }
    double whole = reciprocal(total), older = 1.0, size = total < 0.0 ? -total : total;
#pragma unroll
    for (int age = 0; age < KEPT; age++) {
      bool there = age + 1 < count;
      older -= there ? w[age] * whole : 0.0;
      k.steps[age] = there ? (float)(-older * (double)k.backs[((int)k.place + KEPT - age) % KEPT]) : 0.0f;
    }
    return fine && size <= DBL_MAX && size >= DBL_MIN;
  }
  /// The combination of images becomes the argument; what this thread says of it.
  DEV uint32_t combine() {
    const Known& k = known();
    float steps[KEPT];
    uint32_t place = k.place;
    bool positive = true, were_positive = true, finite = true;
#pragma unroll
    for (int age = 0; age < KEPT; age++) steps[age] = k.steps[age];
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float x = f[2 * p], y = f[2 * p + 1];
      bool own = owns(p / NT);
      were_positive &= !own || (x > 0.0f && y > 0.0f);
      if (k.count) {
#pragma unroll
        for (int age = 0; age < KEPT; age++) {
          float2 moved = unpack_f16(word(difference_at((place + KEPT - age) % KEPT, p)));
          x = fmaf(steps[age], moved.x, x);
          y = fmaf(steps[age], moved.y, y);
        }
      }
      positive &= !own || (x > 0.0f && y > 0.0f);
      finite &= fabsf(x) <= FLT_MAX && fabsf(y) <= FLT_MAX;
      z[2 * p] = x, z[2 * p + 1] = y;
    }
    return (finite ? 0 : NOT_FINITE) | (positive ? 0 : NOT_POSITIVE) | (were_positive ? 0 : WAS_NOT);
  }
  DEV void plain_step() {
#pragma unroll
    for (int i = 0; i < 2 * PAIRS; i++) z[i] = f[i];
  }

  DEV void write_answer(uint32_t place) const {
    float* to = a.state + (size_t)place * (grid_size() / CL) * (SIDE * SIDE * C);
#pragma unroll
    for (int p = 0; p < PAIRS; p++)
      if (owns(p / NT)) *reinterpret_cast<float2*>(to + global(p)) = make_float2(f[2 * p], f[2 * p + 1]);
  }

  DEV void run() {
    // For all blocks alike.
    if (a.together && a.together->known) return;
    begin();
    float parts[VALUES] = {};
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
      float2 x = owns(p / NT) ? *reinterpret_cast<const float2*>(a.start + global(p)) : make_float2(0.0f, 0.0f);
      z[2 * p] = x.x, z[2 * p + 1] = x.y;
      parts[5] = fmaf(x.x, x.x, fmaf(x.y, x.y, parts[5]));
      // NaN if it is not finite.
      float2 y = pair(a.drive, p);
      parts[4] = fmaf(y.x, 0.0f, fmaf(y.y, 0.0f, parts[4]));
    }
    if (thread_index() == 0) {
      Known& k = known();
      k.count = k.newest = k.place = k.accelerated = k.since = 0;
      k.residual = k.difference = k.size = 0.0;
      k.best = INFINITY;
    }
    sum_up(parts);
    if (thread_index() == 0) {
      known().scale = argument_scale(known().sums[0][5]);
      known().spoiled = known().sums[0][4] != 0.0 || *a.bad;
    }
    block_barrier();
    put(known().scale, 0);
#pragma unroll 1
    for (uint32_t iteration = 1;; iteration++) {
      apply(known().scale);
      if (iteration == 1) {
        // The first residual has none before it that its size could be taken from. Its difference is never used.
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) before[i] = f[i];
#pragma unroll
        for (int v = 0; v < VALUES; v++) parts[v] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) parts[4] = fmaf(f[i] - z[i], f[i] - z[i], parts[4]);
        sum_up(parts);
        if (thread_index() == 0) known().to = pair_scale(known().sums[0][4]);
        block_barrier();
      }
      put_pair(parts);
      sum_up(parts);
      decide(iteration);
      block_barrier();
      const Known& k = known();
      if (!k.helped) {
#pragma unroll
        for (int i = 0; i < 2 * PAIRS; i++) f[i] = before[i];
      }
      if (a.together && iteration + ANSWERS > limit) write_answer(iteration % ANSWERS);
      if (k.ended) break;
#pragma unroll
      for (int i = 0; i < 2 * PAIRS; i++) before[i] = f[i];
      bool solved = k.solved;
      uint32_t vote = 0;
      if (solved) vote = combine(); else plain_step();
      bool accepted = put(k.scale, vote);
      if (!accepted) {
        plain_step();
        put(k.scale, 0);
      }
      if (thread_index() == 0) known().accelerated = solved && accepted;
    }
    if (!a.together) write_answer(0);
  }
};

// The kernels for one shape.
#define ANDERSON_ON_CHIP(name, tiles, cluster, kind, normalised)                                                                                          \
  extern "C" __global__ void __launch_bounds__(512, 1) __cluster_dims__(cluster, 1, 1) onchip_anderson_##name(const __grid_constant__ OnchipAnderson a) { \
    static_assert(AndersonOnChip<tiles, kind, normalised>::CL == cluster, "cluster");                                                                     \
    AndersonOnChip<tiles, kind, normalised> solve(a);                                                                                                     \
    solve.run();                                                                                                                                          \
  }
#define ANDERSON_KERNELS(shape, tiles, cluster)                                        \
  ANDERSON_ON_CHIP(solve_##shape, tiles, cluster, ANDERSON_FORWARD, false)             \
  ANDERSON_ON_CHIP(solve_normalised_##shape, tiles, cluster, ANDERSON_FORWARD, true)   \
  ANDERSON_ON_CHIP(adjoint_##shape, tiles, cluster, ANDERSON_ADJOINT, false)           \
  ANDERSON_ON_CHIP(adjoint_normalised_##shape, tiles, cluster, ANDERSON_ADJOINT, true)
