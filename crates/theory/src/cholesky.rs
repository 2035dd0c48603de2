//! Positive definiteness decided by a Cholesky factorisation in floating point, with the shift that makes its
//! success a proof (Rump, *Verification of positive definiteness*, BIT 46, 2006).

use crate::bound::Upper;
use crate::round::{gamma, tiny, vectorised};

/// Enough halvings to exhaust any tolerance; bounds the work whatever the numbers are (a zero matrix, say).
pub(crate) const MOST_BISECTIONS: usize = 60;

/// Far above what [`tiny`] allows for, far below anything that matters.
const LEAST_SHIFT: f64 = 1e-280;

/// A symmetric matrix given by its upper triangle (row major, the rest is ignored) together with a bound on how far
/// its entries are from the matrix that is meant.
pub struct Symmetric {
    /// Size.
    n: usize,
    /// Row-major entries; the factorisation overwrites a copy.
    entries: Vec<f64>,
    /// Bound of the 2-norm of (meant - stored).
    uncertainty: f64,
    /// Bound of the 2-norm.
    size: f64,
}

impl Symmetric {
    /// Builds the matrix from `entry(i, j) -> (value, bound of |value|'s terms)` for `i <= j`, where the stored value is
    /// wrong by at most `gamma(roundings)` times that bound.
    #[must_use]
    pub fn from_fn(
        n: usize,
        roundings: usize,
        mut entry: impl FnMut(usize, usize) -> (f64, f64),
    ) -> Symmetric {
        let mut entries = vec![0.0; n * n];
        let mut row_magnitudes = vec![0.0; n];
        for i in 0..n {
            for j in i..n {
                let (value, magnitude) = entry(i, j);
                entries[i * n + j] = value;
                row_magnitudes[i] += magnitude;
                if j != i {
                    row_magnitudes[j] += magnitude;
                }
            }
        }
        // The 2-norm of a symmetric matrix is at most its largest absolute row sum.
        let largest = Upper::largest(row_magnitudes).get();
        let uncertainty = gamma(roundings) * largest * (1.0 + gamma(n + 8)) + tiny(4 * n * n);
        Symmetric { n, entries, uncertainty, size: largest }
    }

    /// Its largest absolute row sum, which bounds its 2-norm, up to rounding.
    #[must_use]
    pub fn size(&self) -> f64 {
        self.size
    }

    /// Whether the matrix meant, minus `shift * I`, is certainly positive definite. `false` means: not shown.
    #[must_use]
    pub fn exceeds(&self, shift: f64) -> bool {
        let mut factor = self.entries.clone();
        self.exceeds_in(shift, &mut factor)
    }

    fn exceeds_in(&self, shift: f64, factor: &mut [f64]) -> bool {
        let n = self.n;
        // trace(|diag|) bounds the trace of the shifted matrix as well.
        let trace: f64 = (0..n).map(|i| self.entries[i * n + i].abs() + shift.abs()).sum();
        let rounding = 2.0 * gamma(n + 4) * trace + tiny(n * n + 1);
        let total = (shift + (self.uncertainty + rounding) * (1.0 + gamma(8))).next_up().next_up();
        for i in 0..n {
            factor[i * n + i] = (factor[i * n + i] - total).next_down();
        }
        factorise(factor, n)
    }

    /// A lower bound of the least eigenvalue, within about `tolerance` (relative to the size of the matrix) of the
    /// truth; `None` where not even a generous bound could be shown (not finite).
    #[must_use]
    pub fn least_eigenvalue(&self, tolerance: f64) -> Option<f64> {
        let n = self.n;
        let mut scratch = self.entries.clone();
        let mut test = |shift: f64| {
            scratch.copy_from_slice(&self.entries);
            self.exceeds_in(shift, &mut scratch)
        };
        // Gershgorin: every eigenvalue lies within `span` of zero.
        let row = |i: usize| (0..n).map(|j| self.entries[i.min(j) * n + i.max(j)].abs()).sum::<f64>();
        let span = Upper::largest((0..n).map(row)).get();
        let diagonal = (0..n).map(|i| self.entries[i * n + i]).fold(f64::INFINITY, f64::min);
        // Also where all entries vanish (an antisymmetric matrix), more than what underflow may cost.
        let generous = 2.0 * span + 4.0 * self.uncertainty + LEAST_SHIFT;
        let (mut known, mut refuted) = (-generous, diagonal.min(span));
        if !(known.is_finite() && test(known)) {
            return None;
        }
        for _ in 0..MOST_BISECTIONS {
            if refuted - known <= tolerance * span + LEAST_SHIFT {
                break;
            }
            let middle = 0.5 * (known + refuted);
            if test(middle) {
                known = middle;
            } else {
                refuted = middle;
            }
        }
        Some(known)
    }
}

/// Cholesky factorisation `A = R^T R` of the upper triangle in place; `false` as soon as a pivot is not positive.
#[must_use]
fn factorise(a: &mut [f64], n: usize) -> bool {
    vectorised(
        #[inline(always)]
        || factorise_rows(a, n),
    )
}

/// Row `i` of `R` from the rows above it, four of them per pass over the row, so that each entry is loaded once for
/// eight operations.
#[inline(always)]
fn factorise_rows(a: &mut [f64], n: usize) -> bool {
    for i in 0..n {
        let (above, rest) = a.split_at_mut(i * n);
        let row = &mut rest[i..n];
        let len = row.len();
        let mut quads = above.chunks_exact(4 * n);
        for quad in &mut quads {
            let (r0, quad) = quad.split_at(n);
            let (r1, quad) = quad.split_at(n);
            let (r2, r3) = quad.split_at(n);
            let (c0, c1, c2, c3) = (r0[i], r1[i], r2[i], r3[i]);
            let (r0, r1, r2, r3) = (&r0[i..][..len], &r1[i..][..len], &r2[i..][..len], &r3[i..][..len]);
            for j in 0..len {
                row[j] -= (c0 * r0[j] + c1 * r1[j]) + (c2 * r2[j] + c3 * r3[j]);
            }
        }
        for one in quads.remainder().chunks_exact(n) {
            let c = one[i];
            let one = &one[i..][..len];
            for j in 0..len {
                row[j] -= c * one[j];
            }
        }
        let pivot = row[0];
        // Not `pivot <= 0.0`: a NaN must fail as well.
        if !(pivot > 0.0 && pivot.is_finite()) {
            return false;
        }
        let root = pivot.sqrt();
        let scale = 1.0 / root;
        row[0] = root;
        for x in &mut row[1..] {
            *x *= scale;
        }
    }
    true
}
