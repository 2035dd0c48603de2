//! The weights of a network with a bounded gain, held after every update.

use subdeq_engine::Backend;

use super::Classifier;
use super::affine::Affine;
use super::isometry::Isometry;
use super::lipschitz::Lipschitz;
use crate::Result;

/// What holds the weights of a network.
pub(super) struct Held<A> {
    injection: Isometry<A>,
    head: Isometry<A>,
}

impl<A: Send + Sync> Held<A> {
    /// For an injection and a head behind average pooling over windows of this side.
    pub fn new<D: Backend<Array = A>>(
        device: &D,
        bound: Lipschitz,
        (injection, window, head): (&Affine<A>, usize, &Affine<A>),
    ) -> Result<Self> {
        Ok(Self {
            injection: Isometry::new(device, injection.shape(), Lipschitz::INJECTION)?,
            head: Isometry::new(device, head.shape(), bound.head(window))?,
        })
    }
}

impl<D: Backend> Classifier<D> {
    /// Brings the weights back to where the product of all gains is what was asked for; nothing for other classifiers.
    pub(super) fn hold(&mut self) -> Result<()> {
        let Self { device, held, injections, head, .. } = self;
        let (Some(held), [injection]) = (held, &mut injections[..]) else { return Ok(()) };
        held.injection.hold(&**device, injection.weight_mut())?;
        held.head.hold(&**device, head.weight_mut())
    }
}
