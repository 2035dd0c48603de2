//! Pulling a gradient back through one application of a map: to the state, the injection and the weights.

use crate::cpu::Cpu;
use crate::cpu::buffer::Buffer;
use crate::cpu::linear::{Linear, LinearScratch, OuterProducts, outer_products};
use crate::cpu::packed::Packed;
use crate::cpu::parts::Parts;
use crate::cpu::plan::{AdjointParts, CpuPlan, Worker};
use crate::cpu::simd::SimdReal;
use crate::map::Formula;
use crate::{Injection, Operator};

/// Chunks of a batch whose weight gradients are summed separately, at most. Neither this nor the chunks depend on the number
/// of threads, so the sums do not either.
const CHUNKS: usize = 16;
/// Samples of a chunk, at least, for dense maps, whose gradients are cheap to form and dear to add up.
const DENSE_CHUNK: usize = 32;

/// What is given and what is wanted, for some samples.
pub(super) struct Cotangents<'a, T> {
    pub z: &'a [T],
    pub y: &'a [T],
    pub g: &'a [T],
    pub gz: Option<&'a mut [T]>,
    pub gy: &'a mut [T],
}

impl<'a, T> Cotangents<'a, T> {
    /// The same for groups of `samples`, with `state` and `injection` numbers each.
    fn chunks(
        self,
        samples: usize,
        state: usize,
        injection: usize,
    ) -> impl DoubleEndedIterator<Item = Cotangents<'a, T>> + ExactSizeIterator {
        // By number, not by turns: the groups may be taken from either end.
        let gz = self.gz.map(Parts::new);
        self.z
            .chunks(samples * state)
            .zip(self.y.chunks(samples * injection))
            .zip(self.g.chunks(samples * state))
            .zip(self.gy.chunks_mut(samples * injection))
            .enumerate()
            .map(move |(k, (((z, y), g), gy))| {
                let start = k * samples * state;
                // SAFETY: groups do not overlap, and each is made once.
                let gz = gz.as_ref().map(|gz| unsafe { gz.take(start..start + z.len()) });
                Cotangents { z, y, g, gz, gy }
            })
    }
}

impl<T: SimdReal> Cpu<T> {
    /// [`crate::Equilibria::pullback`] with checked arguments.
    pub(super) fn pull_back(
        &self,
        plan: &mut CpuPlan<T>,
        batch: usize,
        all: Cotangents<'_, T>,
        gw: &mut [Buffer<T>],
    ) {
        let map = plan.packed.map;
        let (state, injection) = (map.operator.state_len(), map.injection_len());
        let least = if matches!(map.operator, Operator::Dense { .. }) { DENSE_CHUNK } else { 1 };
        let chunk = batch.div_ceil(CHUNKS).max(least);
        // As for one thread: the blocks of a chunk are part of the order of the sum.
        let block = plan.block(None, batch, 1);
        let CpuPlan { packed, workers, accumulators, .. } = plan;
        let len = accumulator_len(packed);
        accumulators.reserve_zeros(batch.div_ceil(chunk) * len);
        let accumulators = &mut accumulators[..batch.div_ceil(chunk) * len];
        let queue = all.chunks(chunk, state, injection).zip(accumulators.chunks_mut(len));
        self.share(workers, queue, |worker, (chunk, accumulator)| {
            accumulator.fill(T::ZERO);
            worker.reserve(block);
            for part in chunk.chunks(block, state, injection) {
                pull_back_block(packed, worker, part, accumulator);
            }
        });
        add_up(packed, accumulators, gw);
    }
}

/// Numbers of gradient accumulators: those of the gains, then those of the operators.
fn accumulator_len<T: SimdReal>(packed: &Packed<T>) -> usize {
    let units = packed.map.operator.units();
    let gains = if packed.gains.is_some() { 2 * units * units } else { 0 };
    gains
        + match &packed.forward {
            Linear::Dense(_) => packed.planes() * units * units,
            Linear::Conv(kernel) => kernel.gradient_len(),
            Linear::Fourier(convolution) => convolution.gradient_len(),
        }
}

