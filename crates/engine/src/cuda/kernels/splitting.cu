// The splittings for monotone maps e = s(W e + c) and for their adjoints q = D (W' q + v).
#include "prox.cuh"

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

// One step: `linear` is R x (Peaceman-Rachford) or W x (forward-backward). With slopes it is the adjoint's. `reflect`: the next x is wanted,
// `part` of the way to the second reflection 2e - g, or e itself.
extern "C" __global__ void __launch_bounds__(THREADS)
splitting_step(Map map, float t, float part, u32 peaceman_rachford, u32 reflect, const float* linear, const float* constant, const float* slopes,
               const float* x, float* out, u64 len, const u32* active) {
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        if (active && !active[i / map.len]) continue;
        float sum = linear[i] + constant[i];
        float g = peaceman_rachford ? sum + sum - x[i] : fmaf(t, sum - x[i], x[i]);
        float e = slopes ? prox(slopes[i], t, g) : prox(map, t, g);
        out[i] = peaceman_rachford && reflect ? fmaf(part, e + e - g - x[i], x[i]) : e;
    }
}
