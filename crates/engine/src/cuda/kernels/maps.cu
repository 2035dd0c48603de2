// Maps beyond their linear parts: epilogues, slopes, normalisations, and the way back through them.
// States are [sample][entry]; preactivations, slopes and what is fed to the transposed operators are [sample][plane][entry].
#include "map.cuh"

// Blocks are shared out by samples, `gridDim.x / batch` to each.
struct Share {
    u32 sample;
    u64 first, step;
};
__device__ inline Share share_of(u32 batch) {
    u32 blocks = gridDim.x / batch;
    return {blockIdx.x / blocks, (u64)(blockIdx.x % blocks) * THREADS + threadIdx.x, (u64)blocks * THREADS};
}

// u <- h(u), all planes: before the gains.
extern "C" __global__ void __launch_bounds__(THREADS) activate_planes(Map map, u32 batch, float* u, const u32* active) {
    Share share = share_of(batch);
    if (active && !active[share.sample]) return;
    float* of = u + (u64)share.sample * map.planes * map.len;
    for (u64 i = share.first; i < map.planes * map.len; i += share.step) of[i] = activate(map, of[i]);
}

// out <- f(u, w; y) + shift, before any normalisation.
extern "C" __global__ void __launch_bounds__(THREADS)
epilogue(Map map, u32 batch, const float* u, const float* y, float* out, const u32* active) {
    Share share = share_of(batch);
    if (active && !active[share.sample]) return;
    const float* us = u + (u64)share.sample * map.planes * map.len;
    const float* ws = us + (map.planes - 1) * map.len;
    u64 other = map.formula == POWER_RATIO ? map.len : 0;
    const float* ys = y + share.sample * (map.len + other);
    float* to = out + (u64)share.sample * map.len;
    for (u64 i = share.first; i < map.len; i += share.step) to[i] = image_of(map, us[i], ws[i], ys[i], ys[other + i]);
}

// The slopes, and out <- f + shift where it is wanted. For gains: u and w become h(u) and h(w), and there is no out.
extern "C" __global__ void __launch_bounds__(THREADS)
slopes(Map map, u32 batch, float* u, const float* y, float* d, float* out) {
    Share share = share_of(batch);
    u64 at = (u64)share.sample * map.planes * map.len, second = (map.planes - 1) * map.len;
    u64 other = map.formula == POWER_RATIO ? map.len : 0;
    const float* ys = y + share.sample * (map.len + other);
    for (u64 i = share.first; i < map.len; i += share.step) {
        float a = u[at + i], b = u[at + second + i], du, dw;
        float f = slopes_of(map, a, b, ys[i], ys[other + i], du, dw);
        d[at + i] = du;
        if (second) d[at + second + i] = dw;
        if (map.formula == GAINS) {
            u[at + i] = a;
            u[at + second + i] = b;
        } else if (out) {
            out[(u64)share.sample * map.len + i] = f;
        }
    }
}

// The slopes of an activation with a kink at 0, at a solution z that is what the activation made of its preactivations.
extern "C" __global__ void __launch_bounds__(THREADS) kink_slopes(const float* z, float below, float* slopes, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) slopes[i] = z[i] > 0.0f ? 1.0f : below;
}

// out[i] = g[i] + v[i].
extern "C" __global__ void __launch_bounds__(THREADS) add_states(const float* g, const float* v, float* out, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = g[i] + v[i];
}

// q <- slopes times g + v (v may be missing); with gains, times what the transposed gains made of it, and minus for B.
extern "C" __global__ void __launch_bounds__(THREADS)
slope_product(Map map, u32 batch, const float* g, const float* v, const float* gained, const float* d, float* q, const u32* active) {
    Share share = share_of(batch);
    if (active && !active[share.sample]) return;
    u64 at = (u64)share.sample * map.planes * map.len, state = (u64)share.sample * map.len;
    for (u64 i = share.first; i < map.planes * map.len; i += share.step) {
        // There are two planes at most.
        u64 entry = i < map.len ? i : i - map.len;
        if (gained) {
            float product = d[at + i] * gained[at + i];
            q[at + i] = i >= map.len ? -product : product;
        } else {
            q[at + i] = d[at + i] * (g[state + entry] + (v ? v[state + entry] : 0.0f));
        }
    }
}

// The norm that is taken: p, or 0 for the largest absolute value.
__device__ inline float power_of_size(float x, float p) { return p == 1.0f ? fabsf(x) : p == 2.0f ? x * x : powf(fabsf(x), p); }

__device__ inline float size_slope(float x, float p) {
    float size = p == 1.0f ? (fabsf(x) > 0.0f ? 1.0f : 0.0f) : p == 2.0f ? fabsf(x) : powf(fabsf(x), p - 1.0f);
    return copysignf(size, x);
}

