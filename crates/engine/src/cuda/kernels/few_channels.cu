// 3x3 convolutions of images with few channels (the pixels of a data set): every thread has one output channel, and takes eight neighbouring
// pixels of it at a time, so that a weight (or a sum) stays in a register and a row of the image is read once for all of them. The next
// piece of an image is on its way while one is worked on.
#include "common.cuh"

#define MOST_WIDTH 64
#define ROWS 8
#define STRIP 8
// Blocks whose sums of gradients are kept apart: fixed, so that sums do not depend on the GPU.
#define PARTS 264

struct Few {
    u32 batch, height, width, outputs, circular, tiles, inputs, unused;

    __device__ u32 bands() const { return (height + ROWS - 1) / ROWS; }
    __device__ u32 strips() const { return (width + STRIP - 1) / STRIP; }
};

// Tile number `tile`: band number `tile % bands` of image `tile / bands`.
struct FewTile {
    u64 image;
    u32 top, units;

    __device__ FewTile(const Few& shape, u32 tile) {
        image = tile / shape.bands(), top = tile % shape.bands() * ROWS;
        units = tile < shape.tiles ? min(shape.height - top, ROWS) * shape.strips() : 0;
    }
    // Where the first pixel of a strip is, in pixels.
    __device__ u64 pixel(const Few& shape, u32 row, u32 strip) const { return (image * shape.height + top + row) * shape.width + strip * STRIP; }
};

// ROWS rows of an image with their neighbours, pixels channel by channel; a column of neighbours on each side.
template <u32 CHANNELS>
struct Band {
    static constexpr u32 STRIDE = (MOST_WIDTH + STRIP + 4) * CHANNELS, SIZE = (ROWS + 2) * STRIDE;
    float pixels[SIZE];

    // The pixels around a strip in one row, neighbours included.
    __device__ void window(u32 row, u32 strip, float (&seen)[(STRIP + 4) * CHANNELS]) const {
        const float4* from = (const float4*)&pixels[row * STRIDE + strip * STRIP * CHANNELS];
#pragma unroll
        for (u32 q = 0; q < (STRIP + 4) * CHANNELS / 4; q++) {
            float4 four = from[q];
            seen[4 * q] = four.x, seen[4 * q + 1] = four.y, seen[4 * q + 2] = four.z, seen[4 * q + 3] = four.w;
        }
    }
};

// A thread's share of a band, on its way.
template <u32 CHANNELS>
struct BandShare {
    static constexpr u32 STRIDE = Band<CHANNELS>::STRIDE, SIZE = Band<CHANNELS>::SIZE, COUNT = (SIZE + THREADS - 1) / THREADS;
    float pixels[COUNT];

    __device__ void fetch(const Few& shape, const float* x, const FewTile& tile) {
        const float* image = x + tile.image * shape.height * shape.width * CHANNELS;
        int height = shape.height, width = shape.width;
#pragma unroll
        for (u32 k = 0; k < COUNT; k++) {
            u32 at = threadIdx.x + k * THREADS;
            int row = (int)(tile.top + at / STRIDE) - 1, column = (int)(at % STRIDE / CHANNELS) - 1;
            if (shape.circular) {
                row = row < 0 ? row + height : row >= height ? row - height : row;
                column = column < 0 ? column + width : column == width ? 0 : column;
            }
            bool inside = at < SIZE && row >= 0 && row < height && column >= 0 && column < width;
            pixels[k] = inside ? image[(u32)(row * width + column) * CHANNELS + at % CHANNELS] : 0.0f;
        }
    }

    __device__ void put(Band<CHANNELS>& band) const {
#pragma unroll
        for (u32 k = 0; k < COUNT; k++)
            if (threadIdx.x + k * THREADS < SIZE) band.pixels[threadIdx.x + k * THREADS] = pixels[k];
    }
};

