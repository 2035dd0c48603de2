// The weight gradient of a 3x3 zero-padded convolution over a batch,
//   dW[o][i][tap] = sum over samples and pixels of q[pixel][o] z[pixel + tap][i],
// without atomics: a fixed split of the sum over blocks, each part written to a workspace, then added in a fixed order.
//
// Count, 128 x 48 x 32 x 32: 5.44 GFLOP; the sum of products of numbers split into two bf16 (16 bits, error about 1e-5) takes three
// tensor-core products each: 16.3 GFLOP, 16 us at 990 TFLOP/s, about 27 us at what mma.sync reaches. Bytes: q and z once,
// 50 MB (z 1.5 times through L2 because of the halo rows), 12 us; workspace 256 x 83 kB = 21 MB written and read through L2.
// bf16 and not f16: gradients have no known scale.
//
// The contraction runs over pixels. Both factors lie in shared memory as [pixel][channel], so the fragments are loaded
// transposed (ldmatrix.trans), and a tap is nothing but another pixel address.
#include "dev.cuh"

template <int C_, int H_, int W_, int ROWS_, int SPLITS_> struct GradShape {
  static constexpr int C = C_, H = H_, W = W_;
  static constexpr int ROWS = ROWS_;            // rows of an image that are in shared memory at a time
  static constexpr int SPLITS = SPLITS_;        // parts of an image
  static constexpr int BANDS = H / ROWS / SPLITS;
  static constexpr int WARPS = 8, THREADS = 256;
  static constexpr int PITCH = W + 2, PIXELS = (ROWS + 2) * PITCH, OWN = ROWS * W;
  static constexpr int STRIDE = (C + 8) * 2;    // bytes of a pixel; an odd number of 16-byte chunks: no bank conflicts
  static constexpr int STEPS = OWN / 16;
  static constexpr int MO = C / 16;             // tiles of outputs
  static constexpr int NT = C / 8;              // tiles of inputs per tap
  static constexpr int NW = (9 * NT + WARPS - 1) / WARPS;  // tiles of (tap, inputs) per warp
  static constexpr int Z = PIXELS * STRIDE, Q = OWN * STRIDE;
  static constexpr int SMEM = 2 * Z + 2 * Q;    // high and low halves
  static_assert(H % (ROWS * SPLITS) == 0 && OWN % 16 == 0 && (STRIDE / 16) % 2 == 1 && Z % 16 == 0, "shape");
};

/// Four numbers as two pairs of high and of low bf16.
DEV void split4(float4 v, unsigned char* high, unsigned char* low) {
  uint32_t h0 = pack_bf16(v.x, v.y), h1 = pack_bf16(v.z, v.w);
  float2 a = unpack_bf16(h0), b = unpack_bf16(h1);
  uint32_t* h = reinterpret_cast<uint32_t*>(high);
  uint32_t* l = reinterpret_cast<uint32_t*>(low);
  h[0] = h0;
  h[1] = h1;
  l[0] = pack_bf16(v.x - a.x, v.y - a.y);
  l[1] = pack_bf16(v.z - b.x, v.w - b.y);
}

