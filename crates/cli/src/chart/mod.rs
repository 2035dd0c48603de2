//! Charts for people: SVG that follows the reader's light or dark theme, and PNG for everything else.

mod axis;
mod frame;
mod histogram;
mod line;
mod png;

pub use axis::{Axis, Scale};
pub use histogram::Histogram;
pub use line::{Figure, Panel, Series, Stroke};
pub use png::render_png;

/// Escapes text for use inside SVG and HTML.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            _ => out.push(c),
        }
    }
    out
}

/// Ten colours that are told apart on white and on black, also by most colour-blind readers.
pub const PALETTE: [&str; 10] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f6bd6", "#8a6d3b", "#c2385a",
    "#6b7280",
];
