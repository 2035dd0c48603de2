// dz/dt = s(W z) on [0, 1] by Dormand and Prince's method: each sample with time and step size of its own. States are [sample][entry];
// several blocks for each sample, `gridDim.x / batch`. The order of a sum depends on the length of a state alone.
//
// Nearly all of it is memory that is read and written once: entries go by fours where states do, and everything that a thread reads for its
// four is on its way before any of it is used.
#include "map.cuh"

// Stages of a step: the last is the first of the next step and serves the error estimate.
#define STAGES 7

// The order of `OdeOutcome`, and one that the host never sees in the end.
enum : u32 { FINISHED, STEP_LIMIT, ODE_NOT_FINITE, RUNNING };

struct OdeReport {
    u32 accepted, rejected, outcome, unused;
    double time;
};

// A sample's step size, how many steps it may still try (or has to go back), and whether the last one was accepted.
struct OdeClock {
    double step;
    u32 left, accepted;
};

struct OdeSamples {
    OdeClock* clocks;
    OdeReport* reports;
    // 1: worked on.
    u32* active;
    // What the weights are not finite by.
    const u32* bad;
};

// What is remembered of an accepted step of all samples: the states before it, its sizes, and, where there is room for them, all stages but the
// last, [stage][sample][entry].
struct Piece {
    float* states;
    double* steps;
    float* stages;
};
struct Trajectory {
    const Piece* pieces;
    u64 batch;
    __device__ float* state(u32 step, u64 sample, u64 len) const { return pieces[step].states + sample * len; }
    __device__ double* size(u32 step, u64 sample) const { return pieces[step].steps + sample; }
    // Where a sample's stage of a step is, or null.
    __device__ float* stage(u32 step, u32 stage, u64 sample, u64 len) const {
        float* stages = pieces[step].stages;
        return stages && stage + 1 < STAGES ? stages + (stage * batch + sample) * len : 0;
    }
};

// Stages (or gradients), and the coefficients of a combination of the first `count` of them.
struct Combination {
    float* stages[STAGES];
    double factors[STAGES];
    u32 count, unused;
    // With the stages of a sample's step where they are remembered: as if those of all samples lay there.
    __device__ Combination at(const Trajectory& trajectory, u32 step, u64 sample, u64 len) const {
        Combination by = *this;
#pragma unroll
        for (u32 j = 0; j < STAGES; j++) {
            float* kept = trajectory.stage(step, j, sample, len);
            if (kept) by.stages[j] = kept - sample * len;
        }
        return by;
    }
};

struct OdePart {
    double error;
    // OdeEntries that are not finite: of the state, and of the next one.
    u64 before, after;
};

// WIDE neighbouring entries.
template <u32 WIDE> struct OdeEntries {
    float x[WIDE];
    static __device__ OdeEntries of(const float* from) {
        OdeEntries entries;
        if (WIDE == 4) {
            float4 v = *(const float4*)from;
            entries.x[0] = v.x, entries.x[1 % WIDE] = v.y, entries.x[2 % WIDE] = v.z, entries.x[3 % WIDE] = v.w;
        } else {
            entries.x[0] = from[0];
        }
        return entries;
    }
    __device__ void put(float* to) const {
        if (WIDE == 4)
            *(float4*)to = {x[0], x[1 % WIDE], x[2 % WIDE], x[3 % WIDE]};
        else
            to[0] = x[0];
    }
};

// What a thread has of its block's sample: entries from `first` on, `step` after each other.
struct OdeShare {
    u64 sample, first, step;
};
template <u32 WIDE> __device__ inline OdeShare ode_share(u32 batch) {
    u32 blocks = gridDim.x / batch;
    u64 thread = (u64)(blockIdx.x % blocks) * THREADS + threadIdx.x;
    return {blockIdx.x / blocks, thread * WIDE, (u64)blocks * THREADS * WIDE};
}
// Calls a function with the width that the states have.
#define BY_WIDTH(len, function, ...)          \
    do {                                      \
        if ((len) % 4 == 0)                   \
            function<4>(__VA_ARGS__);         \
        else                                  \
            function<1>(__VA_ARGS__);         \
    } while (0)

// The stages of a combination at some entries, but for the newest where it is given.
template <u32 WIDE> struct OdeStages {
    OdeEntries<WIDE> stages[STAGES];
    __device__ void read(const Combination& by, u64 at, u32 count) {
#pragma unroll
        for (u32 j = 0; j < STAGES; j++)
            if (j < count && by.factors[j] != 0.0) stages[j] = OdeEntries<WIDE>::of(by.stages[j] + at);
    }
    // z + h times the combination.
    __device__ void move(const Combination& by, double h, OdeEntries<WIDE>& z) const {
#pragma unroll
        for (u32 j = 0; j < STAGES; j++) {
            if (j >= by.count || by.factors[j] == 0.0) continue;
            float step = (float)(h * by.factors[j]);
#pragma unroll
            for (u32 i = 0; i < WIDE; i++) z.x[i] = fmaf(step, stages[j].x[i], z.x[i]);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS) ode_begin(OdeSamples samples, double step, u32 tries, u32 batch) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample >= batch) return;
    samples.clocks[sample] = {step, tries, 0};
    samples.reports[sample] = {0, 0, RUNNING, 0, 0.0};
    samples.active[sample] = 1;
}

