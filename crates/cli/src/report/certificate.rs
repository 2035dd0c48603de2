//! What is proved about the run's model, in words.

use std::fmt::Write as _;

use subdeq::train::Evaluation;

use super::run::Run;
use super::{factor, percent};
use crate::chart::escape;

pub fn draw(html: &mut String, run: &Run) {
    let Some(evaluation) = &run.evaluation else { return };
    html.push_str("<h2>Certificate</h2>\n");
    let Some(verdict) = &evaluation.all_inputs else {
        html.push_str("<div class=\"card\"><p>This model has no fixed-point equation: there is nothing to certify.</p></div>\n");
        return;
    };
    let class = match verdict.verdict.as_str() {
        "proven" => "proven",
        "refuted" => "refuted",
        _ => "unproven",
    };
    let _ = writeln!(html, "<div class=\"card certificate {class}-edge\">");
    draw_words(html, &verdict.words, class);
    if let Some(sentence) = per_input(evaluation) {
        let _ = writeln!(html, "<p>{}</p>", escape(&sentence));
    }
    html.push_str("</div>\n");
}

/// The verdict's own word in colour; the lines below the first (what was tried) as a list.
fn draw_words(html: &mut String, words: &str, class: &str) {
    let mut lines = words.lines();
    let first = lines.next().unwrap_or_default();
    let _ = match first.split_once(':') {
        Some((word, rest)) => {
            writeln!(html, "<p><span class=\"verdict {class}\">{}</span>:{}</p>", escape(word), escape(rest))
        }
        None => writeln!(html, "<p>{}</p>", escape(first)),
    };
    let lines: Vec<String> = lines.map(|line| format!("<li>{}</li>", escape(line.trim()))).collect();
    if !lines.is_empty() {
        let _ = writeln!(html, "<ul>{}</ul>", lines.concat());
    }
}

fn per_input(evaluation: &Evaluation) -> Option<String> {
    let share = evaluation.certified?;
    let samples = evaluation.certified_samples;
    let mut sentence = match samples {
        0 => return None,
        _ => format!(
            "Looked at one by one: of {samples} test inputs, {} are proved to have exactly one fixed point.",
            percent(share)
        ),
    };
    if let Some(c) = evaluation.median_factor {
        let _ = write!(sentence, " The median factor is {}", factor(c));
        sentence.push_str(if c < 1.0 {
            ": each plain iteration shrinks the distance to the fixed point to that much of it, or less."
        } else {
            "."
        });
    }
    Some(sentence)
}
