// Anderson acceleration where a sample has a block.
#include "anderson.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) begin_anderson(Anderson anderson, u32 batch) {
    u32 sample = first_entry();
    if (sample < batch) anderson.histories[sample] = {0, 0, 0, 0, INFINITY, no_distance(), {}};
}

// How the history is kept, and how many threads a sample has: by its length alone.
extern "C" __global__ void __launch_bounds__(256)
anderson_step(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, float* arguments, float* befores, float* images) {
    step<F32, MOST>(OneBlock<256>(), stopping, iteration, samples, anderson, arguments, befores, images);
}
extern "C" __global__ void __launch_bounds__(256, 2)
anderson_step_f16(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, float* arguments, float* befores, float* images) {
    step<F16, MOST>(OneBlock<256>(), stopping, iteration, samples, anderson, arguments, befores, images);
}
extern "C" __global__ void __launch_bounds__(512)
anderson_step_f16_wide(Stopping stopping, u32 iteration, Samples samples, Anderson anderson, float* arguments, float* befores, float* images) {
    step<F16, MOST>(OneBlock<512>(), stopping, iteration, samples, anderson, arguments, befores, images);
}
