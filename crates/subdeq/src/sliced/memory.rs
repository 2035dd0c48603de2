//! Arrays and counters of a sliced device.

use subdeq_engine::network::Rows;
use subdeq_engine::{Backend, Device, Operator, Parametrise, Picks, ShapedMap, Spectra, Summary};
use subdeq_map::Parametrisation;

use super::{Engine, Sliced};

/// Methods that are the inner device's, word for word: what they are about has nothing to do with samples, or is done for all of an
/// array, whosever samples are in it.
macro_rules! inner {
    ($(fn $name:ident(&self $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty;)*) => {$(
        fn $name(&self $(, $argument: $type)*) -> $result {
            self.device.$name($($argument),*)
        }
    )*};
}
pub(super) use inner;

/// Numbers of a [`Summary`].
const COUNTERS: usize = 11;

impl<D: Backend<Elem = f32>> Device for Sliced<D> {
    type Elem = f32;
    type Array = D::Array;
    type Integers = D::Integers;
    /// The counters of each slice of this rank.
    type Tally = Vec<D::Tally>;

    fn name(&self) -> String {
        let shared =
            if self.ranks.size() > 1 { format!(" on {} ranks", self.ranks.size()) } else { String::new() };
        format!("{}, batches in {} slices{shared}", self.device.name(), self.slices)
    }

    inner! {
        fn memory(&self) -> Option<u64>;
        fn peak_memory(&self) -> Engine<Option<u64>>;
        fn steps_per_summary(&self) -> usize;
        fn zeros(&self, len: usize) -> Engine<D::Array>;
        fn upload(&self, host: &[f32]) -> Engine<D::Array>;
        fn write(&self, array: &mut D::Array, at: usize, host: &[f32]) -> Engine<()>;
        fn write_finite(&self, what: &'static str, array: &mut D::Array, host: &[f32]) -> Engine<()>;
        fn read(&self, array: &D::Array, at: usize, host: &mut [f32]) -> Engine<()>;
        fn integers(&self, host: &[u32]) -> Engine<D::Integers>;
        fn write_integers(&self, array: &mut D::Integers, host: &[u32]) -> Engine<()>;
        fn fill(&self, len: usize, value: f64, x: &mut D::Array) -> Engine<()>;
        fn copy(&self, len: usize, x: &D::Array, y: &mut D::Array) -> Engine<()>;
    }

    fn copy_rows(
        &self,
        rows: usize,
        len: usize,
        from: Rows<&D::Array>,
        to: Rows<&mut D::Array>,
    ) -> Engine<()> {
        self.on_own(rows, |device, rows| device.copy_rows(rows, len, from, to))
    }

    fn gather_rows(
        &self,
        len: usize,
        from: &D::Array,
        picks: Picks<'_, D::Integers>,
        to: &mut D::Array,
    ) -> Engine<()> {
        match self.own_picks(&picks) {
            picks if picks.range.is_empty() => Ok(()),
            picks => self.noting(self.device.gather_rows(len, from, picks, to)),
        }
    }

    /// Every rank gets the rows of all: in the next epoch they are another rank's to start from.
    fn scatter_rows(
        &self,
        len: usize,
        from: &D::Array,
        picks: Picks<'_, D::Integers>,
        to: &mut D::Array,
    ) -> Engine<()> {
        if self.ranks.size() == 1 {
            return self.device.scatter_rows(len, from, picks, to);
        }
        let count = picks.range.len();
        let mut mine = vec![0.0; self.cut.share(count).len() * len];
        self.device.read(from, 0, &mut mine)?;
        let all = self.together(self.ranks.all_gather(&mine))?;
        let mut room = self.room();
        let [rows, ..] = room.copies.reserved(&*self.device, [count * len, 0, 0, 0])?;
        self.device.write(rows, 0, &all)?;
        self.device.scatter_rows(len, rows, picks, to)
    }

    fn tally(&self) -> Engine<Vec<D::Tally>> {
        self.cut.own().map(|_| self.device.tally()).collect()
    }

    fn finish(&self, tally: &mut Vec<D::Tally>) -> Engine<Summary> {
        let mut leaves = Vec::with_capacity(tally.len() * COUNTERS);
        for tally in tally {
            leaves.extend(numbers(self.device.finish(tally)?));
        }
        if self.has_failed() {
            let add = |sum: [f64; COUNTERS], slice: &[f64]| std::array::from_fn(|k| sum[k] + slice[k]);
            return Ok(summary(&leaves.chunks_exact(COUNTERS).fold([0.0; COUNTERS], add)));
        }
        Ok(summary(&self.sum_leaves(COUNTERS, &leaves)?))
    }
}

/// A summary as numbers; counts are exact up to 2^53.
fn numbers(summary: Summary) -> [f64; COUNTERS] {
    let Summary {
        samples,
        loss,
        penalty,
        correct,
        solves,
        converged,
        forward_iterations,
        adjoint_solves,
        backward_iterations,
        adjoint_not_finite,
        unfinished,
    } = summary;
    let counts =
        [samples, correct, solves, converged, forward_iterations, adjoint_solves, backward_iterations];
    let mut all = [0.0; COUNTERS];
    for (number, count) in all.iter_mut().zip(counts.into_iter().chain([adjoint_not_finite, unfinished])) {
        *number = count as f64;
    }
    (all[9], all[10]) = (loss, penalty);
    all
}

/// The way back of [`numbers`].
fn summary(all: &[f64]) -> Summary {
    let count = |k: usize| all[k] as u64;
    Summary {
        samples: count(0),
        correct: count(1),
        solves: count(2),
        converged: count(3),
        forward_iterations: count(4),
        adjoint_solves: count(5),
        backward_iterations: count(6),
        adjoint_not_finite: count(7),
        unfinished: count(8),
        loss: all[9],
        penalty: all[10],
    }
}

impl<D: Backend<Elem = f32>> Parametrise for Sliced<D> {
    type Weights = D::Weights;

    fn weight_arrays<'a>(&self, weights: &'a D::Weights) -> &'a [D::Array] {
        self.device.weight_arrays(weights)
    }

    fn tied_shift<'a>(&self, weights: &'a D::Weights) -> Option<&'a D::Array> {
        self.device.tied_shift(weights)
    }

    inner! {
        fn weights(&self, map: &ShapedMap, parametrisation: Parametrisation) -> Engine<D::Weights>;
        fn make_weights(&self, weights: &mut D::Weights, free: &[&D::Array]) -> Engine<()>;
        fn pull_parameters(
            &self,
            weights: &mut D::Weights,
            free: &[&D::Array],
            gradients: &[D::Array],
            tied: Option<&D::Array>,
            free_gradients: &mut [&mut D::Array],
        ) -> Engine<()>;
    }
}

impl<D: Backend<Elem = f32>> Spectra for Sliced<D> {
    inner! {
        fn splitting_rate(&self, operator: &Operator, w: &D::Array, step: f64, frequencies: usize) -> Engine<f64>;
        fn norm_bound(&self, operator: &Operator, w: &D::Array) -> Engine<f64>;
    }
}
