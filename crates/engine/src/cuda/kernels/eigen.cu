// The largest eigenvalue of the symmetric part of a linear operator, and its derivative: what shifted monotone weights need.
// A convolution is one Hermitian matrix per frequency of a torus (`cpu/network/spectrum.rs`), a dense operator one real matrix.
#include "common.cuh"

struct Torus {
    // Rows of a matrix: units of the operator.
    u32 units, side, height, width;
    // Whether the matrix is real: dense operators.
    u32 real, frequencies;
};

__device__ inline void phase(const Torus& torus, u32 frequency, u32 tap, double& cosine, double& sine) {
    u32 columns = torus.width / 2 + 1;
    double centre = torus.side / 2;
    double down = (double)(tap / torus.side) - centre, right = (double)(tap % torus.side) - centre;
    double turns = (double)(frequency / columns) * down / torus.height + (double)(frequency % columns) * right / torus.width;
    sincospi(2.0 * turns, &sine, &cosine);
}

// Frequencies of a block, and taps whose phases it keeps at a time.
#define FREQUENCIES 8
#define TAPS 32

// The matrices of all frequencies: [frequency][re, im][row][column]. A block takes THREADS entries of FREQUENCIES matrices, so that the
// weights are read once for all of these and the phases found once for all of those.
extern "C" __global__ void __launch_bounds__(THREADS) symbols(Torus torus, const float* w, double* matrices) {
    __shared__ double cosines[TAPS][FREQUENCIES], sines[TAPS][FREQUENCIES];
    u64 n = torus.units, square = n * n;
    u32 taps = torus.side * torus.side, pieces = (square + THREADS - 1) / THREADS, first = blockIdx.x / pieces * FREQUENCIES;
    u64 at = (u64)(blockIdx.x % pieces) * THREADS + threadIdx.x, o = at / n, i = at % n;
    double re[FREQUENCIES] = {}, im[FREQUENCIES] = {};
    for (u32 begin = 0; begin < taps; begin += TAPS) {
        u32 count = min(taps - begin, TAPS);
        __syncthreads();
        for (u32 k = threadIdx.x; k < count * FREQUENCIES; k += THREADS) {
            u32 tap = k / FREQUENCIES, f = k % FREQUENCIES;
            phase(torus, first + f, begin + tap, cosines[tap][f], sines[tap][f]);
        }
        __syncthreads();
        for (u32 tap = 0; at < square && tap < count; tap++) {
            u32 here = begin + tap;
            double entry = 0.5 * ((double)w[(o * n + i) * taps + here] + (double)w[(i * n + o) * taps + taps - 1 - here]);
#pragma unroll
            for (u32 f = 0; f < FREQUENCIES; f++) {
                re[f] += entry * cosines[tap][f];
                im[f] += entry * sines[tap][f];
            }
        }
    }
#pragma unroll
    for (u32 f = 0; f < FREQUENCIES; f++) {
        if (at >= square || first + f >= torus.frequencies) continue;
        matrices[(u64)(first + f) * 2 * square + at] = re[f];
        matrices[(u64)(first + f) * 2 * square + square + at] = im[f];
    }
}

// ---- matrices that fit into a block's registers ----------------------------------------------------------------------

namespace hermitian {
struct Complex {
    double re, im;
};
__device__ inline double square(Complex x) { return fma(x.re, x.re, x.im * x.im); }
// sum + a b
__device__ inline Complex plus(Complex sum, Complex a, Complex b) {
    return {fma(a.re, b.re, fma(-a.im, b.im, sum.re)), fma(a.re, b.im, fma(a.im, b.re, sum.im))};
}

// A Hermitian matrix in the registers of a block: a thread has the entries (16 i + its row, 16 j + its column); zero beyond the n-th.
template <u32 T>
struct Tiles {
    Complex at[T][T];
    u32 n, row, column;

    __device__ Tiles(u32 n) : n(n), row(threadIdx.x / 16), column(threadIdx.x % 16) {}

