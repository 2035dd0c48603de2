//! Graphs for the program: from a data set's name to what the library trains on.

mod problem;

pub use problem::Graph;
