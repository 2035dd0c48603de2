//! Node classification by propagation over a graph: APPNP and its subhomogeneous variants.
//!
//! A small network makes an injection `f` out of each node's features, a propagation `Z = F(Z; f)` over the graph mixes
//! them ([`GraphModel`]), and the largest channel of a node's row is its class. The propagation is either solved to its
//! equilibrium, with the implicit gradient and a certificate ([`GraphModel::certify`]), or unrolled for a few steps as
//! the published code does ([`GraphMode`]). [`train_graph`] trains the whole, reproducibly to the bit for any number of
//! threads.
//!
//! ```
//! use subdeq::graph::{GraphConfig, GraphModel, GraphProblem, GraphSplit, normalised_adjacency, train_graph};
//! use subdeq::graph::Csr;
//!
//! // Two triangles joined by an edge; each node's feature is its own number.
//! let edges = [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (2, 3)];
//! let adjacency = normalised_adjacency(6, &edges)?;
//! let features = Csr { rows: 6, cols: 6, starts: (0..7).collect(), columns: (0..6).collect(), values: vec![1.0; 6] };
//! let problem = GraphProblem::new(adjacency, features, vec![0, 0, 0, 1, 1, 1], 2)?;
//! let split = GraphSplit { train: vec![0, 5], validation: vec![1, 4], test: vec![2, 3] };
//! let mut config = GraphConfig::new(GraphModel::paper("appnp-tanh", 0.1)?);
//! config.epochs = 50;
//! let run = train_graph(&problem, &split, &config, |_| ())?;
//! assert_eq!(run.test_accuracy, 1.0);
//! assert!(run.certificate.verdict.is_proven());
//! # Ok::<(), subdeq::Error>(())
//! ```

mod adjacency;
mod certificate;
mod classifier;
mod company;
mod config;
mod convergence;
mod encoder;
mod evaluate_shared;
mod evaluation;
mod incidence;
mod model;
mod order;
mod power_means;
mod problem;
mod run;
mod shards;
#[cfg(test)]
mod shards_tests;
mod share;
mod shared_propagation;
#[cfg(test)]
mod tests;
mod train;
mod trainer;

pub use adjacency::normalised_adjacency;
pub use certificate::{GraphCertificate, GraphFacts, InjectionBound};
pub use classifier::{GraphClassifier, Prediction};
pub use config::{GraphConfig, Selection, Teaching};
pub use convergence::Convergence;
pub use encoder::EncoderWeights;
pub use incidence::normalised_incidence;
pub use model::{GraphMode, GraphModel, GraphSolver, Joined};
pub use problem::{GraphProblem, GraphSplit};
pub use run::{GraphNote, load_graph_model, train_graph_run, train_shared_graph_run};
pub use shards::{MANIFEST, Shard, ShardManifest, ShardedGraph};
pub use shared_propagation::{SharedPropagation, Traffic};
pub use subdeq_engine::cpu::graph::{Division, NodeMatrix, OutputActivation};
pub use subdeq_engine::network::Csr;
pub use subdeq_engine::{EncoderShape, GraphMap, GraphNorm, GraphOperator};
pub use train::{GraphEpoch, GraphRun, train_graph};
pub use trainer::{BestEpoch, GraphCheckpoint, GraphTrainer};
