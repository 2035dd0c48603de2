// Peaceman-Rachford's splitting of circular convolutions, in the frequency domain: u = 2 prox(g) - g, g <- C u + k, C a complex
// matrix at each frequency (resolvent.cu). Where there are kernels for whole images (square ones of some sizes), an iteration is
//   products at each frequency
//   columns back, rows back, g <- . + k, residual, prox, rows and columns of the new u, and whether the sample ends;
// else
//   columns of u's rows, products, columns back            (row spectra -> spectra -> spectra -> row spectra)
//   rows back, g <- . + k, residual, prox, rows of the new u.
// A thread transforms a whole line in its registers: neighbouring threads have neighbouring channels.
// Transforms of real images keep the columns 0 to width / 2. Two channels are the real and imaginary part of one line.
//
// With whole images, k = C (a x + b) + c x + d is not kept where it is the same to send u + a x + b: it would be one more array. And most
// iterations send only the change of u: g <- g + C (u - last u), as f16, scaled by what the last iteration changed. That halves what goes
// through memory, which is what an iteration takes its time for. Every change is rounded; a sample keeps account of it, and sends u itself,
// in f32, before rounding could show in its residual or in its answer.
#include "fourier.cuh"

// ---- rows of an even number of channels -------------------------------------------------------------------------------------------------------------

// A thread's row: a pair of channels of one row of a sample. Blocks belong to samples, some rows to each.
struct Row {
    u64 pixels, waves;
};
__device__ inline Row row_of(const Plane& plane, u64 sample, u32 y, u32 pair) {
    return {(sample * plane.height + y) * plane.width * plane.channels + 2 * pair, plane.row_at(sample, y) + 2 * pair};
}

template <u32 N>
__device__ inline void rows_out(const Plane& plane, const Row& row, float (&re)[N], float (&im)[N], Wave* rows) {
    transform<false, N>(re, im);
#pragma unroll
    for (u32 k = 0; k <= N / 2; k++) *(Waves*)(rows + row.waves + (u64)k * plane.padded) = parted<N>(re, im, k);
}

