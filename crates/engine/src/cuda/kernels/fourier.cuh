// What the kernels of Peaceman-Rachford's splitting in the frequency domain have in common (fourier.cu), and those for whole images, of
// which there is a file for each size.
#pragma once
#include "copies.cuh"
#include "mma.cuh"
#include "prox.cuh"
#include "solve.cuh"

// A complex number, and those of two neighbouring channels.
struct __align__(8) Wave {
    float re, im;
};
struct __align__(16) Waves {
    Wave a, b;
};

// Images [sample][row][column][channel]; row spectra [sample][row][column][channel], spectra [column][row][sample][channel], both with
// the half of the columns and an even number of channels.
struct Plane {
    u32 batch, height, width, half, channels, padded;
    __device__ u64 row_at(u64 sample, u32 y) const { return (sample * height + y) * half * padded; }
    __device__ u64 spectrum_at(u32 kx, u32 ky, u64 sample) const { return (((u64)kx * height + ky) * batch + sample) * padded; }
};

// A complex number as f16.
__device__ inline u32 narrow(Wave x) { return pair_f16(x.re, x.im); }
__device__ inline Wave widen(u32 both) {
    float2 x = of_f16(both);
    return {x.x, x.y};
}

// What a sample's waves are when they come back and when they are sent again: all of u (f32), or its change times a power of two (f16).
struct Flow {
    u32 whole_back, whole_next;
    float scale_back, scale_next;
    // What the roundings since all of u was sent may have added up to; where all of it comes back, what that of the next change may be.
    double error;
    // What is left of the last step of g when the next one is made, times the ratio of their scales; 0 unless the last one went half of the way.
    float left;
    u32 unused;
};
__device__ inline bool is_whole(const Flow* flows, u64 sample) { return !flows || flows[sample].whole_back; }

// Waves on their way: those of whole samples, and the changes of others.
struct Waters {
    Wave* whole;
    u32* changes;
};

// Whether a sample has changes coming back and sends changes: those are moved by other kernels, where there are such (ripples.cuh).
__device__ inline bool is_rippling(const Flow& flow) { return !flow.whole_back && !flow.whole_next; }

// What the proximal step is made of.
struct Reflection {
    float t;
    // What a kinked one multiplies negative numbers by.
    float factor;
    // How much of the way to its image the iteration goes.
    float part;
};

// What an equation is given, an injection or a gradient x: the image of g is C (u + a x + b) + c x + d.
struct Source {
    const float* x;
    float a, b, c, d;
};

// ---- transforms in registers ----------------------------------------------------------------------------------------

constexpr double series(double x, int first) {
    // x^k / k! with alternating signs, k = first, first + 2, ...: the cosine (0) or the sine (1).
    double term = first ? x : 1.0, sum = term;
    for (int k = first + 1; k < 60; k += 2) {
        term *= -x * x / (k * (k + 1));
        sum += term;
    }
    return sum;
}

template <u32 N>
struct Turns {
    float cosines[N], sines[N];
    constexpr Turns() : cosines(), sines() {
        for (u32 j = 0; j < N; j++) {
            double angle = 6.283185307179586 * (double)j / N;
            if (2 * j > N) angle -= 6.283185307179586;
            cosines[j] = (float)series(angle, 0);
            sines[j] = (float)series(angle, 1);
        }
    }
};

