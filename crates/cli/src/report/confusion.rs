//! The confusion matrix, or its largest entries where there are too many classes for a matrix.

use std::fmt::Write as _;

use super::run::Run;
use crate::chart::escape;

/// Matrices of more classes than this are not read by anybody.
const MOST_CLASSES: usize = 20;
/// Entries listed instead.
const LISTED: usize = 15;

pub fn draw(html: &mut String, run: &Run) {
    let Some(evaluation) = &run.evaluation else { return };
    let matrix = &evaluation.confusion;
    if matrix.is_empty() {
        return;
    }
    html.push_str("<h2>Confusion</h2>\n<div class=\"card wide\">\n");
    let name = |class: usize| evaluation.class_names.get(class).cloned().unwrap_or_else(|| class.to_string());
    if matrix.len() <= MOST_CLASSES {
        draw_matrix(html, matrix, &name);
    } else {
        draw_list(html, matrix, &name);
    }
    html.push_str("</div>\n");
}

fn draw_matrix(html: &mut String, matrix: &[Vec<u64>], name: &dyn Fn(usize) -> String) {
    html.push_str("<table class=\"confusion\"><tr><th>true \\ given</th>");
    for class in 0..matrix.len() {
        let _ = write!(html, "<th>{}</th>", escape(&name(class)));
    }
    html.push_str("</tr>\n");
    for (class, row) in matrix.iter().enumerate() {
        let total = row.iter().sum::<u64>().max(1) as f64;
        let wrong = row.iter().enumerate().filter(|(k, _)| *k != class).map(|(_, n)| *n).max();
        let _ = write!(html, "<tr><th>{}</th>", escape(&name(class)));
        for (given, &count) in row.iter().enumerate() {
            // Errors are few: each row's most frequent one is the full colour, so that they are seen at all.
            let (kind, share) = if given == class {
                ("right", count as f64 / total)
            } else {
                ("wrong", count as f64 / wrong.unwrap_or(0).max(1) as f64 * 0.75)
            };
            let text = if count == 0 { String::new() } else { count.to_string() };
            let _ = write!(
                html,
                "<td class=\"{kind}\" style=\"--share:{:.0}%\" title=\"{} taken for {}: {count}\">{text}</td>",
                60.0 * share,
                escape(&name(class)),
                escape(&name(given))
            );
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</table>\n");
}

fn draw_list(html: &mut String, matrix: &[Vec<u64>], name: &dyn Fn(usize) -> String) {
    let mut errors: Vec<(u64, usize, usize)> = matrix
        .iter()
        .enumerate()
        .flat_map(|(class, row)| row.iter().enumerate().map(move |(given, &count)| (count, class, given)))
        .filter(|&(count, class, given)| count > 0 && class != given)
        .collect();
    errors.sort_unstable_by_key(|&(count, class, given)| (std::cmp::Reverse(count), class, given));
    let _ = writeln!(html, "<p>{} classes; the most frequent confusions:</p>", matrix.len());
    html.push_str("<table><tr><th>true</th><th>given</th><th>inputs</th></tr>\n");
    for (count, class, given) in errors.into_iter().take(LISTED) {
        let _ = writeln!(
            html,
            "<tr><td>{}</td><td>{}</td><td>{count}</td></tr>",
            escape(&name(class)),
            escape(&name(given))
        );
    }
    html.push_str("</table>\n");
}
