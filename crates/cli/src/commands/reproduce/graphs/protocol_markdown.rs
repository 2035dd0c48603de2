//! The table of a protocol beside what others report.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::DISTANCE;
use super::anchors::{self, Anchor};
use super::protocol::{BINS, Ledger, Protocol, Record, Tested, settings_in_words};
use crate::statistics;

/// Tested runs of a cell.
type Cells<'a> = BTreeMap<(usize, &'a str, &'a str), Vec<(&'a Record, &'a Tested)>>;

/// Accuracies beside the anchors, certificates with promised and counted iterations, and calibration curves.
pub fn report(protocol: Protocol, ledger: &Ledger) -> String {
    let cells = cells(ledger);
    let mut text = head(protocol);
    accuracies(&mut text, protocol, &cells);
    certificates(&mut text, &cells);
    calibration(&mut text, &cells);
    chosen_settings(&mut text, &cells);
    text
}

/// By graph, in the order of the anchors, and model; only what the program would run today. Of several test runs of one division
/// the last counts: it came with the search.
fn cells(ledger: &Ledger) -> Cells<'_> {
    let order = [&anchors::GRAPHS[..], &anchors::WITH_CITING[..]].concat();
    let mut cells = Cells::new();
    for run in ledger.runs().iter().filter(|run| run.key.is_of_today()) {
        let Some(test) = &run.test else { continue };
        let place = order.iter().position(|graph| *graph == run.key.graph).unwrap_or(order.len());
        let cell = cells.entry((place, &run.key.graph[..], &run.key.config.model.name[..])).or_default();
        cell.retain(|(other, _)| other.key.split != run.key.split);
        cell.push((run, test));
    }
    cells
}

fn head(protocol: Protocol) -> String {
    match protocol {
        Protocol::Half => "50 / 25 / 25 % of the nodes to train, select and test, at random.",
        Protocol::Given => {
            "HyperGCN's given divisions: all nodes without a label are tested, and learned from without one."
        }
    }
    .to_owned()
        + " Test accuracy in %, mean ± standard deviation over the divisions.\n\n"
}

fn anchors_of(protocol: Protocol) -> &'static [Anchor] {
    match protocol {
        Protocol::Half => &anchors::HALF,
        Protocol::Given => &anchors::GIVEN,
    }
}

fn accuracies(text: &mut String, protocol: Protocol, cells: &Cells<'_>) {
    let anchors = anchors_of(protocol);
    let names: Vec<&str> = anchors.iter().map(|anchor| anchor.name).collect();
    let _ = writeln!(text, "| graph | model | divisions | accuracy | {} |", names.join(" | "));
    let _ = writeln!(text, "|---|---|---|---|{}", "---|".repeat(anchors.len()));
    for ((_, graph, model), runs) in cells {
        let found: Vec<f64> = runs.iter().map(|(_, test)| test.accuracy).collect();
        let (mean, deviation) = (statistics::mean(&found), statistics::deviation(&found).unwrap_or(0.0));
        let place = anchors::GRAPHS.iter().position(|name| name == graph);
        let against = |anchor: &Anchor| match place {
            Some(place) => {
                format!("{:.1} ({:+.1})", anchor.accuracies[place], mean - anchor.accuracies[place])
            }
            None => "-".to_owned(),
        };
        let against: Vec<String> = anchors.iter().map(against).collect();
        let title = anchors::title(graph);
        let count = found.len();
        let _ = writeln!(
            text,
            "| {title} | `{model}` | {count} | {mean:.2} ± {deviation:.2} | {} |",
            against.join(" | ")
        );
    }
    text.push_str("\nIn brackets: how far we are ahead.\n\n");
}

fn certificates(text: &mut String, cells: &Cells<'_>) {
    let _ = writeln!(
        text,
        "Iterations of `Z <- F(Z)` from `F(0)` until the trained model's state is within {DISTANCE:e} of its solution, relative to \
         it in the certificate's norm: promised beforehand and counted, the most of all divisions; and of the training's solves \
         (conjugate gradients where the map is linear).\n\n\
         | graph | model | proved | largest factor | promised | counted | training solve, adjoint | s a run |\n\
         |---|---|---|---|---|---|---|---|"
    );
    for ((_, graph, model), runs) in cells {
        let proven = runs.iter().filter(|(_, test)| test.verdict == "proven").count();
        let factor = runs.iter().filter_map(|(_, test)| test.factor).fold(0.0, f64::max);
        let promised = runs.iter().filter_map(|(_, test)| test.promised).max();
        let counted = runs.iter().map(|(_, test)| test.measured).max().unwrap_or(0);
        let most = |k: usize| runs.iter().map(|(run, _)| run.iterations[k]).max().unwrap_or(0);
        let seconds: Vec<f64> = runs.iter().map(|(run, _)| run.seconds).collect();
        let _ = writeln!(
            text,
            "| {} | `{model}` | {proven} of {} | {factor:.6} | {} | {counted} | {}, {} | {:.1} |",
            anchors::title(graph),
            runs.len(),
            promised.map_or("-".to_owned(), |promised| promised.to_string()),
            most(0),
            most(1),
            statistics::mean(&seconds)
        );
    }
    text.push('\n');
}

fn calibration(text: &mut String, cells: &Cells<'_>) {
    let bins: Vec<String> =
        (0..BINS).map(|k| format!("{}-{} %", 100 * k / BINS, 100 * (k + 1) / BINS)).collect();
    let _ = writeln!(
        text,
        "Calibration: share of test nodes that are right, by the probability that the model gives the class it chooses (number of \
         nodes in brackets); the expected calibration error is the mean gap between the two.\n\n\
         | graph | model | error | {} |\n|---|---|---|{}",
        bins.join(" | "),
        "---|".repeat(BINS)
    );
    for ((_, graph, model), runs) in cells {
        let (mut gaps, mut nodes, mut columns) = (0.0, 0usize, Vec::new());
        for k in 0..BINS {
            let bins = || runs.iter().filter_map(|(_, test)| test.calibration.get(k));
            let count: usize = bins().map(|bin| bin.nodes).sum();
            let right: usize = bins().map(|bin| bin.right).sum();
            let probability: f64 = bins().map(|bin| bin.probability).sum();
            gaps += (right as f64 - probability).abs();
            nodes += count;
            columns.push(match count {
                0 => "-".to_owned(),
                _ => format!("{:.1} ({count})", 100.0 * right as f64 / count as f64),
            });
        }
        let error = 100.0 * gaps / nodes.max(1) as f64;
        let _ = writeln!(
            text,
            "| {} | `{model}` | {error:.1} % | {} |",
            anchors::title(graph),
            columns.join(" | ")
        );
    }
    text.push('\n');
}

fn chosen_settings(text: &mut String, cells: &Cells<'_>) {
    text.push_str("Settings of the tested models: teleport probability t, hidden units, dropout, weight decay; how often.\n\n");
    for ((_, graph, model), runs) in cells {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (run, _) in runs {
            let words = settings_in_words(&run.key.config);
            *counts.entry(words).or_default() += 1;
        }
        let counts: Vec<String> =
            counts.iter().map(|(words, count)| format!("({words}) x {count}")).collect();
        let _ = writeln!(text, "- {}, `{model}`: {}", anchors::title(graph), counts.join("; "));
    }
}