template <u32 WIDE>
__device__ inline void make_stage(const Map& map, u32 batch, const OdeClock* clocks, const u32* active, const OdeReport* reports, const Trajectory& trajectory,
                                  const float* u, float* slopes, const float* z, const Combination& any, float* point) {
    OdeShare share = ode_share<WIDE>(batch);
    if (active && !active[share.sample]) return;
    double h = clocks[share.sample].step;
    Combination by = reports ? any.at(trajectory, reports[share.sample].accepted, share.sample, map.len) : any;
    // The newest of them.
    float* stage = by.stages[0];
#pragma unroll
    for (u32 j = 1; j < STAGES; j++)
        if (j + 1 == by.count) stage = by.stages[j];
    for (u64 i = share.first; i < map.len; i += share.step) {
        u64 at = share.sample * map.len + i;
        OdeEntries<WIDE> us = OdeEntries<WIDE>::of(u + at), next, made, d;
        OdeStages<WIDE> stages;
        if (point) {
            next = OdeEntries<WIDE>::of(z + at);
            stages.read(by, at, by.count - 1);
        }
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) made.x[k] = activate(map, us.x[k], d.x[k]);
        made.put(stage + at);
        if (slopes) d.put(slopes + at);
        if (!point) continue;
        // The last stage that is combined is the one that was just made.
#pragma unroll
        for (u32 j = 0; j < STAGES; j++)
            if (j + 1 == by.count) stages.stages[j] = made;
        stages.move(by, h, next);
        next.put(point + at);
    }
}
// A stage s(u), the newest of a combination, with the slopes where they are wanted, and the point of the next one, where there is one. Without
// flags: all samples. With reports: of steps that are to be remembered.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_stage(Map map, u32 batch, const OdeClock* clocks, const u32* active, const OdeReport* reports, Trajectory trajectory, const float* u, float* slopes,
          const float* z, Combination by, float* point) {
    BY_WIDTH(map.len, make_stage, map, batch, clocks, active, reports, trajectory, u, slopes, z, by, point);
}

template <u32 WIDE>
__device__ inline void sum_errors(u32 batch, u64 len, double absolute, double relative, const OdeSamples& samples, const Trajectory& trajectory,
                                  const float* z, const float* next, const Combination& any, OdePart* parts) {
    OdeShare share = ode_share<WIDE>(batch);
    if (!samples.active[share.sample]) return;
    Combination by = any.at(trajectory, samples.reports[share.sample].accepted, share.sample, len);
    double h = samples.clocks[share.sample].step, sum = 0.0;
    u64 before = 0, after = 0;
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        OdeEntries<WIDE> from = OdeEntries<WIDE>::of(z + at), to = OdeEntries<WIDE>::of(next + at);
        OdeStages<WIDE> stages;
        stages.read(by, at, by.count);
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) {
            double error = 0.0;
#pragma unroll
            for (u32 j = 0; j < STAGES; j++)
                if (j < by.count && by.factors[j] != 0.0) error += by.factors[j] * stages.stages[j].x[k];
            double scaled = h * error / (absolute + relative * fmax(fabs((double)from.x[k]), fabs((double)to.x[k])));
            sum += scaled * scaled;
            before += !isfinite(from.x[k]);
            after += !isfinite(to.x[k]);
        }
    }
    sum = block_sum(sum);
    before = block_count(before);
    after = block_count(after);
    if (threadIdx.x == 0) parts[blockIdx.x] = {sum, before, after};
}
// The error of a step in units of what is allowed, squared and summed by parts.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_error(u32 batch, u64 len, double absolute, double relative, OdeSamples samples, Trajectory trajectory, const float* z, const float* next,
          Combination by, OdePart* parts) {
    BY_WIDTH(len, sum_errors, batch, len, absolute, relative, samples, trajectory, z, next, by, parts);
}

