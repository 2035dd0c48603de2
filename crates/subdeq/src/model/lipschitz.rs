//! Networks whose gain is bounded by construction.
//!
//! A monotone layer `z = s(W z + y)` with `sym(W) <= (1 - m) I` moves its solution with its injection: `<dz, dy> >= m ||dz||^2` (the
//! proof of THEORY.md's gain, one step earlier). So `||2 m dz - dy||^2 = ||dy||^2 + 4 m (m ||dz||^2 - <dz, dy>) <= ||dy||^2`: the
//! *reflected* solution `2 m z - y` follows the injection with gain 1, as `z` itself does with gain `1/m`. But `z` forgets (where no unit is
//! active it does not move at all), and the reflection need not: with `m = 1` and `W = 0` it is `|y|`, with a skew `W` and all units active
//! an orthogonal matrix. Nothing of the input's distances has to be lost, and distances are what certified radii are made of.
//!
//! Such a network is `head(pool(2 m z - y))`, `y = U x + b`, or several such blocks before the head, without batch norm. `U` is kept an isometry after every update (a
//! convolution: its norm is kept at 1), the rows of the head orthogonal and of one length, so that the product of all gains is what was
//! asked for.

use serde::{Deserialize, Serialize};
use subdeq_map::{Activation, Injection, Map};

use super::{BlockShape, ClassifierSpec, CoreSpec};
use crate::{Error, Layout, Parametrisation, Result};

/// By how much less than what is asked for the weights are kept at, for rounding.
const SLACK: f64 = 1e-5;

/// A bound of the gain of a whole network.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lipschitz {
    /// Logits move by at most so much (2-norm) per unit that the image moves (2-norm of its pixels from 0 to 1).
    pub gain: f64,
    /// The numbers that the model reads move by at most so much per unit of a pixel: 1 over the least deviation that pixels are
    /// divided by.
    pub per_pixel: f64,
}

impl Lipschitz {
    /// What an injection's norm is kept at, behind average pooling over windows of this side, whose norm is one over it.
    pub(super) fn injection(window: usize) -> f64 {
        window as f64 * (1.0 - SLACK)
    }

    /// What the head's norm is kept at, behind the same.
    pub(super) fn head(&self, window: usize) -> f64 {
        self.gain / self.per_pixel * window as f64 * (1.0 - SLACK)
    }

    /// Refuses bounds that are none and models that do not have it.
    pub(crate) fn check(&self, spec: &ClassifierSpec) -> Result<()> {
        for (what, x) in [("bound of the gain", self.gain), ("gain from pixels to numbers", self.per_pixel)] {
            if !(x > 0.0 && x.is_finite()) {
                return Err(Error::invalid(format!(
                    "the {what} of a network must be a number above 0, not {x}"
                )));
            }
        }
        for (shape, block) in spec.blocks() {
            if block.injection_norm {
                return Err(Error::invalid(
                    "a network with a bounded gain has no batch norm, whose scale has none: leave the norm on the injection out",
                ));
            }
            reflected_margin(shape, &block.core)?;
        }
        Ok(())
    }
}

/// The margin `m` of a core that can be reflected.
pub(super) fn reflected_margin(shape: BlockShape, core: &CoreSpec) -> Result<f64> {
    let layout = if shape.pool.is_some() { Layout::Conv } else { Layout::Dense };
    let margin = match core {
        CoreSpec::Equilibrium { architecture, .. }
            if takes_linear_injection(&architecture.equation(layout)) =>
        {
            match architecture.parametrisation() {
                Parametrisation::MonotoneTied { margin } | Parametrisation::MonotoneProduct { margin } => {
                    Some(margin)
                }
                // A shifted one has its margin only as far as an eigenvalue is found: its gain would be a little above 1.
                _ => None,
            }
        }
        _ => None,
    };
    margin.ok_or_else(|| {
        Error::invalid(format!(
            "the gain of `{}` is not bounded by construction: take monotone-tied, monotone-product or mondeq-relu",
            core.name()
        ))
    })
}

/// The monotone maps with an unbounded inner activation take `U x + b` as it is; all others need `y >= 0`.
pub(super) fn takes_linear_injection(map: &Map) -> bool {
    map.is_monotone()
        && map.injection() == Injection::Inner
        && matches!(
            map.activation(),
            Activation::Relu | Activation::LeakyRelu { .. } | Activation::Softplus { .. }
        )
}
