// Anderson acceleration, safeguarded, as `cpu/solve/anderson.rs` explains it. Long states are shared out over several blocks; what has to be
// known of a whole sample is then put together by a further kernel.
#include "solve.cuh"

#define MOST 8

struct History {
    // Pairs kept, in the slots up to the newest, round the window.
    u32 count, newest;
    // Whether the argument in use is a combination, which may be taken back; whether there are weights for the next one.
    u32 accelerated, solved;
    double residual;
    Distance distance;
    // Of the pairs, the newest first.
    double weights[MOST];
};

// What a block knows of its part of a sample.
struct Judgement {
    Distance distance;
    // Of the new residual with all in the window, by slots.
    double products[MOST];
};

struct Anderson {
    // [sample][slot][entry], [sample][slot][slot], [sample].
    float* images;
    float* residuals;
    double* gram;
    History* histories;
    // [sample][part].
    Judgement* judgements;
    u32* signs;
    double ridge, mixing;
    u64 len;
    u32 window, unused;

    __device__ u32 slot(const History& history, u32 age) const { return (history.newest + window - age) % window; }
    __device__ u64 at(u32 sample, u32 slot) const { return ((u64)sample * window + slot) * len; }
};

// A block's part of a state: blocks are samples, parts.
struct Part {
    u64 first, end;
};
__device__ inline Part part_of(u64 len, u64 part) { return {blockIdx.y * part, min((blockIdx.y + 1) * part, len)}; }

extern "C" __global__ void __launch_bounds__(THREADS) begin_anderson(Anderson anderson, u32 batch) {
    u32 sample = first_entry();
    if (sample < batch) anderson.histories[sample] = {0, 0, 0, 0, INFINITY, no_distance(), {}};
}

