// The resolvents R = (I + t (I - W))^-1 of a circular convolution W: one complex matrix for each frequency, inverted in f64.
// A dense map is a convolution of an image of one pixel.
//
// Without pivoting, as on the CPU: the Hermitian part of I + t (I - W) is positive definite where W is monotone. Every inverse is
// tried on a probe vector; one that is wrong makes all solves with it end as not finite.
#include "common.cuh"

struct Complex {
    double re, im;
};
__device__ inline Complex times(Complex a, Complex b) { return {fma(a.re, b.re, -a.im * b.im), fma(a.re, b.im, a.im * b.re)}; }
// sum + a b
__device__ inline Complex plus(Complex sum, Complex a, Complex b) {
    return {fma(a.re, b.re, fma(-a.im, b.im, sum.re)), fma(a.re, b.im, fma(a.im, b.re, sum.im))};
}
__device__ inline Complex inverse_of(Complex a) {
    double size = 1.0 / (a.re * a.re + a.im * a.im);
    return {a.re * size, -a.im * size};
}

struct __align__(8) ComplexF {
    float re, im;
};

struct Circular {
    // [out][in][tap]
    const float* weights;
    // exp(2 pi i j / n) for the height and for the width.
    const Complex* down;
    const Complex* across;
    double step;
    u32 units, side, height, width;
};

// What comes of an inverse: C = (2 R - I) / (height width) by columns, `padded` numbers to a column, or R, if `plain` is given.
struct Reflections {
    ComplexF* matrices;
    float* plain;
    u32* bad;
    u32 padded, unused;
};

__device__ inline Complex phase_of(const Circular& w, u32 frequency, u32 tap) {
    u32 ky = frequency % w.height, kx = frequency / w.height, centre = w.side / 2;
    // The taps around the centre, brought between 0 and the size: phases have that period.
    u64 below = (u64)(tap / w.side) + (u64)centre * (w.height - 1), right = (u64)(tap % w.side) + (u64)centre * (w.width - 1);
    return times(w.down[below % w.height * ky % w.height], w.across[right % w.width * kx % w.width]);
}

// (1 + t) I - t W^, from a sum over the taps.
__device__ inline Complex shifted(const Circular& w, u32 out, u32 in, Complex symbol) {
    return {(out == in ? 1.0 + w.step : 0.0) - w.step * symbol.re, -w.step * symbol.im};
}

__device__ inline Complex probe_of(u32 k) {
    double golden = 0.6180339887498949 * (k + 1), silver = 1.4142135623730951 * (k + 1);
    return {2.0 * (golden - floor(golden)) - 1.0, 2.0 * (silver - floor(silver)) - 1.0};
}
// Written so that NaN fails too.
__device__ inline bool is_probe(Complex x, u32 k) {
    Complex probe = probe_of(k);
    return fabs(x.re - probe.re) <= 1e-8 && fabs(x.im - probe.im) <= 1e-8;
}

// Entry (out, in) of an inverse; those beyond the units are zero.
__device__ inline void put(const Reflections& to, const Circular& w, u32 frequency, u32 out, u32 in, Complex r) {
    if (to.plain) {
        if (out < w.units && in < w.units) to.plain[(u64)out * w.units + in] = (float)r.re;
        return;
    }
    if (out >= to.padded || in >= to.padded) return;
    double gain = 1.0 / ((double)w.height * w.width);
    bool inside = out < w.units && in < w.units;
    float re = inside ? (float)(gain * (2.0 * r.re - (out == in ? 1.0 : 0.0))) : 0.0f, im = inside ? (float)(gain * 2.0 * r.im) : 0.0f;
    to.matrices[((u64)frequency * to.padded + in) * to.padded + out] = {re, im};
}

// y = A x for a matrix that lies in tiles: this thread has the entries (16 i + its row, 16 j + its column). y is x's twin in shared memory.
template <u32 T>
__device__ void tiled_image(const Complex (&a)[T][T], const Complex* x, Complex* y) {
    __shared__ Complex parts[16 * T][16];
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16;
#pragma unroll
    for (u32 i = 0; i < T; i++) {
        Complex sum = {0.0, 0.0};
#pragma unroll
        for (u32 j = 0; j < T; j++) sum = plus(sum, a[i][j], x[16 * j + column]);
        parts[16 * i + row][column] = sum;
    }
    __syncthreads();
    if (threadIdx.x < 16 * T) {
        Complex sum = {0.0, 0.0};
        for (u32 j = 0; j < 16; j++) sum = {sum.re + parts[threadIdx.x][j].re, sum.im + parts[threadIdx.x][j].im};
        y[threadIdx.x] = sum;
    }
    __syncthreads();
}

