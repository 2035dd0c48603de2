// A whole convolutional fixed-point solve in one launch, its state on chip, for Hopper's warpgroup products (wgmma).
//
// The operator is a 3x3 convolution, zero padded. An image is cut into CL bands of rows, one per block of a cluster. The running sum
// u = W z stays in REGISTERS (in the layout of the tensor cores' results) for the whole solve; what goes through shared memory is only the
// CHANGE of the state since the last application, as scaled f16:
//
//     u <- u + Whi f16(z_new - z_old)          (one pass of the tensor cores per iteration, no device memory at all)
//
// f16 keeps 11 bits of a change, so what an iteration adds to the error of u shrinks with the changes. `err` counts 2^-11 of every
// change since the last exact sum, and the rounding of that one. A sample has converged when its residual AND err together are within the tolerance. Where err alone
// takes up half of it, the sum is computed afresh ("refresh") as soon as the residual comes near err: the state is written out, read
// back as z = hi + lo 2^-11 (W likewise), three passes, f32 accurate. A refresh is an ordinary application and counts as one. The first
// application is exact as well: of a constant start W z is a sum of weights, computed when they are packed. So a solve to 1e-3 needs no
// refresh, one to 1e-6 one or two.
//
// The residual's denominator needs the whole image, and y with it: size <= last size + all changes since (triangle inequality), so "not
// converged" is certain without it; the stop itself always uses the exact size. All decisions look at this sample's numbers alone, and
// all sums have a fixed order: same bits from run to run and at any place in a batch.
//
// The changes lie in shared memory as [8 channels][padded pixel][8 channels]: a tap is a pixel offset of 16 bytes, no swizzle is needed. A
// product is 64 pixels x C outputs x 16 inputs: 8 groups of 8 neighbouring pixels at a uniform distance (WIDE = 0: 8 x 8 pixels, 1: a
// row of 64, 2: 64 consecutive padded pixels, those in the margin being thrown away). FLIGHT tiles of a warpgroup are issued at once, and the
// pointwise part of a tile runs while the tensor cores work on the next ones. Changes are double buffered; border rows and every warp's part
// of the residual go straight to the other blocks of the cluster, by stores that count their bytes on a barrier in the target's
// shared memory: no fence of the whole GPU, one synchronisation per iteration.
//
// A kernel's code is unrolled over all sums of a thread and long (200 kB would not stay in the instruction caches, and a part that is
// run once is paid for by its fetches): `restart`, `advance` and `write` have one call each, and what is not bound to the layout of the
// sums (reading a state, norms) is a plain loop.
//
// Count, 48 x 32 x 32, half an image per block: 8 tiles x 27 products; a product of N = 48 takes 24 tensor cycles and 16 (A) + 12 (B)
// cycles of shared memory: 6050 cycles, 3.4 us at 1.8 GHz; pointwise 24576 numbers x 24 cycles (3 special functions) / 128 lanes = 4600
// cycles, three quarters hidden. 128 images are 2 waves of 66 clusters.
#pragma once
#include "onchip_report.cuh"

enum OnchipKind { FORWARD, ADJOINT };  // z = tanh(W z) + y + shift or tanh(W z + y) + shift; q = D (W^T q + v), then g = W^T q + v

struct OnchipArgs {
  const uint4* weights;   // packed for this direction: high halves f16(W), then low ones f16((W - high) 2^11)
  const float* sums;      // W of a state of ones, [row: first, inner, last][column: likewise][C]
  const float* drive;     // y, or v: [n][H][W][C]
  const float* slope;     // adjoint: D
  float* q;               // adjoint: null, or where D g goes, which may be where D is: a number is read for the last time before it is written
  const uint32_t* bad;    // not 0: a weight is not finite
  float* state;           // z, the start in it if `given`; or g
  OnchipReport* reports;
  uint32_t* refreshes;    // may be null
  float shift, start, tolerance;
  uint32_t max_iterations, inner, given;
};

