// Convolutions on tensor cores, f32 accurate, and what is done with their sums while they are still in registers.
//
// A block has a tile of one sample's pixels, up to 256, and 8 TILES columns (output channels, of both planes where there are two).
// It goes through the input in slabs of 16 channels: a slab of the tile and of its halo is brought to shared memory as f16 halves, scaled
// by a power of two of its own; then every tap is one step of 16 of the sum, its pixels' addresses moved, while the next slab comes as it
// is. Each warp has 32 pixels and all columns. Weights are packed for the lanes that multiply by them (`pack_convolution`) and come from the L1 cache.
//
// Tensor cores truncate as they add: the sum over a tap's 16 channels begins at zero and is added to the total with rounding.
// Nothing depends on other samples: the same bits in any batch.
#include "convolutions.cuh"

#define WARPS (THREADS / 32)
#define HALO_MOST 448
// Numbers of a row of staged sums, and the bytes of shared memory that they or the halo need.
#define PITCH(tiles) (8 * (tiles) + 8)
#define PIXEL_BYTES (4 * SLAB)

// Where 16 bytes of a pixel of a slab lie: high channels 0-7, 8-15, low ones 0-7, 8-15, turned so that the same of eight neighbouring
// pixels are in different banks.
__device__ inline u32 chunk_at(u32 pixel, u32 chunk) { return pixel * PIXEL_BYTES + ((chunk ^ (pixel >> 1 & 3)) << 4); }

// Fours of a slab that a thread has.
#define SLAB_SHARE (HALO_MOST * 4 / THREADS)

#define NOWHERE 0xffffffffu

// Where in a plane a thread finds its share of the first slab, or NOWHERE: the same for every slab, and kept by the thread itself.
__device__ inline void find_slab(const Convolution& shape, int first_row, int first_column, u32* places) {
    u32 reach = shape.side - 1, pitch = shape.tile_width + reach, count = pitch * (shape.tile_height + reach);
    Divisor by_pitch(pitch);
#pragma unroll 1
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        u32 pixel = threadIdx.x / 4 + i * (THREADS / 4), row = by_pitch.of(pixel);
        int r = first_row + (int)row, c = first_column + (int)(pixel - row * pitch);
        bool there = pixel < count && inside(r, c, shape.height, shape.width, shape.circular);
        places[i * THREADS + threadIdx.x] = there ? ((u32)r * shape.width + (u32)c) * shape.inputs + threadIdx.x % 4 * 4 : NOWHERE;
    }
}

// Begins to bring a thread's share of a slab to `raw`, as it is. `from` is the sample's plane, at the slab's channels.
__device__ inline void bring_slab(const Convolution& shape, const float* from, u32 channel, const u32* places, float4* raw) {
    int left = (int)shape.inputs - (int)(channel + threadIdx.x % 4 * 4);
    bool fours = shape.inputs % 4 == 0;
#pragma unroll
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        u32 item = i * THREADS + threadIdx.x, place = places[item];
        bool there = place != NOWHERE;
        bring_four(raw + item, there ? from + place : from, there, left, fours);
    }
}

// Turns a slab, each thread the share that it brought, into halves; what its sums are to be multiplied by.
__device__ inline float put_slab(const Convolution& shape, const float4* raw, unsigned char* halo) {
    __shared__ u32 sizes[WARPS];
    u32 reach = shape.side - 1, count = (shape.tile_width + reach) * (shape.tile_height + reach);
    u32 pixel = threadIdx.x / 4, four = threadIdx.x % 4 * 4, size = 0;
    float4 x[SLAB_SHARE];
#pragma unroll
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        x[i] = raw[i * THREADS + threadIdx.x];
        size = max(size, max(max(size_bits(x[i].x), size_bits(x[i].y)), max(size_bits(x[i].z), size_bits(x[i].w))));
    }
    size = warp_max(size);
    if (threadIdx.x % 32 == 0) sizes[threadIdx.x / 32] = size;
    // Also: nobody reads the last slab any more.
    __syncthreads();
    for (u32 k = 0; k < WARPS; k++) size = max(size, sizes[k]);
    Scale scale = scale_of(size);