template <u32 N>
__device__ inline void rows_in(const Plane& plane, const Row& row, float (&re)[N], float (&im)[N], const Wave* rows) {
#pragma unroll
    for (u32 k = 0; k <= N / 2; k++) {
        Waves in = *(const Waves*)(rows + row.waves + (u64)k * plane.padded);
        if (k == 0 || 2 * k == N) {
            re[k] = in.a.re;
            im[k] = in.b.re;
        } else {
            joined<N>(re, im, k, in);
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
        rows_out<N>(plane, row, re, im, rows);
    }
}

template <u32 N>
__device__ void rows_backward(const Plane& plane, u32 rows_each, Wave* rows, float* images, const u32* active) {
    RowShare part = rows_of_block(plane, rows_each);
    if (active && active[part.sample] != 1) return;
    for (u32 item = threadIdx.x; item < part.items; item += THREADS) {
        Row row = row_of(plane, part.sample, part.first + item / part.pairs, item % part.pairs);
        float re[N], im[N];
        rows_in<N>(plane, row, re, im, rows);
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

// ---- columns ----------------------------------------------------------------------------------------------------------

template <u32 N, bool BACK>
__device__ void columns(const Plane& plane, const Wave* from, Wave* to, const u32* active) {
    u64 line = (u64)plane.half * plane.padded, count = plane.batch * line;
    for (u64 item = first_entry(); item < count; item += entry_step()) {
        u64 sample = item / line;
        if (active && active[sample] != 1) continue;
        u32 within = item % line, kx = within / plane.padded, c = within % plane.padded;
        u64 row = plane.row_at(sample, 0) + within, spectrum = plane.spectrum_at(kx, 0, sample) + c;
        u64 down = (u64)plane.half * plane.padded, next = (u64)plane.batch * plane.padded;
        u64 first = BACK ? spectrum : row, step = BACK ? next : down, goal = BACK ? row : spectrum, stride = BACK ? down : next;
        float re[N], im[N];
#pragma unroll
        for (u32 y = 0; y < N; y++) {
            Wave v = from[first + y * step];
            re[y] = v.re;
            im[y] = v.im;
        }
        transform<BACK, N>(re, im);
#pragma unroll
        for (u32 y = 0; y < N; y++) to[goal + y * stride] = {re[y], im[y]};
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
    fourier_columns_##N(Plane plane, const Wave* from, Wave* to, const u32* active) {                                                        \
        columns<N, false>(plane, from, to, active);                                                                                          \
    }                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, N <= 32 ? 3 : 1)                                                                   \
    fourier_columns_back_##N(Plane plane, const Wave* from, Wave* to, const u32* active) {                                                   \
        columns<N, true>(plane, from, to, active);                                                                                           \
    }
SIZE(8)
SIZE(16)
SIZE(28)
SIZE(32)
SIZE(64)

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
// Without `changes_too` only of samples that sent all of u. What is left of a sample's last step is where the next one goes, and added to it.
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
    // A bit for each of its samples; registers are what there are too few of for three blocks.
    u32 whole = 0, inside = 0;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
        u32 s = sample + 16 * i;
        bool all = s >= samples || is_whole(flows, first + s);
        whole |= (u32)all << i;
        // Not those that have ended, whose places others may have taken (`Waves::beside`).
        bool moving = s < samples && (!active || active[first + s] == 1);
        inside |= (u32)(moving && (changes_too || all)) << i;
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
            bool there = inside >> i & 1 && output < deep;
            x[output][s] = !there ? Wave{0.0f, 0.0f} : whole >> i & 1 ? from.whole[at] : widen(from.changes[at]);
        }
#pragma unroll
        for (u32 j = 0; j < T; j++) {
            u32 o = begin + output + 16 * j;
            bool there = sample < deep && o < n;
            m[sample][output + 16 * j] = there ? matrices[(frequency * n + depth + sample) * n + o] : Wave{0.0f, 0.0f};
        }
        __syncthreads();
#pragma unroll 2
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
    for (u32 i = 0; i < 8; i++) {
        u32 s = sample + 16 * i;
        if (!(inside >> i & 1)) continue;
        float left = whole >> i & 1 ? 0.0f : flows[first + s].left;
#pragma unroll
        for (u32 j = 0; j < T; j++) {
            u32 o = begin + output + 16 * j;
            u64 at = (frequency * plane.batch + first + s) * n + o;
            if (o >= n) continue;
            if (whole >> i & 1) {
                to.whole[at] = sums[i][j];
                continue;
            }
            Wave last = left == 0.0f ? Wave{0.0f, 0.0f} : widen(to.changes[at]);
            to.changes[at] = narrow({fmaf(left, last.re, sums[i][j].re), fmaf(left, last.im, sums[i][j].im)});
        }
    }
}

#define PRODUCT(T, outputs)                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, T <= 3 ? 3 : 2)                                                                    \
    fourier_product_##outputs(Plane plane, const Wave* matrices, u32 changes_too, Waters from, Waters to, const Flow* flows,                 \
                              const u32* active) {                                                                                           \
        product_of<T>(plane, matrices, changes_too, from, to, flows, active);                                                                \
    }
PRODUCT(1, 16)
PRODUCT(2, 32)
PRODUCT(3, 48)
PRODUCT(4, 64)

// The largest power of two that is not above n.
__device__ inline float power_of_two_in(u32 n) { return __uint_as_float(__float_as_uint((float)n) & 0x7f800000u); }

// Threads of a block whose warps have 16 R samples each.
#define CHANGES_THREADS(R) (2 * PRODUCT_SAMPLES / R)

// What a lane of a product on tensor cores has of the samples, R times 16 of which are a warp's: every eighth.
template <u32 R>
struct TileSamples {
    static constexpr u32 COUNT = 2 * R;
    u32 lane, place;
    u64 first;
    // Those that are worked on and sent all of u, or, if not `whole`, changes.
    bool wanted[COUNT];
    __device__ TileSamples(const Plane& plane, const Flow* flows, const u32* active, bool whole) {
        lane = threadIdx.x % 32, place = lane % 4;
        first = (u64)blockIdx.y * PRODUCT_SAMPLES + threadIdx.x / 32 * 16 * R + lane / 4;
        // All are asked at once, and then it is seen what for.
        u32 moving[COUNT], back[COUNT];
#pragma unroll
        for (u32 h = 0; h < COUNT; h++) {
            u64 sample = min(first + 8 * h, (u64)plane.batch - 1);
            moving[h] = active ? active[sample] : 1;
            back[h] = is_whole(flows, sample);
        }
#pragma unroll
        for (u32 h = 0; h < COUNT; h++) wanted[h] = first + 8 * h < plane.batch && moving[h] == 1 && (back[h] != 0) == whole;
    }
    __device__ bool any() const {
        bool any = false;
#pragma unroll
        for (u32 h = 0; h < COUNT; h++) any = any || wanted[h];
        return any;
    }
};

