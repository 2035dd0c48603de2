//! One HTML page about one or several runs that needs nothing but itself: no scripts, no fonts, no other files.

mod certificate;
mod comparison;
mod confusion;
mod curves;
mod examples;
mod graph;
mod robustness;
mod run;
mod tiles;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use run::Run;

use crate::chart::escape;
use crate::failure::Failure;

const STYLE: &str = include_str!("style.css");

/// Writes the page about the runs in (or below) `folders` and says where it is. Without a place of its own it goes into
/// the folder, if there is one, else into the current one.
pub fn write(folders: &[PathBuf], out: Option<&Path>) -> Result<PathBuf, Failure> {
    let runs = run::find_runs(folders)?;
    let out = match (out, folders) {
        (Some(out), _) => out.to_owned(),
        (None, [folder]) => folder.join("report.html"),
        (None, _) => PathBuf::from("report.html"),
    };
    subdeq::train::replace_file(&out, |file| file.write_all(page(&runs).as_bytes()))
        .map_err(|why| Failure::other(format!("{} cannot be written: {why}", out.display())))?;
    Ok(out)
}

fn page(runs: &[Run]) -> String {
    let title = match runs {
        [run] => run.title(),
        _ => format!("{} runs", runs.len()),
    };
    let mut html = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{0} - subdeq</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{0}</h1>\n",
        escape(&title)
    );
    match runs {
        [run] => section(&mut html, run),
        _ => {
            comparison::draw(&mut html, runs);
            for run in runs {
                let _ = writeln!(html, "<details class=\"run\"><summary>{}</summary>", escape(&run.title()));
                section(&mut html, run);
                html.push_str("</details>\n");
            }
        }
    }
    let _ = writeln!(
        html,
        "<footer>Made by subdeq {}. A verdict is about the trained weights; it is rounded outward and can be checked again.</footer>\n</body>\n</html>",
        env!("CARGO_PKG_VERSION")
    );
    html
}

/// Everything about one run.
fn section(html: &mut String, run: &Run) {
    let _ = writeln!(html, "<p class=\"path\">{}</p>", escape(&run.folder.display().to_string()));
    tiles::draw(html, run);
    if run.evaluation.is_none() {
        let _ = writeln!(
            html,
            "<p class=\"card\">Not evaluated yet: <code>subdeq eval {}</code> does that.</p>",
            escape(&run.folder.display().to_string())
        );
    }
    certificate::draw(html, run);
    curves::draw(html, run);
    robustness::draw(html, run);
    graph::draw(html, run);
    examples::draw(html, run);
    confusion::draw(html, run);
    let _ =
        writeln!(html, "<details><summary>config.toml</summary><pre>{}</pre></details>", escape(&run.config));
}

/// `12.3 %` of a share; all and none are told from nearly all and hardly any.
fn percent(share: f64) -> String {
    match 100.0 * share {
        p if p == 100.0 || p == 0.0 => format!("{p} %"),
        p => format!("{:.1} %", p.clamp(0.1, 99.9)),
    }
}

/// A factor, never rounded down.
fn factor(c: f64) -> String {
    format!("{:.4}", (c * 1e4).ceil() / 1e4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearly_all_is_not_all() {
        let shown: Vec<String> = [1.0, 0.9999, 0.5, 0.0001, 0.0].map(percent).to_vec();
        assert_eq!(shown, ["100 %", "99.9 %", "50.0 %", "0.1 %", "0 %"]);
        assert_eq!((factor(0.536_676).as_str(), factor(0.99999).as_str()), ("0.5367", "1.0000"));
    }
}
