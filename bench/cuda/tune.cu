// Kernels of the engine by themselves, at the shape of cifar-conv (128 x 48 x 32 x 32), all samples active or (TUNE_LEFT=16) so many: to try a change of a kernel
// without building the program, on a machine that has a GPU and nvcc but no Rust.
//   nvcc -std=c++17 -O3 -lineinfo -gencode arch=compute_80,code=sm_90 -I crates/engine/src/cuda/kernels -DCONVOLUTIONS_FILE='"convolutions.cu"' bench/cuda/tune.cu -o tune
// One of CONVOLUTIONS_FILE, WARPGROUPS_FILE (for compute_90a and sm_90a), ANDERSON_FILE (anderson_clusters.cu: for compute_90), ONCHIP_ANDERSON_FILE (onchip_anderson_48_32.cu: for compute_90a) and FOURIER_FILE (with RIPPLES_FILE, the images of 32 x 32)
// names the kernels. Prints us, median of 21.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define TUNED_BATCH 128
// With WARPGROUPS_FILE or ONCHIP_ANDERSON_FILE also -DTUNED_SIDE=28 -DTUNED_CHANNELS=32: MNIST as released.
#ifndef TUNED_SIDE
#define TUNED_SIDE 32
#define TUNED_CHANNELS 48
#endif
#define TUNED_LEN ((size_t)TUNED_SIDE * TUNED_SIDE * TUNED_CHANNELS)

static void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}
template <class T>
static T* room(size_t count) {
    T* memory;
    // As the engine: from the stream's pool.
    check(getenv("TUNE_PLAIN") ? cudaMalloc(&memory, count * sizeof(T)) : cudaMallocAsync(&memory, count * sizeof(T), 0), "memory");
    check(cudaMemset(memory, 0, count * sizeof(T)), "cudaMemset");
    return memory;
}
template <class T>
static T* of(const std::vector<T>& values) {
    T* memory = room<T>(values.size());
    check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    return memory;
}
static float* noise(size_t count, float size, unsigned seed = 1) {
    std::vector<float> values(count);
    unsigned state = seed;
    for (float& x : values) {
        state = state * 1664525u + 1013904223u;
        x = size * ((float)(state >> 8) / 8388608.0f - 1.0f);
    }
    return of(values);
}
// The median over some launches, each between events; `before` is not measured.
template <class F, class G>
static void measure(const char* name, F launch, G before) {
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> times;
    for (int i = 0; i < 24; i++) {
        before();
        cudaEventRecord(begin);
        launch();
        cudaEventRecord(end);
        check(cudaEventSynchronize(end), name);
        check(cudaGetLastError(), name);
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        if (i >= 3) times.push_back(1000.0f * ms);
    }
    std::sort(times.begin(), times.end());
    printf("%-34s %8.2f us (least %.2f)\n", name, times[times.size() / 2], times[0]);
}
template <class F>
static void measure(const char* name, F launch) {
    measure(name, launch, [] {});
}
// Samples that are worked on: TUNE_LEFT of them, spread over the batch as it happens.
static std::vector<unsigned> left_active() {
    size_t left = getenv("TUNE_LEFT") ? atoi(getenv("TUNE_LEFT")) : TUNED_BATCH;
    std::vector<unsigned> flags(TUNED_BATCH, 0);
    for (size_t i = 0; i < left; i++) flags[i * 37 % TUNED_BATCH] = 1;
    return flags;
}
template <class K>
static void allow(K kernel, int bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "shared memory");
}