fn pull_back_block<T: SimdReal>(
    packed: &Packed<T>,
    worker: &mut Worker<T>,
    part: Cotangents<'_, T>,
    accumulator: &mut [T],
) {
    let Cotangents { z, y, g: given, gz, gy } = part;
    let (map, isa) = (&packed.map, packed.isa);
    let (len, units) = (map.operator.state_len(), map.operator.units());
    let q_len = packed.planes() * len;
    let (parts, everyone) = worker.linearise(packed, z, y);
    let AdjointParts { linearisation, scratch, g, q, gradient: gradient_scratch } = parts;
    let (gains, operators) =
        accumulator.split_at_mut(if packed.gains.is_some() { 2 * units * units } else { 0 });
    for &sample in everyone {
        let q = &mut q[sample * q_len..][..q_len];
        g.copy_from_slice(&given[sample * len..][..len]);
        linearisation.through_norm(packed, sample, g);
        linearisation.row_of_q(packed, sample, 0, g, q);
        let gy = &mut gy[sample * map.injection_len()..][..map.injection_len()];
        match (map.formula, map.injection) {
            (Formula::PowerRatio { .. }, _) | (Formula::Single, Injection::Inner) => gy.copy_from_slice(q),
            _ => gy.copy_from_slice(g),
        }
        if packed.gains.is_some() {
            let (a, b) = linearisation.values(sample, len);
            for ((right, sign), gradient) in
                [(a, T::ONE), (b, -T::ONE)].into_iter().zip(gains.chunks_exact_mut(units * units))
            {
                outer_products(
                    isa,
                    OuterProducts { left: g, left_len: units, first: 0, right, width: units, gradient, sign },
                );
            }
        }
        if let (Linear::Conv(kernel), LinearScratch::Conv(scratch)) =
            (&packed.forward, &mut *gradient_scratch)
        {
            kernel.accumulate_gradient(&z[sample * len..][..len], q, scratch, operators);
        }
    }
    let q = &q[..everyone.len() * q_len];
    if let Linear::Dense(_) = packed.forward {
        for (plane, gradient) in operators.chunks_exact_mut(len * len).enumerate() {
            let first = plane * len;
            outer_products(
                isa,
                OuterProducts {
                    left: q,
                    left_len: q_len,
                    first,
                    right: z,
                    width: len,
                    gradient,
                    sign: T::ONE,
                },
            );
        }
    }
    if let (Linear::Fourier(convolution), LinearScratch::Fourier(scratch)) =
        (&packed.forward, gradient_scratch)
    {
        convolution.accumulate_gradient(everyone, z, q, scratch, operators);
    }
    if let Some(gz) = gz {
        packed.transposed.apply(everyone, q, &mut scratch.linear, &mut |sample, offset, row, _| {
            gz[sample * len + offset..][..row.len()].copy_from_slice(row);
        });
    }
}

/// Adds the accumulators of all chunks to the gradients, in the order of the chunks.
fn add_up<T: SimdReal>(packed: &Packed<T>, accumulators: &mut [T], gw: &mut [Buffer<T>]) {
    let len = accumulator_len(packed);
    let (total, rest) = accumulators.split_at_mut(len);
    for accumulator in rest.chunks_exact(len) {
        for (sum, &part) in total.iter_mut().zip(accumulator) {
            *sum += part;
        }
    }
    let units = packed.map.operator.units();
    let gain_count = if packed.gains.is_some() { 2 } else { 0 };
    let (gains, operators) = total.split_at(gain_count * units * units);
    let (gain_gradients, operator_gradients) = gw.split_at_mut(gain_count);
    let add = |gradient: &mut [T], part: &[T]| {
        for (sum, &part) in gradient.iter_mut().zip(part) {
            *sum += part;
        }
    };
    for (gradient, part) in gain_gradients.iter_mut().zip(gains.chunks_exact(units * units)) {
        add(gradient, part);
    }
    match &packed.forward {
        Linear::Dense(_) => {
            for (gradient, part) in operator_gradients.iter_mut().zip(operators.chunks_exact(units * units)) {
                add(gradient, part);
            }
        }
        Linear::Fourier(convolution) => {
            let weight_len = packed.map.operator.weight_len();
            operator_gradients
                .iter_mut()
                .for_each(|g| convolution.unpack_gradient(operators, &mut g[..weight_len]));
        }
        Linear::Conv(kernel) => {
            let weight_len = packed.map.operator.weight_len();
            let mut blocks = operator_gradients.iter_mut().map(|gradient| &mut gradient[..weight_len]);
            match (blocks.next(), blocks.next()) {
                (Some(first), Some(second)) => kernel.unpack_gradient(operators, &mut [first, second]),
                (Some(only), None) => kernel.unpack_gradient(operators, &mut [only]),
                _ => {}
            }
        }
    }
}
