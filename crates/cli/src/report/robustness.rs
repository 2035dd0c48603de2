//! Accuracy under changes of the images: what is proved and what attacks leave.

use std::fmt::Write as _;

use super::curves::grid;
use super::run::Run;
use crate::chart::{Axis, Figure, Panel, Scale, Series, Stroke};
use crate::robustness;

pub fn draw(html: &mut String, run: &Run) {
    let Some(evaluation) = &run.evaluation else { return };
    let Some(found) = &evaluation.robustness else { return };
    html.push_str("<h2>Changed images</h2>\n");
    for line in robustness::lines(found) {
        let _ = writeln!(html, "<p>{}</p>", crate::chart::escape(&line));
    }
    let line = |name: &str, points: Vec<(f64, f64)>, stroke| Series { name: name.into(), points, stroke };
    let mut series = vec![line("proved", found.curve.clone(), Stroke::Solid)];
    if let Some(attacked) = &found.attacked {
        let points = attacked.at.iter().map(|&(radius, _, accuracy)| (radius, accuracy));
        let points = std::iter::once((0.0, attacked.clean)).chain(points).collect();
        series.push(line("what attacks leave", points, Stroke::Dashed));
    }
    let panel = Panel {
        title: "Right whatever changes within a radius".into(),
        x: Axis::new("radius, 2-norm of pixels from 0 to 1", Scale::Linear),
        y: Axis::new("accuracy, %", Scale::Linear),
        series,
    };
    grid(html, &[Figure { panels: vec![panel] }.to_svg()]);
}
