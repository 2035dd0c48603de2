//! Training a classifier: epochs, schedule, selection by validation error, runs that survive being killed.
//!
//! A run is a folder that can be read without this software and continued with it:
//!
//! | file | what |
//! |---|---|
//! | `config.toml` | everything that decides the result; complete, so that the run can be repeated |
//! | `metrics.jsonl` | one line per epoch |
//! | `checkpoint.safetensors` | parameters, optimiser, position: where `resume` continues, bit for bit |
//! | `model.safetensors` | the parameters with the lowest validation error (the last ones, if nothing is held out), with config and certificate in the metadata |
//! | `evaluation.json` | what that model does on the test images |
//!
//! One process trains in a folder at a time ([`RunFolder::claim`]); what is read from files is compared with what their
//! configuration implies ([`check_arrays`]) before anything is made of it.

mod atomic_file;
mod checkpoint;
mod config;
mod evaluation;
mod evaluator;
mod recipe;
mod regular_file;
mod run;
mod run_folder;
mod schedule;
mod sizes;
mod trainer;

pub use atomic_file::replace as replace_file;
pub use checkpoint::{Checkpoint, TensorFile};
pub use config::{DataConfig, TrainConfig};
pub use evaluation::{Evaluation, Example, VerdictSummary};
pub use evaluator::{EvaluationOptions, certified_radii, certify_samples, evaluate_in_full};
pub use recipe::Recipe;
pub use regular_file::{check_regular_file, read_regular_file};
pub(crate) use run::understood;
pub use run::{EVALUATION, ModelNote, Parts, RunOptions, load_model, train_run};
pub use run_folder::{Claim, RunFolder};
pub use schedule::Cosine;
pub(crate) use sizes::check_steps;
pub use sizes::{ArraySizes, check_arrays, check_model, fits_memory, model_arrays, state_arrays};
pub use subdeq_engine::{Images, Order};
pub use trainer::{EpochMetrics, Progress, Running, Selected, Trainer, Watch, evaluate, restore};
