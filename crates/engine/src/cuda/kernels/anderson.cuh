// Anderson acceleration, safeguarded, as `cpu/solve/anderson.rs` explains it: what follows an application of the map, in one launch. A
// crew has a sample, a block (anderson.cu) or several that are a cluster (anderson_clusters.cu): it takes the new pair into the history or
// takes a combination back, and makes the next argument. Each block of a crew knows all that is known of the sample; the first writes it down.
//
// The history is what has to be read, so it is kept small. Of an image only its difference from the one before is kept: with weights w,
// newest first, that sum to one
//     w_0 F_0 + w_1 F_1 + .. = F_0 - (w_1 + w_2 + ..) (F_0 - F_1) - (w_2 + ..) (F_1 - F_2) - ..
// so that rounding the differences, or the residuals, to f16 moves the argument by a little of what it moves anyway, and shrinks as the solve goes
// on. The image itself is never rounded. Numbers lie in eights; f16 is scaled by a power of two for each pair.
//
// Bytes of one iteration, states of n numbers, window 5, f16: argument, image, the image before 12 n; 4 residuals and 4 differences read,
// one of each written 20 n; the next argument 4 n; the image again 4 n, which should still be in the caches. 128 x 48 x 32 x 32: 226 to 252 MB.
#pragma once
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
    // The first eight of a sample.
    __device__ u64 first(u32 sample) const { return (u64)sample * window * eights; }
};

// What is known of a sample, in shared memory.
struct Known {
    History history;
    double gram[MOST][MOST];
    Progress progress;

    __device__ void load(const Anderson& anderson, const Samples& samples, u32 sample) {
        const u32 WORDS = sizeof(History) / 8;
        u32 i = threadIdx.x, squares = anderson.window * anderson.window;
        if (i < squares) gram[i / anderson.window][i % anderson.window] = anderson.gram[(u64)sample * squares + i];
        if (i < WORDS) ((u64*)&history)[i] = ((const u64*)(anderson.histories + sample))[i];
        if (i == WORDS) progress = samples.progress[sample];
    }
    __device__ void store(const Anderson& anderson, const Samples& samples, u32 sample) const {
        const u32 WORDS = sizeof(History) / 8;
        u32 i = threadIdx.x, squares = anderson.window * anderson.window;
        if (i < squares) anderson.gram[(u64)sample * squares + i] = gram[i / anderson.window][i % anderson.window];
        if (i < WORDS) ((u64*)(anderson.histories + sample))[i] = ((const u64*)&history)[i];
        if (i == WORDS) samples.progress[sample] = progress;
    }
};
static_assert(sizeof(History) == 88 && alignof(History) == 8, "words");

// A crew of so many blocks, its parts, with so many threads each. The eights of a state are dealt out to all of them.
template <u32 BLOCKS, u32 WIDE>
struct Dealt {
    static constexpr u32 PARTS = BLOCKS, WARPS = WIDE / 32, ALL = BLOCKS * WIDE;
};

// A block by itself.
template <u32 WIDE>
struct OneBlock : Dealt<1, WIDE> {
    __device__ u32 part() const { return 0; }
    // All blocks have begun from here on.
    __device__ void arrive() const {}
    // By a warp: every block learns this block's number, in its own place, when all have met.
    __device__ void tell(double* of_parts, double number) const {
        if (threadIdx.x % 32 == 0) of_parts[0] = number;
    }
    __device__ void meet() const { __syncthreads(); }
};

// Eight numbers of the history.
struct F32 {
    // What a thread's sums are kept as.
    typedef double Sum;
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
    typedef float Sum;
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

// A thread has this eight of a state, and one of each further `Crew::ALL`.
template <class Crew> __device__ inline u32 first_eight(const Crew& crew) { return crew.part() * (Crew::ALL / Crew::PARTS) + threadIdx.x; }

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
    template <class Crew> __device__ void copy_from(const Crew& crew, const State& other, u32 eights) const {
        float x[8];
#pragma unroll 4
        for (u32 eight = first_eight(crew); eight < eights; eight += Crew::ALL) {
            other.get(eight, x);
            put(eight, x);
        }
    }
};

