// Anderson acceleration, safeguarded, as `cpu/solve/anderson.rs` explains it: what follows an application of the map, in one launch. A
// block has a sample: it takes the new pair into the history or takes a combination back, and makes the next argument.
//
// The history is what has to be read, so it is kept small. Of an image only its difference from the one before is kept: with weights w,
// newest first, that sum to one
//     w_0 F_0 + w_1 F_1 + .. = F_0 - (w_1 + w_2 + ..) (F_0 - F_1) - (w_2 + ..) (F_1 - F_2) - ..
// so that rounding the differences, or the residuals, to f16 moves the argument by a little of what it moves anyway, and shrinks as the solve goes
// on. The image itself is never rounded. Numbers lie in eights; f16 is scaled by a power of two for each pair.
//
// Bytes of one iteration, states of n numbers, window 5, f16: argument, image, the image before 12 n; 4 residuals and 4 differences read,
// one of each written 20 n; the next argument 4 n; the image again 4 n, which should still be in the caches. 128 x 48 x 32 x 32: 226 to 252 MB.
#include "mma.cuh"
#include "solve.cuh"

#define MOST 8

struct History {
    // Pairs kept, in the slots up to the newest, round the window.
    u32 count, newest;
    // Whether the argument in use is a combination, which may be taken back.
    u32 accelerated, unused;
    double residual;
    Distance distance;
    // What the numbers in a slot are multiplied by to be what they were.
    float backs[MOST];
};

struct Anderson {
    // Differences of images and residuals, [sample][slot][eight].
    void* images;
    void* residuals;
    // Inner products of residuals, [sample][slot][slot].
    double* gram;
    History* histories;
    double ridge, mixing;
    u64 len;
    u32 window, eights;

    __device__ u32 slot(const History& history, u32 age) const { return (history.newest + window - age) % window; }
    // The first eight of a slot.
    __device__ u64 at(u32 sample, u32 slot) const { return ((u64)sample * window + slot) * eights; }
};

extern "C" __global__ void __launch_bounds__(THREADS) begin_anderson(Anderson anderson, u32 batch) {
    u32 sample = first_entry();
    if (sample < batch) anderson.histories[sample] = {0, 0, 0, 0, INFINITY, no_distance(), {}};
}

// Eight numbers of the history.
struct F32 {
    float4 low, high;
    // What is read once, so that it does not push from the caches what is read again.
    static __device__ F32 once(const F32* from) { return {__ldcs(&from->low), __ldcs(&from->high)}; }
    static __device__ F32 of(const float (&x)[8]) { return {{x[0], x[1], x[2], x[3]}, {x[4], x[5], x[6], x[7]}}; }
    __device__ void get(float (&x)[8]) const {
        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
    }
    // For numbers of this size on average.
    static __device__ Scale scale(double) { return {1.0f, 1.0f}; }
};
struct F16 {
    uint4 pairs;
    static __device__ F16 once(const F16* from) { return {__ldcs(&from->pairs)}; }
    static __device__ F16 of(const float (&x)[8]) {
        return {{pair_f16(x[0], x[1]), pair_f16(x[2], x[3]), pair_f16(x[4], x[5]), pair_f16(x[6], x[7])}};
    }
    __device__ void get(float (&x)[8]) const {
        u32 all[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            float2 two = of_f16(all[i]);
            x[2 * i] = two.x, x[2 * i + 1] = two.y;
        }
    }
    // They become about 1/4: up to 2^17 times as large is not too large, and down to 2^-12 of them nothing more is lost than the usual.
    static __device__ Scale scale(double size) { return scale_of(size_bits(65536.0f * (float)size)); }
};

// A sample's state in one of the solve's arrays. `whole`: it comes in eights.
struct State {
    float* first;
    u64 len;
    bool whole;
    __device__ u32 there(u32 eight) const { return min(len - 8ull * eight, 8ull); }
    // Zeros beyond the end.
    __device__ void get(u32 eight, float (&x)[8], bool once = false) const {
        const float* from = first + 8ull * eight;
        if (whole) {
            F32 both = once ? F32::once((const F32*)from) : *(const F32*)from;
            both.get(x);
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; i++) x[i] = i < there(eight) ? from[i] : 0.0f;
        }
    }
    __device__ void put(u32 eight, const float (&x)[8]) const {
        float* to = first + 8ull * eight;
        if (whole) {
            *(F32*)to = F32::of(x);
        } else {
#pragma unroll
            for (u32 i = 0; i < 8; i++)
                if (i < there(eight)) to[i] = x[i];
        }
    }
    template <u32 WIDE> __device__ void copy_from(const State& other, u32 eights) const {
        float x[8];
#pragma unroll 4
        for (u32 eight = threadIdx.x; eight < eights; eight += WIDE) {
            other.get(eight, x);
            put(eight, x);
        }
    }
};

