//! The operations around an equilibrium, on the CPU. Each file holds one of them as functions on slices; this one
//! checks lengths and runs them in the device's thread pool.

pub(crate) mod adam;
mod batch_norm;
mod blocked;
mod cross_entropy;
mod eigen;
mod linear;
mod pooling;
mod scratch;
mod spectrum;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod tile_linear;
mod vector;
pub(crate) mod vectorised;

use std::ops::Range;

use batch_norm::{NormSlices, Statistics};
pub(crate) use spectrum::symmetric_peak;

use crate::cpu::activation::activate_plain;
use crate::cpu::isa::Vectorised;
use crate::cpu::packed::check_len;
use crate::cpu::simd::{Lanes, SimdReal};
use crate::cpu::{Buffer, Cpu, conv};
use crate::network::{Adam, ConvShape, LinearShape, NormPoolShape, NormState, Scaling, Update};
use crate::{Activation, EngineError, Layers, Operator, Result, Spectra, Summary};

/// The first `needed` numbers of an array.
fn part<'a, T>(what: &'static str, array: &'a [T], needed: usize) -> Result<&'a [T]> {
    array.get(..needed).ok_or(EngineError::Length { what, found: array.len(), needed })
}

/// The first `needed` numbers of an array, to write to.
fn part_mut<'a, T>(what: &'static str, array: &'a mut [T], needed: usize) -> Result<&'a mut [T]> {
    let found = array.len();
    array.get_mut(..needed).ok_or(EngineError::Length { what, found, needed })
}

