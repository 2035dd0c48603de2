// A whole convolutional fixed-point solve in one launch: what the forward solve and the adjoint share.
//
// The operator is a 3x3 convolution, zero padded. An image is cut into CL bands of rows, one per block of a cluster. The
// convolution's running sum u = W z stays in REGISTERS (in the layout of the tensor cores' results) for the whole solve; what
// goes through shared memory is only the CHANGE of the state since the last application, as scaled f16:
//
//     u <- u + Whi f16(z_new - z_old)          (one tensor-core pass per iteration)
//
// f16 keeps 11 bits of a change, so what an iteration adds to the error of u shrinks with the changes. A sample's error
// estimate `err` counts 2^-11 of every change since the last exact sum; as soon as the residual comes near it, or the solve
// would end on it, the sum is computed afresh from the whole state ("refresh": z = hi + lo 2^-11, W likewise, three
// passes, f32 accurate). A solve to 1e-6 needs two or three refreshes. The decision looks at this sample's numbers alone.
//
// One cluster barrier per iteration: the changes are double buffered, border rows are stored straight into the neighbour's
// halo, and every warp's part of the residual goes to every block, where all warps add the parts in the same order.
//
// Count, per image and iteration, 48 x 32 x 32: 2*9*48*48*1024 = 42.5 MFLOP (128 images: 5.44 GFLOP; 5.5 us at 990 TFLOP/s,
// about 9 us at the two thirds of it that mma.sync reaches); device memory: nothing (start, end and refresh read y once
// and write z once, 4 bytes each: 25 MB per 128 images, 6 us). Shared memory per k-step and warp (4 x 16 pixels, 48 channels):
// 4 ldmatrix + 3 LDS.128 of 512 bytes = 28 cycles of the SM's 128 B/clk for 24 mma.
#pragma once
#include "dev.cuh"

template <int C_, int H_, int W_, int CL_, int WARPS_, int MT_> struct ConvShape {
  static constexpr bool WG = false;         // packing of the weights
  static constexpr int C = C_, H = H_, W = W_;
  static constexpr int CL = CL_;            // blocks of a cluster = bands of an image
  static constexpr int WARPS = WARPS_;
  static constexpr int MT = MT_;            // tiles of 16 pixels per warp
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int ROWS = H / CL;
  static constexpr int PITCH = W + 2;       // a zero column on each side, a halo row above and below
  static constexpr int PIXELS = (ROWS + 2) * PITCH;
  static constexpr int OWN = ROWS * W;      // pixels of a band
  static constexpr int TILES = (OWN + 15) / 16;
  static constexpr bool FULL = TILES * 16 == OWN && WARPS * MT == TILES;  // no tile hangs over the end
  static constexpr int KC = C / 16;         // k-steps per tap
  static constexpr int NT = C / 8;          // n-tiles
  static constexpr int NP = C / 16;         // pairs of them
  static constexpr int BUF = PIXELS * C * 2;
  static constexpr int WEIGHTS = 9 * C * C * 2;
  static constexpr int SLOTS = 2 * CL * WARPS * 8;
  static constexpr int SMEM = 2 * BUF + WEIGHTS + SLOTS;
  static_assert(H % CL == 0 && (CL == 1 || ROWS > 1) && C % 16 == 0 && WARPS * MT >= TILES && BUF % 16 == 0, "shape");
  static_assert(SMEM <= 232448, "more shared memory than a Hopper block has");

  /// Byte offset of a 16-byte chunk (8 channels) of a padded pixel. Swizzled so that the same chunk of 8 neighbouring pixels
  /// lies in 8 different groups of banks (checked in emu_test).
  static __device__ __host__ constexpr int chunk(int pixel, int c) { return pixel * C * 2 + ((c ^ turn(pixel)) << 4); }
  static __device__ __host__ constexpr int turn(int pixel) {
    return C == 64 ? (pixel & 7) : C == 48 ? ((pixel >> 2) & 1) : C == 32 ? ((pixel >> 1) & 3) : 0;
  }
  /// From the chunk `h` (0 or 1) of a pixel to chunk 2 kc + h.
  static __device__ __host__ constexpr uint32_t along(uint32_t at, int kc) { return C == 48 ? at + kc * 32 : at ^ (kc * 32); }
};

