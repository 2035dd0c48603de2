// dz/dt = s(W z) on [0, 1] by Dormand and Prince's method: each sample with time and step size of its own. States are [sample][entry];
// several blocks for each sample, `gridDim.x / batch`. The order of a sum depends on the length of a state alone.
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

// What is remembered of accepted steps: pieces of `slots` steps each, [step][sample][entry], and their sizes [step][sample].
struct Piece {
    float* states;
    double* steps;
};
struct Trajectory {
    const Piece* pieces;
    u32 slots, batch;
    __device__ float* state(u32 step, u64 sample, u64 len) const {
        return pieces[step / slots].states + ((u64)(step % slots) * batch + sample) * len;
    }
    __device__ double* size(u32 step, u64 sample) const { return pieces[step / slots].steps + (u64)(step % slots) * batch + sample; }
};

// Stages (or their gradients), and the coefficients of a combination of the first `count` of them.
struct Combination {
    float* stages[STAGES];
    double factors[STAGES];
    u32 count, unused;
};

struct OdePart {
    double error;
    // Entries that are not finite: of the state, and of the next one.
    u64 before, after;
};

struct OdeShare {
    u64 sample, first, step;
};
__device__ inline OdeShare ode_share(u32 batch) {
    u32 blocks = gridDim.x / batch;
    return {blockIdx.x / blocks, (u64)(blockIdx.x % blocks) * THREADS + threadIdx.x, (u64)blocks * THREADS};
}

// z + h times the combination.
__device__ inline float moved(const Combination& by, double h, float z, u64 at) {
    for (u32 j = 0; j < by.count; j++)
        if (by.factors[j] != 0.0) z = fmaf((float)(h * by.factors[j]), by.stages[j][at], z);
    return z;
}

extern "C" __global__ void __launch_bounds__(THREADS) ode_begin(OdeSamples samples, double step, u32 tries, u32 batch) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample >= batch) return;
    samples.clocks[sample] = {step, tries, 0};
    samples.reports[sample] = {0, 0, RUNNING, 0, 0.0};
    samples.active[sample] = 1;
}

// A stage s(u), with the slopes where they are wanted, and the point of the next one, where there is one. Without flags: all samples.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_stage(Map map, u32 batch, const OdeClock* clocks, const u32* active, const float* u, float* stage, float* slopes, const float* z,
          Combination by, float* point) {
    OdeShare share = ode_share(batch);
    if (active && !active[share.sample]) return;
    double h = clocks[share.sample].step;
    for (u64 i = share.first; i < map.len; i += share.step) {
        u64 at = share.sample * map.len + i;
        float d, s = activate(map, u[at], d);
        stage[at] = s;
        if (slopes) slopes[at] = d;
        // The stage that was just written is among those that are combined.
        if (point) point[at] = moved(by, h, z[at], at);
    }
}

// The error of a step in units of what is allowed, squared and summed by parts.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_error(u32 batch, u64 len, double absolute, double relative, OdeSamples samples, const float* z, const float* next, Combination by, OdePart* parts) {
    OdeShare share = ode_share(batch);
    if (!samples.active[share.sample]) return;
    double h = samples.clocks[share.sample].step, sum = 0.0;
    u64 before = 0, after = 0;
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        double error = 0.0;
        for (u32 j = 0; j < by.count; j++) error += by.factors[j] * by.stages[j][at];
        double scaled = h * error / (absolute + relative * fmax(fabs((double)z[at]), fabs((double)next[at])));
        sum += scaled * scaled;
        before += !isfinite(z[at]);
        after += !isfinite(next[at]);
    }
    sum = block_sum(sum);
    before = block_count(before);
    after = block_count(after);
    if (threadIdx.x == 0) parts[blockIdx.x] = {sum, before, after};
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

// Takes accepted steps over, remembering where they came from, and moves to the first point of the next ones.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_advance(u32 batch, u64 len, OdeSamples samples, Trajectory trajectory, Combination by, float* z, float* point) {
    OdeShare share = ode_share(batch);
    if (!samples.active[share.sample]) return;
    OdeClock clock = samples.clocks[share.sample];
    u32 accepted = samples.reports[share.sample].accepted;
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        if (clock.accepted) {
            trajectory.state(accepted - 1, share.sample, len)[i] = z[at];
            z[at] = point[at];
            by.stages[0][at] = by.stages[STAGES - 1][at];
        }
        point[at] = moved(by, clock.step, z[at], at);
    }
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

extern "C" __global__ void __launch_bounds__(THREADS)
ode_recall(u32 batch, u64 len, const OdeClock* clocks, Trajectory trajectory, float* z) {
    OdeShare share = ode_share(batch);
    OdeClock clock = clocks[share.sample];
    for (u64 i = share.first; i < len; i += share.step)
        z[share.sample * len + i] = clock.accepted ? trajectory.state(clock.left, share.sample, len)[i] : 0.0f;
}

// The gradients of the stages by the state's: stages[j] = h factors[j] gradient. And q of the last one: its slopes times its gradient.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_seed(u32 batch, u64 len, const OdeClock* clocks, const float* gradient, Combination by, const float* slopes, float* q) {
    OdeShare share = ode_share(batch);
    double h = clocks[share.sample].step;
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        float last = 0.0f;
        for (u32 j = 0; j < by.count; j++) by.stages[j][at] = last = (float)(h * by.factors[j]) * gradient[at];
        q[at] = slopes[at] * last;
    }
}

// What W' q of a stage adds to the gradients of the state and of the stages before it; and q of the stage before, where there is one.
extern "C" __global__ void __launch_bounds__(THREADS)
ode_spread(u32 batch, u64 len, const OdeClock* clocks, const float* pulled, float* gradient, Combination by, const float* slopes, float* q) {
    OdeShare share = ode_share(batch);
    double h = clocks[share.sample].step;
    for (u64 i = share.first; i < len; i += share.step) {
        u64 at = share.sample * len + i;
        float more = pulled[at], last = 0.0f;
        gradient[at] += more;
        for (u32 j = 0; j < by.count; j++) by.stages[j][at] = last = fmaf((float)(h * by.factors[j]), more, by.stages[j][at]);
        if (by.count) q[at] = slopes[at] * last;
    }
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
