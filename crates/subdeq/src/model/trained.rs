//! A parameter and what Adam remembers of it.

use subdeq_engine::Network;
use subdeq_engine::network::Adam;

use crate::{Parameter, Result};

/// A parameter with its moments.
pub(super) struct Trained<A> {
    pub parameter: Parameter<A>,
    pub moments: Moments<A>,
}

/// Means of gradients and of their squares.
pub(super) struct Moments<A> {
    pub mean: A,
    pub square: A,
}

impl<A> Moments<A> {
    pub fn new<D: Network<Array = A>>(device: &D, len: usize) -> Result<Self> {
        Ok(Self { mean: device.zeros(len)?, square: device.zeros(len)? })
    }

    pub fn step<D: Network<Array = A>>(
        &mut self,
        device: &D,
        adam: &Adam,
        parameter: &mut Parameter<A>,
    ) -> Result<()> {
        device.adam(adam, &mut parameter.value, &parameter.gradient, &mut self.mean, &mut self.square)?;
        Ok(())
    }
}

impl<A> Trained<A> {
    pub fn new<D: Network<Array = A>>(device: &D, name: &str, value: &[D::Elem]) -> Result<Self> {
        let len = value.len();
        let parameter =
            Parameter { name: name.into(), len, value: device.upload(value)?, gradient: device.zeros(len)? };
        Ok(Self { parameter, moments: Moments::new(device, len)? })
    }

    pub fn zero_gradient<D: Network<Array = A>>(&mut self, device: &D) -> Result<()> {
        Ok(device.fill(self.parameter.len, 0.0, &mut self.parameter.gradient)?)
    }

    pub fn step<D: Network<Array = A>>(&mut self, device: &D, adam: &Adam) -> Result<()> {
        self.moments.step(device, adam, &mut self.parameter)
    }
}
