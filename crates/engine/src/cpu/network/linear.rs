//! Fully connected layers.

use super::blocked::{AddProduct, Transpose};
use super::scratch::with_scratch;
#[cfg(target_arch = "x86_64")]
use super::tile_linear;
use super::vector::sum_rows;
#[cfg(target_arch = "x86_64")]
use crate::cpu::conv::same::{same, same_mut};
use crate::cpu::isa::Isa;
use crate::cpu::simd::SimdReal;
use crate::cpu::team::Team;
#[cfg(target_arch = "x86_64")]
use crate::cpu::tiles::AmxProof;
use crate::network::LinearShape;

/// Samples of one task.
const SAMPLES: usize = 32;
/// Columns of the weights that one task turns.
const COLUMNS: usize = 128;
/// Rows of the weight gradient of one task.
const ROWS: usize = 24;
/// Numbers in a cache line; rows of the transposed weights begin on one.
const LINE: usize = 16;

pub(super) fn forward<T: SimdReal>(
    team: &Team,
    isa: Isa,
    shape: LinearShape,
    x: &[T],
    w: &[T],
    b: &[T],
    y: &mut [T],
) {
    let LinearShape { batch, inputs, outputs } = shape;
    if batch * outputs == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(proof) = AmxProof::of(isa).filter(|_| tile_linear::pays(shape))
        && let (Some(x), Some(w), Some(b), Some(y)) = (same(x), same(w), same(b), same_mut(y))
    {
        let (b, y) = (&b[..outputs], &mut y[..batch * outputs]);
        return tile_linear::forward(team, proof, shape, &x[..batch * inputs], w, b, y);
    }
    let stride = outputs.next_multiple_of(LINE);
    with_scratch(inputs * stride, |transposed: &mut [T]| {
        team.for_each(transposed.chunks_mut(COLUMNS * stride).enumerate(), |(task, transposed)| {
            let first = task * COLUMNS;
            isa.dispatch(Transpose { rows: &w[..outputs * inputs], len: inputs, first, transposed, stride });
        });
        let transposed: &[T] = transposed;
        team.for_each(y[..batch * outputs].chunks_mut(SAMPLES * outputs).enumerate(), |(task, y)| {
            for y in y.chunks_exact_mut(outputs) {
                y.copy_from_slice(&b[..outputs]);
            }
            let a = &x[task * SAMPLES * inputs..];
            let (row, column, depth, width) = (inputs, 1, inputs, outputs);
            isa.dispatch(AddProduct { a, row, column, b: transposed, b_stride: stride, depth, width, c: y });
        });
    });
}

#[allow(clippy::too_many_arguments)] // two factors, one gradient in, three out
pub(super) fn backward<T: SimdReal>(
    team: &Team,
    isa: Isa,
    shape: LinearShape,
    x: &[T],
    w: &[T],
    gy: &[T],
    gx: Option<&mut [T]>,
    gw: &mut [T],
    gb: &mut [T],
) {
    let LinearShape { batch, inputs, outputs } = shape;
    if batch * inputs * outputs == 0 {
        return;
    }
    if let Some(gx) = gx {
        team.for_each(gx[..batch * inputs].chunks_mut(SAMPLES * inputs).enumerate(), |(task, c)| {
            c.fill(T::ZERO);
            let a = &gy[task * SAMPLES * outputs..];
            let (row, column, depth, width) = (outputs, 1, outputs, inputs);
            isa.dispatch(AddProduct { a, row, column, b: w, b_stride: inputs, depth, width, c });
        });
    }
    weight_gradient(team, isa, shape, x, gy, gw);
    sum_rows(team, isa, outputs, &gy[..batch * outputs], &mut gb[..outputs]);
}

