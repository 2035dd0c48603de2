//! The rows of the image tables: the paper's models and the sound ones.

use subdeq::map::{Monotone, ParametrisedMap, SplitSign};
use subdeq::model::{BlockSpec, ClassifierSpec, CoreSpec};
use subdeq::train::{Recipe, TrainConfig};
use subdeq::{Activation, Adjoint, Anderson, Layout, Stopping};

use super::Table;
use crate::failure::Failure;
use crate::paper::Column;

/// A sound model: unique for every weight and input.
pub struct Sound {
    /// Its name.
    pub name: &'static str,
    /// Its equation.
    pub equation: &'static str,
}

/// The sound models, from the simplest to the monotone ones.
pub const SOUND: [Sound; 17] = [
    Sound { name: "excitatory", equation: "tanh(\\|W\\| z) + f(x) + 1.2" },
    Sound { name: "row-signed", equation: "softsign(±\\|W\\| z) + f(x) + 1.2, a sign per row" },
    Sound { name: "split-sign", equation: "softsign(W⁺z) − softsign(W⁻z) + f(x) + 1.2" },
    Sound { name: "split-sign-tanh", equation: "tanh(W⁺z) − tanh(W⁻z) + f(x) + 1.603" },
    Sound { name: "divisive", equation: "tanh(Pz / (1 + Nz)) + f(x) + 0.4" },
    Sound { name: "rational", equation: "Pz / (1 + Pz + Nz) + f(x) + 0.14" },
    Sound { name: "power-ratio", equation: "((Pz + f₁(x) + ε) / (Nz + f₂(x) + ε))^0.49" },
    Sound { name: "gains", equation: "A softsign(Pz) − B softsign(Nz) + f(x) + a(B)" },
    Sound { name: "monotone", equation: "ReLU(Wz + Ux + b), W = V − shift, m = 0.02" },
    Sound {
        name: "monotone-product", equation: "ReLU(Wz + Ux + b), W = (1−m)I − A'A + B − B', m = 0.02"
    },
    Sound {
        name: "monotone-tied", equation: "ReLU(Wz + Ux + b), W = (1−m)I − A'A + β(A − A'), m = 1"
    },
    Sound { name: "monotone-tied-m0.1", equation: "as monotone-tied, m = 0.1" },
    Sound { name: "monotone-tanh", equation: "tanh(Wz + f(x)), W = V − shift, m = 0.02" },
    Sound { name: "monotone-m0.1", equation: "as monotone, m = 0.1" },
    Sound { name: "monotone-m0.5", equation: "as monotone, m = 0.5" },
    Sound { name: "monotone-m1", equation: "as monotone, m = 1" },
    Sound { name: "monotone-leaky", equation: "as monotone, leaky ReLU (0.01)" },
];

/// The paper's models with the solver of its published program, which stops a batch as a whole and after 30 iterations at the
/// latest, converged or not. Beside them the usual rows: each sample by itself, up to 100 iterations.
const RELEASED: [(&str, &str); 2] =
    [("subdeq-normalized-tanh-30", "subdeq-normalized-tanh"), ("subdeq-tanh-30", "subdeq-tanh")];

/// Models that are trained by [`with_recipe`] too, sound ones and others: what a layer gives and what the recipe gives are told
/// apart. What follows the `+` says what is otherwise than in the recipe.
const BY_RECIPE: [&str; 6] = [
    "monotone-tied+",
    "monotone+",
    "monotone-product+",
    "mondeq-relu+",
    "subdeq-tanh+",
    "subdeq-normalized-tanh+",
];

/// What each part of the recipe gives: one row without it (or, of a norm that a dense model does not have, with it); and what a second
/// equilibrium behind the first one gives.
fn ablations(column: Column) -> &'static [&'static str] {
    if column.convolutional() {
        &[
            "monotone-tied+no-norm",
            "monotone-tied+no-dropout",
            "monotone-tied+no-crops",
            "monotone-tied+two-blocks",
        ]
    } else {
        &["monotone-tied+norm", "monotone-tied+no-dropout", "monotone-tied+two-blocks"]
    }
}

/// The config of a row with a `+` in its name: what is good against overfitting, the same for every model of a column.
pub fn with_recipe(row: &str, column: Column, config: &mut TrainConfig) {
    let Some((_, otherwise)) = row.split_once('+') else { return };
    config.rate.start = 2e-3;
    let gentle = Recipe { warm_up: 1, ..Recipe::default() };
    config.recipe = match column {
        Column::MnistDense => Recipe { dropout_input: 0.2, ..gentle },
        Column::MnistConv => Recipe { dropout_head: 0.15, crop: 2, ..gentle },
        Column::Cifar10 | Column::Svhn | Column::TinyImagenet => {
            Recipe { dropout_head: 0.15, crop: 4, ..gentle }
        }
    };
    config.model.injection_norm = column.convolutional();
    config.data.flips |= column == Column::Cifar10;
    match otherwise {
        "norm" => config.model.injection_norm = true,
        "no-norm" => config.model.injection_norm = false,
        "no-dropout" => {
            config.recipe = Recipe { dropout_input: 0.0, dropout_head: 0.0, ..config.recipe };
        }
        "no-crops" => {
            config.recipe.crop = 0;
            config.data.flips = false;
        }
        "two-blocks" => add_block(&mut config.model),
        _ => {}
    }
}

