// The convolutional solve of conv_core.cuh (same method, same decisions) on Hopper's warpgroup products (wgmma). Differences:
//
//   * Changes lie in shared memory as [8 channels][padded pixel][8 channels], so that a tap is a pixel offset of 16 bytes and no swizzle is
//     needed. A product is 64 pixels x C outputs x 16 inputs: 8 groups of 8 neighbouring pixels at a uniform distance
//     (WIDE = 0: 8 x 8 pixels, 1: a row of 64, 2: 64 consecutive padded pixels, those in the margin being thrown away).
//   * The products run asynchronously: all MT tiles of a warpgroup are issued at once, and the pointwise part of a tile runs while the tensor
//     cores work on the next ones. Only the last tile's pointwise part is exposed.
//   * Passes over y read all of a thread's numbers at once (the accumulators are free then), not 12 at a time with a full latency each;
//     the size of the first image comes from a plain sweep; the result is written in the same pass as its norm.
//   * The low halves of the weights stay in shared memory too.
//   * FAST: the change of tanh over a small step from one tanh.approx at the middle, see tanh_step.
//
// Count, 48 x 32 x 32, half an image per block: 8 tiles x 27 products; a product of N = 48 takes 24 tensor cycles and 16 (A) + 12 (B) cycles of shared
// memory: 6050 cycles, 3.4 us at 1.8 GHz; pointwise 24576 numbers x 24 cycles (3 special functions) / 128 lanes = 4600 cycles, three quarters hidden. 2 waves.
#pragma once
#include "conv_core.cuh"

template <int C_, int H_, int W_, int CL_, int GROUPS_, int MT_, int WIDE_> struct WgShape {
  static constexpr bool WG = true;
  static constexpr int C = C_, H = H_, W = W_, CL = CL_, GROUPS = GROUPS_, MT = MT_, WIDE = WIDE_;
  static constexpr int WARPS = 4 * GROUPS, THREADS = 128 * GROUPS;
  static constexpr int ROWS = H / CL, PITCH = WIDE == 2 ? W + 1 : W + 2;  // consecutive pixels: one margin between rows is enough
  static constexpr int PIXELS = (ROWS + 2) * PITCH + (WIDE == 2 ? 1 : 0);
  static constexpr int OWN = ROWS * W;
  static constexpr int TILES = WIDE == 2 ? (ROWS * PITCH + 63) / 64 : OWN / 64;
  static constexpr bool FULL = TILES == GROUPS * MT && WIDE != 2;
  static constexpr int KC = C / 16, NT = C / 8;
  static constexpr int PLANE = PIXELS * 16, BUF = PLANE * NT, WEIGHTS = 9 * C * C * 2;
  static constexpr int SLOTS = 2 * CL * WARPS * 8;
  static constexpr int FLOWS = 2 * BUF + 2 * WEIGHTS + SLOTS;  // two byte-counting barriers
  static constexpr int SMEM = FLOWS + 16;
  static constexpr int NEXT8 = WIDE == 0 ? PITCH * 16 : 128;
  static_assert(H % CL == 0 && (CL == 1 || ROWS > 1) && C % 16 == 0 && GROUPS * MT >= TILES, "shape");
  static_assert(WIDE != 0 || (ROWS % 8 == 0 && W % 8 == 0), "8 x 8 tiles");
  static_assert(WIDE != 1 || W == 64, "rows of 64");
  static_assert(SMEM <= 232448, "more shared memory than a Hopper block has");
};

/// tanh(a + d) - tanh(a), |d| <= 1/4, to about 1e-3 of d: with t = tanh(a + d/2) and h = tanh(d/2) it is 2 h (1 - t^2) / (1 - t^2 h^2).
DEV float tanh_step(float a, float d) {
  float t = tanh_approx(fmaf(0.5f, d, a)), t2 = t * t, x = d * d;
  return d * (1.0f - t2) * fmaf(x, fmaf(0.25f, t2, -1.0f / 12), 1.0f);
}

