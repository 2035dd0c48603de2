//! The operations around an equilibrium, on a GPU.

use std::ops::Range;

use super::convolution::Convolution;
use super::few_channels::FewChannels;
use super::gpu::{Grid, Memory, THREADS};
use super::kernel::{Argument, Passed, launch};
use super::memory::{CudaIntegers, CudaTally, Known};
use super::{Cuda, linear};
use crate::cpu::packed::check_len;
use crate::network::{Adam, ConvShape, LinearShape, NormPoolShape, NormState, Scaling, Update};
use crate::{EngineError, Layers, Result};

/// Rows whose sums one block takes, and columns of a block, as in `kernels/layers.cu`.
const ROWS: usize = 1024;
const COLUMNS: usize = 32;
/// Parts of the sums of a batch norm, and of its gradients over the batch: fixed, so that sums do not depend on the GPU.
const MOMENT_PARTS: usize = 512;
const SUM_PARTS: usize = 8;
/// Blocks that the gradient of a batch norm of vectors is shared out over.
const GRADIENT_BLOCKS: usize = 1024;
/// Pixels that are worth a block.
const LEAST_PIXELS: usize = 32;
/// Channels of a block where batch norm is of vectors, and samples that such a block goes over.
const NEIGHBOURS: usize = 8;
const SHORT: usize = 4096;
/// Threads that take one sample's loss.
const GROUP: usize = 32;
/// Parameters that are updated in one launch, and entries of a block.
const UPDATES: usize = 16;
const UPDATE_ENTRIES: usize = 1024;

/// The shape of a batch norm, for the kernels.
#[repr(C)]
struct NormPool {
    batch: u32,
    height: u32,
    width: u32,
    channels: u32,
    window: u32,
    rows: u32,
    cols: u32,
    /// Images that sums are over; those of `batch` may be a part of them.
    of: u32,
}

// SAFETY: `repr(C)`, eight fields of four bytes, as in `layers.cu`.
unsafe impl Passed for NormPool {}

impl NormPool {
    fn of(shape: NormPoolShape) -> Self {
        Self {
            batch: shape.batch as u32,
            height: shape.height as u32,
            width: shape.width as u32,
            channels: shape.channels as u32,
            window: shape.window as u32,
            rows: (shape.height / shape.window) as u32,
            cols: (shape.width / shape.window) as u32,
            of: shape.batch as u32,
        }
    }
}

/// Whether there is nothing to pool, and few enough samples for one block to go over all of them.
fn is_short_vectors(shape: NormPoolShape) -> bool {
    shape.height * shape.width == 1 && shape.batch <= SHORT
}

/// Blocks for sums of channels over pixels, and the pixels of each: neighbouring threads take neighbouring channels.
fn moment_grid(pixels: usize, channels: usize) -> (Grid, usize) {
    let each = LEAST_PIXELS.max(pixels.div_ceil(MOMENT_PARTS));
    let chunks = channels.div_ceil(THREADS as usize);
    (Grid(pixels.div_ceil(each) as u32, chunks as u32, 1), each)
}

/// Blocks for a batch norm's gradient, and the images of each: one for each row of windows, or for several images of one pixel; and for
/// as many channels as it has threads.
fn window_grid(shape: NormPoolShape) -> (Grid, usize) {
    let vectors = shape.height * shape.width == 1;
    let each = if vectors { LEAST_PIXELS.max(shape.batch.div_ceil(GRADIENT_BLOCKS)) } else { 1 };
    let blocks = shape.batch.div_ceil(each) * shape.height.div_ceil(shape.window);
    (Grid(blocks as u32, shape.channels.div_ceil(THREADS as usize) as u32, 1), each)
}

/// The constants of one update, for the kernel.
#[repr(C)]
struct AdamConstants {
    rate: f32,
    root: f32,
    beta1: f32,
    rest1: f32,
    beta2: f32,
    rest2: f32,
    epsilon: f32,
    l2: f32,
    kept: f32,
}

// SAFETY: `repr(C)`, nine fields of four bytes, as in `layers.cu`.
unsafe impl Passed for AdamConstants {}