/// Zeros, for sums to be added to.
fn clear<T: SimdReal, const COUNT: usize>(arrays: [&mut [T]; COUNT]) {
    arrays.into_iter().for_each(|array| array.fill(T::ZERO));
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

macro_rules! layers {
    ($($t:ident),*) => {$(
        impl Layers for Cpu<$t> {
            fn linear(
                &self,
                shape: LinearShape,
                x: &Buffer<$t>,
                w: &Buffer<$t>,
                b: &Buffer<$t>,
                rectified: bool,
                y: &mut Buffer<$t>,
            ) -> Result<()> {
                shape.check()?;
                let LinearShape { batch, inputs, outputs } = shape;
                let x = part("the input", x, batch * inputs)?;
                let w = part("the weights", w, outputs * inputs)?;
                let b = part("the bias", b, outputs)?;
                let affine = part_mut("the output", y, batch * outputs)?;
                linear::forward(self.team(), self.isa(), shape, x, w, b, affine);
                if rectified { self.relu(batch * outputs, y) } else { Ok(()) }
            }

            fn linear_backward(
                &self,
                shape: LinearShape,
                x: &Buffer<$t>,
                w: &Buffer<$t>,
                rectified: Option<&Buffer<$t>>,
                gy: &mut Buffer<$t>,
                gx: Option<&mut Buffer<$t>>,
                gw: &mut Buffer<$t>,
                gb: &mut Buffer<$t>,
            ) -> Result<()> {
                shape.check()?;
                let LinearShape { batch, inputs, outputs } = shape;
                if let Some(y) = rectified {
                    self.relu_backward(batch * outputs, y, gy)?;
                }
                let x = part("the input", x, batch * inputs)?;
                let w = part("the weights", w, outputs * inputs)?;
                let gy = part("the output gradient", gy, batch * outputs)?;
                let gx = gx.map(|gx| part_mut("the input gradient", gx, batch * inputs)).transpose()?;
                let gw = part_mut("the weight gradient", gw, outputs * inputs)?;
                let gb = part_mut("the bias gradient", gb, outputs)?;
                clear([&mut *gw, &mut *gb]);
                linear::backward(self.team(), self.isa(), shape, x, w, gy, gx, gw, gb);
                Ok(())
            }

            fn convolution(
                &self,
                shape: ConvShape,
                x: &Buffer<$t>,
                w: &Buffer<$t>,
                b: &Buffer<$t>,
                rectified: bool,
                y: &mut Buffer<$t>,
            ) -> Result<()> {
                shape.check()?;
                let x = part("the input", x, shape.pixels() * shape.inputs)?;
                let w = part("the weights", w, shape.outputs * shape.inputs * 9)?;
                let b = part("the bias", b, shape.outputs)?;
                let len = shape.pixels() * shape.outputs;
                let affine = part_mut("the output", y, len)?;
                let sizes = shape.sizes();
                self.install(|| conv::forward(self.isa(), &sizes, shape.batch, x, w, Some(b), false, affine))?;
                if rectified { self.relu(len, y) } else { Ok(()) }
            }

            fn convolution_backward(
                &self,
                shape: ConvShape,
                x: &Buffer<$t>,
                w: &Buffer<$t>,
                rectified: Option<&Buffer<$t>>,
                gy: &mut Buffer<$t>,
                gx: Option<&mut Buffer<$t>>,
                gw: &mut Buffer<$t>,
                gb: &mut Buffer<$t>,
            ) -> Result<()> {
                shape.check()?;
                if let Some(y) = rectified {
                    self.relu_backward(shape.pixels() * shape.outputs, y, gy)?;
                }
                let x = part("the input", x, shape.pixels() * shape.inputs)?;
                let w = part("the weights", w, shape.outputs * shape.inputs * 9)?;
                let gy = part("the output gradient", gy, shape.pixels() * shape.outputs)?;
                let gx =
                    gx.map(|gx| part_mut("the input gradient", gx, shape.pixels() * shape.inputs)).transpose()?;
                let gw = part_mut("the weight gradient", gw, shape.outputs * shape.inputs * 9)?;
                let gb = part_mut("the bias gradient", gb, shape.outputs)?;
                clear([&mut *gw, &mut *gb]);
                let (isa, sizes) = (self.isa(), shape.sizes());
                self.install(|| {
                    if let Some(gx) = gx {
                        conv::input_gradient(isa, &sizes, shape.batch, gy, w, gx)?;
                    }
                    conv::weight_gradient(isa, &sizes, shape.batch, x, gy, gw, Some(gb))
                })
            }

            fn relu(&self, len: usize, x: &mut Buffer<$t>) -> Result<()> {
                let x = part_mut("x", x, len)?;
                vector::transform(self.team(), self.isa(), x, |x| if x > 0.0 { x } else { 0.0 });
                Ok(())
            }

            fn relu_backward(&self, len: usize, y: &Buffer<$t>, g: &mut Buffer<$t>) -> Result<()> {
                let (y, g) = (part("the output", y, len)?, part_mut("the gradient", g, len)?);
                vector::combine(self.team(), self.isa(), y, g, |y, g| if y > 0.0 { g } else { 0.0 });
                Ok(())
            }

            fn tanh(&self, len: usize, x: &mut Buffer<$t>) -> Result<()> {
                let x = part_mut("x", x, len)?;
                self.team().for_each(x.chunks_mut(vector::CHUNK), |x| self.isa().dispatch(Tanh(x)));
                Ok(())
            }

            fn tanh_backward(&self, len: usize, y: &Buffer<$t>, g: &mut Buffer<$t>) -> Result<()> {
                let (y, g) = (part("the output", y, len)?, part_mut("the gradient", g, len)?);
                vector::combine(self.team(), self.isa(), y, g, |y, g| g * (1.0 - y * y));
                Ok(())
            }

            fn norm_pool_train(
                &self,
                shape: NormPoolShape,
                x: &Buffer<$t>,
                scaling: Scaling<&Buffer<$t>>,
                state: &mut NormState<Buffer<$t>>,
                y: &mut Buffer<$t>,
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
                    scale: part("the scale", scaling.scale, channels)?,
                    offset: part("the offset", scaling.offset, channels)?,
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
                x: &Buffer<$t>,
                scaling: Scaling<&Buffer<$t>>,
                state: &NormState<Buffer<$t>>,
                y: &mut Buffer<$t>,
            ) -> Result<()> {
                shape.check()?;
                let channels = shape.channels;
                let x = part("the input", x, shape.batch * shape.image_len())?;
                let y = part_mut("the output", y, shape.batch * shape.pooled_len())?;
                let constants = (
                    part("the scale", scaling.scale, channels)?,
                    part("the offset", scaling.offset, channels)?,
                    part("the running mean", &state.running_mean, channels)?,
                    part("the running variance", &state.running_variance, channels)?,
                );
                batch_norm::eval(self.team(), self.isa(), shape, x, constants, y);
                Ok(())
            }

            fn norm_pool_backward(
                &self,
                shape: NormPoolShape,
                x: &Buffer<$t>,
                scale: &Buffer<$t>,
                state: &NormState<Buffer<$t>>,
                gy: &Buffer<$t>,
                gx: &mut Buffer<$t>,
                gradients: Scaling<&mut Buffer<$t>>,
            ) -> Result<()> {
                shape.check()?;
                let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
                let x = part("the input", x, shape.batch * shape.image_len())?;
                let gy = part("the output gradient", gy, pooled)?;
                let gx = part_mut("the input gradient", gx, shape.batch * shape.image_len())?;
                let gscale = part_mut("the scale gradient", gradients.scale, channels)?;
                let goffset = part_mut("the offset gradient", gradients.offset, channels)?;
                clear([&mut *gscale, &mut *goffset]);
                let norm = Statistics {
                    scale: part("the scale", scale, channels)?,
                    mean: part("the batch mean", &state.batch_mean, channels)?,
                    inverse: part("the batch deviation", &state.batch_inverse_deviation, channels)?,
                };
                let normalised = part("the normalised values", &state.normalised, pooled)?;
                batch_norm::backward(self.team(), self.isa(), shape, x, norm, normalised, gy, gx, (gscale, goffset));
                Ok(())
            }

            fn average_pool(&self, shape: NormPoolShape, x: &Buffer<$t>, y: &mut Buffer<$t>) -> Result<()> {
                shape.check()?;
                let x = part("the input", x, shape.batch * shape.image_len())?;
                let y = part_mut("the output", y, shape.batch * shape.pooled_len())?;
                pooling::forward(self.team(), self.isa(), shape, x, y);
                Ok(())
            }

            fn average_pool_backward(
                &self,
                shape: NormPoolShape,
                gy: &Buffer<$t>,
                gx: &mut Buffer<$t>,
            ) -> Result<()> {
                shape.check()?;
                let gy = part("the output gradient", gy, shape.batch * shape.pooled_len())?;
                let gx = part_mut("the input gradient", gx, shape.batch * shape.image_len())?;
                pooling::backward(self.team(), self.isa(), shape, gy, gx);
                Ok(())
            }

            fn norm_sums(
                &self,
                shape: NormPoolShape,
                first: usize,
                x: &Buffer<$t>,
                sums: &mut [f64],
            ) -> Result<()> {
                shape.check()?;
                check_len("the sums", sums.len(), 2 * shape.channels)?;
                let image = shape.image_len();
                let x = part("the input", x, (first + shape.batch) * image)?;
                batch_norm::sums(self.team(), self.isa(), shape, &x[first * image..], sums);
                Ok(())
            }

            fn norm_pool_given(
                &self,
                shape: NormPoolShape,
                x: &Buffer<$t>,
                scaling: Scaling<&Buffer<$t>>,
                state: &mut NormState<Buffer<$t>>,
                y: &mut Buffer<$t>,
            ) -> Result<()> {
                shape.check()?;
                let (channels, pooled) = (shape.channels, shape.batch * shape.pooled_len());
                let x = part("the input", x, shape.batch * shape.image_len())?;
                let y = part_mut("the output", y, pooled)?;
                let constants = [
                    part("the batch mean", &state.batch_mean, channels)?,
                    part("the batch deviation", &state.batch_inverse_deviation, channels)?,
                    part("the scale", scaling.scale, channels)?,
                    part("the offset", scaling.offset, channels)?,
                ];
                let normalised = part_mut("the normalised values", &mut state.normalised, pooled)?;
                batch_norm::pool_and_normalise(self.team(), self.isa(), shape, x, constants, normalised, y);
                Ok(())
            }

            fn norm_gradient_sums(
                &self,
                shape: NormPoolShape,
                first: usize,
                state: &NormState<Buffer<$t>>,
                gy: &Buffer<$t>,
                sums: &mut [f64],
            ) -> Result<()> {
                shape.check()?;
                check_len("the sums", sums.len(), 2 * shape.channels)?;
                let (begin, end) = (first * shape.pooled_len(), (first + shape.batch) * shape.pooled_len());
                let gy = part("the output gradient", gy, end)?;
                let normalised = part("the normalised values", &state.normalised, end)?;
                let (gy, normalised) = (&gy[begin..], &normalised[begin..]);
                batch_norm::gradient_sums(self.team(), self.isa(), shape, normalised, gy, sums);
                Ok(())
            }

            fn norm_pool_pull(
                &self,
                shape: NormPoolShape,
                of: usize,
                x: &Buffer<$t>,
                scale: &Buffer<$t>,
                state: &NormState<Buffer<$t>>,
                gy: &Buffer<$t>,
                sums: &[f64],
                gx: &mut Buffer<$t>,
                gradients: Scaling<&mut Buffer<$t>>,
            ) -> Result<()> {
                shape.check()?;
                let (channels, images) = (shape.channels, shape.batch * shape.image_len());
                check_len("the sums", sums.len(), 2 * channels)?;
                let x = part("the input", x, images)?;
                let gy = part("the output gradient", gy, shape.batch * shape.pooled_len())?;
                let gx = part_mut("the input gradient", gx, images)?;
                let gscale = part_mut("the scale gradient", gradients.scale, channels)?;
                let goffset = part_mut("the offset gradient", gradients.offset, channels)?;
                for (c, sums) in sums[..2 * channels].chunks_exact(2).enumerate() {
                    (goffset[c], gscale[c]) = (sums[0] as $t, sums[1] as $t);
                }
                let norm = Statistics {
                    scale: part("the scale", scale, channels)?,
                    mean: part("the batch mean", &state.batch_mean, channels)?,
                    inverse: part("the batch deviation", &state.batch_inverse_deviation, channels)?,
                };
                batch_norm::input_gradient(self.team(), self.isa(), shape, of, x, norm, gy, gx, sums);
                Ok(())
            }

            fn cross_entropy_part(
                &self,
                samples: Range<usize>,
                of: usize,
                classes: usize,
                smoothing: f64,
                logits: &Buffer<$t>,
                labels: &Vec<u32>,
                gradient: &mut Buffer<$t>,
                tally: &mut Summary,
            ) -> Result<()> {
                if samples.is_empty() || of == 0 || classes == 0 {
                    return Err(EngineError::Invalid("the loss of an empty batch is undefined".into()));
                }
                let labels = part("the labels", labels, samples.end)?;
                if let Some(sample) = samples.clone().find(|&sample| labels[sample] as usize >= classes) {
                    return Err(EngineError::Invalid(format!(
                        "the label of sample {sample} is {}, but there are {classes} classes (0 to {})",
                        labels[sample],
                        classes - 1
                    )));
                }
                let (begin, end) = (samples.start * classes, samples.end * classes);
                let logits = &part("the logits", logits, end)?[begin..];
                let gradient = &mut part_mut("the logit gradient", gradient, end)?[begin..];
                let labels = &labels[samples.clone()];
                let found =
                    cross_entropy::cross_entropy(self.isa, of, classes, smoothing, logits, labels, gradient);
                let count = samples.len();
                tally.samples += count as u64;
                tally.loss += found.loss * count as f64;
                tally.correct += found.correct as u64;
                Ok(())
            }

            fn adam(&self, adam: &Adam, updates: &mut [Update<'_, Buffer<$t>>]) -> Result<()> {
                for Update { parameter, gradient, mean, square } in updates {
                    let len = parameter.len();
                    let gradient = part("the gradient", gradient, len)?;
                    let mean = part_mut("the first moment", mean, len)?;
                    let square = part_mut("the second moment", square, len)?;
                    adam::adam(self.team(), self.isa(), adam, parameter, gradient, mean, square)?;
                }
                Ok(())
            }

            fn axpy(&self, len: usize, a: f64, x: &Buffer<$t>, y: &mut Buffer<$t>) -> Result<()> {
                let (x, y) = (part("x", x, len)?, part_mut("y", y, len)?);
                let a = a as $t;
                vector::combine(self.team(), self.isa(), x, y, |x, y| y + a * x);
                Ok(())
            }

            fn add_to_rows(&self, rows: usize, cols: usize, b: &Buffer<$t>, x: &mut Buffer<$t>) -> Result<()> {
                let (b, x) = (part("the row", b, cols)?, part_mut("x", x, rows * cols)?);
                vector::add_to_rows(self.team(), self.isa(), cols, b, x);
                Ok(())
            }

            fn sum_rows(&self, rows: usize, cols: usize, x: &Buffer<$t>, sums: &mut Buffer<$t>) -> Result<()> {
                let (x, sums) = (part("x", x, rows * cols)?, part_mut("the sums", sums, cols)?);
                clear([&mut *sums]);
                vector::sum_rows(self.team(), self.isa(), cols, x, sums);
                Ok(())
            }
        }

        impl Spectra for Cpu<$t> {
            fn splitting_rate(
                &self,
                operator: &Operator,
                w: &Buffer<$t>,
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
                Ok(self.install(|| spectrum::splitting_rate(self.isa(), operator, w, step, frequencies)))
            }

            fn norm_bound(&self, operator: &Operator, w: &Buffer<$t>) -> Result<f64> {
                let w = part("the weights", w, operator.weight_len())?;
                finite("the weights", w)?;
                Ok(spectrum::norm_bound(operator, w))
            }
        }
    )*};
}
layers!(f32, f64);
