//! Convolutions frequency by frequency: `||W||_2` and `lambda_max(sym W)` bounded by the channel matrices `K^(f)`.
//!
//! A circular convolution is block diagonal in the Fourier basis, with one `channels x channels` block per frequency. A
//! zero-padded one is a compression of the circular one on a torus with one more row and column, so the same maxima, over the
//! frequencies of that torus, bound it from above. Opposite frequencies have conjugate blocks: half of them suffice.
//!
//! What has to be positive definite at every frequency, `diagonal I + skew (K + K^*) - weight K^* K`, is a trigonometric
//! polynomial in the frequency. Its coefficients, real matrices, are computed once; after that the products `K^* K` cost no
//! more than their entries. Eight frequencies are factorised at once, one per vector lane: every operation is a full
//! vector operation whatever the number of channels.

use pulp::{Arch, Simd, WithSimd};
use subdeq_map::{Conv, Padding};

use crate::bound::Upper;
use crate::cholesky::MOST_BISECTIONS;
use crate::closing::two_norm;
use crate::lu::add_transposed_product;
use crate::round::{gamma, tiny, vectorised};

/// Frequencies handled together: as many as the widest vectors have lanes.
const LANES: usize = 8;
/// Bytes to which the vectors are aligned, so that none straddles two cache lines.
const ALIGNMENT: usize = 64;

/// What is lost, relative to the size of a term, by the angle (of at most two turns: 5e-15), its sine and cosine, and the
/// sums, at most [`MOST_OFFSETS`] of them (1.6e-14). Wherever it is used there is a factor of at least two in front of it.
const TERM_ERROR: f64 = 2e-14;

/// Half of the offsets other than zero in a kernel of each of [`Conv::SIDES`], which are also those between two taps of a smaller
/// one, and between two taps of the largest.
const OF_1: usize = half_of_square(Conv::SIDES[0]);
const OF_3: usize = half_of_square(Conv::SIDES[1]);
const OF_5: usize = half_of_square(Conv::SIDES[2]);
const OF_9: usize = half_of_square(Conv::SIDES[3]);
const MOST_OFFSETS: usize = half_of_square(2 * Conv::SIDES[3] - 1);

/// Half of the offsets in a square around zero, other than zero.
const fn half_of_square(side: usize) -> usize {
    (side * side - 1) / 2
}

/// Half of the offsets other than zero between two taps of a kernel, as (row, column). Those that occur in `K` itself,
/// `half_of_square(side)`, come first.
fn offsets(side: usize) -> Vec<(isize, isize)> {
    let reach = side as isize / 2;
    let square = |r: isize| (-r..=r).flat_map(move |row| (-r..=r).map(move |column| (row, column)));
    let half = |r: isize| square(r).filter(|&offset| offset > (0, 0));
    half(reach).chain(half(2 * reach).filter(|(r, c)| r.abs().max(c.abs()) > reach)).collect()
}

/// The torus of a circular convolution that the convolution is, or is a compression of.
struct Torus {
    rows: usize,
    columns: usize,
    /// One frequency of every conjugate pair.
    half: Vec<(usize, usize)>,
    /// [`offsets`] of the kernel.
    offsets: Vec<(isize, isize)>,
}

impl Torus {
    fn of(conv: &Conv) -> Torus {
        let border = usize::from(conv.padding() == Padding::Zero);
        let (rows, columns) = (conv.height() + border, conv.width() + border);
        let frequencies = (0..rows).flat_map(|r| (0..columns).map(move |c| (r, c)));
        let first = |&(r, c): &(usize, usize)| (r, c) <= ((rows - r) % rows, (columns - c) % columns);
        Torus { rows, columns, half: frequencies.filter(first).collect(), offsets: offsets(conv.side()) }
    }

    fn batches(&self) -> usize {
        self.half.len().div_ceil(LANES)
    }

    /// The frequencies of a batch: a stride through all, so that a failure in one region is met early.
    fn batch(&self, index: usize) -> [(usize, usize); LANES] {
        let mut chosen = [(0, 0); LANES];
        for (lane, frequency) in chosen.iter_mut().enumerate() {
            *frequency = self.half[(index + lane * self.batches()).min(self.half.len() - 1)];
        }
        chosen
    }

