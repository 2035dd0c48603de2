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
__device__ inline u32 difference(u32 side, u32 to, u32 from) {
    u32 down = to / side + side - 1 - from / side, right = to % side + side - 1 - from % side;
    return down * (2 * side - 1) + right;
}

// W = (1 - m) I - A'A + B - B', kernels [out][in][tap]; one thread per entry of W.
extern "C" __global__ void __launch_bounds__(THREADS)
make_product(const float* a, const float* b, u32 n, u32 side, float identity, float* w) {
    u32 count = side * side, taps = (2 * side - 1) * (2 * side - 1);
    for (u64 at = first_entry(); at < (u64)n * n * taps; at += entry_step()) {
        u32 tap = at % taps, in = at / taps % n, out = at / taps / n;
        float sum = 0.0f;
        for (u32 e = 0; e < count; e++) {
            u32 centred = difference(side, e, (count - 1) / 2);
            if (centred == tap) sum += b[((u64)out * n + in) * count + e];
            if (taps - 1 - centred == tap) sum -= b[((u64)in * n + out) * count + e];
        }
        for (u32 e = 0; e < count; e++)
            for (u32 f = 0; f < count; f++) {
                if (difference(side, f, e) != tap) continue;
                for (u32 k = 0; k < n; k++) sum -= a[((u64)k * n + out) * count + e] * a[((u64)k * n + in) * count + f];
            }
        if (tap == taps / 2 && in == out) sum += identity;
        w[at] = sum;
    }
}

// With S = G + G' the gradients are -A S and G - G'; one thread per entry of A and of B.
extern "C" __global__ void __launch_bounds__(THREADS)
pull_product(const float* a, const float* g, u32 n, u32 side, float* ga, float* gb) {
    u32 count = side * side, taps = (2 * side - 1) * (2 * side - 1);
    for (u64 at = first_entry(); at < (u64)n * n * count; at += entry_step()) {
        u32 e = at % count, i = at / count % n, k = at / count / n;
        u32 centred = difference(side, e, (count - 1) / 2);
        gb[at] = g[((u64)k * n + i) * taps + centred] - g[((u64)i * n + k) * taps + taps - 1 - centred];
        float sum = 0.0f;
        for (u32 f = 0; f < count; f++) {
            u32 tap = difference(side, e, f);
            for (u32 j = 0; j < n; j++) {
                float symmetric = g[((u64)j * n + i) * taps + tap] + g[((u64)i * n + j) * taps + taps - 1 - tap];
                sum -= a[((u64)k * n + j) * count + f] * symmetric;
            }
        }
        ga[at] = sum;
    }
}

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
