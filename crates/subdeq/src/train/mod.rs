//! Training a classifier: epochs, schedule, selection by validation error, runs that survive being killed.
//!
//! A run is a folder that can be read without this software and continued with it:
//!
//! | file | what |
//! |---|---|
//! | `config.toml` | everything that decides the result; complete, so that the run can be repeated |
//! | `metrics.jsonl` | one line per epoch |
//! | `checkpoint.safetensors` | parameters, optimiser, position: where `resume` continues, bit for bit |
//! | `model.safetensors` | the model with the lowest validation error (the last one, if nothing is held out): docs/model-file.md says how to read it without this software |
//! | `evaluation.json` | what that model does on the test images |
//!
//! One process trains in a folder at a time ([`RunFolder::claim`]); what is read from files is compared with what their
//! configuration implies ([`check_arrays`]) before anything is made of it.

mod array_shapes;
mod atomic_file;
mod checkpoint;
mod config;
mod evaluation;
mod evaluator;
mod model_description;
mod model_file;
mod recipe;
mod regular_file;
mod robustness;
mod run;
mod run_folder;
mod schedule;
mod sizes;
mod stored_arrays;
mod together;
mod trainer;

pub use array_shapes::{ArrayShapes, array_shapes};
pub use atomic_file::replace as replace_file;
pub use checkpoint::{Checkpoint, TensorFile};
pub use config::{DataConfig, TrainConfig};
pub use evaluation::{Evaluation, Example, VerdictSummary};
pub use evaluator::{EvaluationOptions, certified_radii, certify_samples, evaluate_in_full};
pub(crate) use model_file::understood;
pub use model_file::{ModelNote, effective_weights, is_model_file, load_model, save_model};
pub use recipe::Recipe;
pub use regular_file::{check_regular_file, read_regular_file};
pub use robustness::{Attacked, Robustness};
pub use run::{EVALUATION, Parts, RunOptions, follow_run, lead_run, train_run};
pub use run_folder::{Claim, RunFolder};
pub use schedule::Cosine;
pub(crate) use sizes::check_steps;
pub use sizes::{
    ArraySizes, check_arrays, check_model, fits_memory, model_arrays, parameter_count, state_arrays,
};
pub use subdeq_engine::{Images, Order};
pub(crate) use together::told_checkpoint;
pub use trainer::{EpochMetrics, Progress, Running, Selected, Trainer, Watch, evaluate, restore};