    template <class F>
    __device__ void each(F f) {
#pragma unroll
        for (u32 i = 0; i < T; i++)
#pragma unroll
            for (u32 j = 0; j < T; j++) f(16 * i + row, 16 * j + column, at[i][j]);
    }

    __device__ void read(const double* re) {
        const double* im = re + (u64)n * n;
        each([&](u32 i, u32 j, Complex& x) {
            bool inside = i < n && j < n;
            x = inside ? Complex{re[(u64)i * n + j], im[(u64)i * n + j]} : Complex{0.0, 0.0};
        });
    }

    // shift I - the matrix.
    __device__ void subtract_from(double shift) {
        each([&](u32 i, u32 j, Complex& x) { x = {(i == j && i < n ? shift : 0.0) - x.re, -x.im}; });
    }

    // y = this x, both in shared memory.
    __device__ void times(const Complex* x, Complex* y) {
        __shared__ Complex parts[16 * T][16];
#pragma unroll
        for (u32 i = 0; i < T; i++) {
            Complex sum = {0.0, 0.0};
#pragma unroll
            for (u32 j = 0; j < T; j++) sum = plus(sum, at[i][j], x[16 * j + column]);
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

    // The inverse in place, by Gauss and Jordan without pivoting; false if the matrix is not positive definite: that shows in a pivot.
    __device__ bool invert() {
        __shared__ Complex rows[2][16 * T], columns[2][16 * T];
        for (u32 k = 0; k < n; k++) {
            Complex* of_row = rows[k % 2];
            Complex* of_column = columns[k % 2];
            each([&](u32 i, u32 j, Complex& x) {
                if (i == k) of_row[j] = x;
                if (j == k) of_column[i] = x;
            });
            __syncthreads();
            double pivot = of_column[k].re;
            if (!(pivot > 0.0)) break;
            double inverse = 1.0 / pivot;
#pragma unroll
            for (u32 j = 0; j < T; j++) {
                bool own = 16 * j + column == k;
                Complex across = of_row[16 * j + column];
                Complex scaled = own ? Complex{inverse, 0.0} : Complex{inverse * across.re, inverse * across.im};
#pragma unroll
                for (u32 i = 0; i < T; i++) {
                    Complex factor = of_column[16 * i + row], kept = own ? Complex{0.0, 0.0} : at[i][j];
                    at[i][j] = 16 * i + row == k ? scaled : plus(kept, {-factor.re, -factor.im}, scaled);
                }
            }
            if (k + 1 == n) return true;
        }
        // Before the shared memory is used again.
        __syncthreads();
        return false;
    }
};

// How far above its vector's value a bound is tried, in residuals, at first and after a failure.
#define REACH 2.0
#define FARTHER 8.0

// The largest eigenvalue of one matrix per block, from above and from below, and a unit vector. A bound `above` is one for which
// above I - A is positive definite (elimination tells). From a bound's inverse comes the next one by Laguerre's method, which never goes
// below the largest eigenvalue, and a better vector by inverse iteration; the vector's own value and residual say where a bound that is
// nearer still may be tried, at the cost of one elimination. tops[frequency] = (above, the vector's value), a vector per frequency in
// `vectors`. What ended earlier is gone on with if `resume`d, except where it cannot be the largest of all (values that other blocks find
// meanwhile only leave out more of what cannot).
template <u32 T>
__device__ void bracket_top(const Torus& torus, const double* matrices, double* vectors, double* tops, u32 rounds, u32 resume) {
    __shared__ Complex v[16 * T], image[16 * T];
    u32 n = torus.units, size = torus.real ? n : 2 * n, own = threadIdx.x;
    const double* matrix = matrices + (u64)blockIdx.x * 2 * n * n;
    double* vector = vectors + (u64)blockIdx.x * size;
    double* top = tops + 2 * blockIdx.x;
    Tiles<T> a(n);
    a.read(matrix);
    double trace = 0.0, squares = 0.0;
    a.each([&](u32 i, u32 j, Complex& x) {
        trace += i == j ? x.re : 0.0;
        squares += square(x);
    });
    double mean = block_sum(trace) / n, norm = sqrt(block_sum(squares)), enough = 1e-12 * norm;
    double spread = sqrt(fmax(norm * norm / n - mean * mean, 0.0)), above = mean + spread * sqrt(n - 1.0) + enough;
    bool there = own < n;
    if (resume) {
        double best = -INFINITY;
        for (u32 f = own; f < torus.frequencies; f += THREADS) best = fmax(best, tops[2 * f + 1]);
        if (top[0] < block_max(best)) return;
        above = top[0];
        if (own < 16 * T) v[own] = {there ? vector[own] : 0.0, there && !torus.real ? vector[n + own] : 0.0};
    } else {
        // A unit vector without symmetry: a Weyl sequence.
        double x = (own + 1) * 0.6180339887498949, weyl = there ? x - floor(x) + 0.1 : 0.0, length = sqrt(block_sum(weyl * weyl));
        if (own < 16 * T) v[own] = {weyl / length, 0.0};
    }
    __syncthreads();
    double value = 0.0, residual = 0.0, next = above, reach = REACH;
    for (u32 round = 0;; round++) {
        a.times(v, image);
        Complex x = own < 16 * T ? v[own] : Complex{0.0, 0.0}, y = own < 16 * T ? image[own] : Complex{0.0, 0.0};
        value = block_sum(x.re * y.re + x.im * y.im);
        residual = sqrt(block_sum(square({y.re - value * x.re, y.im - value * x.im})));
        // Written so that what is not a number ends here.
        if (!(above - value > enough) || round == rounds) break;
        double trial = fmin(next, value + fmax(reach * residual, 0.5 * enough));
        a.subtract_from(trial);
        if (!a.invert()) {
            next = trial == next ? above : next;
            reach *= FARTHER;
        } else {
            above = trial;
            reach = REACH;
            double powers[2] = {0.0, 0.0};
            a.each([&](u32 i, u32 j, Complex& x) {
                powers[0] += i == j ? x.re : 0.0;
                powers[1] += square(x);
            });
            double sum = block_sum(powers[0]), sum2 = block_sum(powers[1]);
            next = fmin(above, above - n / (sum + sqrt(fmax((n - 1.0) * (n * sum2 - sum * sum), 0.0))) + 0.01 * enough);
            a.times(v, image);
            a.times(image, v);
            a.times(v, image);
            double length = sqrt(block_sum(own < 16 * T ? square(image[own]) : 0.0));
            if (own < 16 * T) v[own] = {image[own].re / length, image[own].im / length};
            __syncthreads();
        }
        a.read(matrix);
    }
    if (there) {
        vector[own] = v[own].re;
        if (!torus.real) vector[n + own] = v[own].im;
    }
    if (own == 0) {
        top[0] = above;
        top[1] = value;
    }
}

}  // namespace hermitian

#define BRACKET(T, units)                                                                                                                    \
    extern "C" __global__ void __launch_bounds__(THREADS, T <= 3 ? 2 : 1)                                                                    \
    bracket_tops_##units(Torus torus, const double* matrices, double* vectors, double* tops, u32 rounds, u32 resume) {                       \
        hermitian::bracket_top<T>(torus, matrices, vectors, tops, rounds, resume);                                                           \
    }
BRACKET(1, 16)
BRACKET(2, 32)
BRACKET(3, 48)
BRACKET(4, 64)
BRACKET(6, 96)

// ---- larger ones ------------------------------------------------------------------------------------------------------

// Steps of Lanczos' method, at most. What is not found by then is bounded by the residual all the same.
#define STEPS 128
#define FINE 1e-10

struct Tridiagonal {
    double diagonal[STEPS], coupling[STEPS], pivots[STEPS], weights[STEPS];
};

// The next pivot of x I - T; positive for all i where x is above all eigenvalues.
__device__ inline double next_pivot(const Tridiagonal& t, u32 i, double x, double pivot) {
    double coupling = i > 0 ? t.coupling[i - 1] : 0.0;
    return x - t.diagonal[i] - (i > 0 ? coupling * coupling / pivot : 0.0);
}

__device__ inline bool is_above(const Tridiagonal& t, u32 steps, double x) {
    double pivot = 1.0;
    for (u32 i = 0; i < steps; i++) {
        pivot = next_pivot(t, i, x, pivot);
        if (pivot <= 0.0) return false;
    }
    return true;
}

// The largest eigenvalue from above, for all threads, each of which tries another point of the interval that is left.
__device__ inline double top_of_tridiagonal(const Tridiagonal& t, u32 steps, double scale, double accuracy) {
    double below = -INFINITY, widest = 0.0;
    for (u32 i = 0; i < steps; i++) below = t.diagonal[i] > below ? t.diagonal[i] : below;
    for (u32 i = 0; i + 1 < steps; i++) widest = t.coupling[i] > widest ? t.coupling[i] : widest;
    double above = below + 2.0 * widest + 1e-14 * scale, least = accuracy > 4e-16 * scale ? accuracy : 4e-16 * scale;
    while (above - below > least) {
        double part = (above - below) / (THREADS + 1);
        u32 under = block_count(!is_above(t, steps, below + part * (threadIdx.x + 1)));
        double from = under == 0 ? below : below + part * under, to = under == THREADS ? above : below + part * (under + 1);
        if (!(to - from < above - below)) break;
        below = from;
        above = to < above ? to : above;
    }
    return above;
}

// Its unit vector in `weights`, by inverse iteration from the value. One thread.
__device__ inline void top_vector(Tridiagonal& t, u32 steps, double scale, double value) {
    for (u32 tries = 0; tries < 10000 && !is_above(t, steps, value); tries++) value += 1e-15 * scale;
    double pivot = 1.0;
    for (u32 i = 0; i < steps; i++) {
        t.pivots[i] = pivot = next_pivot(t, i, value, pivot);
        t.weights[i] = 1.0;
    }
    for (u32 round = 0; round < 3; round++) {
        double* x = t.weights;
        for (u32 i = 1; i < steps; i++) x[i] += x[i - 1] * t.coupling[i - 1] / t.pivots[i - 1];
        for (u32 i = 0; i < steps; i++) x[i] /= t.pivots[i];
        for (u32 i = steps; i-- > 1;) x[i - 1] += x[i] * t.coupling[i - 1] / t.pivots[i - 1];
        double length = 0.0;
        for (u32 i = 0; i < steps; i++) length += x[i] * x[i];
        length = sqrt(length);
        for (u32 i = 0; i < steps; i++) x[i] /= length;
    }
}

__device__ inline double inner(const double* x, const double* y, u32 size) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < size; i += THREADS) sum += x[i] * y[i];
    return block_sum(sum);
}

