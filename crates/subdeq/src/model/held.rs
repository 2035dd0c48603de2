//! The weights of a network with a bounded gain, held after every update.

use subdeq_engine::Backend;

use super::affine::Affine;
use super::block::Block;
use super::isometry::Isometry;
use super::{Classifier, Lipschitz};
use crate::Result;

/// What holds the weights of a network.
pub(super) struct Held<A> {
    /// Of the injections, block after block.
    injections: Vec<Isometry<A>>,
    head: Isometry<A>,
}

impl<A: Send + Sync> Held<A> {
    pub fn new<D: Backend<Array = A>>(
        device: &D,
        bound: Lipschitz,
        blocks: &[Block<D>],
        head: &Affine<A>,
    ) -> Result<Self> {
        // Pooling makes everything smaller by the side of its window, and what follows it is larger by as much.
        let mut window = 1;
        let mut injections = Vec::new();
        for block in blocks {
            let Some(injection) = block.injections.first() else { continue };
            injections.push(Isometry::new(device, injection.affine().shape(), Lipschitz::injection(window))?);
            window = block.shape.pool.unwrap_or(1);
        }
        Ok(Self { injections, head: Isometry::new(device, head.shape(), bound.head(window))? })
    }
}

impl<D: Backend> Classifier<D> {
    /// Brings the weights back to where the product of all gains is what was asked for; nothing for other classifiers.
    pub(super) fn hold(&mut self) -> Result<()> {
        let Self { device, held, blocks, head, .. } = self;
        let Some(held) = held else { return Ok(()) };
        let injections = blocks.iter_mut().filter_map(|block| block.injections.first_mut());
        for (held, injection) in held.injections.iter_mut().zip(injections) {
            held.hold(&**device, injection.weight_mut())?;
        }
        held.head.hold(&**device, head.weight_mut())
    }
}
