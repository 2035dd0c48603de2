//! How accurately an iteration is computed: roughly far from the fixed point, fully close to it.
//!
//! A kernel that rounds more is faster, and far from the fixed point its error does no harm: the next iteration contracts
//! it. But its residual means nothing below its own rounding error, so a sample climbs to the next accuracy as soon as
//! its residual comes near that level, never descends, and never ends on a residual that its accuracy does not vouch for.
//! The choice looks at this sample's residuals alone.

use super::kernel::Series;
use crate::Measure;
use crate::cpu::distance::Distance;
use crate::cpu::simd::SimdReal;
use crate::cpu::step::{FixedPointStep, InPlace};
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::Passes;

/// How large the error of a convolution may be, relative to the size of its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Accuracy {
    /// About `2^-8`: bf16 products, where the machine has them.
    Coarse,
    /// About `1e-5`: bf16 products of split numbers, or Winograd's convolution.
    Fine,
    /// Rounding errors of the number type only: the direct sum.
    #[default]
    Full,
}

impl Accuracy {
    /// From the roughest on.
    const ALL: [Accuracy; 3] = [Accuracy::Coarse, Accuracy::Fine, Accuracy::Full];

    /// The relative residual down to which this accuracy can be trusted: about ten times the error that it makes in a whole
    /// state (measured with AMX on 16 channels as they are initialised: `9.6e-4` and `2.3e-6`; the tests hold it to
    /// `1.5e-3` and `4e-6`). Products in the frequency domain, with the weights of their tests, are off by
    /// `1.7e-3` and `2.6e-6` for 48 channels of 32 x 32, and by `2.8e-3` and `6.5e-6` at the worst of the
    /// sizes tested (relative to the product, without the constant that is added): the floors are
    /// three times that.
    fn floor(self) -> f64 {
        match self {
            Self::Coarse => 1e-2,
            Self::Fine => 2e-5,
            Self::Full => 0.0,
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Coarse => Self::Fine,
            _ => Self::Full,
        }
    }

    /// The passes over matrix tiles that are this accurate; none are fully accurate.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn passes(self) -> Option<Passes> {
        match self {
            Self::Coarse => Some(Passes::One),
            Self::Fine => Some(Passes::Three),
            Self::Full => None,
        }
    }

    /// The accuracy that a solve to this tolerance has to end with.
    ///
    /// Only relative residuals can be compared with rounding errors without knowing the state: with any other measure
    /// everything is computed at full accuracy.
    pub fn required(measure: Measure, tolerance: f64) -> Self {
        if measure == Measure::Relative && tolerance >= Self::Fine.floor() { Self::Fine } else { Self::Full }
    }
}

/// The accuracy in force, and the sample that it was last used for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grade {
    accuracy: Accuracy,
    last: Option<usize>,
    /// Whether no application continues another.
    alone: bool,
}

impl Grade {
    /// The accuracy in force.
    pub fn accuracy(&self) -> Accuracy {
        self.accuracy
    }

    /// Changes the accuracy. What comes after a change continues nothing.
    pub fn set(&mut self, accuracy: Accuracy) {
        if self.accuracy != accuracy || self.alone {
            *self = Self { accuracy, ..Self::default() };
        }
    }

    /// Changes the accuracy for applications each of which stands by itself, up to the next change.
    pub(crate) fn set_alone(&mut self, accuracy: Accuracy) {
        *self = Self { accuracy, last: None, alone: true };
    }

    /// Begins an application to a sample. Says where it stands: the one before it may have been to the same, with the same
    /// accuracy.
    pub(crate) fn begin(&mut self, sample: usize) -> Series {
        if self.alone {
            return Series::Alone;
        }
        if self.last.replace(sample) == Some(sample) { Series::Next } else { Series::First }
    }
}

/// The accuracy of one sample's iteration.
#[derive(Clone, Copy, Debug)]
struct Precision {
    accuracy: Accuracy,
    last_residual: f64,
}

impl Precision {
    /// Takes note of a residual. Says whether the image it belongs to must be computed again since the solve could end
    /// on a residual that was too rough to mean anything.
    fn must_repeat(&mut self, residual: f64, tolerance: f64, required: Accuracy) -> bool {
        if self.accuracy >= required {
            return false;
        }
        // A coarse iteration that no longer falls has reached its rounding level early.
        let stalled = residual > 0.9 * self.last_residual;
        self.last_residual = residual;
        if stalled || residual <= self.accuracy.floor().max(4.0 * tolerance) || residual.is_nan() {
            self.accuracy = self.accuracy.next();
        }
        residual <= tolerance
    }
}

/// A fixed-point problem computed as roughly as each sample's residual allows.
pub struct Graded<'a, T: SimdReal> {
    problem: &'a mut dyn FixedPointStep<T>,
    scratch: &'a mut GradedScratch,
    tolerance: f64,
    required: Accuracy,
}

/// Memory of [`Graded`]; one per thread.
#[derive(Default)]
pub struct GradedScratch {
    precision: Vec<Precision>,
    /// Samples whose step is still to be computed.
    todo: Vec<usize>,
    /// Those of one accuracy.
    group: Vec<usize>,
}

impl<'a, T: SimdReal> Graded<'a, T> {
    /// Begins a solve of `samples` samples with residuals in this measure down to this tolerance.
    pub fn begin(
        problem: &'a mut dyn FixedPointStep<T>,
        scratch: &'a mut GradedScratch,
        samples: usize,
        measure: Measure,
        tolerance: f64,
    ) -> Self {
        let required = Accuracy::required(measure, tolerance);
        let accuracy = if measure == Measure::Relative { Accuracy::Coarse } else { required };
        scratch.precision.clear();
        scratch.precision.resize(samples, Precision { accuracy, last_residual: f64::INFINITY });
        Self { problem, scratch, tolerance, required }
    }

