// An iteration of samples whose changes come back and which send changes: as `plane_step`, with the columns' transforms on tensor cores.
// Changes are f16, so products of f16 with sums in f32 lose nothing that is not lost already.
//
// A complex column of N numbers is 2N real ones, (re, im) of each after the other, which is how a lane has two neighbours of the sum. The
// rows of the result are re of eight rows and then im of these, so that a lane gets both of a number, and of the columns it gets two
// channels: back, a thread has its row of the image, of all columns, as `rows_in` reads it. The turns are f16.
#pragma once
#include "fourier.cuh"

__device__ inline u32 swapped(u32 pair) { return pair >> 16 | pair << 16; }
// Pairs (re, im) of f16: i x; x with the other sign of im.
__device__ inline u32 times_i(u32 pair) { return swapped(pair) ^ 0x8000u; }
__device__ inline u32 conjugate(u32 pair) { return pair ^ 0x80000000u; }

template <u32 N>
struct Ripples {
    static constexpr u32 HALF = N / 2, CHANNELS = Frame<N>::CHANNELS, STEPS = (N + 7) / 8, WARPS = PLANE_THREADS / 32;
    // Columns of a warp when they are sent.
    static constexpr u32 COLUMNS = (HALF + WARPS - 1) / WARPS;
    static_assert(CHANNELS == 8 && N % 4 == 0, "a tile has eight channels, and a step of a sum four or eight numbers");

    Frame<N>& frame;
    // [column][row][channel]: the HALF + 1 columns that come, and in their place the HALF that go, of which the first has columns 0 and
    // HALF in it.
    u32* waves;
    const u32* turns;
    // From a frequency to the next.
    u64 stride;
    u32 lane, warp, place, line;

    __device__ Ripples(Frame<N>& frame, const u32* turns) : frame(frame), turns(turns) {
        waves = (u32*)launch_memory;
        frame.image = (float*)(waves + (HALF + 1) * N * CHANNELS);
        stride = (u64)frame.plane.batch * frame.plane.padded;
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        place = lane % 4;
        line = lane / 4;
    }
    __device__ u64 wave(u32 column, u32 row) const { return frame.plane.spectrum_at(column, row, frame.sample) + frame.first; }

    // Brings the changes and the block's share of g to shared memory, through registers, of which there are enough now: with copies that
    // pass these by (`Frame::fetch`), each waits until the one before has read its address (half of the kernel's time, by ncu).
    __device__ void fetch(const u32* changes, const float* g) {
        constexpr u32 PASS = PLANE_THREADS / 2, SPECTRUM = (HALF + 1) * N, PIXELS = N * N;
        u32 at = threadIdx.x / 2, c = threadIdx.x % 2 * 4;
        const u32* from = changes + wave(0, 0) + c;
        const float* pixels = g + frame.sample * PIXELS * frame.plane.channels + frame.first + c;
        uint4 spectrum[(SPECTRUM + PASS - 1) / PASS];
        float4 image[(PIXELS + PASS - 1) / PASS];
#pragma unroll
        for (u32 i = 0; i * PASS < SPECTRUM; i++)
            if ((i + 1) * PASS <= SPECTRUM || i * PASS + at < SPECTRUM) spectrum[i] = __ldcg((const uint4*)(from + (i * PASS + at) * stride));
#pragma unroll
        for (u32 i = 0; i * PASS < PIXELS; i++)
            if ((i + 1) * PASS <= PIXELS || i * PASS + at < PIXELS)
                image[i] = __ldcg((const float4*)(pixels + (u64)(i * PASS + at) * frame.plane.channels));
#pragma unroll
        for (u32 i = 0; i * PASS < SPECTRUM; i++)
            if ((i + 1) * PASS <= SPECTRUM || i * PASS + at < SPECTRUM) *(uint4*)(waves + (i * PASS + at) * CHANNELS + c) = spectrum[i];
#pragma unroll
        for (u32 i = 0; i * PASS < PIXELS; i++) {
            u32 pixel = i * PASS + at;
            if ((i + 1) * PASS <= PIXELS || pixel < PIXELS)
                *(float4*)(frame.image + pixel / N * Frame<N>::PIXELS + pixel % N * CHANNELS + c) = image[i];
        }
    }

    // The two rows of a tile's step: entries 8 step + place and, four further on, of what is summed over, where there are such.
    template <class A, class B>
    __device__ void multiply(float (&sums)[4], const u32 (&a)[4], u32 step, A first, B second) const {
        multiply_f16(sums, a, first(), 8 * step + 4 < N ? second() : 0u);
    }

