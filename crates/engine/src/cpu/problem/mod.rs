//! The fixed-point problems that the solvers are run on.

mod adjoint;
mod custom;
mod forward;
mod splitting;

pub(crate) use adjoint::{Adjoint, AdjointScratch};
pub(crate) use custom::{CustomAdjoint, CustomForward};
pub(crate) use forward::{Forward, ForwardScratch};
pub(crate) use splitting::{Resolvent, Scheme, Splitting, Target};
