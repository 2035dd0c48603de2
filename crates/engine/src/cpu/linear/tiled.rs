//! Matrix products with the states of a block of samples on matrix tiles (AMX): roughly in one bf16 pass, finely in
//! three. A tile's rows are samples and do not mix, so a sample's numbers do not depend on its company.

use crate::cpu::buffer::Buffer;
use crate::cpu::tiles::{
    AmxProof, Common, DEPTH, GROUP, Job, Passes, SIDE, Step, Tile, TileSession, pack_row, products,
    transpose_pairs,
};

/// Samples that are multiplied together.
pub(super) const SAMPLES: usize = GROUP * SIDE;
/// Entries of a state below which tiles would mostly be empty.
const SMALL: usize = 32;

/// A packed matrix of `outputs * n` rows and `inputs * n` columns.
pub(super) struct Tiled {
    proof: AmxProof,
    n: usize,
    inputs: usize,
    outputs: usize,
    /// For each output plane and 16 rows of it: the high tiles along the columns, then the low ones.
    weights: Vec<Tile>,
    steps: Vec<Step>,
}

/// What a product works in; one per thread.
#[derive(Default)]
pub(super) struct TiledScratch {
    /// For each 16 samples: the high tiles along the states, then the low ones.
    samples: Vec<Tile>,
    /// Products: `[sample][output plane][entry, up to a multiple of 16]`.
    pub rows: Buffer<f32>,
}

impl Tiled {
    pub fn new(proof: AmxProof, n: usize, inputs: usize, outputs: usize) -> Option<Self> {
        if n < SMALL {
            return None;
        }
        let depth = (inputs * n).div_ceil(DEPTH);
        let size = size_of::<Tile>();
        Some(Self {
            proof,
            n,
            inputs,
            outputs,
            weights: vec![Tile([0; SIDE * DEPTH]); outputs * n.div_ceil(SIDE) * 2 * depth],
            steps: (0..depth).map(|k| Step { own: k * size, common: k * size }).collect(),
        })
    }

    /// Packs blocks as [`super::dense::Dense::pack`] does.
    pub fn pack(&mut self, blocks: &[&[f32]]) {
        let (n, depth) = (self.n, self.steps.len());
        let mut row = vec![0.0; self.inputs * n];
        let mut tiles = self.weights.chunks_exact_mut(2 * depth);
        for blocks in blocks.chunks_exact(self.inputs) {
            for (first, tiles) in (0..n).step_by(SIDE).zip(&mut tiles) {
                let (high, low) = tiles.split_at_mut(depth);
                for slot in 0..SIDE {
                    for (row, block) in row.chunks_exact_mut(n).zip(blocks) {
                        match block.chunks_exact(n).nth(first + slot) {
                            Some(weights) => row.copy_from_slice(weights),
                            None => row.fill(0.0),
                        }
                    }
                    pack_row(self.proof, &row, slot, high, low);
                }
                tiles.iter_mut().for_each(|tile| transpose_pairs(self.proof, tile));
            }
        }
    }

    /// Numbers from one plane of a sample's products to the next.
    pub fn stride(&self) -> usize {
        self.n.next_multiple_of(SIDE)
    }

    /// The products of up to [`SAMPLES`] samples, to the rows of the scratch memory.
    pub fn apply(&self, group: &[usize], states: &[f32], passes: Passes, scratch: &mut TiledScratch) {
        let (depth, len, stride) = (self.steps.len(), self.inputs * self.n, self.stride());
        let (size, used) = (size_of::<Tile>(), group.len().div_ceil(SIDE));
        assert!((1..=SAMPLES).contains(&group.len()), "a group of {} samples", group.len());
        scratch.samples.resize(GROUP * 2 * depth, Tile([0; SIDE * DEPTH]));
        scratch.rows.reserve_zeros(SAMPLES * self.outputs * stride);
        for (slot, &sample) in group.iter().enumerate() {
            let tiles = &mut scratch.samples[slot / SIDE * 2 * depth..][..2 * depth];
            let (high, low) = tiles.split_at_mut(depth);
            let low = if passes == Passes::Three { low } else { &mut [] };
            pack_row(self.proof, &states[sample * len..][..len], slot % SIDE, high, low);
        }
        let session = TileSession::start(self.proof);
        let TiledScratch { samples, rows } = scratch;
        let from_sample = self.outputs * stride;
        // All outputs are derived from one pointer: another borrow of the rows would end those before it.
        let (start, len) = (rows.as_mut_ptr(), rows.len());
        for (index, weights) in self.weights.chunks_exact(2 * depth).enumerate() {
            let first = index * SIDE;
            assert!(first + (SAMPLES - 1) * from_sample + SIDE <= len);
            let steps = self.steps.as_ptr_range();
            let job = Job {
                // Tiles without samples repeat the last one.
                own: std::array::from_fn(|tile| samples[tile.min(used - 1) * 2 * depth..].as_ptr().cast()),
                common: weights.as_ptr().cast(),
                own_low: depth * size,
                common_low: depth * size,
                out: std::array::from_fn(|tile| start.wrapping_add(first + tile * SIDE * from_sample)),
                out_stride: [4 * from_sample; GROUP],
                steps: steps.start,
                steps_end: steps.end,
            };
            // SAFETY: there is a step; operands hold `depth` high and `depth` low tiles from where they begin. Sums are 16
            // numbers of each of 64 rows, the last of which ends within `rows`, as asserted.
            unsafe { products(&session, &job, passes, Common::Right) }
        }
    }
}
