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

// bad[0] becomes 1 if a number is infinite or NaN.
extern "C" __global__ void __launch_bounds__(THREADS) find_bad(const float* x, u64 len, u32* bad) {
    for (u64 i = first_entry(); i < len; i += entry_step())
        if (!isfinite(x[i])) bad[0] = 1;
}
