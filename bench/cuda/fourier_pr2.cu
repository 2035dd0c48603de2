// Peaceman-Rachford in the frequency domain, second version (see fourier_pr.cu for the method and the transforms). Differences:
//
//   * Only CHANGES go through the frequency domain (DELTA): g <- g + C (u_new - u_old), the change's spectrum as scaled f16, one f16 product.
//     Per iteration of 128 samples: spectrum 13.4 MB written and read twice, g read and written 50 MB, matrices 5 MB: 108 MB instead of 192,
//     and the working set (44 MB) fits into L2. No k. A sample's error estimate (3/2048 of every change since the last full product) asks
//     for a FULL product (f32 spectrum, split f16, + k) when the residual comes near it or the solve would end on it, as in the engine's onchip.cuh.
//     Mode, scale and error of a sample are in `records`; all three blocks of a sample compute the same ones from the same sums.
//   * plane: 84 registers, three blocks per SM: the 384 blocks of 128 samples are one wave (396) instead of 1.45.
//   * product: blocks of 128 threads, five per SM (544 <= 660); 16-byte loads and stores throughout: the order of inputs inside a k-step and of outputs
//     inside four n-tiles is free, so lane t takes inputs 16 j + 4 t .. + 3 and gives outputs 16 j + 4 t .. + 3; the matrix is staged in that order.
#define FOURIER_CORE_ONLY
#include "fourier_pr.cu"

struct FourierRecord { float scale, err; int mode; int pad; };
enum FourierMode { F_FULL = 0, F_DELTA = 1, F_ENDED = 2 };
struct Fourier2Args {
  float* g;               // [n][32][32][48], the state
  const float* k;         // the constant
  float2* spectrum;       // [frequency = column * 32 + row][n][48], full
  uint32_t* half;         // the same, scaled changes as f16 (re, im)
  const uint32_t* high;   // matrices [frequency][out][in]: f16 (re, im)
  const uint32_t* low;    // and the rest of them times 2^11
  float2* partial;        // [2][n][3]
  FourierRecord* records; // [2][n]
  int* iterations;        // [n]
  int n, iteration;
  float tolerance;
};
constexpr int F2_PITCH = 208;                     // bytes of a row of the staged matrix: 13 chunks of 16
constexpr int F2_SIDE = 96 * F2_PITCH;
constexpr int F2_PRODUCT_SMEM = 2 * F2_SIDE;
static_assert(F2_PRODUCT_SMEM == 39936, "the harness has the same number");