    /// Sine and cosine of the phase of an offset at a frequency, the whole turns left out exactly.
    fn phase(&self, offset: (isize, isize), frequency: (usize, usize)) -> (f64, f64) {
        let turns = |d: isize, k: usize, n: usize| (d * k as isize).rem_euclid(n as isize) as f64 / n as f64;
        let both = turns(offset.0, frequency.0, self.rows) + turns(offset.1, frequency.1, self.columns);
        (std::f64::consts::TAU * both).sin_cos()
    }
}

/// `H(f) = A_0 + sum_d cos(d f) C_d + i sin(d f) D_d`, with real symmetric `A_0`, `C_d` and antisymmetric `D_d`.
struct Polynomial {
    n: usize,
    /// How many of [`offsets`] occur.
    offsets: usize,
    /// Per entry of the lower triangle: `A_0`, then `C_d` and `D_d` of each offset.
    coefficients: Vec<f64>,
}

impl Polynomial {
    /// From the coefficients of `exp(i d f)`: `at(0, i, j)` without a phase, `at(1 + k, i, j)` for offset `k`; those of the
    /// opposite offsets are the transposes.
    fn new(n: usize, offsets: usize, at: impl Fn(usize, usize, usize) -> f64) -> Polynomial {
        let mut coefficients = Vec::with_capacity((1 + 2 * offsets) * n * (n + 1) / 2);
        for i in 0..n {
            for j in 0..=i {
                coefficients.push(at(0, i, j));
                for d in 1..=offsets {
                    let (forth, back) = (at(d, i, j), at(d, j, i));
                    coefficients.extend([forth + back, forth - back]);
                }
            }
        }
        Polynomial { n, offsets, coefficients }
    }

    fn stride(&self) -> usize {
        1 + 2 * self.offsets
    }

    /// `skew * self - weight * other`, where `other` has all offsets.
    fn combined(&self, skew: f64, other: &Polynomial, weight: f64) -> Polynomial {
        let mut sum: Vec<f64> = other.coefficients.iter().map(|c| -weight * c).collect();
        for (sum, own) in
            sum.chunks_exact_mut(other.stride()).zip(self.coefficients.chunks_exact(self.stride()))
        {
            for (sum, own) in sum.iter_mut().zip(own) {
                *sum += skew * own;
            }
        }
        Polynomial { n: self.n, offsets: other.offsets, coefficients: sum }
    }
}

/// `K + K^*`, doubled hermitian part of the blocks.
fn twice_hermitian_part(conv: &Conv) -> Polynomial {
    let (side, offsets) = (conv.side() as isize, offsets(conv.side()));
    let tap = |o: usize, i: usize, (r, c): (isize, isize)| {
        conv.taps(o, i)[((r + side / 2) * side + c + side / 2).unsigned_abs()]
    };
    Polynomial::new(conv.channels(), half_of_square(conv.side()), |d, o, i| {
        let (r, c) = if d == 0 { (0, 0) } else { offsets[d - 1] };
        tap(o, i, (r, c)) + tap(i, o, (-r, -c))
    })
}

/// `K^* K`: the coefficient of offset `d` is the sum of `K_t^T K_t'` over the taps with `t' - t = d`.
fn gram(conv: &Conv) -> Polynomial {
    let (n, count, side, offsets) =
        (conv.channels(), conv.tap_count(), conv.side() as isize, offsets(conv.side()));
    let mut taps = vec![0.0; count * n * n];
    for (pair, kernel) in conv.kernel().chunks_exact(count).enumerate() {
        for (t, &k) in kernel.iter().enumerate() {
            taps[t * n * n + pair] = k;
        }
    }
    let mut products = vec![0.0; (1 + offsets.len()) * n * n];
    for (d, product) in products.chunks_exact_mut(n * n).enumerate() {
        let (r, c) = if d == 0 { (0, 0) } else { offsets[d - 1] };
        for t in 0..side * side {
            let (row, column) = (t / side + r, t % side + c);
            if (0..side).contains(&row) && (0..side).contains(&column) {
                let matrix = |t: isize| &taps[t.unsigned_abs() * n * n..][..n * n];
                let (left, right) = (matrix(t), matrix(side * row + column));
                vectorised(
                    #[inline(always)]
                    || add_transposed_product(left, right, n, product),
                );
            }
        }
    }
    Polynomial::new(n, offsets.len(), |d, i, j| products[d * n * n + i * n + j])
}