// Accepts or rejects the steps and chooses the next ones. A thread per sample.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_judge(u32 batch, u64 len, OdeSamples samples, const OdePart* parts, u32 count, Trajectory trajectory) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample >= batch || !samples.active[sample]) return;
    OdeClock clock = samples.clocks[sample];
    OdeReport report = samples.reports[sample];
    double sum = 0.0;
    u64 before = 0, after = 0;
    for (u32 k = 0; k < count; k++) {
        const OdePart& part = parts[(u64)sample * count + k];
        sum += part.error;
        before += part.before;
        after += part.after;
    }
    double error = sqrt(sum / len);
    clock.left--;
    clock.accepted = error <= 1.0;
    if (clock.accepted) {
        *trajectory.size(report.accepted, sample) = clock.step;
        report.accepted++;
        report.time += clock.step;
    } else {
        report.rejected++;
    }
    if (clock.accepted && report.time >= 1.0 - 1e-12) {
        report.time = 1.0;
        report.outcome = FINISHED;
    } else {
        // Somewhat smaller than what the error would allow, and not too different.
        double factor = isfinite(error) ? 0.9 * pow(fmax(error, 1e-10), -0.2) : 0.0, rest = 1.0 - report.time;
        clock.step *= fmin(fmax(factor, 0.2), 5.0);
        // A last step that would leave a crumb takes it along.
        if (clock.step > rest * (1.0 - 1e-9)) clock.step = rest;
        bool lost = (!isfinite(error) && clock.step < 1e-9) || (clock.accepted ? after : before) != 0 || samples.bad[0] != 0;
        if (lost) report.outcome = ODE_NOT_FINITE;
        else if (clock.left == 0) report.outcome = STEP_LIMIT;
    }
    samples.clocks[sample] = clock;
    samples.reports[sample] = report;
}

template <u32 WIDE>
__device__ inline void advance(u32 batch, u64 len, const OdeSamples& samples, const Trajectory& trajectory, const Combination& by, float* z, float* point) {
    OdeShare share = ode_share<WIDE>(batch);
    if (!samples.active[share.sample]) return;
    OdeClock clock = samples.clocks[share.sample];
    u32 accepted = samples.reports[share.sample].accepted;
    float* kept = clock.accepted ? trajectory.state(accepted - 1, share.sample, len) : 0;
    // The first stage of the step that comes next.
    float* remembered = trajectory.stage(accepted, 0, share.sample, len);
    float* first = remembered ? remembered - share.sample * len : by.stages[0];
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        OdeEntries<WIDE> from = OdeEntries<WIDE>::of(z + at), to;
        OdeStages<WIDE> stages;
        // The last stage of an accepted step is the first of the next one.
        stages.stages[0] = OdeEntries<WIDE>::of((kept ? by.stages[STAGES - 1] : first) + at);
        if (kept) {
            to = OdeEntries<WIDE>::of(point + at);
            from.put(kept + i);
            to.put(z + at);
            stages.stages[0].put(first + at);
            from = to;
        }
        stages.move(by, clock.step, from);
        from.put(point + at);
    }
}
// Takes accepted steps over, remembering where they came from, and moves to the first point of the next ones: `by` is of one stage.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_advance(u32 batch, u64 len, OdeSamples samples, Trajectory trajectory, Combination by, float* z, float* point) {
    BY_WIDTH(len, advance, batch, len, samples, trajectory, by, z, point);
}

// Samples that have ended are left alone from here on. A thread per sample.
extern "C" __global__ void __launch_bounds__(THREADS) ode_end(OdeSamples samples, u32 batch) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample < batch && samples.reports[sample].outcome != RUNNING) samples.active[sample] = 0;
}

// ---- back through the accepted steps ------------------------------------------------------------------------------------

extern "C" __global__ void __launch_bounds__(THREADS) ode_turn(u32 batch, const OdeReport* reports, OdeClock* clocks) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample < batch) clocks[sample] = {0.0, reports[sample].accepted, 0};
}

// One step back. Samples that are at their start make a step of no size at zero, which adds nothing to any gradient.
extern "C" __global__ void __launch_bounds__(THREADS) ode_recall_sizes(u32 batch, OdeClock* clocks, Trajectory trajectory) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample >= batch) return;
    OdeClock clock = clocks[sample];
    clock.accepted = clock.left > 0;
    if (clock.accepted) clock.left--;
    clock.step = clock.accepted ? *trajectory.size(clock.left, sample) : 0.0;
    clocks[sample] = clock;
}

template <u32 WIDE>
__device__ inline void recall(u32 batch, u64 len, const OdeClock* clocks, const Trajectory& trajectory, float* z) {
    OdeShare share = ode_share<WIDE>(batch);
    OdeClock clock = clocks[share.sample];
    const float* kept = clock.accepted ? trajectory.state(clock.left, share.sample, len) : 0;
    for (u64 i = share.first; i < len; i += share.step) {
        OdeEntries<WIDE> entries = {};
        if (kept) entries = OdeEntries<WIDE>::of(kept + i);
        entries.put(z + share.sample * len + i);
    }
}
extern "C" __global__ void __launch_bounds__(THREADS)
ode_recall(u32 batch, u64 len, const OdeClock* clocks, Trajectory trajectory, float* z) {
    BY_WIDTH(len, recall, batch, len, clocks, trajectory, z);
}

