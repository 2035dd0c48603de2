// The largest eigenvalue of the symmetric part of a linear operator, and its derivative: what shifted monotone weights need.
// A convolution is one Hermitian matrix per frequency of a torus (`cpu/network/spectrum.rs`); a dense operator is one of a single
// pixel, and its matrix is real.
#include "mma.cuh"

struct Torus {
    // Rows of a matrix: units of the operator.
    u32 units, side, height, width, frequencies;
    // Of Lanczos' method, at most. What is not found by then is bounded by the residual all the same.
    u32 steps;
};

struct alignas(16) Complex {
    double re, im;
};

__device__ inline double product(Complex x, Complex y) { return x.re * y.re + x.im * y.im; }

__device__ inline Complex phase(const Torus& torus, u32 frequency, u32 tap) {
    u32 columns = torus.width / 2 + 1;
    double centre = torus.side / 2;
    double down = (double)(tap / torus.side) - centre, right = (double)(tap % torus.side) - centre;
    double turns = (double)(frequency / columns) * down / torus.height + (double)(frequency % columns) * right / torus.width;
    Complex z;
    sincos(6.283185307179586476925 * turns, &z.im, &z.re);
    return z;
}

// Lanes that share a row of a matrix, and where an entry is: they take neighbouring columns, and neighbours read neighbours.
#define SHARERS 4
#define ROWS_AT_ONCE (THREADS / SHARERS)
__device__ inline u64 place(u32 n, u32 row, u32 column) {
    u32 part = column % SHARERS;
    return (u64)(column - part) * n + row * SHARERS + part;
}
__device__ inline u64 matrix_room(u32 n) { return (u64)n * ((n + SHARERS - 1) / SHARERS * SHARERS); }

// Frequencies and taps that a block of `symbols` takes at a time: the weights are read once for so many frequencies.
#define ABREAST 8
#define TAPS_AT_ONCE 32

// The matrices of all frequencies. Blocks: (entries of a matrix, frequencies / ABREAST).
extern "C" __global__ void __launch_bounds__(THREADS) symbols(Torus torus, const float* w, Complex* matrices) {
    __shared__ Complex phases[TAPS_AT_ONCE][ABREAST];
    u32 n = torus.units, taps = torus.side * torus.side, frequency = blockIdx.y * ABREAST;
    u64 at = first_entry();
    bool is_entry = at < (u64)n * n;
    u32 row = is_entry ? at / n : 0, column = at % n;
    const float *here = w + ((u64)row * n + column) * taps, *there = w + ((u64)column * n + row) * taps;
    Complex sums[ABREAST] = {};
    for (u32 first = 0; first < taps; first += TAPS_AT_ONCE) {
        u32 count = min(taps - first, (u32)TAPS_AT_ONCE);
        __syncthreads();
        for (u32 k = threadIdx.x; k < count * ABREAST; k += THREADS)
            phases[k / ABREAST][k % ABREAST] = phase(torus, frequency + k % ABREAST, first + k / ABREAST);
        __syncthreads();
        for (u32 k = 0; k < count; k++) {
            double entry = 0.5 * ((double)here[first + k] + (double)there[taps - 1 - first - k]);
#pragma unroll
            for (u32 f = 0; f < ABREAST; f++) {
                sums[f].re += entry * phases[k][f].re;
                sums[f].im += entry * phases[k][f].im;
            }
        }
    }
#pragma unroll
    for (u32 f = 0; f < ABREAST; f++)
        if (is_entry && frequency + f < torus.frequencies) matrices[(frequency + f) * matrix_room(n) + place(n, row, column)] = sums[f];
}

