// How far an iterate went and when a sample ends: for every method. One block per sample.
#pragma once
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
