//! Weights from free parameters, and gradients the other way, on a GPU.

use subdeq_map::Parametrisation;

use super::gpu::{Grid, Memory};
use super::kernel::launch;
use super::shifted::Shifted;
use super::{Cuda, not_yet};
use crate::cpu::packed::check_len;
use crate::{Operator, Parametrise, Result, ShapedMap};

/// Weights on a GPU, with what the way back needs.
#[derive(Debug)]
pub struct CudaWeights {
    map: ShapedMap,
    parametrisation: Parametrisation,
    arrays: Vec<Memory<f32>>,
    tied: Option<Memory<f32>>,
    shifted: Option<Shifted>,
    /// The gradient for `B` with what comes through the tied shift.
    pulled: Option<Memory<f32>>,
    /// `B = b A` of tied monotone weights, or the gradient for it.
    skew: Option<Memory<f32>>,
}

impl CudaWeights {
    /// Names and lengths of the free parameters.
    fn needed(&self) -> Vec<(&'static str, usize)> {
        crate::free_parameters(self.parametrisation, &self.map)
    }

    /// Weights per row (output unit or channel).
    fn row_len(&self) -> usize {
        self.map.operator().weight_len() / self.map.operator().units()
    }

    /// Height and width of the kernels of `A` and `B` of a product.
    fn factor_side(&self) -> usize {
        self.parametrisation.free_side(self.map.operator().side())
    }
}

/// The kernels that make `-A'A + B - B'`, and those for the gradients, of factors whose kernels have this side.
fn product_kernels(side: usize) -> Result<[&'static str; 2]> {
    match side {
        1 => Ok(["make_product_1", "pull_product_1"]),
        3 => Ok(["make_product_3", "pull_product_3"]),
        5 => Ok(["make_product_5", "pull_product_5"]),
        other => Err(not_yet(&format!("factors with kernels of side {other}"))),
    }
}

/// A block for 16 x 16 pairs of units.
fn pairs_of(units: usize) -> Grid {
    Grid::blocks(units.div_ceil(16).pow(2))
}

impl Parametrise for Cuda {
    type Weights = CudaWeights;

    fn weights(&self, map: &ShapedMap, parametrisation: Parametrisation) -> Result<CudaWeights> {
        if let Operator::Conv { padding, .. } = map.operator() {
            parametrisation.check_padding(padding)?;
        }
        let shifted = match parametrisation {
            Parametrisation::MonotoneShifted { margin } => {
                Some(Shifted::new(&self.gpu, &map.operator(), margin)?)
            }
            _ => None,
        };
        let tied = map.equation().tie() != 0.0;
        let zeros = |len: usize| Memory::zeros(&self.gpu, len);
        let skew = match parametrisation {
            Parametrisation::MonotoneTied { .. } => {
                Some(zeros(crate::free_parameters(parametrisation, map)[0].1)?)
            }
            _ => None,
        };
        Ok(CudaWeights {
            map: *map,
            parametrisation,
            arrays: (0..map.weight_count()).map(|k| zeros(map.weight_len(k))).collect::<Result<_>>()?,
            shifted,
            tied: tied.then(|| zeros(map.operator().units())).transpose()?,
            pulled: tied.then(|| zeros(map.weight_len(1))).transpose()?,
            skew,
        })
    }

    fn make_weights(&self, weights: &mut CudaWeights, free: &[&Memory<f32>]) -> Result<()> {
        for (array, (name, len)) in free.iter().zip(weights.needed()) {
            check_len(name, array.len(), len)?;
        }
        let (gpu, v, row, side) = (&self.gpu, free[0], weights.row_len(), weights.factor_side());
        let units = weights.map.operator().units();
        let arrays = &mut weights.arrays[..];
        let len = arrays[0].len();
        let grid = Grid::entries(len);
        match (weights.parametrisation, arrays) {
            (Parametrisation::MonotoneShifted { .. }, [w, ..]) => {
                weights.shifted.as_mut().map_or(Ok(()), |shifted| shifted.make(gpu, v, w))?;
            }
            (Parametrisation::Absolute, [w, ..]) => launch!(gpu, "make_absolute", grid, v, w, len)?,
            (Parametrisation::RowSigned, [w, ..]) => launch!(gpu, "make_row_signed", grid, v, w, len, row)?,
            (Parametrisation::Split, [p, n]) => launch!(gpu, "make_split", grid, v, p, n, len)?,
            (Parametrisation::SplitGains, [a, b, p, n]) => {
                launch!(gpu, "make_split", grid, v, a, b, len)?;
                let len = p.len();
                launch!(gpu, "make_split", Grid::entries(len), free[1], p, n, len)?;
            }
            (
                Parametrisation::MonotoneProduct { margin } | Parametrisation::MonotoneTied { margin },
                [w, ..],
            ) => {
                let identity = (1.0 - margin) as f32;
                let b = match &mut weights.skew {
                    Some(skew) => {
                        let len = skew.len();
                        launch!(gpu, "make_skew", Grid::entries(len), v, free[1], &mut *skew, len)?;
                        &*skew
                    }
                    None => free[1],
                };
                let [make, _] = product_kernels(side)?;
                gpu.launch(
                    make,
                    pairs_of(units),
                    &[v.into(), b.into(), (units as u32).into(), identity.into(), w.into()],
                )?;
            }
            (Parametrisation::Free, [w, ..]) => w.copy_from(v, len)?,
            (other, _) => return Err(not_yet(&format!("the parametrisation {other:?} of this map"))),
        }
        if let Some(tied) = &mut weights.tied {
            let tie = weights.map.equation().tie();
            launch!(gpu, "make_tied", Grid::threads(units), &weights.arrays[1], tie, units as u32, tied)?;
        }
        Ok(())
    }

