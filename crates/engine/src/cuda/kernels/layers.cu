// What surrounds an equilibrium.
#include "common.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) relu(float* x, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) x[i] = x[i] > 0.0f ? x[i] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS) relu_backward(const float* y, float* g, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) g[i] = y[i] > 0.0f ? g[i] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(THREADS) apply_tanh(float* x, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) x[i] = tanhf(x[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS) tanh_backward(const float* y, float* g, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) g[i] = g[i] * (1.0f - y[i] * y[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS) axpy(float a, const float* x, float* y, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) y[i] = y[i] + a * x[i];
}

extern "C" __global__ void __launch_bounds__(THREADS) add_to_rows(const float* b, float* x, u64 rows, u64 cols) {
    for (u64 i = first_entry(); i < rows * cols; i += entry_step()) x[i] += b[i % cols];
}

// 32 columns by 8 threads that share their rows.
#define COLUMNS 32
#define SHARERS (THREADS / COLUMNS)

__device__ inline double sum_of_sharers(double x) {
    __shared__ double parts[THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (u32 half = THREADS / 2; half >= COLUMNS; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    double sum = parts[threadIdx.x % COLUMNS];
    __syncthreads();
    return sum;
}

// Sums of columns over `each` rows per part: partial[part][column].
extern "C" __global__ void __launch_bounds__(THREADS) sum_rows_parts(const float* x, u64 rows, u64 cols, u32 each, double* partial) {
    u64 column = (u64)blockIdx.x * COLUMNS + threadIdx.x % COLUMNS, begin = (u64)blockIdx.y * each;
    double sum = 0.0;
    if (column < cols)
        for (u64 row = begin + threadIdx.x / COLUMNS; row < begin + each && row < rows; row += SHARERS) sum += x[row * cols + column];
    sum = sum_of_sharers(sum);
    if (threadIdx.x < COLUMNS && column < cols) partial[(u64)blockIdx.y * cols + column] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS) sum_rows_total(const double* partial, u32 parts, u64 cols, float* sums) {
    for (u64 column = first_entry(); column < cols; column += entry_step()) {
        double sum = 0.0;
        for (u32 part = 0; part < parts; part++) sum += partial[part * cols + column];
        sums[column] += (float)sum;
    }
}

struct NormPool {
    u32 batch, height, width, channels, window, rows, cols, unused;
};

#define NORM_EPSILON 1e-5
#define NORM_MOMENTUM 0.1

// Count, mean and sum of squared deviations of each channel over `each` pixels per part: moments[part][3][channel].
extern "C" __global__ void __launch_bounds__(THREADS) norm_moments(const float* x, u64 pixels, u32 channels, u32 each, double* moments) {
    u32 channel = blockIdx.x * COLUMNS + threadIdx.x % COLUMNS;
    u64 begin = (u64)blockIdx.y * each, end = begin + each < pixels ? begin + each : pixels;
    double count = (double)(end - begin), sum = 0.0, squares = 0.0;
    if (channel < channels)
        for (u64 pixel = begin + threadIdx.x / COLUMNS; pixel < end; pixel += SHARERS) sum += x[pixel * channels + channel];
    double mean = sum_of_sharers(sum) / count;
    if (channel < channels)
        for (u64 pixel = begin + threadIdx.x / COLUMNS; pixel < end; pixel += SHARERS) {
            double off = x[pixel * channels + channel] - mean;
            squares += off * off;
        }
    squares = sum_of_sharers(squares);
    if (threadIdx.x < COLUMNS && channel < channels) {
        double* part = moments + (u64)blockIdx.y * 3 * channels + channel;
        part[0] = count;
        part[channels] = mean;
        part[2 * channels] = squares;
    }
}

// Moments of the whole from those of the parts (Chan, Golub and LeVeque), in their order.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_statistics(const double* moments, u32 parts, u32 channels, float* running_mean, float* running_variance, float* batch_mean,
                float* batch_inverse) {
    u32 c = first_entry();
    if (c >= channels) return;
    double n = 0.0, mean = 0.0, squares = 0.0;
    for (u32 part = 0; part < parts; part++) {
        const double* of = moments + (u64)part * 3 * channels + c;
        double count = of[0], total = n + count, gap = of[channels] - mean;
        squares = squares + of[2 * channels] + gap * gap * n * count / total;
        mean = mean + gap * count / total;
        n = total;
    }
    batch_mean[c] = (float)mean;
    batch_inverse[c] = (float)(1.0 / sqrt(squares / n + NORM_EPSILON));
    running_mean[c] = (float)((1.0 - NORM_MOMENTUM) * running_mean[c] + NORM_MOMENTUM * mean);
    running_variance[c] = (float)((1.0 - NORM_MOMENTUM) * running_variance[c] + NORM_MOMENTUM * (squares / (n - 1.0)));
}

__device__ inline float pooled(const NormPool& shape, const float* x, u64 sample, u32 cell, u32 c) {
    float sum = 0.0f;
    u32 row = cell / shape.cols * shape.window, column = cell % shape.cols * shape.window;
    for (u32 i = 0; i < shape.window; i++)
        for (u32 j = 0; j < shape.window; j++)
            sum += x[((sample * shape.height + row + i) * shape.width + column + j) * shape.channels + c];
    return sum * (float)(1.0 / (double)(shape.window * shape.window));
}

// Pooled, normalised with the batch's statistics, scaled. `normalised` is kept for the way back.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_pool_train(NormPool shape, const float* x, const float* mean, const float* inverse, const float* scale, const float* offset,
                float* normalised, float* y) {
    u32 cells = shape.rows * shape.cols;
    u64 len = (u64)cells * shape.channels;
    for (u64 i = first_entry(); i < shape.batch * len; i += entry_step()) {
        u64 sample = i / len;
        u32 cell = i % len / shape.channels, c = i % shape.channels;
        u64 to = sample * len + (u64)c * cells + cell;
        float xhat = (pooled(shape, x, sample, cell, c) - mean[c]) * inverse[c];
        normalised[to] = xhat;
        y[to] = xhat * scale[c] + offset[c];
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
norm_pool_eval(NormPool shape, const float* x, const float* mean, const float* variance, const float* scale, const float* offset, float* y) {
    u32 cells = shape.rows * shape.cols;
    u64 len = (u64)cells * shape.channels;
    for (u64 i = first_entry(); i < shape.batch * len; i += entry_step()) {
        u64 sample = i / len;
        u32 cell = i % len / shape.channels, c = i % shape.channels;
        float inverse = (float)(1.0 / sqrt((double)variance[c] + NORM_EPSILON));
        y[sample * len + (u64)c * cells + cell] = (pooled(shape, x, sample, cell, c) - mean[c]) * inverse * scale[c] + offset[c];
    }
}

// One block per channel: the sums of gy and of gy * xhat, added to the gradients and kept for `norm_pool_gradient`.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_pool_sums(NormPool shape, const float* normalised, const float* gy, double* sums, float* gscale, float* goffset) {
    u32 c = blockIdx.x, cells = shape.rows * shape.cols;
    u64 len = (u64)cells * shape.channels;
    double plain = 0.0, weighted = 0.0;
    for (u64 i = threadIdx.x; i < (u64)shape.batch * cells; i += THREADS) {
        u64 at = i / cells * len + (u64)c * cells + i % cells;
        plain += gy[at];
        weighted += gy[at] * normalised[at];
    }
    plain = block_sum(plain);
    weighted = block_sum(weighted);
    if (threadIdx.x == 0) {
        sums[2 * c] = plain;
        sums[2 * c + 1] = weighted;
        goffset[c] += (float)plain;
        gscale[c] += (float)weighted;
    }
}

// gx = slope g - level - tilt x, the constants per channel.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_pool_gradient(NormPool shape, const float* x, const float* scale, const float* mean, const float* inverse, const double* sums,
                   const float* gy, float* gx) {
    u32 cells = shape.rows * shape.cols;
    u64 pixels = (u64)shape.batch * shape.height * shape.width;
    double count = (double)pixels;
    for (u64 i = first_entry(); i < pixels * shape.channels; i += entry_step()) {
        u32 c = i % shape.channels;
        u64 pixel = i / shape.channels, sample = pixel / (shape.height * shape.width);
        u32 row = pixel / shape.width % shape.height / shape.window, column = pixel % shape.width / shape.window;
        double gain = (double)scale[c] * inverse[c], lean = gain * inverse[c] * sums[2 * c + 1] / count;
        float slope = (float)(gain / (double)(shape.window * shape.window)), tilt = (float)lean;
        float level = (float)(gain * sums[2 * c] / count - lean * mean[c]);
        // Pixels that no window covers have no gradient of their own.
        bool covered = row < shape.rows && column < shape.cols;
        float g = covered ? slope * gy[(sample * shape.channels + c) * cells + row * shape.cols + column] : 0.0f;
        gx[i] = g - level - tilt * x[i];
    }
}

