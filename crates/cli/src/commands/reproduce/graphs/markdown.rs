//! The table beside the paper's.

use std::fmt::Write;

use super::ledger::{Ledger, Record};
use super::{DISTANCE, Form, Table, chosen_teleport, key, paper};
use crate::statistics;

/// Deviations within which a mean counts as the paper's.
const WITHIN: f64 = 2.0;

/// The whole table; cells that were not run are left empty.
pub fn table(table: Table, ledger: &Ledger, seeds: u64) -> String {
    let mut text = format!(
        "Test accuracy in %, mean ± standard deviation of {seeds} runs; in brackets the difference to the paper's mean in \
         the paper's standard deviations. *released*: ten steps, as the published code; *equilibrium*: the same map to its \
         equilibrium, proved to be the only one (rows projected onto a ball where it would normalise); *printed*: the paper's equation, to its equilibrium.\n\n\
         | graph | model | paper | released | equilibrium | printed | remarks |\n|---|---|---|---|---|---|---|\n"
    );
    for &(graph, model, mean, deviation) in table.cells() {
        let _ = write!(text, "| {} | `{model}` | {mean:.2} ± {deviation:.2} ", paper::title(graph));
        let mut remarks = Vec::new();
        for form in Form::ALL {
            let Some(cell) = Summary::of(table, ledger, graph, model, form, seeds) else {
                text.push_str("| ");
                continue;
            };
            let gap = (cell.mean - mean) / deviation;
            let _ = write!(text, "| {:.2} ± {:.2} ({gap:+.1}) ", cell.mean, cell.deviation);
            if gap < -WITHIN {
                remarks.push(format!("{} lower", form.name()));
            } else if gap > WITHIN {
                remarks.push(format!("{} better", form.name()));
            }
            if table == Table::Six {
                remarks.push(format!("{} t = {}", form.name(), cell.teleport));
            }
            if cell.converged < 1.0 {
                remarks.push(format!(
                    "{:.1} % of epochs at the iteration limit",
                    100.0 * (1.0 - cell.converged)
                ));
            }
        }
        let _ = writeln!(text, "| {} |", remarks.join("; "));
    }
    text
}

/// Factor, promised and counted iterations of the equilibrium forms.
pub fn certificates(table: Table, ledger: &Ledger, seeds: u64) -> String {
    let mut text = format!(
        "Iterations of `Z <- F(Z)` from `F(0)` until the trained model's state is within {DISTANCE:e} of its solution, in the \
         certificate's metric (relative to the solution in the 2-norm): promised beforehand, and counted; the most of \
         {seeds} runs. Training solves stop at a relative residual of 1e-6 (`appnp`: conjugate gradients).\n\n\
         | graph | model | form | metric | proved factor | promised | counted | most in a training solve, adjoint |\n\
         |---|---|---|---|---|---|---|---|\n"
    );
    let forms = |&(graph, model, ..): &'static paper::Cell| {
        [Form::Equilibrium, Form::Paper].map(|form| (graph, model, form))
    };
    for (graph, model, form) in table.cells().iter().flat_map(forms) {
        let Some(runs) = runs(table, ledger, graph, model, form, seeds) else { continue };
        let most = |count: fn(&Record) -> Option<u64>| {
            let most = runs.iter().filter_map(|run| count(run)).max();
            most.map_or("-".to_owned(), |most| most.to_string())
        };
        let _ = writeln!(
            text,
            "| {} | `{model}` | {} | {} | {} | {} | {} | {}, {} |",
            paper::title(graph),
            if form == Form::Equilibrium { "equilibrium" } else { "printed" },
            runs[0].metric.as_deref().unwrap_or("-"),
            largest_factor(&runs).map_or("unproven".to_owned(), |factor| format!("{factor:.6}")),
            most(|run| run.promised),
            most(|run| run.measured),
            most(|run| Some(run.iterations[0].into())),
            most(|run| Some(run.iterations[1].into())),
        );
    }
    text
}

/// The largest factor of the runs, if all of them have one.
fn largest_factor(runs: &[&Record]) -> Option<f64> {
    runs.iter().map(|run| run.factor).try_fold(0.0, |most: f64, factor| Some(most.max(factor?)))
}

/// The runs of a cell, if all are there.
fn runs<'a>(
    table: Table,
    ledger: &'a Ledger,
    graph: &str,
    model: &str,
    form: Form,
    seeds: u64,
) -> Option<Vec<&'a Record>> {
    let teleport = chosen_teleport(table, ledger, graph, model, form)?;
    let runs: Option<Vec<&Record>> =
        (0..seeds).map(|seed| ledger.find(&key(graph, model, form, teleport, seed))).collect();
    runs.filter(|runs| !runs.is_empty())
}

/// A cell.
struct Summary {
    teleport: f64,
    mean: f64,
    deviation: f64,
    converged: f64,
}

impl Summary {
    /// The cell, if all its runs are there.
    fn of(
        table: Table,
        ledger: &Ledger,
        graph: &str,
        model: &str,
        form: Form,
        seeds: u64,
    ) -> Option<Summary> {
        let runs = runs(table, ledger, graph, model, form, seeds)?;
        let accuracies: Vec<f64> = runs.iter().map(|run| run.accuracy).collect();
        let converged: Vec<f64> = runs.iter().map(|run| run.converged).collect();
        Some(Summary {
            teleport: runs[0].key.teleport,
            mean: statistics::mean(&accuracies),
            deviation: statistics::deviation(&accuracies).unwrap_or(0.0),
            converged: statistics::mean(&converged),
        })
    }
}
