// Tensor cores: products of tiles of 16-bit numbers with sums in f32, and f32 numbers as sums of two 16-bit ones.
// A product of numbers that are split into high and low halves is high high + high low + low high.
#pragma once
#include "common.cuh"

// bench/cuda/emu_driver.cpp has its own of these.
#ifndef EMULATED
// Four 8 x 8 tiles from shared memory; lane i brings the address of row i % 8 of tile i / 8.
__device__ inline void load_tiles(u32 (&tiles)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
// The same, each tile transposed.
__device__ inline void load_turned_tiles(u32 (&tiles)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(tiles[0]), "=r"(tiles[1]), "=r"(tiles[2]), "=r"(tiles[3]) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
}
// sums += a b, 16 x 8 from 16 x 16 and 16 x 8.
__device__ inline void multiply_f16(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void multiply_bf16(float (&sums)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two numbers, the first in the low half.
__device__ inline u32 pair_f16(float first, float second) {
    u32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
__device__ inline float2 of_f16(u32 pair) {
    float2 x;
    asm("{.reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b;}" : "=f"(x.x), "=f"(x.y) : "r"(pair));
    return x;
}
__device__ inline u32 pair_bf16(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}
// The largest of a warp.
__device__ inline u32 warp_max(u32 x) { return __reduce_max_sync(0xffffffffu, x); }
#endif

__device__ inline float2 of_bf16(u32 pair) { return {__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)}; }

struct Halves {
    u32 high, low;
};
// f16 halves keep 22 bits of numbers up to 32768, less of those below 1/4 (2^-25 absolutely): scale first.
__device__ inline Halves halves_f16(float first, float second) {
    u32 high = pair_f16(first, second);
    float2 x = of_f16(high);
    return {high, pair_f16(first - x.x, second - x.y)};
}
// bf16 halves keep 17 bits of numbers of any size.
__device__ inline Halves halves_bf16(float first, float second) {
    u32 high = pair_bf16(first, second);
    float2 x = of_bf16(high);
    return {high, pair_bf16(first - x.x, second - x.y)};
}

// A power of two and its inverse.
struct Scale {
    float to, back;
};
// What brings numbers of at most this size, given by its bits without the sign, to below 2^15 and the largest to 2^14 or above.
__device__ inline Scale scale_of(u32 size) {
    u32 exponent = size >> 23;
    exponent = exponent < 15 ? 15 : exponent > 254 ? 254 : exponent;
    return {__uint_as_float((268 - exponent) << 23), __uint_as_float((exponent - 14) << 23)};
}
__device__ inline u32 size_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Where an entry of a complex matrix is among the numbers of its real form, pairs of f16 in tiles that a lane of `multiply_f16` reads in
// fours: a real matrix with two columns for each output, and four of them, 16 (j) + 4 (pair) + e, for each lane in a row. A lane has the
// inputs 16 (s) + 4 (its place) + 0, 1, 2, 3. The column of the imaginary part is the next lane group's, TILE_IMAGINARY further on.
#define TILE_IMAGINARY 16
__device__ inline u32 tile_entry(u32 slabs, u32 out, u32 in) {
    u32 row = (out / 16 * 4 + out % 4) * slabs + in / 16, lane = out % 16 / 4 * 8 + in % 16 / 4;
    return (row * 32 + lane) * 4 + in % 4;
}
