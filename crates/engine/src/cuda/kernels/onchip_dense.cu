// Whole solves of small dense equilibria in one launch, all in f32: z = h(W z) + y + shift, z = h(W z + y) + shift, and the adjoint
// q = D (W' q + v), g = W' q + v. One block per sample, one thread per unit, which holds its row of W in registers.
//
// Count, 87 units, batch 256: 2*87*87*256 = 3.9 MFLOP per iteration, nothing for the chip; bytes once per solve: y and z, 178 kB, and W
// (30 kB) once per block out of L2. So the time is the latency of an iteration: 24 broadcast loads of 16 bytes, four chains of 24
// multiply-adds, the activation, one barrier. The sums for the residual (a butterfly over the warp) are taken while the NEXT product runs:
// the decision comes one product late, and the answer is the one it is about. They are f32 while these can tell that a sample goes on
// in any case; where not, the sums that decide are taken in f64.
#include "map.cuh"
#include "solve.cuh"

struct DenseSolve {
    // [out][in]
    const float* weights;
    // y, or v.
    const float* drive;
    // Adjoint: the state and the injection where the slopes are taken.
    const float *at, *at_injection;
    // z, the start in it if `given`; or g.
    float* state;
    Report* reports;
    const u32* bad;
    Stopping stopping;
    float start;
    u32 n, given, unused;
};

// Sum over a warp, for all lanes.
template <class T> __device__ inline T butterfly_sum(T x) {
#pragma unroll
    for (u32 off = 16; off > 0; off /= 2) x += __shfl_xor_sync(0xffffffffu, x, off);
    return x;
}

// Row `threadIdx.x` of an n x n matrix, by way of shared memory: 32 columns at a time, so that neighbours read neighbours.
template <u32 WIDTH> __device__ inline void read_row(const float* matrix, u32 n, float (&row)[WIDTH]) {
    __shared__ float stage[WIDTH][33];
    u32 lane = threadIdx.x % 32;
#pragma unroll
    for (u32 first = 0; first < WIDTH; first += 32) {
        for (u32 i = threadIdx.x / 32; i < n; i += WIDTH / 32)
            stage[i][lane] = first + lane < n ? matrix[i * n + first + lane] : 0.0f;
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < 32; k++) row[first + k] = threadIdx.x < n ? stage[threadIdx.x][k] : 0.0f;
        __syncthreads();
    }
}

template <u32 WIDTH> __device__ inline void read_column(const float* matrix, u32 n, float (&column)[WIDTH]) {
#pragma unroll
    for (u32 k = 0; k < WIDTH; k++) column[k] = threadIdx.x < n && k < n ? matrix[k * n + threadIdx.x] : 0.0f;
}

// The product of a row and a vector in shared memory.
template <u32 WIDTH> __device__ inline float row_product(const float (&row)[WIDTH], const float* vector) {
    const float4* quads = reinterpret_cast<const float4*>(vector);
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;
#pragma unroll
    for (u32 i = 0; i < WIDTH / 4; i++) {
        float4 x = quads[i];
        s0 = fmaf(row[4 * i], x.x, s0);
        s1 = fmaf(row[4 * i + 1], x.y, s1);
        s2 = fmaf(row[4 * i + 2], x.z, s2);
        s3 = fmaf(row[4 * i + 3], x.w, s3);
    }
    return (s0 + s1) + (s2 + s3);
}

// The sums over the block.
template <u32 WARPS, class T> __device__ inline void sum_slots(const T (&slots)[WARPS][2], T& difference, T& size) {
    difference = size = 0;
#pragma unroll
    for (u32 i = 0; i < WARPS; i++) {
        difference += slots[i][0];
        size += slots[i][1];
    }
}

// Whether a sample certainly goes on, `limit` being the square of the largest residual that can matter and a little more. (A best
// residual matters below the level of rounding only.) False where a sum is NaN or does not fit.
__device__ inline bool goes_on(float difference, float size, float limit) {
    float length = 1e-5f + sqrtf(size);
    return difference > limit * (length * length);
}

// How a sample stands, in f64; for all threads.
template <u32 WARPS>
__device__ inline bool has_ended(const Stopping& stopping, u32 k, float z, float argument, bool bad, double (&deciding)[WARPS][2],
                                 Progress& progress, Report& report) {
    double gap = (double)z - (double)argument, difference = butterfly_sum(gap * gap), size = butterfly_sum((double)z * (double)z);
    if (threadIdx.x % 32 == 0) {
        deciding[threadIdx.x / 32][0] = difference;
        deciding[threadIdx.x / 32][1] = size;
    }
    __syncthreads();
    Distance d = {0.0, 0.0, 0.0, 0.0};
    sum_slots(deciding, d.difference, d.size);
    __syncthreads();
    if (bad) d.size = NAN;
    return ended(stopping, k, d, progress, report);
}