/// The lower triangles of one vector's worth of Hermitian matrices: entry `(i, j)`, `j <= i`, as a real and an imaginary vector
/// at `2 (i (i + 1)/2 + j)`.
struct Scratch(Vec<f64>);

impl Scratch {
    fn new(n: usize) -> Scratch {
        Scratch(vec![0.0; LANES * n * (n + 1) + ALIGNMENT / size_of::<f64>()])
    }

    fn aligned(&mut self) -> &mut [f64] {
        // A start that cannot be aligned is merely slower.
        let start = self.0.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT / size_of::<f64>());
        &mut self.0[start..]
    }
}

/// Whether `diagonal I + H(f)`, wrong by at most `uncertainty` in the 2-norm, is certainly positive definite at all
/// frequencies of a batch.
struct Batch<'a> {
    polynomial: &'a Polynomial,
    diagonal: f64,
    uncertainty: f64,
    /// Per offset: sines of the eight frequencies, cosines of the eight frequencies.
    phases: &'a [[[f64; LANES]; 2]],
    scratch: &'a mut [f64],
}

impl WithSimd for Batch<'_> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> bool {
        let Batch { polynomial, diagonal, uncertainty, phases, scratch } = self;
        let matrix = S::as_mut_simd_f64s(scratch).0;
        let groups = LANES / S::F64_LANES;
        for group in 0..groups {
            // The lengths there are, known to the compiler: the loop over the offsets is unrolled.
            match polynomial.offsets {
                OF_1 => fill::<S, OF_1>(simd, polynomial, phases, group, matrix),
                OF_3 => fill::<S, OF_3>(simd, polynomial, phases, group, matrix),
                OF_5 => fill::<S, OF_5>(simd, polynomial, phases, group, matrix),
                OF_9 => fill::<S, OF_9>(simd, polynomial, phases, group, matrix),
                MOST_OFFSETS => fill::<S, MOST_OFFSETS>(simd, polynomial, phases, group, matrix),
                // Of no kernel that there is.
                _ => return false,
            }
            shift_diagonal(simd, matrix, polynomial.n, diagonal, uncertainty);
            if !factorise(simd, matrix, polynomial.n) {
                return false;
            }
        }
        true
    }
}

#[inline(always)]
fn fill<S: Simd, const N: usize>(
    simd: S,
    polynomial: &Polynomial,
    phases: &[[[f64; LANES]; 2]],
    group: usize,
    matrix: &mut [S::f64s],
) {
    let zero = simd.splat_f64s(0.0);
    let (mut sines, mut cosines) = ([zero; N], [zero; N]);
    for d in 0..N {
        sines[d] = S::as_simd_f64s(&phases[d][0]).0[group];
        cosines[d] = S::as_simd_f64s(&phases[d][1]).0[group];
    }
    for (c, entry) in polynomial.coefficients.chunks_exact(1 + 2 * N).zip(matrix.chunks_exact_mut(2)) {
        let (mut re, mut im) = (simd.splat_f64s(c[0]), zero);
        for d in 0..N {
            re = simd.mul_add_e_f64s(simd.splat_f64s(c[1 + 2 * d]), cosines[d], re);
            im = simd.mul_add_e_f64s(simd.splat_f64s(c[2 + 2 * d]), sines[d], im);
        }
        (entry[0], entry[1]) = (re, im);
    }
}

/// Adds the diagonal and subtracts what rounding may have hidden: as in the real case, with the error of complex products
/// (each is two real sums of two products, so an inner product of length `n` is a real one of length `2 n`) and of the
/// subtraction itself, which is at most a unit in the last place of the trace.
#[inline(always)]
fn shift_diagonal<S: Simd>(simd: S, matrix: &mut [S::f64s], n: usize, diagonal: f64, uncertainty: f64) {
    let diagonal_at = |i: usize| i * (i + 3);
    let mut trace = simd.splat_f64s(0.0);
    for i in 0..n {
        let entry = simd.add_f64s(matrix[diagonal_at(i)], simd.splat_f64s(diagonal));
        matrix[diagonal_at(i)] = entry;
        trace = simd.add_f64s(trace, simd.abs_f64s(entry));
    }
    let up = 1.0 + 8.0 * f64::EPSILON;
    let relative = simd.splat_f64s(4.0 * gamma(2 * n + 12) * up);
    let absolute = simd.splat_f64s((uncertainty + tiny(4 * n * n)) * up);
    let shift = simd.mul_f64s(simd.mul_add_e_f64s(relative, trace, absolute), simd.splat_f64s(up));
    for i in 0..n {
        matrix[diagonal_at(i)] = simd.sub_f64s(matrix[diagonal_at(i)], shift);
    }
}