template <bool BACK, u32 N>
__device__ inline void small_transform(float (&re)[N], float (&im)[N]) {
    if constexpr (N == 2) {
        float a = re[0], b = im[0];
        re[0] = a + re[1];
        im[0] = b + im[1];
        re[1] = a - re[1];
        im[1] = b - im[1];
    } else if constexpr (N == 4) {
        float a = re[0] + re[2], b = im[0] + im[2], c = re[0] - re[2], d = im[0] - im[2];
        float e = re[1] + re[3], f = im[1] + im[3], g = re[1] - re[3], h = im[1] - im[3];
        if (BACK) {
            g = -g;
            h = -h;
        }
        re[0] = a + e;
        im[0] = b + f;
        re[1] = c + h;
        im[1] = d - g;
        re[2] = a - e;
        im[2] = b - f;
        re[3] = c - h;
        im[3] = d + g;
    } else {
        // Odd: entries j and N - j together.
        constexpr Turns<N> turns;
        constexpr u32 M = N / 2;
        float sum_re[M], sum_im[M], gap_re[M], gap_im[M], first_re = re[0], first_im = im[0];
#pragma unroll
        for (u32 j = 1; j <= M; j++) {
            sum_re[j - 1] = re[j] + re[N - j];
            sum_im[j - 1] = im[j] + im[N - j];
            gap_re[j - 1] = re[j] - re[N - j];
            gap_im[j - 1] = im[j] - im[N - j];
            re[0] += sum_re[j - 1];
            im[0] += sum_im[j - 1];
        }
#pragma unroll
        for (u32 k = 1; k <= M; k++) {
            float even_re = first_re, even_im = first_im, odd_re = 0.0f, odd_im = 0.0f;
#pragma unroll
            for (u32 j = 1; j <= M; j++) {
                float c = turns.cosines[j * k % N], s = BACK ? -turns.sines[j * k % N] : turns.sines[j * k % N];
                even_re = fmaf(c, sum_re[j - 1], even_re);
                even_im = fmaf(c, sum_im[j - 1], even_im);
                odd_re = fmaf(s, gap_im[j - 1], odd_re);
                odd_im = fmaf(-s, gap_re[j - 1], odd_im);
            }
            re[k] = even_re + odd_re;
            im[k] = even_im + odd_im;
            re[N - k] = even_re - odd_re;
            im[N - k] = even_im - odd_im;
        }
    }
}

// X[k] = the sum over x of exp(-2 pi i k x / N) X[x], or, back, with the other sign.
template <bool BACK, u32 N>
__device__ inline void transform(float (&re)[N], float (&im)[N]) {
    constexpr u32 R = N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : N, M = N / R;
    if constexpr (M == 1) {
        small_transform<BACK, N>(re, im);
    } else {
        constexpr Turns<N> turns;
        float part_re[R][M], part_im[R][M];
#pragma unroll
        for (u32 r = 0; r < R; r++) {
#pragma unroll
            for (u32 m = 0; m < M; m++) {
                part_re[r][m] = re[r + R * m];
                part_im[r][m] = im[r + R * m];
            }
            transform<BACK, M>(part_re[r], part_im[r]);
        }
#pragma unroll
        for (u32 k = 0; k < M; k++) {
            float turned_re[R], turned_im[R];
#pragma unroll
            for (u32 r = 0; r < R; r++) {
                float a = part_re[r][k], b = part_im[r][k];
                float c = turns.cosines[r * k], s = BACK ? turns.sines[r * k] : -turns.sines[r * k];
                turned_re[r] = r * k ? fmaf(a, c, -b * s) : a;
                turned_im[r] = r * k ? fmaf(a, s, b * c) : b;
            }
            small_transform<BACK, R>(turned_re, turned_im);
#pragma unroll
            for (u32 r = 0; r < R; r++) {
                re[k + M * r] = turned_re[r];
                im[k + M * r] = turned_im[r];
            }
        }
    }
}

// The spectra of the two channels at k: the parts of Z that are symmetric and antisymmetric.
template <u32 N>
__device__ inline Waves parted(const float (&re)[N], const float (&im)[N], u32 k) {
    u32 m = (N - k) % N;
    return {{0.5f * (re[k] + re[m]), 0.5f * (im[k] - im[m])}, {0.5f * (im[k] + im[m]), 0.5f * (re[m] - re[k])}};
}