impl AdamConstants {
    fn of(adam: &Adam) -> Self {
        let correction = |beta: f64| 1.0 - beta.powf(adam.step as f64);
        Self {
            rate: (adam.rate / correction(adam.beta1)) as f32,
            root: (1.0 / correction(adam.beta2).sqrt()) as f32,
            beta1: adam.beta1 as f32,
            rest1: (1.0 - adam.beta1) as f32,
            beta2: adam.beta2 as f32,
            rest2: (1.0 - adam.beta2) as f32,
            epsilon: adam.epsilon as f32,
            l2: adam.l2 as f32,
            kept: adam.kept() as f32,
        }
    }
}

/// A parameter with its gradient and moments, for the kernel.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct UpdateAddresses {
    parameter: u64,
    gradient: u64,
    mean: u64,
    square: u64,
    len: u64,
}

/// Several of them, and the first block of each.
#[repr(C)]
struct UpdateTable {
    of: [UpdateAddresses; UPDATES],
    first: [u32; UPDATES],
}

// SAFETY: `repr(C)`, as `Updates` in `layers.cu`: 16 times five fields of 8 bytes, then 16 of 4, no padding.
unsafe impl Passed for UpdateTable {}

/// The sizes of a 3x3 convolution; refuses empty images.
fn convolution_of(shape: ConvShape) -> Result<Convolution> {
    if shape.height * shape.width * shape.inputs * shape.outputs == 0 {
        return Err(EngineError::Invalid(format!("a convolution of empty images: {shape:?}")));
    }
    Ok(Convolution {
        batch: shape.batch,
        height: shape.height,
        width: shape.width,
        side: 3,
        padding: shape.padding,
        inputs: shape.inputs,
        outputs: shape.outputs,
        planes_in: 1,
        planes_out: 1,
        normalised: false,
    })
}

impl Cuda {
    /// A kernel on each of `len` entries, if there are any.
    fn on_entries(&self, name: &'static str, len: usize, arguments: &[Argument]) -> Result<()> {
        if len == 0 { Ok(()) } else { self.gpu.launch(name, Grid::entries(len), arguments) }
    }
}

impl Layers for Cuda {
    fn linear(
        &self,
        shape: LinearShape,
        x: &Memory<f32>,
        w: &Memory<f32>,
        b: &Memory<f32>,
        rectified: bool,
        y: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let LinearShape { batch, inputs, outputs } = shape;
        check_len("the input", x.len(), batch * inputs)?;
        check_len("the weights", w.len(), outputs * inputs)?;
        check_len("the bias", b.len(), outputs)?;
        check_len("the output", y.len(), batch * outputs)?;
        linear::forward(&self.gpu, shape, x, w, b, rectified, y)
    }

    fn linear_backward(
        &self,
        shape: LinearShape,
        x: &Memory<f32>,
        w: &Memory<f32>,
        rectified: Option<&Memory<f32>>,
        gy: &mut Memory<f32>,
        gx: Option<&mut Memory<f32>>,
        gw: &mut Memory<f32>,
        gb: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let LinearShape { batch, inputs, outputs } = shape;
        check_len("the input", x.len(), batch * inputs)?;
        check_len("the weights", w.len(), outputs * inputs)?;
        check_len("the output gradient", gy.len(), batch * outputs)?;
        if let Some(y) = rectified {
            check_len("the output", y.len(), batch * outputs)?;
        }
        if let Some(gx) = &gx {
            check_len("the input gradient", gx.len(), batch * inputs)?;
        }
        check_len("the weight gradient", gw.len(), outputs * inputs)?;
        check_len("the bias gradient", gb.len(), outputs)?;
        linear::backward(&self.gpu, shape, x, w, rectified, gy, gx, gw, gb)
    }

