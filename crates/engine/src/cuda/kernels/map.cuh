// A map's constants and its scalar functions.
#pragma once
#include "common.cuh"

// The order of `Formula` in map.rs.
enum : u32 { SINGLE, SPLIT_SIGN, DIVISIVE, RATIONAL, POWER_RATIO, GAINS };
// ReLU is a leaky one of slope 0.
enum : u32 { TANH, SIGMOID, SOFTPLUS, SOFTSIGN, HARD_TANH, LEAKY_RELU, IDENTITY };

struct Map {
    u32 formula, activation, inner, has_power;
    // The activation's constants: beta and 1 / beta, lo and hi, or the slope.
    float first, second;
    float base, power, shift, q, p, e;
    u32 planes, units;
    u64 len;
};

__device__ inline float sigmoid(float u) {
    float decay = expf(-fabsf(u));
    return u >= 0.0f ? 1.0f / (1.0f + decay) : decay / (1.0f + decay);
}

// s(u); NaN stays NaN, whatever the activation.
__device__ inline float value(const Map& map, float u) {
    switch (map.activation) {
        case TANH: return tanhf(u);
        case SIGMOID: return sigmoid(u);
        case SOFTPLUS: {
            float t = u * map.first;
            return (fmaxf(t, 0.0f) + log1pf(expf(-fabsf(t)))) * map.second;
        }
        case SOFTSIGN: {
            // An infinite argument would give NaN; 1e30 is beyond where the value rounds to 1.
            float size = fabsf(u) > 1e30f ? 1e30f : fabsf(u);
            return copysignf(size / (1.0f + size), u);
        }
        case HARD_TANH: return u < map.first ? map.first : (u > map.second ? map.second : u);
        case LEAKY_RELU: return u > 0.0f ? u : u * map.first;
        default: return u;
    }
}

// s'(u), where s(u) = s.
__device__ inline float slope(const Map& map, float u, float s) {
    switch (map.activation) {
        case TANH: return (1.0f - s) * (1.0f + s);
        case SIGMOID: return s * (1.0f - s);
        case SOFTPLUS: return sigmoid(u * map.first);
        case SOFTSIGN: {
            float r = 1.0f / (1.0f + fabsf(u));
            return r * r;
        }
        case HARD_TANH: return u > map.first && u < map.second ? 1.0f : 0.0f;
        case LEAKY_RELU: return u > 0.0f ? 1.0f : map.first;
        default: return 1.0f;
    }
}

// h(u) = (s(u) + base)^power.
__device__ inline float activate(const Map& map, float u) {
    float s = value(map, u);
    return map.has_power ? powf(s + map.base, map.power) : s;
}

// h(u), and its slope.
__device__ inline float activate(const Map& map, float u, float& d) {
    float s = value(map, u);
    d = slope(map, u, s);
    if (!map.has_power) return s;
    float based = s + map.base, h = powf(based, map.power);
    d *= map.power * h / based;
    return h;
}

// f(u, w; y) + shift, before any normalisation. For gains u and w are A h(P z) and B h(N z) already; `other` is the second injection
// of a power ratio.
__device__ inline float image_of(const Map& map, float u, float w, float y, float other) {
    switch (map.formula) {
        case SINGLE: return map.inner ? activate(map, u + y) + map.shift : activate(map, u) + (y + map.shift);
        case SPLIT_SIGN: return activate(map, u) - activate(map, w) + (y + map.shift);
        case GAINS: return u - w + (y + map.shift);
        case DIVISIVE: return activate(map, u / (map.q + w)) + (y + map.shift);
        case RATIONAL: return u / (map.q + u + w) + (y + map.shift);
        default: return powf((u + y + map.e) / (w + other + map.e), map.p);
    }
}

// The same, with the slopes df/du and df/dw. For gains: the slopes of h, u <- h(u), w <- h(w), and nothing of use is returned.
__device__ inline float slopes_of(const Map& map, float& u, float& w, float y, float other, float& du, float& dw) {
    dw = 0.0f;
    switch (map.formula) {
        case SINGLE: return map.inner ? activate(map, u + y, du) + map.shift : activate(map, u, du) + (y + map.shift);
        case SPLIT_SIGN: {
            float f = activate(map, u, du) - activate(map, w, dw) + (y + map.shift);
            dw = -dw;
            return f;
        }
        case GAINS:
            u = activate(map, u, du);
            w = activate(map, w, dw);
            return 0.0f;
        case DIVISIVE: {
            float b = map.q + w, r = u / b, steep, f = activate(map, r, steep) + (y + map.shift);
            du = steep / b;
            dw = -(steep / b) * r;
            return f;
        }
        case RATIONAL: {
            float b = map.q + w, r = 1.0f / (u + b);
            du = b * r * r;
            dw = -u * r * r;
            return u * r + (y + map.shift);
        }
        default: {
            float a = u + y + map.e, b = w + other + map.e, f = powf(a / b, map.p);
            du = map.p * f / a;
            dw = -map.p * f / b;
            return f;
        }
    }
}