// The other way, for 0 < k < N / 2.
template <u32 N>
__device__ inline void joined(float (&re)[N], float (&im)[N], u32 k, const Waves& in) {
    re[k] = in.a.re - in.b.im;
    im[k] = in.a.im + in.b.re;
    re[N - k] = in.a.re + in.b.im;
    im[N - k] = in.b.re - in.a.im;
}

// The power of two that brings a change to [1/4, 1/2); 1 where there is no such.
__device__ inline float change_scale(double size) {
    if (!(size > 1e-30 && size < 1e30)) return 1.0f;
    int exponent = (int)(__double_as_longlong(size) >> 52) - 1023;
    return __uint_as_float((u32)(127 - 2 - exponent) << 23);
}

// A change is rounded to f16 five times on its way at most, and what it is multiplied by five times (its matrix, and the turns of the
// transforms of ripples.cuh): to 2^-12 each.
#define CHANGE_ROUNDING (10.0 / 4096)
// What rounding may have of the tolerance.
#define ROUNDING_SHARE 0.05
// A sample sends all of u once before its end. What the changes after that add is far below the share if it does so within this many
// tolerances of the end, and then it need not wait for it.
#define AHEAD 6.0
// Samples send all of u in the same iterations (planes.rs): the product for those costs as much for one as for all.
#define WHOLE_PERIOD 4

// What a change that is scaled by a bound of its size, however small it is, is rounded to besides, of that bound: as often, to 2^-25 where the
// bound is 1/4 to 1/2, since f16 have no smaller numbers than 2^-24.
#define LEAST_ROUNDING (10.0 / (1 << 23))

// How the waves are sent in the next iteration, after one that would have changed g by `gap` if it went all of the way, which brought `error`
// with it; `wanted`: the answer will need all of u. What an iteration of changes leaves of a step goes on in the next, whose own is at most what
// the part that was gone has changed: both together are at most `gap`, but may be far less where one undoes the other, while what is sent is
// rounded like its own size.
__device__ inline Flow next_flow(const Flow& flow, u32 iteration, double gap, double error, bool wanted, float part, u64 len) {
    bool whole = (iteration + 1) % WHOLE_PERIOD == 0 && (wanted || gap < error);
    // All of u that comes back next undoes what rounding has brought, which may be far more than the iteration itself still changes.
    double bound = flow.whole_next ? gap + error : gap, rounding = flow.whole_next ? LEAST_ROUNDING * bound : error + CHANGE_ROUNDING * (1.0f - part) * gap;
    float left = is_rippling(flow) ? (1.0f - part) * (flow.scale_next / flow.scale_back) : 0.0f;
    return {flow.whole_next, whole, flow.scale_next, whole ? 1.0f : change_scale(bound / sqrt((double)len)), rounding, left, 0};
}

// ---- whole images -----------------------------------------------------------------------------------------------------

#define PLANE_THREADS 128

// A block's share: some channels of a sample, whole N x N images of them. The channels are even in number. A thread has a row of two
// channels, or a column of the row spectra of one. Columns 0 and N / 2 of those are real and make one complex column.
template <u32 N>
struct Frame {
    static constexpr u32 CHANNELS = N > 16 ? 8 : N > 8 ? 16 : 32, HALF = N / 2, LINES = N * CHANNELS / 2;
    // Row spectra [row][column][channel] and an image [row][column][channel] in shared memory; rows are a little longer, so that
    // neighbours lie in other banks.
    static constexpr u32 ROW = HALF * CHANNELS + 8, PIXELS = N * CHANNELS + CHANNELS;
    static_assert(LINES <= PLANE_THREADS, "a thread has one line");

    const Plane plane;
    u64 sample;
    u32 first, groups;
    Wave* rows;
    float* image;

    __device__ Frame(const Plane& plane) : plane(plane) {
        groups = (plane.padded + CHANNELS - 1) / CHANNELS;
        sample = blockIdx.x / groups;
        first = blockIdx.x % groups * CHANNELS;
        rows = (Wave*)launch_memory;
        image = (float*)(rows + N * ROW);
    }