/// Cholesky `H = L L^*` in place; `false` as soon as a pivot of any lane is not positive. Four rows of `L` at a time, so that
/// they stay in the innermost cache while the rows above them pass by once.
#[inline(always)]
fn factorise<S: Simd>(simd: S, matrix: &mut [S::f64s], n: usize) -> bool {
    let mut first = 0;
    while first < n {
        let last = (first + 4).min(n);
        if last - first == 4 {
            for j in 0..first {
                column_entries::<S, 4>(simd, matrix, first, j);
            }
        }
        for j in (if last - first == 4 { first } else { 0 })..last {
            if j >= first && !pivot(simd, matrix, j) {
                return false;
            }
            for i in first.max(j + 1)..last {
                column_entries::<S, 1>(simd, matrix, i, j);
            }
        }
        first = last;
    }
    true
}

/// Replaces the diagonal entry `j`, once row `j` is done, by `1 / L_jj` (in its imaginary place, which is not used).
#[inline(always)]
fn pivot<S: Simd>(simd: S, matrix: &mut [S::f64s], j: usize) -> bool {
    let row = &mut matrix[j * (j + 1)..][..2 * j + 2];
    let (done, diagonal) = row.split_at_mut(2 * j);
    // Four independent chains: one would wait for each product.
    let mut chains = [simd.splat_f64s(0.0); 4];
    let mut quads = done.chunks_exact(4);
    for quad in &mut quads {
        for (chain, &x) in chains.iter_mut().zip(quad) {
            *chain = simd.mul_add_e_f64s(x, x, *chain);
        }
    }
    for &x in quads.remainder() {
        chains[0] = simd.mul_add_e_f64s(x, x, chains[0]);
    }
    let squares = simd.add_f64s(simd.add_f64s(chains[0], chains[1]), simd.add_f64s(chains[2], chains[3]));
    let rest = simd.sub_f64s(diagonal[0], squares);
    let mut lanes = [1.0; LANES];
    simd.partial_store_f64s(&mut lanes[..S::F64_LANES], rest);
    diagonal[1] = simd.div_f64s(simd.splat_f64s(1.0), simd.sqrt_f64s(rest));
    lanes.iter().all(|p| *p > 0.0 && p.is_finite())
}

/// `L[i][j]` for `ROWS` consecutive `i`: `(H_ij - sum_k L_ik conj(L_jk)) / L_jj`.
#[inline(always)]
fn column_entries<S: Simd, const ROWS: usize>(simd: S, matrix: &mut [S::f64s], i: usize, j: usize) {
    let (above, below) = matrix.split_at_mut(i * (i + 1));
    let row_j = &above[j * (j + 1)..][..2 * j + 2];
    // Row r of those below starts this far behind row i.
    let start = |r: usize| (i + r) * (i + r + 1) - i * (i + 1);
    let zero = simd.splat_f64s(0.0);
    // Four sums per row, none of which waits for another.
    let (mut aa, mut bb, mut ba, mut ab) = ([zero; ROWS], [zero; ROWS], [zero; ROWS], [zero; ROWS]);
    let mut rows: [&[S::f64s]; ROWS] = [&[]; ROWS];
    for (r, row) in rows.iter_mut().enumerate() {
        *row = &below[start(r)..][..2 * j];
    }
    for k in 0..j {
        let (cr, ci) = (row_j[2 * k], row_j[2 * k + 1]);
        for r in 0..ROWS {
            let (a, b) = (rows[r][2 * k], rows[r][2 * k + 1]);
            aa[r] = simd.mul_add_e_f64s(a, cr, aa[r]);
            ba[r] = simd.mul_add_e_f64s(b, cr, ba[r]);
            bb[r] = simd.mul_add_e_f64s(b, ci, bb[r]);
            ab[r] = simd.mul_add_e_f64s(a, ci, ab[r]);
        }
    }
    let scale = row_j[2 * j + 1];
    for r in 0..ROWS {
        let entry = &mut below[start(r) + 2 * j..][..2];
        let re = simd.sub_f64s(entry[0], simd.add_f64s(aa[r], bb[r]));
        let im = simd.sub_f64s(entry[1], simd.sub_f64s(ba[r], ab[r]));
        entry[0] = simd.mul_f64s(re, scale);
        entry[1] = simd.mul_f64s(im, scale);
    }
}