#pragma unroll
    for (u32 i = 0; i < SLAB_SHARE; i++) {
        u32 p = pixel + i * (THREADS / 4);
        if (p >= count) break;
        Halves a = halves_f16(x[i].x * scale.to, x[i].y * scale.to), b = halves_f16(x[i].z * scale.to, x[i].w * scale.to);
        u32 at = chunk_at(p, four / 8) + four % 8 * 2;
        *(uint2*)(halo + at) = {a.high, b.high};
        *(uint2*)(halo + (at ^ 32)) = {a.low, b.low};
    }
    __syncthreads();
    return scale.back;
}

// The packed weights: [slab][tap][eight columns][lane], the high and low halves of what the lane multiplies by; then what each column's
// sums are to be multiplied by.
template <u32 TILES, class Finish>
__device__ void convolution(const Convolution& shape, const float* images, const float* packed, const Finish& finish, const u32* active) {
    __shared__ __align__(128) unsigned char room[HALO_MOST * PIXEL_BYTES];
    static_assert(WARPS * 16 * PITCH(6) * sizeof(float) <= sizeof(room), "the staged sums do not fit");
    u32 sample = blockIdx.x / shape.tiles, tile = blockIdx.x % shape.tiles, first_tile = blockIdx.y * TILES;
    if (active && !active[sample]) return;
    // Known to all after the barriers of the first slab.
    finish.begin();
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, centre = shape.side / 2;
    u32 top = tile / shape.across * shape.tile_height, left = tile % shape.across * shape.tile_width;
    u32 pixels = shape.tile_height * shape.tile_width, pitch = shape.tile_width + shape.side - 1;
    u32 planes = shape.planes_out, fours = TILES / planes * 2;
    TileShare share = {sample, top, left, pixels, first_tile / planes * 8, fours, Divisor(shape.tile_width), Divisor(fours)};
    // A thread has a pixel with all of its channels; other blocks of the tile need not send for them again.
    Place own;
    if (first_tile == 0 && share.find(shape, threadIdx.x, 0, own)) finish.expect(shape, own);
    // This lane's pixels of the two tiles of 16, in the halo, as the first tap sees them.
    u32 at[2];
    for (u32 m = 0; m < 2; m++) {
        u32 pixel = min(warp * 32 + m * 16 + lane % 16, pixels - 1);
        at[m] = pixel / shape.tile_width * pitch + pixel % shape.tile_width;
    }
    bool busy = warp * 32 < pixels;
    float total[2][TILES][4];
#pragma unroll
    for (u32 m = 0; m < 2; m++)
#pragma unroll
        for (u32 n = 0; n < TILES; n++)
#pragma unroll
            for (u32 k = 0; k < 4; k++) total[m][n][k] = 0.0f;
    const uint4* weights = (const uint4*)packed + first_tile * 32 + lane;
    u32 slabs = shape.slabs_of_plane(), steps_left = shape.slabs() * shape.taps();
    // Weights are loaded one step ahead.
    uint4 w[TILES];
#pragma unroll
    for (u32 n = 0; n < TILES; n++) w[n] = __ldg(weights + n * 32);
    float4* raw = (float4*)launch_memory;
    __shared__ u32 places[SLAB_SHARE * THREADS];
    find_slab(shape, (int)top - (int)centre, (int)left - (int)centre, places);
    auto bring = [&](u32 slab) {
        u32 channel = slab % slabs * SLAB;
        const float* from = images + (sample * (u64)shape.planes_in + slab / slabs) * shape.area() * shape.inputs + channel;
        bring_slab(shape, from, channel, places, raw);
    };
    bring(0);
#pragma unroll 1
    for (u32 slab = 0; slab < shape.slabs(); slab++) {
        await_copies();
        float back = put_slab(shape, raw, room);
        if (slab + 1 < shape.slabs()) bring(slab + 1);
        if (!busy) continue;
#pragma unroll 1
        for (u32 down = 0; down < shape.side; down++)
#pragma unroll 1
            for (u32 right = 0; right < shape.side; right++) {
                u32 high[2][4], low[2][4];
#pragma unroll
                for (u32 m = 0; m < 2; m++) {
                    u32 chunk = chunk_at(at[m] + down * pitch + right, lane / 16);
                    load_tiles(high[m], room + chunk);
                    load_tiles(low[m], room + (chunk ^ 32));
                }
                if (--steps_left) weights += shape.column_tiles * 32;
#pragma unroll
                for (u32 n = 0; n < TILES; n++) {
                    float sums[2][4] = {};
#pragma unroll
                    for (u32 m = 0; m < 2; m++) multiply_f16(sums[m], low[m], w[n].x, w[n].y);
#pragma unroll
                    for (u32 m = 0; m < 2; m++) multiply_f16(sums[m], high[m], w[n].z, w[n].w);
#pragma unroll
                    for (u32 m = 0; m < 2; m++) multiply_f16(sums[m], high[m], w[n].x, w[n].y);
                    w[n] = __ldg(weights + n * 32);
#pragma unroll
                    for (u32 m = 0; m < 2; m++)
#pragma unroll
                        for (u32 k = 0; k < 4; k++) total[m][n][k] = fmaf(sums[m][k], back, total[m][n][k]);
                }
            }
    }
    // The sums go through shared memory, so that a thread gets neighbouring channels, and both planes.
    __syncthreads();
    float* staged = (float*)room + warp * 16 * PITCH(TILES);
    const float* scales = packed + (u64)shape.slabs() * shape.taps() * shape.column_tiles * 128 + first_tile * 8;
    // What goes on through whole columns stays here until they are known; all slabs have been read.
    float* kept = finish.has_columns() ? (float*)launch_memory : 0;
    Gap gap = {0.0, 0.0};
#pragma unroll
    for (u32 m = 0; m < 2; m++) {
        __syncwarp();
#pragma unroll
        for (u32 n = 0; n < TILES; n++) {
            u32 column = n * 8 + lane % 4 * 2;
            float2 scale = *(const float2*)(scales + column);
            float* to = staged + lane / 4 * PITCH(TILES) + column;
            *(float2*)to = {total[m][n][0] * scale.x, total[m][n][1] * scale.y};
            *(float2*)(to + 8 * PITCH(TILES)) = {total[m][n][2] * scale.x, total[m][n][3] * scale.y};
        }
        __syncwarp();
#pragma unroll 1
        for (u32 first = lane; first < 16 * fours; first += 32 * READS) {
            Place places[READS];
            Given given[READS];
            bool there[READS];
#pragma unroll
            for (u32 k = 0; k < READS; k++) {
                u32 item = first + 32 * k, pixel = share.by_fours.of(item);
                there[k] = item < 16 * fours && share.find(shape, warp * 32 + m * 16 + pixel, item - pixel * fours, places[k]);
                if (there[k]) finish.read(shape, places[k], given[k]);
            }
#pragma unroll
            for (u32 k = 0; k < READS; k++) {
                if (!there[k]) continue;
                u32 item = first + 32 * k, pixel = share.by_fours.of(item), four = item - pixel * fours;
                const float* sums = staged + pixel * PITCH(TILES) + (four / 2 * planes * 8 + four % 2 * 4);
                float values[2][4];
#pragma unroll
                for (u32 i = 0; i < 4; i++) {
                    values[0][i] = sums[i];
                    values[1][i] = planes == 2 ? sums[8 + i] : 0.0f;
                }
                float* to = kept ? kept + (warp * 32 + m * 16 + pixel) * (8 * TILES) + four * 4 : 0;
                finish.four(shape, places[k], values, given[k], gap, to);
            }
        }
    }
    if (kept) {
        __syncthreads();
        finish_columns<8 * TILES>(shape, share, finish, Everyone(), kept, (float*)room);
    }
    if (!finish.measured()) return;
    double difference = block_sum(gap.difference), size = block_sum(gap.size);
    if (threadIdx.x == 0) finish.parts()[(u64)blockIdx.x * gridDim.y + blockIdx.y] = {difference, size, 0.0, 0.0};
}