/// The products of 16 pixels, from the buffers at `base`.
template <class S> DEV void wgrad_step(uint32_t base, int step, int lane, const uint32_t (&offset)[S::NW], float (&acc)[S::NW][S::MO][4]) {
  // Outputs: 8x8 blocks (pixels 0-7, o 0-7), (0-7, 8-15), (8-15, 0-7), (8-15, 8-15), turned by the load.
  uint32_t high[S::MO][4], low[S::MO][4];
  uint32_t at = base + 2 * S::Z + (step * 16 + (lane & 7) + (lane >> 4) * 8) * S::STRIDE + ((lane >> 3) & 1) * 16;
#pragma unroll
  for (int m = 0; m < S::MO; m++) {
    ldmatrix_x4_trans(high[m], at + m * 32);
    ldmatrix_x4_trans(low[m], at + S::Q + m * 32);
  }
  // Inputs: lanes 0-15 point to the high halves of the 16 pixels, lanes 16-31 to the low ones.
  int own = step * 16 + (lane & 15);
  uint32_t in = base + (own / S::W * S::PITCH + own % S::W) * S::STRIDE + (lane >> 4) * S::Z;
#pragma unroll
  for (int n = 0; n < S::NW; n++) {
    uint32_t b[4];
    ldmatrix_x4_trans(b, in + offset[n]);
#pragma unroll
    for (int m = 0; m < S::MO; m++) mma_bf16(acc[n][m], low[m], b[0], b[1]);
#pragma unroll
    for (int m = 0; m < S::MO; m++) mma_bf16(acc[n][m], high[m], b[2], b[3]);
#pragma unroll
    for (int m = 0; m < S::MO; m++) mma_bf16(acc[n][m], high[m], b[0], b[1]);
  }
}

/// Part `block_index()` of the sum: sample block / SPLITS, bands of its part. parts: [part][o][tap][i].
template <class S> DEV void wgrad_part(const float* q, const float* z, float* parts) {
  unsigned char* sm = dyn_smem();
  uint32_t base = smem_addr(sm);
  int sample = block_index() / S::SPLITS, part = block_index() % S::SPLITS, warp = thread_index() >> 5, lane = thread_index() & 31;
  q += (size_t)sample * S::H * S::W * S::C;
  z += (size_t)sample * S::H * S::W * S::C;
  float acc[S::NW][S::MO][4];
  uint32_t offset[S::NW];
#pragma unroll
  for (int n = 0; n < S::NW; n++) {
    int j = warp * S::NW + n, tap = j / S::NT;
    if (j >= 9 * S::NT) j = tap = 0;  // computed, not written
    offset[n] = (tap / 3 * S::PITCH + tap % 3) * S::STRIDE + (j % S::NT) * 16;
#pragma unroll
    for (int m = 0; m < S::MO; m++)
#pragma unroll
      for (int k = 0; k < 4; k++) acc[n][m][k] = 0.0f;
  }
  // The zero columns at the sides stay.
  for (int i = thread_index(); i < 2 * (S::ROWS + 2) * 2 * (S::C / 4); i += S::THREADS) {
    int c = i % (S::C / 4), side = i / (S::C / 4) % 2, row = i / (S::C / 4) / 2;  // rows of the high half, then of the low one
    int at = (row / (S::ROWS + 2)) * S::Z + ((row % (S::ROWS + 2)) * S::PITCH + side * (S::PITCH - 1)) * S::STRIDE + c * 8;
    *reinterpret_cast<uint32_t*>(sm + at) = 0u;
    *reinterpret_cast<uint32_t*>(sm + at + 4) = 0u;
  }
#pragma unroll 1
  for (int band = 0; band < S::BANDS; band++) {
    int first = (part * S::BANDS + band) * S::ROWS;
    block_barrier();
    for (int i = thread_index(); i < (S::ROWS + 2) * S::W * (S::C / 4); i += S::THREADS) {
      int c = i % (S::C / 4), pixel = i / (S::C / 4), row = pixel / S::W, col = pixel % S::W, from = first + row - 1;
      float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (from >= 0 && from < S::H) v = read_only(reinterpret_cast<const float4*>(z + ((size_t)from * S::W + col) * S::C) + c);
      unsigned char* to = sm + (row * S::PITCH + col + 1) * S::STRIDE + c * 8;
      split4(v, to, to + S::Z);
    }
    for (int i = thread_index(); i < S::OWN * (S::C / 4); i += S::THREADS) {
      int c = i % (S::C / 4), pixel = i / (S::C / 4);
      float4 v = read_only(reinterpret_cast<const float4*>(q + ((size_t)first * S::W + pixel) * S::C) + c);
      unsigned char* to = sm + 2 * S::Z + pixel * S::STRIDE + c * 8;
      split4(v, to, to + S::Q);
    }
    block_barrier();
#pragma unroll 1
    for (int step = 0; step < S::STEPS; step++) {
      wgrad_step<S>(base, step, lane, offset, acc);
    }
  }
  float* to = parts + (size_t)block_index() * S::C * S::C * 9;
#pragma unroll
  for (int n = 0; n < S::NW; n++) {
    int j = warp * S::NW + n;
    if (j >= 9 * S::NT) continue;
    int tap = j / S::NT, i = (j % S::NT) * 8 + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < S::MO; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int o = m * 16 + (lane >> 2) + 8 * half;
        *reinterpret_cast<float2*>(to + (o * 9 + tap) * S::C + i) = make_float2(acc[n][m][2 * half], acc[n][m][2 * half + 1]);
      }
  }
}

