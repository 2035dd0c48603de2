// An iteration of samples whose changes come back and which send changes: as `plane_step`, with all transforms on tensor cores.
// Changes are f16, so products of f16 with sums in f32 lose little that is not lost already (CHANGE_ROUNDING counts it). The turns are f16.
//
// A complex number is two real ones, (re, im) one after the other, which is how a lane has two neighbours of a sum. Columns: the rows of a
// product's tile are re of eight rows of the image and then im of these, so that a lane gets both of a number; its columns are the channels.
// Rows: the columns of a row spectrum, 0 and N / 2 as one, are what is summed over, and a lane gets pixels `line`, 8 + line, .. of two channels.
// What is sent goes the same way back; in between tiles are turned round within a warp.
#pragma once
#include "fourier.cuh"

__device__ inline u32 swapped(u32 pair) { return pair >> 16 | pair << 16; }
// Pairs (re, im) of f16: i x; x with the other sign of im.
__device__ inline u32 times_i(u32 pair) { return swapped(pair) ^ 0x8000u; }
__device__ inline u32 conjugate(u32 pair) { return pair ^ 0x80000000u; }

// The transpose of an 8 x 8 tile of f16, of which a lane has two neighbours of row lane / 4.
__device__ inline u32 turned_tile(u32 pair) {
#ifdef EMULATED
    return emu::warp_call(pair, [](const u32* of, u32 lane) {
        u32 turned = 0;
        for (u32 h = 0; h < 2; h++) {
            u32 row = lane % 4 * 2 + h, column = lane / 4;
            turned |= (of[row * 4 + column / 2] >> column % 2 * 16 & 0xffffu) << 16 * h;
        }
        return turned;
    });
#else
    u32 turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
    return turned;
#endif
}

template <u32 N, u32 KIND>
struct Ripples {
    static constexpr u32 HALF = N / 2, CHANNELS = Frame<N>::CHANNELS, STEPS = (N + 7) / 8, WARPS = PLANE_THREADS / 32;
    // From a column to the next in shared memory: a little more than its numbers, so that neighbours lie in other banks.
    static constexpr u32 COLUMN = N * CHANNELS + 8;
    // Columns of a warp when they are sent, and rows of it; eights of a row's pixels.
    static constexpr u32 COLUMNS = (HALF + WARPS - 1) / WARPS, ROWS = 8, EIGHTS = 4;
    static_assert(CHANNELS == 8 && N % 4 == 0, "a tile has eight channels, and a step of a sum four or eight numbers");
    static_assert(N <= WARPS * ROWS && N <= 8 * EIGHTS && HALF <= 16, "all rows, pixels and columns have their place");

    const Frame<N>& frame;
    // [column][row][channel]: the HALF + 1 columns that come, and in their place the HALF that go, of which the first has columns 0 and
    // HALF in it.
    u32* waves;
    // (cos, sin) of j / N of a turn.
    const u32* turns;
    // From a frequency to the next.
    u64 stride;
    u32 lane, warp, place, line;

    __device__ Ripples(const Frame<N>& frame, const u32* turns) : frame(frame), turns(turns) {
        waves = (u32*)launch_memory;
        stride = (u64)frame.plane.batch * frame.plane.padded;
        lane = threadIdx.x % 32;
        warp = threadIdx.x / 32;
        place = lane % 4;
        line = lane / 4;
    }
    __device__ u64 wave(u32 column, u32 row) const { return frame.plane.spectrum_at(column, row, frame.sample) + frame.first; }