// Threads that share an inner product with one of many vectors, and how many of these are taken at a time.
#define LANES 8
#define TOGETHER (THREADS / LANES)

// Takes the parts along `count` orthonormal vectors out of `next`: all inner products first, many at a time (Gram and Schmidt's classical
// method; done twice, it is as good as the other).
__device__ inline void orthogonalise(const double* vectors, u32 count, u32 size, double* next) {
    __shared__ double overlaps[STEPS], parts[THREADS];
    u32 lane = threadIdx.x % LANES;
    for (u32 first = 0; first < count; first += TOGETHER) {
        u32 old = first + threadIdx.x / LANES;
        double sum = 0.0;
#pragma unroll 4
        for (u32 i = lane; old < count && i < size; i += LANES) sum += next[i] * vectors[(u64)old * size + i];
        parts[threadIdx.x] = sum;
        __syncthreads();
        if (lane == 0 && old < count) {
            sum = 0.0;
            for (u32 k = 0; k < LANES; k++) sum += parts[threadIdx.x + k];
            overlaps[old] = sum;
        }
        __syncthreads();
    }
    for (u32 i = threadIdx.x; i < size; i += THREADS) {
        double x = next[i];
#pragma unroll 8
        for (u32 old = 0; old < count; old++) x -= overlaps[old] * vectors[(u64)old * size + i];
        next[i] = x;
    }
    __syncthreads();
}

