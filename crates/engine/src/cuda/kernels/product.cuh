// Sums of products in square tiles, 32 deep, some of the sums in the registers of each thread. The next slabs are on their way while
// these are multiplied.
// Each sum runs over its terms in their order, whatever else is in the tile: a row's bits do not depend on the other rows.
#pragma once
#include "common.cuh"

#define DEPTH 32

// Index i lies at (i / group) * group_stride + (i % group) * stride.
struct Axis {
    u64 group_stride, stride;
    u32 group, unused;
    __device__ u64 at(u32 i) const { return (u64)(i / group) * group_stride + (u64)(i % group) * stride; }
};

// A factor by its entries: `outer` is the index that the result keeps, `inner` the one that is summed over.
struct Factor {
    const float* base;
    Axis outer, inner;
    typedef const float* Place;
    typedef u64 Step;
    __device__ Place place(u32 i) const { return base + outer.at(i); }
    __device__ Step step(u32 k) const { return inner.at(k); }
    __device__ float load(Place place, Step step) const { return place[step]; }
};

struct Target {
    float* base;
    Axis row, column;
};

// Images, height x width x channels, in stacks of planes; what a kernel's taps see of them.
struct Images {
    const float* base;
    u64 sample_stride, plane_stride;
    u32 height, width, channels, side, circular, unused;
};

struct Pixel {
    const float* sample;
    int row, column;
};

struct Tap {
    u64 offset;
    int down, right;
};

__device__ inline Pixel pixel_of(const Images& images, u32 i) {
    u32 area = images.height * images.width, within = i % area;
    return {images.base + (u64)(i / area) * images.sample_stride, (int)(within / images.width), (int)(within % images.width)};
}

// Number k of (plane, tap, channel), the channel fastest.
__device__ inline Tap tap_of(const Images& images, u32 k) {
    u32 taps = images.side * images.side, tap = k / images.channels % taps, plane = k / images.channels / taps;
    int centre = images.side / 2;
    return {(u64)plane * images.plane_stride + k % images.channels, (int)(tap / images.side) - centre, (int)(tap % images.side) - centre};
}

__device__ inline float seen(const Images& images, const Pixel& pixel, const Tap& tap) {
    int row = pixel.row + tap.down, column = pixel.column + tap.right;
    int height = images.height, width = images.width;
    if (images.circular) {
        while (row < 0) row += height;
        while (row >= height) row -= height;
        while (column < 0) column += width;
        while (column >= width) column -= width;
    } else if (row < 0 || column < 0 || row >= height || column >= width) {
        return 0.0f;
    }
    return pixel.sample[(u64)((u32)row * images.width + (u32)column) * images.channels + tap.offset];
}

// Patches of images as a factor: taps outside, pixels summed over.
struct PatchesTurned {
    Images images;
    typedef Tap Place;
    typedef Pixel Step;
    __device__ Place place(u32 i) const { return tap_of(images, i); }
    __device__ Step step(u32 k) const { return pixel_of(images, k); }
    __device__ float load(Place place, Step step) const { return seen(images, step, place); }
};

template <u32 TILE>
using Slab = float[DEPTH][TILE + 4];

// Brings a factor's entries to shared memory. INNER: neighbouring threads take neighbouring inner indices, which are neighbours
// in memory; otherwise neighbouring outer ones.
template <u32 TILE, bool INNER, class F>
struct Loader {
    static const u32 EACH = TILE * DEPTH / THREADS;
    const F& factor;
    u32 first, count;
    typename F::Place places[INNER ? EACH : 1];
    float values[EACH];

    __device__ Loader(const F& factor, u32 first, u32 count) : factor(factor), first(first), count(count) {
        for (u32 i = 0; i < (INNER ? EACH : 1); i++) {
            u32 outer = first + lane(i);
            places[i] = factor.place(outer < count ? outer : count - 1);
        }
    }
    __device__ u32 lane(u32 i) const { return INNER ? threadIdx.x / DEPTH + i * (THREADS / DEPTH) : threadIdx.x % TILE; }
    __device__ u32 deep(u32 i) const { return INNER ? threadIdx.x % DEPTH : threadIdx.x / TILE + i * (THREADS / TILE); }