// The same on tensor cores, of samples that sent changes: 16 S outputs, a warp for 16 R samples. A complex number is a pair of neighbours in
// the sum. Which inputs make a step of the sum is free, so a lane reads and writes four neighbouring numbers at once (`tile_entry`).
// A block has 16 T of the outputs. RESUMES: after half of a step, whose other half is where the next one goes, and is added to it.
template <bool RESUMES, u32 S, u32 T, u32 R>
__device__ void product_of_changes(const Plane& plane, const Wave* matrices, const Waters& from, const Waters& to, const Flow* flows, const u32* active) {
    constexpr u32 TILES = 4 * T * S * 32, N = 16 * S;
    uint4* staged = (uint4*)launch_memory;
    u64 frequency = blockIdx.x;
    TileSamples<R> own(plane, flows, active, false);
    if (!__syncthreads_or(own.any())) return;
    // A warp brings 16 inputs of four outputs at a time, a lane two of these: whole sectors.
    constexpr u32 WARPS = CHANGES_THREADS(R) / 32, ROUNDS = 4 * T / WARPS * S;
    static_assert(4 * T % WARPS == 0, "all warps bring as many");
    const Wave* matrix = matrices + frequency * N * N + blockIdx.z * 16 * T;
    auto input = [&](u32 round) { return round % S * 16 + own.lane / 2; };
    auto output = [&](u32 round) { return (round / S * WARPS + threadIdx.x / 32) * 4 + own.lane % 2 * 2; };
    // Each thread its own: nobody else reads them.
    Waves* brought = (Waves*)(staged + TILES) + threadIdx.x;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) copy_later<16>(brought + r * CHANGES_THREADS(R), matrix + input(r) * N + output(r));
    u32 a[R][2 * S][4];
    // From a sample to the next of the lane's, 8 further on.
    constexpr u32 SECOND = 8 * 16 * S;
    u64 at = (frequency * plane.batch + own.first) * (16 * S) + 4 * own.place;
#pragma unroll
    for (u32 h = 0; h < 2 * R; h++)
#pragma unroll
        for (u32 s = 0; s < S; s++) {
            uint4 in = {0, 0, 0, 0};
            if (own.wanted[h]) in = *(const uint4*)(from.changes + at + h * SECOND + 16 * s);
            a[h / 2][2 * s][h % 2] = in.x;
            a[h / 2][2 * s][2 + h % 2] = in.y;
            a[h / 2][2 * s + 1][h % 2] = in.z;
            a[h / 2][2 * s + 1][2 + h % 2] = in.w;
        }
    // Entries of C / (height width) come to [0, 1].
    float up = power_of_two_in(plane.height * plane.width), gain = 1.0f / up;
    await_copies();
    // Of two lanes with the same input one has the real parts first, the other the imaginary ones: their banks differ.
    bool odd = own.lane % 2;
#pragma unroll
    for (u32 r = 0; r < ROUNDS; r++) {
        Waves both = brought[r * CHANGES_THREADS(R)];
#pragma unroll
        for (u32 i = 0; i < 2; i++) {
            Wave m = i ? both.b : both.a;
            u32* to = (u32*)staged + tile_entry(S, output(r) + i, input(r));
            u32 re = pair_f16(up * m.re, -up * m.im), im = pair_f16(up * m.im, up * m.re);
            to[odd ? TILE_IMAGINARY : 0] = odd ? im : re;
            to[odd ? 0 : TILE_IMAGINARY] = odd ? re : im;
        }
    }
    __syncthreads();
    if (!warp_max(own.any())) return;
    u32* out_at = to.changes + at + 16 * (blockIdx.z * T);
    const uint4* lane_tiles = staged + own.lane;
    float left[2 * R];
    if constexpr (RESUMES) {
#pragma unroll
        for (u32 h = 0; h < 2 * R; h++) left[h] = own.wanted[h] ? flows[own.first + 8 * h].left : 0.0f;
    }