template <class S, int KIND, bool FLOW = false, bool FAST = false> struct ConvWg {
  static constexpr float LOW = 2048.0f;
  const ConvArgs& a;
  unsigned char* sm;
  uint32_t base;
  int rank, sample, warp, lane, group;
  float u[S::MT][S::NT][4];
  float acc[S::MT][S::NT][4];
  int turns;              // of the slots and of the byte-counting barriers
  __device__ explicit ConvWg(const ConvArgs& args) : a(args) {}

  // ---- where things are ----
  /// Tiles are dealt in turn.
  DEV int tile(int m) const { return m * S::GROUPS + group; }
  DEV bool has(int m) const { return S::FULL || (m + 1) * S::GROUPS <= S::TILES || tile(m) < S::TILES; }
  /// Padded pixel of tap (0, 0) for the tile's first row.
  /// (A tile that is not there stands for tile 0 and is computed for nothing: a product left out on a condition makes the compiler wait for every one.)
  DEV int origin(int m) const {
    int t = has(m) ? tile(m) : 0;
    if (S::WIDE == 0) return (t / (S::W / 8)) * 8 * S::PITCH + (t % (S::W / 8)) * 8;
    return S::WIDE == 1 ? t * S::PITCH : t * 64;
  }
  struct Place { int row, col; bool own; };
  DEV Place place(int m, int half) const {
    int r = opaque((warp & 3) * 16 + (lane >> 2) + 8 * half), t = tile(m);
    if (S::WIDE == 0) return Place{(t / (S::W / 8)) * 8 + (r >> 3), (t % (S::W / 8)) * 8 + (r & 7), true};
    if (S::WIDE == 1) return Place{t, r, true};
    int q = t * 64 + r, row = q / S::PITCH, col = q % S::PITCH;
    return Place{row, col, row < S::ROWS && col < S::W};
  }
  /// Byte offset of this lane's pair of n-tile 0 in a buffer.
  DEV uint32_t inside(const Place& p) const { return ((p.row + 1) * S::PITCH + p.col + 1) * 16 + (lane & 3) * 4; }
  DEV size_t global(const Place& p) const { return ((size_t)sample * S::H * S::W + (size_t)rank * S::OWN + p.row * S::W + p.col) * S::C + (lane & 3) * 2; }
  DEV void sync() const { if (S::CL > 1) cluster_barrier(); else block_barrier(); }

  DEV void begin() {
    sm = dyn_smem();
    base = smem_addr(sm);
    rank = S::CL > 1 ? (int)cluster_rank() : 0;
    int cluster = block_index() / S::CL;
    sample = a.order ? a.order[cluster] : cluster;
    warp = warp_uniform(thread_index() >> 5);
    group = warp >> 2;
    lane = thread_index() & 31;
    turns = 0;
    if (S::CL > 1 && FLOW && thread_index() == 0) { flow_init(base + S::FLOWS); flow_init(base + S::FLOWS + 8); }
    uint4* dst = reinterpret_cast<uint4*>(sm + 2 * S::BUF);
    constexpr int COUNT = S::WEIGHTS / 16;
#pragma unroll 4
    for (int i = thread_index(); i < 2 * COUNT; i += S::THREADS) dst[i] = read_only(i < COUNT ? a.high + i : a.low + (i - COUNT));
    dst = reinterpret_cast<uint4*>(sm);
    for (int i = thread_index(); i < 2 * S::BUF / 16; i += S::THREADS) dst[i] = uint4{0, 0, 0, 0};
    sync();
  }

  // ---- products: acc[m] = weights (side) * buffer, rows of taps [first, last), all tiles; a commit per tile ----
  template <bool UNROLL> DEV void issue(int m, int buffer, int side, int first, int last, bool keep) {
    uint64_t from = wgmma_factor(base + buffer * S::BUF + origin(m) * 16, S::PLANE, S::NEXT8);
    uint64_t weights = wgmma_factor(base + 2 * S::BUF + side * S::WEIGHTS, S::C * 16, 128);
    from += first * S::PITCH;
    weights += first * (3 * S::NT * S::C);
    int kept = keep ? 1 : 0;
    // Unrolled where tiles are waited for one by one: in a loop the compiler commits after every round and miscounts (too early a wait is not wrong, but slow).
    constexpr int UNROLLED = UNROLL ? 3 : 1;
#pragma unroll UNROLLED
    for (int dy = first; dy < last; dy++) {
#pragma unroll
      for (int dx = 0; dx < 3; dx++)
#pragma unroll
        for (int kc = 0; kc < S::KC; kc++) {
          wgmma_f16(acc[m], from + (dx + kc * 2 * (S::PLANE / 16)), weights + (dx * S::NT + 2 * kc) * S::C, kept);
          kept = 1;
        }
      from += S::PITCH;
      weights += 3 * S::NT * S::C;
    }
  }
  /// The accumulators are where they will be, before the first product is issued.
  DEV void ready() {
#pragma unroll
    for (int m = 0; m < S::MT; m++) wgmma_ready(acc[m]);
  }
  /// u += scale (sum), waiting for everything.
  DEV void sums(int buffer, int side, int first, int last, float scale, bool two) {
    ready();
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
      issue<false>(m, buffer, side, first, last, false);
      if (two) issue<false>(m, 1, 0, 0, 3, true);
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
      wgmma_ready(acc[m]);
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) u[m][n][k] = fmaf(acc[m][n][k], scale, u[m][n][k]);
    }
  }

  // ---- buffers ----
  DEV void put(int buffer, uint32_t in, int n, uint32_t value) const { *reinterpret_cast<uint32_t*>(sm + buffer * S::BUF + n * S::PLANE + in) = value; }
  DEV uint32_t get(int buffer, uint32_t in, int n) const { return *reinterpret_cast<const uint32_t*>(sm + buffer * S::BUF + n * S::PLANE + in); }
  /// Into the neighbour's halo; counted: as part of the next total.
  template <bool COUNTED> DEV void share(int buffer, const Place& p, uint32_t in) const {
    if (S::CL == 1) return;
    bool above = p.row == 0 && rank > 0, below = p.row == S::ROWS - 1 && rank < S::CL - 1;
    if (above || below) {
      uint32_t to = base + buffer * S::BUF + in + (above ? S::ROWS * S::PITCH * 16 : -S::ROWS * S::PITCH * 16), other = above ? rank - 1 : rank + 1;
#pragma unroll
      for (int n = 0; n < S::NT; n++) {
        if (COUNTED && FLOW) flow_store(to + n * S::PLANE, base + S::FLOWS + (turns & 1) * 8, other, get(buffer, in, n));
        else store_remote(to + n * S::PLANE, other, get(buffer, in, n));
      }
    }
  }

  // ---- the map ----
  static DEV float2 pair(const float* p, size_t at) { return read_only(reinterpret_cast<const float2*>(p + at)); }
  DEV float2 begin_at(size_t at) const { return a.from ? pair(a.from, at) : make_float2(a.start, a.start); }
  /// acc = y (or v), all loads under way at once.
  DEV void load_y() {
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Place p = place(m, half);
        // Any address where there is no pixel: accumulators that are set on a condition make the compiler wait for every product.
        const float* from = a.y + (has(m) && p.own ? global(p) : 0);
#pragma unroll
        for (int n = 0; n < S::NT; n++) { float2 y = pair(from, n * 8); acc[m][n][2 * half] = y.x; acc[m][n][2 * half + 1] = y.y; }
      }
  }
  /// F at sums (u0, u1), y at hand.
  DEV float2 image(float u0, float u1, float y0, float y1, float2 slope) const {
    if (KIND == ADJOINT) return make_float2(slope.x * (u0 + y0), slope.y * (u1 + y1));
    float t0 = tanh_exact(u0) + a.shift, t1 = tanh_exact(u1) + a.shift;
    return KIND == INNER ? make_float2(t0, t1) : make_float2(t0 + y0, t1 + y1);
  }
  /// Calls f(place, offset inside a buffer, index in the batch, n, slope, u0, u1, c0, c1) for a tile's pairs, then after(place, offset) per pixel.
  template <class F, class G> DEV void each_of(int m, F&& f, G&& after) {
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
        for (int n = 0; n < S::NT; n++) f(in, at + n * 8, n, slope[n], u[m][n][2 * half], u[m][n][2 * half + 1], acc[m][n][2 * half], acc[m][n][2 * half + 1]);
        after(p, in);
        compiler_fence();
      }
    }
  }
  template <class F, class G> DEV void each(F&& f, G&& after) {
#pragma unroll
    for (int m = 0; m < S::MT; m++) each_of(m, f, after);
  }

  // ---- sums over the image; contains the barrier ----
  /// halo: border rows have been shared (counted) since the last one.
  DEV float2 total(float one, float two, bool halo) {
    one = warp_sum(one);
    two = warp_sum(two);
    constexpr int PARTS = S::CL * S::WARPS;
    uint32_t slots = 2 * S::BUF + 2 * S::WEIGHTS + (turns & 1) * PARTS * 8, bar = base + S::FLOWS + (turns & 1) * 8;
    int mine = rank * S::WARPS + warp;
    if (S::CL == 1) {
      if (lane == 0) *reinterpret_cast<float2*>(sm + slots + mine * 8) = make_float2(one, two);
    } else if (lane < S::CL) {
      if (FLOW) {
        flow_store(base + slots + mine * 8, bar, lane, bits_of(one));
        flow_store(base + slots + mine * 8 + 4, bar, lane, bits_of(two));
      } else {
        store_remote(base + slots + mine * 8, lane, bits_of(one));
        store_remote(base + slots + mine * 8 + 4, lane, bits_of(two));
      }
    }
    if (S::CL == 1 || FLOW) {
      // Own stores are ordered by the block's barrier, those of other blocks by their bytes' arrival. Whoever has all parts of a turn knows that
      // every warp of the cluster has done with the turn before: nothing can come into a buffer or slot that is still being read.
      if (S::CL > 1 && thread_index() == 0) flow_expect(bar, PARTS * 8 + (halo ? ((rank > 0) + (rank < S::CL - 1)) * S::W * S::C * 2 : 0));
      async_fence_own();
      block_barrier();
      if (S::CL > 1) { flow_wait(bar, (turns >> 1) & 1); async_fence_own(); }
    } else {
      async_fence();
      cluster_barrier();
      async_fence();
    }
    float2 sum = make_float2(0.0f, 0.0f);
    for (int i = lane; i < PARTS; i += 32) {
      float2 part = *reinterpret_cast<const float2*>(sm + slots + i * 8);
      sum.x += part.x;
      sum.y += part.y;
    }
    turns++;
    return make_float2(warp_uniform(warp_sum(sum.x)), warp_uniform(warp_sum(sum.y)));
  }

  /// Norms of the start and of the image of sums zero, in one plain sweep over the band.
  DEV float2 first_norms() {
    float start = 0.0f, size = 0.0f;
    size_t first = ((size_t)sample * S::H * S::W + (size_t)rank * S::OWN) * S::C;
    auto quad = [&](const float* p, int i) { return read_only(reinterpret_cast<const float4*>(p + first) + i); };
#pragma unroll 4
    for (int i = thread_index(); i < S::OWN * S::C / 4; i += S::THREADS) {
      float4 y = quad(a.y, i), z = a.from ? quad(a.from, i) : make_float4(a.start, a.start, a.start, a.start), d = KIND == ADJOINT ? quad(a.slope, i) : y;
      float in[4] = {y.x, y.y, y.z, y.w}, dd[4] = {d.x, d.y, d.z, d.w}, zz[4] = {z.x, z.y, z.z, z.w};
#pragma unroll
      for (int k = 0; k < 4; k++) {
        float f = KIND == ADJOINT ? dd[k] * in[k] : KIND == INNER ? 1.0f + fabsf(a.shift) : in[k] + a.shift;  // inner: a bound
        size = fmaf(f, f, size);
        start = fmaf(zz[k], zz[k], start);
      }
    }
    float2 t = total(start, size, false);
    return make_float2(sqrt_exact(t.x), sqrt_exact(t.y));
  }

  template <bool START> DEV float2 refresh(float scale, bool convolves, bool fully, float change_scale) {
    if (!START && KIND != INNER) load_y();
    each([&](uint32_t in, size_t at, int n, float2 slope, float& u0, float& u1, float& c0, float& c1) {
      float2 z = START ? begin_at(at) : image(u0, u1, c0, c1, slope);
      z.x *= scale;
      z.y *= scale;
      uint32_t high = pack_f16(z.x, z.y);
      float2 h = unpack_f16(high);
      put(0, in, n, high);
      put(1, in, n, pack_f16((z.x - h.x) * LOW, (z.y - h.y) * LOW));
    }, [&](const Place& p, uint32_t in) { share<false>(0, p, in); share<false>(1, p, in); });
    async_fence();
    sync();
    async_fence();
    float back = inverse_power(scale);
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) u[m][n][k] = 0.0f;
    if (convolves) {
      // In parts: the tensor cores truncate while they add, so no sum of theirs should get long. The last part is that of the low halves.
#pragma unroll 1
      for (int part = 0; part < (fully ? 4 : 3); part++) sums(0, part == 3, part == 3 ? 0 : part, part == 3 ? 3 : part + 1, part == 3 ? back / LOW : back, part == 3);
    }
    // Both buffers have been read by all; now the changes go into the first.
    sync();
    float difference = 0.0f, size = 0.0f;
    load_y();
    each([&](uint32_t in, size_t, int n, float2 slope, float& u0, float& u1, float& c0, float& c1) {
      if (KIND == INNER) { u0 += c0; u1 += c1; }
      float2 f = image(u0, u1, c0, c1, slope), high = unpack_f16(get(0, in, n)), low = unpack_f16(get(1, in, n));
      float d0 = f.x - fmaf(low.x, 1.0f / LOW, high.x) * back, d1 = f.y - fmaf(low.y, 1.0f / LOW, high.y) * back;
      difference = fmaf(d0, d0, fmaf(d1, d1, difference));
      size = fmaf(f.x, f.x, fmaf(f.y, f.y, size));
      put(0, in, n, pack_f16(d0 * change_scale, d1 * change_scale));
    }, [&](const Place& p, uint32_t in) { share<true>(0, p, in); });
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
      wgmma_wait<S::MT - 1 - M>();
      wgmma_ready(acc[M]);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Place p = place(M, half);
        // Whether every step of this warp's 8 pixels is small, for the short formula.
        bool small = false;
        if (FAST && KIND != ADJOINT) {
          float top = 0.0f;
#pragma unroll
          for (int n = 0; n < S::NT; n++) top = fmaxf(top, fmaxf(fabsf(acc[M][n][2 * half]), fabsf(acc[M][n][2 * half + 1])));
          small = !warp_any(!(top * back <= 0.25f));
        }
        if (has(M) && p.own) {
          uint32_t in = inside(p);
          auto step = [&](int n, float d0, float d1) {
            difference = fmaf(d0, d0, fmaf(d1, d1, difference));
            put(buffer ^ 1, in, n, pack_f16(d0 * change_scale, d1 * change_scale));
          };
          if (KIND != ADJOINT && FAST && small) {
#pragma unroll
            for (int n = 0; n < S::NT; n++) {
              float &u0 = u[M][n][2 * half], &u1 = u[M][n][2 * half + 1], c0 = acc[M][n][2 * half] * back, c1 = acc[M][n][2 * half + 1] * back;
              step(n, tanh_step(u0, c0), tanh_step(u1, c1));
              u0 += c0;
              u1 += c1;
            }
          } else {
#pragma unroll
            for (int n = 0; n < S::NT; n++) {
              float &u0 = u[M][n][2 * half], &u1 = u[M][n][2 * half + 1], c0 = acc[M][n][2 * half], c1 = acc[M][n][2 * half + 1];
              float v0 = fmaf(c0, back, u0), v1 = fmaf(c1, back, u1);
              if (KIND == ADJOINT) { float2 s = slope[half][KIND == ADJOINT ? n : 0]; step(n, s.x * (c0 * back), s.y * (c1 * back)); }
              else step(n, tanh_change(u0, v0), tanh_change(u1, v1));
              u0 = v0;
              u1 = v1;
            }
          }
          share<true>(buffer ^ 1, p, in);
        }
        compiler_fence();
      }
      finish_tile<M + 1>(buffer, back, change_scale, difference);
    }
  }
  DEV float advance(int buffer, float scale, float change_scale) {
    ready();
    wgmma_fence();
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
      issue<true>(m, buffer, 0, 0, 3, false);
      wgmma_commit();
    }
    float difference = 0.0f;
    finish_tile<0>(buffer, inverse_power(scale), change_scale, difference);
    return total(difference, 0.0f, true).x;
  }

  /// Writes the state (and the extra); gives its norm.
  DEV float write() {
    float size = 0.0f;
    if (KIND != INNER) load_y();
    each([&](uint32_t, size_t at, int, float2 slope, float& u0, float& u1, float& c0, float& c1) {
      float2 z = image(u0, u1, c0, c1, slope);
      size = fmaf(z.x, z.x, fmaf(z.y, z.y, size));
      *reinterpret_cast<float2*>(a.state + at) = z;
      if (a.extra) {
        float2 e;
        if (KIND == ADJOINT) e = make_float2(u0 + c0, u1 + c1);
        else { float t0 = tanh_exact(u0), t1 = tanh_exact(u1); e = make_float2(fmaf(-t0, t0, 1.0f), fmaf(-t1, t1, 1.0f)); }
        *reinterpret_cast<float2*>(a.extra + at) = e;
      }
    }, [](const Place&, uint32_t) {});
    return sqrt_exact(total(size, 0.0f, false).x);
  }

  DEV void run() {
    constexpr float ROUNDING = (FAST && KIND != ADJOINT ? 2.0f : 1.0f) / 2048.0f;
    begin();
    float per_number = rsqrtf((float)(S::H * S::W * S::C));
    float2 norms = first_norms();
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) u[m][n][k] = acc[m][n][k] = 0.0f;
    float start_norm = norms.x, size = norms.y;
    float scale = scale_for(fmaxf(start_norm, size) * per_number);
    bool fully = a.from != nullptr;
    float2 sum = refresh<true>(scale_for(start_norm * per_number), start_norm != 0.0f, fully, scale);
    int buffer = 0, iteration = 1, refreshes = 0, since = 0, outcome;
    float difference = sqrt_exact(sum.x), best = FLT_MAX;
    size = sqrt_exact(sum.y);
    float bound = size;
    bool exact = true, written = false;
    float err = fully || start_norm == 0.0f ? 0.0f : size / 2048.0f;
    for (;;) {
      bool again = false;
      if (!(difference < FLT_MAX) || !(bound < FLT_MAX)) { outcome = NOT_FINITE; break; }
      if (difference < best) { best = difference; since = 0; } else since++;
      if (difference <= a.tolerance * (1e-5f + bound)) {
        if (err > 0.05f * a.tolerance * bound) {
          again = true;
        } else {
          if (!exact) { bound = size = write(); exact = written = true; }
          if (difference <= a.tolerance * (1e-5f + size)) { outcome = CONVERGED; break; }
        }
      } else if (difference < 4.0f * err) {
        again = true;
      }
      if (since >= 12 && best <= 1000.0f * FLT_EPSILON * bound) { outcome = STAGNATED; break; }
      if (iteration >= a.max_iterations) { outcome = ITERATION_LIMIT; break; }
      iteration++;
      written = false;
      float next = scale_for(difference * per_number);
      if (again) {
        sum = refresh<false>(scale_for(bound * per_number), true, true, next);
        buffer = 0;
        difference = sqrt_exact(sum.x);
        bound = size = sqrt_exact(sum.y);
        exact = true;
        err = 0.0f;
        refreshes++;
      } else {
        difference = sqrt_exact(advance(buffer, scale, next));
        buffer ^= 1;
        bound += difference;
        exact = false;
        err += ROUNDING * difference;
      }
      scale = next;
    }
    if (!written) size = write();
    if (rank == 0 && thread_index() == 0) a.reports[sample] = Report{iteration, outcome, difference / (1e-5f + size), refreshes};
  }
};

