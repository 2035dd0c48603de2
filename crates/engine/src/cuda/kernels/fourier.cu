// Peaceman-Rachford's splitting of circular convolutions, in the frequency domain: u = 2 prox(g) - g, g <- C u + k, C a complex
// matrix at each frequency (resolvent.cu). An iteration is
//   columns of u's rows, products, columns back            (row spectra -> spectra -> spectra -> row spectra)
//   rows back, g <- . + k, residual, prox, rows of the new u   (one kernel where there is one for the width and the activation).
// A thread transforms a whole line in its registers: neighbouring threads have neighbouring channels, and nothing is exchanged.
// Transforms of real images keep the columns 0 to width / 2. Two channels are the real and imaginary part of one line.
//
// Where that one kernel is, most iterations send only the change of u: g <- g + C (u - last u), as f16, scaled by what the last
// iteration changed. That halves what goes through memory, which is what an iteration takes its time for. Every change is rounded; a sample
// keeps account of it, and sends u itself, in f32, before rounding could show in its residual or in its answer.
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
struct __align__(8) Narrow {
    u32 a, b;
};

// What a sample's waves are when they come back and when they are sent again: all of u (f32), or its change times a power of two (f16).
struct Flow {
    u32 whole_back, whole_next;
    float scale_back, scale_next;
    // What the roundings since all of u was sent may have added up to.
    double error;
};
__device__ inline bool is_whole(const Flow* flows, u64 sample) { return !flows || flows[sample].whole_back; }

