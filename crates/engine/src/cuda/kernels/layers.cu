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
        sums[column] = (float)sum;
    }
}

struct NormPool {
    u32 batch, height, width, channels, window, rows, cols;
    // Images that the sums are over; those of `batch` may be a part of them.
    u32 of;
};

#define NORM_EPSILON 1e-5
#define NORM_MOMENTUM 0.1

// The channel that a thread works on, from one pixel to the next `sharers` further on: neighbouring threads take neighbouring channels.
struct Lane {
    u32 wide, sharers, sharer, channel;
    bool idle;
    __device__ explicit Lane(u32 channels) {
        wide = channels < THREADS ? channels : THREADS;
        sharers = THREADS / wide;
        sharer = threadIdx.x / wide;
        channel = blockIdx.y * wide + threadIdx.x % wide;
        idle = sharer >= sharers || channel >= channels;
    }
    // The sum over those who share a channel, for the first of them.
    __device__ double sum(double x) const {
        __shared__ double parts[THREADS];
        parts[threadIdx.x] = x;
        __syncthreads();
        double total = 0.0;
        if (sharer == 0)
            for (u32 s = 0; s < sharers; s++) total += parts[s * wide + threadIdx.x];
        __syncthreads();
        return total;
    }
};

__device__ inline void read_channels(const float* from, float (&to)[1]) { to[0] = *from; }

__device__ inline void read_channels(const float* from, float (&to)[4]) {
    float4 four = *(const float4*)from;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}

__device__ inline void write_channels(const float (&from)[1], float* to) { *to = from[0]; }

__device__ inline void write_channels(const float (&from)[4], float* to) { *(float4*)to = float4{from[0], from[1], from[2], from[3]}; }

// Sums of each channel and of its squares over `each` pixels per part, all relative to the first pixel: moments[part][2][channel]. A thread
// takes WIDTH neighbouring channels.
template <u32 WIDTH>
__device__ void moments_of(const float* x, u64 pixels, u32 channels, u32 each, double* moments) {
    Lane lane(channels / WIDTH);
    u64 begin = (u64)blockIdx.x * each, end = begin + each < pixels ? begin + each : pixels;
    const float* mine = x + lane.channel * WIDTH;
    double sum[WIDTH] = {}, squares[WIDTH] = {};
    if (!lane.idle) {
        float pivot[WIDTH], at[WIDTH];
        read_channels(mine, pivot);
#pragma unroll 8
        for (u64 pixel = begin + lane.sharer; pixel < end; pixel += lane.sharers) {
            read_channels(mine + pixel * channels, at);
#pragma unroll
            for (u32 c = 0; c < WIDTH; c++) {
                double off = at[c] - (double)pivot[c];
                sum[c] += off;
                squares[c] += off * off;
            }
        }
    }
    double* to = moments + (u64)blockIdx.x * 2 * channels + lane.channel * WIDTH;
    for (u32 c = 0; c < WIDTH; c++) {
        sum[c] = lane.sum(sum[c]);
        squares[c] = lane.sum(squares[c]);
        if (lane.idle || lane.sharer != 0) continue;
        to[c] = sum[c];
        to[channels + c] = squares[c];
    }
}

// By fours where that can be: one number at a time, too few would be on their way from memory.
extern "C" __global__ void __launch_bounds__(THREADS) norm_moments(const float* x, u64 pixels, u32 channels, u32 each, double* moments) {
    if (channels % 4 == 0) moments_of<4>(x, pixels, channels, each, moments);
    else moments_of<1>(x, pixels, channels, each, moments);
}

// One block per channel: the moments of the whole from those of the parts.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_statistics(const double* moments, u32 parts, u32 channels, u64 pixels, const float* x, float* running_mean, float* running_variance,
                float* batch_mean, float* batch_inverse) {
    u32 c = blockIdx.x;
    double sum = 0.0, squares = 0.0, n = (double)pixels;
    for (u32 part = threadIdx.x; part < parts; part += THREADS) {
        sum += moments[(u64)part * 2 * channels + c];
        squares += moments[((u64)part * 2 + 1) * channels + c];
    }
    sum = block_sum(sum);
    squares = block_sum(squares) - sum * sum / n;
    if (threadIdx.x != 0) return;
    // Rounding alone could make it negative; a NaN stays one.
    squares = squares < 0.0 ? 0.0 : squares;
    double mean = x[c] + sum / n;
    batch_mean[c] = (float)mean;
    batch_inverse[c] = (float)(1.0 / sqrt(squares / n + NORM_EPSILON));
    running_mean[c] = (float)((1.0 - NORM_MOMENTUM) * running_mean[c] + NORM_MOMENTUM * mean);
    running_variance[c] = (float)((1.0 - NORM_MOMENTUM) * running_variance[c] + NORM_MOMENTUM * (squares / (n - 1.0)));
}