    // ---- as a thread of rows
    __device__ u32 y() const { return threadIdx.x / (CHANNELS / 2); }
    __device__ u32 channel() const { return threadIdx.x % (CHANNELS / 2) * 2; }
    __device__ bool has_row() const { return threadIdx.x < LINES && first + channel() < plane.channels; }
    __device__ u64 pixel(u32 x) const { return ((sample * N + y()) * N + x) * plane.channels + first + channel(); }
    __device__ Wave fetched(u32 x) const { return *(const Wave*)(image + y() * PIXELS + x * CHANNELS + channel()); }

    // Begins to bring the block's share of x to shared memory.
    __device__ void fetch(const float* x) {
        constexpr u32 QUADS = CHANNELS / 4, PASS = PLANE_THREADS / QUADS;
        u32 c = threadIdx.x % QUADS * 4;
        const float* from = x + sample * N * N * plane.channels + first + c;
        if (first + c >= plane.channels) return;
        bool by_four = plane.channels % 4 == 0, second = first + c + 2 < plane.channels;
#pragma unroll
        for (u32 begin = 0; begin < N * N; begin += PASS) {
            u32 at = begin + threadIdx.x / QUADS;
            if (N * N % PASS != 0 && at >= N * N) break;
            float* to = image + at / N * PIXELS + at % N * CHANNELS + c;
            if (by_four) {
                copy_later<16>(to, from + at * plane.channels);
            } else {
                copy_later<8>(to, from + at * plane.channels);
                if (second) copy_later<8>(to + 2, from + at * plane.channels + 2);
            }
        }
    }

    __device__ void rows_in(float (&re)[N], float (&im)[N]) {
        const Wave* from = rows + y() * ROW + channel();
#pragma unroll
        for (u32 k = 0; k < HALF; k++) {
            Waves in = *(const Waves*)(from + k * CHANNELS);
            if (k == 0) {
                re[0] = in.a.re;
                im[0] = in.b.re;
                re[HALF] = in.a.im;
                im[HALF] = in.b.im;
            } else {
                joined<N>(re, im, k, in);
            }
        }
        transform<true, N>(re, im);
    }

    __device__ void rows_out(float (&re)[N], float (&im)[N]) {
        transform<false, N>(re, im);
        Wave* to = rows + y() * ROW + channel();
        *(Waves*)to = {{re[0], re[HALF]}, {im[0], im[HALF]}};
#pragma unroll
        for (u32 k = 1; k < HALF; k++) *(Waves*)(to + k * CHANNELS) = parted<N>(re, im, k);
    }

    // ---- as a thread of columns
    __device__ u32 kx() const { return threadIdx.x / CHANNELS; }
    __device__ bool has_column() const { return threadIdx.x < LINES && first + threadIdx.x % CHANNELS < plane.padded; }
    __device__ u64 wave(u32 column) const { return plane.spectrum_at(column, 0, sample) + first + threadIdx.x % CHANNELS; }
    __device__ u64 down() const { return (u64)plane.batch * plane.padded; }