// Waves on their way: those of whole samples, and the changes of others.
struct Waters {
    Wave* whole;
    u32* changes;
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

// ---- rows of an even number of channels -------------------------------------------------------------------------------------------------------------

// A thread's row: a pair of channels of one row of a sample. Blocks belong to samples, some rows to each.
struct Row {
    u64 pixels, waves;
};
__device__ inline Row row_of(const Plane& plane, u64 sample, u32 y, u32 pair) {
    return {(sample * plane.height + y) * plane.width * plane.channels + 2 * pair, plane.row_at(sample, y) + 2 * pair};
}

template <u32 N>
__device__ inline void rows_out(const Plane& plane, const Row& row, float (&re)[N], float (&im)[N], const Waters& rows, bool whole) {
    transform<false, N>(re, im);
    // The spectra of the two channels: the parts of Z that are symmetric and antisymmetric.
    auto split = [&](u32 k) -> Waves {
        u32 m = (N - k) % N;
        return {{0.5f * (re[k] + re[m]), 0.5f * (im[k] - im[m])}, {0.5f * (im[k] + im[m]), 0.5f * (re[m] - re[k])}};
    };
    if (whole) {
#pragma unroll
        for (u32 k = 0; k <= N / 2; k++) *(Waves*)(rows.whole + row.waves + (u64)k * plane.padded) = split(k);
    } else {
#pragma unroll
        for (u32 k = 0; k <= N / 2; k++) {
            Waves out = split(k);
            *(Narrow*)(rows.changes + row.waves + (u64)k * plane.padded) = {narrow(out.a), narrow(out.b)};
        }
    }
}

template <u32 N>
__device__ inline void rows_in(const Plane& plane, const Row& row, float (&re)[N], float (&im)[N], const Waters& rows, bool whole) {
    auto join = [&](u32 k, const Waves& in) {
        if (k == 0 || 2 * k == N) {
            re[k] = in.a.re;
            im[k] = in.b.re;
        } else {
            re[k] = in.a.re - in.b.im;
            im[k] = in.a.im + in.b.re;
            re[N - k] = in.a.re + in.b.im;
            im[N - k] = in.b.re - in.a.im;
        }
    };
    if (whole) {
#pragma unroll
        for (u32 k = 0; k <= N / 2; k++) join(k, *(const Waves*)(rows.whole + row.waves + (u64)k * plane.padded));
    } else {
#pragma unroll
        for (u32 k = 0; k <= N / 2; k++) {
            Narrow in = *(const Narrow*)(rows.changes + row.waves + (u64)k * plane.padded);
            join(k, {widen(in.a), widen(in.b)});
        }
    }
    transform<true, N>(re, im);
}

// How many rows each block has of its sample.
struct RowShare {
    u64 sample;
    u32 first, items, pairs;
};
__device__ inline RowShare rows_of_block(const Plane& plane, u32 rows_each) {
    u32 blocks = (plane.height + rows_each - 1) / rows_each, first = blockIdx.x % blocks * rows_each, pairs = plane.padded / 2;
    return {blockIdx.x / blocks, first, (min(first + rows_each, plane.height) - first) * pairs, pairs};
}

template <u32 N>
__device__ void rows_forward(const Plane& plane, u32 rows_each, const float* images, Wave* rows, const u32* active) {
    RowShare part = rows_of_block(plane, rows_each);
    if (active && active[part.sample] != 1) return;
    for (u32 item = threadIdx.x; item < part.items; item += THREADS) {
        Row row = row_of(plane, part.sample, part.first + item / part.pairs, item % part.pairs);
        float re[N], im[N];
#pragma unroll
        for (u32 x = 0; x < N; x++) {
            Wave v = *(const Wave*)(images + row.pixels + (u64)x * plane.channels);
            re[x] = v.re;
            im[x] = v.im;
        }
        rows_out<N>(plane, row, re, im, {rows, nullptr}, true);
    }
}

template <u32 N>
__device__ void rows_backward(const Plane& plane, u32 rows_each, Wave* rows, float* images, const u32* active) {
    RowShare part = rows_of_block(plane, rows_each);
    if (active && active[part.sample] != 1) return;
    for (u32 item = threadIdx.x; item < part.items; item += THREADS) {
        Row row = row_of(plane, part.sample, part.first + item / part.pairs, item % part.pairs);
        float re[N], im[N];
        rows_in<N>(plane, row, re, im, {rows, nullptr}, true);
#pragma unroll
        for (u32 x = 0; x < N; x++) *(Wave*)(images + row.pixels + (u64)x * plane.channels) = {re[x], im[x]};
    }
}

// How far the entries of a part went.
struct Path {
    double difference, size, high, low;
    __device__ Path() : difference(0.0), size(0.0), high(-INFINITY), low(INFINITY) {}
    __device__ void add(u32 measure, float from, float to) {
        double gap = (double)to - (double)from;
        size = fma((double)to, (double)to, size);
        if (measure == SUP) {
            if (gap > high) high = gap;
            if (gap < low) low = gap;
        } else {
            difference = fma(gap, gap, difference);
        }
    }
    // Of the whole block.
    __device__ void write(u32 measure, Distance* to) {
        Distance d = {0.0, block_sum(size), -INFINITY, INFINITY};
        if (measure == SUP) {
            d.high = block_max(high);
            d.low = -block_max(-low);
        } else {
            d.difference = block_sum(difference);
        }
        if (threadIdx.x == 0) *to = d;
    }
};

// u = 2 prox(g) - g: with slopes (the adjoint's), of a line with a kink at 0, of tanh with t = 1, or of any activation.
enum : u32 { SLOPES, KINKED, PLAIN_TANH, ANY };
struct Reflection {
    float t;
    // What a kinked one multiplies negative numbers by.
    float factor;
};

template <u32 KIND>
__device__ inline float reflected(const Map& map, const Reflection& by, float d, float g) {
    float e = KIND == SLOPES ? prox(d, by.t, g) : KIND == KINKED ? (g > 0.0f ? g : g * by.factor) : KIND == PLAIN_TANH ? tanhf(g) : prox(map, by.t, g);
    return e + (e - g);
}

// Rows back, g <- . + k (or g + .), and the rows of the new u (or of its change), in place.
template <u32 N, u32 KIND>
__device__ void rows_step(const Plane& plane, u32 rows_each, const Map& map, const Reflection& by, u32 measure, const Waters& rows, const float* k,
                          const float* slopes, float* g, Distance* parts, const Flow* flows, const u32* active) {
    RowShare part = rows_of_block(plane, rows_each);
    if (active[part.sample] != 1) return;
    Flow flow = flows ? flows[part.sample] : Flow{1, 1, 1.0f, 1.0f, 0.0};
    float back = 1.0f / flow.scale_back;
    Path path;
    for (u32 item = threadIdx.x; item < part.items; item += THREADS) {
        Row row = row_of(plane, part.sample, part.first + item / part.pairs, item % part.pairs);
        float re[N], im[N];
        rows_in<N>(plane, row, re, im, rows, flow.whole_back);
        // Some at a time: loads do not pass the stores before them.
        constexpr u32 SOME = 4;
#pragma unroll
        for (u32 begin = 0; begin < N; begin += SOME) {
            Wave old[SOME], from[SOME], d[SOME];
#pragma unroll
            for (u32 i = 0; i < SOME; i++) {
                u64 at = row.pixels + (u64)(begin + i) * plane.channels;
                old[i] = from[i] = *(const Wave*)(g + at);
                if (flow.whole_back) from[i] = *(const Wave*)(k + at);
                d[i] = KIND == SLOPES ? *(const Wave*)(slopes + at) : Wave{0.0f, 0.0f};
            }
#pragma unroll
            for (u32 i = 0; i < SOME; i++) {
                u32 x = begin + i;
                Wave next = {fmaf(re[x], back, from[i].re), fmaf(im[x], back, from[i].im)};
                *(Wave*)(g + row.pixels + (u64)x * plane.channels) = next;
                path.add(measure, old[i].re, next.re);
                path.add(measure, old[i].im, next.im);
                // Differences of reflections that are rounded themselves: what is sent adds up to u without drift.
                re[x] = reflected<KIND>(map, by, d[i].re, next.re) * flow.scale_next;
                im[x] = reflected<KIND>(map, by, d[i].im, next.im) * flow.scale_next;
                if (!flow.whole_next) {
                    re[x] = fmaf(-flow.scale_next, reflected<KIND>(map, by, d[i].re, old[i].re), re[x]);
                    im[x] = fmaf(-flow.scale_next, reflected<KIND>(map, by, d[i].im, old[i].im), im[x]);
                }
            }
        }
        rows_out<N>(plane, row, re, im, rows, flow.whole_next);
    }
    path.write(measure, parts + blockIdx.x);
}

// ---- columns ----------------------------------------------------------------------------------------------------------

template <u32 N, bool BACK>
__device__ void columns(const Plane& plane, const Waters& from, const Waters& to, const Flow* flows, const u32* active) {
    u64 line = (u64)plane.half * plane.padded, count = plane.batch * line;
    for (u64 item = first_entry(); item < count; item += entry_step()) {
        u64 sample = item / line;
        if (active && active[sample] != 1) continue;
        u32 within = item % line, kx = within / plane.padded, c = within % plane.padded;
        u64 row = plane.row_at(sample, 0) + within, spectrum = plane.spectrum_at(kx, 0, sample) + c;
        u64 down = (u64)plane.half * plane.padded, next = (u64)plane.batch * plane.padded;
        u64 first = BACK ? spectrum : row, step = BACK ? next : down, goal = BACK ? row : spectrum, stride = BACK ? down : next;
        bool whole = is_whole(flows, sample);
        float re[N], im[N];
        if (whole) {
#pragma unroll
            for (u32 y = 0; y < N; y++) {
                Wave v = from.whole[first + y * step];
                re[y] = v.re;
                im[y] = v.im;
            }
        } else {
#pragma unroll
            for (u32 y = 0; y < N; y++) {
                Wave v = widen(from.changes[first + y * step]);
                re[y] = v.re;
                im[y] = v.im;
            }
        }
        transform<BACK, N>(re, im);
        if (whole) {
#pragma unroll
            for (u32 y = 0; y < N; y++) to.whole[goal + y * stride] = {re[y], im[y]};
        } else {
#pragma unroll
            for (u32 y = 0; y < N; y++) to.changes[goal + y * stride] = narrow({re[y], im[y]});
        }
    }
}

#define SIZE(N)                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                                    \
    fourier_rows_##N(Plane plane, u32 rows_each, const float* images, Wave* rows, const u32* active) {                                       \
        rows_forward<N>(plane, rows_each, images, rows, active);                                                                             \
    }                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                                    \
    fourier_rows_back_##N(Plane plane, u32 rows_each, Wave* rows, float* images, const u32* active) {                                  \
        rows_backward<N>(plane, rows_each, rows, images, active);                                                                            \
    }                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, N <= 32 ? 3 : 1)                                                                   \
    fourier_columns_##N(Plane plane, Waters from, Waters to, const Flow* flows, const u32* active) {                                         \
        columns<N, false>(plane, from, to, flows, active);                                                                                   \
    }                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, N <= 32 ? 3 : 1)                                                                   \
    fourier_columns_back_##N(Plane plane, Waters from, Waters to, const Flow* flows, const u32* active) {                                    \
        columns<N, true>(plane, from, to, flows, active);                                                                                    \
    }
