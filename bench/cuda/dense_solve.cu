// Dense equilibria, z = tanh(W z) + y + shift (outer), z = tanh(W z + y) + shift (inner), and the adjoint q = D (W^T q + v): the whole
// Picard solve in one launch, one block of 96 threads per sample, thread j holding row j of W in registers, all in f32.
//
// Count, 87 units, batch 256: 2*87*87*256 = 3.9 MFLOP per iteration, nothing for the chip; bytes once per solve: y and z, 178 kB,
// and W (30 kB) once per block out of L2. So the time is the latency of an iteration: 22 broadcast loads of 16 bytes, four chains of
// 22 multiply-adds (88 cycles), tanh, one barrier: about 250 cycles = 0.14 us. The sums for the residual (a butterfly over the warp)
// are taken while the NEXT product runs: the decision comes one iteration late, and the answer is the one it is about.
#include "dev.cuh"

enum DenseKind { DENSE_OUTER, DENSE_INNER, DENSE_ADJOINT };
struct DenseReport { int iterations, outcome; float residual; int refreshes; };
struct DenseArgs {
  const float* w;       // [out][in]
  const float* y;       // [n][N], or v
  const float* slope;   // adjoint
  float* state;         // z, or q
  float* extra;         // slopes, or g; may be null
  DenseReport* reports;
  float shift, start, tolerance;
  int max_iterations;
};