// The sum over a block with one barrier. Calls that follow each other must take another `slot` of two: a thread may still read the last.
__device__ inline double block_total(double x, u32 slot) {
    __shared__ double parts[2][THREADS / 32];
    for (u32 off = 16; off > 0; off /= 2) x += __shfl_xor_sync(~0u, x, off);
    if (threadIdx.x % 32 == 0) parts[slot][threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0.0;
    for (u32 warp = 0; warp < THREADS / 32; warp++) sum += parts[slot][warp];
    return sum;
}

// Steps of Lanczos' method, at most, of any operator.
#define STEPS 128
// Residuals that are small enough, in units of an entry.
#define FINE 1e-10
// Matrices up to this size stay on chip.
#define ON_CHIP 48

// The matrix that Lanczos' method makes, in units of a bound of the spectrum.
struct Tridiagonal {
    double diagonal[STEPS], coupling[STEPS];
    // Of x I - T, eliminated from the first row on and from the last: the eigenvector at x goes by their quotients with the couplings.
    double downward[STEPS], upward[STEPS], weights[STEPS];
};

// Whether x is above all eigenvalues: the leading minors of x I - T are positive.
__device__ inline bool is_above(const Tridiagonal& t, u32 steps, double x) {
    double before = 0.0, minor = 1.0, squared = 0.0;
    for (u32 i = 0; i < steps; i++) {
        double next = (x - t.diagonal[i]) * minor - squared * before;
        if (next <= 0.0) return false;
        // Only their quotients count, and products of so many are small.
        bool small = next < 0x1p-300;
        before = small ? minor * 0x1p300 : minor;
        minor = small ? next * 0x1p300 : next;
        squared = t.coupling[i] * t.coupling[i];
    }
    return true;
}

// The largest eigenvalue, from above: every thread tries another point of the interval, which becomes that of two neighbours.
__device__ inline double top_of_tridiagonal(const Tridiagonal& t, u32 steps) {
    __shared__ u32 parts[2][THREADS / 32];
    double below = -INFINITY, widest = 0.0;
    for (u32 i = 0; i < steps; i++) below = t.diagonal[i] > below ? t.diagonal[i] : below;
    for (u32 i = 0; i + 1 < steps; i++) widest = t.coupling[i] > widest ? t.coupling[i] : widest;
    double above = below + 2.0 * widest + 1e-14;
    for (u32 round = 0; above - below > 4e-16 && round < 16; round++) {
        double step = (above - below) / (THREADS + 1);
        // The number of the highest point that is not above.
        u32 highest = warp_max(is_above(t, steps, below + (threadIdx.x + 1) * step) ? 0 : threadIdx.x + 1);
        if (threadIdx.x % 32 == 0) parts[round % 2][threadIdx.x / 32] = highest;
        __syncthreads();
        highest = 0;
        for (u32 warp = 0; warp < THREADS / 32; warp++) highest = max(highest, parts[round % 2][warp]);
        above = highest == THREADS ? above : below + (highest + 1) * step;
        below += highest * step;
    }
    return above;
}

// The unit eigenvector at the largest eigenvalue x: (x I - T) z = g e_k, with the k that makes g least, by two eliminations that
// meet there (Parlett and Dhillon). Writes `weights`.
__device__ inline void eigenvector_of_tridiagonal(Tridiagonal& t, u32 steps, double x) {
    // x is above all eigenvalues, so pivots are positive but for rounding.
    const double LEAST = 1e-18;
    bool is_down = threadIdx.x == 0, is_up = threadIdx.x == 32;
    if (is_down || is_up) {
        double correction = 0.0;
        for (u32 k = 0; k < steps; k++) {
            u32 i = is_down ? k : steps - 1 - k;
            double pivot = x - t.diagonal[i] - correction, c = is_down ? t.coupling[i] : i > 0 ? t.coupling[i - 1] : 0.0;
            pivot = pivot > LEAST ? pivot : LEAST;
            (is_down ? t.downward : t.upward)[i] = pivot;
            correction = c * c / pivot;
        }
    }
    __syncthreads();
    u32 meeting = 0;
    double least = INFINITY;
    for (u32 i = 0; i < steps; i++) {
        double g = fabs(t.downward[i] + t.upward[i] - (x - t.diagonal[i]));
        if (g < least) {
            least = g;
            meeting = i;
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < steps; i += THREADS) {
        t.downward[i] = t.coupling[i] / t.downward[i];
        t.upward[i] = i > 0 ? t.coupling[i - 1] / t.upward[i] : 0.0;
    }
    __syncthreads();
    if (is_down) {
        double z = t.weights[meeting] = 1.0;
        for (u32 i = meeting; i-- > 0;) t.weights[i] = z *= t.downward[i];
    }
    if (is_up) {
        double z = 1.0;
        for (u32 i = meeting + 1; i < steps; i++) t.weights[i] = z *= t.upward[i];
    }
    __syncthreads();
    double squares = 0.0;
    for (u32 i = threadIdx.x; i < steps; i += THREADS) squares += t.weights[i] * t.weights[i];
    double length = sqrt(block_total(squares, 0));
    for (u32 i = threadIdx.x; i < steps; i += THREADS) t.weights[i] /= length;
    __syncthreads();
}

// Row by row, and each row for all of its lanes: the product of a matrix and a vector.
template <class F> __device__ inline void for_rows_of_product(u32 n, const Complex* matrix, const Complex* x, F f) {
    u32 part = threadIdx.x % SHARERS;
    for (u32 first = 0; first < n; first += ROWS_AT_ONCE) {
        u32 row = first + threadIdx.x / SHARERS;
        Complex sum = {0.0, 0.0};
        if (row < n) {
            const Complex* entries = matrix + (u64)row * SHARERS + part;
#pragma unroll 4
            for (u32 j = part; j < n; j += SHARERS) {
                Complex a = entries[(u64)(j - part) * n], b = x[j];
                sum.re += a.re * b.re - a.im * b.im;
                sum.im += a.re * b.im + a.im * b.re;
            }
        }
        for (u32 off = SHARERS / 2; off > 0; off /= 2) {
            sum.re += __shfl_xor_sync(~0u, sum.re, off);
            sum.im += __shfl_xor_sync(~0u, sum.im, off);
        }
        if (row < n && part == 0) f(row, sum);
    }
}

// Lanczos' method, one block per frequency. Without reorthogonalisation: what rounding does to it are copies of eigenvalues that were
// found already (Paige), and it ends as soon as the largest is. `basis` has room for `steps` vectors of each and one more; the unit
// eigenvector goes to the first. tops[frequency] = (value, residual), of this vector: some eigenvalue lies within `residual` of `value`.
extern "C" __global__ void __launch_bounds__(THREADS, 5)
top_eigenpairs(Torus torus, const Complex* matrices, Complex* basis, double* tops) {
    __shared__ Tridiagonal t;
    __shared__ Complex entries[ON_CHIP * ON_CHIP], pair[2][ON_CHIP];
    u32 n = torus.units;
    bool on_chip = n <= ON_CHIP;
    const Complex* matrix = matrices + blockIdx.x * matrix_room(n);
    Complex* vectors = basis + (u64)blockIdx.x * (torus.steps + 1) * n;
    double* top = tops + 2 * blockIdx.x;
    double squares = 0.0;
    for (u64 i = threadIdx.x; i < matrix_room(n); i += THREADS) {
        u32 column = i / ((u64)n * SHARERS) * SHARERS + i % SHARERS;
        if (column >= n) continue;
        Complex a = matrix[i];
        if (on_chip) entries[i] = a;
        squares += product(a, a);
    }
    if (on_chip) matrix = entries;
    // No eigenvalue is larger.
    double scale = sqrt(block_total(squares, 1));
    if (!(scale > 0.0 && scale < INFINITY)) {
        for (u32 i = threadIdx.x; i < n; i += THREADS) vectors[i] = {i == 0 ? 1.0 : 0.0, 0.0};
        // Not a number where there are such entries.
        if (threadIdx.x == 0) top[0] = top[1] = scale - scale;
        return;
    }
    // A unit vector without symmetry: a Weyl sequence.
    Complex* last = on_chip ? pair[0] : vectors;
    squares = 0.0;
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        double x = (i + 1) * 0.6180339887498949, y = (n + i + 1) * 0.6180339887498949;
        last[i] = {x - floor(x) + 0.1, y - floor(y) + 0.1};
        squares += product(last[i], last[i]);
    }
    double length = sqrt(block_total(squares, 0));
    for (u32 i = threadIdx.x; i < n; i += THREADS) vectors[i] = last[i] = {last[i].re / length, last[i].im / length};
    u32 steps = 1;
    for (double norm = 0.0;; steps++) {
        Complex* next = on_chip ? pair[steps % 2] : vectors + (u64)steps * n;
        __syncthreads();
        // Each entry of the next vector stays with one thread.
        double along = 0.0;
        for_rows_of_product(n, matrix, last, [&](u32 row, Complex y) {
            if (steps > 1) {
                Complex previous = vectors[(u64)(steps - 2) * n + row];
                y = {y.re - norm * previous.re, y.im - norm * previous.im};
            }
            next[row] = y;
            along += product(y, last[row]);
        });
        along = block_total(along, 0);
        squares = 0.0;
        for (u32 row = threadIdx.x / SHARERS; row < n; row += ROWS_AT_ONCE) {
            if (threadIdx.x % SHARERS != 0) continue;
            Complex y = {next[row].re - along * last[row].re, next[row].im - along * last[row].im};
            next[row] = y;
            squares += product(y, y);
        }
        norm = sqrt(block_total(squares, 1));
        if (threadIdx.x == 0) {
            t.diagonal[steps - 1] = along / scale;
            t.coupling[steps - 1] = norm / scale;
        }
        bool is_last = norm <= 1e-14 * scale || steps == torus.steps;
        // Often at first: were it found early, it would be found twice.
        if (is_last || steps % 16 == 0 || (steps < 16 && steps % 4 == 0)) {
            __syncthreads();
            eigenvector_of_tridiagonal(t, steps, top_of_tridiagonal(t, steps));
            if (is_last || norm * t.weights[steps - 1] <= FINE * scale / n) break;
        }
        for (u32 row = threadIdx.x / SHARERS; row < n; row += ROWS_AT_ONCE)
            if (threadIdx.x % SHARERS == 0) vectors[(u64)steps * n + row] = next[row] = {next[row].re / norm, next[row].im / norm};
        last = next;
    }
    // Each thread overwrites its own entries of the first vector, after it has read them. The others were written by other threads.
    __syncthreads();
    Complex* vector = on_chip ? pair[0] : vectors;
    squares = 0.0;
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        Complex x = {0.0, 0.0};
        for (u32 k = 0; k < steps; k++) {
            Complex q = vectors[(u64)k * n + i];
            x.re += t.weights[k] * q.re;
            x.im += t.weights[k] * q.im;
        }
        vector[i] = x;
        squares += product(x, x);
    }
    length = sqrt(block_total(squares, 0));
    for (u32 i = threadIdx.x; i < n; i += THREADS) vectors[i] = vector[i] = {vector[i].re / length, vector[i].im / length};
    __syncthreads();
    double value = 0.0;
    for_rows_of_product(n, matrix, vector, [&](u32 row, Complex y) { value += product(y, vector[row]); });
    value = block_total(value, 1);
    double error = 0.0;
    for_rows_of_product(n, matrix, vector, [&](u32 row, Complex y) {
        Complex d = {y.re - value * vector[row].re, y.im - value * vector[row].im};
        error += product(d, d);
    });
    error = sqrt(block_total(error, 0));
    if (threadIdx.x == 0) {
        top[0] = value;
        top[1] = error;
    }
}