// Sums over a block of WIDE threads, in a fixed order: for all of them.
template <u32 WIDE, u32 COUNT> __device__ inline void block_sums(double (&sums)[COUNT]) {
    const u32 WARPS = WIDE / 32;
    __shared__ double parts[COUNT][WARPS], totals[COUNT];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) {
        for (u32 off = 16; off > 0; off /= 2) sums[k] += __shfl_xor_sync(~0u, sums[k], off);
        if (lane == 0) parts[k][warp] = sums[k];
    }
    __syncthreads();
    for (u32 k = warp; k < COUNT; k += WARPS) {
        double sum = parts[k][lane % WARPS];
        for (u32 off = WARPS / 2; off > 0; off /= 2) sum += __shfl_xor_sync(~0u, sum, off);
        if (lane == 0) totals[k] = sum;
    }
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) sums[k] = totals[k];
}

// What is known of a sample after an application.
struct Judgement {
    Distance distance;
    // The new residual with itself, and with what is kept of those in the history, the newest first.
    double residual, products[MOST];
};

// The largest and smallest gap, for the measures that look at every number by itself.
template <u32 WIDE>
__device__ inline void find_extremes(u32 measure, const State& argument, const State& image, u32 eights, Distance& distance) {
    __shared__ Distance parts[WIDE / 32];
    Distance d = no_distance();
    for (u32 eight = threadIdx.x; eight < eights; eight += WIDE) {
        float z[8], f[8];
        argument.get(eight, z);
        image.get(eight, f);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (i >= argument.there(eight)) continue;
            double gap = (double)f[i] - (double)z[i];
            if (measure != SUP) gap = z[i] > 0.0f && f[i] > 0.0f ? (double)logf(f[i] / z[i]) : INFINITY;
            d = joined(d, {0.0, 0.0, gap, gap});
        }
    }
    d = joined_lanes(d);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = d;
    __syncthreads();
    for (u32 warp = 0; warp < WIDE / 32; warp++) distance = joined(distance, parts[warp]);
}

// Puts the new pair into slot `next`, and measures it.
template <class Stored, u32 WIDE>
__device__ inline Judgement put_pair(u32 measure, const Anderson& anderson, const History& history, u32 next, Scale scale, const State& argument,
                                     const State& before, const State& image) {
    Stored* images = (Stored*)anderson.images + anderson.at(blockIdx.x, next);
    Stored* residuals = (Stored*)anderson.residuals + anderson.at(blockIdx.x, next);
    u64 slots[MOST];
    bool used[MOST];
#pragma unroll
    for (u32 age = 0; age < MOST; age++) {
        // The oldest goes where the window is full.
        used[age] = age < history.count && age + 1 < anderson.window;
        slots[age] = anderson.at(blockIdx.x, anderson.slot(history, used[age] ? age : 0));
    }
    double sums[MOST + 2] = {};
    for (u32 eight = threadIdx.x; eight < anderson.eights; eight += WIDE) {
        Stored old[MOST];
#pragma unroll
        for (u32 age = 0; age < MOST; age++)
            if (used[age]) old[age] = Stored::once((const Stored*)anderson.residuals + slots[age] + eight);
        float z[8], f[8], r[8], x[8];
        argument.get(eight, z, true);
        image.get(eight, f);
        before.get(eight, x, true);
        float residual = 0.0f, size = 0.0f;
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            r[i] = f[i] - z[i];
            x[i] = (f[i] - x[i]) * scale.to;
            residual = fmaf(r[i], r[i], residual);
            size = fmaf(f[i], f[i], size);
        }
        sums[MOST] += residual;
        sums[MOST + 1] += size;
        images[eight] = Stored::of(x);
#pragma unroll
        for (u32 age = 0; age < MOST; age++) {
            if (!used[age]) continue;
            old[age].get(x);
            float product = 0.0f;
#pragma unroll
            for (u32 i = 0; i < 8; i++) product = fmaf(r[i], x[i], product);
            sums[age] += product;
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = r[i] * scale.to;
        residuals[eight] = Stored::of(x);
    }
    block_sums<WIDE>(sums);
    Judgement judgement;
    judgement.residual = sums[MOST];
    judgement.distance = no_distance();
    if (measure == RELATIVE || measure == ABSOLUTE)
        judgement.distance.difference = sums[MOST];
    else
        find_extremes<WIDE>(measure, argument, image, anderson.eights, judgement.distance);
    judgement.distance.size = sums[MOST + 1];
#pragma unroll
    for (u32 age = 0; age < MOST; age++) judgement.products[age] = sums[age];
    return judgement;
}