    fn weight_arrays<'a>(&self, weights: &'a CudaWeights) -> &'a [Memory<f32>] {
        &weights.arrays
    }

    fn tied_shift<'a>(&self, weights: &'a CudaWeights) -> Option<&'a Memory<f32>> {
        weights.tied.as_ref()
    }

    fn pull_parameters(
        &self,
        weights: &mut CudaWeights,
        free: &[&Memory<f32>],
        gradients: &[Memory<f32>],
        tied: Option<&Memory<f32>>,
        free_gradients: &mut [&mut Memory<f32>],
    ) -> Result<()> {
        for (k, gradient) in gradients.iter().enumerate() {
            check_len("a weight gradient", gradient.len(), weights.map.weight_len(k))?;
        }
        for ((name, len), (v, g)) in weights.needed().into_iter().zip(free.iter().zip(&*free_gradients)) {
            check_len(name, v.len(), len)?;
            check_len(name, g.len(), len)?;
        }
        let (row, side) = (weights.row_len(), weights.factor_side());
        let units = weights.map.operator().units();
        let mut given: Vec<&Memory<f32>> = gradients.iter().collect();
        if let (Some(sums), Some(pulled)) = (tied, &mut weights.pulled) {
            check_len("the gradient of the tied shift", sums.len(), units)?;
            let tie = weights.map.equation().tie() as f32;
            let grid = Grid::entries(units * units);
            launch!(self.gpu, "pull_tied", grid, given[1], sums, tie, units as u32, &mut *pulled)?;
            given[1] = pulled;
        }
        let (gpu, v, len) = (&self.gpu, free[0], weights.map.weight_len(0));
        let grid = Grid::entries(len);
        match (weights.parametrisation, &given[..], free_gradients) {
            (Parametrisation::MonotoneShifted { .. }, [g, ..], [out, ..]) => {
                weights.shifted.as_mut().map_or(Ok(()), |shifted| shifted.pull(gpu, g, out))
            }
            (Parametrisation::Free, [g, ..], [out, ..]) => out.copy_from(g, len),
            (Parametrisation::Absolute, [g, ..], [out, ..]) => {
                launch!(gpu, "pull_absolute", grid, v, *g, &mut **out, len)
            }
            (Parametrisation::RowSigned, [g, ..], [out, ..]) => {
                launch!(gpu, "pull_row_signed", grid, v, *g, &mut **out, len, row)
            }
            (Parametrisation::Split, [p, n], [out, ..]) => {
                launch!(gpu, "pull_split", grid, v, *p, *n, &mut **out, len)
            }
            (Parametrisation::SplitGains, [a, b, p, n], [gain, weight]) => {
                launch!(gpu, "pull_split", grid, v, *a, *b, &mut **gain, len)?;
                let len = weights.map.weight_len(2);
                launch!(gpu, "pull_split", Grid::entries(len), free[1], *p, *n, &mut **weight, len)
            }
            (Parametrisation::MonotoneProduct { .. }, [g, ..], [ga, gb]) => {
                let [_, pull] = product_kernels(side)?;
                gpu.launch(
                    pull,
                    pairs_of(units),
                    &[v.into(), (*g).into(), (units as u32).into(), (&mut **ga).into(), (&mut **gb).into()],
                )
            }
            (Parametrisation::MonotoneTied { .. }, [g, ..], [ga, gb]) => {
                let [_, pull] = product_kernels(side)?;
                weights.skew.as_mut().map_or(Ok(()), |skew| {
                    let len = skew.len();
                    let grid = Grid::entries(len);
                    gpu.launch(
                        pull,
                        pairs_of(units),
                        &[
                            v.into(),
                            (*g).into(),
                            (units as u32).into(),
                            (&mut **ga).into(),
                            (&mut *skew).into(),
                        ],
                    )?;
                    launch!(gpu, "pull_skew", grid, free[1], &*skew, &mut **ga, len)?;
                    launch!(gpu, "sum_skew", Grid::blocks(1), v, &*skew, &mut **gb, len)
                })
            }
            (other, ..) => Err(not_yet(&format!("the parametrisation {other:?} of this map"))),
        }
    }
}
