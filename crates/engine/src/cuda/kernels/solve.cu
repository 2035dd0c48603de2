// Solves by plain iteration, and reports. One block per sample.
#include "solve.cuh"

// Before the first iteration. One thread for each sample.
extern "C" __global__ void __launch_bounds__(THREADS) begin_solve(Samples samples, u32 batch, const u32* bad) {
    u32 sample = first_entry();
    if (sample >= batch) return;
    samples.progress[sample] = {INFINITY, 0, bad[0] != 0};
    samples.reports[sample] = {0, ITERATION_LIMIT, INFINITY};
    samples.active[sample] = 1;
    if (sample == 0) samples.remaining[0] = batch;
}

// `given` is what the equation is made of: not finite, and its sample never has an answer. Blocks are samples, parts.
extern "C" __global__ void __launch_bounds__(THREADS) check_given(Samples samples, const float* given, u64 len, u64 part) {
    u64 sample = blockIdx.x, end = min((blockIdx.y + 1) * part, len);
    bool finite = true;
#pragma unroll 4
    for (u64 i = blockIdx.y * part + threadIdx.x; i < end; i += THREADS) finite = isfinite(given[sample * len + i]) && finite;
    if (!__syncthreads_and(finite) && threadIdx.x == 0) samples.progress[sample].bad = 1;
}

// After an application of Picard's iteration or of a splitting.
extern "C" __global__ void __launch_bounds__(THREADS)
conclude_step(Stopping stopping, u32 iteration, Samples samples, const float* argument, const float* image, u64 len) {
    u32 sample = blockIdx.x;
    if (samples.active[sample] != 1) return;
    Distance d = distance_of(stopping.measure, argument + sample * len, image + sample * len, len);
    if (threadIdx.x == 0) conclude(stopping, iteration, samples, sample, d);
}

// The distances of parts of long states. Blocks are samples, parts.
extern "C" __global__ void __launch_bounds__(THREADS)
measure_parts(u32 measure, const u32* active, const float* argument, const float* image, u64 len, u64 part, Distance* parts) {
    u32 sample = blockIdx.x;
    if (active[sample] != 1) return;
    u64 first = blockIdx.y * part, at = sample * len + first;
    Distance d = distance_of(measure, argument + at, image + at, min(part, len - first));
    if (threadIdx.x == 0) parts[(u64)sample * gridDim.y + blockIdx.y] = d;
}

// As `conclude_step`, from the distances of `count` parts of each sample. A warp for each sample.
extern "C" __global__ void __launch_bounds__(THREADS)
conclude_parts(Stopping stopping, u32 iteration, Samples samples, u32 batch, const Distance* parts, u32 count) {
    u32 sample = first_entry() / 32;
    if (sample >= batch || samples.active[sample] != 1) return;
    Distance d = no_distance();
    for (u32 i = threadIdx.x % 32; i < count; i += 32) d = joined(d, parts[(u64)sample * count + i]);
    d = joined_lanes(d);
    if (threadIdx.x % 32 == 0) conclude(stopping, iteration, samples, sample, d);
}

// All samples end together, on the distance of the whole batch. One thread.
extern "C" __global__ void conclude_together(Stopping stopping, u32 iteration, Samples samples, u32 batch) {
    if (threadIdx.x != 0 || samples.active[0] != 1) return;
    Distance total = no_distance();
    for (u32 sample = 0; sample < batch; sample++) total = joined(total, samples.distances[sample]);
    Report report;
    if (!ended(stopping, iteration, total, samples.progress[0], report)) return;
    for (u32 sample = 0; sample < batch; sample++) {
        samples.reports[sample] = report;
        samples.active[sample] = 0;
    }
    samples.remaining[0] = 0;
}

// Samples that end together, each solved by a launch of its own sort (`onchip_anderson.cuh`), so that nobody sees during the solve how the
// batch stands: they make `limit` iterations, keep the last images, and it is found out afterwards after how many all were to end.
#define ANSWERS 4
#define MOST_TOGETHER 256
struct Together {
    // 0: as many as allowed. Whether `end`, the number of iterations, is known.
    u32 limit, known, end;
};
struct TogetherGap {
    double difference, size;
};

// After such a solve of at most MOST_TOGETHER iterations: its end; or how many iterations have to be made so that it is known and its image
// is kept. Three solves are enough: one may have been too short, the next is as long as allowed, then the end is known. One block.
extern "C" __global__ void __launch_bounds__(THREADS) judge_together(Stopping stopping, Together* together, const TogetherGap* gaps, u32 batch, Report* reports) {
    __shared__ Distance totals[MOST_TOGETHER];
    __shared__ Report report;
    __shared__ bool known;
    if (together->known) return;
    u32 limit = together->limit ? min(together->limit, stopping.max_iterations) : stopping.max_iterations;
    for (u32 i = threadIdx.x / 32; i < limit; i += THREADS / 32) {
        Distance d = no_distance();
        for (u32 sample = threadIdx.x % 32; sample < batch; sample += 32) {
            TogetherGap gap = gaps[(u64)i * batch + sample];
            d = joined(d, {gap.difference, gap.size, -INFINITY, INFINITY});
        }
        d = joined_lanes(d);
        if (threadIdx.x % 32 == 0) totals[i] = d;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        Progress progress = {INFINITY, 0, 0};
        u32 end = 0;
        for (u32 i = 1; i <= limit && end == 0; i++)
            if (ended(stopping, i, totals[i - 1], progress, report)) end = i;
        known = end != 0 && end + ANSWERS > limit;
        together->limit = end != 0 ? end : stopping.max_iterations;
        together->known = known;
        together->end = end;
    }
    __syncthreads();
    if (known)
        for (u32 sample = threadIdx.x; sample < batch; sample += THREADS) reports[sample] = report;
}

// The images of the last iteration of all, out of those that were kept. The next solve makes a few more iterations than this one needed.
extern "C" __global__ void __launch_bounds__(THREADS) take_together(Together* together, const float* answers, u64 len, float* ends) {
    u32 end = together->end;
    const float* from = answers + (end % ANSWERS) * len;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < len; i += (u64)gridDim.x * THREADS) ends[i] = from[i];
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        together->limit = end + ANSWERS / 2;
        together->known = 0;
    }
}

// The last images of all samples: of odd and of even iterations they lie in different places. Blocks are shared out by samples.
extern "C" __global__ void __launch_bounds__(THREADS)
take_answers(u32 batch, const Report* reports, const float* odd, const float* even, u64 len, float* answers) {
    u32 blocks = gridDim.x / batch;
    u64 sample = blockIdx.x / blocks;
    const float* from = (reports[sample].iterations % 2 ? odd : even) + sample * len;
    // They may be in place.
    if (from == answers + sample * len) return;
    for (u64 i = (u64)(blockIdx.x % blocks) * THREADS + threadIdx.x; i < len; i += (u64)blocks * THREADS) answers[sample * len + i] = from[i];
}

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