// Takes the new pair into the history, or takes back a combination that did not help: then false, and the last pair alone stays. One
// thread.
__device__ inline bool take_pair(const Anderson& anderson, History& history, u32 next, Scale scale, const Judgement& judgement) {
    bool helped = !history.accelerated || judgement.residual < history.residual;
    history.accelerated = 0;
    if (!helped) {
        history.count = 1;
        return false;
    }
    double* gram = anderson.gram + (u64)blockIdx.x * anderson.window * anderson.window;
#pragma unroll
    for (u32 age = 0; age < MOST; age++) {
        if (age >= history.count) continue;
        u32 slot = anderson.slot(history, age);
        gram[next * anderson.window + slot] = gram[slot * anderson.window + next] = judgement.products[age] * history.backs[slot];
    }
    gram[next * anderson.window + next] = judgement.residual;
    history.count = min(history.count + 1, anderson.window);
    history.newest = next;
    history.residual = judgement.residual;
    history.distance = judgement.distance;
    history.backs[next] = scale.back;
    return true;
}

// The weights of the combination, the newest pair's first: (G + ridge diag G) w = 1, divided by their sum. False if the residuals are too
// nearly dependent. By the lanes of one warp, one for each pair.
__device__ inline bool combination(const Anderson& anderson, const History& history, double* weights) {
    __shared__ double matrix[MOST][MOST], scale[MOST], sides[MOST];
    u32 count = history.count, lane = threadIdx.x;
    if (count < 2) return false;
    const double* gram = anderson.gram + (u64)blockIdx.x * anderson.window * anderson.window;
    auto product = [&](u32 j) { return gram[anderson.slot(history, lane) * anderson.window + anderson.slot(history, j)]; };
    bool mine = lane < count;
    // Scaled to a unit diagonal, so that the ridge means the same at every stage of the solve.
    if (mine) scale[lane] = sides[lane] = 1.0 / sqrt(product(lane));
    __syncwarp();
    if (mine) {
        for (u32 j = 0; j < lane; j++) matrix[lane][j] = product(j) * scale[lane] * scale[j];
        matrix[lane][lane] = 1.0 + anderson.ridge;
    }
    __syncwarp();
    // Elimination below the diagonal.
    for (u32 k = 0; k < count; k++) {
        double pivot = matrix[k][k];
        if (!(pivot > 1e-13)) return false;
        if (mine && lane > k) {
            double part = matrix[lane][k] / pivot;
            for (u32 j = k + 1; j <= lane; j++) matrix[lane][j] -= part * matrix[j][k];
            sides[lane] -= part * sides[k];
        }
        __syncwarp();
    }
    for (u32 k = count; k-- > 0;) {
        double weight = sides[k] / matrix[k][k];
        if (lane == k) weights[k] = weight * scale[k];
        if (lane < k) sides[lane] -= matrix[k][lane] * weight;
        __syncwarp();
    }
    double total = 0.0;
    for (u32 k = 0; k < count; k++) total += weights[k];
    __syncwarp();
    if (mine) weights[lane] /= total;
    __syncwarp();
    return isfinite(total) && fabs(total) >= 2.2250738585072014e-308;
}