/// The same sum, bit for bit, with two sets of buffers: the next band is read and split while this one is multiplied. One block per SM.
template <class S> DEV void wgrad_part2(const float* q, const float* z, float* parts) {
  unsigned char* sm = dyn_smem();
  uint32_t base = smem_addr(sm);
  int sample = block_index() / S::SPLITS, part = block_index() % S::SPLITS, warp = thread_index() >> 5, lane = thread_index() & 31;
  q += (size_t)sample * S::H * S::W * S::C;
  z += (size_t)sample * S::H * S::W * S::C;
  float acc[S::NW][S::MO][4];
  uint32_t offset[S::NW];
#pragma unroll
  for (int n = 0; n < S::NW; n++) {
    int j = warp * S::NW + n, tap = j / S::NT;
    if (j >= 9 * S::NT) j = tap = 0;  // computed, not written
    offset[n] = (tap / 3 * S::PITCH + tap % 3) * S::STRIDE + (j % S::NT) * 16;
#pragma unroll
    for (int m = 0; m < S::MO; m++)
#pragma unroll
      for (int k = 0; k < 4; k++) acc[n][m][k] = 0.0f;
  }
  // The zero columns at the sides stay, in both sets of buffers.
  for (int i = thread_index(); i < 2 * 2 * (S::ROWS + 2) * 2 * (S::C / 4); i += S::THREADS) {
    int c = i % (S::C / 4), side = i / (S::C / 4) % 2, row = i / (S::C / 4) / 2, set = row / (2 * (S::ROWS + 2));
    row %= 2 * (S::ROWS + 2);
    int at = set * S::SMEM + (row / (S::ROWS + 2)) * S::Z + ((row % (S::ROWS + 2)) * S::PITCH + side * (S::PITCH - 1)) * S::STRIDE + c * 8;
    *reinterpret_cast<uint32_t*>(sm + at) = 0u;
    *reinterpret_cast<uint32_t*>(sm + at + 4) = 0u;
  }
  // Four channels of a pixel of z (with the halo rows), then of q: number i of a band.
  constexpr int ZN = (S::ROWS + 2) * S::W * (S::C / 4), ALL = ZN + S::OWN * (S::C / 4), PER = (ALL + S::STEPS * S::THREADS - 1) / (S::STEPS * S::THREADS);
  auto fetch = [&](int band, int i) {
    int first = (part * S::BANDS + band) * S::ROWS, c = i % (S::C / 4), pixel = (i < ZN ? i : i - ZN) / (S::C / 4), from = first - 1 + pixel / S::W;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (i >= ALL) return v;
    if (i >= ZN) v = read_only(reinterpret_cast<const float4*>(q + ((size_t)first * S::W + pixel) * S::C) + c);
    else if (from >= 0 && from < S::H) v = read_only(reinterpret_cast<const float4*>(z + ((size_t)from * S::W + pixel % S::W) * S::C) + c);
    return v;
  };
  auto store = [&](int set, int i, float4 v) {
    if (i >= ALL) return;
    int c = i % (S::C / 4), pixel = (i < ZN ? i : i - ZN) / (S::C / 4);
    unsigned char* to = sm + set * S::SMEM + (i < ZN ? (pixel / S::W * S::PITCH + pixel % S::W + 1) * S::STRIDE : 2 * S::Z + pixel * S::STRIDE) + c * 8;
    split4(v, to, to + (i < ZN ? S::Z : S::Q));
  };
#pragma unroll 4
  for (int j = 0; j < PER * S::STEPS; j++) store(0, j * S::THREADS + thread_index(), fetch(0, j * S::THREADS + thread_index()));
  block_barrier();
#pragma unroll 1
  for (int band = 0; band < S::BANDS; band++) {
#pragma unroll 1
    for (int step = 0; step < S::STEPS; step++) {
      // A share of the next band comes while this step's products run.
      float4 v[PER];
      if (band + 1 < S::BANDS)
#pragma unroll
        for (int j = 0; j < PER; j++) v[j] = fetch(band + 1, (step * PER + j) * S::THREADS + thread_index());
      wgrad_step<S>(base + (band & 1) * S::SMEM, step, lane, offset, acc);
      if (band + 1 < S::BANDS)
#pragma unroll
        for (int j = 0; j < PER; j++) store((band + 1) & 1, (step * PER + j) * S::THREADS + thread_index(), v[j]);
    }
    block_barrier();
  }
  float* to = parts + (size_t)block_index() * S::C * S::C * 9;
#pragma unroll
  for (int n = 0; n < S::NW; n++) {
    int j = warp * S::NW + n;
    if (j >= 9 * S::NT) continue;
    int tap = j / S::NT, i = (j % S::NT) * 8 + (lane & 3) * 2;
#pragma unroll
    for (int m = 0; m < S::MO; m++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int o = m * 16 + (lane >> 2) + 8 * half;
        *reinterpret_cast<float2*>(to + (o * 9 + tap) * S::C + i) = make_float2(acc[n][m][2 * half], acc[n][m][2 * half + 1]);
      }
  }
}