SIZE(8)
SIZE(28)
SIZE(32)
SIZE(64)

#define STEP(N, KIND, name)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                                 \
    fourier_step_##name##_##N(Plane plane, u32 rows_each, Map map, Reflection by, u32 measure, Waters rows, const float* k,                  \
                              const float* slopes, float* g, Distance* parts, const Flow* flows, const u32* active) {                        \
        rows_step<N, KIND>(plane, rows_each, map, by, measure, rows, k, slopes, g, parts, flows, active);                                    \
    }
STEP(28, SLOPES, slopes)
STEP(28, KINKED, kinked)
STEP(28, PLAIN_TANH, tanh)
STEP(32, SLOPES, slopes)
STEP(32, KINKED, kinked)
STEP(32, PLAIN_TANH, tanh)

// ---- lines of any length: a thread per number that comes out -------------------------------------------------------------

// `turns` are exp(2 pi i j / n) for the line's length.
extern "C" __global__ void __launch_bounds__(THREADS)
fourier_rows_any(Plane plane, const Wave* turns, const float* images, Wave* rows, const u32* active) {
    u64 line = (u64)plane.half * plane.padded, count = (u64)plane.batch * plane.height * line;
    for (u64 item = first_entry(); item < count; item += entry_step()) {
        if (active && active[item / (plane.height * line)] != 1) continue;
        u32 c = item % plane.padded, k = item / plane.padded % plane.half;
        const float* in = images + item / line * plane.width * plane.channels + c;
        Wave sum = {0.0f, 0.0f};
        for (u32 x = 0, turn = 0; x < plane.width && c < plane.channels; x++) {
            float u = in[(u64)x * plane.channels];
            sum = {fmaf(u, turns[turn].re, sum.re), fmaf(-u, turns[turn].im, sum.im)};
            turn += k;
            if (turn >= plane.width) turn -= plane.width;
        }
        rows[item] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
fourier_rows_back_any(Plane plane, const Wave* turns, const Wave* rows, float* images, const u32* active) {
    u64 line = (u64)plane.width * plane.channels, count = (u64)plane.batch * plane.height * line;
    for (u64 item = first_entry(); item < count; item += entry_step()) {
        if (active && active[item / (plane.height * line)] != 1) continue;
        u32 c = item % plane.channels, x = item / plane.channels % plane.width;
        const Wave* in = rows + item / line * plane.half * plane.padded + c;
        float sum = in[0].re;
        for (u32 k = 1, turn = 0; k < plane.half; k++) {
            turn += x;
            if (turn >= plane.width) turn -= plane.width;
            // Those beyond the half are the conjugates.
            Wave w = in[(u64)k * plane.padded], e = turns[turn];
            float twice = 2 * k == plane.width ? 1.0f : 2.0f;
            sum = fmaf(twice, fmaf(w.re, e.re, -w.im * e.im), sum);
        }
        images[item] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
fourier_columns_any(Plane plane, const Wave* turns, u32 back, const Wave* from, Wave* to, const u32* active) {
    u64 line = (u64)plane.half * plane.padded, count = (u64)plane.batch * plane.height * line;
    for (u64 item = first_entry(); item < count; item += entry_step()) {
        u64 sample = item / (plane.height * line);
        if (active && active[sample] != 1) continue;
        u32 within = item % line, kx = within / plane.padded, c = within % plane.padded, y = item / line % plane.height;
        u64 row = plane.row_at(sample, 0) + within, spectrum = plane.spectrum_at(kx, 0, sample) + c;
        u64 down = line, next = (u64)plane.batch * plane.padded;
        const Wave* in = from + (back ? spectrum : row);
        u64 step = back ? next : down;
        Wave sum = {0.0f, 0.0f};
        for (u32 k = 0, turn = 0; k < plane.height; k++) {
            Wave w = in[k * step], e = turns[turn];
            float s = back ? e.im : -e.im;
            sum = {fmaf(w.re, e.re, fmaf(-w.im, s, sum.re)), fmaf(w.re, s, fmaf(w.im, e.re, sum.im))};
            turn += y;
            if (turn >= plane.height) turn -= plane.height;
        }
        to[(back ? row : spectrum) + y * (back ? down : next)] = sum;
    }
}

// ---- products at each frequency -----------------------------------------------------------------------------------------

#define PRODUCT_SAMPLES 128
#define PRODUCT_DEPTH 16

// to = matrix from, for 128 samples of a frequency and 16 T outputs; a thread has 8 samples and T outputs. Matrices lie by columns.
// Without `changes_too` only of samples that sent all of u.
template <u32 T>
__device__ void product_of(const Plane& plane, const Wave* matrices, u32 changes_too, const Waters& from, const Waters& to, const Flow* flows,
                           const u32* active) {
    __shared__ Wave x[PRODUCT_DEPTH][PRODUCT_SAMPLES + 1], m[PRODUCT_DEPTH][16 * T];
    u64 frequency = blockIdx.x, first = (u64)blockIdx.y * PRODUCT_SAMPLES;
    u32 begin = blockIdx.z * 16 * T, samples = min(plane.batch - (u32)first, PRODUCT_SAMPLES), n = plane.padded;
    u64 own = first + threadIdx.x;
    bool wanted = threadIdx.x < samples && (!active || active[own] == 1) && (changes_too || is_whole(flows, own));
    if (!__syncthreads_or(wanted)) return;
    u32 sample = threadIdx.x / 16, output = threadIdx.x % 16;
    Wave sums[8][T];
    bool whole[8], inside[8];
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 s = sample + 16 * i;
        whole[i] = s >= samples || is_whole(flows, first + s);
        inside[i] = s < samples && (changes_too || whole[i]);
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++)
#pragma unroll
        for (u32 j = 0; j < T; j++) sums[i][j] = {0.0f, 0.0f};
    for (u32 depth = 0; depth < n; depth += PRODUCT_DEPTH) {
        u32 deep = min(n - depth, PRODUCT_DEPTH);
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
            u32 s = sample + 16 * i;
            u64 at = (frequency * plane.batch + first + s) * n + depth + output;
            bool there = inside[i] && output < deep;
            x[output][s] = !there ? Wave{0.0f, 0.0f} : whole[i] ? from.whole[at] : widen(from.changes[at]);
        }
#pragma unroll
        for (u32 j = 0; j < T; j++) {
            u32 o = begin + output + 16 * j;
            bool there = sample < deep && o < n;
            m[sample][output + 16 * j] = there ? matrices[(frequency * n + depth + sample) * n + o] : Wave{0.0f, 0.0f};
        }
        __syncthreads();
#pragma unroll 4
        for (u32 d = 0; d < PRODUCT_DEPTH; d++) {
            Wave left[8], right[T];
#pragma unroll
            for (u32 i = 0; i < 8; i++) left[i] = x[d][sample + 16 * i];
#pragma unroll
            for (u32 j = 0; j < T; j++) right[j] = m[d][output + 16 * j];
#pragma unroll
            for (u32 i = 0; i < 8; i++)
#pragma unroll
                for (u32 j = 0; j < T; j++) {
                    sums[i][j].re = fmaf(left[i].re, right[j].re, fmaf(-left[i].im, right[j].im, sums[i][j].re));
                    sums[i][j].im = fmaf(left[i].re, right[j].im, fmaf(left[i].im, right[j].re, sums[i][j].im));
                }
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 i = 0; i < 8; i++)
#pragma unroll
        for (u32 j = 0; j < T; j++) {
            u32 s = sample + 16 * i, o = begin + output + 16 * j;
            u64 at = (frequency * plane.batch + first + s) * n + o;
            if (!inside[i] || o >= n) continue;
            if (whole[i]) to.whole[at] = sums[i][j];
            else to.changes[at] = narrow(sums[i][j]);
        }
}

#define PRODUCT(T, outputs)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                                 \
    fourier_product_##outputs(Plane plane, const Wave* matrices, u32 changes_too, Waters from, Waters to, const Flow* flows,                 \
                              const u32* active) {                                                                                           \
        product_of<T>(plane, matrices, changes_too, from, to, flows, active);                                                                \
    }
PRODUCT(1, 16)
PRODUCT(2, 32)
PRODUCT(3, 48)
PRODUCT(4, 64)

// The same on tensor cores, of samples that sent changes: 16 S outputs, a warp for 16 samples. A complex number is a pair of neighbours in
// the sum. Which inputs make a step of the sum is free, so a lane reads and writes four neighbouring numbers at once (resolvent.cu).
template <u32 S>
__device__ void product_of_changes(const Plane& plane, const uint4* tiles, const Waters& from, const Waters& to, const Flow* flows, const u32* active) {
    __shared__ uint4 staged[4 * S * S * 32];
    u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4, place = lane % 4;
    u64 frequency = blockIdx.x, first = (u64)blockIdx.y * PRODUCT_SAMPLES + warp * 16 + row;
    bool wanted[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        u64 sample = first + 8 * h;
        wanted[h] = sample < plane.batch && active[sample] == 1 && !is_whole(flows, sample);
    }
    if (!__syncthreads_or(wanted[0] || wanted[1])) return;
    for (u32 i = threadIdx.x; i < 4 * S * S * 32; i += THREADS) staged[i] = tiles[frequency * 4 * S * S * 32 + i];
    u32 a[2 * S][4];
    u64 at[2] = {(frequency * plane.batch + first) * (16 * S) + 4 * place, (frequency * plane.batch + first + 8) * (16 * S) + 4 * place};
#pragma unroll
    for (u32 h = 0; h < 2; h++)
#pragma unroll
        for (u32 s = 0; s < S; s++) {
            uint4 in = {0, 0, 0, 0};
            if (wanted[h]) in = *(const uint4*)(from.changes + at[h] + 16 * s);
            a[2 * s][h] = in.x;
            a[2 * s][2 + h] = in.y;
            a[2 * s + 1][h] = in.z;
            a[2 * s + 1][2 + h] = in.w;
        }
    __syncthreads();
    float gain = 1.0f / (float)(plane.height * plane.width);
#pragma unroll 1
    for (u32 j = 0; j < S; j++) {
        float sums[4][4];
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
#pragma unroll
            for (u32 i = 0; i < 4; i++) sums[e][i] = 0.0f;
#pragma unroll
            for (u32 s = 0; s < S; s++) {
                uint4 b = staged[((j * 4 + e) * S + s) * 32 + lane];
                multiply_f16(sums[e], a[2 * s], b.x, b.y);
                multiply_f16(sums[e], a[2 * s + 1], b.z, b.w);
            }
        }
#pragma unroll
        for (u32 h = 0; h < 2; h++) {
            auto out = [&](u32 e) { return narrow({gain * sums[e][2 * h], gain * sums[e][2 * h + 1]}); };
            if (wanted[h]) *(uint4*)(to.changes + at[h] + 16 * j) = {out(0), out(1), out(2), out(3)};
        }
    }
}

#define CHANGES(S, outputs)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                                    \
    fourier_changes_##outputs(Plane plane, const uint4* tiles, Waters from, Waters to, const Flow* flows, const u32* active) {               \
        product_of_changes<S>(plane, tiles, from, to, flows, active);                                                                        \
    }
