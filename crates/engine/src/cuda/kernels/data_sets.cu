// Batches of images: bytes become standardised numbers.
#include "common.cuh"

#define MIRRORED 0x80000000u

// Random numbers by counting, as in counter.rs: the number at a place of the sequence that a key stands for.
__device__ inline u32 random_at(u32 key, u32 place) {
    u32 x = key + place * 0x9e3779b1u;
    x ^= x >> 16;
    x *= 0x85ebca6bu;
    x ^= x >> 13;
    x *= 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// One of -pixels .. pixels, each as likely.
__device__ inline int shift_of(u32 random, u32 pixels) { return (int)((u64)random * (2 * pixels + 1) >> 32) - (int)pixels; }

// Which way the images are ordered: channel after channel, or pixel after pixel.
extern "C" __global__ void __launch_bounds__(THREADS)
gather_images(const unsigned char* pixels, const u32* all_labels, const float* table, const u32* picks, u32 count, u32 channels,
              u32 height, u32 width, u32 channels_last, u32 crop, u32 crop_key, float* x, u32* labels) {
    u64 len = (u64)channels * height * width;
    for (u64 i = first_entry(); i < count * len; i += entry_step()) {
        u32 at = i % len, pick = picks[i / len];
        u64 sample = pick & ~MIRRORED;
        u32 channel = channels_last ? at % channels : at / (height * width);
        u32 pixel = channels_last ? at / channels : at % (height * width);
        u32 row = pixel / width, column = pixel % width;
        if (pick & MIRRORED) column = width - 1 - column;
        u32 byte = 0, down = random_at(crop_key, (u32)sample);
        // Beyond the border: a row or column that is negative is large.
        row += shift_of(down, crop), column += shift_of(random_at(down, 1), crop);
        if (row < height && column < width) byte = pixels[sample * len + ((u64)channel * height + row) * width + column];
        x[i] = table[channel * 256 + byte];
        if (at == 0) labels[i / len] = all_labels[sample];
    }
}

// Drops entries of rows of `len` numbers, by the number of their sample, and scales those that it keeps.
extern "C" __global__ void __launch_bounds__(THREADS)
drop_entries(const u32* picks, u64 rows, u64 len, u32 key, u32 threshold, float scale, float* x) {
    for (u64 i = first_entry(); i < rows * len; i += entry_step()) {
        u32 row_key = random_at(key, picks[i / len] & ~MIRRORED);
        x[i] = random_at(row_key, (u32)(i % len)) >= threshold ? x[i] * scale : 0.0f;
    }
}