fn weight_gradient<T: SimdReal>(team: &Team, isa: Isa, shape: LinearShape, x: &[T], gy: &[T], gw: &mut [T]) {
    let LinearShape { batch, inputs, outputs } = shape;
    #[cfg(target_arch = "x86_64")]
    if let Some(proof) = AmxProof::of(isa).filter(|_| tile_linear::pays(shape))
        && let (Some(x), Some(gy), Some(gw)) = (same(x), same(gy), same_mut(gw))
    {
        let (x, gy) = (&x[..batch * inputs], &gy[..batch * outputs]);
        return tile_linear::weight_gradient(team, proof, shape, x, gy, gw);
    }
    team.for_each(gw[..outputs * inputs].chunks_mut(ROWS * inputs).enumerate(), |(task, c)| {
        let a = &gy[task * ROWS..];
        let (row, column, depth, width) = (1, outputs, batch, inputs);
        isa.dispatch(AddProduct { a, row, column, b: x, b_stride: inputs, depth, width, c });
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::network::testing::{assert_gradient, random};

    #[test]
    fn gradients_equal_finite_differences() {
        let (team, isa) = (Team::new(1).unwrap(), Isa::detect());
        let shape = LinearShape { batch: 5, inputs: 7, outputs: 3 };
        let (x, w, b, v) = (random(35, 1), random(21, 2), random(3, 3), random(15, 4));
        let objective = |x: &[f64], w: &[f64], b: &[f64]| -> f64 {
            let mut y = vec![0.0; v.len()];
            forward(&team, isa, shape, x, w, b, &mut y);
            y.iter().zip(&v).map(|(y, v)| y * v).sum()
        };
        let (mut gx, mut gw, mut gb) = (vec![7.0; 35], vec![0.0; 21], vec![0.0; 3]);
        backward(&team, isa, shape, &x, &w, &v, Some(&mut gx), &mut gw, &mut gb);
        assert_gradient(&x, &gx, |x| objective(x, &w, &b));
        assert_gradient(&w, &gw, |w| objective(&x, w, &b));
        assert_gradient(&b, &gb, |b| objective(&x, &w, b));
    }

    #[test]
    fn equals_the_definition() {
        let team = Team::new(1).unwrap();
        for (batch, inputs, outputs) in [(70, 200, 87), (33, 87, 10), (5, 3, 1), (6, 130, 113)] {
            let single = |len, seed| random(len, seed).iter().map(|&x| x as f32).collect::<Vec<f32>>();
            let (x, w, b) = (single(batch * inputs, 1), single(outputs * inputs, 2), single(outputs, 3));
            let exact = |sample: usize, output: usize| {
                let terms = (0..inputs)
                    .map(|k| f64::from(x[sample * inputs + k]) * f64::from(w[output * inputs + k]));
                let size = terms.clone().map(f64::abs).sum::<f64>();
                (f64::from(b[output]) + terms.sum::<f64>(), size)
            };
            for isa in Isa::available() {
                let mut y = vec![0.0; batch * outputs];
                forward(&team, isa, LinearShape { batch, inputs, outputs }, &x, &w, &b, &mut y);
                for (i, &y) in y.iter().enumerate() {
                    let (expected, size) = exact(i / outputs, i % outputs);
                    // Tiles keep two bf16 halves of each factor, so that a term is off by up to 2^-16 of itself, of either sign.
                    let allowed = if isa.has_amx() { 4e-6 * size + 1e-6 } else { 2e-5 };
                    assert!((f64::from(y) - expected).abs() < allowed, "{isa:?}: {y} but {expected}");
                }
            }
        }
    }

    #[test]
    fn a_samples_bits_do_not_depend_on_its_batch() {
        let (team, isa) = (Team::new(1).unwrap(), Isa::detect());
        for (inputs, outputs) in [(784, 87), (87, 10), (768, 200), (3, 1), (1, 5)] {
            let single = |len, seed| random(len, seed).iter().map(|&x| x as f32).collect::<Vec<f32>>();
            let (x, w, b) = (single(200 * inputs, 3), single(outputs * inputs, 4), single(outputs, 5));
            let of = |start: usize, batch: usize| {
                let mut y = vec![0.0; batch * outputs];
                let shape = LinearShape { batch, inputs, outputs };
                forward(&team, isa, shape, &x[start * inputs..], &w, &b, &mut y);
                y
            };
            let all = of(0, 200);
            for (start, count) in [(0, 1), (70, 1), (130, 64), (137, 63), (1, 199)] {
                let expected = &all[start * outputs..(start + count) * outputs];
                assert_eq!(of(start, count), expected, "{count} samples from {start}, {inputs} to {outputs}");
            }
        }
    }
}