    // Brings the changes to shared memory.
    __device__ void fetch(const u32* changes) {
        constexpr u32 PASS = PLANE_THREADS / 2, SPECTRUM = (HALF + 1) * N;
        u32 at = threadIdx.x / 2, c = threadIdx.x % 2 * 4;
        const u32* from = changes + wave(0, 0) + c;
        uint4 spectrum[(SPECTRUM + PASS - 1) / PASS];
#pragma unroll
        for (u32 i = 0; i * PASS < SPECTRUM; i++)
            if ((i + 1) * PASS <= SPECTRUM || i * PASS + at < SPECTRUM) spectrum[i] = __ldcg((const uint4*)(from + (i * PASS + at) * stride));
#pragma unroll
        for (u32 i = 0; i * PASS < SPECTRUM; i++) {
            u32 wave = i * PASS + at;
            if ((i + 1) * PASS <= SPECTRUM || wave < SPECTRUM) *(uint4*)(waves + wave / N * COLUMN + wave % N * CHANNELS + c) = spectrum[i];
        }
    }

    // Columns back, of the warp's rows: all threads of the block come here, and find the rows in `waves` afterwards.
    __device__ void columns_in() {
        u32 y = warp * ROWS + line, a[STEPS][4], rows[HALF][2];
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            u32 near = turns[(8 * step + place) * y % N], far = turns[(8 * step + 4 + place) * y % N];
            a[step][0] = conjugate(near), a[step][1] = swapped(near), a[step][2] = conjugate(far), a[step][3] = swapped(far);
        }
        const u32* from = waves + place * CHANNELS + line;
#pragma unroll
        for (u32 k = 0; k < HALF; k++) {
            float sums[4] = {};
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                const u32* some = from + k * COLUMN + 8 * step * CHANNELS;
                multiply_f16(sums, a[step], some[0], 8 * step + 4 < N ? some[4 * CHANNELS] : 0u);
                if (k > 0) continue;
                some += HALF * COLUMN;
                multiply_f16(sums, a[step], times_i(some[0]), 8 * step + 4 < N ? times_i(some[4 * CHANNELS]) : 0u);
            }
            rows[k][0] = narrow({sums[0], sums[2]});
            rows[k][1] = narrow({sums[1], sums[3]});
        }
        // Nobody reads the columns any more, and all matrices are made.
        __syncthreads();
        if (y < N)
