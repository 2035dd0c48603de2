// Pixels of padded images, and their channels by fours.
#pragma once
#include "common.cuh"

__device__ inline int wrapped(int x, int len) {
    if (x < 0 || x >= len) x %= len;
    return x < 0 ? x + len : x;
}

// Division of a number below 2^12, of the pixels of a tile say, by one multiplication: exact while number times divisor is below 2^20.
struct Divisor {
    u32 factor;
    __device__ explicit Divisor(u32 divisor) : factor(((1u << 20) - 1 + divisor) / divisor) {}
    __device__ u32 of(u32 number) const { return number * factor >> 20; }
};

// Brings a pixel that may lie outside to where its value is; false if that is zero.
__device__ inline bool inside(int& row, int& column, u32 height, u32 width, u32 circular) {
    if (!circular) return row >= 0 && column >= 0 && row < (int)height && column < (int)width;
    row = wrapped(row, height);
    column = wrapped(column, width);
    return true;
}

// Four channels of which `left` exist, the rest zero; `fours`: all come in fours.
__device__ inline float4 four_channels(const float* from, int left, bool fours) {
    float4 x = {0.0f, 0.0f, 0.0f, 0.0f};
    if (fours) {
        if (left > 0) x = *(const float4*)from;
    } else {
        if (left > 0) x.x = from[0];
        if (left > 1) x.y = from[1];
        if (left > 2) x.z = from[2];
        if (left > 3) x.w = from[3];
    }
    return x;
}