// Lanczos' method with full reorthogonalisation, one block per frequency. `basis` has room for STEPS + 1 vectors of each; the unit
// eigenvector goes to the first. tops[frequency] = (value + residual, value): some eigenvalue lies that near to `value`.
extern "C" __global__ void __launch_bounds__(THREADS) top_eigenpairs(Torus torus, const double* matrices, double* basis, double* tops) {
    __shared__ Tridiagonal t;
    __shared__ double residual;
    __shared__ bool done;
    double value = 0.0;
    u32 n = torus.units, size = torus.real ? n : 2 * n;
    const double* re = matrices + (u64)blockIdx.x * 2 * n * n;
    const double* im = re + (u64)n * n;
    double* vectors = basis + (u64)blockIdx.x * (STEPS + 1) * size;
    double largest = 0.0;
    for (u64 i = threadIdx.x; i < (u64)n * n; i += THREADS) {
        largest = !(fabs(re[i]) <= largest) ? fabs(re[i]) : largest;
        largest = !(fabs(im[i]) <= largest) ? fabs(im[i]) : largest;
    }
    double scale = block_max(largest) * size;
    // A unit vector without symmetry: a Weyl sequence.
    for (u32 i = threadIdx.x; i < size; i += THREADS) {
        double x = (i + 1) * 0.6180339887498949;
        vectors[i] = scale == 0.0 ? (i == 0 ? 1.0 : 0.0) : x - floor(x) + 0.1;
    }
    if (scale == 0.0) {
        if (threadIdx.x == 0) tops[2 * blockIdx.x] = tops[2 * blockIdx.x + 1] = 0.0;
        return;
    }
    double length = sqrt(inner(vectors, vectors, size));
    for (u32 i = threadIdx.x; i < size; i += THREADS) vectors[i] /= length;
    for (u32 steps = 1;; steps++) {
        const double* last = vectors + (u64)(steps - 1) * size;
        double* next = vectors + (u64)steps * size;
        __syncthreads();
        for (u32 k = threadIdx.x; k < size; k += THREADS) {
            double sum = 0.0;
            u32 column = k % n;
            // The columns of a Hermitian matrix are its conjugate rows.
            for (u32 j = 0; j < n; j++) {
                double a = re[(u64)j * n + column], b = im[(u64)j * n + column];
                if (torus.real) sum += a * last[j];
                else if (k < n) sum += a * last[j] + b * last[n + j];
                else sum += a * last[n + j] - b * last[j];
            }
            next[k] = sum;
        }
        double diagonal = inner(next, last, size);
        // Twice is enough (Kahan and Parlett).
        for (u32 round = 0; round < 2; round++) orthogonalise(vectors, steps, size, next);
        double norm = sqrt(inner(next, next, size));
        bool exhausted = steps == size || norm <= 1e-14 * scale;
        if (threadIdx.x == 0) {
            t.diagonal[steps - 1] = diagonal;
            t.coupling[steps - 1] = norm;
        }
        __syncthreads();
        bool look = exhausted || steps % 8 == 0 || steps == STEPS;
        if (look) {
            double enough = FINE * scale / size;
            value = top_of_tridiagonal(t, steps, scale, 1e-4 * enough);
            if (threadIdx.x == 0) {
                top_vector(t, steps, scale, value);
                residual = exhausted ? 1e-14 * scale : norm * fabs(t.weights[steps - 1]);
                done = exhausted || residual <= enough || steps == STEPS;
            }
            __syncthreads();
        }
        if (look && done) {
            // Each thread overwrites its own entries of the first vector, after it has read them.
            double squares = 0.0;
            for (u32 i = threadIdx.x; i < size; i += THREADS) {
                double x = 0.0;
                for (u32 k = 0; k < steps; k++) x += t.weights[k] * vectors[(u64)k * size + i];
                vectors[i] = x;
                squares += x * x;
            }
            double length = sqrt(block_sum(squares));
            for (u32 i = threadIdx.x; i < size; i += THREADS) vectors[i] /= length;
            if (threadIdx.x == 0) {
                tops[2 * blockIdx.x] = value + residual;
                tops[2 * blockIdx.x + 1] = value;
            }
            return;
        }
        for (u32 i = threadIdx.x; i < size; i += THREADS) next[i] /= norm;
    }
}

