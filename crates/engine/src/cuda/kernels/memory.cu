// Arrays: filled, copied, gathered.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) fill(float* x, u64 len, float value) {
    for (u64 i = first_entry(); i < len; i += entry_step()) x[i] = value;
}

extern "C" __global__ void __launch_bounds__(THREADS)
copy_rows(const float* from, u64 from_stride, float* to, u64 to_stride, u64 rows, u64 len) {
    for (u64 i = first_entry(); i < rows * len; i += entry_step()) to[i / len * to_stride + i % len] = from[i / len * from_stride + i % len];
}

#define SAMPLE 0x7fffffffu

extern "C" __global__ void __launch_bounds__(THREADS) gather_rows(const float* from, const u32* picks, u64 count, u64 len, float* to) {
    for (u64 i = first_entry(); i < count * len; i += entry_step()) to[i] = from[(u64)(picks[i / len] & SAMPLE) * len + i % len];
}

// One thread per column: of two rows for one place the later one stays, as on any device.
extern "C" __global__ void __launch_bounds__(THREADS) scatter_rows(const float* from, const u32* picks, u64 count, u64 len, float* to) {
    for (u64 i = first_entry(); i < len; i += entry_step())
        for (u64 row = 0; row < count; row++) to[(u64)(picks[row] & SAMPLE) * len + i] = from[row * len + i];
}

// Arrays that are copied together.
#define ARRAYS 4
struct Arrays {
    const float* from[ARRAYS];
    float* to[ARRAYS];
    u64 len[ARRAYS];
};

// Copies weights. state[0] becomes 1 if a number is infinite or NaN, else 0; the rest of `state` is 0 between launches: what was found
// so far, and the blocks that have arrived.
extern "C" __global__ void __launch_bounds__(THREADS) load_weights(Arrays arrays, u32* state) {
    bool bad = false;
    for (u32 k = 0; k < ARRAYS; k++)
        for (u64 i = first_entry(); i < arrays.len[k]; i += entry_step()) {
            float x = arrays.from[k][i];
            arrays.to[k][i] = x;
            bad |= !isfinite(x);
        }
    if (bad) atomicOr(state + 1, 1u);
    if (!last_to_arrive(state + 2) || threadIdx.x != 0) return;
    state[0] = atomicExch(state + 1, 0u);
}