// Inverts a matrix of n units that lies in tiles, a pivot after the other.
template <u32 T>
__device__ void invert_tiles(Complex (&a)[T][T], u32 n) {
    __shared__ Complex columns[2][16 * T], rows[2][16 * T];
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16;
    for (u32 k = 0; k < n; k++) {
        // The pivot's row and column, for all.
        Complex* of_row = rows[k % 2];
        Complex* of_column = columns[k % 2];
#pragma unroll
        for (u32 i = 0; i < T; i++)
#pragma unroll
            for (u32 j = 0; j < T; j++) {
                if (16 * i + row == k) of_row[16 * j + column] = a[i][j];
                if (16 * j + column == k) of_column[16 * i + row] = a[i][j];
            }
        __syncthreads();
        Complex pivot = inverse_of(of_column[k]);
#pragma unroll
        for (u32 j = 0; j < T; j++) {
            bool own = 16 * j + column == k;
            Complex scaled = own ? pivot : times(pivot, of_row[16 * j + column]);
#pragma unroll
            for (u32 i = 0; i < T; i++) {
                Complex factor = of_column[16 * i + row], kept = own ? Complex{0.0, 0.0} : a[i][j];
                a[i][j] = 16 * i + row == k ? scaled : plus(kept, {-factor.re, -factor.im}, scaled);
            }
        }
    }
}

// One block per frequency, up to 16 T units; the matrix lies in the threads' registers.
template <u32 T>
__device__ void resolvents(const Circular& w, const Complex* matrices, const Reflections& to) {
    __shared__ Complex probe[16 * T], image[16 * T];
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16, n = w.units, frequency = blockIdx.x;
    const Complex* matrix = matrices + (u64)frequency * n * n;
    Complex a[T][T];
#pragma unroll
    for (u32 i = 0; i < T; i++)
#pragma unroll
        for (u32 j = 0; j < T; j++) {
            u32 out = 16 * i + row, in = 16 * j + column;
            a[i][j] = out < n && in < n ? matrix[out * n + in] : Complex{0.0, 0.0};
        }
    if (threadIdx.x < 16 * T) probe[threadIdx.x] = threadIdx.x < n ? probe_of(threadIdx.x) : Complex{0.0, 0.0};
    __syncthreads();
    tiled_image<T>(a, probe, image);
    invert_tiles<T>(a, n);
    tiled_image<T>(a, image, probe);
    if (threadIdx.x < n && !is_probe(probe[threadIdx.x], threadIdx.x)) to.bad[0] = 1;
#pragma unroll
    for (u32 i = 0; i < T; i++)
#pragma unroll
        for (u32 j = 0; j < T; j++) put(to, w, frequency, 16 * i + row, 16 * j + column, a[i][j]);
}

#define RESOLVENTS(units)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS)                              \
    resolvents_##units(Circular w, const Complex* matrices, Reflections to) {          \
        resolvents<units / 16>(w, matrices, to);                                       \
    }
RESOLVENTS(16)
RESOLVENTS(32)
RESOLVENTS(48)
RESOLVENTS(64)


// Taps that are in shared memory at a time, and frequencies of a block.
#define TAPS 25
#define WAVES 8

// (1 + t) I - t W^ for all frequencies: [frequency][out][in]. A block has 256 entries of W, whose weights it brings to shared memory, and
// some frequencies; `parts` blocks share the frequencies of the same entries.
extern "C" __global__ void __launch_bounds__(THREADS) shifted_symbols(Circular w, Complex* matrices, u32 frequencies, u32 parts) {
    __shared__ float weights[THREADS * TAPS];
    __shared__ Complex phases[WAVES][TAPS];
    u32 n = w.units, taps = w.side * w.side, wave = blockIdx.x % parts * WAVES, count = min((u32)WAVES, frequencies - wave);
    u64 len = (u64)n * n, first = (u64)(blockIdx.x / parts) * THREADS, at = first + threadIdx.x;
    u32 entries = len - first < THREADS ? len - first : THREADS;
    Complex sums[WAVES];
#pragma unroll
    for (u32 k = 0; k < WAVES; k++) sums[k] = {0.0, 0.0};
    for (u32 from = 0; from < taps; from += TAPS) {
        u32 some = min((u32)TAPS, taps - from);
        __syncthreads();
        for (u32 i = threadIdx.x; i < entries * some; i += THREADS) weights[i] = w.weights[(first + i / some) * taps + from + i % some];
        for (u32 i = threadIdx.x; i < count * some; i += THREADS) phases[i / some][i % some] = phase_of(w, wave + i / some, from + i % some);
        __syncthreads();
        if (threadIdx.x >= entries) continue;
        for (u32 tap = 0; tap < some; tap++) {
            double weight = weights[threadIdx.x * some + tap];
#pragma unroll
            for (u32 k = 0; k < WAVES; k++) {
                // Phases of frequencies that there are not are of no use, and harmless.
                Complex phase = phases[k][tap];
                sums[k] = {fma(weight, phase.re, sums[k].re), fma(weight, phase.im, sums[k].im)};
            }
        }
    }
    if (threadIdx.x >= entries) return;
#pragma unroll
    for (u32 k = 0; k < WAVES; k++)
        if (k < count) matrices[(wave + k) * len + at] = shifted(w, at / n, at % n, sums[k]);
}

