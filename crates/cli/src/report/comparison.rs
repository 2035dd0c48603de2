//! Several runs beside one another, and beside the paper where it has the same model on the same data.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::run::Run;
use super::{curves, factor, percent};
use crate::chart::{Scale, Series, Stroke, escape};
use crate::statistics::{deviation, mean, median};

/// Runs that differ in the seed only.
struct Group<'a> {
    model: &'a str,
    data: &'a str,
    runs: Vec<&'a Run>,
}

pub fn draw(html: &mut String, runs: &[Run]) {
    let groups = grouped(runs);
    html.push_str("<h2>Side by side</h2>\n<div class=\"card wide\">\n");
    let paper = groups.iter().any(|g| published(g).is_some());
    let several = groups.iter().any(|g| g.data != groups[0].data);
    html.push_str("<table><tr><th>model</th>");
    if several {
        html.push_str("<th>data</th>");
    }
    html.push_str("<th>runs</th><th>test error, %</th>");
    if paper {
        html.push_str("<th>the paper</th><th>difference, sd</th>");
    }
    html.push_str(
        "<th>solves converged</th><th>one fixed point: inputs proved</th><th>for every input</th><th>factor</th></tr>\n",
    );
    for group in &groups {
        row(html, group, several, paper);
    }
    html.push_str("</table>\n");
    if paper {
        html.push_str("<p class=\"muted\">Difference: ours minus the paper's, in the paper's standard deviations; negative is better.</p>\n");
    }
    html.push_str("</div>\n");
    let series = |metric: &'static str| -> Vec<Series> {
        let lines = groups.iter().map(|g| Series {
            name: g.name(several),
            points: mean_curve(g, metric),
            stroke: Stroke::Solid,
        });
        lines.filter(|s| !s.points.is_empty()).collect()
    };
    let charts: Vec<String> = [
        ("Validation error", "validation_error", "error, %", Scale::Linear),
        ("Forward iterations", "forward_iterations", "per sample", Scale::Linear),
    ]
    .into_iter()
    .map(|(title, metric, label, scale)| (title, label, scale, series(metric)))
    .filter(|(.., series)| !series.is_empty())
    .map(|(title, label, scale, series)| curves::chart(title, "epoch", (label, scale), series))
    .collect();
    curves::grid(html, &charts);
}

impl Group<'_> {
    fn name(&self, with_data: bool) -> String {
        if with_data { format!("{}, {}", self.model, self.data) } else { self.model.to_owned() }
    }
}

/// In the order of first appearance.
fn grouped(runs: &[Run]) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for run in runs {
        match groups
            .iter_mut()
            .find(|g| g.model == run.model && g.data == run.data && g.runs[0].column == run.column)
        {
            Some(group) => group.runs.push(run),
            None => groups.push(Group { model: &run.model, data: &run.data, runs: vec![run] }),
        }
    }
    groups
}

fn published(group: &Group<'_>) -> Option<&'static crate::paper::Published> {
    group.runs[0].column.and_then(|column| column.published(group.model))
}

fn row(html: &mut String, group: &Group<'_>, with_data: bool, paper: bool) {
    let evaluations: Vec<_> = group.runs.iter().filter_map(|run| run.evaluation.as_ref()).collect();
    let errors: Vec<f64> = evaluations.iter().map(|e| e.error).collect();
    let _ = write!(html, "<tr><td>{}</td>", escape(group.model));
    if with_data {
        let _ = write!(html, "<td>{}</td>", escape(group.data));
    }
    let _ = write!(html, "<td>{}</td>", group.runs.len());
    if errors.is_empty() {
        html.push_str("<td class=\"muted\">not evaluated</td>");
    } else {
        let spread = deviation(&errors).map_or(String::new(), |d| format!(" ± {d:.3}"));
        let _ = write!(html, "<td>{:.3}{spread}</td>", mean(&errors));
    }
    if paper {
        match published(group) {
            Some(printed) => {
                let _ = write!(html, "<td>{} ± {}</td>", printed.mean, printed.deviation);
                match group.runs.iter().find_map(|run| run.unlike_the_paper()) {
                    Some(why) => {
                        let _ = write!(html, "<td class=\"muted\">not comparable: {}</td>", escape(&why));
                    }
                    None if errors.is_empty() => html.push_str("<td></td>"),
                    None => {
                        let _ = write!(html, "<td>{:+.1}</td>", printed.distance(mean(&errors)));
                    }
                }
            }
            None => html.push_str("<td></td><td></td>"),
        }
    }
    let converged: Vec<f64> = evaluations.iter().map(|e| e.converged).collect();
    let certified: Vec<f64> = evaluations.iter().filter_map(|e| e.certified).collect();
    let share = |shares: &[f64]| if shares.is_empty() { String::new() } else { percent(mean(shares)) };
    let _ = write!(html, "<td>{}</td><td>{}</td>", share(&converged), share(&certified));
    let mut verdicts: BTreeMap<&str, usize> = BTreeMap::new();
    for verdict in evaluations.iter().filter_map(|e| e.all_inputs.as_ref()) {
        *verdicts.entry(&verdict.verdict).or_default() += 1;
    }
    let verdicts: Vec<String> = match verdicts.len() {
        1 => verdicts.keys().map(|v| escape(v)).collect(),
        _ => verdicts.iter().map(|(v, n)| format!("{} {n}x", escape(v))).collect(),
    };
    let factors: Vec<f64> = evaluations.iter().filter_map(|e| e.median_factor).collect();
    let _ = writeln!(
        html,
        "<td>{}</td><td>{}</td></tr>",
        verdicts.join(", "),
        median(factors).map_or(String::new(), factor)
    );
}

/// The mean of a metric over the group's runs, epoch by epoch, as far as all of them are.
fn mean_curve(group: &Group<'_>, metric: &str) -> Vec<(f64, f64)> {
    let curves: Vec<Vec<(f64, f64)>> = group.runs.iter().map(|run| run.curve(metric)).collect();
    let shortest = curves.iter().map(Vec::len).min().unwrap_or(0);
    (0..shortest)
        .map(|k| (curves[0][k].0, mean(&curves.iter().map(|c| c[k].1).collect::<Vec<f64>>())))
        .collect()
}
