//! The operations around an equilibrium, on a GPU.

use super::Cuda;
use super::convolution::Convolution;
use super::gpu::{Grid, Memory};
use super::kernel::{Argument, Passed, launch};
use super::memory::{CudaIntegers, CudaTally, Known};
use super::product::{Axis, Factor, Lie, Target, add_outer_products, multiply};
use crate::cpu::packed::check_len;
use crate::network::{Adam, ConvShape, LinearShape, NormPoolShape, NormState};
use crate::{EngineError, Layers, Result};

/// Rows whose sums one block takes, and columns of a block, as in `kernels/layers.cu`.
const ROWS: usize = 1024;
const COLUMNS: usize = 32;

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
    unused: u32,
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
            unused: 0,
        }
    }
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
}

// SAFETY: `repr(C)`, eight fields of four bytes, as in `layers.cu`.
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
        }
    }
}

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
        y: &mut Memory<f32>,
    ) -> Result<()> {
        let LinearShape { batch, inputs, outputs } = shape;
        check_len("the input", x.len(), batch * inputs)?;
        check_len("the weights", w.len(), outputs * inputs)?;
        check_len("the bias", b.len(), outputs)?;
        check_len("the output", y.len(), batch * outputs)?;
        let rows = Factor::new(x, 0, Axis::plain(inputs), Axis::plain(1));
        let columns = Factor::new(w, 0, Axis::plain(inputs), Axis::plain(1));
        let target = Target::new(y, 0, Axis::plain(outputs), Axis::plain(1));
        multiply(&self.gpu, Lie::Along, rows, columns, Some(b), target, [batch, outputs, inputs], None)
    }

    fn linear_backward(
        &self,
        shape: LinearShape,
        x: &Memory<f32>,
        w: &Memory<f32>,
        gy: &Memory<f32>,
        gx: Option<&mut Memory<f32>>,
        gw: &mut Memory<f32>,
        gb: &mut Memory<f32>,
    ) -> Result<()> {
        let LinearShape { batch, inputs, outputs } = shape;
        check_len("the input", x.len(), batch * inputs)?;
        check_len("the weights", w.len(), outputs * inputs)?;
        check_len("the output gradient", gy.len(), batch * outputs)?;
        if let Some(gx) = &gx {
            check_len("the input gradient", gx.len(), batch * inputs)?;
        }
        check_len("the weight gradient", gw.len(), outputs * inputs)?;
        check_len("the bias gradient", gb.len(), outputs)?;
        if let Some(gx) = gx {
            let rows = Factor::new(gy, 0, Axis::plain(outputs), Axis::plain(1));
            let columns = Factor::new(w, 0, Axis::plain(1), Axis::plain(inputs));
            let target = Target::new(gx, 0, Axis::plain(inputs), Axis::plain(1));
            multiply(&self.gpu, Lie::Mixed, rows, columns, None, target, [batch, inputs, outputs], None)?;
        }
        let left = Factor::new(gy, 0, Axis::plain(1), Axis::plain(outputs));
        let right = Factor::new(x, 0, Axis::plain(1), Axis::plain(inputs));
        add_outer_products(&self.gpu, left, right, [outputs, inputs, batch], 1.0, &mut [gw])?;
        self.sum_rows(batch, outputs, gy, gb)
    }

    fn convolution(
        &self,
        shape: ConvShape,
        x: &Memory<f32>,
        w: &Memory<f32>,
        b: &Memory<f32>,
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
        let mut packed = Memory::room(&self.gpu, convolution.packed_len())?;
        convolution.pack(&self.gpu, &[w.at(0)], false, &mut packed)?;
        convolution.convolve(&self.gpu, x, &packed, Some(b), y, None)
    }

    fn convolution_backward(
        &self,
        shape: ConvShape,
        x: &Memory<f32>,
        w: &Memory<f32>,
        gy: &Memory<f32>,
        gx: Option<&mut Memory<f32>>,
        gw: &mut Memory<f32>,
        gb: &mut Memory<f32>,
    ) -> Result<()> {
        let convolution = convolution_of(shape)?;
        let pixels = shape.batch * shape.height * shape.width;
        check_len("the input", x.len(), pixels * shape.inputs)?;
        check_len("the weights", w.len(), shape.outputs * shape.inputs * 9)?;
        check_len("the output gradient", gy.len(), pixels * shape.outputs)?;
        if let Some(gx) = &gx {
            check_len("the input gradient", gx.len(), pixels * shape.inputs)?;
        }
        check_len("the weight gradient", gw.len(), shape.outputs * shape.inputs * 9)?;
        check_len("the bias gradient", gb.len(), shape.outputs)?;
        if pixels == 0 {
            return Ok(());
        }
        if let Some(gx) = gx {
            let transposed = Convolution { inputs: shape.outputs, outputs: shape.inputs, ..convolution };
            let mut packed = Memory::room(&self.gpu, transposed.packed_len())?;
            transposed.pack(&self.gpu, &[w.at(0)], true, &mut packed)?;
            transposed.convolve(&self.gpu, gy, &packed, None, gx, None)?;
        }
        convolution.add_gradient(&self.gpu, gy, x, &mut [gw])?;
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
        check_len("the scale", state.scale.len(), channels)?;
        check_len("the offset", state.offset.len(), channels)?;
        check_len("the running mean", state.running_mean.len(), channels)?;
        check_len("the running variance", state.running_variance.len(), channels)?;
        check_len("the batch mean", state.batch_mean.len(), channels)?;
        check_len("the batch deviation", state.batch_inverse_deviation.len(), channels)?;
        check_len("the normalised values", state.normalised.len(), pooled)?;
        let parts = pixels.div_ceil(ROWS);
        let mut moments = Memory::<f64>::room(&self.gpu, parts * 3 * channels)?;
        let grid = Grid(channels.div_ceil(COLUMNS) as u32, parts as u32, 1);
        launch!(self.gpu, "norm_moments", grid, x, pixels, channels as u32, ROWS as u32, &mut moments)?;
        launch!(
            self.gpu,
            "norm_statistics",
            Grid::threads(channels),
            &moments,
            parts as u32,
            channels as u32,
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
            &state.scale,
            &state.offset,
            &mut state.normalised,
            y,
        )
    }

    fn norm_pool_eval(
        &self,
        shape: NormPoolShape,
        x: &Memory<f32>,
        state: &NormState<Memory<f32>>,
        y: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        check_len("the input", x.len(), shape.batch * shape.image_len())?;
        check_len("the output", y.len(), pooled)?;
        check_len("the scale", state.scale.len(), channels)?;
        check_len("the offset", state.offset.len(), channels)?;
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
            &state.scale,
            &state.offset,
            y,
        )
    }

    fn norm_pool_backward(
        &self,
        shape: NormPoolShape,
        x: &Memory<f32>,
        state: &NormState<Memory<f32>>,
        gy: &Memory<f32>,
        gx: &mut Memory<f32>,
        gscale: &mut Memory<f32>,
        goffset: &mut Memory<f32>,
    ) -> Result<()> {
        shape.check()?;
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        let len = shape.batch * shape.image_len();
        check_len("the input", x.len(), len)?;
        check_len("the output gradient", gy.len(), pooled)?;
        check_len("the input gradient", gx.len(), len)?;
        check_len("the scale gradient", gscale.len(), channels)?;
        check_len("the offset gradient", goffset.len(), channels)?;
        check_len("the scale", state.scale.len(), channels)?;
        check_len("the batch mean", state.batch_mean.len(), channels)?;
        check_len("the batch deviation", state.batch_inverse_deviation.len(), channels)?;
        check_len("the normalised values", state.normalised.len(), pooled)?;
        let constants = NormPool::of(shape);
        let mut sums = Memory::<f64>::room(&self.gpu, 2 * channels)?;
        launch!(
            self.gpu,
            "norm_pool_sums",
            Grid::blocks(channels),
            &constants,
            &state.normalised,
            gy,
            &mut sums,
            gscale,
            goffset,
        )?;
        launch!(
            self.gpu,
            "norm_pool_gradient",
            Grid::entries(len),
            &constants,
            x,
            &state.scale,
            &state.batch_mean,
            &state.batch_inverse_deviation,
            &sums,
            gy,
            gx,
        )
    }

    fn cross_entropy(
        &self,
        batch: usize,
        classes: usize,
        logits: &Memory<f32>,
        labels: &CudaIntegers,
        gradient: &mut Memory<f32>,
        tally: &mut CudaTally,
    ) -> Result<()> {
        if batch == 0 || classes == 0 {
            return Err(EngineError::Invalid("the loss of an empty batch is undefined".into()));
        }
        check_len("the labels", labels.memory.len(), batch)?;
        check_labels(labels, batch, classes)?;
        check_len("the logits", logits.len(), batch * classes)?;
        check_len("the logit gradient", gradient.len(), batch * classes)?;
        let mut losses = Memory::<f64>::room(&self.gpu, batch)?;
        let mut hits = Memory::<u32>::room(&self.gpu, batch)?;
        launch!(
            self.gpu,
            "cross_entropy",
            Grid::threads(batch),
            logits,
            &labels.memory,
            batch as u32,
            classes as u32,
            gradient,
            &mut losses,
            &mut hits,
        )?;
        launch!(self.gpu, "tally_losses", Grid::blocks(1), &losses, &hits, batch as u32, &mut tally.0)
    }

    fn adam(
        &self,
        adam: &Adam,
        parameter: &mut Memory<f32>,
        gradient: &Memory<f32>,
        mean: &mut Memory<f32>,
        square: &mut Memory<f32>,
    ) -> Result<()> {
        let len = parameter.len();
        check_len("the gradient", gradient.len(), len)?;
        check_len("the first moment", mean.len(), len)?;
        check_len("the second moment", square.len(), len)?;
        if adam.step == 0 {
            return Err(EngineError::Invalid("Adam counts its steps from 1".into()));
        }
        let constants = AdamConstants::of(adam);
        let arguments =
            [(&constants).into(), parameter.into(), gradient.into(), mean.into(), square.into(), len.into()];
        self.on_entries("adam", len, &arguments)
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
            return Ok(());
        }
        let parts = rows.div_ceil(ROWS);
        let mut partial = Memory::<f64>::room(&self.gpu, parts * cols)?;
        let grid = Grid(cols.div_ceil(COLUMNS) as u32, parts as u32, 1);
        launch!(self.gpu, "sum_rows_parts", grid, x, rows, cols, ROWS as u32, &mut partial)?;
        launch!(self.gpu, "sum_rows_total", Grid::entries(cols), &partial, parts as u32, cols, sums)
    }
}

/// Refuses labels that are not below the number of classes, as far as the host knows them.
fn check_labels(labels: &CudaIntegers, batch: usize, classes: usize) -> Result<()> {
    match &labels.known {
        Known::Values(values) => match values[..batch].iter().position(|&label| label as usize >= classes) {
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
