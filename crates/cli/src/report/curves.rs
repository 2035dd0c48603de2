//! Learning curves, iteration histogram and residual curves.

use std::fmt::Write as _;

use super::run::Run;
use crate::chart::{Axis, Figure, Histogram, Panel, Scale, Series, Stroke};

/// A chart of metrics over the epochs: title, vertical axis, and the lines (metric, name, stroke).
type Spec = (&'static str, &'static str, Scale, &'static [(&'static str, &'static str, Stroke)]);

const OVER_EPOCHS: [Spec; 5] = [
    (
        "Error",
        "error, %",
        Scale::Linear,
        &[("train_error", "training", Stroke::Dashed), ("validation_error", "validation", Stroke::Solid)],
    ),
    (
        "Accuracy",
        "accuracy, %",
        Scale::Linear,
        &[
            ("train_accuracy", "training", Stroke::Dashed),
            ("validation_accuracy", "validation", Stroke::Solid),
            ("test_accuracy", "test", Stroke::Solid),
        ],
    ),
    (
        "Loss",
        "cross-entropy",
        Scale::Log,
        &[
            ("loss", "training", Stroke::Dashed),
            ("train_loss", "training", Stroke::Dashed),
            ("validation_loss", "validation", Stroke::Solid),
        ],
    ),
    (
        "Iterations",
        "per sample",
        Scale::Linear,
        &[
            ("forward_iterations", "forward solve", Stroke::Solid),
            ("backward_iterations", "adjoint solve", Stroke::Dashed),
        ],
    ),
    (
        "One fixed point, proved",
        "share of inputs",
        Scale::Linear,
        &[("certified", "proved to have exactly one", Stroke::Solid)],
    ),
];

pub fn draw(html: &mut String, run: &Run) {
    let mut charts: Vec<String> = OVER_EPOCHS.iter().filter_map(|spec| over_epochs(run, spec)).collect();
    if !charts.is_empty() {
        html.push_str("<h2>Learning</h2>\n");
        grid(html, &charts);
    } else {
        html.push_str("<p class=\"muted\">No epoch is completed yet.</p>\n");
    }
    charts.clear();
    if let Some(evaluation) = &run.evaluation {
        if !evaluation.iterations.is_empty() {
            let histogram = Histogram {
                title: "Iterations until converged".into(),
                x: "forward iterations".into(),
                y: "test inputs".into(),
                counts: evaluation.iterations.clone(),
            };
            charts.push(histogram.to_svg());
        }
        charts.extend(residuals(&evaluation.residuals));
    }
    if !charts.is_empty() {
        html.push_str("<h2>Solving</h2>\n");
        grid(html, &charts);
    }
}

/// Charts side by side where there is room.
pub fn grid(html: &mut String, charts: &[String]) {
    html.push_str("<div class=\"charts\">\n");
    for chart in charts {
        let _ = writeln!(html, "<div class=\"card\">{chart}</div>");
    }
    html.push_str("</div>\n");
}

/// `None` where the run has none of these metrics, or they are all zero (no solver).
fn over_epochs(run: &Run, (title, label, scale, lines): &Spec) -> Option<String> {
    let series: Vec<Series> = lines
        .iter()
        .map(|(metric, name, stroke)| Series {
            name: (*name).to_owned(),
            points: run.curve(metric),
            stroke: *stroke,
        })
        .filter(|series| series.points.iter().any(|p| p.1 != 0.0))
        .collect();
    (!series.is_empty()).then(|| chart(title, "epoch", (label, *scale), series))
}

/// One panel as SVG, over something that is counted.
pub fn chart(title: &str, counted: &str, y: (&str, Scale), series: Vec<Series>) -> String {
    let panel = Panel { title: title.to_owned(), x: Axis::whole(counted), y: Axis::new(y.0, y.1), series };
    Figure { panels: vec![panel] }.to_svg()
}

fn residuals(curves: &[Vec<f64>]) -> Option<String> {
    let series: Vec<Series> = curves
        .iter()
        .enumerate()
        .filter(|(_, curve)| !curve.is_empty())
        .map(|(k, curve)| Series {
            name: format!("test input {}", k + 1),
            points: curve.iter().enumerate().map(|(k, &r)| ((k + 1) as f64, r)).collect(),
            stroke: Stroke::Solid,
        })
        .collect();
    (!series.is_empty()).then(|| chart("Residuals", "iteration", ("relative residual", Scale::Log), series))
}