#pragma unroll 1
    for (u32 j = 0; j < T; j++) {
        u32 out[2 * R][4];
        if constexpr (RESUMES) {
#pragma unroll
            for (u32 h = 0; h < 2 * R; h++) {
                uint4 last = {0, 0, 0, 0};
                if (own.wanted[h]) last = *(const uint4*)(out_at + h * SECOND + 16 * j);
                out[h][0] = last.x, out[h][1] = last.y, out[h][2] = last.z, out[h][3] = last.w;
            }
        }
#pragma unroll
        for (u32 e = 0; e < 4; e++) {
            float sums[R][4] = {};
#pragma unroll
            for (u32 s = 0; s < S; s++) {
                uint4 b = lane_tiles[((j * 4 + e) * S + s) * 32];
#pragma unroll
                for (u32 r = 0; r < R; r++) {
                    multiply_f16(sums[r], a[r][2 * s], b.x, b.y);
                    multiply_f16(sums[r], a[r][2 * s + 1], b.z, b.w);
                }
            }
#pragma unroll
            for (u32 h = 0; h < 2 * R; h++) {
                Wave step = {gain * sums[h / 2][h % 2 * 2], gain * sums[h / 2][h % 2 * 2 + 1]};
                if constexpr (RESUMES) {
                    Wave last = widen(out[h][e]);
                    step = {fmaf(left[h], last.re, step.re), fmaf(left[h], last.im, step.im)};
                }
                out[h][e] = narrow(step);
            }
        }
#pragma unroll
        for (u32 h = 0; h < 2 * R; h++)
            // By name, since four numbers are else stored one by one.
            if (own.wanted[h]) __stcg((uint4*)(out_at + h * SECOND + 16 * j), uint4{out[h][0], out[h][1], out[h][2], out[h][3]});
    }
}

#define CHANGES(S, outputs, R)                                                                                                               \
    extern "C" __global__ void __launch_bounds__(CHANGES_THREADS(R), S == 3 ? 5 : S <= 4 ? 3 : 2)                                            \
    fourier_changes_##outputs(Plane plane, const Wave* matrices, Waters from, Waters to, const Flow* flows, const u32* active) {             \
        product_of_changes<false, S, S <= 4 ? S : 2, R>(plane, matrices, from, to, flows, active);                                           \
    }                                                                                                                                        \
    extern "C" __global__ void __launch_bounds__(CHANGES_THREADS(R), S == 3 ? 5 : S <= 4 ? 3 : 2)                                            \
    fourier_resumed_##outputs(Plane plane, const Wave* matrices, Waters from, Waters to, const Flow* flows, const u32* active) {             \
        product_of_changes<true, S, S <= 4 ? S : 2, R>(plane, matrices, from, to, flows, active);                                            \
    }
CHANGES(1, 16, 2)
CHANGES(2, 32, 2)
CHANGES(3, 48, 2)
CHANGES(4, 64, 2)
CHANGES(6, 96, 1)
CHANGES(8, 128, 1)

