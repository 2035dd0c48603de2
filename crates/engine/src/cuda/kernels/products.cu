// Linear parts: matrix products and convolutions, their transposes, and the gradients of their weights.
#include "product.cuh"

struct Sizes {
    u32 rows, columns, depth;
    // The sum is cut into parts of so many terms; part z of the result lies z * part_stride further on.
    u32 part;
    u64 part_stride;
    u32 rows_per_sample, unused;
};

template <bool A_INNER, bool B_INNER, class A, class B>
__device__ void whole_product(const A& a, const B& b, const float* bias, const Target& c, const Sizes& sizes, const u32* active) {
    if (!any_active(active, sizes.rows, sizes.rows_per_sample)) return;
    float sums[4][4];
    u32 begin = blockIdx.z * sizes.part, end = min(begin + sizes.part, sizes.depth);
    tile_product<A_INNER, B_INNER>(a, b, sizes.rows, sizes.columns, begin, end, sums);
    write_tile(c, blockIdx.z * sizes.part_stride, bias, sizes.rows, sizes.columns, sums);
}

// Both factors lie along the sum.
extern "C" __global__ void __launch_bounds__(THREADS)
product_nt(Factor a, Factor b, const float* bias, Target c, Sizes sizes, const u32* active) {
    whole_product<true, true>(a, b, bias, c, sizes, active);
}

// The first lies along the sum, the second across.
extern "C" __global__ void __launch_bounds__(THREADS)
product_nn(Factor a, Factor b, const float* bias, Target c, Sizes sizes, const u32* active) {
    whole_product<true, false>(a, b, bias, c, sizes, active);
}

// Both lie across.
extern "C" __global__ void __launch_bounds__(THREADS)
product_tn(Factor a, Factor b, const float* bias, Target c, Sizes sizes, const u32* active) {
    whole_product<false, false>(a, b, bias, c, sizes, active);
}

// Rows are pixels, the sum runs over planes, taps and channels.
extern "C" __global__ void __launch_bounds__(THREADS)
convolve(Images images, Factor weights, const float* bias, Target c, Sizes sizes, const u32* active) {
    Patches patches = {images};
    whole_product<true, false>(patches, weights, bias, c, sizes, active);
}

// Rows are outputs, columns are taps and input channels, the sum runs over pixels.
extern "C" __global__ void __launch_bounds__(THREADS)
convolve_gradient(Factor gradients, Images images, Target c, Sizes sizes) {
    PatchesTurned patches = {images};
    whole_product<false, false>(gradients, patches, (const float*)0, c, sizes, (const u32*)0);
}

// Weights [out][in][tap] of one plane in the order in which `convolve` sums: forward one row per (tap, in) with a column per
// (plane, out); transposed one row per (plane, mirrored tap, out) with a column per in.
extern "C" __global__ void __launch_bounds__(THREADS)
pack_weights(const float* w, float* packed, u32 outputs, u32 inputs, u32 taps, u32 plane, u32 planes, u32 transposed) {
    u64 count = (u64)outputs * inputs * taps;
    for (u64 i = first_entry(); i < count; i += entry_step()) {
        u32 tap = i % taps, in = i / taps % inputs, out = i / taps / inputs;
        u64 at = transposed ? (((u64)plane * taps + (taps - 1 - tap)) * outputs + out) * inputs + in
                            : ((u64)tap * inputs + in) * ((u64)planes * outputs) + (u64)plane * outputs + out;
        packed[at] = w[i];
    }
}

// sums[i] += sign * the parts of entry i, in their order. The entry (row, tap, in) of a part goes to (row, in, tap).
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(const float* parts, u32 count, u64 part_stride, u64 len, u32 taps, u32 inputs, float sign, float* sums) {
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        double sum = 0.0;
        for (u32 part = 0; part < count; part++) sum += parts[part * part_stride + i];
        u64 row = i / ((u64)taps * inputs);
        u32 tap = i / inputs % taps, in = i % inputs;
        u64 to = (row * inputs + in) * taps + tap;
        sums[to] += sign * (float)sum;
    }
}