// Sums over a crew, in a fixed order: for all of it.
template <class Crew, class Number, u32 COUNT> __device__ inline void crew_sums(const Crew& crew, const Number (&own)[COUNT], double (&sums)[COUNT]) {
    const u32 WARPS = Crew::WARPS;
    __shared__ double of_warps[COUNT][WARPS], of_parts[COUNT][Crew::PARTS];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) {
        double sum = own[k];
        for (u32 off = 16; off > 0; off /= 2) sum += __shfl_xor_sync(~0u, sum, off);
        if (lane == 0) of_warps[k][warp] = sum;
    }
    __syncthreads();
    for (u32 k = warp; k < COUNT; k += WARPS) {
        double sum = of_warps[k][lane % WARPS];
        for (u32 off = WARPS / 2; off > 0; off /= 2) sum += __shfl_xor_sync(~0u, sum, off);
        crew.tell(of_parts[k], sum);
    }
    crew.meet();
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) {
        sums[k] = of_parts[k][0];
        for (u32 part = 1; part < Crew::PARTS; part++) sums[k] += of_parts[k][part];
    }
}

// Which of these bits all threads of a crew have.
template <class Crew> __device__ inline u32 crew_and(const Crew& crew, u32 bits, u32 count) {
    __shared__ double of_parts[Crew::PARTS];
    u32 common = 0;
    for (u32 bit = 0; bit < count; bit++) common |= __syncthreads_and(bits >> bit & 1) ? 1u << bit : 0u;
    if (threadIdx.x < 32) crew.tell(of_parts, common);
    crew.meet();
    for (u32 part = 0; part < Crew::PARTS; part++) common &= (u32)of_parts[part];
    return common;
}

// What is known of a sample after an application.
struct Judgement {
    Distance distance;
    // The new residual with itself, and with what is kept of those in the history, the newest first.
    double residual, products[MOST];
};

// The largest and smallest gap, for the measures that look at every number by itself.
template <class Crew>
__device__ inline void find_extremes(const Crew& crew, u32 measure, const State& argument, const State& image, u32 eights, Distance& distance) {
    __shared__ Distance of_warps[Crew::WARPS];
    __shared__ double highs[Crew::PARTS], lows[Crew::PARTS];
    Distance d = no_distance();
    for (u32 eight = first_eight(crew); eight < eights; eight += Crew::ALL) {
        float z[8], f[8];
        argument.get(eight, z);
        image.get(eight, f);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            if (i >= argument.there(eight)) continue;
            double gap = gap_of(measure, z[i], f[i]);
            d = joined(d, {0.0, 0.0, gap, gap});
        }
    }
    d = joined_lanes(d);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = d;
    __syncthreads();
    for (u32 warp = 0; warp < Crew::WARPS; warp++) d = joined(d, of_warps[warp]);
    if (threadIdx.x < 32) {
        crew.tell(highs, d.high);
        crew.tell(lows, d.low);
    }
    crew.meet();
    for (u32 part = 0; part < Crew::PARTS; part++) distance = joined(distance, {0.0, 0.0, highs[part], lows[part]});
}

// Puts the new pair into slot `next`, and measures it.
template <class Stored, u32 WINDOW, class Crew>
__device__ inline Judgement put_pair(const Crew& crew, u32 measure, const Anderson& anderson, const History& history, u32 sample, u32 next, Scale scale,
                                     const State& argument, const State& before, const State& image) {
    Stored* images = (Stored*)anderson.images + anderson.first(sample);
    Stored* residuals = (Stored*)anderson.residuals + anderson.first(sample);
    // The oldest goes where the window is full.
    const u32 KEPT = WINDOW - 1;
    u32 kept = min(history.count, anderson.window - 1);
    u32 slots[KEPT], newest = next * anderson.eights;
#pragma unroll
    for (u32 age = 0; age < KEPT; age++) slots[age] = anderson.slot(history, age < kept ? age : 0) * anderson.eights;
    // Products with those kept, then with itself, and the image with itself.
    typename Stored::Sum own[KEPT + 2] = {};
    for (u32 eight = first_eight(crew); eight < anderson.eights; eight += Crew::ALL) {
        Stored old[KEPT];
#pragma unroll
        for (u32 age = 0; age < KEPT; age++)
            if (age < kept) old[age] = Stored::once(residuals + slots[age] + eight);
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
        own[KEPT] += residual;
        own[KEPT + 1] += size;
        images[newest + eight] = Stored::of(x);
#pragma unroll
        for (u32 age = 0; age < KEPT; age++) {
            if (age >= kept) continue;
            old[age].get(x);
            float product = 0.0f;
#pragma unroll
            for (u32 i = 0; i < 8; i++) product = fmaf(r[i], x[i], product);
            own[age] += product;
        }
#pragma unroll
        for (u32 i = 0; i < 8; i++) x[i] = r[i] * scale.to;
        residuals[newest + eight] = Stored::of(x);
    }
    double sums[KEPT + 2];
    crew_sums(crew, own, sums);
    Judgement judgement;
    judgement.residual = sums[KEPT];
    judgement.distance = no_distance();
    if (measure == RELATIVE || measure == ABSOLUTE)
        judgement.distance.difference = sums[KEPT];
    else
        find_extremes(crew, measure, argument, image, anderson.eights, judgement.distance);
    judgement.distance.size = sums[KEPT + 1];
#pragma unroll
    for (u32 age = 0; age < KEPT; age++) judgement.products[age] = sums[age];
    return judgement;
}