template <int C_, int H_, int W_, int CL_, int GROUPS_, int MT_, int WIDE_, int FLIGHT_> struct OnchipShape {
  static constexpr int C = C_, H = H_, W = W_, CL = CL_, GROUPS = GROUPS_, MT = MT_, WIDE = WIDE_, FLIGHT = FLIGHT_;
  static constexpr int WARPS = 4 * GROUPS, THREADS = 128 * GROUPS;
  static constexpr int ROWS = H / CL, PITCH = WIDE == 2 ? W + 1 : W + 2;  // consecutive pixels: one margin between rows is enough
  static constexpr int PIXELS = (ROWS + 2) * PITCH + (WIDE == 2 ? 1 : 0);
  static constexpr int OWN = ROWS * W;
  static constexpr int TILES = WIDE == 2 ? (ROWS * PITCH + 63) / 64 : OWN / 64;
  static constexpr bool FULL = TILES == GROUPS * MT && WIDE != 2;
  static constexpr int KC = C / 16, NT = C / 8;
  // The last tile of consecutive pixels hangs over the end: its rows need memory behind them.
  static constexpr int BEHIND = WIDE == 2 ? (TILES * 64 + 2 * PITCH + 2 > PIXELS ? TILES * 64 + 2 * PITCH + 2 - PIXELS : 0) : 0;
  static constexpr int PLANE = PIXELS * 16, BUF = PLANE * NT, WEIGHTS = 9 * C * C * 2;
  static constexpr int PARTS = CL * WARPS, SLOTS = 2 * PARTS * 8;
  static constexpr bool BOTH = 2 * BUF + 2 * WEIGHTS + SLOTS + 16 <= 232448;  // both halves of the weights stay
  static constexpr int AT_WEIGHTS = 2 * BUF, AT_SLOTS = AT_WEIGHTS + (BOTH ? 2 : 1) * WEIGHTS, AT_FLOWS = AT_SLOTS + SLOTS;
  static constexpr int SHARED = AT_FLOWS + 16;
  static constexpr int NEXT8 = WIDE == 0 ? PITCH * 16 : 128;
  static_assert(BEHIND * 16 <= WEIGHTS, "reading behind the changes stays in shared memory");
  static_assert(H % CL == 0 && (CL == 1 || ROWS > 1) && C % 16 == 0 && GROUPS * MT >= TILES, "shape");
  static_assert(WIDE != 0 || (ROWS % 8 == 0 && W % 8 == 0), "8 x 8 tiles");
  static_assert(WIDE != 1 || W == 64, "rows of 64");
  static_assert(SHARED <= 232448, "more shared memory than a Hopper block has");
};