// Sixteen pivots of matrices of any size, from one memory to another: [frequency][out][in]. With K the pivots and P the inverse of the tile
// A_KK: A_KK <- P, A_KJ <- P A_KJ, A_IK <- -A_IK P, A_IJ <- A_IJ - A_IK P A_KJ. A block has sixteen rows of a frequency.
extern "C" __global__ void __launch_bounds__(THREADS) eliminate(u32 n, u32 pivots, const Complex* from, Complex* to) {
    __shared__ Complex inverse[16][16], left[16][16], above[16][16];
    u32 row = threadIdx.x / 16, column = threadIdx.x % 16, bands = (n + 15) / 16, band = blockIdx.x % bands, pivot = pivots / 16;
    u64 matrix = (u64)(blockIdx.x / bands) * n * n;
    // Outside of the matrix the identity stands, which is its own inverse.
    auto entry = [&](u32 out, u32 in) { return out < n && in < n ? from[matrix + (u64)out * n + in] : Complex{out == in ? 1.0 : 0.0, 0.0}; };
    u32 out = 16 * band + row;
    Complex tile[1][1] = {{entry(pivots + row, pivots + column)}};
    left[row][column] = entry(out, pivots + column);
    invert_tiles<1>(tile, 16);
    inverse[row][column] = tile[0][0];
    __syncthreads();
    // P, or -A_IK P: what multiplies A_KJ.
    Complex factor = tile[0][0];
    if (band != pivot) {
        factor = {0.0, 0.0};
        for (u32 k = 0; k < 16; k++) factor = plus(factor, {-left[row][k].re, -left[row][k].im}, inverse[k][column]);
    }
    __syncthreads();
    left[row][column] = factor;
    __syncthreads();
    Complex factors[16];
#pragma unroll
    for (u32 k = 0; k < 16; k++) factors[k] = left[row][k];
    for (u32 j = 0; j < bands; j++) {
        u32 in = 16 * j + column;
        __syncthreads();
        above[row][column] = entry(pivots + row, in);
        __syncthreads();
        Complex sum = band == pivot ? Complex{0.0, 0.0} : entry(out, in);
#pragma unroll
        for (u32 k = 0; k < 16; k++) sum = plus(sum, factors[k], above[k][column]);
        if (out < n && in < n) to[matrix + (u64)out * n + in] = j == pivot ? factor : sum;
    }
}

// images <- A probe, before the elimination; after it, whether A^-1 images is the probe again. One block per frequency.
extern "C" __global__ void __launch_bounds__(THREADS) probe_matrices(u32 n, const Complex* matrices, Complex* images, u32* bad) {
    const Complex* matrix = matrices + (u64)blockIdx.x * n * n;
    Complex* image = images + (u64)blockIdx.x * n;
    for (u32 out = threadIdx.x; out < n; out += THREADS) {
        Complex sum = {0.0, 0.0};
        for (u32 in = 0; in < n; in++) sum = plus(sum, matrix[(u64)out * n + in], bad ? image[in] : probe_of(in));
        if (!bad) image[out] = sum;
        else if (!is_probe(sum, out)) bad[0] = 1;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) put_resolvents(Circular w, const Complex* matrices, Reflections to, u64 len) {
    u32 n = w.units, side = to.plain ? n : to.padded;
    for (u64 at = first_entry(); at < len; at += entry_step()) {
        u32 in = at % side, out = at / side % side;
        u64 frequency = at / side / side;
        bool inside = out < n && in < n;
        put(to, w, frequency, out, in, inside ? matrices[(frequency * n + out) * n + in] : Complex{0.0, 0.0});
    }
}

// Every matrix becomes its conjugate transpose. A thread has an entry of one half, and the one that it changes places with.
extern "C" __global__ void __launch_bounds__(THREADS) turn_matrices(u32 padded, ComplexF* matrices, u64 len) {
    for (u64 at = first_entry(); at < len; at += entry_step()) {
        u32 out = at % padded, in = at / padded % padded;
        if (out < in) continue;
        ComplexF* matrix = matrices + at / padded / padded * padded * padded;
        ComplexF one = matrix[in * padded + out], other = matrix[out * padded + in];
        matrix[in * padded + out] = {other.re, -other.im};
        matrix[out * padded + in] = {one.re, -one.im};
    }
}