// Goes over the tiles of this block; `work(band, tile, next one)` has the band of its tile in shared memory, while the next one's is on its way.
template <u32 CHANNELS, class Work>
__device__ void each_tile(const Few& shape, const float* x, Work&& work) {
    __shared__ __align__(16) Band<CHANNELS> bands[2];
    BandShare<CHANNELS> share;
    FewTile tile(shape, blockIdx.x);
    share.fetch(shape, x, tile);
    share.put(bands[0]);
    u32 turn = 0;
    for (u32 number = blockIdx.x; number < shape.tiles; number += gridDim.x) {
        // Nobody reads the other band any more.
        __syncthreads();
        FewTile next(shape, number + gridDim.x);
        if (next.units) share.fetch(shape, x, next);
        work(bands[turn], tile, next);
        turn ^= 1;
        if (next.units) share.put(bands[turn]);
        tile = next;
    }
}

template <u32 CHANNELS>
__device__ void convolve_few(const Few& shape, const float* x, const float* w, const float* bias, u32 rectified, float* y) {
    u32 walkers = THREADS / shape.outputs, walker = threadIdx.x / shape.outputs, output = threadIdx.x % shape.outputs, strips = shape.strips();
    float weights[9 * CHANNELS], offset = bias[output];
#pragma unroll
    for (u32 k = 0; k < 9 * CHANNELS; k++) weights[k] = w[output * 9 * CHANNELS + k];
    each_tile<CHANNELS>(shape, x, [&](const Band<CHANNELS>& band, const FewTile& tile, const FewTile&) {
        if (walker >= walkers) return;
        for (u32 unit = walker; unit < tile.units; unit += walkers) {
            u32 strip = unit % strips, row = unit / strips;
            float sums[STRIP], seen[(STRIP + 4) * CHANNELS];
#pragma unroll
            for (u32 p = 0; p < STRIP; p++) sums[p] = offset;
#pragma unroll
            for (u32 down = 0; down < 3; down++) {
                band.window(row + down, strip, seen);
#pragma unroll
                for (u32 right = 0; right < 3; right++)
#pragma unroll
                    for (u32 c = 0; c < CHANNELS; c++)
#pragma unroll
                        for (u32 p = 0; p < STRIP; p++)
                            sums[p] = fmaf(weights[c * 9 + down * 3 + right], seen[(p + right) * CHANNELS + c], sums[p]);
            }
            float* to = y + tile.pixel(shape, row, strip) * shape.outputs + output;
#pragma unroll
            for (u32 p = 0; p < STRIP; p++)
                if (strip * STRIP + p < shape.width) to[p * shape.outputs] = rectified && !(sums[p] > 0.0f) ? 0.0f : sums[p];
        }
    });
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
convolve_few_1(Few shape, const float* x, const float* w, const float* bias, u32 rectified, float* y) {
    convolve_few<1>(shape, x, w, bias, rectified, y);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
convolve_few_3(Few shape, const float* x, const float* w, const float* bias, u32 rectified, float* y) {
    convolve_few<3>(shape, x, w, bias, rectified, y);
}

// A strip of the gradients of one output, on its way; `above` is positive where they count.
struct GradientStrip {
    float gradient[STRIP], above[STRIP];

    __device__ void fetch(const Few& shape, const float* y, const float* gy, const FewTile& tile, u32 unit, u32 output) {
        u32 strips = shape.strips(), strip = unit % strips;
        u64 at = tile.pixel(shape, unit / strips, strip) * shape.outputs + output;
#pragma unroll
        for (u32 p = 0; p < STRIP; p++) {
            bool inside = strip * STRIP + p < shape.width;
            above[p] = inside && y ? (y + at)[p * shape.outputs] : 1.0f;
            gradient[p] = inside ? (gy + at)[p * shape.outputs] : 0.0f;
        }
    }
};

// Sums of gy x over the pixels of the tiles of this block, [channel and tap][output], then of gy alone: partial[block][.]. gy counts where the
// output is positive, if `y` is given.
template <u32 CHANNELS>
__device__ void few_gradient(const Few& shape, const float* x, const float* y, const float* gy, float* partial) {
    constexpr u32 SUMS = 9 * CHANNELS + 1;
    __shared__ float parts[SUMS][THREADS];
    u32 walkers = THREADS / shape.outputs, walker = threadIdx.x / shape.outputs, output = threadIdx.x % shape.outputs, strips = shape.strips();
    if (walker >= walkers) walker = ~0u;
    float sums[SUMS];
#pragma unroll
    for (u32 k = 0; k < SUMS; k++) sums[k] = 0.0f;
    // The strip after this one, in this tile or the next.
    GradientStrip ahead;
    FewTile first(shape, blockIdx.x);
    if (walker < first.units) ahead.fetch(shape, y, gy, first, walker, output);
    each_tile<CHANNELS>(shape, x, [&](const Band<CHANNELS>& band, const FewTile& tile, const FewTile& next) {
        for (u32 unit = walker; unit < tile.units; unit += walkers) {
            u32 strip = unit % strips, row = unit / strips;
            float g[STRIP], seen[(STRIP + 4) * CHANNELS];
#pragma unroll
            for (u32 p = 0; p < STRIP; p++) g[p] = ahead.above[p] > 0.0f ? ahead.gradient[p] : 0.0f;
            bool ends = unit + walkers >= tile.units;
            if (!ends || walker < next.units) ahead.fetch(shape, y, gy, ends ? next : tile, ends ? walker : unit + walkers, output);
#pragma unroll
            for (u32 down = 0; down < 3; down++) {
                band.window(row + down, strip, seen);
#pragma unroll
                for (u32 right = 0; right < 3; right++)
#pragma unroll
                    for (u32 c = 0; c < CHANNELS; c++)
#pragma unroll
                        for (u32 p = 0; p < STRIP; p++) {
                            float& sum = sums[c * 9 + down * 3 + right];
                            sum = fmaf(g[p], seen[(p + right) * CHANNELS + c], sum);
                        }
            }
#pragma unroll
            for (u32 p = 0; p < STRIP; p++) sums[9 * CHANNELS] += g[p];
        }
        // Nothing of this tile, which is a low one: then nothing has been sent for either.
        if (walker >= tile.units && walker < next.units) ahead.fetch(shape, y, gy, next, walker, output);
    });
    // All at once: a barrier and a loop for each of the sums took nearly half of the kernel's time.
#pragma unroll
    for (u32 k = 0; k < SUMS; k++) parts[k][threadIdx.x] = sums[k];
    __syncthreads();
    for (u32 at = threadIdx.x; at < SUMS * shape.outputs; at += THREADS) {
        u32 k = at / shape.outputs, of = at % shape.outputs;
        float sum = 0.0f;
        for (u32 s = 0; s < walkers; s++) sum += parts[k][s * shape.outputs + of];
        partial[(u64)blockIdx.x * SUMS * shape.outputs + at] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) few_gradient_1(Few shape, const float* x, const float* y, const float* gy, float* partial) {
    few_gradient<1>(shape, x, y, gy, partial);
}

extern "C" __global__ void __launch_bounds__(THREADS, 2) few_gradient_3(Few shape, const float* x, const float* y, const float* gy, float* partial) {
    few_gradient<3>(shape, x, y, gy, partial);
}

#define COLUMNS 32

// The parts added up: weights [output][channel][tap], and biases. A block takes 32 sums, eight threads each.
extern "C" __global__ void __launch_bounds__(THREADS)
few_gradient_total(const float* partial, u32 parts, u32 taps, u32 outputs, float* gw, float* gb) {
    __shared__ double shares[THREADS];
    u32 entry = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, count = (taps + 1) * outputs;
    double sum = 0.0;
    if (entry < count)
        for (u32 part = threadIdx.x / COLUMNS; part < parts; part += THREADS / COLUMNS) sum += partial[(u64)part * count + entry];
    shares[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= COLUMNS || entry >= count) return;
    sum = 0.0;
    for (u32 s = 0; s < THREADS / COLUMNS; s++) sum += shares[s * COLUMNS + threadIdx.x];
    u32 k = entry / outputs, output = entry % outputs;
    (k < taps ? gw[(u64)output * taps + k] : gb[output]) = (float)sum;
}