    __device__ void fetch(u32 begin, u32 end) {
        if (INNER) {
            u32 k = begin + deep(0);
            typename F::Step step = factor.step(k < end ? k : end - 1);
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                bool inside = k < end && first + lane(i) < count;
                values[i] = inside ? factor.load(places[INNER ? i : 0], step) : 0.0f;
            }
        } else {
#pragma unroll
            for (u32 i = 0; i < EACH; i++) {
                u32 k = begin + deep(i);
                bool inside = k < end && first + lane(0) < count;
                values[i] = inside ? factor.load(places[0], factor.step(k)) : 0.0f;
            }
        }
    }
    __device__ void put(Slab<TILE>& slab) const {
#pragma unroll
        for (u32 i = 0; i < EACH; i++) slab[deep(i)][lane(i)] = values[i];
    }
};

// sums[i][j] = the sum over k of a(row + i, k) b(k, column + j), for this thread's entries of the block's tile.
template <u32 TILE, bool A_INNER, bool B_INNER, class A, class B>
__device__ void tile_product(const A& a, const B& b, u32 rows, u32 columns, u32 begin, u32 end, float (&sums)[TILE / 16][TILE / 16]) {
    const u32 SIDE = TILE / 16;
    __shared__ __align__(16) Slab<TILE> left, right;
    Loader<TILE, A_INNER, A> from_a(a, blockIdx.x * TILE, rows);
    Loader<TILE, B_INNER, B> from_b(b, blockIdx.y * TILE, columns);
    u32 row = threadIdx.x / 16 * SIDE, column = threadIdx.x % 16 * SIDE;
    for (u32 i = 0; i < SIDE; i++)
        for (u32 j = 0; j < SIDE; j++) sums[i][j] = 0.0f;
    from_a.fetch(begin, end);
    from_b.fetch(begin, end);
    for (u32 k = begin; k < end; k += DEPTH) {
        from_a.put(left);
        from_b.put(right);
        __syncthreads();
        if (k + DEPTH < end) {
            from_a.fetch(k + DEPTH, end);
            from_b.fetch(k + DEPTH, end);
        }
#pragma unroll
        for (u32 d = 0; d < DEPTH; d++) {
            float x[SIDE], y[SIDE];
#pragma unroll
            for (u32 i = 0; i < SIDE; i++) x[i] = left[d][row + i], y[i] = right[d][column + i];
#pragma unroll
            for (u32 i = 0; i < SIDE; i++)
#pragma unroll
                for (u32 j = 0; j < SIDE; j++) sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
        }
        __syncthreads();
    }
}

// Whether any sample of the block's rows is still worked on; the same for all threads.
template <u32 TILE>
__device__ inline bool any_active(const u32* active, u32 rows, u32 rows_per_sample) {
    if (!active) return true;
    u32 row = blockIdx.x * TILE + threadIdx.x;
    bool mine = threadIdx.x < TILE && row < rows && active[row / rows_per_sample] != 0;
    return __syncthreads_or(mine);
}

template <u32 SIDE>
__device__ inline void write_tile(const Target& c, u64 offset, const float* bias, u32 rows, u32 columns, const float (&sums)[SIDE][SIDE]) {
    u32 row = (blockIdx.x * 16 + threadIdx.x / 16) * SIDE, column = (blockIdx.y * 16 + threadIdx.x % 16) * SIDE;
    for (u32 i = 0; i < SIDE; i++) {
        if (row + i >= rows) continue;
        float* to = c.base + offset + c.row.at(row + i);
        for (u32 j = 0; j < SIDE; j++) {
            if (column + j >= columns) continue;
            to[c.column.at(column + j)] = sums[i][j] + (bias ? bias[column + j] : 0.0f);
        }
    }
}
