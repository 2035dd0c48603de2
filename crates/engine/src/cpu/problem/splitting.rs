//! The splittings for monotone maps `e = s(W e + c)` and for their adjoints `q = D (W^T q + v)`.
//!
//! Any map of the form `z = s(W z + y) + b` is brought to this form by `z = e + b`, `c = y + W b`.
//!
//! - Peaceman-Rachford, `R = (I + t (I - W))^-1`: `h = R (x + t c)`, `g = 2h - x`, `e = prox_t(g)`, `x <- x + p (2e - g - x)`
//!   with `p` of [`PEACEMAN_RACHFORD_PART`]. The iterate is `x`, and the residual is that of `x`; `R c t` is computed once per sample.
//! - Forward-backward: `e <- prox_t((1 - t) e + t (W e + c))`.

use super::adjoint::finish_adjoint;
use crate::cpu::conv::Grade;
use crate::cpu::distance::{Distance, distance_row};
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::linear::{Linear, LinearScratch};
use crate::cpu::packed::Packed;
use crate::cpu::prox::{adjoint_prox_row, prox_row};
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get, put};
use crate::cpu::step::{FixedPointStep, copy_states};
use crate::solver::PEACEMAN_RACHFORD_PART;
use crate::{Activation, EngineError, Measure, Operator, Result};

/// The resolvents `R` and `R^T` of a dense operator for one step `t`.
pub(crate) struct Resolvent<T: SimdReal> {
    step: f64,
    pub forward: Linear<T>,
    pub transposed: Linear<T>,
}

impl<T: SimdReal> Resolvent<T> {
    /// Inverts `I + t (I - W)` in `f64`.
    pub fn new(isa: Isa, n: usize, weights: &[T], step: f64) -> Result<Self> {
        let mut matrix: Vec<f64> = weights.iter().map(|w| -step * w.to_f64()).collect();
        for i in 0..n {
            matrix[i * n + i] += 1.0 + step;
        }
        invert(n, &mut matrix)?;
        let inverse: Vec<T> = matrix.iter().map(|&x| T::from_f64(x)).collect();
        let turned: Vec<T> = (0..n * n).map(|k| inverse[(k % n) * n + k / n]).collect();
        let operator = Operator::Dense { n };
        let mut forward = Linear::new(isa, &operator, 1, 1);
        let mut transposed = Linear::new(isa, &operator, 1, 1);
        forward.pack(&[&inverse]);
        transposed.pack(&[&turned]);
        Ok(Self { step, forward, transposed })
    }

    /// Whether it was made for this step.
    pub fn is_for(&self, step: f64) -> bool {
        self.step == step
    }
}

/// Inverts a matrix in place (Gauss-Jordan with partial pivoting); refuses a singular one.
fn invert(n: usize, a: &mut [f64]) -> Result<()> {
    let mut order: Vec<usize> = (0..n).collect();
    let mut pivot_row = vec![0.0; n];
    for k in 0..n {
        let pivot =
            (k..n).fold(k, |best, i| if a[i * n + k].abs() > a[best * n + k].abs() { i } else { best });
        let scale = a[pivot * n + k];
        if !(scale.abs() > 1e-12) {
            return Err(EngineError::Invalid(format!(
                "I + t (I - W) is singular to working precision (pivot {scale:e} in column {k}): \
                 W is not monotone, or the step is too large"
            )));
        }
        if pivot != k {
            order.swap(k, pivot);
            for j in 0..n {
                a.swap(k * n + j, pivot * n + j);
            }
        }
        a[k * n + k] = 1.0;
        for x in &mut a[k * n..(k + 1) * n] {
            *x /= scale;
        }
        pivot_row.copy_from_slice(&a[k * n..(k + 1) * n]);
        for (i, row) in a.chunks_exact_mut(n).enumerate() {
            if i != k {
                let factor = std::mem::replace(&mut row[k], 0.0);
                for (x, p) in row.iter_mut().zip(&pivot_row) {
                    *x -= factor * p;
                }
            }
        }
    }
    // Rows were exchanged on the way; the columns of the inverse have to follow.
    for row in a.chunks_exact_mut(n) {
        pivot_row.copy_from_slice(row);
        for (x, &from) in pivot_row.iter().zip(&order) {
            row[from] = *x;
        }
    }
    Ok(())
}