// The same on tensor cores, of samples that sent all of u, f32 accurate: 16 S outputs, a warp for 16 samples. As `product_of_changes`, with
// both sides in f16 halves, a sample scaled by a power of two of its own. Tensor cores truncate as they add: the sum over 16 channels
// begins at zero and is added to the total with rounding.
template <u32 S>
__device__ void product_of_whole(const Plane& plane, const Wave* matrices, const Waters& from, const Waters& to, const Flow* flows, const u32* active) {
    constexpr u32 TILES = 4 * S * S * 32, N = 16 * S;
    // The halves of the matrix, in tiles.
    u32* high = (u32*)launch_memory;
    u32* low = high + 4 * TILES;
    u64 frequency = blockIdx.x;
    TileSamples<1> own(plane, flows, active, true);
    if (!__syncthreads_or(own.any())) return;
    // Entries of a monotone map's are at most 1 / (height width): brought to 16 or less, which is far from where f16 ends on either side.
    float up = 16.0f * power_of_two_in(plane.height * plane.width);
    const Wave* matrix = matrices + frequency * N * N;
#pragma unroll 3
    for (u32 i = threadIdx.x; i < N * N; i += THREADS) {
        // Neighbours in the tiles first: their banks are what counts.
        u32 out = i / N, k = i % N;
        Wave m = matrix[k * N + out];
        u32 at = tile_entry(S, out, k);
        Halves re = halves_f16(up * m.re, -up * m.im), im = halves_f16(up * m.im, up * m.re);
        high[at] = re.high;
        low[at] = re.low;
        high[at + TILE_IMAGINARY] = im.high;
        low[at + TILE_IMAGINARY] = im.low;
    }
    float4 in[2][S][2];
    const float4* waves = (const float4*)(from.whole + (frequency * plane.batch + own.first) * N + 4 * own.place);
    // Fours of numbers from a sample to the second one of the lane, 8 further on.
    constexpr u32 SECOND = 8 * N / 2;
#pragma unroll
    for (u32 h = 0; h < 2; h++)
#pragma unroll
        for (u32 i = 0; i < 2 * S; i++)
            in[h][i / 2][i % 2] = own.wanted[h] ? waves[h * SECOND + i / 2 * 8 + i % 2] : float4{0.0f, 0.0f, 0.0f, 0.0f};
    u32 a_high[2 * S][4], a_low[2 * S][4];
    float back[2];
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        u32 size = 0;
#pragma unroll
        for (u32 i = 0; i < 2 * S; i++) {
            float4 x = in[h][i / 2][i % 2];
            size = max(size, max(max(size_bits(x.x), size_bits(x.y)), max(size_bits(x.z), size_bits(x.w))));
        }
        // The four lanes that have the sample.
        size = max(size, __shfl_xor_sync(~0u, size, 1));
        size = max(size, __shfl_xor_sync(~0u, size, 2));
        Scale scale = scale_of(size);
        back[h] = scale.back / up;
#pragma unroll
        for (u32 i = 0; i < 2 * S; i++) {
            float4 x = in[h][i / 2][i % 2];
            Halves one = halves_f16(x.x * scale.to, x.y * scale.to), two = halves_f16(x.z * scale.to, x.w * scale.to);
            a_high[i][h] = one.high, a_low[i][h] = one.low;
            a_high[i][2 + h] = two.high, a_low[i][2 + h] = two.low;
        }
    }
    __syncthreads();
    if (!warp_max(own.any())) return;
    float4* out_at = (float4*)(to.whole + (frequency * plane.batch + own.first) * N + 4 * own.place);
    // Two outputs at a time.
#pragma unroll 1
    for (u32 two = 0; two < 2 * S; two++) {
        float out[2][4];
#pragma unroll
        for (u32 e = 0; e < 2; e++) {
            float total[4] = {};
#pragma unroll
            for (u32 s = 0; s < S; s++) {
                u32 tile = ((two * 2 + e) * S + s) * 32 + own.lane;
                uint4 b = ((const uint4*)high)[tile], c = ((const uint4*)low)[tile];
                float sums[4] = {};
                multiply_f16(sums, a_low[2 * s], b.x, b.y);
                multiply_f16(sums, a_low[2 * s + 1], b.z, b.w);
                multiply_f16(sums, a_high[2 * s], c.x, c.y);
                multiply_f16(sums, a_high[2 * s + 1], c.z, c.w);
                multiply_f16(sums, a_high[2 * s], b.x, b.y);
                multiply_f16(sums, a_high[2 * s + 1], b.z, b.w);
#pragma unroll
                for (u32 i = 0; i < 4; i++) total[i] += sums[i];
            }
#pragma unroll
            for (u32 i = 0; i < 4; i++) out[i / 2][2 * e + i % 2] = total[i] * back[i / 2];
        }
#pragma unroll
        for (u32 h = 0; h < 2; h++)
            if (own.wanted[h]) out_at[h * SECOND + two / 2 * 8 + two % 2] = {out[h][0], out[h][1], out[h][2], out[h][3]};
    }
}

#define WHOLE(S, outputs)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                                                 \
    fourier_whole_##outputs(Plane plane, const Wave* matrices, Waters from, Waters to, const Flow* flows, const u32* active) {               \
        product_of_whole<S>(plane, matrices, from, to, flows, active);                                                                       \
    }
WHOLE(1, 16)
WHOLE(2, 32)
WHOLE(3, 48)
WHOLE(4, 64)

// ---- pointwise ----------------------------------------------------------------------------------------------------------