/// One block's part of a solve.
template <class S, int KIND> struct OnchipConv {
  static constexpr float LOW = 2048.0f;               // scale of the low halves
  static constexpr float ROUNDING = 1.0f / 2048.0f;   // of f16
  const OnchipArgs& a;
  unsigned char* sm;
  uint32_t base;          // shared address of buffer 0
  int rank, sample, warp, lane, group;
  float u[S::MT][S::NT][4];
  float acc[S::FLIGHT][S::NT][4];  // of tile m: number m % FLIGHT
  int turns;              // of the slots and of the byte-counting barriers
  __device__ explicit OnchipConv(const OnchipArgs& args) : a(args) {}

  // ---- where things are ----
  /// Tiles are dealt in turn.
  DEV int tile(int m) const { return m * S::GROUPS + group; }
  DEV bool has(int m) const { return S::FULL || (m + 1) * S::GROUPS <= S::TILES || tile(m) < S::TILES; }
  /// Padded pixel of tap (0, 0) for the tile's first row. (A tile that is not there stands for tile 0 and is computed for nothing: a
  /// product left out on a condition makes the compiler wait for every one.)
  DEV int origin(int m) const {
    int t = has(m) ? tile(m) : 0;
    if (S::WIDE == 0) return (t / (S::W / 8)) * 8 * S::PITCH + (t % (S::W / 8)) * 8;
    return S::WIDE == 1 ? t * S::PITCH : t * 64;
  }
  struct Place { int row, col; bool own; };
  DEV Place place(int m, int half) const {
    // Opaque, or the compiler computes all addresses before the main loop and spills them.
    int r = opaque((warp & 3) * 16 + (lane >> 2) + 8 * half), t = tile(m);
    if (S::WIDE == 0) return Place{(t / (S::W / 8)) * 8 + (r >> 3), (t % (S::W / 8)) * 8 + (r & 7), true};
    if (S::WIDE == 1) return Place{t, r, has(m)};
    int q = t * 64 + r, row = q / S::PITCH, col = q % S::PITCH;
    return Place{row, col, row < S::ROWS && col < S::W};
  }
  /// Byte offset of this lane's pair of n-tile 0 in a buffer.
  DEV uint32_t inside(const Place& p) const { return ((p.row + 1) * S::PITCH + p.col + 1) * 16 + (lane & 3) * 4; }
  /// Index in the batch's arrays of a row of this band; rows -1 and ROWS are the neighbours'.
  DEV size_t row_at(int row) const { return ((size_t)sample * S::H + (size_t)(rank * S::ROWS + row)) * S::W * S::C; }
  DEV size_t global(const Place& p) const { return row_at(p.row) + p.col * S::C + (lane & 3) * 2; }
  DEV void sync() const { if (S::CL > 1) cluster_barrier(); else block_barrier(); }

  /// Weights (side 0 high, 1 low) on their way into shared memory.
  DEV void fetch(int side, int slot) const {
    const uint4* from = a.weights + side * (S::WEIGHTS / 16);
    uint32_t to = base + S::AT_WEIGHTS + slot * S::WEIGHTS;
    for (int i = thread_index(); i < S::WEIGHTS / 16; i += S::THREADS) copy_async(to + i * 16, from + i);
  }
  DEV void begin() {
    sm = dyn_smem();
    base = smem_addr(sm);
    rank = S::CL > 1 ? (int)cluster_rank() : 0;
    sample = block_index() / S::CL;
    warp = warp_uniform(thread_index() >> 5);
    group = warp >> 2;
    lane = thread_index() & 31;
    turns = 0;
    if (S::CL > 1 && thread_index() == 0) { flow_init(base + S::AT_FLOWS); flow_init(base + S::AT_FLOWS + 8); }
    fetch(0, 0);
    if (S::BOTH) fetch(1, 1);
    uint4* dst = reinterpret_cast<uint4*>(sm);
    for (int i = thread_index(); i < 2 * S::BUF / 16; i += S::THREADS) dst[i] = uint4{0, 0, 0, 0};
    // Nobody may store into this block before it has begun.
    sync();
  }

  // ---- products: acc[m] (+)= weights (slot) * buffer, rows of taps [first, last) ----
  template <bool UNROLL> DEV void issue(int m, int buffer, int slot, int first, int last, bool keep) {
    uint64_t from = wgmma_factor(base + buffer * S::BUF + origin(m) * 16, S::PLANE, S::NEXT8);
    uint64_t weights = wgmma_factor(base + S::AT_WEIGHTS + slot * S::WEIGHTS, S::C * 16, 128);
    from += first * S::PITCH;
    weights += first * (3 * S::NT * S::C);
    int kept = keep ? 1 : 0;
    // Unrolled where tiles are waited for one by one: in a loop the compiler commits after every round and miscounts (too early a wait
    // is not wrong, but slow).
    constexpr int UNROLLED = UNROLL ? 3 : 1;
#pragma unroll UNROLLED
    for (int dy = first; dy < last; dy++) {
#pragma unroll
      for (int dx = 0; dx < 3; dx++)
#pragma unroll
        for (int kc = 0; kc < S::KC; kc++) {
          wgmma_f16(acc[m % S::FLIGHT], from + (dx + kc * 2 * (S::PLANE / 16)), weights + (dx * S::NT + 2 * kc) * S::C, kept);
          kept = 1;
        }
      from += S::PITCH;
      weights += 3 * S::NT * S::C;
    }
  }
  /// The accumulators are where they will be, before the first product is issued.
  DEV void ready() {
#pragma unroll
    for (int m = 0; m < S::FLIGHT; m++) wgmma_ready(acc[m]);
  }
  /// u = W (both buffers), f32 accurate. In parts: the tensor cores truncate while they add, so no sum of theirs should get long. Three
  /// for the high halves, one for what the low ones add.
  DEV void exact_sums(float back) {
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) u[m][n][k] = 0.0f;
#pragma unroll 1
    for (int part = 0; part < 5; part++) {
      // 0, 1, 2: a row of taps, high * high; 3: high weights, low state; 4: low weights, high state.
      bool rows = part < 3;
      if (!S::BOTH && part == 4) replace(1);
      int buffer = part == 3, slot = S::BOTH && part == 4, first = rows ? part : 0, last = rows ? part + 1 : 3;
      float scale = rows ? back : back / LOW;
#pragma unroll
      for (int some = 0; some < S::MT; some += S::FLIGHT) {
        ready();
        wgmma_fence();
#pragma unroll
        for (int m = some; m < S::MT && m < some + S::FLIGHT; m++) issue<false>(m, buffer, slot, first, last, false);
        wgmma_commit();
        wgmma_wait<0>();
        ready();
#pragma unroll
        for (int m = some; m < S::MT && m < some + S::FLIGHT; m++)
#pragma unroll
          for (int n = 0; n < S::NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) u[m][n][k] = fmaf(acc[m % S::FLIGHT][n][k], scale, u[m][n][k]);
      }
    }
    if (!S::BOTH) replace(0);
  }
  /// The only weights in shared memory become those of a side.
  DEV void replace(int side) {
    block_barrier();
    fetch(side, 0);
    copies_arrived();
    async_fence_own();
    block_barrier();
  }

  // ---- buffers ----
  DEV void put(int buffer, uint32_t in, int n, uint32_t value) const {
    *reinterpret_cast<uint32_t*>(sm + buffer * S::BUF + n * S::PLANE + in) = value;
  }
  DEV uint32_t get(int buffer, uint32_t in, int n) const {
    return *reinterpret_cast<const uint32_t*>(sm + buffer * S::BUF + n * S::PLANE + in);
  }
  /// Into the neighbour's halo, counted as part of the next total.
  DEV void share(int buffer, const Place& p, uint32_t in) const {
    if (S::CL == 1) return;
    bool above = p.row == 0 && rank > 0, below = p.row == S::ROWS - 1 && rank < S::CL - 1;
    if (above || below) {
      uint32_t to = base + buffer * S::BUF + in + (above ? S::ROWS * S::PITCH * 16 : -S::ROWS * S::PITCH * 16);
      uint32_t bar = base + S::AT_FLOWS + (turns & 1) * 8, other = above ? rank - 1 : rank + 1;
#pragma unroll
      for (int n = 0; n < S::NT; n++) flow_store(to + n * S::PLANE, bar, other, get(buffer, in, n));
    }
  }
  /// Splits the state of the whole image's array, scaled, into both buffers, the neighbours' border rows too. A plain loop over
  /// chunks of 8 channels. A constant state is not read.
  DEV void split(bool constant, float scale) {
    constexpr int COUNT = (S::ROWS + 2) * S::W * S::NT;
#pragma unroll 4
    for (int i = thread_index(); i < COUNT; i += S::THREADS) {
      int n = i % S::NT, pixel = i / S::NT, row = pixel / S::W - 1, col = pixel % S::W, at = rank * S::ROWS + row;
      if (at < 0 || at >= S::H) continue;
      const float4* from = reinterpret_cast<const float4*>(a.state + row_at(row) + col * S::C + n * 8);
      float4 p = make_float4(a.start, a.start, a.start, a.start), q = p;
      if (!constant) { p = read_latest(from); q = read_latest(from + 1); }
      float z[8] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
      uint32_t hi[4], lo[4];
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float z0 = z[2 * k] * scale, z1 = z[2 * k + 1] * scale;
        hi[k] = pack_f16(z0, z1);
        float2 h = unpack_f16(hi[k]);
        lo[k] = pack_f16((z0 - h.x) * LOW, (z1 - h.y) * LOW);
      }
      uint32_t in = n * S::PLANE + ((row + 1) * S::PITCH + col + 1) * 16;
      *reinterpret_cast<uint4*>(sm + in) = uint4{hi[0], hi[1], hi[2], hi[3]};
      *reinterpret_cast<uint4*>(sm + S::BUF + in) = uint4{lo[0], lo[1], lo[2], lo[3]};
    }
  }

  // ---- the map ----
  static DEV float2 pair(const float* p, size_t at) { return read_only(reinterpret_cast<const float2*>(p + at)); }
  /// acc = y (or v) of FLIGHT tiles, all loads under way at once.
  DEV void load_drive(int some) {
#pragma unroll
    for (int m = some; m < S::MT && m < some + S::FLIGHT; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Place p = place(m, half);
        // Any address where there is no pixel: accumulators that are set on a condition make the compiler wait for every product.
        const float* from = a.drive + (has(m) && p.own ? global(p) : 0);
#pragma unroll
        for (int n = 0; n < S::NT; n++) {
          float2 y = pair(from, n * 8);
          acc[m % S::FLIGHT][n][2 * half] = y.x;
          acc[m % S::FLIGHT][n][2 * half + 1] = y.y;
        }
      }
  }
  /// F at the sum u; an inner y is part of the sum.
  DEV float image(float u0, float y, float slope) const {
    if (KIND == ADJOINT) return slope * (u0 + y);
    return tanh_exact(u0) + (a.inner ? a.shift : y + a.shift);
  }
  /// Calls f(place's offset in a buffer, index in the batch, n, slopes, u0, u1, y0, y1) for this thread's pairs of channels, then
  /// after(place, offset) per pixel.
  /// Without DRIVE, y is not read and means nothing.
  template <bool DRIVE = true, class F, class G> DEV void each(F&& f, G&& after) {
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
      if (DRIVE && m % S::FLIGHT == 0) load_drive(m);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Place p = place(m, half);
        if (has(m) && p.own) {
          uint32_t in = inside(p);
          size_t at = global(p);
          float2 slope[S::NT];
#pragma unroll
          for (int n = 0; n < S::NT; n++) slope[n] = KIND == ADJOINT ? pair(a.slope, at + n * 8) : make_float2(0.0f, 0.0f);
#pragma unroll
          for (int n = 0; n < S::NT; n++)
            f(in, at + n * 8, n, slope[n], u[m][n][2 * half], u[m][n][2 * half + 1], acc[m % S::FLIGHT][n][2 * half],
              acc[m % S::FLIGHT][n][2 * half + 1]);
          after(p, in);
          // Without this the compiler loads ahead for all tiles and runs out of registers.
          compiler_fence();
        }
      }
    }
  }

  // ---- sums over the image, the same bits in every thread of the cluster; contains the barrier ----
  /// halo: border rows have been shared since the last one.
  DEV float2 total(float one, float two, bool halo) {
    one = warp_sum(one);
    two = warp_sum(two);
    uint32_t slots = S::AT_SLOTS + (turns & 1) * S::PARTS * 8, bar = base + S::AT_FLOWS + (turns & 1) * 8;
    int mine = rank * S::WARPS + warp;
    if (S::CL == 1) {
      if (lane == 0) *reinterpret_cast<float2*>(sm + slots + mine * 8) = make_float2(one, two);
    } else if (lane < S::CL) {
      flow_store(base + slots + mine * 8, bar, lane, bits_of(one));
      flow_store(base + slots + mine * 8 + 4, bar, lane, bits_of(two));
    }
    // Own stores are ordered by the block's barrier, those of other blocks by their bytes' arrival. Whoever has all parts of a turn
    // knows that every warp of the cluster has done with the turn before: nothing can come into a buffer or slot that is still being read.
    if (S::CL > 1 && thread_index() == 0)
      flow_expect(bar, S::PARTS * 8 + (halo ? ((rank > 0) + (rank < S::CL - 1)) * S::W * S::C * 2 : 0));
    async_fence_own();
    block_barrier();
    if (S::CL > 1) { flow_wait(bar, (turns >> 1) & 1); async_fence_own(); }
    float2 sum = make_float2(0.0f, 0.0f);
    for (int i = lane; i < S::PARTS; i += 32) {
      float2 part = *reinterpret_cast<const float2*>(sm + slots + i * 8);
      sum.x += part.x;
      sum.y += part.y;
    }
    turns++;
    return make_float2(warp_uniform(warp_sum(sum.x)), warp_uniform(warp_sum(sum.y)));
  }

  static DEV void add(float& sum, float4 x) { sum = fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, fmaf(x.w, x.w, sum)))); }
  DEV float4 latest(size_t first, int i) const { return read_latest(reinterpret_cast<const float4*>(a.state + first) + i); }
  /// The norm of the state in its array.
  DEV float state_norm() {
    float size = 0.0f;
    size_t first = row_at(0);
#pragma unroll 8
    for (int i = thread_index(); i < S::OWN * S::C / 4; i += S::THREADS) add(size, latest(first, i));
    return sqrt_exact(total(size, 0.0f, false).x);
  }
  /// How large the start is, and the first image about: norms of a given start and of y, or D v. A plain sweep over the band.
  DEV float2 first_norms() {
    float start = 0.0f, size = 0.0f;
    size_t first = row_at(0);
    auto quad = [&](const float* p, int i) { return read_only(reinterpret_cast<const float4*>(p + first) + i); };
#pragma unroll 8
    for (int i = thread_index(); i < S::OWN * S::C / 4; i += S::THREADS) {
      float4 y = quad(a.drive, i);
      if (KIND == ADJOINT) {
        float4 d = quad(a.slope, i);
        y = make_float4(y.x * d.x, y.y * d.y, y.z * d.z, y.w * d.w);
      } else if (a.given) {
        add(start, latest(first, i));
      }
      add(size, y);
    }
    float2 t = total(start, size, false);
    return make_float2(sqrt_exact(t.x), sqrt_exact(t.y));
  }

  /// u = W start: a sum of weights, which depends on the borders that a pixel is at.
  DEV void constant_sums() {
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Place p = place(m, half);
        int row = rank * S::ROWS + p.row;
        int which = (row == 0 ? 0 : row == S::H - 1 ? 2 : 1) * 3 + (p.col == 0 ? 0 : p.col == S::W - 1 ? 2 : 1);
        const float* from = a.sums + which * S::C + (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < S::NT; n++) {
          float2 w = pair(from, n * 8);
          u[m][n][2 * half] = a.start * w.x;
          u[m][n][2 * half + 1] = a.start * w.y;
        }
      }
  }

  /// An exact application, from the constant start or from the state as it is in its array. Gives (sum of squared changes, sum of
  /// squared images) and leaves the changes, scaled, in buffer 0. Not finite if y is not.
  DEV float2 restart(bool constant, float scale, float change_scale) {
    split(constant, scale);
    copies_arrived();
    async_fence_own();
    block_barrier();
    float back = inverse_power(scale);
    if (constant) constant_sums(); else exact_sums(back);
    // Both buffers have been read by all; now the changes go into the first.
    sync();
    float difference = 0.0f, size = 0.0f;
    each([&](uint32_t in, size_t, int n, float2 slope, float& u0, float& u1, float& c0, float& c1) {
      if (KIND == FORWARD) {
        size = fmaf(c0 + c1, 0.0f, size);
        if (a.inner) { u0 += c0; u1 += c1; }
      }
      float f0 = image(u0, c0, slope.x), f1 = image(u1, c1, slope.y);
      float2 high = unpack_f16(get(0, in, n)), low = unpack_f16(get(1, in, n));
      float d0 = f0 - fmaf(low.x, 1.0f / LOW, high.x) * back, d1 = f1 - fmaf(low.y, 1.0f / LOW, high.y) * back;
      difference = fmaf(d0, d0, fmaf(d1, d1, difference));
      size = fmaf(f0, f0, fmaf(f1, f1, size));
      put(0, in, n, pack_f16(d0 * change_scale, d1 * change_scale));
    }, [&](const Place& p, uint32_t in) { share(0, p, in); });
    return total(difference, size, true);
  }

  template <int M> DEV void finish_tile(int buffer, float back, float change_scale, float& difference) {
    if constexpr (M < S::MT) {
      // The slopes come while the tensor cores are at work.
      float2 slope[2][KIND == ADJOINT ? S::NT : 1];
      if (KIND == ADJOINT) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
          Place p = place(M, half);
          size_t at = has(M) && p.own ? global(p) : 0;
#pragma unroll
          for (int n = 0; n < S::NT; n++) slope[half][KIND == ADJOINT ? n : 0] = pair(a.slope, at + n * 8);
        }
      }
      constexpr int A = M % S::FLIGHT;
      wgmma_wait<(S::MT - M < S::FLIGHT ? S::MT - M : S::FLIGHT) - 1>();
      wgmma_ready(acc[A]);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Place p = place(M, half);
        if (has(M) && p.own) {
          uint32_t in = inside(p);
#pragma unroll
          for (int n = 0; n < S::NT; n++) {
            float &u0 = u[M][n][2 * half], &u1 = u[M][n][2 * half + 1], c0 = acc[A][n][2 * half], c1 = acc[A][n][2 * half + 1], d0, d1;
            float v0 = fmaf(c0, back, u0), v1 = fmaf(c1, back, u1);
            if (KIND == ADJOINT) {
              float2 s = slope[half][KIND == ADJOINT ? n : 0];
              d0 = s.x * (c0 * back);
              d1 = s.y * (c1 * back);
            } else {
              d0 = tanh_change(u0, v0);
              d1 = tanh_change(u1, v1);
            }
            u0 = v0;
            u1 = v1;
            difference = fmaf(d0, d0, fmaf(d1, d1, difference));
            put(buffer ^ 1, in, n, pack_f16(d0 * change_scale, d1 * change_scale));
          }
          share(buffer ^ 1, p, in);
        }
        compiler_fence();
      }
      if constexpr (M + S::FLIGHT < S::MT) {
        wgmma_ready(acc[A]);
        wgmma_fence();
        issue<true>(M + S::FLIGHT, buffer, 0, 0, 3, false);
        wgmma_commit();
      }
      finish_tile<M + 1>(buffer, back, change_scale, difference);
    }
  }
  /// One application from the changes in `buffer` (scaled by `scale`); leaves the next ones in the other. Gives the sum of their squares.
  DEV float advance(int buffer, float scale, float change_scale) {
    ready();
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < S::FLIGHT; m++) {
      issue<true>(m, buffer, 0, 0, 3, false);
      wgmma_commit();
    }
    float difference = 0.0f;
    finish_tile<0>(buffer, inverse_power(scale), change_scale, difference);
    return total(difference, 0.0f, true).x;
  }

  /// Writes the image, or g = u + v in the end; gives its norm.
  DEV float write(bool gradient) {
    float size = 0.0f;
    each([&](uint32_t, size_t at, int, float2 slope, float& u0, float& u1, float& c0, float& c1) {
      if (gradient) slope = make_float2(1.0f, 1.0f);
      float z0 = image(u0, c0, slope.x), z1 = image(u1, c1, slope.y);
      size = fmaf(z0, z0, fmaf(z1, z1, size));
      *reinterpret_cast<float2*>(a.state + at) = make_float2(z0, z1);
    }, [](const Place&, uint32_t) {});
    return sqrt_exact(total(size, 0.0f, false).x);
  }

  /// q = D g. A sweep of its own: in `write`, where all sums are in registers, what it takes would make the compiler wait for every
  /// product of the whole kernel (C7511).
  DEV void multiply() {
    size_t first = row_at(0);
#pragma unroll 8
    for (int i = thread_index(); i < S::OWN * S::C / 4; i += S::THREADS) {
      float4 g = latest(first, i), d = read_only(reinterpret_cast<const float4*>(a.slope + first) + i);
      reinterpret_cast<float4*>(a.q + first)[i] = make_float4(d.x * g.x, d.y * g.y, d.z * g.z, d.w * g.w);
    }
  }

  DEV void run() {
    begin();
    float per_number = rsqrtf((float)(S::H * S::W * S::C));
    float2 norms = first_norms();
    // Of the start; of the changes that are being made. |F - start| is at most |y| and what tanh, shift and start can add.
    float around = KIND == ADJOINT ? 0.0f : 1.0f + fabsf(a.shift) + (a.given ? 0.0f : fabsf(a.start));
    float scale = scale_for(norms.x * per_number), change_scale = scale_for(fmaxf(norms.x, norms.y) * per_number + around);
    if (!a.given) scale = scale_for(fabsf(a.start));
    bool bad = *a.bad != 0, starting = true, refresh = false, exact = false, stored = false, ending = false;
    int buffer = 0, since = 0, outcome = -1;
    uint32_t iteration = 0, refreshes = 0;
    float difference = 0.0f, best = FLT_MAX, size = 0.0f, bound = 0.0f, err = 0.0f, last, last_size;
    // No block ends while another still stores into it: the last thing that all do is a `total`, which waits for the parts of all.
#pragma unroll 1
    for (;;) {
      // An application of F, exact or by changes. (The adjoint starts at D v, which is F(0): that one is not counted, as elsewhere.)
      float next = starting ? change_scale : scale_for(difference * per_number);
      if (starting || refresh) {
        float2 sums = restart(starting && !a.given, scale, next);
        buffer = 0;
        difference = sqrt_exact(sums.x);
        bound = size = sqrt_exact(sums.y);
        exact = true;
        err = FLT_EPSILON * size;  // what "exact" means
        // A given start may be much nearer to its image than it could be told: again, with changes that fill their f16s.
        float fitting = scale_for(difference * per_number);
        if (starting && fitting > 64.0f * next) { change_scale = fitting; continue; }
      } else {
        difference = sqrt_exact(advance(buffer, change_scale, next));
        buffer ^= 1;
        bound += difference;
        exact = false;
        err += ROUNDING * difference;
      }
      change_scale = next;
      stored = false;
      if (!ending && (KIND != ADJOINT || !starting)) iteration++;
      if (bad) bound = size = NAN;
      if (difference < best) { best = difference; since = 0; } else since++;
      // How the sample stands. At most two rounds: the second with the exact size, if the first finds that it may have ended.
      bool look;
#pragma unroll 1
      do {
        look = refresh = false;
        if (!ending && iteration > 0) {
          float unit = 1e-5f + bound, target = a.tolerance * unit;
          if (!(difference < FLT_MAX) || !(bound < FLT_MAX)) outcome = ONCHIP_NOT_FINITE;
          else if (difference + err <= target) { if (exact) outcome = ONCHIP_CONVERGED; else look = true; }
          else if (since >= ONCHIP_PATIENCE && best <= ONCHIP_ROUNDING * unit) outcome = ONCHIP_STAGNATED;
          else if (iteration >= a.max_iterations) outcome = ONCHIP_ITERATION_LIMIT;
          else refresh = difference < 4.0f * err && err > 0.5f * target;
        }
        if (((look || refresh || outcome >= 0) && !stored) || ending) {
          size = write(ending);
          stored = exact = true;
          if (!ending && outcome != ONCHIP_NOT_FINITE) bound = size;
        }
      } while (look);
      if (!ending) { last = difference; last_size = bound; }
      // g = W' q + v takes one more product.
      if (ending || (outcome >= 0 && KIND != ADJOINT)) break;
      ending = outcome >= 0;
      if (refresh) { refreshes++; scale = scale_for(bound * per_number); sync(); }
      starting = false;
    }
    if (KIND == ADJOINT && a.q) multiply();
    if (rank == 0 && thread_index() == 0) {
      a.reports[sample] = OnchipReport{iteration, (uint32_t)outcome, (double)last / (1e-5 + (double)last_size)};
      if (a.refreshes) a.refreshes[sample] = refreshes;
    }
  }
};

