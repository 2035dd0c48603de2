//! A parameter and what Adam remembers of it.

use subdeq_engine::Backend;
use subdeq_engine::network::Update;

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
    pub fn new<D: Backend<Array = A>>(device: &D, len: usize) -> Result<Self> {
        Ok(Self { mean: device.zeros(len)?, square: device.zeros(len)? })
    }

    /// The update of a parameter that these are the moments of.
    pub fn update<'a>(&'a mut self, parameter: &'a mut Parameter<A>) -> Update<'a, A> {
        Update {
            parameter: &mut parameter.value,
            gradient: &parameter.gradient,
            mean: &mut self.mean,
            square: &mut self.square,
        }
    }
}

impl<A> Trained<A> {
    pub fn new<D: Backend<Array = A>>(device: &D, name: &str, value: &[D::Elem]) -> Result<Self> {
        let len = value.len();
        let parameter =
            Parameter { name: name.into(), len, value: device.upload(value)?, gradient: device.zeros(len)? };
        Ok(Self { parameter, moments: Moments::new(device, len)? })
    }

    pub fn update(&mut self) -> Update<'_, A> {
        self.moments.update(&mut self.parameter)
    }
}