#if defined CONVOLUTIONS_FILE || defined WARPGROUPS_FILE
#ifdef CONVOLUTIONS_FILE
#include CONVOLUTIONS_FILE
#else
#include WARPGROUPS_FILE
#endif
// Pixels of a block: those of 16 rows, or of whole columns.
#ifndef TILE_PIXELS
#define TILE_PIXELS 256
#endif
int main() {
    // Smaller images have as many, which hang over.
    const u32 tiles = 32 * 32 / TILE_PIXELS;
    Convolution plain = {TUNED_SIDE, TUNED_SIDE, TUNED_CHANNELS, TUNED_CHANNELS, 1, 1, 3, 0, 16, TILE_PIXELS / 16, 512 / TILE_PIXELS, tiles, 6, 0}, columns = plain;
    columns.tile_height = 32, columns.tile_width = TILE_PIXELS / 32, columns.across = 1024 / TILE_PIXELS;
    float *z = noise(TUNED_BATCH * TUNED_LEN, 1.0f), *y = noise(TUNED_BATCH * TUNED_LEN, 1.0f, 2), *out = room<float>(TUNED_BATCH * TUNED_LEN), *slopes = noise(TUNED_BATCH * TUNED_LEN, 1.0f, 3);
    float *w = noise(TUNED_CHANNELS * TUNED_CHANNELS * 9, 0.05f, 4), *packed = room<float>((TUNED_CHANNELS * 9 + 1) * TUNED_CHANNELS), *inverses = noise(TUNED_BATCH * TUNED_SIDE * TUNED_CHANNELS, 1.0f, 5);
    u32* active = of(left_active());
#ifdef CONVOLUTIONS_FILE
    pack_convolution<<<TUNED_CHANNELS * 32 / THREADS, THREADS>>>(plain, w, w, 0, packed);
#else
    pack_for_warpgroups<<<TUNED_CHANNELS * 32 / THREADS, THREADS>>>(TUNED_CHANNELS, w, 0, packed);
#endif
    Map map = {};
    map.formula = SINGLE, map.activation = TANH, map.planes = 1, map.units = TUNED_CHANNELS, map.len = TUNED_LEN;
    Keep keep = {};
    keep.out = out;
    Apply apply = {map, y, z, out, nullptr, 0}, normalised = apply;
    normalised.normalised = 1;
    Pull pull = {}, pulled;
    pull.planes = 1, pull.v = y, pull.slopes = slopes, pull.argument = z, pull.out = out;
    pulled = pull;
    pulled.slopes = nullptr, pulled.norm = {z, y, inverses}, pulled.norm_slopes = slopes, pulled.pulled = out, pulled.pulled_planes = 1;
    Linearise linearise = {};
    linearise.map = map, linearise.y = y, linearise.slopes = slopes, linearise.out = out;
#ifdef CONVOLUTIONS_FILE
    const int bytes = TILE_PIXELS * TUNED_CHANNELS * sizeof(float);
    dim3 grid(TUNED_BATCH * tiles);
#define LAUNCH(old, by_warpgroups, shape, finish) [&] { old##_6<<<grid, THREADS, bytes>>>(shape, z, packed, finish, active); }
    allow(convolve_6, bytes), allow(apply_convolution_6, bytes), allow(pull_convolution_6, bytes), allow(linearise_convolution_6, bytes);
#else
    const int bytes = Warpgroups<TUNED_CHANNELS>::BYTES;
#define JOINED(name, channels) name##_##channels
#define OF(name, channels) JOINED(name, channels)
#define LAUNCH(old, by_warpgroups, shape, finish) \
    [&] { OF(by_warpgroups, TUNED_CHANNELS)<<<132, TEAMS * TEAM, bytes>>>(shape, TUNED_BATCH, z, packed, finish, active); }
    allow(OF(warpgroup_convolve, TUNED_CHANNELS), bytes), allow(OF(warpgroup_apply, TUNED_CHANNELS), bytes);
    allow(OF(warpgroup_pull, TUNED_CHANNELS), bytes), allow(OF(warpgroup_linearise, TUNED_CHANNELS), bytes);
#endif
    // How large the last result is: two ways to compute it should agree.
    auto size = [&] {
        std::vector<float> a(TUNED_BATCH * TUNED_LEN);
        check(cudaMemcpy(a.data(), out, 4 * a.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
        double sum = 0.0;
        for (size_t i = 0; i < a.size(); i++) sum += a[i] * (double)a[i] * (1.0 + i % 7);
        printf("%34s %.9g\n", "size", sqrt(sum));
    };
    measure("convolve", LAUNCH(convolve, warpgroup_convolve, plain, keep)), size();
    measure("apply", LAUNCH(apply_convolution, warpgroup_apply, plain, apply)), size();
    measure("apply, normalised", LAUNCH(apply_convolution, warpgroup_apply, columns, normalised)), size();
    measure("pull", LAUNCH(pull_convolution, warpgroup_pull, plain, pull)), size();
    measure("pull, normalised", LAUNCH(pull_convolution, warpgroup_pull, columns, pulled)), size();
    measure("linearise", LAUNCH(linearise_convolution, warpgroup_linearise, plain, linearise)), size();
}
#endif

#ifdef ONCHIP_ANDERSON_FILE
#include ONCHIP_ANDERSON_FILE
// Random halves of weights, and what their sums are multiplied by, so large that the solves need many iterations.
static uint4* halves(float size) {
    const size_t count = 2 * 9 * TUNED_CHANNELS * TUNED_CHANNELS;
    std::vector<uint4> memory((2 * count + 4 * TUNED_CHANNELS) / 16);
    __half* to = (__half*)memory.data();
    unsigned state = 1;
    for (size_t i = 0; i < count / 2; i++) state = state * 1664525u + 1013904223u, to[i] = __float2half((float)(state >> 8) / 8388608.0f - 1.0f), to[count / 2 + i] = __float2half(0.0f);
    for (int i = 0; i < TUNED_CHANNELS; i++) ((float*)(to + count))[i] = size;
    return of(memory);
}
#if TUNED_SIDE == 28
typedef Tiles28 Tuned;
#define TUNED(name) onchip_anderson_##name##_32_28
#else
typedef Tiles32 Tuned;
#define TUNED(name) onchip_anderson_##name##_48_32
#endif
template <class Kernel>
static void solves(const char* name, Kernel kernel, OnchipAnderson a) {
    typedef AndersonOnChip<Tuned, ANDERSON_FORWARD, false> Shape;
    const int shared = Shape::SHARED;
    size_t left = getenv("TUNE_LEFT") ? atoi(getenv("TUNE_LEFT")) : TUNED_BATCH;
    allow(kernel, shared);
    for (unsigned most : {10, 30}) {
        a.max_iterations = most;
        char label[80];
        snprintf(label, sizeof label, "%s, %u iterations", name, most);
        measure(label, [&] { kernel<<<left * Shape::CL, 512, shared>>>(a); }, [] {});
    }
    std::vector<OnchipReport> reports(left);
    check(cudaMemcpy(reports.data(), a.reports, sizeof(OnchipReport) * left, cudaMemcpyDeviceToHost), "cudaMemcpy");
    printf("%34s %u iterations, outcome %u, residual %.9g, last %.9g\n", "", reports[0].iterations, reports[0].outcome, reports[0].residual, reports[left - 1].residual);
}
int main() {
    const size_t all = TUNED_BATCH * TUNED_LEN;
    float *y = noise(all, 1.0f, 2), *start = noise(all, 1.0f), *slopes = noise(all, 1.0f, 3);
    OnchipAnderson a = {};
    a.weights = halves(0.06f), a.drive = y, a.slope = slopes, a.states = start, a.gradients = y, a.inverses = noise(TUNED_BATCH * TUNED_SIDE * TUNED_CHANNELS, 1.0f, 5);
    a.start = start, a.state = room<float>(all), a.reports = room<OnchipReport>(TUNED_BATCH), a.bad = room<uint32_t>(1), a.ridge = 1e-4, a.shift = 1.2f, a.power = 1.0f;
    solves("solve", TUNED(solve), a);
    solves("solve, normalised", TUNED(solve_normalised), a);
    solves("adjoint", TUNED(adjoint), a);
    solves("adjoint, normalised", TUNED(adjoint_normalised), a);
}
#endif

#ifdef ANDERSON_FILE
#include ANDERSON_FILE
// A linear map: each number is multiplied by a factor of its own.
__global__ void image_of_all(const float* factors, const float* z, float* f) {
    for (size_t i = blockIdx.x * 256 + threadIdx.x; i < TUNED_BATCH * TUNED_LEN; i += gridDim.x * 256) f[i] = fmaf(factors[i], z[i], 1.0f);
}
int main() {
    const u32 window = 5;
    // A history of zeros has no pairs, as after begin_anderson.
    float *z = noise(TUNED_BATCH * TUNED_LEN, 1.0f), *factors = noise(TUNED_BATCH * TUNED_LEN, 0.98f, 2), *images[2] = {room<float>(TUNED_BATCH * TUNED_LEN), room<float>(TUNED_BATCH * TUNED_LEN)};
    Anderson anderson = {room<float>(TUNED_BATCH * TUNED_LEN * window), room<float>(TUNED_BATCH * TUNED_LEN * window), room<double>(TUNED_BATCH * window * window), room<History>(TUNED_BATCH),
                         1e-4, 1.0, TUNED_LEN, window, (u32)(TUNED_LEN / 8)};
    Progress start = {INFINITY, 0, 0};
    Samples samples = {of(std::vector<Progress>(TUNED_BATCH, start)), room<Report>(TUNED_BATCH), of(left_active()), of(std::vector<u32>(1, TUNED_BATCH)), room<Distance>(TUNED_BATCH)};
    Stopping stopping = {0.0, RELATIVE, 1000, 0, 0};
    u32 iteration = 0;
    measure("step of Anderson's", [&] {
        float *image = images[iteration % 2], *before = images[1 - iteration % 2];
#ifdef CREW_THREADS
        anderson_step_clusters<<<TUNED_BATCH * CREW_BLOCKS, CREW_THREADS>>>(stopping, ++iteration, samples, anderson, z, before, image);
#else
        anderson_step_f16_wide<<<TUNED_BATCH, 512>>>(stopping, ++iteration, samples, anderson, z, before, image);
#endif
    }, [&] { image_of_all<<<1024, 256>>>(factors, z, images[iteration % 2]); });
    std::vector<History> histories(TUNED_BATCH);
    cudaMemcpy(histories.data(), anderson.histories, TUNED_BATCH * sizeof(History), cudaMemcpyDeviceToHost);
    printf("residual after %u steps: %.3g\n", iteration, sqrt(histories[0].distance.difference / histories[0].distance.size));
}
#endif

#ifdef FOURIER_FILE
#include FOURIER_FILE
#include RIPPLES_FILE
PLANES(32)
RIPPLES(32)
int main() {
    const u32 frequencies = TUNED_SIDE * (TUNED_SIDE / 2 + 1);
    const size_t waves = (size_t)frequencies * TUNED_BATCH * TUNED_CHANNELS;
    Plane plane = {TUNED_BATCH, TUNED_SIDE, TUNED_SIDE, TUNED_SIDE / 2 + 1, TUNED_CHANNELS, TUNED_CHANNELS};
    float *matrices = noise((size_t)frequencies * TUNED_CHANNELS * TUNED_CHANNELS * 2, 0.1f / 1024), *whole = noise(2 * waves, 30.0f, 2), *to = room<float>(2 * waves);
    float *other = room<float>(2 * waves), *g = noise(TUNED_BATCH * TUNED_LEN, 1.0f, 3), *slopes = noise(TUNED_BATCH * TUNED_LEN, 1.0f, 4);
    // Pairs of f16: changes of some 2^-7.
    auto pairs = [](size_t count, u32 exponents) {
        std::vector<u32> values(count);
        u32 state = 7;
        for (u32& x : values) x = exponents | ((state = state * 1664525u + 1013904223u) >> 3 & 0x83ff83ffu);
        return of(values);
    };
    u32 *changes = pairs(waves, 0x20002000u), *active = of(std::vector<u32>(TUNED_BATCH, 1)), *arrived = room<u32>(TUNED_BATCH);
    Flow all = {1, 1, 1.0f, 1.0f, 0.0, 0.0f, 0}, some = {0, 0, 1.0f, 1.0f, 0.0, 0.0f, 0};
    Flow *flows = of(std::vector<Flow>(TUNED_BATCH, some));
    std::vector<Flow> few(TUNED_BATCH, some);
    for (u32 i = 0; i < TUNED_BATCH; i += 20) few[i] = all;
    Flow* few_whole = of(few);
    Waters from = {(Wave*)whole, changes}, product = {(Wave*)to, changes}, second = {(Wave*)other, changes};
    dim3 grid(frequencies, 1, 1);
    measure("product of all, FMA", [&] { fourier_product_48<<<grid, THREADS>>>(plane, (Wave*)matrices, 1, from, product, nullptr, active); });
    measure("product of 7, FMA", [&] { fourier_product_48<<<grid, THREADS>>>(plane, (Wave*)matrices, 0, from, product, few_whole, active); });
    const int bytes = 2 * TUNED_CHANNELS * TUNED_CHANNELS * 8;
    allow(fourier_whole_48, bytes);
    measure("product of all", [&] { fourier_whole_48<<<grid, THREADS, bytes>>>(plane, (Wave*)matrices, from, second, nullptr, active); });
    measure("product of 7", [&] { fourier_whole_48<<<grid, THREADS, bytes>>>(plane, (Wave*)matrices, from, second, few_whole, active); });
    std::vector<float> a(2 * waves), b(2 * waves);
    fourier_product_48<<<grid, THREADS>>>(plane, (Wave*)matrices, 1, from, product, nullptr, active);
    fourier_whole_48<<<grid, THREADS, bytes>>>(plane, (Wave*)matrices, from, second, nullptr, active);
    cudaMemcpy(a.data(), to, 8 * waves, cudaMemcpyDeviceToHost);
    cudaMemcpy(b.data(), other, 8 * waves, cudaMemcpyDeviceToHost);
    double difference = 0.0, size = 0.0;
    for (size_t i = 0; i < 2 * waves; i++) difference += (a[i] - b[i]) * (double)(a[i] - b[i]), size += a[i] * (double)a[i];
    printf("they differ by %.3g\n", sqrt(difference / size));
    measure("product of changes", [&] { fourier_changes_48<<<grid, CHANGES_THREADS(2), 2 * 48 * 48 * sizeof(Wave)>>>(plane, (Wave*)matrices, from, from, flows, active); });
    Progress start = {INFINITY, 0, 0};
    Samples samples = {of(std::vector<Progress>(TUNED_BATCH, start)), room<Report>(TUNED_BATCH), active, of(std::vector<u32>(1, TUNED_BATCH)), room<Distance>(TUNED_BATCH)};
    Course course = {{-1.0, RELATIVE, 100000, 0, 0}, samples, room<Distance>(TUNED_BATCH * 6), arrived, flows};
    Reflection by = {1.0f, 0.0f, 1.0f}, half = {1.0f, 0.0f, 0.5f};
    // Where changes go beside the step that they are made of.
    Waters beside = {(Wave*)whole, (u32*)whole};
    const int ripple = Ripples<32, KINKED>::BYTES, sloping_ripple = Ripples<32, SLOPES>::BYTES, planes = 32 * (16 * 8 + 8) * 8 + 32 * 33 * 8 * 4;
    allow(fourier_ripple_kinked_32, ripple), allow(fourier_ripple_slopes_32, sloping_ripple);
    allow(fourier_forth_32, planes), allow(fourier_back_32, planes);
    dim3 blocks(TUNED_BATCH * 6), ripple_blocks(TUNED_BATCH * TUNED_CHANNELS / Ripples<32, KINKED>::CHANNELS);
    // Iteration 1 of many: all samples go on sending changes.
    auto products = [&] { fourier_changes_48<<<grid, CHANGES_THREADS(2), 2 * 48 * 48 * sizeof(Wave)>>>(plane, (Wave*)matrices, from, from, flows, active); };
    auto kinked = [&] { fourier_ripple_kinked_32<<<ripple_blocks, RIPPLE_THREADS, ripple>>>(plane, course, 1, by, from, from, slopes, g); };
    auto sloping = [&] { fourier_ripple_slopes_32<<<ripple_blocks, RIPPLE_THREADS, sloping_ripple>>>(plane, course, 1, by, from, from, slopes, g); };
    auto half_kinked = [&] { fourier_ripple_kinked_32<<<ripple_blocks, RIPPLE_THREADS, ripple>>>(plane, course, 1, half, from, beside, slopes, g); };
    auto half_sloping = [&] { fourier_ripple_slopes_32<<<ripple_blocks, RIPPLE_THREADS, sloping_ripple>>>(plane, course, 1, half, from, beside, slopes, g); };
    auto resumed = [&] { fourier_resumed_48<<<grid, CHANGES_THREADS(2), 2 * 48 * 48 * sizeof(Wave)>>>(plane, (Wave*)matrices, beside, from, flows, active); };
    u32 *ones = of(std::vector<u32>(TUNED_BATCH, 1)), *changes_before = pairs(waves, 0x20002000u);
    Progress* progress_before = of(std::vector<Progress>(TUNED_BATCH, start));
    Flow* flows_before = of(std::vector<Flow>(TUNED_BATCH, some));
    auto again = [&] {
        cudaMemcpyAsync(active, ones, TUNED_BATCH * sizeof(u32), cudaMemcpyDeviceToDevice);
        cudaMemcpyAsync(changes, changes_before, waves * sizeof(u32), cudaMemcpyDeviceToDevice);
        cudaMemcpyAsync(samples.progress, progress_before, TUNED_BATCH * sizeof(Progress), cudaMemcpyDeviceToDevice);
        cudaMemcpyAsync(flows, flows_before, TUNED_BATCH * sizeof(Flow), cudaMemcpyDeviceToDevice);
        products();
    };
    u32* masks = pairs(TUNED_BATCH * TUNED_SIDE * TUNED_CHANNELS, 0u);
    allow(fourier_ripple_masks_32, ripple);
    measure("ripple, kinked", kinked, again);
    measure("ripple, slopes", sloping, again);
    measure("ripple, masks", [&] { fourier_ripple_masks_32<<<ripple_blocks, RIPPLE_THREADS, ripple>>>(plane, course, 1, by, from, from, (const float*)masks, g); }, again);
    measure("ripple, kinked, half of a step", half_kinked, again);
    measure("product after it", resumed, [&] { again(), half_kinked(); });
    measure("8 times ripple and changes, kinked", [&] { for (int i = 0; i < 8; i++) kinked(), products(); }, again);
    measure("8 times ripple and changes, slopes", [&] { for (int i = 0; i < 8; i++) sloping(), products(); }, again);
    measure("a period with half a step, kinked", [&] { for (int i = 0; i < 8; i++) i == 6 ? (half_kinked(), resumed()) : (kinked(), products()); }, again);
    measure("a period with half a step, slopes", [&] { for (int i = 0; i < 8; i++) i == 6 ? (half_sloping(), resumed()) : (sloping(), products()); }, again);
    std::vector<u32> still(TUNED_BATCH);
    cudaMemcpy(still.data(), active, 4 * TUNED_BATCH, cudaMemcpyDeviceToHost);
    printf("%d samples are active\n", (int)std::count(still.begin(), still.end(), 1u));
    measure("there", [&] { fourier_forth_32<<<blocks, PLANE_THREADS, planes>>>(plane, 1.0f, slopes, 0.0f, (Wave*)to); });
    measure("back", [&] { fourier_back_32<<<blocks, PLANE_THREADS, planes>>>(plane, (Wave*)to, 1.0f, slopes, 0.0f, other); });
}
#endif