    fn convolution(
        &self,
        shape: ConvShape,
        x: &Memory<f32>,
        w: &Memory<f32>,
        b: &Memory<f32>,
        rectified: bool,
        y: &mut Memory<f32>,
    ) -> Result<()> {
        let convolution = convolution_of(shape)?;
        let pixels = shape.batch * shape.height * shape.width;
        check_len("the input", x.len(), pixels * shape.inputs)?;
        check_len("the weights", w.len(), shape.outputs * shape.inputs * 9)?;
        check_len("the bias", b.len(), shape.outputs)?;
        check_len("the output", y.len(), pixels * shape.outputs)?;
        if pixels == 0 {
            return Ok(());
        }
        if let Some(few) = FewChannels::of(shape) {
            return few.convolve(&self.gpu, x, w, b, rectified, y);
        }
        let mut scratch = self.scratch();
        let packed = scratch.parts(convolution.packed_len())?;
        convolution.pack(&self.gpu, &[w.at(0)], false, packed)?;
        convolution.convolve(&self.gpu, x, packed, Some(b), y, None)?;
        if rectified { self.relu(pixels * shape.outputs, y) } else { Ok(()) }
    }

    fn convolution_backward(
        &self,
        shape: ConvShape,
        x: &Memory<f32>,
        w: &Memory<f32>,
        rectified: Option<&Memory<f32>>,
        gy: &mut Memory<f32>,
        gx: Option<&mut Memory<f32>>,
        gw: &mut Memory<f32>,
        gb: &mut Memory<f32>,
    ) -> Result<()> {
        let convolution = convolution_of(shape)?;
        let pixels = shape.batch * shape.height * shape.width;
        check_len("the input", x.len(), pixels * shape.inputs)?;
        check_len("the weights", w.len(), shape.outputs * shape.inputs * 9)?;
        check_len("the output gradient", gy.len(), pixels * shape.outputs)?;
        if let Some(y) = rectified {
            check_len("the output", y.len(), pixels * shape.outputs)?;
        }
        if let Some(gx) = &gx {
            check_len("the input gradient", gx.len(), pixels * shape.inputs)?;
        }
        check_len("the weight gradient", gw.len(), shape.outputs * shape.inputs * 9)?;
        check_len("the bias gradient", gb.len(), shape.outputs)?;
        if let (Some(few), None) = (FewChannels::of(shape), &gx) {
            return few.gradient(&self.gpu, x, rectified, gy, gw, gb);
        }
        if let Some(y) = rectified {
            self.relu_backward(pixels * shape.outputs, y, gy)?;
        }
        gw.clear()?;
        if pixels > 0 {
            if let Some(gx) = gx {
                let transposed = Convolution { inputs: shape.outputs, outputs: shape.inputs, ..convolution };
                let mut scratch = self.scratch();
                let packed = scratch.parts(transposed.packed_len())?;
                transposed.pack(&self.gpu, &[w.at(0)], true, packed)?;
                transposed.convolve(&self.gpu, gy, packed, None, gx, None)?;
            }
            convolution.add_gradient(&self.gpu, gy, x, &mut [gw])?;
        }
        self.sum_rows(pixels, shape.outputs, gy, gb)
    }

    fn relu(&self, len: usize, x: &mut Memory<f32>) -> Result<()> {
        check_len("x", x.len(), len)?;
        self.on_entries("relu", len, &[x.into(), len.into()])
    }

    fn relu_backward(&self, len: usize, y: &Memory<f32>, g: &mut Memory<f32>) -> Result<()> {
        check_len("the output", y.len(), len)?;
        check_len("the gradient", g.len(), len)?;
        self.on_entries("relu_backward", len, &[y.into(), g.into(), len.into()])
    }

    fn tanh(&self, len: usize, x: &mut Memory<f32>) -> Result<()> {
        check_len("x", x.len(), len)?;
        self.on_entries("apply_tanh", len, &[x.into(), len.into()])
    }

    fn tanh_backward(&self, len: usize, y: &Memory<f32>, g: &mut Memory<f32>) -> Result<()> {
        check_len("the output", y.len(), len)?;
        check_len("the gradient", g.len(), len)?;
        self.on_entries("tanh_backward", len, &[y.into(), g.into(), len.into()])
    }