CHANGES(1, 16)
CHANGES(2, 32)
CHANGES(3, 48)
CHANGES(4, 64)

// ---- pointwise ----------------------------------------------------------------------------------------------------------

// out = a x + b, plus what was there, if `add`. Without x: what was there is left at b (or has b added).
extern "C" __global__ void __launch_bounds__(THREADS) fourier_affine(float a, const float* x, float b, u32 add, float* out, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = (add ? out[i] : 0.0f) + (x ? fmaf(a, x[i], b) : b);
}

__device__ inline float reflected_any(const Map& map, const Reflection& by, const float* slopes, u64 i, float g) {
    return slopes ? reflected<SLOPES>(map, by, slopes[i], g) : reflected<ANY>(map, by, 0.0f, g);
}

extern "C" __global__ void __launch_bounds__(THREADS)
fourier_reflect(Map map, Reflection by, const float* slopes, const float* g, float* u, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) u[i] = reflected_any(map, by, slopes, i, g[i]);
}

// g <- u + k, and u <- the reflection of it. As many blocks for each sample as there are parts of its distance.
extern "C" __global__ void __launch_bounds__(THREADS)
fourier_advance(Map map, Reflection by, u32 measure, u32 blocks, float* u, const float* k, const float* slopes, float* g, Distance* parts,
                const u32* active) {
    u64 sample = blockIdx.x / blocks;
    if (active[sample] != 1) return;
    Path path;
    for (u64 i = (u64)(blockIdx.x % blocks) * THREADS + threadIdx.x; i < map.len; i += (u64)blocks * THREADS) {
        u64 at = sample * map.len + i;
        float next = u[at] + k[at];
        path.add(measure, g[at], next);
        g[at] = next;
        u[at] = reflected_any(map, by, slopes, at, next);
    }
    path.write(measure, parts + blockIdx.x);
}

