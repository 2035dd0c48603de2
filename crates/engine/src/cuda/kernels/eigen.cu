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
    sincos(6.283185307179586476925 * turns, &sine, &cosine);
}

// The matrices of all frequencies: [frequency][re, im][row][column].
extern "C" __global__ void __launch_bounds__(THREADS) symbols(Torus torus, const float* w, double* matrices) {
    u64 n = torus.units, square = n * n;
    u32 taps = torus.side * torus.side;
    for (u64 at = first_entry(); at < torus.frequencies * square; at += entry_step()) {
        u32 frequency = at / square, o = at % square / n, i = at % n;
        double re = 0.0, im = 0.0;
        for (u32 tap = 0; tap < taps; tap++) {
            double cosine, sine;
            phase(torus, frequency, tap, cosine, sine);
            double entry = 0.5 * ((double)w[(o * n + i) * taps + tap] + (double)w[(i * n + o) * taps + taps - 1 - tap]);
            re += entry * cosine;
            im += entry * sine;
        }
        matrices[(u64)frequency * 2 * square + o * n + i] = re;
        matrices[(u64)frequency * 2 * square + square + o * n + i] = im;
    }
}

// Steps of Lanczos' method, at most. What is not found by then is bounded by the residual all the same.
#define STEPS 128
#define FINE 1e-10

struct Tridiagonal {
    double diagonal[STEPS], coupling[STEPS], pivots[STEPS], weights[STEPS];
};

// Whether x is above all eigenvalues: x I - T has positive pivots.
__device__ inline bool is_above(Tridiagonal& t, u32 steps, double x) {
    double correction = 0.0;
    for (u32 i = 0; i < steps; i++) {
        t.pivots[i] = x - t.diagonal[i] - correction;
        if (t.pivots[i] <= 0.0) return false;
        correction = i + 1 < steps ? t.coupling[i] * t.coupling[i] / t.pivots[i] : 0.0;
    }
    return true;
}

// The largest eigenvalue, by bisection from above; its unit vector in `weights`, by inverse iteration from there.
__device__ inline double top_of_tridiagonal(Tridiagonal& t, u32 steps, double scale, double accuracy) {
    double below = -INFINITY, widest = 0.0;
    for (u32 i = 0; i < steps; i++) below = t.diagonal[i] > below ? t.diagonal[i] : below;
    for (u32 i = 0; i + 1 < steps; i++) widest = t.coupling[i] > widest ? t.coupling[i] : widest;
    double above = below + 2.0 * widest + 1e-14 * scale, least = accuracy > 4e-16 * scale ? accuracy : 4e-16 * scale;
    while (above - below > least) {
        double middle = 0.5 * (below + above);
        if (middle <= below || middle >= above) break;
        if (is_above(t, steps, middle)) above = middle;
        else below = middle;
    }
    double shifted = above;
    for (u32 tries = 0; tries < 10000 && !is_above(t, steps, shifted); tries++) shifted += 1e-15 * scale;
    for (u32 i = 0; i < steps; i++) t.weights[i] = 1.0;
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
    return above;
}

__device__ inline double inner(const double* x, const double* y, u32 size) {
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < size; i += THREADS) sum += x[i] * y[i];
    return block_sum(sum);
}

// Lanczos' method with full reorthogonalisation, one block per frequency. `basis` has room for STEPS + 1 vectors of each; the unit
// eigenvector goes to the first. tops[frequency] = (value, residual): some eigenvalue lies within `residual` of `value`.
extern "C" __global__ void __launch_bounds__(THREADS) top_eigenpairs(Torus torus, const double* matrices, double* basis, double* tops) {
    __shared__ Tridiagonal t;
    __shared__ double value, residual;
    __shared__ bool done;
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
        for (u32 round = 0; round < 2; round++)
            for (u32 old = 0; old < steps; old++) {
                const double* q = vectors + (u64)old * size;
                double overlap = inner(next, q, size);
                for (u32 i = threadIdx.x; i < size; i += THREADS) next[i] -= overlap * q[i];
            }
        double norm = sqrt(inner(next, next, size));
        bool exhausted = steps == size || norm <= 1e-14 * scale;
        if (threadIdx.x == 0) {
            t.diagonal[steps - 1] = diagonal;
            t.coupling[steps - 1] = norm;
            done = false;
            if (exhausted || steps % 4 == 0 || steps == STEPS) {
                double enough = FINE * scale / size;
                value = top_of_tridiagonal(t, steps, scale, 1e-4 * enough);
                residual = exhausted ? 1e-14 * scale : norm * fabs(t.weights[steps - 1]);
                done = exhausted || residual <= enough || steps == STEPS;
            }
        }
        __syncthreads();
        if (done) {
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
                tops[2 * blockIdx.x] = value;
                tops[2 * blockIdx.x + 1] = residual;
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

// One thread: the largest over all frequencies, and a little more, so that rounding the weights costs none of the margin.
extern "C" __global__ void find_peak(Torus torus, const double* tops, double margin, Peak* peak) {
    if (threadIdx.x != 0) return;
    u32 best = 0;
    for (u32 f = 1; f < torus.frequencies; f++)
        if (tops[2 * f] > tops[2 * best]) best = f;
    double top = tops[2 * best] + tops[2 * best + 1];
    double excess = top + 8.0 * 1.1920928955078125e-7 * fabs(top) - (1.0 - margin);
    // Not a number stays one.
    peak->excess = excess <= 0.0 ? 0.0 : excess;
    peak->frequency = best;
}

// W = V - excess I, and the derivative of the largest eigenvalue for V.
extern "C" __global__ void __launch_bounds__(THREADS)
make_shifted(Torus torus, const float* v, const double* basis, const Peak* peak, float* w, float* derivative) {
    u64 n = torus.units;
    u32 taps = torus.side * torus.side, size = torus.real ? n : 2 * n, frequency = peak->frequency;
    const double* vector = basis + (u64)frequency * (STEPS + 1) * size;
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