    template <class F>
    __device__ void read_column(float (&re)[N], float (&im)[N], F wave_at) {
        u64 at = wave(kx()), step = down();
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            Wave v = wave_at(at + k * step);
            re[k] = v.re;
            im[k] = v.im;
        }
        if (kx() != 0) return;
        at = wave(HALF);
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            Wave v = wave_at(at + k * step);
            re[k] -= v.im;
            im[k] += v.re;
        }
    }

    template <class F>
    __device__ void write_column(const float (&re)[N], const float (&im)[N], F put) {
        u64 at = wave(kx()), step = down();
        if (kx() != 0) {
#pragma unroll
            for (u32 k = 0; k < N; k++) put(at + k * step, {re[k], im[k]});
            return;
        }
        u64 middle = wave(HALF);
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            Waves both = parted<N>(re, im, k);
            put(at + k * step, both.a);
            put(middle + k * step, both.b);
        }
    }

    __device__ void columns_in(const Waters& waves, bool whole) {
        if (!has_column()) return;
        float re[N], im[N];
        if (whole) read_column(re, im, [&](u64 i) { return waves.whole[i]; });
        else read_column(re, im, [&](u64 i) { return widen(waves.changes[i]); });
        transform<true, N>(re, im);
#pragma unroll
        for (u32 k = 0; k < N; k++) rows[k * ROW + threadIdx.x] = {re[k], im[k]};
    }

    __device__ void columns_out(const Waters& waves, bool whole) {
        if (!has_column()) return;
        float re[N], im[N];
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            Wave v = rows[k * ROW + threadIdx.x];
            re[k] = v.re;
            im[k] = v.im;
        }
        transform<false, N>(re, im);
        if (whole) write_column(re, im, [&](u64 i, Wave v) { waves.whole[i] = v; });
        else write_column(re, im, [&](u64 i, Wave v) { waves.changes[i] = narrow(v); });
    }
};

// The spectra of a x + b.
template <u32 N>
__device__ void plane_forth(const Plane& plane, float a, const float* x, float b, Wave* spectra) {
    Frame<N> frame(plane);
    frame.fetch(x);
    await_copies();
    __syncthreads();
    if (frame.has_row()) {
        float re[N], im[N];
#pragma unroll
        for (u32 k = 0; k < N; k++) {
            Wave v = frame.fetched(k);
            re[k] = fmaf(a, v.re, b);
            im[k] = fmaf(a, v.im, b);
        }
        frame.rows_out(re, im);
    }
    __syncthreads();
    frame.columns_out({spectra, nullptr}, true);
}

// The images of spectra, plus a x + b.
template <u32 N>
__device__ void plane_back(const Plane& plane, Wave* spectra, float a, const float* x, float b, float* out) {
    Frame<N> frame(plane);
    frame.fetch(x);
    frame.columns_in({spectra, nullptr}, true);
    await_copies();
    __syncthreads();
    if (!frame.has_row()) return;
    float re[N], im[N];
    frame.rows_in(re, im);
#pragma unroll
    for (u32 k = 0; k < N; k++) {
        Wave v = frame.fetched(k);
        __stcg((float2*)(out + frame.pixel(k)), float2{re[k] + fmaf(a, v.re, b), im[k] + fmaf(a, v.im, b)});
    }
}

// u = 2 prox(g) - g: with slopes (the adjoint's), of a line with a kink at 0, or of tanh with t = 1; MASKS: with the slopes of a line with a
// kink, 1 or what it has below it, a bit for each (`kink_masks`).
enum : u32 { SLOPES, KINKED, PLAIN_TANH, MASKS };
template <u32 KIND>
__device__ inline float reflected(const Reflection& by, float g) {
    // The factor is at most 1.
    if (KIND == KINKED) return fmaxf(g, fmaf(2.0f, by.factor, -1.0f) * g);
    float e = tanhf(g);
    return e + (e - g);
}

// The slope of u = 2 prox(g) - g where the activation's is d; and by a pixel's bit of a mask.
__device__ inline float reflected_slope(const Reflection& by, float d) { return __fdividef(2.0f * d, fmaf(by.t, 1.0f - d, d)) - 1.0f; }
__device__ inline float masked_slope(const Reflection& by, u32 mask, u32 x) { return mask >> x & 1 ? 1.0f : fmaf(2.0f, by.factor, -1.0f); }

// What is sent of u, which was the reflection of `old` and is that of `next`: all of it, or its change. In an adjoint it is linear, with a slope.
template <u32 KIND>
__device__ inline float sent(const Reflection& by, float slope, float old, float next, const Flow& flow) {
    if constexpr (KIND == SLOPES || KIND == MASKS) {
        return slope * (flow.whole_next ? next : next - old) * flow.scale_next;
    } else {
        // Differences of reflections that are rounded themselves: what is sent adds up to u without drift.
        float u = reflected<KIND>(by, next);
        return (flow.whole_next ? u : u - reflected<KIND>(by, old)) * flow.scale_next;
    }
}

