// 3x3 convolutions of images with few channels (the pixels of a data set): every thread takes eight neighbouring pixels of one output
// channel, so that a weight and a row of the image are read once for all of them. Bound by the memory that is written or read.
#include "common.cuh"

#define MOST_WIDTH 64
#define MOST_OUTPUTS 128
#define ROWS 4
#define STRIP 8
// Blocks whose sums of gradients are kept apart: fixed, so that sums do not depend on the GPU.
#define PARTS 264

struct Few {
    u32 batch, height, width, outputs, circular, tiles, inputs, unused;
};

// ROWS rows of an image with their neighbours, pixels channel by channel; a column of neighbours on each side.
template <u32 CHANNELS>
struct Band {
    static constexpr u32 STRIDE = (MOST_WIDTH + STRIP + 4) * CHANNELS;
    float rows[ROWS + 2][STRIDE];

    // Tile number `tile`: band number `tile % bands` of image `tile / bands`.
    __device__ void load(const Few& shape, const float* x, u32 tile) {
        u32 bands = (shape.height + ROWS - 1) / ROWS, top = tile % bands * ROWS;
        const float* image = x + (u64)(tile / bands) * shape.height * shape.width * CHANNELS;
#pragma unroll
        for (u32 at = threadIdx.x; at < (ROWS + 2) * STRIDE; at += THREADS) {
            int row = (int)(top + at / STRIDE) - 1, column = (int)(at % STRIDE / CHANNELS) - 1;
            int height = shape.height, width = shape.width;
            if (shape.circular) {
                row = row < 0 ? row + height : row >= height ? row - height : row;
                column = column < 0 ? column + width : column == width ? 0 : column;
            }
            bool inside = row >= 0 && row < height && column >= 0 && column < width;
            rows[at / STRIDE][at % STRIDE] = inside ? image[((u64)row * width + column) * CHANNELS + at % CHANNELS] : 0.0f;
        }
    }

    // The pixels around a strip in one row, neighbours included.
    __device__ void window(u32 row, u32 strip, float (&seen)[(STRIP + 4) * CHANNELS]) const {
        const float4* from = (const float4*)&rows[row][strip * STRIP * CHANNELS];
#pragma unroll
        for (u32 q = 0; q < (STRIP + 4) * CHANNELS / 4; q++) {
            float4 four = from[q];
            seen[4 * q] = four.x, seen[4 * q + 1] = four.y, seen[4 * q + 2] = four.z, seen[4 * q + 3] = four.w;
        }
    }
};

