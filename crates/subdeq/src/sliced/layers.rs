//! The operations around an equilibrium, on a sliced device.

use std::ops::Range;

use subdeq_engine::network::{
    Adam, ConvShape, LinearShape, NORM_EPSILON, NORM_MOMENTUM, NormPoolShape, NormState, Scaling, Update,
};
use subdeq_engine::{Backend, EngineError, Layers};

use super::memory::inner;
use super::sums::{put, take};
use super::{Engine, Sliced};

impl<D: Backend<Elem = f32>> Sliced<D> {
    /// The gradients of an affine map, slice by slice: `backward` does it for so many samples. The sizes are those of one sample.
    #[allow(clippy::too_many_arguments)] // two factors, one gradient in, three out
    fn affine_backward(
        &self,
        [inputs, outputs]: [usize; 2],
        x: &D::Array,
        rectified: Option<&D::Array>,
        gy: &D::Array,
        mut gx: Option<&mut D::Array>,
        (gw, weights): (&mut D::Array, usize),
        (gb, biases): (&mut D::Array, usize),
        backward: impl Fn(&D, usize, AffineArrays<'_, D::Array>) -> Engine<()>,
    ) -> Engine<()> {
        self.device.fill(weights, 0.0, gw)?;
        self.device.fill(biases, 0.0, gb)?;
        let largest = self.cut.largest_slice(self.batch());
        let inner = if gx.is_some() { inputs } else { 0 };
        let outer = if rectified.is_some() { outputs } else { 0 };
        let lens = [inputs, outputs, outer, inner].map(|len| largest * len);
        self.add_slices(&mut [(gw, weights), (gb, biases)], |device, copies, _, samples, sums| {
            let [x_slice, gy_slice, y_slice, gx_slice] = copies.reserved(device, lens)?;
            take(device, inputs, &samples, x, x_slice)?;
            take(device, outputs, &samples, gy, gy_slice)?;
            if let Some(y) = rectified {
                take(device, outputs, &samples, y, y_slice)?;
            }
            let [gw, gb] = sums else {
                return Err(EngineError::Invalid("an affine map has weights and biases".into()));
            };
            let arrays = AffineArrays {
                x: x_slice,
                y: rectified.is_some().then_some(y_slice),
                gy: gy_slice,
                gx: gx.is_some().then_some(gx_slice),
                gw,
                gb,
            };
            backward(device, samples.len(), arrays)?;
            match &mut gx {
                Some(gx) => put(device, inputs, &samples, gx_slice, gx),
                None => Ok(()),
            }
        })
    }

    /// The part of a batch norm that is about this rank's samples.
    fn own_shape(&self, shape: NormPoolShape) -> Engine<NormPoolShape> {
        Ok(NormPoolShape { batch: self.own(shape.batch)?, ..shape })
    }

    /// Moves the running statistics towards those of a batch, and notes these, from the sums of a batch norm.
    fn note_statistics(
        &self,
        shape: NormPoolShape,
        sums: &[f64],
        state: &mut NormState<D::Array>,
    ) -> Engine<()> {
        let (device, channels) = (&*self.device, shape.channels);
        let count = (shape.batch * shape.height * shape.width) as f64;
        let (mut means, mut variances) = (vec![0.0; channels], vec![0.0; channels]);
        device.read(&state.running_mean, 0, &mut means)?;
        device.read(&state.running_variance, 0, &mut variances)?;
        let (mut centres, mut inverses) = (vec![0.0; channels], vec![0.0; channels]);
        let towards = |old: &mut f32, new: f64| {
            *old = ((1.0 - NORM_MOMENTUM) * f64::from(*old) + NORM_MOMENTUM * new) as f32;
        };
        for c in 0..channels {
            let mean = sums[c] / count;
            // Rounding alone could make it negative; a NaN stays one.
            let squares = sums[channels + c] - sums[c] * mean;
            let squares = if squares < 0.0 { 0.0 } else { squares };
            centres[c] = mean as f32;
            inverses[c] = (1.0 / (squares / count + NORM_EPSILON).sqrt()) as f32;
            towards(&mut means[c], mean);
            towards(&mut variances[c], squares / (count - 1.0));
        }
        device.write(&mut state.running_mean, 0, &means)?;
        device.write(&mut state.running_variance, 0, &variances)?;
        device.write(&mut state.batch_mean, 0, &centres)?;
        device.write(&mut state.batch_inverse_deviation, 0, &inverses)
    }
}

/// What the way back of an affine map reads and writes.
struct AffineArrays<'a, A> {
    x: &'a A,
    y: Option<&'a A>,
    gy: &'a mut A,
    gx: Option<&'a mut A>,
    gw: &'a mut A,
    gb: &'a mut A,
}