// Squares of some pairs, added in f32.
struct Squares {
    float size = 0.0f, difference = 0.0f;
    __device__ void add(const Wave& from, const Wave& to) {
        Wave gap = {to.re - from.re, to.im - from.im};
        size = fmaf(to.re, to.re, fmaf(to.im, to.im, size));
        difference = fmaf(gap.re, gap.re, fmaf(gap.im, gap.im, difference));
    }
};

// How far the pairs of channels that a thread has went.
struct PairPath {
    static constexpr u32 MOST_WARPS = 8;
    Distance d = no_distance();
    __device__ void add(const Squares& squares) {
        d.size += squares.size;
        d.difference += squares.difference;
    }
    template <u32 COUNT>
    __device__ void add(u32 measure, const Wave (&from)[COUNT], const Wave (&to)[COUNT]) {
        Squares squares;
        float high = -INFINITY, low = INFINITY;
#pragma unroll
        for (u32 i = 0; i < COUNT; i++) {
            squares.add(from[i], to[i]);
            high = fmaxf(high, fmaxf(to[i].re - from[i].re, to[i].im - from[i].im));
            low = fminf(low, fminf(to[i].re - from[i].re, to[i].im - from[i].im));
        }
        if (measure == SUP) d = joined(d, {squares.size, 0.0, high, low});
        else add(squares);
    }
    // What each warp of the block has.
    __device__ static Distance* warps() {
        __shared__ Distance of[MOST_WARPS];
        return of;
    }
    // For the block's first thread to find, after a barrier.
    __device__ void leave(u32 measure) {
        if (measure == SUP) {
            d = joined_lanes(d);
        } else {
            for (u32 off = 16; off > 0; off /= 2) {
                d.difference += __shfl_xor_sync(~0u, d.difference, off);
                d.size += __shfl_xor_sync(~0u, d.size, off);
            }
        }
        if (threadIdx.x % 32 == 0) warps()[threadIdx.x / 32] = d;
    }
    __device__ static Distance of_block() {
        Distance all = no_distance();
        for (u32 w = 0; w < blockDim.x / 32; w++) all = joined(all, warps()[w]);
        return all;
    }
};

// Ends a sample if it is to end. One thread. With flows (the measure is the relative one then), a sample that rounding may have come
// too close to goes on until all of its u was sent; where it may not, what rounding may have brought counts.
__device__ inline void conclude_flow(const Stopping& stopping, u32 iteration, const Samples& samples, u32 sample, const Distance& d, Flow* flows, float part, u64 len) {
    Distance known = d;
    if (flows) {
        Flow flow = flows[sample];
        double gap = sqrt(d.difference), error = flow.error + (flow.whole_back ? 0.0 : CHANGE_ROUNDING * gap);
        double residual = residual_of(stopping.measure, d);
        bool rough = !samples.progress[sample].bad && error > ROUNDING_SHARE * stopping.tolerance * sqrt(d.size);
        flows[sample] = next_flow(flow, iteration, gap, error, rough && residual <= AHEAD * stopping.tolerance, part, len);
        if (rough && residual <= stopping.tolerance) {
            if (iteration < stopping.max_iterations) return;
            known.difference = (gap + error) * (gap + error);
        }
    }
    conclude(stopping, iteration, samples, sample, known);
}

// What an iteration needs to know of its solve.
struct Course {
    Stopping stopping;
    Samples samples;
    // Distances of the parts of samples; how many of a sample's are there, 0 between launches.
    Distance* parts;
    u32* arrived;
    // Missing where everything is always sent.
    Flow* flows;
};