// f <- f / norm(f) of whole states, one block each; the reciprocal norm is kept. `gradient`, where given, becomes that of the norm.
extern "C" __global__ void __launch_bounds__(THREADS)
normalise_vectors(u64 len, float p, float* f, float* inverse, float* gradient, const u32* active) {
    u32 sample = blockIdx.x;
    if (active && !active[sample]) return;
    float* of = f + sample * len;
    double largest = 0.0;
    for (u64 i = threadIdx.x; i < len; i += THREADS) {
        double size = fabsf(of[i]);
        if (!(size < largest)) largest = size;
    }
    float unit = 1.0f / (float)block_max(largest), total = unit;
    if (p != 0.0f) {
        double sum = 0.0;
        for (u64 i = threadIdx.x; i < len; i += THREADS) sum += power_of_size(of[i] * unit, p);
        total = unit / (float)pow(block_sum(sum), 1.0 / (double)p);
    }
    if (threadIdx.x == 0 && inverse) inverse[sample] = total;
    double best = -1.0;
    u64 first = len;
    for (u64 i = threadIdx.x; i < len; i += THREADS) {
        of[i] *= total;
        if (gradient && p != 0.0f) gradient[sample * len + i] = size_slope(of[i], p);
        if (gradient && p == 0.0f) gradient[sample * len + i] = 0.0f;
        if (fabsf(of[i]) > best) {
            best = fabsf(of[i]);
            first = i;
        }
    }
    if (!gradient || p != 0.0f) return;
    // The first of the largest: every thread has the first of its own.
    double top = block_max(best);
    double candidate = best == top ? -(double)first : -(double)len;
    u64 winner = (u64)(-block_max(candidate));
    if (threadIdx.x == 0 && winner < len) gradient[sample * len + winner] = copysignf(1.0f, of[winner]);
}

// The same for images along their height: one thread per column and channel (`row` of them).
extern "C" __global__ void __launch_bounds__(THREADS)
normalise_columns(u32 batch, u32 row, u32 height, float p, float* f, float* inverse, float* gradient, const u32* active) {
    u64 at = first_entry();
    if (at >= (u64)batch * row) return;
    u32 sample = at / row, column = at % row;
    if (active && !active[sample]) return;
    float* of = f + (u64)sample * row * height + column;
    float largest = 0.0f;
    for (u32 i = 0; i < height; i++) {
        float size = fabsf(of[(u64)i * row]);
        if (!(size < largest)) largest = size;
    }
    float unit = 1.0f / largest, total = unit;
    if (p != 0.0f) {
        float sum = 0.0f;
        for (u32 i = 0; i < height; i++) sum += power_of_size(of[(u64)i * row] * unit, p);
        total = unit / (p == 1.0f ? sum : p == 2.0f ? sqrtf(sum) : powf(sum, 1.0f / p));
    }
    if (inverse) inverse[at] = total;
    u32 first = 0;
    float* slopes = gradient ? gradient + (u64)sample * row * height + column : 0;
    for (u32 i = 0; i < height; i++) {
        of[(u64)i * row] *= total;
        if (slopes) slopes[(u64)i * row] = p != 0.0f ? size_slope(of[(u64)i * row], p) : 0.0f;
        if (fabsf(of[(u64)i * row]) > fabsf(of[(u64)first * row])) first = i;
    }
    if (slopes && p == 0.0f) slopes[(u64)first * row] = copysignf(1.0f, of[(u64)first * row]);
}

// g <- (g - <g, f> gradient) inverse, f the normalised state.
extern "C" __global__ void __launch_bounds__(THREADS)
pull_vectors(u64 len, const float* f, const float* gradient, const float* inverse, float* g, const u32* active) {
    u64 sample = blockIdx.x, at = sample * len;
    if (active && !active[sample]) return;
    double inner = 0.0;
    for (u64 i = threadIdx.x; i < len; i += THREADS) inner += (double)f[at + i] * g[at + i];
    float along = (float)block_sum(inner);
    for (u64 i = threadIdx.x; i < len; i += THREADS) g[at + i] = (g[at + i] - along * gradient[at + i]) * inverse[sample];
}

extern "C" __global__ void __launch_bounds__(THREADS)
pull_columns(u32 batch, u32 row, u32 height, const float* f, const float* gradient, const float* inverse, float* g, const u32* active) {
    u64 thread = first_entry();
    if (thread >= (u64)batch * row) return;
    u32 sample = thread / row, column = thread % row;
    if (active && !active[sample]) return;
    u64 at = (u64)sample * row * height + column;
    float inner = 0.0f;
    for (u32 i = 0; i < height; i++) inner = fmaf(f[at + (u64)i * row], g[at + (u64)i * row], inner);
    for (u32 i = 0; i < height; i++) {
        u64 k = at + (u64)i * row;
        g[k] = (g[k] - inner * gradient[k]) * inverse[thread];
    }
}