    // The thread's row of what came: columns back, then the row.
    __device__ void row_in(float (&re)[N], float (&im)[N]) const {
        float sums[HALF][4] = {};
        u32 y = threadIdx.x / 4;
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u32 near = turns[(8 * step + place) * y % N], far = turns[(8 * step + 4 + place) * y % N];
            u32 a[4] = {conjugate(near), swapped(near), conjugate(far), swapped(far)};
            const u32* from = waves + (8 * step + place) * CHANNELS + line;
#pragma unroll
            for (u32 k = 0; k < HALF; k++) {
                const u32* column = from + k * N * CHANNELS;
                multiply(sums[k], a, step, [&] { return column[0]; }, [&] { return column[4 * CHANNELS]; });
            }
            const u32* last = from + HALF * N * CHANNELS;
            multiply(sums[0], a, step, [&] { return times_i(last[0]); }, [&] { return times_i(last[4 * CHANNELS]); });
        }
        re[0] = sums[0][0];
        im[0] = sums[0][1];
        re[HALF] = sums[0][2];
        im[HALF] = sums[0][3];
#pragma unroll
        for (u32 k = 1; k < HALF; k++) joined<N>(re, im, k, {{sums[k][0], sums[k][2]}, {sums[k][1], sums[k][3]}});
        transform<true, N>(re, im);
    }

    // The thread's row of what goes.
    __device__ void row_out(float (&re)[N], float (&im)[N]) {
        transform<false, N>(re, im);
        u32* to = waves + frame.y() * CHANNELS + frame.channel();
        *(uint2*)to = {narrow({re[0], re[HALF]}), narrow({im[0], im[HALF]})};
#pragma unroll
        for (u32 k = 1; k < HALF; k++) {
            Waves both = parted<N>(re, im, k);
            *(uint2*)(to + k * N * CHANNELS) = {narrow(both.a), narrow(both.b)};
        }
    }

    // The warp's columns of what goes, transformed; all rows are there.
    __device__ void columns_out(u32* changes) const {
        u32 b[COLUMNS][STEPS][2];
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++)
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                const u32* from = waves + (min(COLUMNS * warp + i, HALF - 1) * N + 8 * step + place) * CHANNELS + line;
                b[i][step][0] = from[0];
                b[i][step][1] = 8 * step + 4 < N ? from[4 * CHANNELS] : 0u;
            }
        // Column 0 is (0, HALF), which are real: of a warp's columns the first may be that one.
        u32 kept = warp == 0 ? 0xffffu : ~0u;
        u32* to = changes + wave(COLUMNS * warp, line) + 2 * place;
        u32* last_to = changes + wave(HALF, line) + 2 * place;
#pragma unroll 1
        for (u32 tile = 0; tile < STEPS; tile++) {
            u32 row = 8 * tile + line;
            float sums[COLUMNS][4] = {}, last[4] = {};
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                u32 near = turns[(8 * step + place) * row % N], far = turns[(8 * step + 4 + place) * row % N];
                u32 a[4] = {near, times_i(near), far, times_i(far)};
#pragma unroll
                for (u32 i = 0; i < COLUMNS; i++) {
                    u32 mask = i == 0 ? kept : ~0u;
                    multiply_f16(sums[i], a, b[i][step][0] & mask, b[i][step][1] & mask);
                }
                multiply_f16(last, a, b[0][step][0] >> 16, b[0][step][1] >> 16);
            }
            auto put = [](u32* to, const float (&sums)[4]) {
                *(uint2*)to = {narrow({sums[0], sums[2]}), narrow({sums[1], sums[3]})};
            };
            if (N % 8 != 0 && row >= N) break;
#pragma unroll
            for (u32 i = 0; i < COLUMNS; i++)
                if (HALF % WARPS == 0 || COLUMNS * warp + i < HALF) put(to + i * N * stride, sums[i]);
            if (warp == 0) put(last_to, last);
            to += 8 * stride;
            last_to += 8 * stride;
        }
    }
};

// One iteration from the products on, of rippling samples. Channels are multiples of eight; the measure is the relative one.
template <u32 N, u32 KIND>
__device__ void ripple_step(const Plane& plane, const Course& course, u32 iteration, const Reflection& by, u32* changes, const float* slopes, float* g) {
    Frame<N> frame(plane);
    if (course.samples.active[frame.sample] != 1) return;
    Flow flow = course.flows[frame.sample];
    if (!is_rippling(flow)) return;
    // Known, so that nothing asks for it again.
    flow.whole_back = flow.whole_next = 0;
    __shared__ u32 turns[N];
    Ripples<N> ripples(frame, turns);
    if (threadIdx.x < N) {
        float sine, cosine;
        sincospif(2.0f * threadIdx.x / N, &sine, &cosine);
        turns[threadIdx.x] = pair_f16(cosine, sine);
    }
    ripples.fetch(changes, g);
    __syncthreads();
    PairPath path;
    float re[N], im[N];
    // Every lane takes part in the products.
    ripples.row_in(re, im);
    __syncthreads();
    if (frame.has_row()) {
        RowStep<N, KIND> row(frame, flow, by, nullptr, slopes);
        row.advance(RELATIVE, re, im, g, path);
        ripples.row_out(re, im);
    }
    __syncthreads();
    ripples.columns_out(changes);
    conclude_part(frame, course, iteration, RELATIVE, path);
}

#define RIPPLE(N, KIND, name)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(PLANE_THREADS, 4)                                                                           \
    fourier_ripple_##name##_##N(Plane plane, Course course, u32 iteration, Reflection by, u32* changes, const float* slopes, float* g) {     \
        ripple_step<N, KIND>(plane, course, iteration, by, changes, slopes, g);                                                              \
    }
#define RIPPLES(N)             \
    RIPPLE(N, SLOPES, slopes)  \
    RIPPLE(N, KINKED, kinked)  \
    RIPPLE(N, PLAIN_TANH, tanh)