struct Peak {
    // By how much the diagonal must be lowered, and at which frequency the largest eigenvalue is.
    double excess;
    u64 frequency;
};

// One block: the largest over all frequencies (the first of several), and a little more, so that rounding the weights costs none of the
// margin.
extern "C" __global__ void __launch_bounds__(THREADS) find_peak(Torus torus, const double* tops, double margin, Peak* peak) {
    __shared__ u32 firsts[THREADS];
    // As if one thread went through them: what is not a number is never larger, and stays if it is the first.
    double largest = tops[0];
    for (u32 f = threadIdx.x; f < torus.frequencies; f += THREADS) largest = tops[2 * f] > largest ? tops[2 * f] : largest;
    largest = block_max(largest);
    u32 best = torus.frequencies;
    for (u32 f = threadIdx.x; f < torus.frequencies; f += THREADS)
        if (tops[2 * f] == largest && f < best) best = f;
    firsts[threadIdx.x] = best;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 k = 0; k < THREADS; k++) best = min(best, firsts[k]);
    if (best == torus.frequencies) best = 0;
    double top = tops[2 * best];
    double excess = top + 8.0 * 1.1920928955078125e-7 * fabs(top) - (1.0 - margin);
    // Not a number stays one.
    peak->excess = excess <= 0.0 ? 0.0 : excess;
    peak->frequency = best;
}