#pragma unroll
            for (u32 k = 0; k < HALF; k++) *(uint2*)(waves + k * COLUMN + y * CHANNELS + 2 * place) = {rows[k][0], rows[k][1]};
        __syncwarp();
    }

    // A number of a transform's matrix: what column k of a row's spectrum has of its pixel x and the other way round, re and im. The first
    // column is 0 and HALF.
    __device__ u32 turn_of(u32 k, u32 x) const { return k == 0 ? (x % 2 ? 0xbc003c00u : 0x3c003c00u) : conjugate(turns[k * x % N]); }
    // A lane's share of the matrices of the rows' transforms, each a tile of it for a step of the sum: back (0 to 3), where columns count twice
    // since half of them are missing, and there (4 to 7), where the rows of a tile are re of eight columns and then im of these.
    static constexpr u32 MATRICES = 8;
    __device__ u32 share_of(u32 matrix, u32 i) const {
        u32 tile = matrix / 2 % 2, step = matrix % 2;
        if (matrix < 4) {
            u32 k = 8 * step + i / 2 * 4 + place;
            float2 turn = of_f16(turn_of(k, 16 * tile + i % 2 * 8 + line));
            float times = k == 0 ? 1.0f : 2.0f;
            return pair_f16(times * turn.x, times * turn.y);
        }
        u32 k = 8 * tile + line, x = 16 * step + i / 2 * 8 + 2 * place, one = turn_of(k, x), two = turn_of(k, x + 1);
        return i % 2 ? one >> 16 | (two & 0xffff0000u) : (one & 0xffffu) | two << 16;
    }
    // Each warp makes some of them, for all.
    __device__ void make_matrices(uint4* matrices) const {
        for (u32 matrix = warp; matrix < MATRICES; matrix += WARPS)
            matrices[matrix * 32 + lane] = {share_of(matrix, 0), share_of(matrix, 1), share_of(matrix, 2), share_of(matrix, 3)};
    }

    // A lane's pixels of a row: g, and the slopes of an adjoint, or the row's masks of two channels.
    struct Pixels {
        float2 g[EIGHTS], slopes[EIGHTS];
        uint2 masks;
    };
    __device__ bool has_pixel(u32 eight) const { return N == 8 * EIGHTS || 8 * eight + line < N; }
    // Where the first of a lane's pixels of a row is; from an eight to the next.
    __device__ u64 first_of(u32 y) const { return ((frame.sample * N + y) * N + line) * frame.plane.channels + frame.first + 2 * place; }
    __device__ u32 eight_step() const { return 8 * frame.plane.channels; }
    __device__ void bring(u32 y, u64 at, const float* g, const float* slopes, Pixels& pixels) const {
#pragma unroll
        for (u32 i = 0; i < EIGHTS; i++) {
            bool there = y < N && has_pixel(i);
            pixels.g[i] = there ? __ldcg((const float2*)(g + at + i * eight_step())) : float2{0.0f, 0.0f};
            if (KIND == SLOPES) pixels.slopes[i] = there ? __ldg((const float2*)(slopes + at + i * eight_step())) : float2{0.0f, 0.0f};
        }
        if (KIND == MASKS && y < N)
            pixels.masks = __ldg((const uint2*)((const u32*)slopes + (frame.sample * N + y) * frame.plane.channels + frame.first + 2 * place));
    }
    // What is sent of a pixel's two channels.
    __device__ Wave sent_of(const Reflection& by, const Flow& flow, const Wave& old, const Wave& next, float2 slopes, uint2 masks, u32 eight) const {
        if constexpr (KIND == MASKS) {
            float below = fmaf(2.0f, by.factor, -1.0f);
            u32 x = 8 * eight + line;
            return {(masks.x >> x & 1 ? 1.0f : below) * (next.re - old.re) * flow.scale_next,
                    (masks.y >> x & 1 ? 1.0f : below) * (next.im - old.im) * flow.scale_next};
        } else {
            return {sent<KIND>(by, slopes.x, old.re, next.re, flow), sent<KIND>(by, slopes.y, old.im, next.im, flow)};
        }
    }

    // The warp's rows: their pixels, g, and the row spectra of what is sent, in the place of those that came.
    __device__ void rows(const uint4* matrices, const Flow& flow, const Reflection& by, const float* slopes, float* g, PairPath& path) const {
        u32 shares[MATRICES][4];
#pragma unroll
        for (u32 matrix = 0; matrix < MATRICES; matrix++) {
            uint4 four = matrices[matrix * 32 + lane];
            shares[matrix][0] = four.x, shares[matrix][1] = four.y, shares[matrix][2] = four.z, shares[matrix][3] = four.w;
        }
        float back = 1.0f / flow.scale_back;
        Pixels pixels;
        u64 at = first_of(warp * ROWS);
        bring(warp * ROWS, at, g, slopes, pixels);
#pragma unroll 1
        for (u32 row = 0; row < ROWS; row++) {
            u32 y = warp * ROWS + row;
            if (y >= N) break;
            u32* spectrum = waves + y * CHANNELS;
            float sums[2][4] = {};
#pragma unroll
            for (u32 step = 0; step < 2; step++) {
                u32 b[2];
#pragma unroll
                for (u32 h = 0; h < 2; h++) {
                    u32 k = 8 * step + 4 * h + place;
                    b[h] = k < HALF ? spectrum[k * COLUMN + line] : 0u;
                }
#pragma unroll
                for (u32 tile = 0; tile < 2; tile++) multiply_f16(sums[tile], shares[2 * tile + step], b[0], b[1]);
            }
            Wave old[EIGHTS], next[EIGHTS];
            float2 d[EIGHTS];
#pragma unroll
            for (u32 i = 0; i < EIGHTS; i++) {
                old[i] = {pixels.g[i].x, pixels.g[i].y};
                next[i] = {fmaf(sums[i / 2][i % 2 * 2], back, old[i].re), fmaf(sums[i / 2][i % 2 * 2 + 1], back, old[i].im)};
                if (!has_pixel(i)) next[i] = {0.0f, 0.0f};
                d[i] = KIND == SLOPES ? pixels.slopes[i] : float2{0.0f, 0.0f};
            }
            uint2 masks = pixels.masks;
            u64 next_at = at + N * frame.plane.channels;
            bring(row + 1 < ROWS ? y + 1 : N, next_at, g, slopes, pixels);
            path.add(RELATIVE, old, next);
            u32 tiles[EIGHTS];
#pragma unroll
            for (u32 i = 0; i < EIGHTS; i++) {
                // By name, since two numbers are else stored one by one.
                if (has_pixel(i)) __stcg((float2*)(g + at + i * eight_step()), float2{next[i].re, next[i].im});
                Wave both = sent_of(by, flow, old[i], next[i], d[i], masks, i);
                tiles[i] = turned_tile(has_pixel(i) ? narrow(both) : 0u);
            }
            // Every lane has read the row's spectrum.
            __syncwarp();
#pragma unroll
            for (u32 tile = 0; tile < 2; tile++) {
                float out[4] = {};
                multiply_f16(out, shares[4 + 2 * tile], tiles[0], tiles[1]);
                multiply_f16(out, shares[5 + 2 * tile], tiles[2], tiles[3]);
                u32 k = 8 * tile + line;
                if (k < HALF) *(uint2*)(spectrum + k * COLUMN + 2 * place) = {narrow({out[0], out[2]}), narrow({out[1], out[3]})};
            }
            at = next_at;
        }
    }

    // The warp's columns of what goes, transformed; all rows are there.
    __device__ void columns_out(u32* changes) const {
        u32 b[COLUMNS][STEPS][2];
#pragma unroll
        for (u32 i = 0; i < COLUMNS; i++)
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                const u32* from = waves + min(COLUMNS * warp + i, HALF - 1) * COLUMN + (8 * step + place) * CHANNELS + line;
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

// One iteration from the products on, of rippling samples. Channels are multiples of eight; the measure is the relative one. `slopes` may be masks.
template <u32 N, u32 KIND>
__device__ void ripple_step(const Plane& plane, const Course& course, u32 iteration, const Reflection& by, u32* changes, const float* slopes, float* g) {
    Frame<N> frame(plane);
    if (course.samples.active[frame.sample] != 1) return;
    Flow flow = course.flows[frame.sample];
    if (!is_rippling(flow)) return;
    // Known, so that nothing asks for it again.
    flow.whole_back = flow.whole_next = 0;
    __shared__ u32 turns[N];
    Ripples<N, KIND> ripples(frame, turns);
    if (threadIdx.x < N) {
        float sine, cosine;
        sincospif(2.0f * threadIdx.x / N, &sine, &cosine);
        turns[threadIdx.x] = pair_f16(cosine, sine);
    }
    ripples.fetch(changes);
    __syncthreads();
    __shared__ uint4 matrices[Ripples<N, KIND>::MATRICES * 32];
    ripples.make_matrices(matrices);
    ripples.columns_in();
    PairPath path;
    ripples.rows(matrices, flow, by, slopes, g, path);
    __syncthreads();
    ripples.columns_out(changes);
    conclude_part(frame, course, iteration, RELATIVE, path);
}

#define RIPPLE(N, KIND, name)                                                                                                                \
    extern "C" __global__ void __launch_bounds__(PLANE_THREADS, 6)                                                                           \
    fourier_ripple_##name##_##N(Plane plane, Course course, u32 iteration, Reflection by, u32* changes, const float* slopes, float* g) {     \
        ripple_step<N, KIND>(plane, course, iteration, by, changes, slopes, g);                                                              \
    }
#define RIPPLES(N)             \
    RIPPLE(N, SLOPES, slopes)  \
    RIPPLE(N, KINKED, kinked)  \
    RIPPLE(N, PLAIN_TANH, tanh) \
    RIPPLE(N, MASKS, masks)