template <int N, int KIND> DEV void dense_solve(const DenseArgs& a) {
  constexpr int WARPS = (N + 31) / 32, WIDTH = WARPS * 32, QUADS = (N + 3) / 4;
  float* sm = reinterpret_cast<float*>(dyn_smem());          // two states of WIDTH numbers
  float2* slots = reinterpret_cast<float2*>(sm + 2 * WIDTH); // two sets of WARPS sums
  int j = thread_index(), warp = j >> 5, lane = j & 31;
  bool own = j < N;
  size_t at = (size_t)block_index() * N + j;
  float w[QUADS * 4];
#pragma unroll
  for (int k = 0; k < QUADS * 4; k++) w[k] = own && k < N ? read_only(a.w + (KIND == DENSE_ADJOINT ? k * N + j : j * N + k)) : 0.0f;
  float y = own ? a.y[at] : 0.0f, slope = KIND == DENSE_ADJOINT && own ? a.slope[at] : 0.0f;
  float z = own ? a.start : 0.0f, u = 0.0f, u_last = 0.0f, difference = 0.0f, size = 0.0f, residual = 0.0f, best = FLT_MAX;
  sm[j] = z;
  sm[WIDTH + j] = 0.0f;
  int outcome = -1, since = 0, k = 0;
  block_barrier();
  for (;; k++) {
    // Product number k + 1; meanwhile the sums of number k.
    const float4* from = reinterpret_cast<const float4*>(sm + (k & 1) * WIDTH);
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      float4 x = from[i];
      s0 = fmaf(w[4 * i], x.x, s0);
      s1 = fmaf(w[4 * i + 1], x.y, s1);
      s2 = fmaf(w[4 * i + 2], x.z, s2);
      s3 = fmaf(w[4 * i + 3], x.w, s3);
    }
    float2 sums = make_float2(warp_sum(difference), warp_sum(size));
    if (lane == 0) slots[(k & 1) * WARPS + warp] = sums;
    u_last = u;
    u = (s0 + s1) + (s2 + s3);
    float f;
    if (KIND == DENSE_ADJOINT) f = slope * (u + y);
    else if (KIND == DENSE_INNER) f = tanh_exact(u + y) + a.shift;
    else f = tanh_exact(u) + y + a.shift;
    if (!own) f = 0.0f;
    sm[((k + 1) & 1) * WIDTH + j] = f;
    block_barrier();
    if (k > 0) {
      float d2 = 0.0f, f2 = 0.0f;
#pragma unroll
      for (int i = 0; i < WARPS; i++) {
        float2 s = slots[(k & 1) * WARPS + i];
        d2 += s.x;
        f2 += s.y;
      }
      residual = sqrt_exact(d2) / (1e-5f + sqrt_exact(f2));
      if (residual < best) { best = residual; since = 0; } else since++;
      if (!(f2 < FLT_MAX) || !(d2 < FLT_MAX)) outcome = 2;
      else if (residual <= a.tolerance) outcome = 0;
      else if (since >= 12 && best <= 1000.0f * FLT_EPSILON) outcome = 3;
      else if (k >= a.max_iterations) outcome = 1;
      if (outcome >= 0) break;  // the same in every thread; z is image number k, u_last its product
    }
    difference = (f - z) * (f - z);
    size = f * f;
    z = f;
  }
  if (own) {
    a.state[at] = z;
    if (a.extra) {
      float t = tanh_exact(KIND == DENSE_INNER ? u_last + y : u_last);
      a.extra[at] = KIND == DENSE_ADJOINT ? u_last + y : fmaf(-t, t, 1.0f);
    }
  }
  if (j == 0) a.reports[block_index()] = DenseReport{k, outcome, residual, 0};
}
/// The same solve with four threads per row (rows of 96, 384 threads): a quarter of the chain of multiply-adds, two steps of a butterfly more, three
/// instead of five for the residual; the test without IEEE roots and quotients (it is the same in every thread; the report's residual is exact).
template <int N, int KIND> DEV void dense_solve4(const DenseArgs& a) {
  constexpr int WIDTH = (N + 7) / 8 * 8 + 8, ROWS = 96, WARPS = 12, QUADS = (N + 15) / 16;  // chunks of four numbers per thread
  static_assert(N <= ROWS && QUADS * 16 <= WIDTH, "shape");
  float* sm = reinterpret_cast<float*>(dyn_smem());
  float2* slots = reinterpret_cast<float2*>(sm + 2 * WIDTH);
  int tid = thread_index(), j = tid >> 2, part = tid & 3, warp = tid >> 5, lane = tid & 31;
  bool own = j < N, writes = part == 0 && j < WIDTH;
  size_t at = (size_t)block_index() * N + j;
  float w[QUADS * 4];
#pragma unroll
  for (int i = 0; i < QUADS; i++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int k = (i * 4 + part) * 4 + e;
      w[4 * i + e] = own && k < N ? read_only(a.w + (KIND == DENSE_ADJOINT ? k * N + j : j * N + k)) : 0.0f;
    }
  float y = own ? a.y[at] : 0.0f, slope = KIND == DENSE_ADJOINT && own ? a.slope[at] : 0.0f;
  float z = own ? a.start : 0.0f, u = 0.0f, u_last = 0.0f, difference = 0.0f, size = 0.0f, residual = 0.0f, best = FLT_MAX, d2 = 0.0f, f2 = 0.0f;
  if (writes) { sm[j] = z; sm[WIDTH + j] = 0.0f; }
  int outcome = -1, since = 0, k = 0;
  block_barrier();
  for (;; k++) {
    const float4* from = reinterpret_cast<const float4*>(sm + (k & 1) * WIDTH) + part;
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#pragma unroll
    for (int i = 0; i < QUADS; i++) {
      float4 x = from[4 * i];
      s0 = fmaf(w[4 * i], x.x, s0);
      s1 = fmaf(w[4 * i + 1], x.y, s1);
      s2 = fmaf(w[4 * i + 2], x.z, s2);
      s3 = fmaf(w[4 * i + 3], x.w, s3);
    }
    // The residual's parts meanwhile: the four threads of a row have the same number, eight rows per warp.
#pragma unroll
    for (int o = 4; o < 32; o *= 2) { difference += shfl_xor(difference, o); size += shfl_xor(size, o); }
    if (lane == 0) slots[(k & 1) * WARPS + warp] = make_float2(difference, size);
    u_last = u;
    u = (s0 + s1) + (s2 + s3);
    u += shfl_xor(u, 1);
    u += shfl_xor(u, 2);
    float f;
    if (KIND == DENSE_ADJOINT) f = slope * (u + y);
    else if (KIND == DENSE_INNER) f = tanh_exact(u + y) + a.shift;
    else f = tanh_exact(u) + y + a.shift;
    if (!own) f = 0.0f;
    if (writes) sm[((k + 1) & 1) * WIDTH + j] = f;
    block_barrier();
    if (k > 0) {
      const float4* parts = reinterpret_cast<const float4*>(slots + (k & 1) * WARPS);
      float4 p = parts[0];
#pragma unroll
      for (int i = 1; i < WARPS / 2; i++) { float4 o = parts[i]; p.x += o.x; p.y += o.y; p.z += o.z; p.w += o.w; }
      d2 = p.x + p.z;
      f2 = p.y + p.w;
      float root = sqrt_fast(d2), bound = 1e-5f + sqrt_fast(f2);
      residual = root * rcp_fast(bound);
      if (residual < best) { best = residual; since = 0; } else since++;
      if (!(f2 < FLT_MAX) || !(d2 < FLT_MAX)) outcome = 2;
      else if (root <= a.tolerance * bound) outcome = 0;
      else if (since >= 12 && best <= 1000.0f * FLT_EPSILON) outcome = 3;
      else if (k >= a.max_iterations) outcome = 1;
      if (outcome >= 0) break;
    }
    difference = (f - z) * (f - z);
    size = f * f;
    z = f;
  }
  if (own && part == 0) {
    a.state[at] = z;
    if (a.extra) {
      float t = tanh_exact(KIND == DENSE_INNER ? u_last + y : u_last);
      a.extra[at] = KIND == DENSE_ADJOINT ? u_last + y : fmaf(-t, t, 1.0f);
    }
  }
  if (tid == 0) a.reports[block_index()] = DenseReport{k, outcome, sqrt_exact(d2) / (1e-5f + sqrt_exact(f2)), 0};
}
KERNEL(384, 2) dense4_solve_outer_87(const DenseArgs a) { dense_solve4<87, DENSE_OUTER>(a); }
KERNEL(384, 2) dense4_solve_inner_87(const DenseArgs a) { dense_solve4<87, DENSE_INNER>(a); }
KERNEL(384, 2) dense4_adjoint_87(const DenseArgs a) { dense_solve4<87, DENSE_ADJOINT>(a); }
KERNEL(96, 4) dense_solve_outer_87(const DenseArgs a) { dense_solve<87, DENSE_OUTER>(a); }
KERNEL(96, 4) dense_solve_inner_87(const DenseArgs a) { dense_solve<87, DENSE_INNER>(a); }
KERNEL(96, 4) dense_adjoint_87(const DenseArgs a) { dense_solve<87, DENSE_ADJOINT>(a); }
