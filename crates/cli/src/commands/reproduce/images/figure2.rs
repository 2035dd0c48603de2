//! Figure 2: validation accuracy per epoch of the dense MNIST models.

use std::fmt::Write as _;
use std::path::Path;

use super::ledger::{Entry, Ledger};
use super::{Task, made};
use crate::chart::{Axis, Figure, Panel, Scale, Series, Stroke, render_png};
use crate::failure::Failure;
use crate::statistics::mean;

/// Writes `figure2.svg`, `figure2.png` and `figure2.csv`: the mean over the runs, epoch by epoch.
pub fn write(folder: &Path, names: &[&str], tasks: &[Task], ledger: &Ledger) -> Result<(), Failure> {
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
        x: Axis::new("epoch", Scale::Linear),
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
            panel("MNIST, dense", 0.0, series.clone()),
            panel("the second half", (last / 2.0).ceil(), series),
        ],
    };
    let svg = figure.to_svg();
    let png = render_png(&svg, 2.0).map_err(Failure::other)?;
    super::write(folder, "figure2.svg", svg.as_bytes())?;
    super::write(folder, "figure2.png", &png)?;
    super::write(folder, "figure2.csv", csv.as_bytes())?;
    println!("written: {0}/figure2.svg, {0}/figure2.png, {0}/figure2.csv", folder.display());
    Ok(())
}

fn mean_accuracy(entries: &[&Entry]) -> Vec<(f64, f64)> {
    let epochs = entries.iter().map(|entry| entry.validation_errors.len()).min().unwrap_or(0);
    let at = |k: usize| mean(&entries.iter().map(|entry| entry.validation_errors[k]).collect::<Vec<f64>>());
    (0..epochs).map(|k| ((k + 1) as f64, 100.0 - at(k))).collect()
}