// One block per channel: the sums over all parts of the channel and of its squares, relative to nothing.
extern "C" __global__ void __launch_bounds__(THREADS)
norm_totals(const double* moments, u32 parts, u32 channels, u64 pixels, const float* x, double* totals) {
    u32 c = blockIdx.x;
    double sum = 0.0, squares = 0.0, n = (double)pixels, pivot = x[c];
    for (u32 part = threadIdx.x; part < parts; part += THREADS) {
        sum += moments[(u64)part * 2 * channels + c];
        squares += moments[((u64)part * 2 + 1) * channels + c];
    }
    sum = block_sum(sum);
    squares = block_sum(squares);
    if (threadIdx.x != 0) return;
    totals[c] = sum + n * pivot;
    totals[channels + c] = squares + pivot * (2.0 * sum + n * pivot);
}

__device__ inline float pooled(const NormPool& shape, const float* x, u64 sample, u32 cell, u32 c) {
    float sum = 0.0f;
    u32 row = cell / shape.cols * shape.window, column = cell % shape.cols * shape.window;
    for (u32 i = 0; i < shape.window; i++) {
        const float* from = x + ((sample * shape.height + row + i) * shape.width + column) * shape.channels + c;
#pragma unroll 8
        for (u32 j = 0; j < shape.window; j++) sum += from[(u64)j * shape.channels];
    }
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

// Parts of the sums of gy and of gy * xhat over the batch: sums[channel][part][2].
#define SUM_PARTS 8

// One block per channel and part.
extern "C" __global__ void __launch_bounds__(THREADS) norm_pool_sums(NormPool shape, const float* normalised, const float* gy, double* sums) {
    u32 c = blockIdx.x, part = blockIdx.y, cells = shape.rows * shape.cols, each = (shape.batch + SUM_PARTS - 1) / SUM_PARTS;
    u32 begin = min(part * each, shape.batch), end = min(begin + each, shape.batch);
    u64 len = (u64)cells * shape.channels;
    double plain = 0.0, weighted = 0.0;
#pragma unroll 4
    for (u64 i = threadIdx.x; i < (u64)(end - begin) * cells; i += THREADS) {
        u64 at = (begin + i / cells) * len + (u64)c * cells + i % cells;
        plain += gy[at];
        weighted += gy[at] * normalised[at];
    }
    plain = block_sum(plain);
    weighted = block_sum(weighted);
    if (threadIdx.x != 0) return;
    sums[(c * SUM_PARTS + part) * 2] = plain;
    sums[(c * SUM_PARTS + part) * 2 + 1] = weighted;
}

// What several pixels need is asked for before any of it is used.
#define AHEAD 4
// Gradients of windows that a block keeps.
#define KEPT 4096

// What a block keeps of its channels and windows: the constants in gx = slope g - level - tilt x, and gradients.
struct NormKept {
    float slope[4 * THREADS], level[4 * THREADS], tilt[4 * THREADS], gradients[KEPT];
    // Those of channel c, whose sums are given, as number `at`.
    __device__ void put(u32 at, const NormPool& shape, u32 c, double plain, double weighted, const float* scale, const float* mean,
                        const float* inverse) {
        double count = (double)((u64)shape.of * shape.height * shape.width);
        double gain = (double)scale[c] * inverse[c], lean = gain * inverse[c] * weighted / count;
        slope[at] = (float)(gain / (double)(shape.window * shape.window));
        level[at] = (float)(gain * plain / count - lean * mean[c]);
        tilt[at] = (float)lean;
    }
};

// A block has the rows of one row of windows, which lie one after the other in memory, or `each` pixels that are images of their own; WIDTH
// neighbouring channels a thread.
template <u32 WIDTH>
__device__ void pull_windows(NormKept& kept, const NormPool& shape, const float* x, const float* scale, const float* mean, const float* inverse,
                             const double* sums, const float* gy, u32 each, float* gx, float* gscale, float* goffset) {
    Lane lane(shape.channels / WIDTH);
    u32 wide = lane.wide * WIDTH, first = blockIdx.y * wide, cells = shape.rows * shape.cols, mine = lane.channel * WIDTH - first;
    if (first >= shape.channels) return;
    bool vectors = shape.height * shape.width == 1;
    u32 bands = (shape.height + shape.window - 1) / shape.window, band = blockIdx.x % bands;
    u64 sample = (u64)(blockIdx.x / bands) * each;
    u32 rows = min(shape.window, shape.height - band * shape.window), pixels = vectors ? min((u64)each, shape.batch - sample) : rows * shape.width;
    for (u32 at = threadIdx.x; at < wide && first + at < shape.channels; at += THREADS) {
        u32 c = first + at;
        double plain = 0.0, weighted = 0.0;
#pragma unroll
        for (u32 part = 0; part < SUM_PARTS; part++) {
            plain += sums[(c * SUM_PARTS + part) * 2];
            weighted += sums[(c * SUM_PARTS + part) * 2 + 1];
        }
        if (blockIdx.x == 0) {
            goffset[c] = (float)plain;
            gscale[c] = (float)weighted;
        }
        kept.put(at, shape, c, plain, weighted, scale, mean, inverse);
    }
    // Pixels that no window covers have no gradient of their own: a column of zeros for those at the right.
    bool covered = band < shape.rows, keeps = !vectors && (shape.cols + 1) * wide <= KEPT;
    const float* of_windows = gy + (sample * shape.channels + first) * cells + (u64)band * shape.cols;
    for (u32 i = threadIdx.x; keeps && i < (shape.cols + 1) * wide; i += THREADS) {
        u32 c = i % wide, right = i / wide;
        kept.gradients[i] = covered && right < shape.cols && first + c < shape.channels ? of_windows[(u64)c * cells + right] : 0.0f;
    }
    __syncthreads();
    if (lane.idle) return;
    float slope[WIDTH], level[WIDTH], tilt[WIDTH];
    read_channels(&kept.slope[mine], slope);
    read_channels(&kept.level[mine], level);
    read_channels(&kept.tilt[mine], tilt);
    u64 begin = (sample * shape.height + (u64)band * shape.window) * shape.width * shape.channels + lane.channel * WIDTH;
    u32 column = lane.sharer % shape.width, step = lane.sharers % shape.width;
    // Half a pixel from every border between windows: rounding cannot carry a pixel over one.
    float windows = 1.0f / (float)shape.window;
    for (u32 pixel = lane.sharer; pixel < pixels; pixel += AHEAD * lane.sharers) {
        float value[AHEAD][WIDTH];
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            u32 there = min(pixel + k * lane.sharers, pixels - 1);
            read_channels(x + begin + (u64)there * shape.channels, value[k]);
        }
#pragma unroll
        for (u32 k = 0; k < AHEAD; k++) {
            u32 there = pixel + k * lane.sharers, right = min((u32)(((float)column + 0.5f) * windows), shape.cols);
            column += step;
            if (column >= shape.width) column -= shape.width;
            if (there >= pixels) break;
            float g[WIDTH];
            if (vectors) read_channels(gy + begin + (u64)there * shape.channels, g);
            else if (keeps) read_channels(&kept.gradients[right * wide + mine], g);
            else
                for (u32 c = 0; c < WIDTH; c++)
                    g[c] = covered && right < shape.cols ? of_windows[(u64)(mine + c) * cells + right] : 0.0f;
#pragma unroll
            for (u32 c = 0; c < WIDTH; c++) g[c] = slope[c] * g[c] - level[c] - tilt[c] * value[k][c];
            write_channels(g, gx + begin + (u64)there * shape.channels);
        }
    }
}