// A thread's row of u that came back: g and the answer's distance from it, and the row that is sent.
template <u32 N, u32 KIND>
struct RowStep {
    // What some pixels need is on its way while those before them are worked on: loads do not pass stores.
    static constexpr u32 SOME = 4;
    const Frame<N>& frame;
    const Flow& flow;
    const Reflection& by;
    const Source& source;
    // Whether what comes back is all of u, so that g starts anew.
    bool anew;
    // Slopes, or a row's masks.
    const float* slopes;
    uint2 masks;
    float2 start[SOME], ahead[SOME];

    __device__ RowStep(const Frame<N>& frame, const Flow& flow, const Reflection& by, const Source& source, bool anew, const float* slopes)
        : frame(frame), flow(flow), by(by), source(source), anew(anew), slopes(slopes) {
        if (KIND == MASKS) masks = __ldg((const uint2*)((const u32*)slopes + (frame.sample * N + frame.y()) * frame.plane.channels + frame.first + frame.channel()));
        bring(0);
    }
    __device__ void bring(u32 begin) {
        bool gives = anew || flow.whole_next;
#pragma unroll
        for (u32 i = 0; i < SOME; i++) {
            if (gives) start[i] = __ldg((const float2*)(source.x + frame.pixel(begin + i)));
            if (KIND == SLOPES) ahead[i] = __ldg((const float2*)(slopes + frame.pixel(begin + i)));
        }
    }
    __device__ float2 slopes_at(u32 x, float2 ahead) const {
        if (KIND == SLOPES) return {reflected_slope(by, ahead.x), reflected_slope(by, ahead.y)};
        if (KIND == MASKS) return {masked_slope(by, masks.x, x), masked_slope(by, masks.y, x)};
        return {0.0f, 0.0f};
    }
    __device__ void advance(u32 measure, float (&re)[N], float (&im)[N], float* g, PairPath& path) {
        float back = 1.0f / flow.scale_back;
#pragma unroll
        for (u32 begin = 0; begin < N; begin += SOME) {
            Wave old[SOME], next[SOME];
            float2 slope[SOME], added[SOME];
#pragma unroll
            for (u32 i = 0; i < SOME; i++) {
                u32 x = begin + i;
                old[i] = frame.fetched(x);
                Wave from = anew ? Wave{fmaf(source.c, start[i].x, source.d), fmaf(source.c, start[i].y, source.d)} : old[i];
                next[i] = {fmaf(re[x], back, from.re), fmaf(im[x], back, from.im)};
                if (by.part != 1.0f) next[i] = {fmaf(by.part, next[i].re - old[i].re, old[i].re), fmaf(by.part, next[i].im - old[i].im, old[i].im)};
                slope[i] = slopes_at(x, ahead[i]);
                added[i] = flow.whole_next ? float2{fmaf(source.a, start[i].x, source.b), fmaf(source.a, start[i].y, source.b)} : float2{0.0f, 0.0f};
            }
            if (begin + SOME < N) bring(begin + SOME);
            path.add(measure, old, next);
#pragma unroll
            for (u32 i = 0; i < SOME; i++) {
                u32 x = begin + i;
                // By name, since two numbers are else stored one by one.
                __stcg((float2*)(g + frame.pixel(x)), float2{next[i].re, next[i].im});
                re[x] = sent<KIND>(by, slope[i].x, old[i].re, next[i].re, flow) + added[i].x;
                im[x] = sent<KIND>(by, slope[i].y, old[i].im, next[i].im, flow) + added[i].y;
            }
        }
    }
};

// After all of the first u was sent: iteration 1 will send its change, which a nonexpansive map does not make larger than where it starts.
__device__ inline void begin_changes(Flow& flow, const Distance& d, u64 len) {
    double bound = sqrt(d.size);
    flow = {1, 0, 1.0f, change_scale(bound / sqrt((double)len)), LEAST_ROUNDING * bound, 0.0f, 0};
}