enum Kind { OUTER, INNER, ADJOINT };  // tanh(Wz) + y + shift; tanh(Wz + y) + shift; q = D (W^T q + v)
enum Outcome { CONVERGED = 0, ITERATION_LIMIT = 1, NOT_FINITE = 2, STAGNATED = 3 };

struct Report {
  int iterations;
  int outcome;
  float residual;
  int refreshes;
};

struct ConvArgs {
  const uint4* high;    // packed weights (pack_conv_weights): f16(W)
  const uint4* low;     // f16((W - high) 2^11)
  const float* y;       // injection, or v: [n][H][W][C]
  const float* slope;   // adjoint: D
  const float* from;    // start, [n][H][W][C]; null: the constant `start`
  float* state;         // z, or q
  float* extra;         // forward: slopes 1 - tanh^2, adjoint: g = W^T q + v; may be null
  Report* reports;
  float shift, start, tolerance;
  int max_iterations;
  const int* order;     // sample of each cluster; null: its index
};

/// One block's part of a solve. ABLATE leaves parts of an iteration out, to see what they cost (the result is nonsense): 1 the
/// products, 2 tanh, 4 the cluster barrier.
template <class S, int KIND, int ABLATE = 0> struct ConvSolve {
  static constexpr float LOW = 2048.0f;  // scale of the low halves
  const ConvArgs& a;
  unsigned char* sm;
  uint32_t base;          // shared address of buffer 0
  int rank, sample, warp, lane;
  uint32_t corner[S::MT]; // padded pixel of tap (0, 0) for this lane's ldmatrix row
  float u[S::MT][S::NT][4];
  float acc[S::MT][S::NT][4];
  int parity;             // of the slots

  __device__ explicit ConvSolve(const ConvArgs& args) : a(args) {}

  // ---- where things are ----
  static DEV int row_of(int own) { return own / S::W; }
  static DEV int col_of(int own) { return own % S::W; }
  /// Tiles are dealt in turn, so that where they do not come out even every warp has at most one more than another.
  DEV int tile(int m) const { return m * S::WARPS + warp; }
  DEV int own_pixel(int m, int half) const { return tile(m) * 16 + (lane >> 2) + 8 * half; }
  static DEV bool is_own(int own) { return S::FULL || own < S::OWN; }
  static DEV int padded(int own) { return (row_of(own) + 1) * S::PITCH + col_of(own) + 1; }
  /// Index of channel 0 in the batch's arrays.
  DEV size_t global(int own) const { return ((size_t)sample * S::H * S::W + (size_t)rank * S::OWN + own) * S::C; }

  DEV void sync() const { if (S::CL > 1 && !(ABLATE & 4)) cluster_barrier(); else block_barrier(); }

  DEV void begin() {
    sm = dyn_smem();
    base = smem_addr(sm);
    rank = S::CL > 1 ? (int)cluster_rank() : 0;
    int cluster = block_index() / S::CL;
    sample = a.order ? a.order[cluster] : cluster;
    // Turned from cluster to cluster, so that a left-over tile does not always meet the same quarter of the SM. Only this number
    // decides what a warp computes and where its sums go: the result does not depend on it.
    warp = S::FULL ? thread_index() >> 5 : ((thread_index() >> 5) + cluster) % S::WARPS;
    lane = thread_index() & 31;
    parity = 0;
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
      int own = tile(m) * 16 + (lane & 15);
      if (!is_own(own)) own = 0;  // any pixel: the result is not used
      corner[m] = row_of(own) * S::PITCH + col_of(own);
    }
    uint4* dst = reinterpret_cast<uint4*>(sm);
    for (int i = thread_index(); i < 2 * S::BUF / 16; i += S::THREADS) dst[i] = uint4{0, 0, 0, 0};
    dst = reinterpret_cast<uint4*>(sm + 2 * S::BUF);
    for (int i = thread_index(); i < S::WEIGHTS / 16; i += S::THREADS) dst[i] = read_only(a.high + i);
    // Nobody may store into this block's halo before it was cleared. (Also in the ablation: a block that has not begun, or has ended, has no memory.)
    if (S::CL > 1) cluster_barrier(); else sync();
  }

  // ---- the convolution: acc += weights (buffer), taps [first, last) ----
  template <bool FROM_GLOBAL> DEV void convolve(int buffer, const uint4* global_weights, int first_row, int last_row) {
    const uint4* shared_weights = reinterpret_cast<const uint4*>(sm + 2 * S::BUF);
    uint32_t from = base + buffer * S::BUF;
#pragma unroll 1
    for (int dy = first_row; dy < last_row; dy++) {
#pragma unroll
      for (int dx = 0; dx < 3; dx++) {
        uint32_t at[S::MT];
#pragma unroll
        for (int m = 0; m < S::MT; m++) at[m] = from + S::chunk(corner[m] + dy * S::PITCH + dx, lane >> 4);
#pragma unroll
        for (int kc = 0; kc < S::KC; kc++) {
          int step = ((dy * 3 + dx) * S::KC + kc) * S::NP * 32 + lane;
          uint4 b[S::NP];
#pragma unroll
          for (int j = 0; j < S::NP; j++)
            b[j] = FROM_GLOBAL ? read_only(global_weights + step + j * 32) : shared_weights[step + j * 32];
#pragma unroll
          for (int m = 0; m < S::MT; m++) {
            if (!S::FULL && tile(m) >= S::TILES) continue;
            uint32_t f[4];
            // `at` is relative to an aligned base, so the exclusive or of `along` stays inside the pixel.
            ldmatrix_x4(f, S::along(at[m] - from, kc) + from);
#pragma unroll
            for (int j = 0; j < S::NP; j++) {
              mma_f16(acc[m][2 * j], f, b[j].x, b[j].y);
              mma_f16(acc[m][2 * j + 1], f, b[j].z, b[j].w);
            }
          }
        }
      }
    }
  }

  DEV void clear() {
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) acc[m][n][k] = 0.0f;
  }
  /// u += scale acc
  DEV void add(float scale) {
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) u[m][n][k] = fmaf(acc[m][n][k], scale, u[m][n][k]);
  }

  // ---- a thread's pairs of neighbouring channels in the buffers ----
  /// An own pixel: where the even and the odd chunks of its channels begin in buffer 0.
  struct Place {
    int own;
    uint32_t even, odd;
  };
  DEV Place place(int m, int half) const {
    // Opaque, or the compiler computes all addresses before the main loop and spills them.
    int own = opaque(own_pixel(m, half)), pixel = padded(own), in = (lane & 3) * 4;
    return Place{own, (uint32_t)(S::chunk(pixel, 0) + in), (uint32_t)(S::chunk(pixel, 1) + in)};
  }
  static DEV uint32_t offset(const Place& p, int n) { return S::along(n & 1 ? p.odd : p.even, n >> 1); }
  DEV void put(int buffer, const Place& p, int n, uint32_t value) const {
    *reinterpret_cast<uint32_t*>(sm + buffer * S::BUF + offset(p, n)) = value;
  }
  /// Copies what this thread has just put at a border pixel into the neighbour's halo.
  DEV void share(int buffer, const Place& p) const {
    if (S::CL == 1) return;
    int row = row_of(p.own);
    bool above = row == 0 && rank > 0, below = row == S::ROWS - 1 && rank < S::CL - 1;
    if (above || below) {
      int pixel = padded(p.own) + (above ? S::ROWS * S::PITCH : -S::ROWS * S::PITCH);
      uint32_t to = base + (lane & 3) * 4 + buffer * S::BUF, other = above ? rank - 1 : rank + 1;
#pragma unroll
      for (int n = 0; n < S::NT; n++) store_remote(to + S::chunk(pixel, n), other, get(buffer, p, n));
    }
  }
  DEV uint32_t get(int buffer, const Place& p, int n) const {
    return *reinterpret_cast<const uint32_t*>(sm + buffer * S::BUF + offset(p, n));
  }

  // ---- the map, pointwise ----
  static DEV float2 pair(const float* p, size_t at) { return read_only(reinterpret_cast<const float2*>(p + at)); }
  /// F at the sums (u0, u1) of channels `at`, `at + 1`.
  DEV float2 image(float u0, float u1, size_t at) const {
    if (KIND == ADJOINT) {
      float2 d = pair(a.slope, at), v = pair(a.y, at);
      return make_float2(d.x * (u0 + v.x), d.y * (u1 + v.y));
    }
    float t0 = tanh_exact(u0) + a.shift, t1 = tanh_exact(u1) + a.shift;
    if (KIND == INNER) return make_float2(t0, t1);
    float2 y = pair(a.y, at);
    return make_float2(t0 + y.x, t1 + y.y);
  }
  DEV float2 begin_at(size_t at) const { return a.from ? pair(a.from, at) : make_float2(a.start, a.start); }

  /// Calls f(place, n-tile, index in the batch's arrays, the pair's place: m, n, k) for every pair of this thread.
  template <class F> DEV void each(F&& f) {
    each(f, [](const Place&) {});
  }
  /// And then after(place), when all pairs of a place are done.
  template <class F, class G> DEV void each(F&& f, G&& after) {
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        Place p = place(m, half);
        if (is_own(p.own)) {
          size_t at = global(p.own) + (lane & 3) * 2;
#pragma unroll
          for (int n = 0; n < S::NT; n++)
            f(p, n, at + n * 8, u[m][n][2 * half], u[m][n][2 * half + 1], acc[m][n][2 * half], acc[m][n][2 * half + 1]);
          after(p);
          // Without this the compiler loads ahead for all tiles and runs out of registers.
          compiler_fence();
        }
      }
  }

  // ---- sums over the whole image, same bits in every thread of the cluster; contains the barrier ----
  DEV float2 total(float one, float two) {
    one = warp_sum(one);
    two = warp_sum(two);
    constexpr int PARTS = S::CL * S::WARPS;
    uint32_t slots = 2 * S::BUF + S::WEIGHTS + parity * PARTS * 8;
    int mine = rank * S::WARPS + warp;
    if (S::CL == 1) {
      if (lane == 0) *reinterpret_cast<float2*>(sm + slots + mine * 8) = make_float2(one, two);
    } else if (lane < S::CL) {
      store_remote(base + slots + mine * 8, lane, bits_of(one));
      store_remote(base + slots + mine * 8 + 4, lane, bits_of(two));
    }
    sync();
    float2 sum = make_float2(0.0f, 0.0f);
    for (int i = lane; i < PARTS; i += 32) {
      float2 part = *reinterpret_cast<const float2*>(sm + slots + i * 8);
      sum.x += part.x;
      sum.y += part.y;
    }
    parity ^= 1;
    return make_float2(warp_sum(sum.x), warp_sum(sum.y));
  }

  /// || F || at the sums, or the norm of the start.
  template <bool START> DEV float norm() {
    float sum = 0.0f;
    each([&](const Place&, int, size_t at, float& u0, float& u1, float&, float&) {
      float2 z = START ? begin_at(at) : image(u0, u1, at);
      sum = fmaf(z.x, z.x, fmaf(z.y, z.y, sum));
    });
    return sqrt_exact(total(sum, 0.0f).x);
  }

  /// Splits a state (the start, or the image of the sums) into both buffers and computes the sums afresh. Gives (sum of squared
  /// differences, sum of squared images) and leaves the differences, scaled, in buffer 0.
  template <bool START> DEV float2 refresh(float scale, bool convolves, bool fully, float change_scale) {
    each([&](const Place& own, int n, size_t at, float& u0, float& u1, float&, float&) {
      float2 z = START ? begin_at(at) : image(u0, u1, at);
      z.x *= scale;
      z.y *= scale;
      uint32_t high = pack_f16(z.x, z.y);
      float2 h = unpack_f16(high);
      put(0, own, n, high);
      put(1, own, n, pack_f16((z.x - h.x) * LOW, (z.y - h.y) * LOW));
    }, [&](const Place& own) {
      share(0, own);
      share(1, own);
    });
    sync();
    float back = inverse_power(scale);
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) u[m][n][k] = 0.0f;
    if (convolves) {
      // In three parts: the tensor cores truncate while they add, so no sum of theirs should get long.
#pragma unroll 1
      for (int dy = 0; dy < 3; dy++) {
        clear();
        convolve<false>(0, nullptr, dy, dy + 1);
        add(back);
      }
      if (fully) {
        clear();
        convolve<true>(0, a.low, 0, 3);
        convolve<false>(1, nullptr, 0, 3);
        add(back / LOW);
      }
    }
    // Both buffers have been read by all; now the changes go into the first.
    sync();
    float difference = 0.0f, size = 0.0f;
    each([&](const Place& own, int n, size_t at, float& u0, float& u1, float&, float&) {
      if (KIND == INNER) {
        float2 y = pair(a.y, at);
        u0 += y.x;
        u1 += y.y;
      }
      float2 f = image(u0, u1, at), high = unpack_f16(get(0, own, n)), low = unpack_f16(get(1, own, n));
      float d0 = f.x - fmaf(low.x, 1.0f / LOW, high.x) * back, d1 = f.y - fmaf(low.y, 1.0f / LOW, high.y) * back;
      difference = fmaf(d0, d0, fmaf(d1, d1, difference));
      size = fmaf(f.x, f.x, fmaf(f.y, f.y, size));
      put(0, own, n, pack_f16(d0 * change_scale, d1 * change_scale));
    }, [&](const Place& own) { share(0, own); });
    return total(difference, size);
  }

  /// One application from the changes in `buffer` (scaled by `scale`); leaves the next ones in the other. Gives the sum of their
  /// squares.
  DEV float advance(int buffer, float scale, float change_scale) {
    clear();
    if (!(ABLATE & 1)) convolve<false>(buffer, nullptr, 0, 3);
    float back = inverse_power(scale), difference = 0.0f;
    each([&](const Place& own, int n, size_t at, float& u0, float& u1, float& c0, float& c1) {
      float d0, d1;
      if (KIND == ADJOINT) {
        float2 slope = pair(a.slope, at);
        d0 = slope.x * (c0 * back);
        d1 = slope.y * (c1 * back);
        u0 = fmaf(c0, back, u0);
        u1 = fmaf(c1, back, u1);
      } else {
        float v0 = fmaf(c0, back, u0), v1 = fmaf(c1, back, u1);
        d0 = ABLATE & 2 ? v0 - u0 : tanh_change(u0, v0);
        d1 = ABLATE & 2 ? v1 - u1 : tanh_change(u1, v1);
        u0 = v0;
        u1 = v1;
      }
      difference = fmaf(d0, d0, fmaf(d1, d1, difference));
      put(buffer ^ 1, own, n, pack_f16(d0 * change_scale, d1 * change_scale));
    }, [&](const Place& own) { share(buffer ^ 1, own); });
    return total(difference, 0.0f).x;
  }

  DEV void run() {
    constexpr float ROUNDING = 1.0f / 2048.0f;  // of an f16, and a little
    begin();
    float per_number = rsqrtf((float)(S::H * S::W * S::C));
    float start_norm = norm<true>();
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
      for (int n = 0; n < S::NT; n++)
#pragma unroll
        for (int k = 0; k < 4; k++) u[m][n][k] = 0.0f;
    // The first changes are at most as large as start and image together. (The image of sums zero stands for the first one.)
    float size = norm<false>();
    float scale = scale_for(fmaxf(start_norm, size) * per_number);  // of the changes in the buffer
    bool fully = a.from != nullptr;
    float2 sums = refresh<true>(scale_for(start_norm * per_number), start_norm != 0.0f, fully, scale);
    int buffer = 0, iteration = 1, refreshes = 0, since = 0, outcome;
    float difference = sqrt_exact(sums.x), best = FLT_MAX;
    size = sqrt_exact(sums.y);
    float bound = size;   // the size is at most this: the last one computed and all changes since
    bool exact = true;    // `size` is that of the last image, and its sums are (if `fully`) accurate
    float err = fully || start_norm == 0.0f ? 0.0f : ROUNDING * size;
    for (;;) {
      bool again = false;
      if (!ABLATE && (!(difference < FLT_MAX) || !(bound < FLT_MAX))) { outcome = NOT_FINITE; break; }
      if (difference < best) { best = difference; since = 0; } else since++;
      if (difference <= a.tolerance * (1e-5f + bound)) {
        // It may end here. A rough sum does not count: compute it again, from the image.
        if (err > 0.05f * a.tolerance * bound) {
          again = true;
        } else {
          if (!exact) { bound = size = norm<false>(); exact = true; }
          if (difference <= a.tolerance * (1e-5f + size)) { outcome = CONVERGED; break; }
        }
      } else if (difference < 4.0f * err) {
        again = true;
      }
      if (ABLATE) again = false;
      if (!ABLATE && since >= 12 && best <= 1000.0f * FLT_EPSILON * bound) { outcome = STAGNATED; break; }
      if (iteration >= a.max_iterations) { outcome = ITERATION_LIMIT; break; }
      iteration++;
      float next = scale_for(difference * per_number);
      if (again) {
        // The size of the image is known within `bound`: good enough for a scale.
        sums = refresh<false>(scale_for(bound * per_number), true, true, next);
        buffer = 0;
        difference = sqrt_exact(sums.x);
        bound = size = sqrt_exact(sums.y);
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
    if (!exact) size = norm<false>();
    each([&](const Place&, int, size_t at, float& u0, float& u1, float&, float&) {
      float2 z = image(u0, u1, at);
      *reinterpret_cast<float2*>(a.state + at) = z;
      if (a.extra) {
        if (KIND == ADJOINT) {
          float2 v = pair(a.y, at);
          *reinterpret_cast<float2*>(a.extra + at) = make_float2(u0 + v.x, u1 + v.y);
        } else {
          float t0 = tanh_exact(u0), t1 = tanh_exact(u1);
          *reinterpret_cast<float2*>(a.extra + at) = make_float2(fmaf(-t0, t0, 1.0f), fmaf(-t1, t1, 1.0f));
        }
      }
    });
    if (ABLATE & 4) cluster_barrier();
    if (rank == 0 && thread_index() == 0) a.reports[sample] = Report{iteration, outcome, difference / (1e-5f + size), refreshes};
  }
};

/// Packs W [out][in][3][3] for the tensor cores: [tap][k-step][pair of n-tiles][lane] x 4 registers, high and low halves.
/// Forward: B[k = in][n = out] of tap; transposed: B[k = out][n = in] of the opposite tap.
template <int C> DEV void pack_conv_weights(const float* w, uint4* high, uint4* low, bool transposed) {
  constexpr int KC = C / 16, NP = C / 16;
  int i = block_index() * block_size() + thread_index();
  if (i >= 9 * KC * NP * 32) return;
  int lane = i % 32, j = i / 32 % NP, kc = i / (32 * NP) % KC, tap = i / (32 * NP * KC);
  uint32_t hi[4], lo[4];
  for (int r = 0; r < 4; r++) {
    float h[2], l[2];
    for (int e = 0; e < 2; e++) {
      int k = kc * 16 + (r & 1) * 8 + 2 * (lane & 3) + e, n = (2 * j + (r >> 1)) * 8 + (lane >> 2);
      float x = transposed ? w[(k * C + n) * 9 + 8 - tap] : w[(n * C + k) * 9 + tap];
      float rounded = unpack_f16(pack_f16(x, 0.0f)).x;
      h[e] = x;
      l[e] = (x - rounded) * 2048.0f;
    }
    hi[r] = pack_f16(h[0], h[1]);
    lo[r] = pack_f16(l[0], l[1]);
  }
  high[i] = uint4{hi[0], hi[1], hi[2], hi[3]};
  low[i] = uint4{lo[0], lo[1], lo[2], lo[3]};
}

// The shapes of the tables. Name, channels, height, width, blocks per cluster, warps, tiles per warp, blocks per SM.
// (The registers of an SM are four files of 16384: count warps in multiples of 4.)
//   c48x2: half an image per block, one block per SM (96 sums + 96 accumulators per thread).
//   c48x4: a quarter, two blocks per SM, so that one block's pointwise part and barrier hide behind the other's products.
#define SHAPE_c32x2(X) X(c32x2, 32, 28, 28, 2, 8, 4, 1)
#define SHAPE_c32x4(X) X(c32x4, 32, 28, 28, 4, 4, 4, 3)
#define SHAPE_c48x2(X) X(c48x2, 48, 32, 32, 2, 8, 4, 1)
#define SHAPE_c48x4(X) X(c48x4, 48, 32, 32, 4, 4, 4, 2)
#define SHAPE_c64x16(X) X(c64x16, 64, 64, 64, 16, 8, 2, 1)
#ifdef ONLY  // -DONLY=c48x4: one shape per object file, to build them side by side
#define SHAPE_JOIN(a, b) a##b
#define SHAPE_NAMED(name) SHAPE_JOIN(SHAPE_, name)
#define CONV_SHAPES(X) SHAPE_NAMED(ONLY)(X)
#else
#define CONV_SHAPES(X) SHAPE_c32x2(X) SHAPE_c32x4(X) SHAPE_c48x2(X) SHAPE_c48x4(X) SHAPE_c64x16(X)
#endif