/// `level I + H(f)` at all frequencies, where the level is what is sought.
struct Search<'a> {
    torus: &'a Torus,
    polynomial: &'a Polynomial,
    /// Bound of the 2-norm of what `H(f)` is wrong by.
    uncertainty: f64,
    phases: [[[f64; LANES]; 2]; MOST_OFFSETS],
    scratch: Scratch,
}

impl<'a> Search<'a> {
    fn new(torus: &'a Torus, polynomial: &'a Polynomial, uncertainty: f64) -> Search<'a> {
        let phases = [[[0.0; LANES]; 2]; MOST_OFFSETS];
        Search { torus, polynomial, uncertainty, phases, scratch: Scratch::new(polynomial.n) }
    }

    /// Makes the batch of this number the current one.
    fn choose(&mut self, batch: usize) {
        let frequencies = self.torus.batch(batch);
        let phases = &mut self.phases[..self.polynomial.offsets];
        for ([sines, cosines], &offset) in phases.iter_mut().zip(&self.torus.offsets) {
            for (lane, &frequency) in frequencies.iter().enumerate() {
                (sines[lane], cosines[lane]) = self.torus.phase(offset, frequency);
            }
        }
    }

    /// Whether the level suffices for the current batch.
    fn suffices(&mut self, level: f64) -> bool {
        Arch::new().dispatch(Batch {
            polynomial: self.polynomial,
            diagonal: level,
            uncertainty: self.uncertainty + 4.0 * TERM_ERROR * level.abs(),
            phases: &self.phases,
            scratch: self.scratch.aligned(),
        })
    }

    /// A level that suffices everywhere: where the one so far does not, `raise` finds a higher one for the batch at hand, or
    /// gives up. What suffices at one frequency does so at any higher level, so that one pass is enough.
    fn climb(&mut self, start: f64, mut raise: impl FnMut(&mut Self, f64) -> Option<f64>) -> Option<f64> {
        let mut level = start;
        for batch in 0..self.torus.batches() {
            self.choose(batch);
            if !self.suffices(level) {
                level = raise(self, level)?;
            }
        }
        Some(level)
    }
}

/// `||K||_inf` and `||K||_1` over all frequencies: the largest sums of absolute taps into and out of a channel.
fn sums(conv: &Conv) -> (f64, f64) {
    let n = conv.channels();
    let sum = |o: usize, i: usize| conv.taps(o, i).iter().map(|t| t.abs()).sum::<f64>();
    let rows = Upper::largest((0..n).map(|o| (0..n).map(|i| sum(o, i)).sum::<f64>()));
    let columns = Upper::largest((0..n).map(|i| (0..n).map(|o| sum(o, i)).sum::<f64>()));
    (rows.get(), columns.get())
}

/// What the hermitian part, times `weight`, is wrong by at most.
fn hermitian_uncertainty(conv: &Conv, weight: f64) -> f64 {
    let (rows, columns) = sums(conv);
    2.0 * TERM_ERROR * weight.abs() * (rows + columns)
}

/// Whether `I / slope - sym W` is positive definite, by all frequencies: T3 with `D = slope I`, `P = I`.
pub(crate) fn is_monotone(conv: &Conv, slope: f64) -> bool {
    let torus = Torus::of(conv);
    let mut part = twice_hermitian_part(conv);
    part.coefficients.iter_mut().for_each(|c| *c *= -0.5 * slope);
    Search::new(&torus, &part, hermitian_uncertainty(conv, slope)).climb(1.0, |_, _| None).is_some()
}