// The gradients of x, and those for scale and offset.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
norm_pool_gradient(NormPool shape, const float* x, const float* scale, const float* mean, const float* inverse, const double* sums,
                   const float* gy, u32 each, float* gx, float* gscale, float* goffset) {
    __shared__ __align__(16) NormKept kept;
    if (shape.channels % 4 == 0) pull_windows<4>(kept, shape, x, scale, mean, inverse, sums, gy, each, gx, gscale, goffset);
    else pull_windows<1>(kept, shape, x, scale, mean, inverse, sums, gy, each, gx, gscale, goffset);
}

// Batch norm of vectors, that is without pooling: eight neighbouring channels per block, which goes over the batch as often as it needs.
#define NEIGHBOURS 8

// The sum over the threads of one channel, for all of them.
__device__ inline double sum_of_channel(double x) {
    __shared__ double parts[THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (u32 half = THREADS / 2; half >= NEIGHBOURS; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    double sum = parts[threadIdx.x % NEIGHBOURS];
    __syncthreads();
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
norm_vectors_train(const float* x, u32 batch, u32 channels, const float* scale, const float* offset, float* running_mean,
                   float* running_variance, float* batch_mean, float* batch_inverse, float* normalised, float* y) {
    u32 c = blockIdx.x * NEIGHBOURS + threadIdx.x % NEIGHBOURS, first = threadIdx.x / NEIGHBOURS, step = THREADS / NEIGHBOURS;
    u32 end = c < channels ? batch : 0;
    double sum = 0.0, squares = 0.0, n = (double)batch;
#pragma unroll 8
    for (u32 i = first; i < end; i += step) sum += x[(u64)i * channels + c];
    double mean = sum_of_channel(sum) / n;
#pragma unroll 8
    for (u32 i = first; i < end; i += step) {
        double off = x[(u64)i * channels + c] - mean;
        squares += off * off;
    }
    squares = sum_of_channel(squares);
    if (c >= channels) return;
    float level = (float)mean, inverse = (float)(1.0 / sqrt(squares / n + NORM_EPSILON)), gain = scale[c], shift = offset[c];
    for (u32 i = first; i < end; i += step) {
        float xhat = (x[(u64)i * channels + c] - level) * inverse;
        normalised[(u64)i * channels + c] = xhat;
        y[(u64)i * channels + c] = xhat * gain + shift;
    }
    if (first != 0) return;
    batch_mean[c] = level;
    batch_inverse[c] = inverse;
    running_mean[c] = (float)((1.0 - NORM_MOMENTUM) * running_mean[c] + NORM_MOMENTUM * mean);
    running_variance[c] = (float)((1.0 - NORM_MOMENTUM) * running_variance[c] + NORM_MOMENTUM * (squares / (n - 1.0)));
}

extern "C" __global__ void __launch_bounds__(THREADS)
norm_vectors_backward(const float* normalised, u32 batch, u32 channels, const float* scale, const float* inverse, const float* gy, float* gx,
                      float* gscale, float* goffset) {
    u32 c = blockIdx.x * NEIGHBOURS + threadIdx.x % NEIGHBOURS, first = threadIdx.x / NEIGHBOURS, step = THREADS / NEIGHBOURS;
    u32 end = c < channels ? batch : 0;
    double plain = 0.0, weighted = 0.0, n = (double)batch;
#pragma unroll 8
    for (u32 i = first; i < end; i += step) {
        u64 at = (u64)i * channels + c;
        plain += gy[at];
        weighted += gy[at] * normalised[at];
    }
    plain = sum_of_channel(plain);
    weighted = sum_of_channel(weighted);
    if (c >= channels) return;
    double gain = (double)scale[c] * inverse[c];
    float slope = (float)gain, level = (float)(gain * plain / n), tilt = (float)(gain * weighted / n);
    for (u32 i = first; i < end; i += step) {
        u64 at = (u64)i * channels + c;
        gx[at] = slope * gy[at] - level - tilt * normalised[at];
    }
    if (first != 0) return;
    goffset[c] = (float)plain;
    gscale[c] = (float)weighted;
}

// 32 threads per sample.
#define GROUP 32

struct Best {
    float value;
    u32 class_;
};

// The largest of the 32 values of a sample and its number, the first of several; NaN is never the largest.
__device__ inline Best largest_of_group(Best mine) {
    __shared__ Best parts[THREADS];
    parts[threadIdx.x] = mine;
    __syncthreads();
    for (u32 half = GROUP / 2; half > 0; half /= 2) {
        if (threadIdx.x % GROUP < half) {
            Best other = parts[threadIdx.x + half], &own = parts[threadIdx.x];
            if (other.value > own.value || (other.value == own.value && other.class_ < own.class_)) own = other;
        }
        __syncthreads();
    }
    Best best = parts[threadIdx.x / GROUP * GROUP];
    __syncthreads();
    return best;
}

__device__ inline float sum_of_group(float x) {
    __shared__ float parts[THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (u32 half = GROUP / 2; half > 0; half /= 2) {
        if (threadIdx.x % GROUP < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    float sum = parts[threadIdx.x / GROUP * GROUP];
    __syncthreads();
    return sum;
}

// What a sample adds to the counters.
struct Scored {
    double loss, hit;
};

// The gradient for the logits of the mean loss of `of` samples, some of which these are; the last block to end adds losses and hits to the counters, sample after sample.
extern "C" __global__ void __launch_bounds__(THREADS)
cross_entropy(const float* logits, const u32* labels, u32 batch, u32 of, u32 classes, double smoothing, float* gradient, Scored* scored,
              u32* arrived, Tally* tally) {
    u32 sample = blockIdx.x * (THREADS / GROUP) + threadIdx.x / GROUP, first = threadIdx.x % GROUP, end = sample < batch ? classes : 0;
    const float* x = logits + (u64)sample * classes;
    float* g = gradient + (u64)sample * classes;
    Best best = {-INFINITY, classes};
    for (u32 c = first; c < end; c += GROUP)
        if (x[c] > best.value || (x[c] == best.value && c < best.class_)) best = {x[c], c};
    best = largest_of_group(best);
    float top = best.value, part = 0.0f, weight = (float)(1.0 / (double)of);
    for (u32 c = first; c < end; c += GROUP) part += expf(x[c] - top);
    float sum = sum_of_group(part), share = weight / sum;
    // What is wanted of each class, and of the label besides.
    float shared = (float)(smoothing / ((double)of * classes)), exact = (float)((1.0 - smoothing) / (double)of);
    for (u32 c = first; c < end; c += GROUP) g[c] = expf(x[c] - top) * share - (c == labels[sample] ? exact + shared : shared);
    double mean = 0.0;
    if (smoothing > 0.0) {
        part = 0.0f;
        for (u32 c = first; c < end; c += GROUP) part += x[c] - top;
        mean = sum_of_group(part) / (double)classes;
    }
    if (end > 0 && first == 0) {
        u32 label = labels[sample];
        bool hit = best.class_ == label && isfinite(top) && !isnan(x[0]);
        scored[sample] = {log((double)sum) - (1.0 - smoothing) * (double)(x[label] - top) - smoothing * mean, hit ? 1.0 : 0.0};
    }
    if (!last_to_arrive(arrived)) return;
    double loss = 0.0, hits = 0.0;
    for (u32 i = threadIdx.x; i < batch; i += THREADS) {
        loss += scored[i].loss;
        hits += scored[i].hit;
    }
    loss = block_sum(loss);
    hits = block_sum(hits);
    if (threadIdx.x != 0) return;
    tally->samples += batch;
    tally->loss += loss;
    tally->correct += (u64)hits;
}

struct Adam {
    float rate, root, beta1, rest1, beta2, rest2, epsilon, l2, kept;
};

// A parameter, its gradient and its two moments.
struct Update {
    float* parameter;
    const float* gradient;
    float *mean, *square;
    u64 len;
};

// Parameters of one launch, and entries of a block.
#define UPDATES 16
#define UPDATE_ENTRIES 1024

struct Updates {
    Update of[UPDATES];
    // The first block of each.
    u32 first[UPDATES];
};

extern "C" __global__ void __launch_bounds__(THREADS) adam(Adam adam, Updates updates, u32 count) {
    u32 which = 0;
    while (which + 1 < count && blockIdx.x >= updates.first[which + 1]) which++;
    const Update& update = updates.of[which];
    u64 begin = (u64)(blockIdx.x - updates.first[which]) * UPDATE_ENTRIES;
#pragma unroll
    for (u32 k = 0; k < UPDATE_ENTRIES / THREADS; k++) {
        u64 i = begin + k * THREADS + threadIdx.x;
        if (i >= update.len) break;
        float p = update.parameter[i], g = update.gradient[i] + adam.l2 * p;
        float m = adam.beta1 * update.mean[i] + adam.rest1 * g;
        float v = adam.beta2 * update.square[i] + adam.rest2 * g * g;
        update.mean[i] = m;
        update.square[i] = v;
        update.parameter[i] = adam.kept * p - adam.rate * m / (sqrtf(v) * adam.root + adam.epsilon);
    }
}
