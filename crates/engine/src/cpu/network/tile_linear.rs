//! Fully connected layers on matrix tiles (AMX), in three bf16 passes: errors of about `5e-6` of the result.

use super::scratch::with_tiles;
use crate::cpu::parts::Parts;
use crate::cpu::team::Team;
use crate::cpu::tiles::{
    AmxProof, Common, DEPTH, GROUP, Job, Passes, SIDE, Step, Tile, TileSession, add, pack_pair, pack_row,
    products, transpose_pairs,
};
use crate::network::LinearShape;

/// Samples of one task of the forward product: four tiles.
const SAMPLES: usize = GROUP * SIDE;
/// Inputs of one task of the weight gradient: four tiles.
const INPUTS: usize = GROUP * SIDE;
/// Products of inputs and outputs below which tiles would mostly be empty or spend their time on being packed.
const SMALL: usize = 4096;

/// Whether a layer of this shape is worth the tiles. The batch has no say: a sample's bits must not depend on it.
pub(super) fn pays(shape: LinearShape) -> bool {
    shape.inputs * shape.outputs >= SMALL && shape.inputs >= DEPTH
}

/// `y = W x + b`.
pub(super) fn forward(
    team: &Team,
    proof: AmxProof,
    shape: LinearShape,
    x: &[f32],
    w: &[f32],
    b: &[f32],
    y: &mut [f32],
) {
    let LinearShape { inputs, outputs, .. } = shape;
    let (depth, columns) = (inputs.div_ceil(DEPTH), outputs.div_ceil(SIDE));
    with_tiles(2 * columns * depth, |weights| {
        // For each 16 outputs the high tiles along the inputs, then the low ones.
        let rows = w[..outputs * inputs].chunks(SIDE * inputs);
        team.for_each(weights.chunks_exact_mut(2 * depth).zip(rows), |(tiles, rows)| {
            let (high, low) = tiles.split_at_mut(depth);
            for slot in 0..SIDE {
                pack_row(
                    proof,
                    rows.get(slot * inputs..(slot + 1) * inputs).unwrap_or_default(),
                    slot,
                    high,
                    low,
                );
            }
            tiles.iter_mut().for_each(|tile| transpose_pairs(proof, tile));
        });
        let weights: &[Tile] = weights;
        let tasks = y.chunks_mut(SAMPLES * outputs).zip(x.chunks(SAMPLES * inputs));
        team.for_each(tasks, |(y, x)| {
            with_tiles(GROUP * 2 * depth, |samples| {
                for (slot, x) in x.chunks_exact(inputs).enumerate() {
                    let tiles = &mut samples[slot / SIDE * 2 * depth..][..2 * depth];
                    let (high, low) = tiles.split_at_mut(depth);
                    pack_row(proof, x, slot % SIDE, high, low);
                }
                multiply(proof, samples, weights, depth, b, y);
            });
        });
    });
}

/// `y = b + samples * weights` for up to [`SAMPLES`] samples.
fn multiply(proof: AmxProof, samples: &[Tile], weights: &[Tile], depth: usize, b: &[f32], y: &mut [f32]) {
    let outputs = b.len();
    let used = (y.len() / outputs).div_ceil(SIDE);
    let size = size_of::<Tile>();
    let session = TileSession::start(proof);
    let mut sums = [[0f32; SIDE * SIDE]; GROUP];
    let mut steps = [Step { own: 0, common: 0 }; STEPS];
    for (column, weights) in weights.chunks_exact(2 * depth).enumerate() {
        let first = column * SIDE;
        let width = SIDE.min(outputs - first);
        for start in (0..depth).step_by(STEPS) {
            let count = STEPS.min(depth - start);
            for (k, step) in steps[..count].iter_mut().enumerate() {
                *step = Step { own: (start + k) * size, common: (start + k) * size };
            }
            let steps = steps[..count].as_ptr_range();
            let job = Job {
                // Tiles without samples repeat the last one; their sums are dropped.
                own: std::array::from_fn(|tile| samples[tile.min(used - 1) * 2 * depth..].as_ptr().cast()),
                common: weights.as_ptr().cast(),
                own_low: depth * size,
                common_low: depth * size,
                out: sums.each_mut().map(|sums| sums.as_mut_ptr()),
                out_stride: [4 * SIDE; GROUP],
                steps: steps.start,
                steps_end: steps.end,
            };
            // SAFETY: there is a step; samples and weights hold `depth` high and `depth` low tiles from where they begin.
            unsafe { products(&session, &job, Passes::Three, Common::Right) }
            for (slot, y) in y.chunks_exact_mut(outputs).enumerate() {
                let sums = &sums[slot / SIDE][slot % SIDE * SIDE..];
                let y = &mut y[first..first + width];
                if start == 0 {
                    y.copy_from_slice(&b[first..first + width]);
                }
                add(proof, y, sums);
            }
        }
    }
}

