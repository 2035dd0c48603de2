// The gradient of the weights of a 3x3 convolution on tensor cores: the sum over pixels of q[pixel][out] z[pixel + tap][in]. Of a larger
// kernel, a block has nine of the taps, a 3x3 window of them.
//
// A part of the sum is a number of tiles of up to 64 pixels. A block brings one after the other to shared memory as bf16 halves (gradients
// have no known scale), [pixel][channel], and multiplies: outputs by pixels by (tap, input), a tap being another pixel address. The warps
// share out (tap, eight inputs). While they do, the next tile comes to shared memory as it is. Parts are added in a fixed order by
// `add_parts`.
#include "copies.cuh"
#include "mma.cuh"

#define TAPS 9
#define TILE_PIXELS 64
#define TILE_HALO 136
#define WARPS (THREADS / 32)

struct Gradient {
    u32 height, width, inputs, outputs, planes, circular;
    u32 tile_height, tile_width, across, tiles;
    // Tiles of the whole batch, and of a part.
    u32 count, part;
    // Height and width of the kernel, and windows of taps in a row of them: the last one may begin within the one before.
    u32 side, windows;
};

// Bytes from a pixel to the next: an odd number of sixteens, where that matters.
__host__ __device__ constexpr u32 stride_of(u32 channels) { return 2 * channels + 16; }

__device__ inline void put_halves(float4 x, unsigned char* high, u32 low) {
    Halves a = halves_bf16(x.x, x.y), b = halves_bf16(x.z, x.w);
    *(uint2*)high = {a.high, b.high};
    *(uint2*)(high + low) = {a.low, b.low};
}