/// `diagonal I + skew (W + W^T) - weight W^T W` of a convolution, for many diagonals, skews and weights.
pub(crate) struct QuadraticForm {
    torus: Torus,
    hermitian: Polynomial,
    gram: Polynomial,
    rows: f64,
    columns: f64,
    /// Products that a coefficient of `K^* K` sums up, at most.
    terms: usize,
}

impl QuadraticForm {
    pub(crate) fn new(conv: &Conv) -> QuadraticForm {
        let (rows, columns) = sums(conv);
        QuadraticForm {
            torus: Torus::of(conv),
            hermitian: twice_hermitian_part(conv),
            gram: gram(conv),
            rows,
            columns,
            terms: conv.tap_count() * conv.channels(),
        }
    }

    /// `||K||_1 ||K||_inf` bounds the row sums of `|K^*||K|`.
    fn uncertainty(&self, skew: f64, weight: f64) -> f64 {
        let products = weight.abs() * self.rows * self.columns;
        let error = (4.0 * TERM_ERROR + gamma(self.terms + 16)) * products
            + 2.0 * TERM_ERROR * skew.abs() * (self.rows + self.columns);
        2.0 * error
    }

    /// Whether the form is certainly positive definite.
    pub(crate) fn exceeds(&self, diagonal: f64, skew: f64, weight: f64) -> bool {
        let polynomial = self.hermitian.combined(skew, &self.gram, weight);
        let mut search = Search::new(&self.torus, &polynomial, self.uncertainty(skew, weight));
        search.climb(diagonal, |_, _| None).is_some()
    }

    /// The first rung of a ladder below one that certainly bounds `slope ||W||_2`.
    fn norm_bound(&self, slope: f64) -> Option<f64> {
        let weight = (slope * slope).next_up();
        let polynomial = self.hermitian.combined(0.0, &self.gram, weight);
        let mut search = Search::new(&self.torus, &polynomial, self.uncertainty(0.0, weight));
        // `1 - 2 u` makes up for squaring the rung.
        let level = |rung: f64| rung * rung * (1.0 - f64::EPSILON);
        let mut rung = 0;
        search.climb(level(NORM_LADDER[rung]), |search, _| {
            loop {
                rung += 1;
                let level = level(*NORM_LADDER.get(rung)?);
                if search.suffices(level) {
                    return Some(level);
                }
            }
        })?;
        Some(NORM_LADDER[rung])
    }
}

/// The norms that [`norm_bound`] tries.
const NORM_LADDER: [f64; 8] = [0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.999];

/// The first rung of a ladder below one that certainly bounds `slope ||W||_2`.
pub(crate) fn norm_bound(conv: &Conv, slope: f64) -> Option<f64> {
    if !slope.is_finite() || two_norm::is_hopeless(&at_zero(conv, slope), conv.channels()) {
        return None;
    }
    QuadraticForm::new(conv).norm_bound(slope)
}

/// `slope K^(0)`, the sums of the taps: the one block that every torus has and that is real.
fn at_zero(conv: &Conv, slope: f64) -> Vec<f64> {
    conv.kernel().chunks_exact(conv.tap_count()).map(|taps| slope * taps.iter().sum::<f64>()).collect()
}

/// An upper bound of `lambda_max(sym W)` within about `tolerance`, relative to the size of the kernel.
#[must_use]
pub fn largest_symmetric_eigenvalue(conv: &Conv, tolerance: f64) -> f64 {
    let (rows, columns) = sums(conv);
    // Every eigenvalue of every hermitian part lies within `span` of zero.
    let span = 0.5 * (rows + columns) * (1.0 + 1e-9) + f64::MIN_POSITIVE;
    let torus = Torus::of(conv);
    let mut part = twice_hermitian_part(conv);
    part.coefficients.iter_mut().for_each(|c| *c *= -0.5);
    let mut search = Search::new(&torus, &part, hermitian_uncertainty(conv, 1.0));
    let highest = search.climb(-span, |search, failed| Some(raise(search, failed, span, tolerance * span)));
    highest.map_or(span, |level| level.min(span))
}