/// Tile products that are summed before the sums are handed on.
const STEPS: usize = 64;

/// `gw += gy^T x`.
pub(super) fn weight_gradient(
    team: &Team,
    proof: AmxProof,
    shape: LinearShape,
    x: &[f32],
    gy: &[f32],
    gw: &mut [f32],
) {
    let LinearShape { batch, inputs, outputs } = shape;
    let (depth, rows) = (batch.div_ceil(DEPTH), outputs.div_ceil(SIDE));
    with_tiles(2 * rows * depth, |left| {
        // For each 16 outputs the high tiles along the samples, then the low ones.
        team.for_each(left.chunks_exact_mut(2 * depth).enumerate(), |(row, tiles)| {
            let (high, low) = tiles.split_at_mut(depth);
            pack_samples(proof, gy, outputs, row * SIDE, high, low);
            tiles.iter_mut().for_each(|tile| transpose_pairs(proof, tile));
        });
        let left: &[Tile] = left;
        let gw = Parts::new(&mut gw[..outputs * inputs]);
        team.for_each((0..inputs).step_by(INPUTS), |first| {
            with_tiles(GROUP * 2 * depth, |right| {
                let columns = first..inputs.min(first + INPUTS);
                let used = columns.len().div_ceil(SIDE);
                for (column, tiles) in right.chunks_exact_mut(2 * depth).take(used).enumerate() {
                    let (high, low) = tiles.split_at_mut(depth);
                    pack_samples(proof, x, inputs, first + column * SIDE, high, low);
                }
                let right = &right[..used * 2 * depth];
                add_gradient(proof, left, right, depth, outputs, |row, sums| {
                    // SAFETY: each task takes its own columns, one row after the other.
                    let row = unsafe { gw.take(row * inputs + columns.start..row * inputs + columns.end) };
                    row.chunks_mut(SIDE).zip(sums).for_each(|(gw, sums)| add(proof, gw, sums));
                });
            });
        });
    });
}

/// Sixteen columns of an array of samples as right operands, samples along the sums; zeros behind the last sample.
fn pack_samples(
    proof: AmxProof,
    numbers: &[f32],
    len: usize,
    first: usize,
    high: &mut [Tile],
    low: &mut [Tile],
) {
    let part = |sample: usize| {
        let row = numbers.get(sample * len..(sample + 1) * len).unwrap_or_default();
        row.get(first..).unwrap_or_default()
    };
    for (tile, (high, low)) in high.iter_mut().zip(low).enumerate() {
        for pair in 0..SIDE {
            let sample = tile * DEPTH + 2 * pair;
            pack_pair(proof, [part(sample), part(sample + 1)], pair, high, low);
        }
    }
}

/// The products of all outputs with up to four tiles of inputs: `add` gets each of the `outputs` rows.
fn add_gradient(
    proof: AmxProof,
    left: &[Tile],
    right: &[Tile],
    depth: usize,
    outputs: usize,
    add: impl Fn(usize, [&[f32]; GROUP]),
) {
    let used = right.len() / (2 * depth);
    let size = size_of::<Tile>();
    let session = TileSession::start(proof);
    let steps: [Step; STEPS] = std::array::from_fn(|k| Step { own: k * size, common: k * size });
    for (tile, left) in left.chunks_exact(2 * depth).enumerate() {
        let mut sums = [[0f32; SIDE * SIDE]; GROUP];
        for start in (0..depth).step_by(STEPS) {
            let steps = steps[..STEPS.min(depth - start)].as_ptr_range();
            let job = Job {
                // Tiles without inputs repeat the last one; their sums are dropped.
                own: std::array::from_fn(|tile| {
                    right[tile.min(used - 1) * 2 * depth + start..].as_ptr().cast()
                }),
                common: left[start..].as_ptr().cast(),
                own_low: depth * size,
                common_low: depth * size,
                out: sums.each_mut().map(|sums| sums.as_mut_ptr()),
                out_stride: [4 * SIDE; GROUP],
                steps: steps.start,
                steps_end: steps.end,
            };
            // SAFETY: there is a step; both operands hold `depth` high and `depth` low tiles, of which the steps reach
            // those from `start` on.
            unsafe { products(&session, &job, Passes::Three, Common::LeftAdded) }
        }
        for slot in 0..SIDE.min(outputs - tile * SIDE) {
            add(tile * SIDE + slot, sums.each_ref().map(|sums| &sums[slot * SIDE..]));
        }
    }
}
