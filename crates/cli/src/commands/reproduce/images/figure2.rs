//! Figure 2: validation accuracy per epoch of a column's models; the paper has that of the dense MNIST models.

use std::fmt::Write as _;
use std::path::Path;

use super::ledger::{Entry, Ledger};
use super::{Task, made};
use crate::chart::{Axis, Figure, Panel, Scale, Series, Stroke, render_png};
use crate::failure::Failure;
use crate::paper::Column;
use crate::statistics::mean;

/// Writes `figure2.svg`, `figure2.png` and `figure2.csv`, with the column's name behind the 2 where it is not the paper's: the
/// mean over the runs, epoch by epoch.
pub fn write(
    folder: &Path,
    column: Column,
    names: &[&str],
    tasks: &[Task],
    ledger: &Ledger,
) -> Result<(), Failure> {
    let mut csv = String::from("model,seed,epoch,validation_accuracy\n");
    let mut series = Vec::new();
    for name in names {
        let entries = made(name, tasks, ledger);
        for entry in &entries {
            for (k, error) in entry.validation_errors.iter().enumerate() {
                let _ = writeln!(csv, "{name},{},{},{:.4}", entry.seed, k + 1, 100.0 - error);
            }
        }
        if !entries.is_empty() {
            series.push(Series {
                name: (*name).to_owned(),
                points: mean_accuracy(&entries),
                stroke: if name.starts_with("subdeq") { Stroke::Solid } else { Stroke::Dashed },
            });
        }
    }
    let panel = |title: &str, from: f64, series: Vec<Series>| Panel {
        title: title.to_owned(),
        x: Axis::whole("epoch"),
        y: Axis::new("validation accuracy, %", Scale::Linear),
        series: series
            .into_iter()
            .map(|line| Series { points: line.points.into_iter().filter(|p| p.0 >= from).collect(), ..line })
            .collect(),
    };
    let last = series.iter().flat_map(|line| &line.points).map(|p| p.0).fold(0.0, f64::max);
    // The end of training again, enlarged: that is where the models differ.
    let figure = Figure {
        panels: vec![
            panel(column.title(), 0.0, series.clone()),
            panel("the second half", (last / 2.0).ceil(), series),
        ],
    };
    let svg = figure.to_svg();
    let png = render_png(&svg, 2.0).map_err(Failure::other)?;
    let name = match column {
        Column::MnistDense => "figure2".to_owned(),
        _ => format!("figure2-{}", column.name()),
    };
    for (ending, bytes) in [("svg", svg.as_bytes()), ("png", &*png), ("csv", csv.as_bytes())] {
        super::write(folder, &format!("{name}.{ending}"), bytes)?;
    }
    println!("written: {0}/{name}.svg, {0}/{name}.png, {0}/{name}.csv", folder.display());
    Ok(())
}

fn mean_accuracy(entries: &[&Entry]) -> Vec<(f64, f64)> {
    let epochs = entries.iter().map(|entry| entry.validation_errors.len()).min().unwrap_or(0);
    let at = |k: usize| mean(&entries.iter().map(|entry| entry.validation_errors[k]).collect::<Vec<f64>>());
    (0..epochs).map(|k| ((k + 1) as f64, 100.0 - at(k))).collect()
}