    /// Applies the problem to the samples of each accuracy in turn.
    fn by_accuracy(
        &mut self,
        active: &[usize],
        measure: Measure,
        distances: &mut [Distance],
        mut apply: impl FnMut(&mut dyn FixedPointStep<T>, &[usize], &mut [Distance]),
    ) {
        let Self { problem, scratch: GradedScratch { precision, todo, group }, .. } = self;
        todo.clear();
        todo.extend_from_slice(active);
        for accuracy in Accuracy::ALL {
            group.clear();
            group.extend(todo.iter().copied().filter(|&sample| precision[sample].accuracy == accuracy));
            if group.is_empty() {
                continue;
            }
            set_accuracy(&mut **problem, accuracy);
            apply(&mut **problem, group, distances);
            // Who must repeat has climbed to the next accuracy, whose turn comes after this one's.
            todo.retain(|&sample| {
                let precision = &mut precision[sample];
                precision.accuracy != accuracy
                    || precision.must_repeat(distances[sample].value(measure), self.tolerance, self.required)
            });
        }
    }
}

/// A problem goes back to full accuracy when a solve is over: what is done with it next knows nothing of this one.
impl<T: SimdReal> Drop for Graded<'_, T> {
    fn drop(&mut self) {
        set_accuracy(self.problem, Accuracy::Full);
    }
}

impl<T: SimdReal> FixedPointStep<T> for Graded<'_, T> {
    fn state_len(&self) -> usize {
        self.problem.state_len()
    }

    fn step(
        &mut self,
        active: &[usize],
        argument: &[T],
        image: &mut [T],
        measure: Measure,
        distances: &mut [Distance],
    ) {
        self.by_accuracy(active, measure, distances, |problem, group, distances| {
            problem.step(group, argument, image, measure, distances);
        });
    }

    fn in_place(&mut self) -> Option<&mut dyn InPlace<T>> {
        if self.problem.in_place().is_some() { Some(self) } else { None }
    }

    fn finish(&mut self, done: &[usize], state: &[T], answers: &mut [T]) {
        set_accuracy(self.problem, self.required);
        self.problem.finish(done, state, answers);
    }
}

/// Who must repeat goes on from the image, which is as good an argument.
impl<T: SimdReal> InPlace<T> for Graded<'_, T> {
    fn iterate(&mut self, active: &[usize], state: &mut [T], measure: Measure, distances: &mut [Distance]) {
        self.by_accuracy(active, measure, distances, |problem, group, distances| {
            let problem = problem.in_place().expect("only a problem that iterates in place is asked to");
            problem.iterate(group, state, measure, distances);
        });
    }
}

/// Sets the accuracy of a problem that has a choice.
pub fn set_accuracy<T: SimdReal>(problem: &mut dyn FixedPointStep<T>, accuracy: Accuracy) {
    if let Some(grade) = problem.grade() {
        grade.set(accuracy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contraction by one half with an error of the size of its accuracy.
    struct Halving {
        grade: Grade,
        used: Vec<Accuracy>,
    }

    impl FixedPointStep<f64> for Halving {
        fn state_len(&self) -> usize {
            1
        }

        fn grade(&mut self) -> Option<&mut Grade> {
            Some(&mut self.grade)
        }

        fn step(
            &mut self,
            active: &[usize],
            z: &[f64],
            out: &mut [f64],
            _: Measure,
            distances: &mut [Distance],
        ) {
            let error = self.grade.accuracy().floor() / 10.0;
            for &s in active {
                out[s] = 0.5 * z[s] + 0.5 + error;
                let difference = (out[s] - z[s]).powi(2);
                distances[s] = Distance { difference, size: out[s] * out[s], ..Distance::EMPTY };
            }
            self.used.push(self.grade.accuracy());
        }
    }

    fn iterate(tolerance: f64, measure: Measure) -> (f64, Vec<Accuracy>) {
        let mut problem = Halving { grade: Grade::default(), used: Vec::new() };
        let mut scratch = GradedScratch::default();
        let mut graded = Graded::begin(&mut problem, &mut scratch, 1, measure, tolerance);
        let (mut z, mut out, mut distance) = ([9.0], [0.0], [Distance::EMPTY]);
        for _ in 0..200 {
            graded.step(&[0], &z, &mut out, measure, &mut distance);
            z = out;
            if distance[0].value(measure) <= tolerance {
                break;
            }
        }
        assert!(distance[0].value(measure) <= tolerance);
        drop(graded);
        (z[0], problem.used)
    }

    #[test]
    fn climbs_and_never_ends_too_rough() {
        for (tolerance, last) in [
            (0.5, Accuracy::Fine),
            (1e-2, Accuracy::Fine),
            (1e-3, Accuracy::Fine),
            (1e-6, Accuracy::Full),
            (1e-12, Accuracy::Full),
        ] {
            let (z, used) = iterate(tolerance, Measure::Relative);
            assert!(
                used.is_sorted() && used[0] == Accuracy::Coarse && *used.last().unwrap() == last,
                "{used:?}"
            );
            assert!((z - 1.0).abs() <= 2.0 * tolerance * 2.0 + 1e-5, "{tolerance}: {z}");
        }
    }

    #[test]
    fn measures_without_scale_get_full_accuracy() {
        let (_, used) = iterate(1e-3, Measure::Sup);
        assert!(used.iter().all(|&accuracy| accuracy == Accuracy::Full));
    }
}
