// Broyden's good method with limited memory, as `cpu/solve/broyden.rs` explains it. One block per sample: every thread has entries of
// its own, so that vectors need no barriers, only sums do.
#include "solve.cuh"

// The squared growth of the residual beyond which a step is taken back.
#define GROWTH 4.0

struct Standing {
    // Squared norm of the last residual that was kept; infinite before the first.
    double residual;
    Distance distance;
    u32 updates, accelerated;
};

struct Broyden {
    // u and v of the updates: [sample][slot][entry].
    float* left;
    float* right;
    // Of the last step that was kept: [sample][entry].
    float* arguments;
    float* images;
    float* residuals;
    // The change of the argument and of the residual in the current step.
    float* moved;
    float* changed;
    Standing* standings;
    u32 memory, unused;
};

__device__ inline double dot(const float* x, const float* y, u64 len) {
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < len; i += THREADS) sum += (double)x[i] * y[i];
    return block_sum(sum);
}

// y += a x.
__device__ inline void add_scaled(double a, const float* x, float* y, u64 len) {
    for (u64 i = threadIdx.x; i < len; i += THREADS) y[i] = fmaf((float)a, x[i], y[i]);
}

extern "C" __global__ void __launch_bounds__(THREADS) begin_broyden(Broyden broyden, u32 batch) {
    u32 sample = first_entry();
    if (sample < batch) broyden.standings[sample] = {INFINITY, {0.0, 0.0, -INFINITY, INFINITY}, 0, 0};
}

// argument <- z - B r = z + r - sum u_i <v_i, r> from the last step that was kept; the start at first.
extern "C" __global__ void __launch_bounds__(THREADS)
propose_broyden(Broyden broyden, u64 len, const u32* active, const float* image, float* argument) {
    u32 sample = blockIdx.x;
    if (active[sample] != 1) return;
    u32 updates = broyden.standings[sample].updates;
    const float* left = broyden.left + (u64)sample * broyden.memory * len;
    const float* right = broyden.right + (u64)sample * broyden.memory * len;
    float* to = argument + sample * len;
    for (u64 i = threadIdx.x; i < len; i += THREADS) to[i] = image[sample * len + i];
    for (u32 slot = 0; slot < updates; slot++)
        add_scaled(-dot(right + slot * len, broyden.residuals + sample * len, len), left + slot * len, to, len);
    if (threadIdx.x == 0) broyden.standings[sample].accelerated = updates > 0;
}

// Adds u v' with u = (dz - B dr) / <dz, B dr>, v = B' dz; false if the denominator vanishes. `changed` holds the new residual.
__device__ inline bool update(const Broyden& broyden, u32 sample, u32 slot, const float* argument, u64 len) {
    float* left = broyden.left + (u64)sample * broyden.memory * len;
    float* right = broyden.right + (u64)sample * broyden.memory * len;
    float* moved = broyden.moved + sample * len;
    float* changed = broyden.changed + sample * len;
    float* u = left + slot * len;
    float* v = right + slot * len;
    for (u64 i = threadIdx.x; i < len; i += THREADS) {
        moved[i] = argument[i] - broyden.arguments[sample * len + i];
        changed[i] -= broyden.residuals[sample * len + i];
        u[i] = -changed[i];
        v[i] = -moved[i];
    }
    // u: first B dr = -dr + sum u_i <v_i, dr>; v: B' dz = -dz + sum v_i <u_i, dz>.
    for (u32 old = 0; old < slot; old++) {
        add_scaled(dot(right + old * len, changed, len), left + old * len, u, len);
        add_scaled(dot(left + old * len, moved, len), right + old * len, v, len);
    }
    double denominator = dot(moved, u, len), size = dot(moved, moved, len);
    if (!(fabs(denominator) > 1e-8 * size)) return false;
    float inverse = (float)(1.0 / denominator);
    for (u64 i = threadIdx.x; i < len; i += THREADS) u[i] = (moved[i] - u[i]) * inverse;
    return true;
}

// Takes a step into the approximation, or takes it back; then as `conclude_step`.
extern "C" __global__ void __launch_bounds__(THREADS)
judge_broyden(Stopping stopping, u32 iteration, Samples samples, Broyden broyden, const float* argument, float* image, u64 len) {
    u32 sample = blockIdx.x;
    if (samples.active[sample] != 1) return;
    const float* z = argument + sample * len;
    float* f = image + sample * len;
    float* changed = broyden.changed + sample * len;
    Standing last = broyden.standings[sample];
    Distance d = distance_of(stopping.measure, z, f, len);
    for (u64 i = threadIdx.x; i < len; i += THREADS) changed[i] = f[i] - z[i];
    double residual = dot(changed, changed, len);
    if (last.accelerated && !(residual <= GROWTH * last.residual)) {
        for (u64 i = threadIdx.x; i < len; i += THREADS) f[i] = broyden.images[sample * len + i];
        d = last.distance;
        if (threadIdx.x == 0) broyden.standings[sample] = {last.residual, last.distance, 0, 0};
    } else {
        u32 updates = last.updates;
        if (isfinite(last.residual)) {
            if (updates == broyden.memory) updates = 0;
            if (update(broyden, sample, updates, z, len)) updates++;
        }
        for (u64 i = threadIdx.x; i < len; i += THREADS) {
            broyden.residuals[sample * len + i] = f[i] - z[i];
            broyden.arguments[sample * len + i] = z[i];
            broyden.images[sample * len + i] = f[i];
        }
        if (threadIdx.x == 0) broyden.standings[sample] = {residual, d, updates, 0};
    }
    if (threadIdx.x == 0) conclude(stopping, iteration, samples, sample, d);
}