    fn norm_pool_train(
        &self,
        shape: NormPoolShape,
        x: &Memory<f32>,
        scaling: Scaling<&Memory<f32>>,
        state: &mut NormState<Memory<f32>>,
        y: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let pixels = shape.batch * shape.height * shape.width;
        if pixels < 2 {
            return Err(EngineError::Invalid(
                "batch norm cannot train on a single value per channel: its variance is undefined".into(),
            ));
        }
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        check_len("the input", x.len(), pixels * channels)?;
        check_len("the output", y.len(), pooled)?;
        check_len("the scale", scaling.scale.len(), channels)?;
        check_len("the offset", scaling.offset.len(), channels)?;
        check_len("the running mean", state.running_mean.len(), channels)?;
        check_len("the running variance", state.running_variance.len(), channels)?;
        check_len("the batch mean", state.batch_mean.len(), channels)?;
        check_len("the batch deviation", state.batch_inverse_deviation.len(), channels)?;
        check_len("the normalised values", state.normalised.len(), pooled)?;
        if is_short_vectors(shape) {
            return launch!(
                self.gpu,
                "norm_vectors_train",
                Grid::blocks(channels.div_ceil(NEIGHBOURS)),
                x,
                shape.batch as u32,
                channels as u32,
                scaling.scale,
                scaling.offset,
                &mut state.running_mean,
                &mut state.running_variance,
                &mut state.batch_mean,
                &mut state.batch_inverse_deviation,
                &mut state.normalised,
                y,
            );
        }
        let (grid, each) = moment_grid(pixels, channels);
        let (parts, mut scratch) = (grid.0, self.scratch());
        let moments = scratch.sums(parts as usize * 2 * channels)?;
        launch!(self.gpu, "norm_moments", grid, x, pixels, channels as u32, each as u32, &mut *moments)?;
        launch!(
            self.gpu,
            "norm_statistics",
            Grid::blocks(channels),
            &*moments,
            parts,
            channels as u32,
            pixels,
            x,
            &mut state.running_mean,
            &mut state.running_variance,
            &mut state.batch_mean,
            &mut state.batch_inverse_deviation,
        )?;
        launch!(
            self.gpu,
            "norm_pool_train",
            Grid::entries(pooled),
            &NormPool::of(shape),
            x,
            &state.batch_mean,
            &state.batch_inverse_deviation,
            scaling.scale,
            scaling.offset,
            &mut state.normalised,
            y,
        )
    }

    fn norm_pool_eval(
        &self,
        shape: NormPoolShape,
        x: &Memory<f32>,
        scaling: Scaling<&Memory<f32>>,
        state: &NormState<Memory<f32>>,
        y: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        check_len("the input", x.len(), shape.batch * shape.image_len())?;
        check_len("the output", y.len(), pooled)?;
        check_len("the scale", scaling.scale.len(), channels)?;
        check_len("the offset", scaling.offset.len(), channels)?;
        check_len("the running mean", state.running_mean.len(), channels)?;
        check_len("the running variance", state.running_variance.len(), channels)?;
        launch!(
            self.gpu,
            "norm_pool_eval",
            Grid::entries(pooled),
            &NormPool::of(shape),
            x,
            &state.running_mean,
            &state.running_variance,
            scaling.scale,
            scaling.offset,
            y,
        )
    }

    fn norm_pool_backward(
        &self,
        shape: NormPoolShape,
        x: &Memory<f32>,
        scale: &Memory<f32>,
        state: &NormState<Memory<f32>>,
        gy: &Memory<f32>,
        gx: &mut Memory<f32>,
        gradients: Scaling<&mut Memory<f32>>,
    ) -> Result<()> {
        shape.check()?;
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        let pixels = shape.batch * shape.height * shape.width;
        check_len("the input", x.len(), pixels * channels)?;
        check_len("the output gradient", gy.len(), pooled)?;
        check_len("the input gradient", gx.len(), pixels * channels)?;
        check_len("the scale gradient", gradients.scale.len(), channels)?;
        check_len("the offset gradient", gradients.offset.len(), channels)?;
        check_len("the scale", scale.len(), channels)?;
        check_len("the batch mean", state.batch_mean.len(), channels)?;
        check_len("the batch deviation", state.batch_inverse_deviation.len(), channels)?;
        check_len("the normalised values", state.normalised.len(), pooled)?;
        if is_short_vectors(shape) {
            return launch!(
                self.gpu,
                "norm_vectors_backward",
                Grid::blocks(channels.div_ceil(NEIGHBOURS)),
                &state.normalised,
                shape.batch as u32,
                channels as u32,
                scale,
                &state.batch_inverse_deviation,
                gy,
                gx,
                gradients.scale,
                gradients.offset,
            );
        }
        let constants = NormPool::of(shape);
        let mut scratch = self.scratch();
        let sums = scratch.sums(channels * SUM_PARTS * 2)?;
        let grid = Grid(channels as u32, SUM_PARTS as u32, 1);
        launch!(self.gpu, "norm_pool_sums", grid, &constants, &state.normalised, gy, &mut *sums)?;
        let (grid, each) = window_grid(shape);
        launch!(
            self.gpu,
            "norm_pool_gradient",
            grid,
            &constants,
            x,
            scale,
            &state.batch_mean,
            &state.batch_inverse_deviation,
            &*sums,
            gy,
            each as u32,
            gx,
            gradients.scale,
            gradients.offset,
        )
    }