template <int ACT, bool DELTA> DEV void fourier_plane2(const Fourier2Args& a) {
  unsigned char* raw = dyn_smem();
  float2* sm = reinterpret_cast<float2*>(raw);
  float2* sums = reinterpret_cast<float2*>(raw + FS * F_PITCH * 8);
  int tid = thread_index(), p = tid & 7, line = tid >> 3, sample = block_index() / F_GROUPS, group = block_index() % F_GROUPS;
  bool full_in = true, full_out = true;
  float scale_in = 1.0f, scale_out = 1.0f, err = 0.0f;
  if (a.iteration > 1) {
    const float2* last = a.partial + ((size_t)((a.iteration - 1) & 1) * a.n + sample) * F_GROUPS;
    float diff = sqrt_exact((last[0].x + last[1].x) + last[2].x), size = sqrt_exact((last[0].y + last[1].y) + last[2].y);
    bool small = diff <= a.tolerance * (1e-5f + size), done = small;
    FourierRecord record{1.0f, 0.0f, F_FULL, 0};
    if (DELTA) {
      record = a.records[(size_t)((a.iteration - 1) & 1) * a.n + sample];
      constexpr float ROUNDING = 3.0f / 2048;
      done = record.mode == F_ENDED || (small && record.err <= 0.05f * a.tolerance * size);
      full_in = record.mode == F_FULL;
      err = full_in ? 0.0f : record.err + ROUNDING * diff;
      full_out = (small && err > 0.05f * a.tolerance * size) || diff < 4.0f * err;
      scale_in = record.scale;
      if (!full_out) scale_out = scale_for(diff * rsqrtf((float)(FC * FS * FS)));
    }
    if (done) {
      if (tid == 0) {
        a.partial[((size_t)(a.iteration & 1) * a.n + sample) * F_GROUPS + group] = last[group];
        if (DELTA && group == 0) { record.mode = F_ENDED; a.records[(size_t)(a.iteration & 1) * a.n + sample] = record; }
      }
      return;  // the whole block
    }
  }
  float re[32], im[32];
  size_t column = (size_t)sample * FC + group * 16;
  size_t pixels = (((size_t)sample * FS + line) * FS) * FC + group * 16 + 2 * p;
  float difference = 0.0f, size = 0.0f;
  if (a.iteration > 0) {
    size_t first = (size_t)sample * FS * FS * FC + group * 16;
    for (int i = tid; i < FS * FS; i += 256) {
      prefetch_l2(a.g + first + (size_t)i * FC);
      if (full_in) prefetch_l2(a.k + first + (size_t)i * FC);
    }
    auto place = [&](int f, int q, float4 ab) {
      int kx = f / FS, ky = f % FS;
      sm[ky * F_PITCH + kx * 8 + q] = make_float2(ab.x - ab.w, ab.y + ab.z);
      // The spectra of the two real images at the opposite frequency are the conjugates.
      if (kx != 0 && kx != FS / 2) sm[((FS - ky) % FS) * F_PITCH + (FS - kx) * 8 + q] = make_float2(ab.x + ab.w, ab.z - ab.y);
    };
    if (full_in) {
      const float2* spectrum = a.spectrum + column;
#pragma unroll
      for (int part = 0; part < 2; part++) {
        float4 v[9];
#pragma unroll
        for (int j = 0; j < 9; j++) { int i = tid + 256 * (part * 9 + j); if (i < FF * 8) v[j] = *reinterpret_cast<const float4*>(spectrum + (size_t)(i >> 3) * a.n * FC + 2 * (i & 7)); }
#pragma unroll
        for (int j = 0; j < 9; j++) { int i = tid + 256 * (part * 9 + j); if (i < FF * 8) place(i >> 3, i & 7, v[j]); }
      }
    } else {
      const uint32_t* half = a.half + column;
      uint4 v[9];
#pragma unroll
      for (int j = 0; j < 9; j++) { int i = tid + 256 * j; if (i < FF * 4) v[j] = *reinterpret_cast<const uint4*>(half + (size_t)(i >> 2) * a.n * FC + 4 * (i & 3)); }
#pragma unroll
      for (int j = 0; j < 9; j++) {
        int i = tid + 256 * j;
        if (i >= FF * 4) continue;
        float2 x = unpack_f16(v[j].x), y = unpack_f16(v[j].y), z = unpack_f16(v[j].z), w = unpack_f16(v[j].w);
        place(i >> 2, 2 * (i & 3), make_float4(x.x, x.y, y.x, y.y));
        place(i >> 2, 2 * (i & 3) + 1, make_float4(z.x, z.y, w.x, w.y));
      }
    }
    block_barrier();
#pragma unroll
    for (int y = 0; y < 32; y++) { float2 v = sm[y * F_PITCH + line * 8 + p]; re[y] = v.x; im[y] = v.y; }
    fft32<true>(re, im);
#pragma unroll
    for (int y = 0; y < 32; y++) sm[y * F_PITCH + line * 8 + p] = make_float2(re[reversed5(y)], im[reversed5(y)]);
    block_barrier();
#pragma unroll
    for (int x = 0; x < 32; x++) { float2 v = sm[line * F_PITCH + x * 8 + p]; re[x] = v.x; im[x] = v.y; }
    fft32<true>(re, im);
    float back = inverse_power(scale_in) * (1.0f / 32), keep = full_out ? 0.0f : 1.0f;
    float next_re[32], next_im[32];
    auto update = [&](int x, float2 old, float2 base) {
      float r0 = re[reversed5(x)], r1 = im[reversed5(x)], g0 = fmaf(r0, back, base.x), g1 = fmaf(r1, back, base.y), d0 = g0 - old.x, d1 = g1 - old.y;
      difference = fmaf(d0, d0, fmaf(d1, d1, difference));
      size = fmaf(g0, g0, fmaf(g1, g1, size));
      *reinterpret_cast<float2*>(a.g + pixels + x * FC) = make_float2(g0, g1);
      next_re[x] = 2.0f * prox<ACT>(g0) - g0;
      next_im[x] = 2.0f * prox<ACT>(g1) - g1;
      if (DELTA) {  // The difference of the reflections, each rounded: changes add up to the state without drift.
        next_re[x] = fmaf(-keep, 2.0f * prox<ACT>(old.x) - old.x, next_re[x]) * scale_out;
        next_im[x] = fmaf(-keep, 2.0f * prox<ACT>(old.y) - old.y, next_im[x]) * scale_out;
      }
    };
    if (full_in) {
#pragma unroll
      for (int x = 0; x < 32; x++)
        update(x, *reinterpret_cast<const float2*>(a.g + pixels + x * FC), read_only(reinterpret_cast<const float2*>(a.k + pixels + x * FC)));
    } else {
      // Eight at a time: enough loads under way, not too many registers.
#pragma unroll
      for (int part = 0; part < 4; part++) {
        float2 old[8];
#pragma unroll
        for (int x = 0; x < 8; x++) old[x] = *reinterpret_cast<const float2*>(a.g + pixels + (part * 8 + x) * FC);
#pragma unroll
        for (int x = 0; x < 8; x++) update(part * 8 + x, old[x], old[x]);
      }
    }
#pragma unroll
    for (int x = 0; x < 32; x++) { re[x] = next_re[x]; im[x] = next_im[x]; }
  } else {
#pragma unroll
    for (int x = 0; x < 32; x++) {
      float2 g = *reinterpret_cast<const float2*>(a.g + pixels + x * FC);
      re[x] = 2.0f * prox<ACT>(g.x) - g.x;
      im[x] = 2.0f * prox<ACT>(g.y) - g.y;
    }
  }
  fft32<false>(re, im);
  // A thread's own row, which nobody else has read since the columns were written.
#pragma unroll
  for (int x = 0; x < 32; x++) sm[line * F_PITCH + x * 8 + p] = make_float2(re[reversed5(x)], im[reversed5(x)]);
  difference = warp_sum(difference);
  size = warp_sum(size);
  if ((tid & 31) == 0) sums[tid >> 5] = make_float2(difference, size);
  block_barrier();
#pragma unroll
  for (int y = 0; y < 32; y++) { float2 v = sm[y * F_PITCH + line * 8 + p]; re[y] = v.x; im[y] = v.y; }
  fft32<false>(re, im);
#pragma unroll
  for (int y = 0; y < 32; y++) sm[y * F_PITCH + line * 8 + p] = make_float2(re[reversed5(y)], im[reversed5(y)]);
  if (tid == 0) {
    if (a.iteration > 0) {
      float2 s = sums[0];
      for (int w = 1; w < 8; w++) { s.x += sums[w].x; s.y += sums[w].y; }
      a.partial[((size_t)(a.iteration & 1) * a.n + sample) * F_GROUPS + group] = s;
      if (group == 0) a.iterations[sample] = a.iteration;
    }
    if (DELTA && group == 0) a.records[(size_t)(a.iteration & 1) * a.n + sample] = FourierRecord{scale_out, err, full_out ? F_FULL : F_DELTA, 0};
  }
  block_barrier();
  constexpr float HALF = 0.5f / 32;
  auto pair = [&](int f, int q) {
    int kx = f / FS, ky = f % FS;
    float2 z = sm[ky * F_PITCH + kx * 8 + q], m = sm[((FS - ky) % FS) * F_PITCH + ((FS - kx) % FS) * 8 + q];
    return make_float4((z.x + m.x) * HALF, (z.y - m.y) * HALF, (z.y + m.y) * HALF, (m.x - z.x) * HALF);
  };
  if (full_out) {
#pragma unroll 4
    for (int i = tid; i < FF * 8; i += 256) *reinterpret_cast<float4*>(a.spectrum + column + (size_t)(i >> 3) * a.n * FC + 2 * (i & 7)) = pair(i >> 3, i & 7);
  } else {
#pragma unroll 3
    for (int i = tid; i < FF * 4; i += 256) {
      float4 x = pair(i >> 2, 2 * (i & 3)), y = pair(i >> 2, 2 * (i & 3) + 1);
      *reinterpret_cast<uint4*>(a.half + column + (size_t)(i >> 2) * a.n * FC + 4 * (i & 3)) = uint4{pack_f16(x.x, x.y), pack_f16(x.z, x.w), pack_f16(y.x, y.y), pack_f16(y.z, y.w)};
    }
  }
}

