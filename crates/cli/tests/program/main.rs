//! The program as people call it. One test binary: each more would link the program's libraries again.

mod attack;
mod certify;
mod configs;
mod degree;
mod graph;
mod graph_ranks;
mod killed;
mod lying;
mod model_file;
mod networks;
mod own_data;
mod ranks;
mod report;
mod reproduce;
mod solve;
mod stopped;
mod train;
mod words;

#[path = "../../../../tests/skipped.rs"]
mod skipped;