    fn average_pool(&self, shape: NormPoolShape, x: &Memory<f32>, y: &mut Memory<f32>) -> Result<()> {
        shape.check()?;
        let len = shape.batch * shape.pooled_len();
        check_len("the input", x.len(), shape.batch * shape.image_len())?;
        check_len("the output", y.len(), len)?;
        if shape.window == 1 {
            return y.copy_from(x, len);
        }
        launch!(self.gpu, "average_pool", Grid::entries(len), &NormPool::of(shape), x, y)
    }

    fn average_pool_backward(
        &self,
        shape: NormPoolShape,
        gy: &Memory<f32>,
        gx: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let len = shape.batch * shape.image_len();
        check_len("the output gradient", gy.len(), shape.batch * shape.pooled_len())?;
        check_len("the input gradient", gx.len(), len)?;
        if shape.window == 1 {
            return gx.copy_from(gy, len);
        }
        launch!(self.gpu, "average_pool_backward", Grid::entries(len), &NormPool::of(shape), gy, gx)
    }

    fn norm_sums(&self, shape: NormPoolShape, first: usize, x: &Memory<f32>, sums: &mut [f64]) -> Result<()> {
        shape.check()?;
        let (channels, pixels) = (shape.channels, shape.batch * shape.height * shape.width);
        check_len("the sums", sums.len(), 2 * channels)?;
        check_len("the input", x.len(), (first + shape.batch) * shape.image_len())?;
        let x = x.at(first * shape.image_len());
        let (grid, each) = moment_grid(pixels, channels);
        let (parts, mut scratch) = (grid.0, self.scratch());
        let moments = scratch.sums((parts as usize + 1) * 2 * channels)?;
        let at = parts as usize * 2 * channels;
        let totals = moments.at(at);
        launch!(self.gpu, "norm_moments", grid, x, pixels, channels as u32, each as u32, &mut *moments)?;
        let blocks = Grid::blocks(channels);
        launch!(self.gpu, "norm_totals", blocks, &*moments, parts, channels as u32, pixels, x, totals)?;
        moments.read(at, &mut sums[..2 * channels])
    }

    fn norm_pool_given(
        &self,
        shape: NormPoolShape,
        x: &Memory<f32>,
        scaling: Scaling<&Memory<f32>>,
        state: &mut NormState<Memory<f32>>,
        y: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        check_len("the input", x.len(), shape.batch * shape.image_len())?;
        check_len("the output", y.len(), pooled)?;
        check_len("the scale", scaling.scale.len(), channels)?;
        check_len("the offset", scaling.offset.len(), channels)?;
        check_len("the batch mean", state.batch_mean.len(), channels)?;
        check_len("the batch deviation", state.batch_inverse_deviation.len(), channels)?;
        check_len("the normalised values", state.normalised.len(), pooled)?;
        launch!(
            self.gpu,
            "norm_pool_train",
            Grid::entries(pooled),
            &NormPool::of(shape),
            x,
            &state.batch_mean,
            &state.batch_inverse_deviation,
            scaling.scale,
            scaling.offset,
            &mut state.normalised,
            y,
        )
    }

