// Anderson acceleration, safeguarded, as `cpu/solve/anderson.rs` explains it. One block per sample.
#include "solve.cuh"

#define MOST 8

struct History {
    u32 count, newest, accelerated, unused;
    double residual;
    Distance distance;
};

struct Anderson {
    // [sample][slot][entry], [sample][slot][slot], [sample].
    float* images;
    float* residuals;
    double* gram;
    History* histories;
    double ridge, mixing;
    u32 window, unused;
};

extern "C" __global__ void __launch_bounds__(THREADS) begin_anderson(Anderson anderson, u32 batch) {
    u32 sample = first_entry();
    if (sample < batch) anderson.histories[sample] = {0, 0, 0, 0, INFINITY, {0.0, 0.0, -INFINITY, INFINITY}};
}

// The weights of the combination: (G + ridge diag G) w = 1, divided by their sum. False if the residuals are too nearly dependent.
__device__ inline bool combination(const double* gram, u32 stride, u32 count, double ridge, double* solution) {
    double factor[MOST * MOST], scale[MOST];
    // Scaled to a unit diagonal, so that the ridge means the same at every stage of the solve.
    for (u32 i = 0; i < count; i++) scale[i] = 1.0 / sqrt(gram[i * stride + i]);
    for (u32 i = 0; i < count; i++) {
        for (u32 j = 0; j < i; j++) {
            double sum = gram[i * stride + j] * scale[i] * scale[j];
            for (u32 k = 0; k < j; k++) sum -= factor[i * MOST + k] * factor[j * MOST + k];
            factor[i * MOST + j] = sum * factor[j * MOST + j];
        }
        double pivot = 1.0 + ridge;
        for (u32 k = 0; k < i; k++) pivot -= factor[i * MOST + k] * factor[i * MOST + k];
        if (!(pivot > 1e-13)) return false;
        // The diagonal is kept as its inverse.
        factor[i * MOST + i] = 1.0 / sqrt(pivot);
    }
    for (u32 i = 0; i < count; i++) {
        double known = 0.0;
        for (u32 k = 0; k < i; k++) known += factor[i * MOST + k] * solution[k];
        solution[i] = (scale[i] - known) * factor[i * MOST + i];
    }
    double total = 0.0;
    for (u32 i = count; i-- > 0;) {
        double known = 0.0;
        for (u32 k = i + 1; k < count; k++) known += factor[k * MOST + i] * solution[k];
        solution[i] = (solution[i] - known) * factor[i * MOST + i];
    }
    for (u32 i = 0; i < count; i++) {
        solution[i] *= scale[i];
        total += solution[i];
    }
    if (!isfinite(total) || !(fabs(total) >= 2.2250738585072014e-308)) return false;
    for (u32 i = 0; i < count; i++) solution[i] /= total;
    return true;
}

// The next argument of each sample: a combination of images that stays where the iterates were, or else the last image.
extern "C" __global__ void __launch_bounds__(THREADS)
propose(Anderson anderson, u64 len, const u32* active, const float* image, float* argument) {
    __shared__ double weights[MOST];
    __shared__ bool solved;
    u32 sample = blockIdx.x, window = anderson.window;
    if (active[sample] != 1) return;
    History& history = anderson.histories[sample];
    u32 count = history.count, newest = history.newest;
    const float* images = anderson.images + (u64)sample * window * len;
    const float* residuals = anderson.residuals + (u64)sample * window * len;
    float* to = argument + sample * len;
    if (threadIdx.x == 0)
        solved = count >= 2 && combination(anderson.gram + (u64)sample * window * window, window, count, anderson.ridge, weights);
    __syncthreads();
    bool accepted = false;
    if (solved) {
        bool positive = true, finite = true, newest_positive = true;
        for (u64 i = threadIdx.x; i < len; i += THREADS) {
            float x = 0.0f;
            for (u32 k = 0; k < count; k++) x = fmaf((float)weights[k], images[k * len + i], x);
            if (anderson.mixing != 1.0) {
                double back = anderson.mixing - 1.0;
                for (u32 k = 0; k < count; k++) x = fmaf((float)(back * weights[k]), residuals[k * len + i], x);
            }
            to[i] = x;
            positive = positive && x > 0.0f;
            finite = finite && isfinite(x);
            newest_positive = newest_positive && images[newest * len + i] > 0.0f;
        }
        bool all_positive = __syncthreads_and(positive), all_finite = __syncthreads_and(finite);
        bool were_positive = __syncthreads_and(newest_positive);
        accepted = all_finite && (all_positive || !were_positive);
    }
    if (!accepted)
        for (u64 i = threadIdx.x; i < len; i += THREADS) to[i] = image[sample * len + i];
    if (threadIdx.x == 0) history.accelerated = accepted;
}

// Takes a pair into the history, or takes back a combination that did not help; then as `conclude_step`.
extern "C" __global__ void __launch_bounds__(THREADS)
judge(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, const float* argument, float* image, u64 len) {
    u32 sample = blockIdx.x, window = anderson.window;
    if (samples.active[sample] != 1) return;
    const float* z = argument + sample * len;
    float* f = image + sample * len;
    float* images = anderson.images + (u64)sample * window * len;
    float* residuals = anderson.residuals + (u64)sample * window * len;
    double* gram = anderson.gram + (u64)sample * window * window;
    History history = anderson.histories[sample];
    Distance d = distance_of(stopping.measure, z, f, len);
    u32 next = history.count == 0 ? 0 : (history.newest + 1) % window;
    u32 count = history.count + 1 < window ? history.count + 1 : window;
    // The oldest slot serves as memory for the new residual; a rejected pair empties the history anyway.
    for (u64 i = threadIdx.x; i < len; i += THREADS) residuals[next * len + i] = f[i] - z[i];
    double products[MOST];
    for (u32 slot = 0; slot < count; slot++) {
        double sum = 0.0;
        // Each thread reads what it has just written.
        for (u64 i = threadIdx.x; i < len; i += THREADS) sum += (double)residuals[next * len + i] * residuals[slot * len + i];
        products[slot] = block_sum(sum);
    }
    double residual = products[next];
    if (history.accelerated && !(residual < history.residual)) {
        u32 newest = history.newest;
        for (u64 i = threadIdx.x; i < len; i += THREADS) {
            f[i] = images[newest * len + i];
            images[i] = images[newest * len + i];
            residuals[i] = residuals[newest * len + i];
        }
        d = history.distance;
        if (threadIdx.x == 0) {
            gram[0] = history.residual;
            anderson.histories[sample] = {1, 0, 0, 0, history.residual, history.distance};
        }
    } else {
        for (u64 i = threadIdx.x; i < len; i += THREADS) images[next * len + i] = f[i];
        if (threadIdx.x == 0) {
            for (u32 slot = 0; slot < count; slot++) gram[next * window + slot] = gram[slot * window + next] = products[slot];
            anderson.histories[sample] = {count, next, 0, 0, residual, d};
        }
    }
    if (threadIdx.x == 0) conclude(stopping, iteration, samples, sample, d);
}