template <u32 CHANNELS>
__device__ void convolve_few(const Few& shape, const float* x, const float* w, const float* bias, u32 rectified, float* y) {
    __shared__ __align__(16) Band<CHANNELS> band;
    __shared__ float weights[9 * CHANNELS * MOST_OUTPUTS];
    for (u32 at = threadIdx.x; at < 9 * CHANNELS * shape.outputs; at += THREADS)
        weights[at % (9 * CHANNELS) * shape.outputs + at / (9 * CHANNELS)] = w[at];
    band.load(shape, x, blockIdx.x);
    __syncthreads();
    u32 bands = (shape.height + ROWS - 1) / ROWS, top = blockIdx.x % bands * ROWS, strips = (shape.width + STRIP - 1) / STRIP;
    u32 rows = shape.height - top < ROWS ? shape.height - top : ROWS;
    u64 first = ((u64)(blockIdx.x / bands) * shape.height + top) * shape.width;
    for (u32 item = threadIdx.x; item < rows * strips * shape.outputs; item += THREADS) {
        u32 output = item % shape.outputs, strip = item / shape.outputs % strips, row = item / shape.outputs / strips;
        float sums[STRIP], seen[(STRIP + 4) * CHANNELS];
#pragma unroll
        for (u32 p = 0; p < STRIP; p++) sums[p] = bias[output];
#pragma unroll
        for (u32 down = 0; down < 3; down++) {
            band.window(row + down, strip, seen);
#pragma unroll
            for (u32 right = 0; right < 3; right++)
#pragma unroll
                for (u32 c = 0; c < CHANNELS; c++) {
                    float weight = weights[(c * 9 + down * 3 + right) * shape.outputs + output];
#pragma unroll
                    for (u32 p = 0; p < STRIP; p++) sums[p] = fmaf(weight, seen[(p + right) * CHANNELS + c], sums[p]);
                }
        }
        float* to = y + (first + (u64)row * shape.width + strip * STRIP) * shape.outputs + output;
#pragma unroll
        for (u32 p = 0; p < STRIP; p++)
            if (strip * STRIP + p < shape.width) to[(u64)p * shape.outputs] = rectified && !(sums[p] > 0.0f) ? 0.0f : sums[p];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
convolve_few_1(Few shape, const float* x, const float* w, const float* bias, u32 rectified, float* y) {
    convolve_few<1>(shape, x, w, bias, rectified, y);
}

extern "C" __global__ void __launch_bounds__(THREADS)
convolve_few_3(Few shape, const float* x, const float* w, const float* bias, u32 rectified, float* y) {
    convolve_few<3>(shape, x, w, bias, rectified, y);
}

// A strip of the gradients of one output, zero where the output is not positive (if `y` is given) and beyond the image.
__device__ inline void load_strip(const Few& shape, const float* y, const float* gy, u64 first, u32 unit, u32 output, float (&g)[STRIP]) {
    u32 strips = (shape.width + STRIP - 1) / STRIP, strip = unit % strips, row = unit / strips;
    u64 at = (first + (u64)row * shape.width + strip * STRIP) * shape.outputs + output;
#pragma unroll
    for (u32 p = 0; p < STRIP; p++) {
        // Both are asked for before either is looked at.
        u64 here = at + (u64)p * shape.outputs;
        bool inside = strip * STRIP + p < shape.width;
        float above = inside && y ? y[here] : 1.0f, gradient = inside ? gy[here] : 0.0f;
        g[p] = above > 0.0f ? gradient : 0.0f;
    }
}

// Sums of gy x over the pixels of the tiles of this block, [channel and tap][output], then of gy alone: partial[block][.].
template <u32 CHANNELS>
__device__ void few_gradient(const Few& shape, const float* x, const float* y, const float* gy, float* partial) {
    __shared__ __align__(16) Band<CHANNELS> band;
    __shared__ float parts[THREADS];
    u32 walkers = THREADS / shape.outputs, walker = threadIdx.x / shape.outputs, output = threadIdx.x % shape.outputs;
    u32 bands = (shape.height + ROWS - 1) / ROWS, strips = (shape.width + STRIP - 1) / STRIP;
    float sums[9 * CHANNELS + 1];
#pragma unroll
    for (u32 k = 0; k <= 9 * CHANNELS; k++) sums[k] = 0.0f;
    for (u32 tile = blockIdx.x; tile < shape.tiles; tile += gridDim.x) {
        u32 top = tile % bands * ROWS, rows = shape.height - top < ROWS ? shape.height - top : ROWS;
        u64 first = ((u64)(tile / bands) * shape.height + top) * shape.width;
        u32 units = walker < walkers ? rows * strips : 0;
        // The next strip is on its way while this one is worked on, the first one while the band is.
        float g[STRIP], next[STRIP];
        if (walker < units) load_strip(shape, y, gy, first, walker, output, next);
        band.load(shape, x, tile);
        __syncthreads();
        for (u32 unit = walker; unit < units; unit += walkers) {
            u32 strip = unit % strips, row = unit / strips;
            float seen[(STRIP + 4) * CHANNELS];
#pragma unroll
            for (u32 p = 0; p < STRIP; p++) g[p] = next[p];
            if (unit + walkers < units) load_strip(shape, y, gy, first, unit + walkers, output, next);
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
        __syncthreads();
    }
#pragma unroll
    for (u32 k = 0; k <= 9 * CHANNELS; k++) {
        parts[threadIdx.x] = sums[k];
        __syncthreads();
        if (threadIdx.x < shape.outputs) {
            float sum = 0.0f;
            for (u32 s = 0; s < walkers; s++) sum += parts[s * shape.outputs + threadIdx.x];
            partial[((u64)blockIdx.x * (9 * CHANNELS + 1) + k) * shape.outputs + threadIdx.x] = sum;
        }
        __syncthreads();
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