// out = a x + b, plus what was there, if `add`. Without x: what was there is left at b (or has b added).
extern "C" __global__ void __launch_bounds__(THREADS) fourier_affine(float a, const float* x, float b, u32 add, float* out, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = (add ? out[i] : 0.0f) + (x ? fmaf(a, x[i], b) : b);
}

__device__ inline float reflected_any(const Map& map, const Reflection& by, const float* slopes, u64 i, float g) {
    float e = slopes ? prox(slopes[i], by.t, g) : prox(map, by.t, g);
    return e + (e - g);
}

extern "C" __global__ void __launch_bounds__(THREADS)
fourier_reflect(Map map, Reflection by, const float* slopes, const float* g, float* u, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step()) u[i] = reflected_any(map, by, slopes, i, g[i]);
}

// g <- (1 - part) g + part (u + k), and u <- the reflection of it. As many blocks for each sample as there are parts of its distance.
extern "C" __global__ void __launch_bounds__(THREADS)
fourier_advance(Map map, Reflection by, u32 measure, u32 blocks, float* u, const float* k, const float* slopes, float* g, Distance* parts,
                const u32* active) {
    u64 sample = blockIdx.x / blocks;
    if (active[sample] != 1) return;
    Path path;
    for (u64 i = (u64)(blockIdx.x % blocks) * THREADS + threadIdx.x; i < map.len; i += (u64)blocks * THREADS) {
        u64 at = sample * map.len + i;
        float next = fmaf(by.part, u[at] + k[at] - g[at], g[at]);
        path.add(measure, g[at], next);
        g[at] = next;
        u[at] = reflected_any(map, by, slopes, at, next);
    }
    path.write(measure, parts + blockIdx.x);
}

// Where a solution is above its activation's kink: a bit for each pixel of a row of a channel, [sample][row][channel]. A thread has one row,
// of up to 32 pixels.
extern "C" __global__ void __launch_bounds__(THREADS) kink_masks(Plane plane, const float* z, u32* masks) {
    u64 at = first_entry(), row = at / plane.channels;
    if (row >= (u64)plane.batch * plane.height) return;
    const float* from = z + row * plane.width * plane.channels + at % plane.channels;
    u32 mask = 0;
#pragma unroll 8
    for (u32 x = 0; x < plane.width; x++) mask |= (u32)(from[x * plane.channels] > 0.0f) << x;
    masks[at] = mask;
}

// g <- prox(g) + a y + b, or, with slopes, the adjoint's g / (d + t (1 - d)).
extern "C" __global__ void __launch_bounds__(THREADS)
fourier_answer(Map map, float t, const float* slopes, float a, const float* y, float b, float* g, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step())
        g[i] = slopes ? g[i] / (slopes[i] + t * (1.0f - slopes[i])) : prox(map, t, g[i]) + (a == 0.0f ? b : fmaf(a, y[i], b));
}

// Where the solution z is below its activation's kink: g times `gain`, and then times `slope`.
extern "C" __global__ void __launch_bounds__(THREADS) fourier_answer_at_kink(const float* z, float gain, float slope, float* g, u64 len) {
    for (u64 i = first_entry(); i < len; i += entry_step())
        if (!(z[i] > 0.0f)) g[i] = g[i] * gain * slope;
}

// The first iteration sends everything, and the second too, if it is `twice`; no part of any sample is there.
extern "C" __global__ void __launch_bounds__(THREADS) begin_flows(Flow* flows, u32 twice, u32* arrived, u32 batch) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample >= batch) return;
    arrived[sample] = 0;
    if (flows) flows[sample] = {1, twice, 1.0f, 1.0f, 0.0, 0.0f, 0};
}

// Ends the samples that are to end, by the parts of their distances. A thread per sample.
extern "C" __global__ void __launch_bounds__(THREADS)
conclude_waves(Stopping stopping, u32 iteration, Samples samples, const Distance* parts, u32 count, u32 batch) {
    u32 sample = blockIdx.x * THREADS + threadIdx.x;
    if (sample >= batch || samples.active[sample] != 1) return;
    Distance d = no_distance();
    for (u32 k = 0; k < count; k++) d = joined(d, parts[(u64)sample * count + k]);
    conclude(stopping, iteration, samples, sample, d);
}