// The last block of a sample to get here ends it, by the parts of all, added in their order.
__device__ inline void conclude_part(const Course& course, u32 iteration, u32 sample, u32 groups, float part, u64 len) {
    if (threadIdx.x != 0) return;
    course.parts[blockIdx.x] = PairPath::of_block();
    __threadfence();
    if (atomicAdd(course.arrived + sample, 1u) + 1 != groups) return;
    course.arrived[sample] = 0;
    __threadfence();
    Distance all = no_distance();
    for (u32 group = 0; group < groups; group++) all = joined(all, course.parts[(u64)sample * groups + group]);
    // How far samples that may send changes would have gone with all of the way.
    if (course.flows) all.difference /= part * part;
    if (iteration == 0) begin_changes(course.flows[sample], all, len);
    else conclude_flow(course.stopping, iteration, course.samples, sample, all, course.flows, part, len);
}

// One iteration from the products on; iteration 0 only sends all of the first u. `others`: rippling samples are not meant. `slopes` may be masks.
// Where samples may send changes, iterations that go a part of the way are such that every one has changes coming back and sends changes.
template <u32 N, u32 KIND>
__device__ void plane_step(const Plane& plane, const Course& course, u32 iteration, const Reflection& by, const Waters& from, const Waters& to,
                           const Source& source, const float* slopes, float* g, u32 others) {
    Frame<N> frame(plane);
    if (course.samples.active[frame.sample] != 1) return;
    Flow flow = course.flows ? course.flows[frame.sample] : Flow{1, 1, 1.0f, 1.0f, 0.0, 0.0f, 0};
    if (others && is_rippling(flow)) return;
    bool begins = iteration == 0 && !flow.whole_next;
    if (iteration == 0) flow.whole_next = 1;
    frame.fetch(g);
    if (iteration > 0) frame.columns_in(from, flow.whole_back);
    await_copies();
    __syncthreads();
    PairPath path;
    if (frame.has_row()) {
        RowStep<N, KIND> row(frame, flow, by, source, flow.whole_back && iteration > 0, slopes);
        float re[N], im[N];
        if (iteration > 0) {
            frame.rows_in(re, im);
        } else {
#pragma unroll
            for (u32 x = 0; x < N; x++) re[x] = im[x] = 0.0f;
        }
        row.advance(course.stopping.measure, re, im, g, path);
        frame.rows_out(re, im);
    }
    path.leave(course.stopping.measure);
    __syncthreads();
    frame.columns_out(to, flow.whole_next);
    if (iteration > 0 || begins) conclude_part(course, iteration, frame.sample, frame.groups, by.part, (u64)N * N * plane.channels);
}

#define PLANE(N, KIND, name)                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(PLANE_THREADS, N > 28 ? 3 : 4)                                                                       \
    fourier_plane_##name##_##N(Plane plane, Course course, u32 iteration, Reflection by, Waters from, Waters to, Source source,                \
                               const float* slopes, float* g, u32 others) {                                                                  \
        plane_step<N, KIND>(plane, course, iteration, by, from, to, source, slopes, g, others);                                               \
    }
#define PLANES(N)                                                                                                                            \
    PLANE(N, SLOPES, slopes)                                                                                                                 \
    PLANE(N, KINKED, kinked)                                                                                                                 \
    PLANE(N, PLAIN_TANH, tanh)                                                                                                               \
    PLANE(N, MASKS, masks)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(PLANE_THREADS, N > 28 ? 3 : 4)                                                                       \
    fourier_forth_##N(Plane plane, float a, const float* x, float b, Wave* spectra) {                                                        \
        plane_forth<N>(plane, a, x, b, spectra);                                                                                             \
    }                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(PLANE_THREADS, N > 28 ? 3 : 4)                                                                       \
    fourier_back_##N(Plane plane, Wave* spectra, float a, const float* x, float b, float* out) {                                             \
        plane_back<N>(plane, spectra, a, x, b, out);                                                                                         \
    }