/// The slopes tanh'(W z) or tanh'(W z + y) at given states, one band per block; bands need nothing of each other.
struct OnchipSlopesArgs {
  const uint4* weights;
  const float* y;
  float* z;          // only read
  float* slopes;
  uint32_t inner;
};
template <class S, bool INNER> DEV void write_slopes(OnchipConv<S, FORWARD>& s, float* slopes) {
  s.template each<INNER>([&](uint32_t, size_t at, int, float2, float& u0, float& u1, float& c0, float& c1) {
    float r0 = tanh_rest(INNER ? u0 + c0 : u0), r1 = tanh_rest(INNER ? u1 + c1 : u1);
    *reinterpret_cast<float2*>(slopes + at) = make_float2(4.0f * r0 * (1.0f - r0), 4.0f * r1 * (1.0f - r1));
  }, [](const typename OnchipConv<S, FORWARD>::Place&, uint32_t) {});
}
template <class S> DEV void onchip_slopes(const OnchipSlopesArgs& args) {
  OnchipArgs a{args.weights, nullptr, args.y, nullptr, nullptr, nullptr, args.z, nullptr, nullptr, 0.0f, 0.0f, 0.0f, 0, args.inner, 1};
  OnchipConv<S, FORWARD> s(a);
  s.begin();
  float scale = scale_for(s.state_norm() * rsqrtf((float)(S::H * S::W * S::C)));
  s.split(false, scale);
  copies_arrived();
  async_fence_own();
  block_barrier();
  s.exact_sums(inverse_power(scale));
  // An outer y does not matter to them.
  if (args.inner) write_slopes<S, true>(s, args.slopes); else write_slopes<S, false>(s, args.slopes);
}

