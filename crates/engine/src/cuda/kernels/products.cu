// Matrix products, and the gradients of weights.
#include "product.cuh"

struct Sizes {
    u32 rows, columns, depth;
    // The sum is cut into parts of so many terms; part z of the result lies z * part_stride further on.
    u32 part;
    u64 part_stride;
    u32 rows_per_sample, unused;
};

template <u32 TILE, bool A_INNER, bool B_INNER, class A, class B>
__device__ void whole_product(const A& a, const B& b, const float* bias, const Target& c, const Sizes& sizes, const u32* active) {
    if (!any_active<TILE>(active, sizes.rows, sizes.rows_per_sample)) return;
    float sums[TILE / 16][TILE / 16];
    u32 begin = blockIdx.z * sizes.part, end = min(begin + sizes.part, sizes.depth);
    tile_product<TILE, A_INNER, B_INNER>(a, b, sizes.rows, sizes.columns, begin, end, sums);
    write_tile(c, blockIdx.z * sizes.part_stride, bias, sizes.rows, sizes.columns, sums);
}

// nt: both factors lie along the sum. nn: the first lies along, the second across. tn: both lie across. In tiles of 64, or of 32
// where those would be too few for a GPU; the bits are the same.
#define PRODUCT(name, tile, a_inner, b_inner)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                 \
    name(Factor a, Factor b, const float* bias, Target c, Sizes sizes, const u32* active) {                               \
        whole_product<tile, a_inner, b_inner>(a, b, bias, c, sizes, active);                                              \
    }
PRODUCT(product_nt_64, 64, true, true)
PRODUCT(product_nt_32, 32, true, true)
PRODUCT(product_nn_64, 64, true, false)
PRODUCT(product_nn_32, 32, true, false)
PRODUCT(product_tn_64, 64, false, false)
PRODUCT(product_tn_32, 32, false, false)

// Rows are outputs, columns are taps and input channels, the sum runs over pixels.
extern "C" __global__ void __launch_bounds__(THREADS)
convolve_gradient(Factor gradients, Images images, Target c, Sizes sizes) {
    PatchesTurned patches = {images};
    whole_product<64, false, false>(gradients, patches, (const float*)0, c, sizes, (const u32*)0);
}

// c = the parts of a product, in their order, plus a bias for each column.
extern "C" __global__ void __launch_bounds__(THREADS)
join_parts(const float* parts, u32 count, u32 rows, u32 columns, const float* bias, Target c, u32 rows_per_sample, const u32* active) {
    u64 len = (u64)rows * columns;
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        u32 row = i / columns, column = i % columns;
        if (active && !active[row / rows_per_sample]) continue;
        float sum = 0.0f;
        for (u32 part = 0; part < count; part++) sum += parts[part * len + i];
        c.base[c.row.at(row) + c.column.at(column)] = sum + (bias ? bias[column] : 0.0f);
    }
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