// Outputs by sixteens and inputs by eights of a block. Blocks are (part, window), (plane, group of outputs), groups of inputs.
template <u32 OUTPUTS, u32 INPUTS>
__device__ void gradient(const Gradient& shape, const float* q, const float* z, float* parts) {
    const u32 Z_STRIDE = stride_of(8 * INPUTS), Q_STRIDE = stride_of(16 * OUTPUTS), Z_LOW = TILE_HALO * Z_STRIDE, Q_LOW = TILE_PIXELS * Q_STRIDE;
    const u32 EACH = (TAPS * INPUTS + WARPS - 1) / WARPS;
    __shared__ __align__(128) unsigned char halo[2 * Z_LOW], own[2 * Q_LOW];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    u32 groups = gridDim.y / shape.planes, plane = blockIdx.y / groups, out = blockIdx.y % groups * 16 * OUTPUTS, in = blockIdx.z * 8 * INPUTS;
    u32 pitch = shape.tile_width + 2, pixels = shape.tile_height * shape.tile_width, halo_pixels = pitch * (shape.tile_height + 2);
    Divisor by_pitch(pitch), by_width(shape.tile_width);
    u64 area = (u64)shape.height * shape.width;
    u32 windows = shape.windows * shape.windows, part = blockIdx.x / windows, window = blockIdx.x % windows;
    u32 own_row = window / shape.windows * 3, own_column = window % shape.windows * 3;
    u32 first_row = min(own_row, shape.side - 3), first_column = min(own_column, shape.side - 3);
    int up = (int)first_row - (int)shape.side / 2, back = (int)first_column - (int)shape.side / 2;
    bool in_fours = shape.inputs % 4 == 0, out_fours = shape.outputs % 4 == 0;
    float sums[EACH][OUTPUTS][4] = {};
    u32 offset[EACH];
    for (u32 n = 0; n < EACH; n++) {
        u32 j = min(warp * EACH + n, TAPS * INPUTS - 1), tap = j / INPUTS;
        offset[n] = (tap / 3 * pitch + tap % 3) * Z_STRIDE + j % INPUTS * 16;
    }
    float4 *next_halo = (float4*)launch_memory, *next_own = next_halo + TILE_HALO * 2 * INPUTS;
    auto bring = [&](u32 tile) {
        u32 sample = tile / shape.tiles, within = tile % shape.tiles;
        u32 top = within / shape.across * shape.tile_height, left = within % shape.across * shape.tile_width;
        const float* zs = z + (u64)sample * area * shape.inputs + in;
        const float* qs = q + ((u64)sample * shape.planes + plane) * area * shape.outputs + out;
        for (u32 i = threadIdx.x; i < halo_pixels * 2 * INPUTS; i += THREADS) {
            u32 pixel = i / (2 * INPUTS), channel = i % (2 * INPUTS) * 4, down = by_pitch.of(pixel);
            int row = (int)(top + down) + up, column = (int)(left + pixel - down * pitch) + back, channels = (int)shape.inputs - (int)in;
            bool there = inside(row, column, shape.height, shape.width, shape.circular) && (int)channel < channels;
            const float* from = there ? zs + (u64)(u32)(row * (int)shape.width + column) * shape.inputs + channel : z;
            bring_four(next_halo + i, from, there, channels - (int)channel, in_fours);
        }
        for (u32 i = threadIdx.x; i < TILE_PIXELS * 4 * OUTPUTS; i += THREADS) {
            u32 pixel = i / (4 * OUTPUTS), channel = i % (4 * OUTPUTS) * 4, down = by_width.of(pixel);
            u32 row = top + down, column = left + pixel - down * shape.tile_width;
            int channels = (int)shape.outputs - (int)out;
            bool there = pixel < pixels && row < shape.height && column < shape.width && (int)channel < channels;
            const float* from = there ? qs + (u64)(row * shape.width + column) * shape.outputs + channel : q;
            bring_four(next_own + i, from, there, channels - (int)channel, out_fours);
        }
    };
    u32 first = part * shape.part, end = min(first + shape.part, shape.count);
    bring(first);
#pragma unroll 1
    for (u32 tile = first; tile < end; tile++) {
        await_copies();
        // Everything of this tile is there, and nobody multiplies the last one any more.
        __syncthreads();
        for (u32 i = threadIdx.x; i < halo_pixels * 2 * INPUTS; i += THREADS)
            put_halves(next_halo[i], halo + i / (2 * INPUTS) * Z_STRIDE + i % (2 * INPUTS) * 8, Z_LOW);
        for (u32 i = threadIdx.x; i < TILE_PIXELS * 4 * OUTPUTS; i += THREADS)
            put_halves(next_own[i], own + i / (4 * OUTPUTS) * Q_STRIDE + i % (4 * OUTPUTS) * 8, Q_LOW);
        __syncthreads();
        if (tile + 1 < end) bring(tile + 1);
#pragma unroll 1
        for (u32 step = 0; step * 16 < pixels; step++) {
            u32 high[OUTPUTS][4], low[OUTPUTS][4];
            const unsigned char* from = own + (step * 16 + lane % 8 + lane / 16 * 8) * Q_STRIDE + lane / 8 % 2 * 16;
#pragma unroll
            for (u32 m = 0; m < OUTPUTS; m++) {
                load_turned_tiles(high[m], from + m * 32);
                load_turned_tiles(low[m], from + Q_LOW + m * 32);
            }
            // Lanes 0-15 point to the high halves of 16 pixels, lanes 16-31 to the low ones. Where q ends, it is zero.
            u32 pixel = min(step * 16 + lane % 16, pixels - 1);
            // Two more pixels in a row of the halo.
            const unsigned char* seen = halo + (pixel + 2 * by_width.of(pixel)) * Z_STRIDE + lane / 16 * Z_LOW;
#pragma unroll
            for (u32 n = 0; n < EACH; n++) {
                u32 b[4];
                load_turned_tiles(b, seen + offset[n]);
#pragma unroll
                for (u32 m = 0; m < OUTPUTS; m++) multiply_bf16(sums[n][m], low[m], b[0], b[1]);
#pragma unroll
                for (u32 m = 0; m < OUTPUTS; m++) multiply_bf16(sums[n][m], high[m], b[2], b[3]);
#pragma unroll
                for (u32 m = 0; m < OUTPUTS; m++) multiply_bf16(sums[n][m], high[m], b[0], b[1]);
            }
        }
    }
    // [part][plane and output][tap][input].
    u32 taps = shape.side * shape.side;
    float* to = parts + ((u64)part * shape.planes + plane) * shape.outputs * taps * shape.inputs;
#pragma unroll
    for (u32 n = 0; n < EACH; n++) {
        u32 j = warp * EACH + n, i = in + j % INPUTS * 8 + lane % 4 * 2;
        u32 row = first_row + j / INPUTS / 3, column = first_column + j / INPUTS % 3, tap = row * shape.side + column;
        // What lies in the window before is written there.
        bool own = j < TAPS * INPUTS && row >= own_row && column >= own_column;
#pragma unroll
        for (u32 m = 0; m < OUTPUTS; m++)
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                u32 o = out + m * 16 + lane / 4 + k / 2 * 8;
                if (own && o < shape.outputs && i + k % 2 < shape.inputs)
                    to[((u64)o * taps + tap) * shape.inputs + i + k % 2] = sums[n][m][k];
            }
    }
}

#define GRADIENTS(outputs, inputs)                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                   \
    gradient_##outputs##_##inputs(Gradient shape, const float* q, const float* z, float* parts) {              \
        gradient<outputs, inputs>(shape, q, z, parts);                                                         \
    }
GRADIENTS(1, 2)
GRADIENTS(2, 4)
GRADIENTS(3, 1)
GRADIENTS(3, 6)
