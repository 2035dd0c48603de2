// Peaceman-Rachford on a circular convolution, in the frequency domain (THEORY A7): u = 2 prox(g) - g, g <- C u + k, where C = 2 R - I is
// a complex C x C matrix at each frequency. 48 channels, 32 x 32, any batch. Two kernels per iteration:
//
//   fourier_plane:   (one block per sample and 16 channels) inverse transform of the last products, g <- . + k, residual, prox, reflection,
//                    forward transform. Two channels are the real and imaginary part of one complex image; a transform of 32
//                    points is done by one thread in registers, rows and columns are exchanged through shared memory.
//   fourier_product: (one block per frequency) the spectra of all samples times the frequency's matrix, in place, on tensor cores:
//                    numbers are split into two f16 (22 bits), three products, f32 accurate. |C| <= 1 and the transforms are unitary,
//                    so f16's range suffices (|u| < 1000).
//
// Count, 128 samples: products 544 * 48*48*8 * 128 = 1.28 GFLOP (3.9 as split f16: 6 us); transforms about 0.3 GFLOP (5 us in f32);
// bytes per iteration: spectrum 26.7 MB written and read twice, k read, g read and written 75 MB, matrices 10 MB: 192 MB, 45 us from device memory
// at 4.3 TB/s, less out of L2: a batch worked on in chunks of 64 (60 MB with the matrices) mostly stays there.
//
// Stopping is per sample: a plane block adds up the previous launch's partial sums of its sample, and does nothing if it has ended.
#include "dev.cuh"

constexpr int FC = 48, FS = 32, FH = FS / 2 + 1, FF = FH * FS;  // channels, side, columns of the half spectrum, frequencies
constexpr int F_GROUPS = FC / 16, F_PITCH = 264;                  // complex numbers from row to row in shared memory: 33 * 8
constexpr int F_PLANE_SMEM = FS * F_PITCH * 8 + 8 * 8;
constexpr int F_ROW = FC + 4;                                   // complex numbers from row to row of a matrix in shared memory
constexpr int F_PRODUCT_SMEM = FC * F_ROW * 8;
static_assert(F_PLANE_SMEM == 67648 && F_PRODUCT_SMEM == 19968, "the harness has the same numbers");

struct FourierArgs {
  float* g;               // [n][32][32][48], the state
  const float* k;         // the constant
  float2* spectrum;       // [frequency = column * 32 + row][n][48]
  const uint2* matrices;  // [frequency][out][in]: f16 (re, im), and the rest of them times 2^11
  float2* partial;        // [2][n][3]: sums of squared differences and of squared images, by parity of the iteration
  int* iterations;        // [n]
  int n, iteration;       // iteration: 0 for the start (no product yet), then 1, 2, ...
  float tolerance;
};

/// exp(-2 pi i m / 32) or its conjugate times (re, im); m is known at compile time after unrolling.
template <bool INVERSE> DEV void turn32(float& re, float& im, int m) {
  constexpr float COS[9] = {1.0f, 0.98078528040323043f, 0.92387953251128674f, 0.83146961230254524f, 0.70710678118654752f, 0.55557023301960218f, 0.38268343236508977f, 0.19509032201612825f, 0.0f};
  float a = re, b = im;
  if (m == 0) return;
  if (m == 8) {  // -i, or i
    re = INVERSE ? -b : b;
    im = INVERSE ? a : -a;
    return;
  }
  float c = m <= 8 ? COS[m <= 8 ? m : 0] : -COS[m > 8 ? 16 - m : 0], s = m <= 8 ? COS[m <= 8 ? 8 - m : 0] : COS[m > 8 ? m - 8 : 0];
  if (!INVERSE) s = -s;
  re = fmaf(a, c, -b * s);
  im = fmaf(a, s, b * c);
}
static __host__ DEV constexpr int reversed5(int k) { return (k & 1) << 4 | (k & 2) << 2 | (k & 4) | (k & 8) >> 2 | (k & 16) >> 4; }

