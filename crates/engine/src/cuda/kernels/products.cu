// Matrix products, and the gradients of weights.
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

// Rows are outputs, columns are taps and input channels, the sum runs over pixels.
extern "C" __global__ void __launch_bounds__(THREADS)
convolve_gradient(Factor gradients, Images images, Target c, Sizes sizes) {
    PatchesTurned patches = {images};
    whole_product<false, false>(gradients, patches, (const float*)0, c, sizes, (const u32*)0);
}

// sums[i] += sign * the parts of entry i. The entry (row, tap, in) of a part goes to (row, in, tap). A block has 32 entries; eight groups of
// threads add up every eighth part, then one of them adds those sums, in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
add_parts(const float* parts, u32 count, u64 part_stride, u64 len, u32 taps, u32 inputs, float sign, float* sums) {
    __shared__ double groups[THREADS / 32][32];
    u32 lane = threadIdx.x % 32, group = threadIdx.x / 32;
    u64 i = (u64)blockIdx.x * 32 + lane;
    double sum = 0.0;
    if (i < len)
#pragma unroll 8
        for (u32 part = group; part < count; part += THREADS / 32) sum += parts[part * part_stride + i];
    groups[group][lane] = sum;
    __syncthreads();
    if (group != 0 || i >= len) return;
    for (u32 k = 1; k < THREADS / 32; k++) sum += groups[k][lane];
    u64 row = i / ((u64)taps * inputs);
    u32 tap = i / inputs % taps, in = i % inputs;
    sums[(row * inputs + in) * taps + tap] += sign * (float)sum;
}