impl<D: Backend<Elem = f32>> Layers for Sliced<D> {
    fn linear(
        &self,
        shape: LinearShape,
        x: &D::Array,
        w: &D::Array,
        b: &D::Array,
        rectified: bool,
        y: &mut D::Array,
    ) -> Engine<()> {
        self.on_own(shape.batch, |device, batch| {
            device.linear(LinearShape { batch, ..shape }, x, w, b, rectified, y)
        })
    }

    fn linear_backward(
        &self,
        shape: LinearShape,
        x: &D::Array,
        w: &D::Array,
        rectified: Option<&D::Array>,
        gy: &mut D::Array,
        gx: Option<&mut D::Array>,
        gw: &mut D::Array,
        gb: &mut D::Array,
    ) -> Engine<()> {
        let LinearShape { inputs, outputs, .. } = shape;
        let (gw, gb) = ((gw, inputs * outputs), (gb, outputs));
        self.affine_backward([inputs, outputs], x, rectified, gy, gx, gw, gb, |device, batch, of| {
            let AffineArrays { x, y, gy, gx, gw, gb } = of;
            device.linear_backward(LinearShape { batch, ..shape }, x, w, y, gy, gx, gw, gb)
        })
    }

    fn convolution(
        &self,
        shape: ConvShape,
        x: &D::Array,
        w: &D::Array,
        b: &D::Array,
        rectified: bool,
        y: &mut D::Array,
    ) -> Engine<()> {
        self.on_own(shape.batch, |device, batch| {
            device.convolution(ConvShape { batch, ..shape }, x, w, b, rectified, y)
        })
    }

    fn convolution_backward(
        &self,
        shape: ConvShape,
        x: &D::Array,
        w: &D::Array,
        rectified: Option<&D::Array>,
        gy: &mut D::Array,
        gx: Option<&mut D::Array>,
        gw: &mut D::Array,
        gb: &mut D::Array,
    ) -> Engine<()> {
        let ConvShape { height, width, inputs, outputs, .. } = shape;
        let sizes = [inputs, outputs].map(|channels| height * width * channels);
        let (gw, gb) = ((gw, 9 * inputs * outputs), (gb, outputs));
        self.affine_backward(sizes, x, rectified, gy, gx, gw, gb, |device, batch, of| {
            let AffineArrays { x, y, gy, gx, gw, gb } = of;
            device.convolution_backward(ConvShape { batch, ..shape }, x, w, y, gy, gx, gw, gb)
        })
    }

    fn relu(&self, len: usize, x: &mut D::Array) -> Engine<()> {
        self.on_own(len, |device, len| device.relu(len, x))
    }

    fn relu_backward(&self, len: usize, y: &D::Array, g: &mut D::Array) -> Engine<()> {
        self.on_own(len, |device, len| device.relu_backward(len, y, g))
    }

    fn tanh(&self, len: usize, x: &mut D::Array) -> Engine<()> {
        self.on_own(len, |device, len| device.tanh(len, x))
    }

    fn tanh_backward(&self, len: usize, y: &D::Array, g: &mut D::Array) -> Engine<()> {
        self.on_own(len, |device, len| device.tanh_backward(len, y, g))
    }

    fn norm_pool_train(
        &self,
        shape: NormPoolShape,
        x: &D::Array,
        scaling: Scaling<&D::Array>,
        state: &mut NormState<D::Array>,
        y: &mut D::Array,
    ) -> Engine<()> {
        if shape.batch * shape.height * shape.width < 2 {
            return Err(EngineError::Invalid(
                "batch norm cannot train on a single value per channel: its variance is undefined".into(),
            ));
        }
        let mut sums = vec![0.0; 2 * shape.channels];
        self.norm_sums(shape, 0, x, &mut sums)?;
        self.note_statistics(shape, &sums, state)?;
        self.norm_pool_given(shape, x, scaling, state, y)
    }

    fn norm_pool_eval(
        &self,
        shape: NormPoolShape,
        x: &D::Array,
        scaling: Scaling<&D::Array>,
        state: &NormState<D::Array>,
        y: &mut D::Array,
    ) -> Engine<()> {
        self.on_own(shape.batch, |device, batch| {
            device.norm_pool_eval(NormPoolShape { batch, ..shape }, x, scaling, state, y)
        })
    }

    fn norm_pool_backward(
        &self,
        shape: NormPoolShape,
        x: &D::Array,
        scale: &D::Array,
        state: &NormState<D::Array>,
        gy: &D::Array,
        gx: &mut D::Array,
        gradients: Scaling<&mut D::Array>,
    ) -> Engine<()> {
        let mut sums = vec![0.0; 2 * shape.channels];
        self.norm_gradient_sums(shape, 0, state, gy, &mut sums)?;
        self.norm_pool_pull(shape, shape.batch, x, scale, state, gy, &sums, gx, gradients)
    }