#define CONVOLUTIONS(tiles)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    convolve_##tiles(Convolution shape, const float* images, const float* packed, Keep keep, const u32* active) {                \
        convolution<tiles>(shape, images, packed, keep, active);                                                                 \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    apply_convolution_##tiles(Convolution shape, const float* images, const float* packed, const __grid_constant__ Apply apply, \
                              const u32* active) {                                                                               \
        convolution<tiles>(shape, images, packed, apply, active);                                                                \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    linearise_convolution_##tiles(Convolution shape, const float* images, const float* packed,                                   \
                                  const __grid_constant__ Linearise linearise, const u32* active) {                              \
        convolution<tiles>(shape, images, packed, linearise, active);                                                            \
    }                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                     \
    pull_convolution_##tiles(Convolution shape, const float* images, const float* packed, Pull pull, const u32* active) {        \
        convolution<tiles>(shape, images, packed, pull, active);                                                                 \
    }
CONVOLUTIONS(2)
CONVOLUTIONS(4)
CONVOLUTIONS(6)

// Packs the weights [out][in][tap] of up to two planes for `convolution`, a warp for each column. Transposed: the columns are the inputs,
// the taps mirrored, and the planes are summed over.
extern "C" __global__ void __launch_bounds__(THREADS)
pack_convolution(Convolution shape, const float* first, const float* second, u32 transposed, float* packed) {
    u32 column = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, tile = column / 8;
    if (tile >= shape.column_tiles) return;
    u32 taps = shape.taps(), slabs = shape.slabs_of_plane(), out = tile / shape.planes_out * 8 + column % 8;
    // Number `in` of the slab's plane.
    auto weight = [&](u32 slab, u32 tap, u32 in) {
        u32 c = slab % slabs * SLAB + in, plane = transposed ? slab / slabs : tile % shape.planes_out;
        if (c >= shape.inputs || out >= shape.outputs) return 0.0f;
        const float* w = plane == 0 ? first : second;
        return transposed ? w[((u64)c * shape.outputs + out) * taps + (taps - 1 - tap)] : w[((u64)out * shape.inputs + c) * taps + tap];
    };
    u32 steps = shape.slabs() * taps, size = 0;
    for (u32 i = lane; i < steps * SLAB; i += 32) size = max(size, size_bits(weight(i / SLAB / taps, i / SLAB % taps, i % SLAB)));
    Scale scale = scale_of(warp_max(size));
    for (u32 i = lane; i < steps * 4; i += 32) {
        u32 step = i / 4, in = i % 4 * 2, slab = step / taps, tap = step % taps;
        Halves a = halves_f16(weight(slab, tap, in) * scale.to, weight(slab, tap, in + 1) * scale.to);
        Halves b = halves_f16(weight(slab, tap, in + 8) * scale.to, weight(slab, tap, in + 9) * scale.to);
        ((uint4*)packed)[((u64)step * shape.column_tiles + tile) * 32 + column % 8 * 4 + i % 4] = {a.high, b.high, a.low, b.low};
    }
    if (lane == 0) packed[(u64)steps * shape.column_tiles * 128 + column] = scale.back;
}

// q <- D N' g, all planes, where no block has whole columns. `row` is all columns of all channels, next to each other.
extern "C" __global__ void __launch_bounds__(THREADS)
pull_columns_to_slopes(u32 batch, u32 row, u32 height, u32 planes, Norm norm, const float* g, const float* slopes, float* q, const u32* active) {
    u64 column = first_entry();
    if (column >= (u64)batch * row) return;
    u32 sample = column / row;
    if (active && !active[sample]) return;
    u64 len = (u64)row * height, at = sample * len + column % row, first = sample * planes * len + column % row;
    float inner = norm.inner(g + at, row, at, row, height), inverse = norm.inverses[column];
    for (u32 plane = 0; plane < planes; plane++)
#pragma unroll 8
        for (u32 i = 0; i < height; i++) {
            u64 k = i * (u64)row, to = first + plane * len + k;
            q[to] = slopes[to] * Norm::pulled(g[at + k], inner, norm.gradients[at + k], inverse);
        }
}
