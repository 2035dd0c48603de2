// Affine layers: `y = W x + b`, or its positive part, and back. Small tiles, so that even ten outputs keep many blocks busy. Each sum runs
// over its terms in an order that does not depend on the batch.
#include "common.cuh"

#define SAMPLES 4
#define OUTPUTS 16
// Threads that share a sum; terms of a slab.
#define SHARERS (THREADS / SAMPLES / OUTPUTS)
#define DEEP 256

// The sum over the SHARERS neighbouring threads of `values`, for the first of them.
__device__ inline float sum_of_neighbours(float x) {
    __shared__ float values[THREADS];
    values[threadIdx.x] = x;
    __syncthreads();
    float sum = 0.0f;
    if (threadIdx.x % SHARERS == 0)
        for (u32 s = 0; s < SHARERS; s++) sum += values[threadIdx.x + s];
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
linear(const float* x, const float* w, const float* bias, u32 rectified, u32 batch, u32 inputs, u32 outputs, float* y) {
    __shared__ __align__(16) float left[SAMPLES][DEEP + 4], right[OUTPUTS][DEEP + 4];
    u32 sample = blockIdx.x * SAMPLES, output = blockIdx.y * OUTPUTS;
    u32 share = threadIdx.x % SHARERS, j = threadIdx.x / SHARERS % OUTPUTS, i = threadIdx.x / SHARERS / OUTPUTS;
    float sum = 0.0f;
    for (u32 begin = 0; begin < inputs; begin += DEEP) {
        u32 k = begin + threadIdx.x;
#pragma unroll
        for (u32 r = 0; r < SAMPLES; r++)
            left[r][threadIdx.x] = k < inputs && sample + r < batch ? x[(u64)(sample + r) * inputs + k] : 0.0f;
#pragma unroll
        for (u32 r = 0; r < OUTPUTS; r++)
            right[r][threadIdx.x] = k < inputs && output + r < outputs ? w[(u64)(output + r) * inputs + k] : 0.0f;
        __syncthreads();
#pragma unroll 8
        for (u32 d = 4 * share; d < DEEP; d += 4 * SHARERS) {
            float4 a = *(const float4*)&left[i][d], b = *(const float4*)&right[j][d];
            sum = fmaf(a.x, b.x, sum);
            sum = fmaf(a.y, b.y, sum);
            sum = fmaf(a.z, b.z, sum);
            sum = fmaf(a.w, b.w, sum);
        }
        __syncthreads();
    }
    sum = sum_of_neighbours(sum);
    if (share != 0 || sample + i >= batch || output + j >= outputs) return;
    sum += bias[output + j];
    y[(u64)(sample + i) * outputs + output + j] = rectified && !(sum > 0.0f) ? 0.0f : sum;
}

// What the gradient for an output counts: nothing where the output was rectified to 0. `y` is null where nothing was.
__device__ inline float counted(const float* y, const float* gy, u64 at) {
    float above = y ? y[at] : 1.0f, gradient = gy[at];
    return above > 0.0f ? gradient : 0.0f;
}

#define TILE 16
#define BATCH 64
#define WIDE 64
#define TERMS 32

// gw[o][k] = the sum over the batch of gy[.][o] x[.][k], a tile of 16 x 16; four threads share each sum. The first tile of a row also
// sums gy.
__device__ inline void weight_gradient(const float* x, const float* y, const float* gy, u32 batch, u32 inputs, u32 outputs, u32 tile,
                                       float* gw, float* gb) {
    __shared__ __align__(16) float left[BATCH][TILE], right[BATCH][TILE], sums[THREADS][4];
    __shared__ double bias[THREADS];
    u32 across = (inputs + TILE - 1) / TILE, output = tile / across * TILE, input = tile % across * TILE;
    u32 quad = threadIdx.x % 4, share = threadIdx.x / 4 % 4, i = threadIdx.x / 16;
    float total[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    double plain = 0.0;
    for (u32 begin = 0; begin < batch; begin += BATCH) {
#pragma unroll
        for (u32 r = 0; r < BATCH * TILE / THREADS; r++) {
            u32 row = threadIdx.x / TILE + r * (THREADS / TILE), column = threadIdx.x % TILE, b = begin + row;
            left[row][column] = b < batch && output + column < outputs ? counted(y, gy, (u64)b * outputs + output + column) : 0.0f;
            right[row][column] = b < batch && input + column < inputs ? x[(u64)b * inputs + input + column] : 0.0f;
        }
        __syncthreads();
        float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (u32 b = 0; b < BATCH; b += 4) {
            float g = left[b + share][i];
            float4 a = *(const float4*)&right[b + share][4 * quad];
            part[0] = fmaf(g, a.x, part[0]);
            part[1] = fmaf(g, a.y, part[1]);
            part[2] = fmaf(g, a.z, part[2]);
            part[3] = fmaf(g, a.w, part[3]);
            if (quad == 0) plain += g;
        }
        for (u32 c = 0; c < 4; c++) total[c] += part[c];
        __syncthreads();
    }
    for (u32 c = 0; c < 4; c++) sums[threadIdx.x][c] = total[c];
    bias[threadIdx.x] = plain;
    __syncthreads();
    if (share != 0 || output + i >= outputs) return;
    for (u32 c = 0; c < 4; c++) {
        float sum = 0.0f;
        for (u32 s = 0; s < 4; s++) sum += sums[threadIdx.x + 4 * s][c];
        if (input + 4 * quad + c < inputs) gw[(u64)(output + i) * inputs + input + 4 * quad + c] = sum;
    }
    if (input == 0 && quad == 0) {
        double sum = 0.0;
        for (u32 s = 0; s < 4; s++) sum += bias[threadIdx.x + 4 * s];
        gb[output + i] = (float)sum;
    }
}

// gx[b][k] = the sum over o of gy[b][o] w[o][k], a tile of 16 x 64.
__device__ inline void input_gradient(const float* w, const float* y, const float* gy, u32 batch, u32 inputs, u32 outputs, u32 tile,
                                      float* gx) {
    __shared__ __align__(16) float left[TILE][TERMS + 1], right[TERMS][WIDE];
    u32 across = (inputs + WIDE - 1) / WIDE, sample = tile / across * TILE, input = tile % across * WIDE;
    u32 quad = threadIdx.x % 16, i = threadIdx.x / 16;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (u32 begin = 0; begin < outputs; begin += TERMS) {
#pragma unroll
        for (u32 r = 0; r < TILE * TERMS / THREADS; r++) {
            u32 row = threadIdx.x / TERMS + r * (THREADS / TERMS), column = threadIdx.x % TERMS, o = begin + column;
            left[row][column] = sample + row < batch && o < outputs ? counted(y, gy, (u64)(sample + row) * outputs + o) : 0.0f;
        }
#pragma unroll
        for (u32 r = 0; r < TERMS * WIDE / THREADS; r++) {
            u32 row = threadIdx.x / WIDE + r * (THREADS / WIDE), column = threadIdx.x % WIDE;
            right[row][column] = begin + row < outputs && input + column < inputs ? w[(u64)(begin + row) * inputs + input + column] : 0.0f;
        }
        __syncthreads();
        u32 terms = outputs - begin < TERMS ? outputs - begin : TERMS;
        for (u32 o = 0; o < terms; o++) {
            float g = left[i][o];
            float4 a = *(const float4*)&right[o][4 * quad];
            sum[0] = fmaf(g, a.x, sum[0]);
            sum[1] = fmaf(g, a.y, sum[1]);
            sum[2] = fmaf(g, a.z, sum[2]);
            sum[3] = fmaf(g, a.w, sum[3]);
        }
        __syncthreads();
    }
    if (sample + i >= batch) return;
    for (u32 c = 0; c < 4; c++)
        if (input + 4 * quad + c < inputs) gx[(u64)(sample + i) * inputs + input + 4 * quad + c] = sum[c];
}

// All gradients of a layer: the first `weight_tiles` blocks take those of the weights, the others those of the input.
extern "C" __global__ void __launch_bounds__(THREADS)
linear_backward(const float* x, const float* w, const float* y, const float* gy, u32 batch, u32 inputs, u32 outputs, u32 weight_tiles,
                float* gx, float* gw, float* gb) {
    if (blockIdx.x < weight_tiles)
        weight_gradient(x, y, gy, batch, inputs, outputs, blockIdx.x, gw, gb);
    else
        input_gradient(w, y, gy, batch, inputs, outputs, blockIdx.x - weight_tiles, gx);
}
