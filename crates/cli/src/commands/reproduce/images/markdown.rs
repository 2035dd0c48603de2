//! A column of the tables beside the paper's.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::ledger::{Entry, Ledger};
use super::rows::{self, SOUND};
use super::{Task, certified, made};
use crate::paper::Column;
use crate::statistics::{deviation, mean, median};

/// One column as a markdown table; rows of which no run was made are empty.
pub fn table(column: Column, names: &[&str], tasks: &[Task], ledger: &Ledger) -> String {
    let mut text = format!(
        "### {}\n\n\
         Test error in %, mean ± standard deviation; the difference to the paper's mean in the paper's standard deviations \
         (negative is better). Proved per input: of the first {} test inputs, the share whose fixed point is proved to be \
         the only one.\n\n\
         | model | runs | ours | paper | difference | proved per input | for every input | median factor | iterations | remarks |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        column.title(),
        certified(column)
    );
    for name in names {
        row(&mut text, column, name, &made(name, tasks, ledger));
    }
    closest(&mut text, column, names, tasks, ledger);
    text
}

fn row(text: &mut String, column: Column, name: &str, entries: &[&Entry]) {
    let errors: Vec<f64> = entries.iter().map(|entry| entry.error).collect();
    let printed = column.published(name);
    let _ = write!(text, "| `{name}` | {} | {} ", entries.len(), spread(&errors));
    match printed {
        Some(paper) if errors.is_empty() => {
            let _ = write!(text, "| {} ± {} | ", paper.mean, paper.deviation);
        }
        Some(paper) => {
            let _ = write!(
                text,
                "| {} ± {} | {:+.1} ",
                paper.mean,
                paper.deviation,
                paper.distance(mean(&errors))
            );
        }
        None => text.push_str("| | "),
    }
    let certified: Vec<f64> = entries.iter().filter_map(|entry| entry.certified).collect();
    let share =
        if certified.is_empty() { String::new() } else { format!("{:.1} %", 100.0 * mean(&certified)) };
    let factor = median(entries.iter().filter_map(|entry| entry.median_factor).collect());
    let factor = factor.map_or(String::new(), |c| format!("{:.4}", (c * 1e4).ceil() / 1e4));
    let _ = writeln!(
        text,
        "| {share} | {} | {factor} | {} | {} |",
        verdicts(entries),
        iterations(entries),
        remarks(name, entries).join("; ")
    );
}

fn spread(errors: &[f64]) -> String {
    match (errors, deviation(errors)) {
        ([], _) => String::new(),
        (_, Some(d)) => format!("{:.3} ± {d:.3}", mean(errors)),
        (_, None) => format!("{:.2}", mean(errors)),
    }
}

fn verdicts(entries: &[&Entry]) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for verdict in entries.iter().filter_map(|entry| entry.all_inputs.as_ref()) {
        *counts.entry(&verdict.verdict).or_default() += 1;
    }
    match counts.len() {
        0 => String::new(),
        1 => counts.keys().map(|verdict| (*verdict).to_owned()).collect(),
        _ => counts.iter().map(|(verdict, n)| format!("{verdict} {n}x")).collect::<Vec<_>>().join(", "),
    }
}

/// Forward / adjoint, in the last epoch.
fn iterations(entries: &[&Entry]) -> String {
    let of = |k: usize| mean(&entries.iter().map(|entry| entry.iterations[k]).collect::<Vec<f64>>());
    if entries.is_empty() { String::new() } else { format!("{:.1} / {:.1}", of(0), of(1)) }
}

fn remarks(name: &str, entries: &[&Entry]) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(sound) = SOUND.iter().find(|sound| sound.name == name) {
        remarks.push(format!("sound: {}", sound.equation));
    }
    let known = rows::remark(name);
    if !known.is_empty() {
        remarks.push(known.to_owned());
    }
    let converged = entries.iter().map(|entry| entry.converged).fold(1.0, f64::min);
    if converged < 1.0 {
        remarks.push(format!(
            "up to {:.2} % of a run's test solves at the iteration limit",
            100.0 * (1.0 - converged)
        ));
    }
    remarks
}

/// Whether a model that is proved for every input beats the paper's column.
fn closest(text: &mut String, column: Column, names: &[&str], tasks: &[Task], ledger: &Ledger) {
    let proved =
        |entry: &&Entry| entry.all_inputs.as_ref().is_some_and(|verdict| verdict.verdict == "proven");
    let sound = names.iter().map(|name| (name, made(name, tasks, ledger)));
    let sound = sound.filter(|(_, entries)| !entries.is_empty() && entries.iter().all(proved));
    let errors = |entries: &[&Entry]| entries.iter().map(|entry| entry.error).collect::<Vec<f64>>();
    let best = sound
        .map(|(name, entries)| (name, mean(&errors(&entries)), entries.len()))
        .min_by(|a, b| a.1.total_cmp(&b.1));
    let Some((name, error, runs)) = best else { return };
    let printed = column.best();
    let verb = if error < printed { "beats" } else { "comes closest to" };
    let _ = writeln!(
        text,
        "\nOf the models that are proved for every input, `{name}` {verb} the best of the paper's column, {printed} %: {error:.3} % \
         ({runs} runs)."
    );
}
