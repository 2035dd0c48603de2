// Solves: how far an iterate went, when a sample ends, Anderson's combinations. One block per sample.
#include "common.cuh"

// The order of `Measure` in solver.rs.
enum : u32 { RELATIVE, ABSOLUTE, THOMPSON, HILBERT, SUP };

struct Stopping {
    double tolerance;
    u32 measure, max_iterations, together, unused;
};

struct Distance {
    double difference, size, high, low;
};

struct Progress {
    double best;
    // Iterations since; whether something infinite or NaN was given.
    u32 since, bad;
};

// What the samples of a batch need to be told apart.
struct Samples {
    Progress* progress;
    Report* reports;
    // 1: worked on; 0: ended; 2: ended just now, with the whole batch.
    u32* active;
    // How many are worked on.
    u32* remaining;
    Distance* distances;
};

#define PATIENCE 12
#define ROUNDING_LEVEL (1000.0 * 1.1920928955078125e-7)

__device__ inline double residual_of(u32 measure, const Distance& d) {
    switch (measure) {
        case RELATIVE: return sqrt(d.difference) / (1e-5 + sqrt(d.size));
        case ABSOLUTE: return sqrt(d.difference);
        case HILBERT: return d.high - d.low;
        default: return d.high > -d.low ? d.high : -d.low;
    }
}

// How a sample stands; true if it has ended.
__device__ inline bool ended(const Stopping& stopping, u32 iteration, const Distance& d, Progress& progress, Report& report) {
    double residual = residual_of(stopping.measure, d);
    if (residual < progress.best) {
        progress.best = residual;
        progress.since = 0;
    } else {
        progress.since++;
    }
    bool lengths = stopping.measure == ABSOLUTE || stopping.measure == SUP;
    double unit = lengths && sqrt(d.size) > 1.0 ? sqrt(d.size) : 1.0;
    u32 outcome;
    if (!isfinite(d.size) || isnan(residual)) {
        outcome = NOT_FINITE;
    } else if (residual <= stopping.tolerance) {
        outcome = CONVERGED;
    } else if (progress.since >= PATIENCE && progress.best <= ROUNDING_LEVEL * unit) {
        outcome = STAGNATED;
    } else if (iteration >= stopping.max_iterations) {
        outcome = ITERATION_LIMIT;
    } else {
        return false;
    }
    report.iterations = iteration;
    report.outcome = outcome;
    report.residual = residual;
    return true;
}

// The distance of a state from its image, for all threads.
__device__ inline Distance distance_of(u32 measure, const float* argument, const float* image, u64 len) {
    Distance d = {0.0, 0.0, -INFINITY, INFINITY};
    double difference = 0.0, size = 0.0, high = -INFINITY, low = INFINITY;
    for (u64 i = threadIdx.x; i < len; i += THREADS) {
        double f = image[i], gap = f - (double)argument[i];
        size += f * f;
        if (measure == RELATIVE || measure == ABSOLUTE) {
            difference += gap * gap;
        } else {
            if (measure != SUP) gap = argument[i] > 0.0f && image[i] > 0.0f ? (double)logf(image[i] / argument[i]) : INFINITY;
            if (gap > high) high = gap;
            if (gap < low) low = gap;
        }
    }
    d.size = block_sum(size);
    if (measure == RELATIVE || measure == ABSOLUTE) {
        d.difference = block_sum(difference);
    } else {
        d.high = block_max(high);
        d.low = -block_max(-low);
    }
    return d;
}

// Ends the sample of this block if it is to end, and takes its answer; for the whole batch, only notes the distance.
__device__ inline void conclude(const Stopping& stopping, u32 iteration, const Samples& samples, Distance d, const float* image, u64 len,
                                float* answers) {
    __shared__ bool done;
    u32 sample = blockIdx.x;
    if (threadIdx.x == 0) {
        if (samples.progress[sample].bad) d.size = NAN;
        if (stopping.together) {
            samples.distances[sample] = d;
            done = false;
        } else {
            done = ended(stopping, iteration, d, samples.progress[sample], samples.reports[sample]);
            if (done) {
                samples.active[sample] = 0;
                atomicSub(samples.remaining, 1u);
            }
        }
    }
    __syncthreads();
    if (done)
        for (u64 i = threadIdx.x; i < len; i += THREADS) answers[sample * len + i] = image[i];
}