    fn norm_sums(&self, shape: NormPoolShape, first: usize, x: &D::Array, sums: &mut [f64]) -> Engine<()> {
        whole(first == 0)?;
        let each = self.each(shape.batch)?;
        let all = self.sum_slices(sums.len(), |device, samples, sums| {
            let slice = NormPoolShape { batch: each * samples.len(), ..shape };
            device.norm_sums(slice, each * samples.start, x, sums)
        })?;
        sums.copy_from_slice(&all);
        Ok(())
    }

    fn norm_pool_given(
        &self,
        shape: NormPoolShape,
        x: &D::Array,
        scaling: Scaling<&D::Array>,
        state: &mut NormState<D::Array>,
        y: &mut D::Array,
    ) -> Engine<()> {
        self.on_own(shape.batch, |device, batch| {
            device.norm_pool_given(NormPoolShape { batch, ..shape }, x, scaling, state, y)
        })
    }

    fn norm_gradient_sums(
        &self,
        shape: NormPoolShape,
        first: usize,
        state: &NormState<D::Array>,
        gy: &D::Array,
        sums: &mut [f64],
    ) -> Engine<()> {
        whole(first == 0)?;
        let each = self.each(shape.batch)?;
        let all = self.sum_slices(sums.len(), |device, samples, sums| {
            let slice = NormPoolShape { batch: each * samples.len(), ..shape };
            device.norm_gradient_sums(slice, each * samples.start, state, gy, sums)
        })?;
        sums.copy_from_slice(&all);
        Ok(())
    }

    fn norm_pool_pull(
        &self,
        shape: NormPoolShape,
        of: usize,
        x: &D::Array,
        scale: &D::Array,
        state: &NormState<D::Array>,
        gy: &D::Array,
        sums: &[f64],
        gx: &mut D::Array,
        gradients: Scaling<&mut D::Array>,
    ) -> Engine<()> {
        let own = self.own_shape(shape)?;
        if own.batch > 0 {
            return self
                .noting(self.device.norm_pool_pull(own, of, x, scale, state, gy, sums, gx, gradients));
        }
        let gradient = |which: usize| -> Vec<f32> {
            sums.iter().skip(which).step_by(2).map(|&sum| sum as f32).collect()
        };
        self.device.write(gradients.offset, 0, &gradient(0))?;
        self.device.write(gradients.scale, 0, &gradient(1))
    }

    fn cross_entropy_part(
        &self,
        samples: Range<usize>,
        of: usize,
        classes: usize,
        smoothing: f64,
        logits: &D::Array,
        labels: &D::Integers,
        gradient: &mut D::Array,
        tally: &mut Vec<D::Tally>,
    ) -> Engine<()> {
        whole(samples == (0..self.batch()))?;
        for (slice, tally) in self.cut.own_slices(self.batch()).zip(tally) {
            if !slice.is_empty() {
                let (device, inputs) = (&*self.device, (logits, labels));
                self.noting(
                    device.cross_entropy_part(
                        slice, of, classes, smoothing, inputs.0, inputs.1, gradient, tally,
                    ),
                )?;
            }
        }
        Ok(())
    }

    inner! {
        fn adam(&self, adam: &Adam, updates: &mut [Update<'_, D::Array>]) -> Engine<()>;
        fn axpy(&self, len: usize, a: f64, x: &D::Array, y: &mut D::Array) -> Engine<()>;
    }

    fn add_to_rows(&self, rows: usize, cols: usize, b: &D::Array, x: &mut D::Array) -> Engine<()> {
        self.on_own(rows, |device, rows| device.add_to_rows(rows, cols, b, x))
    }

    fn sum_rows(&self, rows: usize, cols: usize, x: &D::Array, sums: &mut D::Array) -> Engine<()> {
        let each = self.each(rows)?;
        self.device.fill(cols, 0.0, sums)?;
        let lens = [self.cut.largest_slice(self.batch()) * each * cols, 0, 0, 0];
        self.add_slices(&mut [(sums, cols)], |device, copies, _, samples, sums| {
            let [slice, ..] = copies.reserved(device, lens)?;
            take(device, each * cols, &samples, x, slice)?;
            device.sum_rows(samples.len() * each, cols, slice, &mut sums[0])
        })
    }
}

/// Refuses to cut what is a part already.
fn whole(is: bool) -> Engine<()> {
    match is {
        true => Ok(()),
        false => Err(EngineError::Invalid("a part of a batch cannot be cut into slices again".into())),
    }
}
