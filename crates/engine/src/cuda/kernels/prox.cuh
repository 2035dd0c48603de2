// The proximal steps of the splittings.
#pragma once
#include "map.cuh"

// From the start below, 12 steps reach rounding level for every step t in [1/64, 64] (tested on the CPU); most numbers need fewer. After a step of
// Newton's that is smaller than this, relatively, what is left is its square times |1 - t| |s''| / (2 min(t, 1)): below 32 |s''| for those t.
#define NEWTON_STEPS 14
#define NEWTON_LAST 1e-5f

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
        float next = x - r / fmaf(rest, slope(map, x, s), t), step = fabsf(next - x);
        bool outside = next < lo || hi < next;
        x = outside ? 0.5f * (lo + hi) : next;
        if (!outside && step <= NEWTON_LAST * fabsf(next)) break;
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

// The same for the linear "activation" of slope d.
__device__ inline float prox(float d, float t, float g) { return d * g / (d + t * (1.0f - d)); }
