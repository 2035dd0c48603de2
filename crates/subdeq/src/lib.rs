//! Deep equilibrium layers whose fixed point is provably unique.
//!
//! An equilibrium layer returns the solution of `z = F(z; y)`. It is made of orthogonal values: a map, a solver, a
//! stopping rule, an adjoint.
//!
//! ```
//! use rand::SeedableRng;
//! use subdeq::map::SplitSign;
//! use subdeq::{Activation, Anderson, Equilibrium, Scope, Stopping};
//!
//! let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
//! let mut layer = Equilibrium::dense(87)
//!     .map(SplitSign::new(Activation::Softsign, 1.2)) // z = s(W+ z) - s(W- z) + y + 1.2: unique for every W
//!     .solver(Anderson::default())
//!     .stopping(Stopping::certified(1e-4))
//!     .build(&mut rng)?;
//! let y = vec![0.5; 4 * 87];
//! let solution = layer.solve(&y)?.require_converged()?;
//! assert!(solution.samples.iter().all(|s| s.error_bound.unwrap().value <= 1e-4));
//! assert!(layer.certify(Scope::NonnegativeInputs)?.verdict.is_proven());
//! # Ok::<(), subdeq::Error>(())
//! ```
//!
//! What a layer is made of, from the inside out:
//!
//! | type | what |
//! |---|---|
//! | [`Form`] | the expression that the weights enter: `s(W z)`, `s(W+ z) - s(W- z)`, .. |
//! | [`Map`] | the whole equation `z = F(z; y)`, without weights: a form with activation, shift, power, norm |
//! | [`map::ParametrisedMap`] | a map with the parametrisation that makes its weights of free parameters |
//! | [`Equilibrium`] | an architecture on a shape, with parameters and a solver: a layer |
//! | [`model::CoreSpec`] | what a classifier has between injection and batch norm: a layer, or a baseline |
//! | [`model::Classifier`] | a whole network around a core |
//!
//! **Images** are channels x height x width, one after the other, wherever images are given: to a [`model::Classifier`], in
//! [`train::Images`], in files, in Python. Only the states and injections of a convolutional [`Equilibrium`] itself lie as
//! its kernels read them, height x width x channels.
#![forbid(unsafe_code)]

mod builder;
mod custom;
mod equilibrium;
mod error;
mod error_bound;
pub mod graph;
mod init;
pub mod map;
mod memory;
pub mod model;
mod ode;
mod parallel;
pub mod sliced;
mod solution;
mod solver;
mod theory;
pub mod train;

pub use builder::EquilibriumBuilder;
pub use custom::{CustomGradients, CustomLayer, CustomMap};
pub use equilibrium::{Equilibrium, Parameter};
pub use error::{Error, Result};
pub use error_bound::{BoundMetric, ErrorBound};
pub use init::Init;
pub use ode::{NeuralOde, OdeActivation};
pub use solution::{SampleSolution, Solution};
pub use solver::{
    Adjoint, Anderson, Broyden, ForwardBackward, PeacemanRachford, Picard, Rule, Solver, Stopping,
};
pub use subdeq_engine::network::Adam;
pub use subdeq_engine::{Backend, Cpu, Cuda, Device, Operator, Outcome, Real, SampleReport};
pub use subdeq_map::{Activation, Form, Injection, Layout, Map, PNorm, Padding, Parametrisation};
// The program reaches the three through this crate, so that there is one way in.
pub use subdeq_ranks::Ranks;
pub use subdeq_theory::certificate::{Certificate, Scope, Verdict};
pub use {subdeq_engine, subdeq_map, subdeq_ranks, subdeq_theory};