/// Frequency block_index(). Inputs: k-step 2 j + h, slots t and t + 4 are inputs 16 j + 4 t + 2 h and + 1. Outputs: n-tile 4 j + e, pair t is output 16 j + 4 t + e.
template <bool DELTA> DEV void fourier_product2(const Fourier2Args& a) {
  unsigned char* sm = dyn_smem();
  uint32_t base = smem_addr(sm);
  int tid = thread_index(), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3, warps = block_size() / 32;
  size_t matrix = (size_t)block_index() * FC * FC;
  auto stage = [&](const uint32_t* from, int side) {
    for (int i = tid; i < FC * FC; i += block_size()) {
      int out = i / FC, in = i % FC;
      uint32_t m = read_only(from + matrix + i);
      int row = ((out >> 4) * 4 + (out & 3)) * 8 + ((out >> 2) & 3) * 2;                                      // of (out, re)
      int at = ((in >> 4) * 2 + ((in >> 1) & 1)) * 8 + (in & 1) * 4 + ((in >> 2) & 3);                         // k-step, half, slot
      *reinterpret_cast<uint32_t*>(sm + side * F2_SIDE + row * F2_PITCH + at * 4) = m ^ 0x80000000u;           // (re, -im)
      *reinterpret_cast<uint32_t*>(sm + side * F2_SIDE + (row + 1) * F2_PITCH + at * 4) = m >> 16 | m << 16;   // (im, re)
    }
  };
  float2* spectrum = a.spectrum + (size_t)block_index() * a.n * FC;
  uint32_t* half = a.half + (size_t)block_index() * a.n * FC;
  stage(a.high, 0);
  bool any = !DELTA;
  if (DELTA) for (int i = tid; i < a.n; i += block_size()) any |= a.records[(size_t)(a.iteration & 1) * a.n + i].mode == F_FULL;
  if (!DELTA || block_any(any)) stage(a.low, 1);
  block_barrier();
  for (int first = warp * 16; first < a.n; first += warps * 16) {
    int row[2] = {first + g, first + g + 8}, mode[2] = {F_ENDED, F_ENDED};
#pragma unroll
    for (int h = 0; h < 2; h++) if (row[h] < a.n) mode[h] = DELTA ? a.records[(size_t)(a.iteration & 1) * a.n + row[h]].mode : (int)F_FULL;
    // For all 16 samples, if for one. (A sample's bits do not depend on it: products with zeros add nothing.)
    bool fully = !DELTA || warp_any(mode[0] == F_FULL || mode[1] == F_FULL);
    uint32_t high[6][4], low[6][4];
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
      for (int j = 0; j < 3; j++) {
        uint32_t w[4] = {0, 0, 0, 0}, l[4] = {0, 0, 0, 0};
        size_t at = (size_t)row[h] * FC + 16 * j + 4 * t;
        if (DELTA && mode[h] == F_DELTA) {
          uint4 v = *reinterpret_cast<const uint4*>(half + at);
          w[0] = v.x; w[1] = v.y; w[2] = v.z; w[3] = v.w;
        } else if (mode[h] == F_FULL) {
          float4 v0 = *reinterpret_cast<const float4*>(spectrum + at), v1 = *reinterpret_cast<const float4*>(spectrum + at + 2);
          float x[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
#pragma unroll
          for (int e = 0; e < 4; e++) {
            w[e] = pack_f16(x[2 * e], x[2 * e + 1]);
            float2 r = unpack_f16(w[e]);
            l[e] = pack_f16((x[2 * e] - r.x) * 2048.0f, (x[2 * e + 1] - r.y) * 2048.0f);
          }
        }
        high[2 * j][h] = w[0]; high[2 * j][2 + h] = w[1]; high[2 * j + 1][h] = w[2]; high[2 * j + 1][2 + h] = w[3];
        low[2 * j][h] = l[0]; low[2 * j][2 + h] = l[1]; low[2 * j + 1][h] = l[2]; low[2 * j + 1][2 + h] = l[3];
      }
    // All of the warp's rows have been read before the first of them is overwritten.
    warp_barrier();
    // ldmatrix: lane l points to row l % 8 of chunk l / 8; four chunks are two k-steps.
    uint32_t from = base + (lane & 7) * F2_PITCH + (lane >> 3) * 16;
#pragma unroll 1
    for (int j = 0; j < 3; j++) {
      float big[4][4], small[4][4];
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int k = 0; k < 4; k++) big[e][k] = small[e][k] = 0.0f;
#pragma unroll
      for (int e = 0; e < 4; e++)
#pragma unroll
        for (int s = 0; s < 3; s++) {
          uint32_t b[4];
          ldmatrix_x4(b, from + (4 * j + e) * 8 * F2_PITCH + s * 64);
          mma_f16(big[e], high[2 * s], b[0], b[1]);
          mma_f16(big[e], high[2 * s + 1], b[2], b[3]);
          if (fully) {
            mma_f16(small[e], low[2 * s], b[0], b[1]);
            mma_f16(small[e], low[2 * s + 1], b[2], b[3]);
            ldmatrix_x4(b, from + F2_SIDE + (4 * j + e) * 8 * F2_PITCH + s * 64);
            mma_f16(small[e], high[2 * s], b[0], b[1]);
            mma_f16(small[e], high[2 * s + 1], b[2], b[3]);
          }
        }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        size_t at = (size_t)row[h] * FC + 16 * j + 4 * t;
        if (DELTA && mode[h] == F_DELTA) {
          *reinterpret_cast<uint4*>(half + at) = uint4{pack_f16(big[0][2 * h], big[0][2 * h + 1]), pack_f16(big[1][2 * h], big[1][2 * h + 1]), pack_f16(big[2][2 * h], big[2][2 * h + 1]), pack_f16(big[3][2 * h], big[3][2 * h + 1])};
        } else if (mode[h] == F_FULL) {
          float x[8];
#pragma unroll
          for (int e = 0; e < 4; e++) { x[2 * e] = fmaf(small[e][2 * h], 1.0f / 2048, big[e][2 * h]); x[2 * e + 1] = fmaf(small[e][2 * h + 1], 1.0f / 2048, big[e][2 * h + 1]); }
          *reinterpret_cast<float4*>(spectrum + at) = make_float4(x[0], x[1], x[2], x[3]);
          *reinterpret_cast<float4*>(spectrum + at + 2) = make_float4(x[4], x[5], x[6], x[7]);
        }
      }
    }
  }
}
/// matrices [count] complex f32 to split f16, two arrays.
DEV void fourier_pack2(const float2* from, uint32_t* high, uint32_t* low, int count) {
  int i = block_index() * block_size() + thread_index();
  if (i >= count) return;
  float2 x = from[i];
  high[i] = pack_f16(x.x, x.y);
  float2 h = unpack_f16(high[i]);
  low[i] = pack_f16((x.x - h.x) * 2048.0f, (x.y - h.y) * 2048.0f);
}
KERNEL(256, 3) fourier2_plane_relu_48x32(const Fourier2Args a) { fourier_plane2<F_RELU, true>(a); }
KERNEL(256, 3) fourier2_plane_tanh_48x32(const Fourier2Args a) { fourier_plane2<F_TANH, true>(a); }
KERNEL(256, 2) fourier2_plane_relu_two_48x32(const Fourier2Args a) { fourier_plane2<F_RELU, true>(a); }
KERNEL(256, 2) fourier2_plane_tanh_two_48x32(const Fourier2Args a) { fourier_plane2<F_TANH, true>(a); }
KERNEL(256, 3) fourier2_plane_relu_f32_48x32(const Fourier2Args a) { fourier_plane2<F_RELU, false>(a); }
KERNEL(256, 3) fourier2_plane_tanh_f32_48x32(const Fourier2Args a) { fourier_plane2<F_TANH, false>(a); }
KERNEL(128, 5) fourier2_product_48x32(const Fourier2Args a) { fourier_product2<true>(a); }
KERNEL(128, 4) fourier2_product_f32_48x32(const Fourier2Args a) { fourier_product2<false>(a); }
KERNEL(256, 4) fourier2_pack_48x32(const float2* from, uint32_t* high, uint32_t* low, int count) { fourier_pack2(from, high, low, count); }
