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
    // 1: worked on; 0: ended.
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

// How far one number is from its image, for the measures that look at every number by itself.
__device__ inline double gap_of(u32 measure, float argument, float image) {
    if (measure == SUP) return (double)image - (double)argument;
    return argument > 0.0f && image > 0.0f ? (double)logf(image / argument) : INFINITY;
}

// The distance of a state from its image, for all threads.
__device__ inline Distance distance_of(u32 measure, const float* argument, const float* image, u64 len) {
    double difference = 0.0, size = 0.0, high = -INFINITY, low = INFINITY;
    for (u64 i = threadIdx.x; i < len; i += THREADS) {
        double f = image[i];
        size += f * f;
        if (measure == RELATIVE || measure == ABSOLUTE) {
            double gap = f - (double)argument[i];
            difference += gap * gap;
        } else {
            double gap = gap_of(measure, argument[i], image[i]);
            if (gap > high) high = gap;
            if (gap < low) low = gap;
        }
    }
    size = block_sum(size);
    if (measure == RELATIVE || measure == ABSOLUTE) return {block_sum(difference), size, -INFINITY, INFINITY};
    return {0.0, size, block_max(high), -block_max(-low)};
}

__device__ inline Distance no_distance() { return {0.0, 0.0, -INFINITY, INFINITY}; }

// The distance of two parts together.
__device__ inline Distance joined(const Distance& a, const Distance& b) {
    return {a.difference + b.difference, a.size + b.size, b.high > a.high ? b.high : a.high, b.low < a.low ? b.low : a.low};
}

// The distance of what the lanes of a warp have together: for all of them.
__device__ inline Distance joined_lanes(Distance d) {
    for (u32 off = 16; off > 0; off /= 2) {
        Distance other = {__shfl_xor_sync(~0u, d.difference, off), __shfl_xor_sync(~0u, d.size, off), __shfl_xor_sync(~0u, d.high, off),
                          __shfl_xor_sync(~0u, d.low, off)};
        d = joined(d, other);
    }
    return d;
}

// Ends a sample if it is to end: whether it did; for the whole batch, only notes the distance. One thread. The last image stays where it is:
// nothing is written for samples that have ended. `progress` is the sample's own or a copy of it; without `writes` nothing else is written.
__device__ inline bool conclude(const Stopping& stopping, u32 iteration, const Samples& samples, u32 sample, Distance d, Progress& progress, bool writes = true) {
    if (progress.bad) d.size = NAN;
    if (stopping.together) {
        if (writes) samples.distances[sample] = d;
        return false;
    }
    Report report;
    if (!ended(stopping, iteration, d, progress, report)) return false;
    if (writes) {
        samples.reports[sample] = report;
        samples.active[sample] = 0;
        atomicSub(samples.remaining, 1u);
    }
    return true;
}
__device__ inline bool conclude(const Stopping& stopping, u32 iteration, const Samples& samples, u32 sample, Distance d) {
    return conclude(stopping, iteration, samples, sample, d, samples.progress[sample]);
}
