//! The operations around an equilibrium, on the CPU. Each file holds one of them as functions on slices; this one
//! checks lengths and runs them in the device's thread pool.

pub(crate) mod adam;
mod batch_norm;
mod blocked;
mod cross_entropy;
mod dropout;
mod eigen;
mod linear;
mod product;
mod scratch;
mod sparse;
mod spectrum;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile_linear;
mod vector;
pub(crate) mod vectorised;

use batch_norm::{BackwardSlices, NormSlices};
use product::Matrix;

use crate::cpu::activation::activate_plain;
use crate::cpu::isa::Vectorised;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::cpu::{Buffer, Cpu, conv};
use crate::network::{
    Adam, ConvShape, CrossEntropy, Csr, LinearShape, Network, NormPoolShape, NormState, Orientation,
    ProductShape, Rows,
};
use crate::{Activation, EngineError, Integrate, Operator, Result};

/// The first `needed` numbers of an array.
fn part<'a, T>(what: &'static str, array: &'a [T], needed: usize) -> Result<&'a [T]> {
    array.get(..needed).ok_or(EngineError::Length { what, found: array.len(), needed })
}

/// The first `needed` numbers of an array, to write to.
fn part_mut<'a, T>(what: &'static str, array: &'a mut [T], needed: usize) -> Result<&'a mut [T]> {
    let found = array.len();
    array.get_mut(..needed).ok_or(EngineError::Length { what, found, needed })
}

/// Refuses numbers that are infinite or NaN.
fn finite<T: SimdReal>(what: &'static str, numbers: &[T]) -> Result<()> {
    match numbers.iter().position(|x| !x.is_finite()) {
        Some(index) => Err(EngineError::NotFinite { what, index, value: numbers[index].to_string() }),
        None => Ok(()),
    }
}

impl ConvShape {
    fn pixels(&self) -> usize {
        self.batch * self.height * self.width
    }

    fn sizes(&self) -> conv::Shape {
        conv::Shape {
            height: self.height,
            width: self.width,
            in_channels: self.inputs,
            out_channels: self.outputs,
            padding: self.padding,
        }
    }

    fn check(&self) -> Result<()> {
        if self.height * self.width * self.inputs * self.outputs == 0 {
            return Err(EngineError::Invalid(format!("a convolution of empty images: {self:?}")));
        }
        Ok(())
    }
}

/// `x <- tanh x`.
struct Tanh<'a, T>(&'a mut [T]);

impl<T: SimdReal> Vectorised<T> for Tanh<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<V: Lanes<Elem = T>>(self) {
        activate_plain::<V>(Activation::Tanh, self.0);
    }
}