// Where the stages of a step are taken, and by which shares of those before them: [point][stage].
struct Points {
    float* points[STAGES - 1];
    double factors[STAGES - 1][STAGES - 1];
};
template <u32 WIDE>
__device__ inline void recall_points(u32 batch, u64 len, const OdeClock* clocks, const Trajectory& trajectory, const Points& to) {
    OdeShare share = ode_share<WIDE>(batch);
    OdeClock clock = clocks[share.sample];
    const float* kept = clock.accepted ? trajectory.state(clock.left, share.sample, len) : 0;
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        OdeEntries<WIDE> z = {}, stages[STAGES - 2];
        if (kept) {
            z = OdeEntries<WIDE>::of(kept + i);
#pragma unroll
            for (u32 j = 0; j + 2 < STAGES; j++) stages[j] = OdeEntries<WIDE>::of(trajectory.stage(clock.left, j, share.sample, len) + i);
        }
        z.put(to.points[0] + at);
#pragma unroll
        for (u32 p = 1; p + 1 < STAGES; p++) {
            OdeEntries<WIDE> point = z;
#pragma unroll
            for (u32 j = 0; j < p; j++) {
                if (!kept || to.factors[p][j] == 0.0) continue;
                float step = (float)(clock.step * to.factors[p][j]);
#pragma unroll
                for (u32 k = 0; k < WIDE; k++) point.x[k] = fmaf(step, stages[j].x[k], point.x[k]);
            }
            point.put(to.points[p] + at);
        }
    }
}
// The same for a step whose stages are remembered: all points.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_recall_points(u32 batch, u64 len, const OdeClock* clocks, Trajectory trajectory, Points to) {
    BY_WIDTH(len, recall_points, batch, len, clocks, trajectory, to);
}

template <u32 WIDE>
__device__ inline void weigh(const Map& map, u32 batch, const OdeClock* clocks, const Trajectory& trajectory, u32 stage, const Combination& by,
                             const float* slopes, float* q) {
    OdeShare share = ode_share<WIDE>(batch);
    OdeClock clock = clocks[share.sample];
    const float* values = slopes || !clock.accepted ? 0 : trajectory.stage(clock.left, stage, share.sample, map.len);
    for (u64 i = share.first; i < map.len; i += share.step) {
        u64 at = share.sample * map.len + i;
        OdeEntries<WIDE> d = {}, gradient = {};
        if (slopes) d = OdeEntries<WIDE>::of(slopes + at);
        if (values) d = OdeEntries<WIDE>::of(values + i);
        OdeStages<WIDE> gradients;
        gradients.read(by, at, by.count);
        gradients.move(by, clock.step, gradient);
#pragma unroll
        for (u32 k = 0; k < WIDE; k++) {
            // A slope that is known by the activation's value, or by its sign.
            if (values) d.x[k] = slope(map, d.x[k], d.x[k]);
            d.x[k] *= gradient.x[k];
        }
        d.put(q + at);
    }
}
// q of a stage: its slopes times its gradient, which is h times a combination of the gradients of what was made of it. Without slopes: by the
// stage, which is remembered.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_weigh(Map map, u32 batch, const OdeClock* clocks, Trajectory trajectory, u32 stage, Combination by, const float* slopes, float* q) {
    BY_WIDTH(map.len, weigh, map, batch, clocks, trajectory, stage, by, slopes, q);
}

template <u32 WIDE> __device__ inline void collect(u32 batch, u64 len, const Combination& by, float* gradient) {
    OdeShare share = ode_share<WIDE>(batch);
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        OdeEntries<WIDE> g = OdeEntries<WIDE>::of(gradient + at);
        OdeStages<WIDE> gradients;
        gradients.read(by, at, by.count);
        gradients.move(by, 1.0, g);
        g.put(gradient + at);
    }
}
// The gradient of the state before a step: that of the state after it, and those of the points.
extern "C" __global__ void __launch_bounds__(THREADS) ode_collect(u32 batch, u64 len, Combination by, float* gradient) {
    BY_WIDTH(len, collect, batch, len, by, gradient);
}

// Adds the reports of a batch to the counters. One block.
extern "C" __global__ void __launch_bounds__(THREADS) tally_integrations(const OdeReport* reports, u32 batch, Tally* tally) {
    u64 accepted = 0, finished = 0;
    for (u32 i = threadIdx.x; i < batch; i += THREADS) {
        accepted += reports[i].accepted;
        finished += reports[i].outcome == FINISHED;
    }
    accepted = block_count(accepted);
    finished = block_count(finished);
    if (threadIdx.x != 0) return;
    tally->solves += batch;
    tally->converged += finished;
    tally->unfinished += batch - finished;
    tally->forward_iterations += accepted;
}
