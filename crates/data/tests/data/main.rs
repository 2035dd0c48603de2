//! The data from outside. One program: the library is linked once, not once per subject.

#[allow(dead_code)] // the fuzzer proper uses more of these three
#[path = "../../fuzz/datasets.rs"]
mod datasets;
#[allow(dead_code)]
#[path = "../../fuzz/limited.rs"]
mod limited;
#[allow(dead_code)]
#[path = "../../fuzz/mutate.rs"]
mod mutate;

#[path = "../../../../tests/skipped.rs"]
mod skipped;

mod fetch;
mod fuzz_datasets;
mod fuzz_smoke;
mod large_graph;
mod lying_files;
mod own_graphs;
mod real;
mod real_graphs;
mod real_images;