struct Peak {
    // By how much the diagonal must be lowered, and at which frequency the largest eigenvalue is.
    double excess;
    u64 frequency;
};

// Whether the first is the largest of two eigenvalues: not a number before all others, the lower frequency of equal ones.
__device__ inline bool is_larger(double x, u32 of_x, double y, u32 of_y) {
    if (x != x || y != y) return x != x && (y == y || of_x < of_y);
    return x > y || (x == y && of_x < of_y);
}

// One block: the largest over all frequencies, and a little more, so that rounding the weights costs none of the margin.
extern "C" __global__ void __launch_bounds__(THREADS) find_peak(Torus torus, const double* tops, double margin, Peak* peak) {
    __shared__ double values[THREADS];
    __shared__ u32 frequencies[THREADS];
    // Threads without a frequency of their own take the first one.
    u32 best = threadIdx.x < torus.frequencies ? threadIdx.x : 0;
    for (u32 f = best + THREADS; f < torus.frequencies; f += THREADS)
        if (is_larger(tops[2 * f], f, tops[2 * best], best)) best = f;
    values[threadIdx.x] = tops[2 * best];
    frequencies[threadIdx.x] = best;
    __syncthreads();
    for (u32 half = THREADS / 2; half > 0; half /= 2) {
        u32 here = threadIdx.x, there = here + half;
        if (here < half && is_larger(values[there], frequencies[there], values[here], frequencies[here])) {
            values[here] = values[there];
            frequencies[here] = frequencies[there];
        }
        __syncthreads();
    }
    if (threadIdx.x != 0) return;
    best = frequencies[0];
    double top = tops[2 * best] + tops[2 * best + 1];
    double excess = top + 8.0 * 1.1920928955078125e-7 * fabs(top) - (1.0 - margin);
    // Not a number stays one.
    peak->excess = excess <= 0.0 ? 0.0 : excess;
    peak->frequency = best;
}

// W = V - excess I, and the derivative of the largest eigenvalue for V.
extern "C" __global__ void __launch_bounds__(THREADS)
make_shifted(Torus torus, const float* v, const Complex* basis, const Peak* peak, float* w, float* derivative) {
    u64 n = torus.units;
    u32 taps = torus.side * torus.side, frequency = peak->frequency;
    const Complex* vector = basis + (u64)frequency * (torus.steps + 1) * n;
    for (u64 at = first_entry(); at < n * n * taps; at += entry_step()) {
        u32 tap = at % taps, i = at / taps % n, o = at / taps / n;
        w[at] = o == i && tap == taps / 2 ? v[at] - (float)peak->excess : v[at];
        Complex x = vector[o], y = vector[i], z = phase(torus, frequency, tap);
        derivative[at] = (float)(product(x, y) * z.re - (x.re * y.im - x.im * y.re) * z.im);
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
