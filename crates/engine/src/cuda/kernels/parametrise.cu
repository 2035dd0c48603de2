// Weights from free parameters, and gradients the other way.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) make_absolute(const float* v, float* w, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) w[i] = fabsf(v[i]);
}

// Rows of even number positive, of odd number negative.
extern "C" __global__ void __launch_bounds__(THREADS) make_row_signed(const float* v, float* w, u64 len, u64 row) {
    for (u64 i = first_entry(); i < len; i += entry_step()) w[i] = i / row % 2 == 0 ? fabsf(v[i]) : -fabsf(v[i]);
}

// A NaN stays one in both parts.
extern "C" __global__ void __launch_bounds__(THREADS) make_split(const float* v, float* positive, float* negative, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        positive[i] = v[i] <= 0.0f ? 0.0f : v[i];
        negative[i] = v[i] >= 0.0f ? 0.0f : -v[i];
    }
}

// tied[i] = tie * (sum of row i of B).
extern "C" __global__ void __launch_bounds__(THREADS) make_tied(const float* b, double tie, u32 units, float* tied) {
    u32 i = first_entry();
    if (i >= units) return;
    double sum = 0.0;
    for (u32 k = 0; k < units; k++) sum += b[(u64)i * units + k];
    tied[i] = (float)(tie * sum);
}

extern "C" __global__ void __launch_bounds__(THREADS) pull_tied(const float* gradient, const float* sums, float tie, u32 units, float* pulled) {
    for (u64 i = first_entry(); i < (u64)units * units; i += entry_step()) pulled[i] = gradient[i] + tie * sums[i / units];
}

extern "C" __global__ void __launch_bounds__(THREADS) pull_absolute(const float* v, const float* g, float* out, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = v[i] < 0.0f ? -g[i] : g[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) pull_row_signed(const float* v, const float* g, float* out, u64 len, u64 row) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = (i / row % 2 == 0) == (v[i] < 0.0f) ? -g[i] : g[i];
}

extern "C" __global__ void __launch_bounds__(THREADS)
pull_split(const float* v, const float* positive, const float* negative, float* out, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = v[i] < 0.0f ? -negative[i] : positive[i];
}

// The tap of W's kernel that is `to - from`, both taps of a factor's kernel of side `side`.
__device__ constexpr u32 difference(u32 side, u32 to, u32 from) {
    return (to / side + side - 1 - from / side) * (2 * side - 1) + to % side + side - 1 - from % side;
}

// Channels of the sum that are in shared memory at a time.
#define STEP 4

// W = (1 - m) I - A'A + B - B', kernels [out][in][tap]. A block has 16 x 16 pairs of channels, a thread all taps of one.
template <u32 SIDE>
__device__ void make_product(const float* a, const float* b, u32 n, float identity, float* w) {
    constexpr u32 COUNT = SIDE * SIDE, TAPS = (2 * SIDE - 1) * (2 * SIDE - 1), ROW = 16 * COUNT;
    __shared__ float outs[STEP][ROW], ins[STEP][ROW];
    u32 tiles = (n + 15) / 16, left = blockIdx.x / tiles * 16, right = blockIdx.x % tiles * 16;
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16, out = left + row, in = right + column;
    float sums[TAPS];
#pragma unroll
    for (u32 tap = 0; tap < TAPS; tap++) sums[tap] = 0.0f;
    for (u32 first = 0; first < n; first += STEP) {
        __syncthreads();
        for (u32 i = threadIdx.x; i < STEP * ROW; i += THREADS) {
            u32 k = i / ROW, place = i % ROW;
            const float* of_k = a + (u64)(first + k) * n * COUNT;
            outs[k][place] = first + k < n && left * COUNT + place < n * COUNT ? of_k[left * COUNT + place] : 0.0f;
            ins[k][place] = first + k < n && right * COUNT + place < n * COUNT ? of_k[right * COUNT + place] : 0.0f;
        }
        __syncthreads();
        for (u32 k = 0; k < STEP; k++)
#pragma unroll
            for (u32 e = 0; e < COUNT; e++)
#pragma unroll
                for (u32 f = 0; f < COUNT; f++)
                    sums[difference(SIDE, f, e)] -= outs[k][row * COUNT + e] * ins[k][column * COUNT + f];
    }
    if (out >= n || in >= n) return;
    if (in == out) sums[TAPS / 2] += identity;
#pragma unroll
    for (u32 e = 0; e < COUNT; e++) {
        constexpr u32 CENTRE = (COUNT - 1) / 2;
        sums[difference(SIDE, e, CENTRE)] += b[((u64)out * n + in) * COUNT + e];
        sums[TAPS - 1 - difference(SIDE, e, CENTRE)] -= b[((u64)in * n + out) * COUNT + e];
    }
#pragma unroll
    for (u32 tap = 0; tap < TAPS; tap++) w[((u64)out * n + in) * TAPS + tap] = sums[tap];
}