/// Another block like the first one behind it; what was pooled behind the first is pooled behind the second.
fn add_block(model: &mut ClassifierSpec) {
    model.deeper.push(BlockSpec {
        hidden: model.hidden,
        stride: 1,
        pool: model.pool,
        injection_norm: model.injection_norm,
        core: model.core.clone(),
    });
    model.pool = model.pool.map(|_| 1);
}

/// The core of a row.
pub fn core(name: &str, layout: Layout) -> Result<CoreSpec, Failure> {
    use Activation::{LeakyRelu, Relu, Tanh};
    if let Some((base, _)) = name.split_once('+') {
        return Ok(match core(base, layout)? {
            CoreSpec::Equilibrium { architecture, solver, stopping, adjoint } => {
                CoreSpec::Equilibrium { architecture: architecture.renamed(name), solver, stopping, adjoint }
            }
            other => other,
        });
    }
    if let Some((_, model)) = RELEASED.iter().find(|row| row.0 == name) {
        let stopping = Stopping::release();
        let architecture = ParametrisedMap::named(model, layout).map_err(Failure::usage)?.renamed(name);
        let solver = Anderson::default().into();
        let adjoint = Some(Adjoint::Implicit { solver, stopping });
        return Ok(CoreSpec::Equilibrium { architecture, solver: Some(solver), stopping, adjoint });
    }
    let (base, architecture): (&str, subdeq::Result<ParametrisedMap>) = match name {
        "split-sign-tanh" => ("split-sign", SplitSign::new(Tanh, 1.603).try_into()),
        "monotone-m0.1" => ("monotone", Monotone::new(Relu).shifted(0.1).try_into()),
        "monotone-m0.5" => ("monotone", Monotone::new(Relu).shifted(0.5).try_into()),
        "monotone-m1" => ("monotone", Monotone::new(Relu).shifted(1.0).try_into()),
        "monotone-tied-m0.1" => ("monotone-tied", Monotone::new(Relu).tied(0.1).try_into()),
        "monotone-leaky" => ("monotone", Monotone::new(LeakyRelu { slope: 0.01 }).try_into()),
        _ => return CoreSpec::named(name, layout).map_err(Failure::usage),
    };
    let named = architecture.map_err(Failure::usage)?.renamed(name);
    match CoreSpec::named(base, layout).map_err(Failure::usage)? {
        CoreSpec::Equilibrium { solver, stopping, adjoint, .. } => {
            Ok(CoreSpec::Equilibrium { architecture: named, solver, stopping, adjoint })
        }
        other => Ok(other),
    }
}

/// Names of a table's rows in a column.
pub fn names(table: Table, column: Column) -> Vec<&'static str> {
    let printed = |rows: &'static [crate::paper::Published]| rows.iter().map(|row| row.model);
    match table {
        Table::Three => {
            let released = RELEASED.iter().map(|row| row.0).filter(|_| column.convolutional());
            printed(column.table3())
                .chain(released)
                .chain(SOUND.iter().map(|row| row.name))
                .chain(BY_RECIPE)
                .chain(ablations(column).iter().copied())
                .collect()
        }
        Table::Five => printed(column.table3())
            .filter(|model| model.starts_with("subdeq"))
            .chain(printed(column.appendix()))
            .collect(),
    }
}

/// Names of all rows of some tables in a column, each once.
pub fn of_tables(tables: &[Table], column: Column) -> Vec<&'static str> {
    let mut all = Vec::new();
    for name in tables.iter().flat_map(|&table| names(table, column)) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// What the reader of a row must know about the paper and its published program.
pub fn remark(name: &str) -> &'static str {
    match name {
        _ if name.ends_with("+norm") => "as monotone-tied+, and batch norm on the injection",
        _ if name.ends_with("+no-norm") => "as monotone-tied+, without batch norm on the injection",
        _ if name.ends_with("+no-dropout") => "as monotone-tied+, without dropout",
        _ if name.ends_with("+two-blocks") => {
            "as monotone-tied+, and a second block of the same size behind the first"
        }
        _ if name.ends_with("+no-crops") => "as monotone-tied+, without crops and flips",
        _ if name.ends_with('+') => {
            "learning rate 2e-3 after one epoch of warm-up; dense: dropout 0.2 on pixels; images: batch norm on the injection, dropout 0.15 before \
             the head, crops, flips on CIFAR-10"
        }
        "subdeq-tanh" | "subdeq-normalized-tanh" => "signed W: the paper's theorem does not cover it",
        "subdeq-normalized-tanh-30" | "subdeq-tanh-30" => {
            "as released: at most 30 iterations, the batch stops as a whole"
        }
        "subdeq-abs-normalized-tanh" => {
            "the release overwrites W by \\|W\\|, here W stays and \\|W\\| is used"
        }
        "subdeq-normalized-power-tanh" => {
            "as printed, tanh(\\|W\\|z + f(x))^0.99; the release overwrites W by \\|W\\|"
        }
        "subdeq-power-tanh" => {
            "as released: (tanh(Wz) + 1.01)^0.999 + f(x) (convolutions: ^0.9999); the printed tanh(Wz)^0.99 is not a number for Wz < 0"
        }
        "node-relu" | "node-tanh" => "not in the release; Runge-Kutta 5(4), tolerance 1e-3",
        "mondeq-relu" | "mondeq-tanh" => {
            "not in the release; W = (1−m)I − A'A + B − B', m = 1 (the paper prints A'A + B − B')"
        }
        "explicit-tanh" => "not in the release; tanh(W f(x) + b)",
        _ => "",
    }
}