/// The least level above `failed` that suffices for the current batch, within `tolerance`: steps that double until one
/// suffices, then bisection. `span` needs no test.
fn raise(search: &mut Search<'_>, mut failed: f64, span: f64, tolerance: f64) -> f64 {
    let mut known = span;
    let mut step = tolerance;
    for _ in 0..2 * MOST_BISECTIONS {
        if known - failed <= tolerance {
            break;
        }
        let middle =
            if known < span { 0.5 * (failed + known) } else { (failed + step).min(0.5 * (failed + span)) };
        if search.suffices(middle) {
            known = middle;
        } else {
            failed = middle;
            step *= 2.0;
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use subdeq_map::Operator;

    use super::*;
    use crate::cholesky::Symmetric;

    /// Two to ten channels: whole blocks of four rows, with and without rows that are left over.
    fn random(padding: Padding, seed: u64) -> Operator {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // On a torus, every size of kernel.
        let side = if padding == Padding::Circular { Conv::SIDES[(seed % 4) as usize] } else { 3 };
        let channels = (2 + (seed % 9) as usize).min(200 / (side.max(4) * side.max(5)));
        let size = 0.4 / channels as f64;
        let kernel = (0..channels * channels * side * side).map(|_| rng.random_range(-size..size)).collect();
        Operator::conv(channels, side.max(4), side.max(5), padding, kernel).unwrap()
    }

    /// The same bounds from the dense matrix: exact for a torus, not above for zero padding.
    #[test]
    fn frequencies_give_the_eigenvalues_of_the_dense_matrix() {
        for seed in 0..20 {
            for padding in [Padding::Circular, Padding::Zero] {
                let operator = random(padding, seed);
                let n = operator.len();
                let matrix = operator.to_dense(200).unwrap();
                let negative = Symmetric::from_fn(n, 4, |i, j| {
                    let sum = -0.5 * (matrix[i * n + j] + matrix[j * n + i]);
                    (sum, sum.abs())
                });
                let dense = -negative.least_eigenvalue(1e-9).unwrap();
                let conv = operator.as_conv().unwrap();
                let by_frequency = largest_symmetric_eigenvalue(conv, 1e-9);
                assert!(by_frequency >= dense - 1e-6, "{by_frequency} {dense}");
                if padding == Padding::Circular {
                    assert!(by_frequency <= dense + 1e-6, "{by_frequency} {dense}");
                }
            }
        }
    }

    /// `diagonal I + skew (W + W^T) - weight W^T W` is shown where its least eigenvalue, from the dense matrix, is above zero,
    /// and nowhere else.
    #[test]
    fn quadratic_forms_agree_with_the_dense_matrix() {
        for seed in 0..9 {
            let operator = random(Padding::Circular, seed);
            let n = operator.len();
            let w = operator.to_dense(200).unwrap();
            let form = QuadraticForm::new(operator.as_conv().unwrap());
            for (skew, weight) in [(0.3, 0.7), (-1.0, 0.2), (0.5, 0.0), (0.0, 1.0)] {
                let dense = Symmetric::from_fn(n, n + 8, |i, j| {
                    let product: f64 = (0..n).map(|k| w[k * n + i] * w[k * n + j]).sum();
                    let entry = skew * (w[i * n + j] + w[j * n + i]) - weight * product;
                    (entry, entry.abs())
                });
                let least = dense.least_eigenvalue(1e-9).unwrap();
                assert!(form.exceeds(1e-6 - least, skew, weight), "seed {seed}");
                assert!(!form.exceeds(-1e-6 - least, skew, weight), "seed {seed}");
            }
        }
    }

    #[test]
    fn norms_agree_with_the_dense_matrix() {
        for seed in 0..20 {
            let operator = random(Padding::Circular, seed);
            let matrix = operator.to_dense(200).unwrap();
            let ones = vec![1.0; operator.len()];
            let dense = two_norm::bound(&matrix, &ones, &ones, &mut Vec::new());
            let found = norm_bound(operator.as_conv().unwrap(), 1.0);
            match (dense, found) {
                (Some(dense), Some(found)) => {
                    assert!(found > dense - 1e-3, "{found} {dense}");
                    assert!(NORM_LADDER.iter().all(|&rung| rung >= found || rung < dense));
                }
                (None, found) => assert!(found.is_none()),
                (Some(dense), None) => assert!(dense > 0.998, "{dense}"),
            }
        }
    }
}