/// Which splitting.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Scheme {
    PeacemanRachford,
    ForwardBackward,
}

/// What is solved, and what the answer is made of.
pub(crate) enum Target<'a, T: SimdReal> {
    /// `e = s(W e + c)`, answer `e + b`.
    Forward {
        activation: Activation,
        /// `b`, one state per sample.
        offset: &'a [T],
    },
    /// `q = D (W^T q + v)`, answer `W^T q + v`.
    Adjoint {
        /// `D`, one state per sample.
        slopes: &'a [T],
        v: &'a [T],
        packed: &'a Packed<T>,
        /// Memory for `W^T`; None if that of the splitting serves.
        scratch: Option<&'a mut LinearScratch<T>>,
    },
}

/// A splitting for a block of samples.
pub(crate) struct Splitting<'a, T: SimdReal> {
    pub isa: Isa,
    pub scheme: Scheme,
    pub step: f64,
    /// `R` (or `R^T`) for Peaceman-Rachford, `W` (or `W^T`) for forward-backward.
    pub linear: &'a Linear<T>,
    pub scratch: &'a mut LinearScratch<T>,
    /// `R t c` for Peaceman-Rachford, `c` for forward-backward; one state per sample.
    pub constant: &'a [T],
    pub len: usize,
    pub target: Target<'a, T>,
    /// One state per sample, for what `finish` works out on the way.
    pub solution: &'a mut [T],
}

impl<T: SimdReal> FixedPointStep<T> for Splitting<'_, T> {
    fn grade(&mut self) -> Option<&mut Grade> {
        self.scratch.grade()
    }

    fn state_len(&self) -> usize {
        self.len
    }

    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        for &sample in active {
            distances[sample] = Distance::EMPTY;
        }
        let (len, target) = (self.len, &self.target);
        self.linear.apply(active, argument, self.scratch, &mut |sample, offset, row, _| {
            let range = sample * len + offset..sample * len + offset + row.len();
            let task = Row {
                scheme: self.scheme,
                step: self.step,
                prox: Prox::of(target, range.clone()),
                row,
                constant: &self.constant[range.clone()],
                x: &argument[range.clone()],
                reflect: true,
            };
            self.isa.dispatch(Step {
                task,
                out: &mut image[range],
                measure,
                distance: &mut distances[sample],
            });
        });
    }

    fn finish(&mut self, done: &[usize], state: &[T], answers: &mut [T]) {
        let len = self.len;
        // The solution `e` (or `q`): for forward-backward the state itself, else one more resolvent.
        match self.scheme {
            Scheme::ForwardBackward => {
                copy_states(len, done, state, self.solution);
            }
            Scheme::PeacemanRachford => {
                let (target, solution) = (&self.target, &mut *self.solution);
                self.linear.apply(done, state, self.scratch, &mut |sample, offset, row, _| {
                    let range = sample * len + offset..sample * len + offset + row.len();
                    let task = Row {
                        scheme: self.scheme,
                        step: self.step,
                        prox: Prox::of(target, range.clone()),
                        row,
                        constant: &self.constant[range.clone()],
                        x: &state[range.clone()],
                        reflect: false,
                    };
                    self.isa.dispatch(Solution { task, out: &mut solution[range] });
                });
            }
        }
        match &mut self.target {
            Target::Forward { offset, .. } => {
                for &sample in done {
                    let range = sample * len..(sample + 1) * len;
                    for ((z, &e), &b) in answers[range.clone()]
                        .iter_mut()
                        .zip(&self.solution[range.clone()])
                        .zip(&offset[range])
                    {
                        *z = e + b;
                    }
                }
            }
            Target::Adjoint { v, packed, scratch, .. } => {
                let scratch = scratch.as_deref_mut().unwrap_or(self.scratch);
                finish_adjoint(packed, done, self.solution, v, scratch, answers);
            }
        }
    }
}