    fn norm_gradient_sums(
        &self,
        shape: NormPoolShape,
        first: usize,
        state: &NormState<Memory<f32>>,
        gy: &Memory<f32>,
        sums: &mut [f64],
    ) -> Result<()> {
        shape.check()?;
        let (channels, pooled) = (shape.channels, shape.pooled_len());
        check_len("the sums", sums.len(), 2 * channels)?;
        check_len("the output gradient", gy.len(), (first + shape.batch) * pooled)?;
        check_len("the normalised values", state.normalised.len(), (first + shape.batch) * pooled)?;
        let mut scratch = self.scratch();
        let parts = scratch.sums(channels * SUM_PARTS * 2)?;
        let grid = Grid(channels as u32, SUM_PARTS as u32, 1);
        let (normalised, gy) = (state.normalised.at(first * pooled), gy.at(first * pooled));
        launch!(self.gpu, "norm_pool_sums", grid, &NormPool::of(shape), normalised, gy, &mut *parts)?;
        let mut host = vec![0.0; channels * SUM_PARTS * 2];
        parts.read(0, &mut host)?;
        for (sums, parts) in sums.chunks_exact_mut(2).zip(host.chunks_exact(2 * SUM_PARTS)) {
            let of_parts = |which: usize| parts.iter().skip(which).step_by(2).sum();
            (sums[0], sums[1]) = (of_parts(0), of_parts(1));
        }
        Ok(())
    }

    fn norm_pool_pull(
        &self,
        shape: NormPoolShape,
        of: usize,
        x: &Memory<f32>,
        scale: &Memory<f32>,
        state: &NormState<Memory<f32>>,
        gy: &Memory<f32>,
        sums: &[f64],
        gx: &mut Memory<f32>,
        gradients: Scaling<&mut Memory<f32>>,
    ) -> Result<()> {
        shape.check()?;
        let channels = shape.channels;
        let pixels = shape.batch * shape.height * shape.width;
        check_len("the sums", sums.len(), 2 * channels)?;
        check_len("the input", x.len(), pixels * channels)?;
        check_len("the output gradient", gy.len(), shape.batch * shape.pooled_len())?;
        check_len("the input gradient", gx.len(), pixels * channels)?;
        check_len("the scale gradient", gradients.scale.len(), channels)?;
        check_len("the offset gradient", gradients.offset.len(), channels)?;
        check_len("the scale", scale.len(), channels)?;
        check_len("the batch mean", state.batch_mean.len(), channels)?;
        check_len("the batch deviation", state.batch_inverse_deviation.len(), channels)?;
        // The kernel adds up parts: here the first is everything.
        let mut parts = vec![0.0; channels * SUM_PARTS * 2];
        for (parts, sums) in parts.chunks_exact_mut(2 * SUM_PARTS).zip(sums.chunks_exact(2)) {
            parts[..2].copy_from_slice(sums);
        }
        let mut scratch = self.scratch();
        let on_device = scratch.sums(parts.len())?;
        on_device.write(0, &parts)?;
        let (grid, each) = window_grid(shape);
        launch!(
            self.gpu,
            "norm_pool_gradient",
            grid,
            &NormPool { of: of as u32, ..NormPool::of(shape) },
            x,
            scale,
            &state.batch_mean,
            &state.batch_inverse_deviation,
            &*on_device,
            gy,
            each as u32,
            gx,
            gradients.scale,
            gradients.offset,
        )
    }

    fn cross_entropy_part(
        &self,
        samples: Range<usize>,
        of: usize,
        classes: usize,
        smoothing: f64,
        logits: &Memory<f32>,
        labels: &CudaIntegers,
        gradient: &mut Memory<f32>,
        tally: &mut CudaTally,
    ) -> Result<()> {
        if samples.is_empty() || of == 0 || classes == 0 {
            return Err(EngineError::Invalid("the loss of an empty batch is undefined".into()));
        }
        check_len("the labels", labels.memory.len(), samples.end)?;
        check_labels(labels, &samples, classes)?;
        check_len("the logits", logits.len(), samples.end * classes)?;
        check_len("the logit gradient", gradient.len(), samples.end * classes)?;
        let batch = samples.len();
        let mut scratch = self.scratch();
        let (scored, arrived) = scratch.scored(batch)?;
        launch!(
            self.gpu,
            "cross_entropy",
            Grid::blocks(batch.div_ceil(THREADS as usize / GROUP)),
            logits.at(samples.start * classes),
            labels.memory.at(samples.start),
            batch as u32,
            of as u32,
            classes as u32,
            smoothing,
            gradient.at(samples.start * classes),
            scored,
            arrived,
            &mut tally.0,
        )
    }