/// Packs W [out][in][3][3] for both directions: [tap][8 inputs][output] x 8 f16, high halves, then low ones; the transposed weights have
/// inputs and outputs exchanged and the opposite tap. One thread per chunk of 8.
template <int C> DEV void onchip_pack(const float* w, uint4* forward, uint4* backward) {
  constexpr int COUNT = 9 * C * C / 8;
  int i = block_index() * block_size() + thread_index();
  if (i >= 2 * COUNT) return;
  bool transposed = i >= COUNT;
  if (transposed) i -= COUNT;
  int n = i % C, k8 = i / C % (C / 8), tap = i / C / (C / 8);
  uint32_t hi[4], lo[4];
#pragma unroll
  for (int r = 0; r < 4; r++) {
    float h[2], l[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
      int k = k8 * 8 + 2 * r + e;
      h[e] = transposed ? w[(k * C + n) * 9 + 8 - tap] : w[(n * C + k) * 9 + tap];
      l[e] = (h[e] - unpack_f16(pack_f16(h[e], 0.0f)).x) * 2048.0f;
    }
    hi[r] = pack_f16(h[0], h[1]);
    lo[r] = pack_f16(l[0], l[1]);
  }
  uint4* to = transposed ? backward : forward;
  to[i] = uint4{hi[0], hi[1], hi[2], hi[3]};
  to[COUNT + i] = uint4{lo[0], lo[1], lo[2], lo[3]};
}
/// W of a state of ones, by where a pixel lies: [row: first, inner, last][column: likewise][out]. One warp per output.
template <int C> DEV void onchip_sums(const float* w, float* sums) {
  int out = (block_index() * block_size() + thread_index()) / 32, lane = thread_index() & 31;
  if (out >= C) return;
  float tap[9];
#pragma unroll
  for (int t = 0; t < 9; t++) {
    float sum = 0.0f;
    for (int in = lane; in < C; in += 32) sum += w[(out * C + in) * 9 + t];
    tap[t] = warp_sum(sum);
  }
  if (lane >= 9) return;
  float sum = 0.0f;
#pragma unroll
  for (int t = 0; t < 9; t++) {
    bool outside = (lane / 3 == 0 && t / 3 == 0) || (lane / 3 == 2 && t / 3 == 2) || (lane % 3 == 0 && t % 3 == 0) || (lane % 3 == 2 && t % 3 == 2);
    sum += outside ? 0.0f : tap[t];
  }
  sums[lane * C + out] = sum;
}