// The combination of images becomes the argument. True if it stays where the iterates were.
template <class Stored, u32 WIDE>
__device__ inline bool combine(const Anderson& anderson, const History& history, const double* weights, const State& image, const State& argument) {
    const Stored* images = (const Stored*)anderson.images;
    const Stored* residuals = (const Stored*)anderson.residuals;
    float steps[MOST], back[MOST];
    u64 slots[MOST];
    double older = 1.0;
#pragma unroll
    for (u32 age = 0; age < MOST; age++) {
        // Missing pairs count nothing, and the oldest has no difference.
        bool there = age < history.count;
        u32 slot = anderson.slot(history, there ? age : 0);
        slots[age] = anderson.at(blockIdx.x, slot);
        older -= there ? weights[age] : 0.0;
        steps[age] = age + 1 < history.count ? (float)(-older * history.backs[slot]) : 0.0f;
        back[age] = there ? (float)((anderson.mixing - 1.0) * weights[age] * history.backs[slot]) : 0.0f;
    }
    bool positive = true, finite = true, were_positive = true;
    // From the end, which was read last and may still be in the caches.
    for (u32 eight = threadIdx.x + (anderson.eights - 1) / WIDE * WIDE;; eight -= WIDE) {
        if (eight < anderson.eights) {
            Stored moved[MOST];
#pragma unroll
            for (u32 age = 0; age + 1 < MOST; age++)
                if (age + 1 < history.count) moved[age] = images[slots[age] + eight];
            float x[8], other[8];
            image.get(eight, x);
            u32 there = image.there(eight);
#pragma unroll
            for (u32 i = 0; i < 8; i++) were_positive = were_positive && (x[i] > 0.0f || i >= there);
#pragma unroll
            for (u32 age = 0; age + 1 < MOST; age++) {
                if (age + 1 >= history.count) continue;
                moved[age].get(other);
#pragma unroll
                for (u32 i = 0; i < 8; i++) x[i] = fmaf(steps[age], other[i], x[i]);
            }
            if (anderson.mixing != 1.0)
#pragma unroll
                for (u32 age = 0; age < MOST; age++) {
                    if (age >= history.count) continue;
                    residuals[slots[age] + eight].get(other);
#pragma unroll
                    for (u32 i = 0; i < 8; i++) x[i] = fmaf(back[age], other[i], x[i]);
                }
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                positive = positive && (x[i] > 0.0f || i >= there);
                finite = finite && (isfinite(x[i]) || i >= there);
            }
            argument.put(eight, x);
        }
        if (eight < WIDE) break;
    }
    positive = __syncthreads_and(positive);
    finite = __syncthreads_and(finite);
    were_positive = __syncthreads_and(were_positive);
    return finite && (positive || !were_positive);
}

// After an application of the map to `arguments`. The image before is in `befores`, unless it is the first; what is taken back comes from
// there.
template <class Stored, u32 WIDE>
__device__ inline void step(const Stopping& stopping, u32 iteration, const Samples& samples, const Anderson& anderson, float* arguments,
                            float* befores, float* images) {
    u32 sample = blockIdx.x;
    if (samples.active[sample] != 1) return;
    __shared__ History history;
    __shared__ double weights[MOST];
    __shared__ bool helped, solved, ended;
    bool whole = anderson.len % 8 == 0;
    State argument = {arguments + sample * anderson.len, anderson.len, whole}, image = {images + sample * anderson.len, anderson.len, whole};
    State before = {befores + sample * anderson.len, anderson.len, whole};
    if (threadIdx.x == 0) history = anderson.histories[sample];
    __syncthreads();
    if (history.count == 0) {
        // The first residual has none before it that its size could be taken from. Its difference is never used.
        double sums[1] = {};
        for (u32 eight = threadIdx.x; eight < anderson.eights; eight += WIDE) {
            float z[8], f[8];
            argument.get(eight, z);
            image.get(eight, f);
            for (u32 i = 0; i < 8; i++) sums[0] += (f[i] - z[i]) * (f[i] - z[i]);
        }
        block_sums<WIDE>(sums);
        if (threadIdx.x == 0) history.residual = sums[0];
        __syncthreads();
        before = image;
    }
    u32 next = history.count == 0 ? 0 : (history.newest + 1) % anderson.window;
    Scale scale = Stored::scale(sqrt(history.residual / (double)anderson.len));
    Judgement judgement = put_pair<Stored, WIDE>(stopping.measure, anderson, history, next, scale, argument, before, image);
    if (threadIdx.x == 0) {
        helped = take_pair(anderson, history, next, scale, judgement);
        conclude(stopping, iteration, samples, sample, history.distance);
        ended = samples.active[sample] != 1;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        bool found = !ended && combination(anderson, history, weights);
        if (threadIdx.x == 0) solved = found;
    }
    __syncthreads();
    if (!helped) image.copy_from<WIDE>(before, anderson.eights);
    bool accepted = solved && combine<Stored, WIDE>(anderson, history, weights, image, argument);
    if (!ended && !accepted) argument.copy_from<WIDE>(image, anderson.eights);
    if (threadIdx.x == 0) {
        history.accelerated = accepted;
        anderson.histories[sample] = history;
    }
}

// How the history is kept, and how many threads a sample has: by its length alone.
extern "C" __global__ void __launch_bounds__(256)
anderson_step(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, float* arguments, float* befores, float* images) {
    step<F32, 256>(stopping, iteration, samples, anderson, arguments, befores, images);
}
extern "C" __global__ void __launch_bounds__(256, 2)
anderson_step_f16(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, float* arguments, float* befores, float* images) {
    step<F16, 256>(stopping, iteration, samples, anderson, arguments, befores, images);
}
extern "C" __global__ void __launch_bounds__(512)
anderson_step_f16_wide(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, float* arguments, float* befores, float* images) {
    step<F16, 512>(stopping, iteration, samples, anderson, arguments, befores, images);
}
