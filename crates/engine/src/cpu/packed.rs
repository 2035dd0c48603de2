//! A map with its weights, packed for the kernels.

use crate::cpu::gains::Gains;
use crate::cpu::isa::{Isa, Vectorised};
use crate::cpu::linear::{Linear, transpose};
use crate::cpu::normalise::Grouping;
use crate::cpu::simd::{Lanes, SimdReal, for_vectors, get};
use crate::map::Formula;
use crate::{EngineError, Result, ShapedMap};

/// A map and its packed operators; shared by all threads during a call.
pub(crate) struct Packed<T: SimdReal> {
    pub isa: Isa,
    pub map: ShapedMap,
    pub grouping: Option<Grouping>,
    /// `z -> (u, w)`.
    pub forward: Linear<T>,
    /// `(q0, q1) -> P^T q0 + N^T q1`.
    pub transposed: Linear<T>,
    pub gains: Option<Gains<T>>,
    /// The square operators as they were given (`W`, or `P` and `N`), for factorisations.
    pub weights: Vec<Vec<T>>,
}

impl<T: SimdReal> Packed<T> {
    pub fn new(isa: Isa, map: &ShapedMap) -> Self {
        let planes = planes(map);
        let operator = &map.operator;
        let gains = matches!(map.formula, Formula::Gains)
            .then(|| Gains::new(isa, operator.units(), operator.state_len()));
        Self {
            isa,
            map: *map,
            grouping: Grouping::of(map),
            forward: Linear::new(isa, operator, 1, planes),
            transposed: Linear::new(isa, operator, planes, 1),
            gains,
            weights: vec![vec![T::ZERO; operator.weight_len()]; planes],
        }
    }

    /// Operators that are applied to the state: 1, or 2 for the forms with `P` and `N`.
    pub fn planes(&self) -> usize {
        planes(&self.map)
    }

    /// Checks and packs the weights, in the order given with [`ShapedMap`].
    pub fn load(&mut self, weights: &[&[T]]) -> Result<()> {
        let map = &self.map;
        check_weights(map, weights.iter().map(|array| array.len()))?;
        let weights: Vec<&[T]> =
            weights.iter().enumerate().map(|(k, array)| &array[..map.weight_len(k)]).collect();
        for (index, array) in weights.iter().enumerate() {
            check_finite(self.isa, WEIGHT_NAMES[index], array)?;
        }
        let square = if let Some(gains) = &mut self.gains {
            gains.pack([weights[0], weights[1]]);
            &weights[2..]
        } else {
            &weights[..]
        };
        for (kept, array) in self.weights.iter_mut().zip(square) {
            kept.copy_from_slice(array);
        }
        self.forward.pack(square);
        let transposed: Vec<Vec<T>> = square
            .iter()
            .map(|block| {
                let mut turned = vec![T::ZERO; block.len()];
                transpose(&map.operator, block, &mut turned);
                turned
            })
            .collect();
        let blocks: Vec<&[T]> = transposed.iter().map(|block| &block[..]).collect();
        self.transposed.pack(&blocks);
        Ok(())
    }
}

fn planes(map: &ShapedMap) -> usize {
    if matches!(map.formula, Formula::Single) { 1 } else { 2 }
}

const WEIGHT_NAMES: [&str; 4] = ["weights[0]", "weights[1]", "weights[2]", "weights[3]"];

/// An array must hold at least as many numbers as a call needs.
pub(crate) fn check_len(what: &'static str, found: usize, needed: usize) -> Result<()> {
    if found < needed { Err(EngineError::Length { what, found, needed }) } else { Ok(()) }
}

/// Refuses arrays that are not a map's weights, by their lengths.
pub(crate) fn check_weights(map: &ShapedMap, lens: impl ExactSizeIterator<Item = usize>) -> Result<()> {
    check_arrays(map, lens, "", WEIGHT_NAMES)
}

/// Refuses arrays that are not for the gradients of a map's weights, by their lengths.
pub(crate) fn check_gradients(map: &ShapedMap, lens: impl ExactSizeIterator<Item = usize>) -> Result<()> {
    check_arrays(map, lens, "gradients ", ["a weight gradient"; 4])
}

fn check_arrays(
    map: &ShapedMap,
    lens: impl ExactSizeIterator<Item = usize>,
    what: &str,
    names: [&'static str; 4],
) -> Result<()> {
    let (needed, given) = (map.weight_count(), lens.len());
    if given != needed {
        let formula = map.formula;
        return Err(EngineError::Invalid(format!(
            "{formula:?} has {needed} weight arrays, {given} {what}were given"
        )));
    }
    lens.enumerate().try_for_each(|(index, len)| check_len(names[index], len, map.weight_len(index)))
}

/// Refuses infinities and NaN.
pub(crate) fn check_finite<T: SimdReal>(isa: Isa, what: &'static str, numbers: &[T]) -> Result<()> {
    if isa.dispatch(AllFinite(numbers)) {
        return Ok(());
    }
    match numbers.iter().position(|x| !x.is_finite()) {
        None => Ok(()),
        Some(index) => Err(EngineError::NotFinite { what, index, value: numbers[index].to_string() }),
    }
}

/// Whether all numbers are finite.
struct AllFinite<'a, T>(&'a [T]);

impl<T: SimdReal> Vectorised<T> for AllFinite<'_, T> {
    type Output = bool;
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) -> bool {
        // 0 x is NaN as soon as x is not finite, and a sum with NaN stays NaN. Four sums: one would wait for itself.
        let mut witnesses = [V::zero(); 4];
        let whole = self.0.len() - self.0.len() % (4 * V::N);
        for at in (0..whole).step_by(4 * V::N) {
            for (k, witness) in witnesses.iter_mut().enumerate() {
                *witness = V::load(&self.0[at + k * V::N..]).fma(V::zero(), *witness);
            }
        }
        for_vectors!(V, self.0.len() - whole, |at, count| {
            witnesses[0] = get::<V>(self.0, whole + at, count).fma(V::zero(), witnesses[0]);
        });
        let [a, b, c, d] = witnesses;
        let witness = (a + b) + (c + d);
        witness.sum() == T::ZERO
    }
}