// W = V - excess I, and the derivative of the largest eigenvalue for V. Every frequency has room for `stride` vectors.
extern "C" __global__ void __launch_bounds__(THREADS)
make_shifted(Torus torus, const float* v, const double* basis, u32 stride, const Peak* peak, float* w, float* derivative) {
    u64 n = torus.units;
    u32 taps = torus.side * torus.side, size = torus.real ? n : 2 * n, frequency = peak->frequency;
    const double* vector = basis + (u64)frequency * stride * size;
    for (u64 at = first_entry(); at < n * n * taps; at += entry_step()) {
        u32 tap = at % taps, i = at / taps % n, o = at / taps / n;
        w[at] = o == i && tap == taps / 2 ? v[at] - (float)peak->excess : v[at];
        if (torus.real) {
            derivative[at] = (float)(vector[o] * vector[i]);
            continue;
        }
        const double* im = vector + n;
        double cosine, sine, even = vector[o] * vector[i] + im[o] * im[i], odd = vector[o] * im[i] - im[o] * vector[i];
        phase(torus, frequency, tap, cosine, sine);
        derivative[at] = (float)(even * cosine - odd * sine);
    }
}

// The sum of the gradients where the identity has its ones. One block.
extern "C" __global__ void __launch_bounds__(THREADS) sum_diagonal(Torus torus, const float* g, double* trace) {
    u64 n = torus.units;
    u32 taps = torus.side * torus.side;
    double sum = 0.0;
    for (u64 i = threadIdx.x; i < n; i += THREADS) sum += g[(i * n + i) * taps + taps / 2];
    sum = block_sum(sum);
    if (threadIdx.x == 0) trace[0] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
pull_shifted(const float* g, const double* trace, const float* derivative, const Peak* peak, float* out, u64 len) {
    float along = peak->excess > 0.0 ? (float)trace[0] : 0.0f;
    for (u64 i = first_entry(); i < len; i += entry_step()) out[i] = g[i] - along * derivative[i];
}
