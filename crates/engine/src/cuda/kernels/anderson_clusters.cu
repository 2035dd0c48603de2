// Anderson acceleration where a sample has a cluster of blocks (Hopper), for windows up to 5: when few samples are left they still have many
// threads, and while one cluster computes weights others read.
#include "anderson.cuh"
#include "dev.cuh"

// Blocks of a sample and their threads: two fit on a multiprocessor, so that 128 samples are at work at once.
#ifndef CREW_THREADS
#define CREW_THREADS 512
#define CREW_BLOCKS 2
#define CREWS_AT_ONCE 2
#endif

// Blocks of a cluster.
template <u32 BLOCKS, u32 WIDE>
struct Cluster : Dealt<BLOCKS, WIDE> {
    __device__ u32 part() const { return cluster_rank(); }
    // A block that has not begun has no memory to tell anything to.
    __device__ void arrive() const { cluster_barrier(); }
    __device__ void tell(double* of_parts, double number) const {
        u32 to = threadIdx.x % 32;
        if (to < BLOCKS) store_remote(smem_addr(of_parts + part()), to, number);
    }
    __device__ void meet() const { cluster_barrier(); }
};

extern "C" __global__ void __cluster_dims__(CREW_BLOCKS, 1, 1) __launch_bounds__(CREW_THREADS, CREWS_AT_ONCE)
anderson_step_clusters(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, float* arguments, float* befores, float* images) {
    step<F16, 5>(Cluster<CREW_BLOCKS, CREW_THREADS>(), stopping, iteration, samples, anderson, arguments, befores, images);
}