template <u32 WIDTH, bool ADJOINT> __device__ inline void dense_solve(const Map& map, const DenseSolve& a) {
    const u32 WARPS = WIDTH / 32;
    __shared__ __align__(16) float states[2][WIDTH];
    __shared__ float slots[2][WARPS][2];
    __shared__ double deciding[WARPS][2];
    u32 j = threadIdx.x, warp = j / 32;
    bool own = j < a.n;
    u64 at = (u64)blockIdx.x * a.n + j;
    float weights[WIDTH], drive = own ? a.drive[at] : 0.0f, slope = 0.0f, z = 0.0f;
    bool bad = __syncthreads_or(!isfinite(drive)) || a.bad[0] != 0;
    read_row<WIDTH>(a.weights, a.n, weights);
    if (ADJOINT) {
        states[0][j] = own ? a.at[at] : 0.0f;
        __syncthreads();
        float u = row_product<WIDTH>(weights, states[0]);
        if (own) activate(map, map.inner ? u + a.at_injection[at] : u, slope);
        read_column<WIDTH>(a.weights, a.n, weights);
        __syncthreads();
        z = slope * drive;
    } else if (own) {
        z = a.given ? a.state[at] : a.start;
    }
    states[0][j] = z;
    states[1][j] = 0.0f;
    Progress progress = {INFINITY, 0, bad};
    Report report = {0, ITERATION_LIMIT, INFINITY};
    double near = a.stopping.tolerance > ROUNDING_LEVEL ? a.stopping.tolerance : ROUNDING_LEVEL;
    float limit = (float)(1.03 * near * near), u, argument = 0.0f;
    __syncthreads();
    for (u32 k = 0;; k++) {
        // Image number k + 1; meanwhile the sums of number k, which is z, of `argument`.
        u = row_product<WIDTH>(weights, states[k % 2]);
        float gap = z - argument, difference = butterfly_sum(gap * gap), size = butterfly_sum(z * z);
        if (j % 32 == 0) {
            slots[k % 2][warp][0] = difference;
            slots[k % 2][warp][1] = size;
        }
        float f;
        if (ADJOINT)
            f = slope * (u + drive);
        else
            f = map.inner ? activate(map, u + drive) + map.shift : activate(map, u) + (drive + map.shift);
        if (!own) f = 0.0f;
        states[(k + 1) % 2][j] = f;
        __syncthreads();
        if (k > 0) {
            sum_slots(slots[k % 2], difference, size);
            bool far = !bad && progress.best == INFINITY && k < a.stopping.max_iterations && goes_on(difference, size, limit);
            // The same in every thread. z is image number k, u its product.
            if (!far && has_ended<WARPS>(a.stopping, k, z, argument, bad, deciding, progress, report)) break;
        }
        argument = z;
        z = f;
    }
    if (own) a.state[at] = ADJOINT ? u + drive : z;
    if (j == 0) a.reports[blockIdx.x] = report;
}

extern "C" __global__ void __launch_bounds__(32) onchip_dense_solve_32(Map map, DenseSolve a) { dense_solve<32, false>(map, a); }
extern "C" __global__ void __launch_bounds__(64) onchip_dense_solve_64(Map map, DenseSolve a) { dense_solve<64, false>(map, a); }
extern "C" __global__ void __launch_bounds__(96) onchip_dense_solve_96(Map map, DenseSolve a) { dense_solve<96, false>(map, a); }
extern "C" __global__ void __launch_bounds__(128) onchip_dense_solve_128(Map map, DenseSolve a) { dense_solve<128, false>(map, a); }
extern "C" __global__ void __launch_bounds__(32) onchip_dense_adjoint_32(Map map, DenseSolve a) { dense_solve<32, true>(map, a); }
extern "C" __global__ void __launch_bounds__(64) onchip_dense_adjoint_64(Map map, DenseSolve a) { dense_solve<64, true>(map, a); }
extern "C" __global__ void __launch_bounds__(96) onchip_dense_adjoint_96(Map map, DenseSolve a) { dense_solve<96, true>(map, a); }
extern "C" __global__ void __launch_bounds__(128) onchip_dense_adjoint_128(Map map, DenseSolve a) { dense_solve<128, true>(map, a); }