/// The proximal step of a row.
enum Prox<'a, T> {
    Of(Activation),
    Linear(&'a [T]),
}

impl<'a, T: SimdReal> Prox<'a, T> {
    fn of(target: &'a Target<T>, range: std::ops::Range<usize>) -> Self {
        match target {
            Target::Forward { activation, .. } => Self::Of(*activation),
            Target::Adjoint { slopes, .. } => Self::Linear(&slopes[range]),
        }
    }
}

/// One row of a splitting step.
struct Row<'a, T> {
    scheme: Scheme,
    step: f64,
    prox: Prox<'a, T>,
    /// What the linear operator gave.
    row: &'a mut [T],
    constant: &'a [T],
    x: &'a [T],
    /// Whether Peaceman-Rachford's next `x` is wanted, or `e` itself.
    reflect: bool,
}

impl<T: SimdReal> Row<'_, T> {
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self, out: &mut [T]) {
        let len = out.len();
        let step = V::constant(self.step);
        let part = V::constant(PEACEMAN_RACHFORD_PART);
        let Self { scheme, row, constant, x: argument, .. } = self;
        for_vectors!(V, len, |at, count| {
            let (x, linear) =
                (get::<V>(argument, at, count), get::<V>(row, at, count) + get::<V>(constant, at, count));
            let g = match scheme {
                Scheme::PeacemanRachford => linear + linear - x,
                Scheme::ForwardBackward => step.fma(linear - x, x),
            };
            put(g, row, at, count);
            put(g, out, at, count);
        });
        match self.prox {
            Prox::Of(activation) => prox_row::<V>(activation, self.step, row),
            Prox::Linear(slopes) => adjoint_prox_row::<V>(self.step, slopes, row),
        }
        for_vectors!(V, len, |at, count| {
            let e = get::<V>(row, at, count);
            let next = match scheme {
                Scheme::PeacemanRachford if self.reflect => {
                    let x = get::<V>(argument, at, count);
                    part.fma(e + e - get::<V>(out, at, count) - x, x)
                }
                _ => e,
            };
            put(next, out, at, count);
        });
    }
}

struct Step<'a, 'b, T> {
    task: Row<'a, T>,
    out: &'b mut [T],
    measure: Measure,
    distance: &'b mut Distance,
}

impl<T: SimdReal> Vectorised<T> for Step<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        let x = self.task.x;
        self.task.run::<V>(self.out);
        self.distance.merge(distance_row::<V>(self.measure, x, self.out));
    }
}

struct Solution<'a, 'b, T> {
    task: Row<'a, T>,
    out: &'b mut [T],
}

impl<T: SimdReal> Vectorised<T> for Solution<'_, '_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        self.task.run::<V>(self.out);
    }
}

#[cfg(test)]
mod tests {
    use super::invert;

    #[test]
    fn inverse_with_exchanged_rows() {
        let a = [0.0, 2.0, 1.0, 1.0, 0.0, 3.0, 4.0, -1.0, 0.5];
        let mut b = a;
        invert(3, &mut b).unwrap();
        for i in 0..3 {
            for j in 0..3 {
                let entry: f64 = (0..3).map(|k| a[i * 3 + k] * b[k * 3 + j]).sum();
                assert!((entry - if i == j { 1.0 } else { 0.0 }).abs() < 1e-14, "({i}, {j}): {entry}");
            }
        }
        assert!(invert(2, &mut [1.0, 2.0, 2.0, 4.0]).is_err());
    }
}