// z = prox(g) + a y + b, or, with slopes, the adjoint's g = p / (d + t (1 - d)).
extern "C" __global__ void __launch_bounds__(THREADS)
fourier_answer(Map map, float t, const float* slopes, const float* g, float a, const float* y, float b, float* z, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step())
        z[i] = slopes ? g[i] / (slopes[i] + t * (1.0f - slopes[i])) : prox(map, t, g[i]) + fmaf(a, y[i], b);
}

// The power of two that brings a change to [1/4, 1/2); 1 where there is no such.
__device__ inline float change_scale(double size) {
    if (!(size > 1e-30 && size < 1e30)) return 1.0f;
    return (float)exp2(-2.0 - floor(log2(size)));
}

// A change is rounded to f16 four times on its way, and what it is multiplied by once: to 2^-11 each.
#define CHANGE_ROUNDING (5.0 / 2048)
// What rounding may have of the tolerance.
#define ROUNDING_SHARE 0.05

// How the next waves are sent, after a change of `gap` that brought `error` with it; `wanted`: the answer waits for all of u.
__device__ inline Flow next_flow(const Flow& flow, double gap, double error, bool wanted, u64 len) {
    bool whole = wanted || gap < 4.0 * error;
    return {flow.whole_next, whole, flow.scale_next, whole ? 1.0f : change_scale(gap / sqrt((double)len)), error};
}

