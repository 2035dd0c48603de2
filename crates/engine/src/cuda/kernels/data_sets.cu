// Batches of images: bytes become standardised numbers.
#include "common.cuh"

#define MIRRORED 0x80000000u

// Which way the images are ordered: channel after channel, or pixel after pixel.
extern "C" __global__ void __launch_bounds__(THREADS)
gather_images(const unsigned char* pixels, const u32* all_labels, const float* table, const u32* picks, u32 count, u32 channels,
              u32 height, u32 width, u32 channels_last, float* x, u32* labels) {
    u64 len = (u64)channels * height * width;
    for (u64 i = first_entry(); i < count * len; i += entry_step()) {
        u32 at = i % len, pick = picks[i / len];
        u64 sample = pick & ~MIRRORED;
        u32 channel = channels_last ? at % channels : at / (height * width);
        u32 pixel = channels_last ? at / channels : at % (height * width);
        u32 row = pixel / width, column = pixel % width;
        if (pick & MIRRORED) column = width - 1 - column;
        x[i] = table[channel * 256 + pixels[sample * len + ((u64)channel * height + row) * width + column]];
        if (at == 0) labels[i / len] = all_labels[sample];
    }
}
