// Average pooling between blocks of a network; images stay height x width x channels.
#include "common.cuh"

// The `NormPool` of `layers.cu`.
struct Pool {
    u32 batch, height, width, channels, window, rows, cols, unused;
};

extern "C" __global__ void __launch_bounds__(THREADS) average_pool(Pool shape, const float* x, float* y) {
    u64 len = (u64)shape.batch * shape.rows * shape.cols * shape.channels;
    float share = 1.0f / (float)(shape.window * shape.window);
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        // Pixels of a batch can be counted in 32 bits, whose divisions are quick.
        u32 c = i % shape.channels, cell = i / shape.channels;
        u32 col = cell % shape.cols, row = cell / shape.cols % shape.rows;
        u64 sample = cell / (shape.cols * shape.rows);
        const float* corner = x + ((sample * shape.height + row * shape.window) * shape.width + col * shape.window) * shape.channels + c;
        float sum = 0.0f;
        for (u32 down = 0; down < shape.window; down++)
            for (u32 right = 0; right < shape.window; right++) sum += corner[((u64)down * shape.width + right) * shape.channels];
        y[i] = sum * share;
    }
}

// Pixels that no window covers get 0.
extern "C" __global__ void __launch_bounds__(THREADS) average_pool_backward(Pool shape, const float* gy, float* gx) {
    u64 len = (u64)shape.batch * shape.height * shape.width * shape.channels;
    float share = 1.0f / (float)(shape.window * shape.window);
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        u32 c = i % shape.channels, pixel = i / shape.channels;
        u32 row = pixel / shape.width % shape.height / shape.window, col = pixel % shape.width / shape.window;
        u64 sample = pixel / (shape.width * shape.height);
        bool covered = row < shape.rows && col < shape.cols;
        gx[i] = covered ? share * gy[((sample * shape.rows + row) * shape.cols + col) * shape.channels + c] : 0.0f;
    }
}