// Takes the new pair into the history, or takes back a combination that did not help: then false, and the last pair alone stays. One
// thread.
__device__ inline bool take_pair(const Anderson& anderson, Known& known, u32 next, Scale scale, const Judgement& judgement) {
    History& history = known.history;
    bool helped = !history.accelerated || judgement.residual < history.residual;
    history.accelerated = 0;
    if (!helped) {
        history.count = 1;
        return false;
    }
    u32 kept = min(history.count, anderson.window - 1);
#pragma unroll
    for (u32 age = 0; age < MOST; age++) {
        if (age >= kept) continue;
        u32 slot = anderson.slot(history, age);
        known.gram[next][slot] = known.gram[slot][next] = judgement.products[age] * history.backs[slot];
    }
    known.gram[next][next] = judgement.residual;
    history.count = min(history.count + 1, anderson.window);
    history.newest = next;
    history.residual = judgement.residual;
    history.distance = judgement.distance;
    history.backs[next] = scale.back;
    return true;
}

// The weights of the combination, the newest pair's first: (G + ridge diag G) w = 1, divided by their sum. False if the residuals are too
// nearly dependent. By the lanes of one warp, one for each pair.
__device__ inline bool combination(const Anderson& anderson, const Known& known, double* weights) {
    __shared__ double matrix[MOST][MOST], scale[MOST], sides[MOST];
    const History& history = known.history;
    u32 count = history.count, lane = threadIdx.x;
    if (count < 2) return false;
    auto product = [&](u32 j) { return known.gram[anderson.slot(history, lane)][anderson.slot(history, j)]; };
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
template <class Stored, u32 WINDOW, class Crew>
__device__ inline bool combine(const Crew& crew, const Anderson& anderson, const History& history, u32 sample, const double* weights, const State& image,
                               const State& argument) {
    const Stored* images = (const Stored*)anderson.images + anderson.first(sample);
    const Stored* residuals = (const Stored*)anderson.residuals + anderson.first(sample);
    // The oldest has no difference.
    const u32 DIFFERENCES = WINDOW - 1;
    float steps[DIFFERENCES];
    u32 slots[DIFFERENCES];
    double older = 1.0;
#pragma unroll
    for (u32 age = 0; age < DIFFERENCES; age++) {
        bool there = age + 1 < history.count;
        u32 slot = anderson.slot(history, there ? age : 0);
        slots[age] = slot * anderson.eights;
        older -= there ? weights[age] : 0.0;
        steps[age] = there ? (float)(-older * history.backs[slot]) : 0.0f;
    }
    bool positive = true, finite = true, were_positive = true;
    // From the end, which was read last and may still be in the caches.
    for (u32 eight = first_eight(crew) + (anderson.eights - 1) / Crew::ALL * Crew::ALL;; eight -= Crew::ALL) {
        if (eight < anderson.eights) {
            Stored moved[DIFFERENCES];
#pragma unroll
            for (u32 age = 0; age < DIFFERENCES; age++)
                if (age + 1 < history.count) moved[age] = images[slots[age] + eight];
            float x[8], other[8];
            image.get(eight, x);
            u32 there = image.there(eight);
#pragma unroll
            for (u32 i = 0; i < 8; i++) were_positive = were_positive && (x[i] > 0.0f || i >= there);
#pragma unroll
            for (u32 age = 0; age < DIFFERENCES; age++) {
                if (age + 1 >= history.count) continue;
                moved[age].get(other);
#pragma unroll
                for (u32 i = 0; i < 8; i++) x[i] = fmaf(steps[age], other[i], x[i]);
            }
            if (anderson.mixing != 1.0)
                for (u32 age = 0; age < history.count; age++) {
                    u32 slot = anderson.slot(history, age);
                    float back = (float)((anderson.mixing - 1.0) * weights[age] * history.backs[slot]);
                    residuals[slot * anderson.eights + eight].get(other);
#pragma unroll
                    for (u32 i = 0; i < 8; i++) x[i] = fmaf(back, other[i], x[i]);
                }
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                positive = positive && (x[i] > 0.0f || i >= there);
                finite = finite && (isfinite(x[i]) || i >= there);
            }
            argument.put(eight, x);
        }
        if (eight < Crew::ALL) break;
    }
    const u32 POSITIVE = 1, FINITE = 2, WERE_POSITIVE = 4;
    u32 all = crew_and(crew, (positive ? POSITIVE : 0) | (finite ? FINITE : 0) | (were_positive ? WERE_POSITIVE : 0), 3);
    return (all & FINITE) && ((all & POSITIVE) || !(all & WERE_POSITIVE));
}