impl<T: SimdReal> Network<T> for Cpu<T>
where
    Cpu<T>: Integrate<T, Array = Buffer<T>>,
{
    fn product(
        &self,
        shape: ProductShape,
        a: (&Buffer<T>, Orientation),
        b: (&Buffer<T>, Orientation),
        c: &mut Buffer<T>,
        accumulate: bool,
    ) -> Result<()> {
        let ProductShape { m, k, n } = shape;
        let factor = |what, (array, orientation): (&'_ Buffer<T>, Orientation), rows, cols| {
            part(what, array, rows * cols)?;
            Ok::<_, EngineError>(orientation)
        };
        let (oriented_a, oriented_b) =
            (factor("the left factor", a, m, k)?, factor("the right factor", b, k, n)?);
        let a = match oriented_a {
            Orientation::Plain => Matrix::new(a.0, m, k),
            Orientation::Transposed => Matrix::new(a.0, k, m).transposed(),
        };
        let b = match oriented_b {
            Orientation::Plain => Matrix::new(b.0, k, n),
            Orientation::Transposed => Matrix::new(b.0, n, k).transposed(),
        };
        let c = part_mut("the product", c, m * n)?;
        self.install(|| product::product_in_parallel(a, b, c, accumulate));
        Ok(())
    }

    fn linear(
        &self,
        shape: LinearShape,
        x: &Buffer<T>,
        w: &Buffer<T>,
        b: &Buffer<T>,
        y: &mut Buffer<T>,
    ) -> Result<()> {
        let LinearShape { batch, inputs, outputs } = shape;
        let x = part("the input", x, batch * inputs)?;
        let w = part("the weights", w, outputs * inputs)?;
        let b = part("the bias", b, outputs)?;
        let y = part_mut("the output", y, batch * outputs)?;
        linear::forward(self.team(), self.isa(), shape, x, w, b, y);
        Ok(())
    }

    fn linear_backward(
        &self,
        shape: LinearShape,
        x: &Buffer<T>,
        w: &Buffer<T>,
        gy: &Buffer<T>,
        gx: Option<&mut Buffer<T>>,
        gw: &mut Buffer<T>,
        gb: &mut Buffer<T>,
    ) -> Result<()> {
        let LinearShape { batch, inputs, outputs } = shape;
        let x = part("the input", x, batch * inputs)?;
        let w = part("the weights", w, outputs * inputs)?;
        let gy = part("the output gradient", gy, batch * outputs)?;
        let gx = gx.map(|gx| part_mut("the input gradient", gx, batch * inputs)).transpose()?;
        let gw = part_mut("the weight gradient", gw, outputs * inputs)?;
        let gb = part_mut("the bias gradient", gb, outputs)?;
        linear::backward(self.team(), self.isa(), shape, x, w, gy, gx, gw, gb);
        Ok(())
    }

    fn convolution(
        &self,
        shape: ConvShape,
        x: &Buffer<T>,
        w: &Buffer<T>,
        b: &Buffer<T>,
        y: &mut Buffer<T>,
    ) -> Result<()> {
        shape.check()?;
        let x = part("the input", x, shape.pixels() * shape.inputs)?;
        let w = part("the weights", w, shape.outputs * shape.inputs * 9)?;
        let b = part("the bias", b, shape.outputs)?;
        let y = part_mut("the output", y, shape.pixels() * shape.outputs)?;
        let sizes = shape.sizes();
        self.install(|| conv::forward(self.isa(), &sizes, shape.batch, x, w, Some(b), false, y))
    }

    fn convolution_backward(
        &self,
        shape: ConvShape,
        x: &Buffer<T>,
        w: &Buffer<T>,
        gy: &Buffer<T>,
        gx: Option<&mut Buffer<T>>,
        gw: &mut Buffer<T>,
        gb: &mut Buffer<T>,
    ) -> Result<()> {
        shape.check()?;
        let x = part("the input", x, shape.pixels() * shape.inputs)?;
        let w = part("the weights", w, shape.outputs * shape.inputs * 9)?;
        let gy = part("the output gradient", gy, shape.pixels() * shape.outputs)?;
        let gx =
            gx.map(|gx| part_mut("the input gradient", gx, shape.pixels() * shape.inputs)).transpose()?;
        let gw = part_mut("the weight gradient", gw, shape.outputs * shape.inputs * 9)?;
        let gb = part_mut("the bias gradient", gb, shape.outputs)?;
        let (isa, sizes) = (self.isa(), shape.sizes());
        self.install(|| {
            if let Some(gx) = gx {
                conv::input_gradient(isa, &sizes, shape.batch, gy, w, gx)?;
            }
            conv::weight_gradient(isa, &sizes, shape.batch, x, gy, gw, Some(gb))
        })
    }

    fn relu(&self, len: usize, x: &mut Buffer<T>) -> Result<()> {
        let x = part_mut("x", x, len)?;
        vector::transform(self.team(), self.isa(), x, |x| if x > T::ZERO { x } else { T::ZERO });
        Ok(())
    }

    fn relu_backward(&self, len: usize, y: &Buffer<T>, g: &mut Buffer<T>) -> Result<()> {
        let (y, g) = (part("the output", y, len)?, part_mut("the gradient", g, len)?);
        vector::combine(self.team(), self.isa(), y, g, |y, g| if y > T::ZERO { g } else { T::ZERO });
        Ok(())
    }

    fn tanh(&self, len: usize, x: &mut Buffer<T>) -> Result<()> {
        let x = part_mut("x", x, len)?;
        self.team().for_each(x.chunks_mut(vector::CHUNK), |x| self.isa().dispatch(Tanh(x)));
        Ok(())
    }

    fn tanh_backward(&self, len: usize, y: &Buffer<T>, g: &mut Buffer<T>) -> Result<()> {
        let (y, g) = (part("the output", y, len)?, part_mut("the gradient", g, len)?);
        vector::combine(self.team(), self.isa(), y, g, |y, g| g * (T::ONE - y * y));
        Ok(())
    }

    fn norm_pool_train(
        &self,
        shape: NormPoolShape,
        x: &Buffer<T>,
        state: &mut NormState<Buffer<T>>,
        y: &mut Buffer<T>,
    ) -> Result<()> {
        shape.check()?;
        if shape.batch * shape.height * shape.width < 2 {
            return Err(EngineError::Invalid(
                "batch norm cannot train on a single value per channel: its variance is undefined".into(),
            ));
        }
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        let x = part("the input", x, shape.batch * shape.image_len())?;
        let y = part_mut("the output", y, pooled)?;
        let slices = NormSlices {
            scale: part("the scale", &state.scale, channels)?,
            offset: part("the offset", &state.offset, channels)?,
            running_mean: part_mut("the running mean", &mut state.running_mean, channels)?,
            running_variance: part_mut("the running variance", &mut state.running_variance, channels)?,
            batch_mean: part_mut("the batch mean", &mut state.batch_mean, channels)?,
            batch_inverse_deviation: part_mut(
                "the batch deviation",
                &mut state.batch_inverse_deviation,
                channels,
            )?,
            normalised: part_mut("the normalised values", &mut state.normalised, pooled)?,
        };
        batch_norm::train(self.team(), self.isa(), shape, x, slices, y);
        Ok(())
    }

    fn norm_pool_eval(
        &self,
        shape: NormPoolShape,
        x: &Buffer<T>,
        state: &NormState<Buffer<T>>,
        y: &mut Buffer<T>,
    ) -> Result<()> {
        shape.check()?;
        let channels = shape.channels;
        let x = part("the input", x, shape.batch * shape.image_len())?;
        let y = part_mut("the output", y, shape.batch * shape.pooled_len())?;
        let constants = (
            part("the scale", &state.scale, channels)?,
            part("the offset", &state.offset, channels)?,
            part("the running mean", &state.running_mean, channels)?,
            part("the running variance", &state.running_variance, channels)?,
        );
        batch_norm::eval(self.team(), self.isa(), shape, x, constants, y);
        Ok(())
    }

    fn norm_pool_backward(
        &self,
        shape: NormPoolShape,
        x: &Buffer<T>,
        state: &NormState<Buffer<T>>,
        gy: &Buffer<T>,
        gx: &mut Buffer<T>,
        gscale: &mut Buffer<T>,
        goffset: &mut Buffer<T>,
    ) -> Result<()> {
        shape.check()?;
        let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
        let x = part("the input", x, shape.batch * shape.image_len())?;
        let gy = part("the output gradient", gy, pooled)?;
        let gx = part_mut("the input gradient", gx, shape.batch * shape.image_len())?;
        let gscale = part_mut("the scale gradient", gscale, channels)?;
        let goffset = part_mut("the offset gradient", goffset, channels)?;
        let slices = BackwardSlices {
            scale: part("the scale", &state.scale, channels)?,
            mean: part("the batch mean", &state.batch_mean, channels)?,
            inverse: part("the batch deviation", &state.batch_inverse_deviation, channels)?,
            normalised: part("the normalised values", &state.normalised, pooled)?,
        };
        batch_norm::backward(self.team(), self.isa(), shape, x, slices, gy, gx, (gscale, goffset));
        Ok(())
    }

    fn cross_entropy(
        &self,
        classes: usize,
        logits: &Buffer<T>,
        labels: &[u32],
        gradient: &mut Buffer<T>,
    ) -> Result<CrossEntropy> {
        if labels.is_empty() || classes == 0 {
            return Err(EngineError::Invalid("the loss of an empty batch is undefined".into()));
        }
        if let Some(sample) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(EngineError::Invalid(format!(
                "the label of sample {sample} is {}, but there are {classes} classes (0 to {})",
                labels[sample],
                classes - 1
            )));
        }
        let len = labels.len() * classes;
        let (logits, gradient) =
            (part("the logits", logits, len)?, part_mut("the logit gradient", gradient, len)?);
        Ok(cross_entropy::cross_entropy(self.isa, classes, logits, labels, gradient))
    }

    fn dropout(&self, len: usize, rate: f64, seed: u64, stream: u64, x: &mut Buffer<T>) -> Result<()> {
        if !(0.0..1.0).contains(&rate) {
            return Err(EngineError::Invalid(format!("a dropout rate lies in [0, 1), got {rate}")));
        }
        let x = part_mut("x", x, len)?;
        self.install(|| dropout::dropout(self.isa(), rate, seed, stream, x));
        Ok(())
    }

    fn adam(
        &self,
        adam: &Adam,
        parameter: &mut Buffer<T>,
        gradient: &Buffer<T>,
        mean: &mut Buffer<T>,
        square: &mut Buffer<T>,
    ) -> Result<()> {
        let len = parameter.len();
        let gradient = part("the gradient", gradient, len)?;
        let mean = part_mut("the first moment", mean, len)?;
        let square = part_mut("the second moment", square, len)?;
        adam::adam(self.team(), self.isa(), adam, parameter, gradient, mean, square)
    }

    fn sparse_product(&self, a: &Csr<T>, width: usize, x: &Buffer<T>, y: &mut Buffer<T>) -> Result<()> {
        a.check()?;
        let x = part("the dense factor", x, a.cols * width)?;
        let y = part_mut("the product", y, a.rows * width)?;
        self.install(|| sparse::product(self.isa(), a, width, x, y));
        Ok(())
    }

    fn dot(&self, len: usize, x: &Buffer<T>, y: &Buffer<T>) -> Result<f64> {
        let (x, y) = (part("x", x, len)?, part("y", y, len)?);
        Ok(vector::dot(self.team(), self.isa(), x, y))
    }

    fn axpy(&self, len: usize, a: f64, x: &Buffer<T>, y: &mut Buffer<T>) -> Result<()> {
        let (x, y) = (part("x", x, len)?, part_mut("y", y, len)?);
        let a = T::from_f64(a);
        vector::combine(self.team(), self.isa(), x, y, |x, y| y + a * x);
        Ok(())
    }

    fn fill(&self, len: usize, value: f64, x: &mut Buffer<T>) -> Result<()> {
        part_mut("x", x, len)?.fill(T::from_f64(value));
        Ok(())
    }

    fn copy(&self, len: usize, x: &Buffer<T>, y: &mut Buffer<T>) -> Result<()> {
        part_mut("y", y, len)?.copy_from_slice(part("x", x, len)?);
        Ok(())
    }

    fn copy_rows(
        &self,
        rows: usize,
        len: usize,
        from: Rows<&Buffer<T>>,
        to: Rows<&mut Buffer<T>>,
    ) -> Result<()> {
        let last =
            |stride: usize, offset: usize| if rows == 0 { 0 } else { (rows - 1) * stride + offset + len };
        let source = part("the source of the rows", from.array, last(from.stride, from.offset))?;
        let target = part_mut("the target of the rows", to.array, last(to.stride, to.offset))?;
        for row in 0..rows {
            target[row * to.stride + to.offset..][..len]
                .copy_from_slice(&source[row * from.stride + from.offset..][..len]);
        }
        Ok(())
    }

    fn add_to_rows(&self, rows: usize, cols: usize, b: &Buffer<T>, x: &mut Buffer<T>) -> Result<()> {
        let (b, x) = (part("the row", b, cols)?, part_mut("x", x, rows * cols)?);
        vector::add_to_rows(self.team(), self.isa(), cols, b, x);
        Ok(())
    }

    fn sum_rows(&self, rows: usize, cols: usize, x: &Buffer<T>, sums: &mut Buffer<T>) -> Result<()> {
        let (x, sums) = (part("x", x, rows * cols)?, part_mut("the sums", sums, cols)?);
        vector::sum_rows(self.team(), self.isa(), cols, x, sums);
        Ok(())
    }

    fn symmetric_peak(&self, operator: &Operator, w: &Buffer<T>, gradient: &mut Buffer<T>) -> Result<f64> {
        let len = operator.weight_len();
        let (w, gradient) = (part("the weights", w, len)?, part_mut("the gradient", gradient, len)?);
        finite("the weights", w)?;
        Ok(self.install(|| spectrum::symmetric_peak(self.isa(), operator, w, gradient)))
    }

    fn splitting_factor(
        &self,
        operator: &Operator,
        w: &Buffer<T>,
        step: f64,
        frequencies: usize,
    ) -> Result<f64> {
        if !(step > 0.0 && step.is_finite()) {
            return Err(EngineError::Invalid(format!(
                "the step of a splitting is a positive number, got {step}"
            )));
        }
        let w = part("the weights", w, operator.weight_len())?;
        finite("the weights", w)?;
        Ok(self.install(|| spectrum::splitting_factor(self.isa(), operator, w, step, frequencies)))
    }
}