extern "C" __global__ void __launch_bounds__(THREADS) begin_flows(Flow* flows, u32 batch) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample < batch) flows[sample] = {1, 1, 1.0f, 1.0f, 0.0};
}

// Ends the samples that are to end, by the parts of their distances. A thread per sample. With flows (the measure is the relative
// one then), a sample that rounding may have come too close to goes on until all of its u was sent.
extern "C" __global__ void __launch_bounds__(THREADS)
conclude_waves(Stopping stopping, u32 iteration, Samples samples, const Distance* parts, u32 count, u32 batch, Flow* flows, u64 len) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample >= batch || samples.active[sample] != 1) return;
    Distance d = no_distance();
    for (u32 k = 0; k < count; k++) d = joined(d, parts[(u64)sample * count + k]);
    if (flows) {
        Flow flow = flows[sample];
        double gap = sqrt(d.difference), error = flow.whole_back ? 0.0 : flow.error + CHANGE_ROUNDING * gap;
        bool near = !samples.progress[sample].bad && residual_of(stopping.measure, d) <= stopping.tolerance;
        bool wanted = near && error > ROUNDING_SHARE * stopping.tolerance * sqrt(d.size);
        flows[sample] = next_flow(flow, gap, error, wanted, len);
        if (wanted && iteration < stopping.max_iterations) return;
    }
    conclude(stopping, iteration, samples, sample, d);
}
