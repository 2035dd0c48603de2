// The splittings for monotone maps e = s(W e + c) and for their adjoints q = D (W' q + v).
#include "map.cuh"

// From the start below, 12 steps reach rounding level for every step t in [1/64, 64] (tested on the CPU).
#define NEWTON_STEPS 14

// For g >= 0: t x + (1 - t) x / (1 + x) = g, i.e. t x^2 + (1 - g) x - g = 0; odd in g.
__device__ inline float softsign_prox(float t, float g) {
    float size = fabsf(g) > 1e15f ? 1e15f : fabsf(g), b = 1.0f - size;
    float root = sqrtf(b * b + 4.0f * t * size);
    // The form without cancellation on either side.
    float x = b > 0.0f ? 2.0f * size / fmaxf(b + root, 1e-30f) : (root - b) * (0.5f / t);
    return copysignf(x / (1.0f + x), g);
}

// Newton's method for r(x) = t x + (1 - t) s(x) - g, kept inside a bracket.
__device__ inline float newton(const Map& map, float t, float g) {
    float rest = 1.0f - t, gap = g - rest * value(map, 0.0f);
    float one = gap / fminf(t, 1.0f), other = gap / fmaxf(t, 1.0f);
    float lo = fminf(one, other), hi = fmaxf(one, other), x = 0.5f * (lo + hi);
    for (u32 k = 0; k < NEWTON_STEPS; k++) {
        float s = value(map, x), r = fmaf(rest, s, fmaf(t, x, -g));
        if (r < 0.0f) lo = x;
        else hi = x;
        float next = x - r / fmaf(rest, slope(map, x, s), t);
        x = next < lo || hi < next ? 0.5f * (lo + hi) : next;
    }
    return value(map, x);
}

// The root z of z + t (s^-1(z) - z) = g.
__device__ inline float prox(const Map& map, float t, float g) {
    if (t == 1.0f) return value(map, g);
    switch (map.activation) {
        case LEAKY_RELU: {
            // Negative side: t x + (1 - t) slope x = g.
            float factor = map.first == 0.0f ? 0.0f : map.first / (t + (1.0f - t) * map.first);
            return g > 0.0f ? g : g * factor;
        }
        case IDENTITY: return g;
        case HARD_TANH: return value(map, g);
        case SOFTSIGN: return softsign_prox(t, g);
        default: return newton(map, t, g);
    }
}

// b and c of z = s(W z + y) + b: inner injections c = y, b = shift; outer ones c = 0, b = y + shift. W b is added to c elsewhere.
extern "C" __global__ void __launch_bounds__(THREADS) splitting_offsets(Map map, const float* y, float* offset, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) offset[i] = map.inner ? map.shift : y[i] + map.shift;
}

extern "C" __global__ void __launch_bounds__(THREADS) splitting_constants(Map map, const float* y, const float* product, float* constant, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) constant[i] = (map.inner ? y[i] : 0.0f) + product[i];
}

// out = a x.
extern "C" __global__ void __launch_bounds__(THREADS) scale(float a, const float* x, float* out, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = a * x[i];
}

// out = x - b, where x may be missing: then it is `value` everywhere.
extern "C" __global__ void __launch_bounds__(THREADS) splitting_start(const float* x, float value, const float* b, float* out, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = (x ? x[i] : value) - b[i];
}

// One step: `linear` is R x (Peaceman-Rachford) or W x (forward-backward). With slopes it is the adjoint's. `reflect`: the second
// reflection 2e - g is wanted, or e itself.
extern "C" __global__ void __launch_bounds__(THREADS)
splitting_step(Map map, float t, u32 peaceman_rachford, u32 reflect, const float* linear, const float* constant, const float* slopes,
               const float* x, float* out, u64 len, const u32* active) {
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        if (active && !active[i / map.len]) continue;
        float sum = linear[i] + constant[i];
        float g = peaceman_rachford ? sum + sum - x[i] : fmaf(t, sum - x[i], x[i]);
        float e;
        if (slopes) {
            float d = slopes[i];
            e = d * g / (d + t * (1.0f - d));
        } else {
            e = prox(map, t, g);
        }
        out[i] = peaceman_rachford && reflect ? e + e - g : e;
    }
}
