//! The figures that everybody looks for first.

use std::fmt::Write as _;

use super::percent;
use super::run::Run;
use crate::chart::escape;

pub fn draw(html: &mut String, run: &Run) {
    let mut tiles: Vec<(String, String)> = Vec::new();
    if let Some(e) = &run.evaluation {
        let inputs = format!("{} test {}", e.samples, if run.graph.is_some() { "nodes" } else { "inputs" });
        tiles.push((format!("{:.2} %", e.error), format!("test error, {inputs}")));
        if let Some(column) = run.column
            && let Some(paper) = column.published(&run.model)
        {
            let comparable = match run.unlike_the_paper() {
                Some(why) => format!("; not comparable: {why}"),
                None => String::new(),
            };
            tiles.push((
                format!("{} ± {} %", paper.mean, paper.deviation),
                format!("the paper, {}{comparable}", column.title()),
            ));
        }
        tiles.push((percent(e.converged), "solves that converged".into()));
        if let Some(certified) = e.certified {
            let about = format!("of {} inputs: exactly one fixed point, proved", e.certified_samples);
            tiles.push((percent(certified), about));
        }
    }
    if let Some((epoch, error)) = lowest(&run.curve("validation_error")) {
        tiles.push((format!("{error:.2} %"), format!("lowest validation error, epoch {epoch}")));
    }
    let done = run.metrics.len();
    let of = run.epochs.map_or(String::new(), |epochs| format!(" of {epochs}"));
    let seconds: Vec<f64> = run.curve("seconds").into_iter().map(|p| p.1).collect();
    let each = crate::statistics::median(seconds).map_or(String::new(), |s| format!(", {s:.1} s each"));
    tiles.push((done.to_string(), format!("epochs{of}{each}")));
    html.push_str("<div class=\"tiles\">\n");
    for (figure, meaning) in tiles {
        let _ = writeln!(
            html,
            "<div class=\"tile\"><b>{}</b><span>{}</span></div>",
            escape(&figure),
            escape(&meaning)
        );
    }
    html.push_str("</div>\n");
}

fn lowest(curve: &[(f64, f64)]) -> Option<(f64, f64)> {
    curve.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))
}