// With S = G + G' the gradients are -A S and G - G'. A block has 16 x 16 pairs of channels, a thread all taps of one.
template <u32 SIDE>
__device__ void pull_product(const float* a, const float* g, u32 n, float* ga, float* gb) {
    constexpr u32 COUNT = SIDE * SIDE, TAPS = (2 * SIDE - 1) * (2 * SIDE - 1), ROW = STEP * COUNT;
    __shared__ float factors[16][ROW], symmetric[STEP][16 * TAPS];
    u32 tiles = (n + 15) / 16, top = blockIdx.x / tiles * 16, left = blockIdx.x % tiles * 16;
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16, k = top + row, i = left + column;
    float sums[COUNT];
#pragma unroll
    for (u32 e = 0; e < COUNT; e++) sums[e] = 0.0f;
    for (u32 first = 0; first < n; first += STEP) {
        __syncthreads();
        for (u32 at = threadIdx.x; at < 16 * ROW; at += THREADS) {
            u32 of = top + at / ROW, place = first * COUNT + at % ROW;
            factors[at / ROW][at % ROW] = of < n && place < n * COUNT ? a[(u64)of * n * COUNT + place] : 0.0f;
        }
        for (u32 at = threadIdx.x; at < STEP * 16 * TAPS; at += THREADS) {
            u32 j = first + at / (16 * TAPS), to = left + at / TAPS % 16, tap = at % TAPS;
            bool inside = j < n && to < n;
            symmetric[at / (16 * TAPS)][at % (16 * TAPS)] =
                inside ? g[((u64)j * n + to) * TAPS + tap] + g[((u64)to * n + j) * TAPS + TAPS - 1 - tap] : 0.0f;
        }
        __syncthreads();
        for (u32 j = 0; j < STEP; j++)
#pragma unroll
            for (u32 e = 0; e < COUNT; e++)
#pragma unroll
                for (u32 f = 0; f < COUNT; f++)
                    sums[e] -= factors[row][j * COUNT + f] * symmetric[j][column * TAPS + difference(SIDE, e, f)];
    }
    if (k >= n || i >= n) return;
#pragma unroll
    for (u32 e = 0; e < COUNT; e++) {
        u64 at = ((u64)k * n + i) * COUNT + e;
        u32 centred = difference(SIDE, e, (COUNT - 1) / 2);
        ga[at] = sums[e];
        gb[at] = g[((u64)k * n + i) * TAPS + centred] - g[((u64)i * n + k) * TAPS + TAPS - 1 - centred];
    }
}

// Factors that are matrices or kernels of side 1, and of sides 3 and 5.
#define PRODUCTS(side)                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                     \
    make_product_##side(const float* a, const float* b, u32 n, float identity, float* w) {                    \
        make_product<side>(a, b, n, identity, w);                                                             \
    }                                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                     \
    pull_product_##side(const float* a, const float* g, u32 n, float* ga, float* gb) {                        \
        pull_product<side>(a, g, n, ga, gb);                                                                  \
    }
PRODUCTS(1)
PRODUCTS(3)
PRODUCTS(5)

// B = b A, b one number.
extern "C" __global__ void __launch_bounds__(THREADS) make_skew(const float* a, const float* b, float* skew, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) skew[i] = b[0] * a[i];
}

// What the gradient for B = b A adds to that for A.
extern "C" __global__ void __launch_bounds__(THREADS) pull_skew(const float* b, const float* skew, float* ga, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) ga[i] += b[0] * skew[i];
}

// The gradient for b: the sum of A times the gradient for B = b A. One block.
extern "C" __global__ void __launch_bounds__(THREADS) sum_skew(const float* a, const float* skew, float* gb, u64 len) {
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < len; i += THREADS) sum += (double)a[i] * skew[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) gb[0] = (float)sum;
}