    fn adam(&self, adam: &Adam, updates: &mut [Update<'_, Memory<f32>>]) -> Result<()> {
        if adam.step == 0 {
            return Err(EngineError::Invalid("Adam counts its steps from 1".into()));
        }
        let constants = AdamConstants::of(adam);
        for updates in updates.chunks_mut(UPDATES) {
            let mut table = UpdateTable { of: [UpdateAddresses::default(); UPDATES], first: [0; UPDATES] };
            let mut blocks = 0;
            for (k, Update { parameter, gradient, mean, square }) in updates.iter_mut().enumerate() {
                let len = parameter.len();
                check_len("the gradient", gradient.len(), len)?;
                check_len("the first moment", mean.len(), len)?;
                check_len("the second moment", square.len(), len)?;
                table.of[k] = UpdateAddresses {
                    parameter: parameter.address_of(0),
                    gradient: gradient.address_of(0),
                    mean: mean.address_of(0),
                    square: square.address_of(0),
                    len: len as u64,
                };
                table.first[k] = blocks as u32;
                blocks += len.div_ceil(UPDATE_ENTRIES);
            }
            if blocks > 0 {
                launch!(self.gpu, "adam", Grid::blocks(blocks), &constants, &table, updates.len() as u32)?;
            }
        }
        Ok(())
    }

    fn axpy(&self, len: usize, a: f64, x: &Memory<f32>, y: &mut Memory<f32>) -> Result<()> {
        check_len("x", x.len(), len)?;
        check_len("y", y.len(), len)?;
        self.on_entries("axpy", len, &[(a as f32).into(), x.into(), y.into(), len.into()])
    }

    fn add_to_rows(&self, rows: usize, cols: usize, b: &Memory<f32>, x: &mut Memory<f32>) -> Result<()> {
        check_len("the row", b.len(), cols)?;
        check_len("x", x.len(), rows * cols)?;
        self.on_entries("add_to_rows", rows * cols, &[b.into(), x.into(), rows.into(), cols.into()])
    }

    fn sum_rows(&self, rows: usize, cols: usize, x: &Memory<f32>, sums: &mut Memory<f32>) -> Result<()> {
        check_len("x", x.len(), rows * cols)?;
        check_len("the sums", sums.len(), cols)?;
        if rows * cols == 0 {
            return sums.clear();
        }
        let (parts, mut scratch) = (rows.div_ceil(ROWS), self.scratch());
        let partial = scratch.sums(parts * cols)?;
        let grid = Grid(cols.div_ceil(COLUMNS) as u32, parts as u32, 1);
        launch!(self.gpu, "sum_rows_parts", grid, x, rows, cols, ROWS as u32, &mut *partial)?;
        launch!(self.gpu, "sum_rows_total", Grid::entries(cols), &*partial, parts as u32, cols, sums)
    }
}

/// Refuses labels that are not below the number of classes, as far as the host knows them.
fn check_labels(labels: &CudaIntegers, samples: &Range<usize>, classes: usize) -> Result<()> {
    match &labels.known {
        Known::Values(values) => match samples.clone().find(|&sample| values[sample] as usize >= classes) {
            None => Ok(()),
            Some(sample) => Err(EngineError::Invalid(format!(
                "the label of sample {sample} is {}, but there are {classes} classes (0 to {})",
                values[sample],
                classes - 1
            ))),
        },
        Known::Below(bound) if *bound as usize <= classes => Ok(()),
        Known::Below(bound) => Err(EngineError::Invalid(format!(
            "the labels are those of {bound} classes, but there are {classes} classes (0 to {})",
            classes - 1
        ))),
    }
}
