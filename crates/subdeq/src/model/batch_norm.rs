//! Batch norm with what it learns and remembers.

use subdeq_engine::network::{NormPoolShape, NormState, Scaling};
use subdeq_engine::{Backend, Real};

use super::trained::Trained;
use crate::Result;

/// A batch norm; one number per channel in each of its arrays.
pub(super) struct BatchNorm<A> {
    name: String,
    state: NormState<A>,
    scale: Trained<A>,
    offset: Trained<A>,
}

impl<A: Send + Sync> BatchNorm<A> {
    pub fn new<D: Backend<Array = A>>(device: &D, name: &str, channels: usize) -> Result<Self> {
        let (zeros, ones) = (vec![D::Elem::ZERO; channels], vec![D::Elem::ONE; channels]);
        Ok(Self {
            name: name.to_owned(),
            state: NormState {
                running_mean: device.zeros(channels)?,
                running_variance: device.upload(&ones)?,
                batch_mean: device.zeros(channels)?,
                batch_inverse_deviation: device.zeros(channels)?,
                normalised: device.zeros(0)?,
            },
            scale: Trained::new(device, &format!("{name}.scale"), &ones)?,
            offset: Trained::new(device, &format!("{name}.offset"), &zeros)?,
        })
    }

    /// Makes room for batches that are pooled to so many numbers.
    pub fn reserve<D: Backend<Array = A>>(&mut self, device: &D, pooled: usize) -> Result<()> {
        self.state.normalised = device.zeros(pooled)?;
        Ok(())
    }

    /// With the statistics of this batch, towards which the running ones move, or with the running ones.
    pub fn forward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        shape: NormPoolShape,
        statistics: Statistics,
        x: &A,
        y: &mut A,
    ) -> Result<()> {
        let Self { state, scale, offset, .. } = self;
        let scaling = Scaling { scale: &scale.parameter.value, offset: &offset.parameter.value };
        match statistics {
            Statistics::OfBatch => device.norm_pool_train(shape, x, scaling, state, y)?,
            Statistics::Running => device.norm_pool_eval(shape, x, scaling, state, y)?,
        }
        Ok(())
    }

    /// From `gy` to `gx` and to the gradients of scale and offset, for the batch that went through last.
    pub fn backward<D: Backend<Array = A>>(
        &mut self,
        device: &D,
        shape: NormPoolShape,
        x: &A,
        gy: &A,
        gx: &mut A,
    ) -> Result<()> {
        let (scale, offset) = (&mut self.scale.parameter, &mut self.offset.parameter);
        let gradients = Scaling { scale: &mut scale.gradient, offset: &mut offset.gradient };
        Ok(device.norm_pool_backward(shape, x, &scale.value, &self.state, gy, gx, gradients)?)
    }

    /// Numbers in each of its arrays.
    pub fn channels(&self) -> usize {
        self.scale.parameter.len
    }

    pub fn trained(&self) -> [&Trained<A>; 2] {
        [&self.scale, &self.offset]
    }

    /// The running statistics by name.
    pub fn statistics(&self) -> [(String, &A); 2] {
        let (name, state) = (&self.name, &self.state);
        [
            (format!("{name}.running_mean"), &state.running_mean),
            (format!("{name}.running_variance"), &state.running_variance),
        ]
    }

    /// What is learned and the running statistics, to change.
    pub fn parts_mut(&mut self) -> ([&mut Trained<A>; 2], [(String, &mut A); 2]) {
        let Self { name, state, scale, offset } = self;
        let statistics = [
            (format!("{name}.running_mean"), &mut state.running_mean),
            (format!("{name}.running_variance"), &mut state.running_variance),
        ];
        ([scale, offset], statistics)
    }
}

/// What a batch norm normalises by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statistics {
    /// Mean and variance of the batch: in training.
    OfBatch,
    /// Those that training remembers.
    Running,
}
