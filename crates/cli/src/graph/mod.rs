//! Graphs for the program: from a data set's name to what the library trains on, and runs of it.

mod drawing;
mod layout;
mod problem;
mod run;

pub use drawing::{DRAWING, Drawing};
pub use problem::Graph;
pub use run::{GraphData, GraphRunConfig, Kind, default_split, evaluate, is_graph, trained, verdict};
