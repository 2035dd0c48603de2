//! Arrays and fused equilibrium operations: all the unsafe code of the workspace, nothing else.
//!
//! The engine knows maps as data ([`ShapedMap`]), solves whole batches of equilibria in one call
//! ([`Equilibria::solve`]) and differentiates them in one more ([`Equilibria::adjoint`]). It is not a tensor
//! framework: no views, no broadcasting, no graph. What is proved about a map is not its business
//! (that is `subdeq-theory`); what it promises is that a sample's answer depends on that sample alone:
//! the same bits in any batch, at any position, with any number of threads.
//!
//! # Devices
//!
//! Hardware is a few small traits that build on memory ([`Device`]): [`Equilibria`] solves and differentiates fixed points,
//! [`Parametrise`] makes weights of free parameters, [`Spectra`] knows what splittings need, [`Layers`] is what surrounds an
//! equilibrium, [`Integrate`] is for neural ODEs, [`DataSets`] holds images and puts batches together, [`Graphs`] propagates over
//! a graph, [`CustomMaps`] runs a user's own map; [`Backend`] is all that an image classifier needs. Nothing in a training step
//! needs the host: losses, hits and iterations are counted on the device, and [`Device::finish`] brings one [`Summary`] over.
//! Every call may fail and says so. [`Cpu`] and [`Cuda`] are such devices; [`Checking`] watches another one, counts what travels and fails
//! when it is told to.

// `!(x > 0.0)` is how a NaN is refused together with what is too small.
#![allow(clippy::neg_cmp_op_on_partial_ord)]

mod checking;
mod counter;
mod crop;
mod device;
mod dropout;
mod error;
mod graph;
mod graph_operator;
mod map;
pub mod network;
mod real;
mod report;
mod solver;

pub mod cpu;
pub mod cuda;

pub use checking::{Checking, Traffic};
pub use cpu::Cpu;
pub use crop::Crop;
pub use cuda::Cuda;
pub use device::{
    Backend, CustomMap, CustomMaps, DataSets, Device, EncoderShape, Equilibria, GraphDropout, GraphSpec,
    Graphs, Images, Integrate, LabelledNodes, Layers, MIRRORED, NodeArray, OdeOutcome, OdeReport,
    OdeTolerance, Opinion, Order, Parametrise, Pass, Picks, Propagate, Room, Spectra, Summary, View,
    free_parameters,
};
pub use dropout::Dropout;
pub use error::{EngineError, Result};
pub use graph::{GraphMap, GraphNorm};
pub use graph_operator::GraphOperator;
pub use map::{Operator, ShapedMap};
pub use real::Real;
pub use report::{Outcome, SampleReport};
pub use solver::{Extent, Measure, PEACEMAN_RACHFORD_PART, Solver, Start, Stopping};
// The vocabulary of equations, for convenience.
pub use subdeq_map::{Activation, Form, Injection, PNorm, Padding};