// Before the first iteration. `given` is what the equation is made of: not finite, and its sample never has an answer.
extern "C" __global__ void __launch_bounds__(THREADS) begin_solve(Samples samples, const float* given, u64 given_len, const u32* bad) {
    u32 sample = blockIdx.x;
    u64 count = 0;
    for (u64 i = threadIdx.x; i < given_len; i += THREADS) count += !isfinite(given[sample * given_len + i]);
    count = block_count(count);
    if (threadIdx.x != 0) return;
    samples.progress[sample] = {INFINITY, 0, count > 0 || bad[0] != 0};
    samples.reports[sample] = {0, ITERATION_LIMIT, INFINITY};
    samples.active[sample] = 1;
    if (sample == 0) samples.remaining[0] = gridDim.x;
}

// After an application of Picard's iteration or of a splitting.
extern "C" __global__ void __launch_bounds__(THREADS)
conclude_step(Stopping stopping, u32 iteration, Samples samples, const float* argument, const float* image, u64 len, float* answers) {
    u32 sample = blockIdx.x;
    if (samples.active[sample] != 1) return;
    Distance d = distance_of(stopping.measure, argument + sample * len, image + sample * len, len);
    conclude(stopping, iteration, samples, d, image + sample * len, len, answers);
}

// All samples end together, on the distance of the whole batch. One thread.
extern "C" __global__ void conclude_together(Stopping stopping, u32 iteration, Samples samples, u32 batch) {
    if (threadIdx.x != 0 || samples.active[0] != 1) return;
    Distance total = {0.0, 0.0, -INFINITY, INFINITY};
    for (u32 sample = 0; sample < batch; sample++) {
        const Distance& d = samples.distances[sample];
        total.difference += d.difference;
        total.size += d.size;
        total.high = d.high > total.high ? d.high : total.high;
        total.low = d.low < total.low ? d.low : total.low;
    }
    Report report;
    if (!ended(stopping, iteration, total, samples.progress[0], report)) return;
    for (u32 sample = 0; sample < batch; sample++) {
        samples.reports[sample] = report;
        samples.active[sample] = 2;
    }
    samples.remaining[0] = 0;
}

extern "C" __global__ void __launch_bounds__(THREADS) take_answers(Samples samples, const float* image, u64 len, float* answers) {
    u32 sample = blockIdx.x;
    if (samples.active[sample] != 2) return;
    for (u64 i = threadIdx.x; i < len; i += THREADS) answers[sample * len + i] = image[sample * len + i];
    __syncthreads();
    if (threadIdx.x == 0) samples.active[sample] = 0;
}

// ---- Anderson ----

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
judge(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, const float* argument, float* image, u64 len, float* answers) {
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
    __syncthreads();
    conclude(stopping, iteration, samples, d, f, len, answers);
}

// ---- Reports ----

// How far a sample's last application went, for states that were reached otherwise.
extern "C" __global__ void __launch_bounds__(THREADS)
compare(const float* before, const float* after, u64 len, u32 iterations, double tolerance, u32 relative, Report* reports) {
    u32 sample = blockIdx.x;
    double gap = 0.0, size = 0.0;
    for (u64 i = threadIdx.x; i < len; i += THREADS) {
        double f = after[sample * len + i], off = f - (double)before[sample * len + i];
        gap += off * off;
        size += f * f;
    }
    gap = sqrt(block_sum(gap));
    size = sqrt(block_sum(size));
    if (threadIdx.x != 0) return;
    double residual = relative ? gap / (1e-5 + size) : gap;
    reports[sample] = {iterations, !isfinite(residual) ? NOT_FINITE : residual <= tolerance ? CONVERGED : ITERATION_LIMIT, residual};
}

// Adds the reports of a batch to the counters. One block.
extern "C" __global__ void __launch_bounds__(THREADS) tally_reports(const Report* reports, u32 batch, u32 backward, Tally* tally) {
    u64 iterations = 0, converged = 0, not_finite = 0;
    for (u32 i = threadIdx.x; i < batch; i += THREADS) {
        iterations += reports[i].iterations;
        converged += reports[i].outcome == CONVERGED;
        not_finite += reports[i].outcome == NOT_FINITE;
    }
    iterations = block_count(iterations);
    converged = block_count(converged);
    not_finite = block_count(not_finite);
    if (threadIdx.x != 0) return;
    if (backward) {
        tally->adjoint_solves += batch;
        tally->backward_iterations += iterations;
        tally->adjoint_not_finite += not_finite;
    } else {
        tally->solves += batch;
        tally->forward_iterations += iterations;
        tally->converged += converged;
    }
}