// The weights of the combination: (G + ridge diag G) w = 1, divided by their sum. False if the residuals are too nearly dependent.
__device__ inline bool combination(const Anderson& anderson, const double* all, const History& history, double* solution) {
    u32 count = history.count;
    if (count < 2) return false;
    auto gram = [&](u32 i, u32 j) { return all[anderson.slot(history, i) * anderson.window + anderson.slot(history, j)]; };
    double factor[MOST * MOST], scale[MOST];
    // Scaled to a unit diagonal, so that the ridge means the same at every stage of the solve.
    for (u32 i = 0; i < count; i++) scale[i] = 1.0 / sqrt(gram(i, i));
    for (u32 i = 0; i < count; i++) {
        for (u32 j = 0; j < i; j++) {
            double sum = gram(i, j) * scale[i] * scale[j];
            for (u32 k = 0; k < j; k++) sum -= factor[i * MOST + k] * factor[j * MOST + k];
            factor[i * MOST + j] = sum * factor[j * MOST + j];
        }
        double pivot = 1.0 + anderson.ridge;
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

// What is seen of a combination, and of the newest image: bits that are kept if they hold for every part.
enum : u32 { POSITIVE = 1, FINITE = 2, WAS_POSITIVE = 4 };

// Keeps a combination that stays where the iterates were; else the argument becomes the last image.
__device__ inline void settle(const Anderson& anderson, u32 sample, u32 signs, Part part, const float* start, float* argument) {
    History& history = anderson.histories[sample];
    bool accepted = history.solved && signs & FINITE && (signs & POSITIVE || !(signs & WAS_POSITIVE));
    if (!accepted) {
        const float* from = history.count == 0 ? start + sample * anderson.len : anderson.images + anderson.at(sample, history.newest);
        for (u64 i = part.first + threadIdx.x; i < part.end; i += THREADS) argument[sample * anderson.len + i] = from[i];
    }
    if (threadIdx.x == 0 && blockIdx.y == 0) history.accelerated = accepted;
}

// The next argument of each sample: a combination of images, or else the last one. Where samples have several parts, the signs are
// only noted, for `settle_proposals`.
extern "C" __global__ void __launch_bounds__(THREADS)
propose(Anderson anderson, u64 part_len, const u32* active, const float* start, float* argument) {
    u32 sample = blockIdx.x;
    if (active[sample] != 1) return;
    const History& history = anderson.histories[sample];
    Part part = part_of(anderson.len, part_len);
    u32 signs = 0;
    if (history.solved) {
        u32 count = history.count;
        float weights[MOST], back[MOST];
        u64 at[MOST];
        for (u32 age = 0; age < MOST; age++) {
            // Missing pairs count nothing.
            bool there = age < count;
            weights[age] = there ? (float)history.weights[age] : 0.0f;
            back[age] = there ? (float)((anderson.mixing - 1.0) * history.weights[age]) : 0.0f;
            at[age] = anderson.at(sample, anderson.slot(history, there ? age : 0));
        }
        bool positive = true, finite = true, were_positive = true;
#pragma unroll 4
        for (u64 i = part.first + threadIdx.x; i < part.end; i += THREADS) {
            float newest = anderson.images[at[0] + i], x = weights[0] * newest;
#pragma unroll
            for (u32 age = 1; age < MOST; age++)
                if (age < count) x = fmaf(weights[age], anderson.images[at[age] + i], x);
            if (anderson.mixing != 1.0)
#pragma unroll
                for (u32 age = 0; age < MOST; age++)
                    if (age < count) x = fmaf(back[age], anderson.residuals[at[age] + i], x);
            argument[sample * anderson.len + i] = x;
            positive = positive && x > 0.0f;
            finite = finite && isfinite(x);
            were_positive = were_positive && newest > 0.0f;
        }
        signs = (__syncthreads_and(positive) ? POSITIVE : 0) | (__syncthreads_and(finite) ? FINITE : 0) | (__syncthreads_and(were_positive) ? WAS_POSITIVE : 0);
    }
    if (gridDim.y == 1)
        settle(anderson, sample, signs, part, start, argument);
    else if (threadIdx.x == 0)
        anderson.signs[sample * gridDim.y + blockIdx.y] = signs;
}

extern "C" __global__ void __launch_bounds__(THREADS)
settle_proposals(Anderson anderson, u64 part_len, const u32* active, const float* start, float* argument) {
    u32 sample = blockIdx.x;
    if (active[sample] != 1) return;
    u32 lacking = 0;
    for (u32 i = threadIdx.x; i < gridDim.y; i += THREADS) lacking |= ~anderson.signs[sample * gridDim.y + i];
    u32 signs = (__syncthreads_or(lacking & POSITIVE) ? 0 : POSITIVE) | (__syncthreads_or(lacking & FINITE) ? 0 : FINITE) |
                (__syncthreads_or(lacking & WAS_POSITIVE) ? 0 : WAS_POSITIVE);
    settle(anderson, sample, signs, part_of(anderson.len, part_len), start, argument);
}

// The slot of the next pair.
__device__ inline u32 next_slot(const Anderson& anderson, const History& history) {
    return history.count == 0 ? 0 : (history.newest + 1) % anderson.window;
}

// Takes the new pair into the history, or takes back a combination that did not help; ends the sample if it is to end. One thread.
__device__ inline void judge_sample(const Stopping& stopping, u32 iteration, const Samples& samples, const Anderson& anderson, u32 sample,
                                    const Judgement& judgement) {
    History history = anderson.histories[sample];
    double* gram = anderson.gram + (u64)sample * anderson.window * anderson.window;
    u32 next = next_slot(anderson, history);
    double residual = judgement.products[next];
    if (history.accelerated && !(residual < history.residual)) {
        // The last pair alone stays.
        history.count = 1;
    } else {
        history.count = min(history.count + 1, anderson.window);
        history.newest = next;
        history.residual = residual;
        history.distance = judgement.distance;
        for (u32 slot = 0; slot < anderson.window; slot++)
            gram[next * anderson.window + slot] = gram[slot * anderson.window + next] = judgement.products[slot];
    }
    history.accelerated = 0;
    history.solved = combination(anderson, gram, history, history.weights);
    anderson.histories[sample] = history;
    conclude(stopping, iteration, samples, sample, history.distance);
}

// Puts the new pair into its slot and multiplies its residual with all others. Where samples have several parts, `judge_parts` does the rest.
extern "C" __global__ void __launch_bounds__(THREADS)
judge(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, u64 part_len, const float* argument, const float* image) {
    u32 sample = blockIdx.x;
    if (samples.active[sample] != 1) return;
    const History& history = anderson.histories[sample];
    u32 next = next_slot(anderson, history), used = 1u << next;
    for (u32 age = 0; age < history.count; age++) used |= 1u << anderson.slot(history, age);
    Part part = part_of(anderson.len, part_len);
    const float* z = argument + sample * anderson.len;
    const float* f = image + sample * anderson.len;
    float* to = anderson.images + anderson.at(sample, next);
    float* residuals = anderson.residuals + anderson.at(sample, 0);
    Judgement judgement;
    judgement.distance = distance_of(stopping.measure, z + part.first, f + part.first, part.end - part.first);
    double products[MOST] = {};
#pragma unroll 2
    for (u64 i = part.first + threadIdx.x; i < part.end; i += THREADS) {
        float r = f[i] - z[i];
        to[i] = f[i];
        residuals[next * anderson.len + i] = r;
#pragma unroll
        for (u32 slot = 0; slot < MOST; slot++)
            if (used >> slot & 1) products[slot] += (double)r * (slot == next ? r : residuals[slot * anderson.len + i]);
    }
    for (u32 slot = 0; slot < MOST; slot++) judgement.products[slot] = used >> slot & 1 ? block_sum(products[slot]) : 0.0;
    if (threadIdx.x != 0) return;
    if (gridDim.y == 1)
        judge_sample(stopping, iteration, samples, anderson, sample, judgement);
    else
        anderson.judgements[(u64)sample * gridDim.y + blockIdx.y] = judgement;
}

// A warp for each sample.
extern "C" __global__ void __launch_bounds__(THREADS)
judge_parts(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, u32 batch, u32 count) {
    u32 sample = first_entry() / 32, lane = threadIdx.x % 32;
    if (sample >= batch || samples.active[sample] != 1) return;
    const Judgement* parts = anderson.judgements + (u64)sample * count;
    Judgement judgement = {no_distance(), {}};
    for (u32 i = lane; i < count; i += 32) {
        judgement.distance = joined(judgement.distance, parts[i].distance);
        for (u32 slot = 0; slot < MOST; slot++) judgement.products[slot] += parts[i].products[slot];
    }
    judgement.distance = joined_lanes(judgement.distance);
    for (u32 slot = 0; slot < MOST; slot++)
        for (u32 off = 16; off > 0; off /= 2) judgement.products[slot] += __shfl_xor_sync(~0u, judgement.products[slot], off);
    if (lane == 0) judge_sample(stopping, iteration, samples, anderson, sample, judgement);
}

// The newest images of all samples.
extern "C" __global__ void __launch_bounds__(THREADS) take_newest(Anderson anderson, u64 part_len, const float* start, float* answers) {
    u32 sample = blockIdx.x;
    const History& history = anderson.histories[sample];
    Part part = part_of(anderson.len, part_len);
    const float* from = history.count == 0 ? start + sample * anderson.len : anderson.images + anderson.at(sample, history.newest);
    for (u64 i = part.first + threadIdx.x; i < part.end; i += THREADS) answers[sample * anderson.len + i] = from[i];
}