// One thread per sample: the gradient of the mean loss for its logits, its loss, and whether its largest logit is the label's.
extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy(const float* logits, const u32* labels, u32 batch, u32 classes, float* gradient, double* losses, u32* hits) {
    u32 sample = first_entry();
    if (sample >= batch) return;
    const float* x = logits + (u64)sample * classes;
    float* g = gradient + (u64)sample * classes;
    u32 label = labels[sample], best = 0;
    for (u32 c = 0; c < classes; c++)
        if (x[c] > x[best]) best = c;
    float top = x[best], sum = 0.0f, weight = (float)(1.0 / (double)batch);
    hits[sample] = best == label && isfinite(top);
    double loss = -(double)(x[label] - top);
    for (u32 c = 0; c < classes; c++) {
        g[c] = expf(x[c] - top);
        sum += g[c];
    }
    losses[sample] = loss + log((double)sum);
    float scale = weight / sum;
    for (u32 c = 0; c < classes; c++) g[c] = g[c] * scale - (c == label ? weight : 0.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS) tally_losses(const double* losses, const u32* hits, u32 batch, Tally* tally) {
    double loss = 0.0;
    u64 correct = 0;
    for (u32 i = threadIdx.x; i < batch; i += THREADS) {
        loss += losses[i];
        correct += hits[i];
    }
    loss = block_sum(loss);
    correct = block_count(correct);
    if (threadIdx.x == 0) {
        tally->samples += batch;
        tally->loss += loss;
        tally->correct += correct;
    }
}

struct Adam {
    float rate, root, beta1, rest1, beta2, rest2, epsilon, l2;
};

extern "C" __global__ void __launch_bounds__(THREADS)
adam(Adam adam, float* parameter, const float* gradient, float* mean, float* square, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) {
        float p = parameter[i], g = gradient[i] + adam.l2 * p;
        float m = adam.beta1 * mean[i] + adam.rest1 * g;
        float v = adam.beta2 * square[i] + adam.rest2 * g * g;
        mean[i] = m;
        square[i] = v;
        parameter[i] = p - adam.rate * m / (sqrtf(v) * adam.root + adam.epsilon);
    }
}