/// Packs W [out][in][3][3]: [tap][8 inputs][output] x 8 f16, high and low. Forward: inputs x outputs; transposed: the other way, the opposite tap.
template <int C> DEV void pack_wg_weights(const float* w, uint4* high, uint4* low, bool transposed) {
  int i = block_index() * block_size() + thread_index();
  if (i >= 9 * C * C / 8) return;
  int n = i % C, k8 = i / C % (C / 8), tap = i / C / (C / 8);
  uint32_t hi[4], lo[4];
  for (int r = 0; r < 4; r++) {
    float h[2], l[2];
    for (int e = 0; e < 2; e++) {
      int k = k8 * 8 + 2 * r + e;
      h[e] = transposed ? w[(k * C + n) * 9 + 8 - tap] : w[(n * C + k) * 9 + tap];
      l[e] = (h[e] - unpack_f16(pack_f16(h[e], 0.0f)).x) * 2048.0f;
    }
    hi[r] = pack_f16(h[0], h[1]);
    lo[r] = pack_f16(l[0], l[1]);
  }
  high[i] = uint4{hi[0], hi[1], hi[2], hi[3]};
  low[i] = uint4{lo[0], lo[1], lo[2], lo[3]};
}

// Name, channels, height, width, blocks per cluster, warpgroups, tiles per warpgroup, kind of tile, flow, short tanh.
//   w: cluster barriers; a: byte-counting barriers; f: those and the short tanh.
#define WG_w48x2(X) X(w48x2, 48, 32, 32, 2, 2, 4, 0, false, false)
#define WG_a48x2(X) X(a48x2, 48, 32, 32, 2, 2, 4, 0, true, false)
#define WG_f48x2(X) X(f48x2, 48, 32, 32, 2, 2, 4, 0, true, true)
#define WG_a32x2(X) X(a32x2, 32, 28, 28, 2, 2, 4, 2, true, false)
#define WG_f32x2(X) X(f32x2, 32, 28, 28, 2, 2, 4, 2, true, true)
#define WG_f32x1(X) X(f32x1, 32, 28, 28, 1, 2, 7, 2, false, true)
#ifdef ONLYWG
#define WG_JOIN(a, b) a##b
#define WG_NAMED(name) WG_JOIN(WG_, name)
#define WG_SHAPES(X) WG_NAMED(ONLYWG)(X)
#else
#define WG_SHAPES(X) WG_w48x2(X) WG_a48x2(X) WG_f48x2(X) WG_a32x2(X) WG_f32x2(X) WG_f32x1(X)
#endif