/// dW[o][i][tap] = sum of the parts: 32 numbers per block, each in 4 groups (parts g, g + 4, ...), the groups in order.
template <int C> DEV void wgrad_sum(const float* parts, int count, float* dw) {
  float* sm = reinterpret_cast<float*>(dyn_smem());
  int lane = thread_index() & 31, group = thread_index() >> 5, k = block_index() * 32 + lane;
  float sum = 0.0f;
#pragma unroll 8
  for (int p = group; p < count; p += 4) sum += read_only(parts + (size_t)p * C * C * 9 + k);
  sm[thread_index()] = sum;
  block_barrier();
  if (group == 0) {
    int i = k % C, tap = k / C % 9, o = k / C / 9;
    dw[(o * C + i) * 9 + tap] = ((sm[lane] + sm[32 + lane]) + sm[64 + lane]) + sm[96 + lane];
  }
}

// Name, channels, height, width, rows at a time, parts of an image, blocks per SM.
#define GRAD_SHAPES(X)      \
  X(c32, 32, 28, 28, 4, 1, 2) \
  X(c48, 48, 32, 32, 4, 2, 2) \
  X(c64, 64, 64, 64, 4, 4, 1)
#define X(name, c, h, w, rows, splits, per_sm)                                                                                      \
  KERNEL(256, per_sm) conv_wgrad_##name(const float* q, const float* z, float* parts) { wgrad_part<GradShape<c, h, w, rows, splits>>(q, z, parts); } \
  KERNEL(128, 4) conv_wgrad_sum_##name(const float* parts, int count, float* dw) { wgrad_sum<c>(parts, count, dw); }
GRAD_SHAPES(X)
#undef X
KERNEL(256, 1) conv_wgrad2_c48(const float* q, const float* z, float* parts) { wgrad_part2<GradShape<48, 32, 32, 4, 2>>(q, z, parts); }
KERNEL(256, 2) conv_wgrad2_c32(const float* q, const float* z, float* parts) { wgrad_part2<GradShape<32, 28, 28, 4, 1>>(q, z, parts); }