/// Transform of 32 complex numbers in registers; entry k of the result is at reversed5(k).
template <bool INVERSE> DEV void fft32(float (&re)[32], float (&im)[32]) {
#pragma unroll
  for (int half = 16; half >= 1; half /= 2)
#pragma unroll
    for (int i = 0; i < 32; i++)
      if (!(i & half)) {
        int j = i + half, m = (i & (half - 1)) * (16 / half);
        float a = re[i], b = im[i];
        re[i] = a + re[j];
        im[i] = b + im[j];
        re[j] = a - re[j];
        im[j] = b - im[j];
        turn32<INVERSE>(re[j], im[j], m);
      }
}

enum FourierAct { F_RELU, F_TANH };
/// prox_t: for ReLU the activation itself for every t, for tanh with t = 1.
template <int ACT> DEV float prox(float g) { return ACT == F_RELU ? fmaxf(g, 0.0f) : tanh_exact(g); }

template <int ACT> DEV void fourier_plane(const FourierArgs& a) {
  unsigned char* raw = dyn_smem();
  float2* sm = reinterpret_cast<float2*>(raw);
  float2* sums = reinterpret_cast<float2*>(raw + FS * F_PITCH * 8);
  int tid = thread_index(), p = tid & 7, line = tid >> 3, sample = block_index() / F_GROUPS, group = block_index() % F_GROUPS;
  if (a.iteration > 1) {
    // The residual of the iteration before this one, in a fixed order, the same in all blocks of the sample.
    const float2* last = a.partial + ((size_t)((a.iteration - 1) & 1) * a.n + sample) * F_GROUPS;
    float d = (last[0].x + last[1].x) + last[2].x, s = (last[0].y + last[1].y) + last[2].y;
    if (sqrt_exact(d) <= a.tolerance * (1e-5f + sqrt_exact(s))) {
      if (tid == 0) a.partial[((size_t)(a.iteration & 1) * a.n + sample) * F_GROUPS + group] = last[group];
      return;  // the whole block
    }
  }
  float re[32], im[32];
  float2* spectrum = a.spectrum + (size_t)sample * FC + group * 16;
  size_t pixels = (((size_t)sample * FS + line) * FS) * FC + group * 16 + 2 * p;
  float difference = 0.0f, size = 0.0f;
  if (a.iteration > 0) {
    for (int i = tid; i < FF * 8; i += 256) {
      int f = i >> 3, q = i & 7, kx = f / FS, ky = f % FS;
      float4 ab = *reinterpret_cast<const float4*>(spectrum + (size_t)f * a.n * FC + 2 * q);
      sm[ky * F_PITCH + kx * 8 + q] = make_float2(ab.x - ab.w, ab.y + ab.z);
      // The spectra of the two real images at the opposite frequency are the conjugates.
      if (kx != 0 && kx != FS / 2) sm[((FS - ky) % FS) * F_PITCH + (FS - kx) * 8 + q] = make_float2(ab.x + ab.w, ab.z - ab.y);
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
    float next_re[32], next_im[32];
#pragma unroll
    for (int x = 0; x < 32; x++) {
      float2* at = reinterpret_cast<float2*>(a.g + pixels + x * FC);
      float2 old = *at, k = read_only(reinterpret_cast<const float2*>(a.k + pixels + x * FC));
      float g0 = fmaf(re[reversed5(x)], 1.0f / 32, k.x), g1 = fmaf(im[reversed5(x)], 1.0f / 32, k.y), d0 = g0 - old.x, d1 = g1 - old.y;
      difference = fmaf(d0, d0, fmaf(d1, d1, difference));
      size = fmaf(g0, g0, fmaf(g1, g1, size));
      *at = make_float2(g0, g1);
      next_re[x] = 2.0f * prox<ACT>(g0) - g0;
      next_im[x] = 2.0f * prox<ACT>(g1) - g1;
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
  if (tid == 0 && a.iteration > 0) {
    float2 s = sums[0];
    for (int w = 1; w < 8; w++) { s.x += sums[w].x; s.y += sums[w].y; }
    a.partial[((size_t)(a.iteration & 1) * a.n + sample) * F_GROUPS + group] = s;
    if (group == 0) a.iterations[sample] = a.iteration;
  }
  block_barrier();
  for (int i = tid; i < FF * 8; i += 256) {
    int f = i >> 3, q = i & 7, kx = f / FS, ky = f % FS;
    float2 z = sm[ky * F_PITCH + kx * 8 + q], m = sm[((FS - ky) % FS) * F_PITCH + ((FS - kx) % FS) * 8 + q];
    constexpr float HALF = 0.5f / 32;
    *reinterpret_cast<float4*>(spectrum + (size_t)f * a.n * FC + 2 * q) = make_float4((z.x + m.x) * HALF, (z.y - m.y) * HALF, (z.y + m.y) * HALF, (m.x - z.x) * HALF);
  }
}

/// Frequency block_index(): spectrum <- matrix spectrum for 16 samples per warp, warps taking turns.
/// A complex product is a real one on (re, im) pairs; a pair of neighbouring k is one complex number, in both fragments.
DEV void fourier_product(const FourierArgs& a) {
  uint2* sm = reinterpret_cast<uint2*>(dyn_smem());
  int tid = thread_index(), warp = tid >> 5, lane = tid & 31, g = lane >> 2, t = lane & 3;
  const uint2* matrix = a.matrices + (size_t)block_index() * FC * FC;
  for (int i = tid; i < FC * FC; i += block_size()) sm[(i / FC) * F_ROW + i % FC] = read_only(matrix + i);
  block_barrier();
  float2* spectrum = a.spectrum + (size_t)block_index() * a.n * FC;
  for (int first = warp * 16; first < a.n; first += (block_size() / 32) * 16) {
    uint32_t high[6][4], low[6][4];
#pragma unroll
    for (int ks = 0; ks < 6; ks++)
#pragma unroll
      for (int r = 0; r < 4; r++) {
        int row = first + g + (r & 1) * 8, c = ks * 8 + t + (r >> 1) * 4;
        float2 x = row < a.n ? spectrum[(size_t)row * FC + c] : make_float2(0.0f, 0.0f);
        high[ks][r] = pack_f16(x.x, x.y);
        float2 h = unpack_f16(high[ks][r]);
        low[ks][r] = pack_f16((x.x - h.x) * 2048.0f, (x.y - h.y) * 2048.0f);
      }
    // All of the warp's rows have been read before the first of them is overwritten.
    warp_barrier();
#pragma unroll
    for (int nt = 0; nt < 12; nt++) {
      float big[4] = {0.0f, 0.0f, 0.0f, 0.0f}, small[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int ks = 0; ks < 6; ks++) {
        uint2 m0 = sm[(nt * 4 + (g >> 1)) * F_ROW + ks * 8 + t], m1 = sm[(nt * 4 + (g >> 1)) * F_ROW + ks * 8 + t + 4];
        // Column (out, re) is (re, -im), column (out, im) is (im, re).
        auto column = [&](uint32_t m) { return g & 1 ? m >> 16 | m << 16 : m ^ 0x80000000u; };
        mma_f16(small, low[ks], column(m0.x), column(m1.x));
        mma_f16(small, high[ks], column(m0.y), column(m1.y));
        mma_f16(big, high[ks], column(m0.x), column(m1.x));
      }
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int row = first + g + 8 * half;
        if (row < a.n) spectrum[(size_t)row * FC + nt * 4 + t] = make_float2(fmaf(small[2 * half], 1.0f / 2048, big[2 * half]), fmaf(small[2 * half + 1], 1.0f / 2048, big[2 * half + 1]));
      }
    }
  }
}

/// matrices [count] complex f32 to split f16.
DEV void fourier_pack(const float2* from, uint2* to, int count) {
  int i = block_index() * block_size() + thread_index();
  if (i >= count) return;
  float2 x = from[i];
  uint32_t high = pack_f16(x.x, x.y);
  float2 h = unpack_f16(high);
  uint2 out;
  out.x = high;
  out.y = pack_f16((x.x - h.x) * 2048.0f, (x.y - h.y) * 2048.0f);
  to[i] = out;
}
#ifndef FOURIER_CORE_ONLY
KERNEL(256, 2) fourier_plane_relu_48x32(const FourierArgs a) { fourier_plane<F_RELU>(a); }
KERNEL(256, 2) fourier_plane_tanh_48x32(const FourierArgs a) { fourier_plane<F_TANH>(a); }
KERNEL(256, 2) fourier_product_48x32(const FourierArgs a) { fourier_product(a); }
KERNEL(256, 4) fourier_pack_48x32(const float2* from, uint2* to, int count) { fourier_pack(from, to, count); }
#endif