// After an application of the map to `arguments`. The image before is in `befores`, unless it is the first; what is taken back comes from
// there. Windows up to WINDOW.
template <class Stored, u32 WINDOW, class Crew>
__device__ inline void step(const Crew& crew, const Stopping& stopping, u32 iteration, const Samples& samples, const Anderson& anderson, float* arguments,
                            float* befores, float* images) {
    u32 sample = blockIdx.x / Crew::PARTS;
    if (samples.active[sample] != 1) return;
    crew.arrive();
    __shared__ Known known;
    __shared__ double weights[MOST];
    __shared__ bool helped, solved, ended;
    History& history = known.history;
    bool whole = anderson.len % 8 == 0, writes = crew.part() == 0;
    State argument = {arguments + sample * anderson.len, anderson.len, whole}, image = {images + sample * anderson.len, anderson.len, whole};
    State before = {befores + sample * anderson.len, anderson.len, whole};
    known.load(anderson, samples, sample);
    __syncthreads();
    if (history.count == 0) {
        // The first residual has none before it that its size could be taken from. Its difference is never used.
        double own[1] = {}, sums[1];
        for (u32 eight = first_eight(crew); eight < anderson.eights; eight += Crew::ALL) {
            float z[8], f[8];
            argument.get(eight, z);
            image.get(eight, f);
            for (u32 i = 0; i < 8; i++) own[0] += (f[i] - z[i]) * (f[i] - z[i]);
        }
        crew_sums(crew, own, sums);
        if (threadIdx.x == 0) history.residual = sums[0];
        __syncthreads();
        before = image;
    }
    u32 next = history.count == 0 ? 0 : (history.newest + 1) % anderson.window;
    Scale scale = Stored::scale(sqrt(history.residual / (double)anderson.len));
    Judgement judgement = put_pair<Stored, WINDOW>(crew, stopping.measure, anderson, history, sample, next, scale, argument, before, image);
    if (threadIdx.x == 0) {
        helped = take_pair(anderson, known, next, scale, judgement);
        ended = conclude(stopping, iteration, samples, sample, history.distance, known.progress, writes);
    }
    __syncthreads();
    if (threadIdx.x < 32) {
        bool found = !ended && combination(anderson, known, weights);
        if (threadIdx.x == 0) solved = found;
    }
    __syncthreads();
    if (!helped) image.copy_from(crew, before, anderson.eights);
    bool accepted = solved && combine<Stored, WINDOW>(crew, anderson, history, sample, weights, image, argument);
    if (!ended && !accepted) argument.copy_from(crew, image, anderson.eights);
    if (threadIdx.x == 0) history.accelerated = accepted;
    __syncthreads();
    if (writes) known.store(anderson, samples, sample);
}
