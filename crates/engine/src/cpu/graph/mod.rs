//! Propagation over graphs: fused passes over sparse matrices.
//!
//! [`Adjacency`] is a checked matrix, [`Propagation`] iterates a [`crate::GraphMap`] over it (equilibrium or unrolled,
//! with gradients), [`Encoder`] is the two-layer network that makes injections out of sparse features, and [`Dropout`]
//! decides entry by entry what a training step leaves out.
//!
//! All sums follow a division of the rows that depends on the matrix only: results have the same bits for any number of
//! threads, and for any number of processes that share a graph ([`Adjacency::part`], [`Company`]).

mod adjacency;
mod chunks;
mod company;
mod conjugate_gradient;
mod device;
mod encoder;
#[cfg(test)]
mod hyperedge_tests;
mod node_matrix;
mod opinion;
mod part;
#[cfg(test)]
mod part_tests;
mod passes;
mod power_mean;
#[cfg(test)]
mod power_mean_tests;
mod product;
mod propagate;
mod propagation;
mod pull;
mod residual;
mod slices;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod threads_company;

pub use crate::dropout::Dropout;
pub use adjacency::{Adjacency, Edges, ThinnedEdges};
pub use company::{Company, Division};
pub use device::{CpuGraph, CpuGraphPlan};
pub use encoder::{Encoder, EncoderDropout, EncoderPass, Features, OutputActivation};
pub use node_matrix::NodeMatrix;
pub use propagation::Propagation;
