// What every kernel file needs. No floating atomics anywhere, and every sum has a fixed order: same bits from run to run.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

// Threads of a block, in all kernels.
#define THREADS 256

// The entry of a long array that this thread starts at, and the step to its next one.
__device__ inline u64 first_entry() { return (u64)blockIdx.x * THREADS + threadIdx.x; }
__device__ inline u64 entry_step() { return (u64)gridDim.x * THREADS; }

// The sum over a block, by halves: for all threads the same.
__device__ inline double block_sum(double x) {
    __shared__ double parts[THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    double sum = parts[0];
    __syncthreads();
    return sum;
}

__device__ inline double block_max(double x) {
    __shared__ double parts[THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            double other = parts[threadIdx.x + half];
            // A NaN is kept, on whichever side it is.
            if (!(other <= parts[threadIdx.x]) && parts[threadIdx.x] == parts[threadIdx.x]) parts[threadIdx.x] = other;
        }
        __syncthreads();
    }
    double largest = parts[0];
    __syncthreads();
    return largest;
}

__device__ inline u64 block_count(u64 x) {
    __shared__ u64 parts[THREADS];
    parts[threadIdx.x] = x;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
        __syncthreads();
    }
    u64 sum = parts[0];
    __syncthreads();
    return sum;
}

// True for all threads of the block that is the last of its launch to get here, which sees what the others wrote before. `arrived`
// counts them and is 0 between launches. Which block that is depends on chance, so it must do the same whichever it is.
__device__ inline bool last_to_arrive(u32* arrived) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived, 1u) + 1 == gridDim.x * gridDim.y * gridDim.z;
        if (last) arrived[0] = 0;
    }
    __syncthreads();
    if (last) __threadfence();
    return last;
}

// How a solve ended: the order of `Outcome` in report.rs.
enum : u32 { CONVERGED = 0, ITERATION_LIMIT = 1, STAGNATED = 2, NOT_FINITE = 3 };

struct Report {
    u32 iterations, outcome;
    double residual;
};

// The counters: the fields of `Summary`, in their order.
struct Tally {
    u64 samples;
    double loss, penalty;
    u64 correct, solves, converged, forward_iterations, adjoint_solves, backward_iterations, adjoint_not_finite, unfinished;
};
