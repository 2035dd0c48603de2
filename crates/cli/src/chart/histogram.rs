//! Histograms over whole numbers.

use std::fmt::Write;

use super::frame::{Frame, HEIGHT, WIDTH, open_svg};
use super::{Axis, PALETTE};

/// How often each whole number occurred.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Heading.
    pub title: String,
    /// What was counted.
    pub x: String,
    /// What the height of a bar counts.
    pub y: String,
    /// Number and how often.
    pub counts: Vec<(u32, u64)>,
}

/// Bars narrower than a tenth of the chart are told apart; more than this many are too many.
const MOST_BARS: u32 = 40;

impl Histogram {
    /// The histogram as a self-contained SVG document; neighbours share a bar where there would be too many.
    pub fn to_svg(&self) -> String {
        let first = self.counts.iter().map(|c| c.0).min().unwrap_or(0);
        let last = self.counts.iter().map(|c| c.0).max().unwrap_or(0);
        let bin = (last - first) / MOST_BARS + 1;
        let mut bars = vec![0u64; ((last - first) / bin + 1) as usize];
        for &(number, count) in &self.counts {
            bars[((number - first) / bin) as usize] += count;
        }
        let (x, y) = (Axis::whole(&self.x), Axis::whole(&self.y));
        let edge = |k: usize| f64::from(first) - 0.5 + k as f64 * f64::from(bin);
        let tallest = bars.iter().copied().max().unwrap_or(0) as f64;
        let margin = f64::from(bin).max((edge(bars.len()) - edge(0)) * 0.03);
        let frame = Frame {
            title: &self.title,
            x_range: (edge(0) - margin, edge(bars.len()) + margin),
            y_range: y.resolve([0.0, tallest.max(1.0)].into_iter()),
            x: &x,
            y: &y,
            offset: 0.0,
        };
        let mut svg = open_svg(WIDTH, HEIGHT);
        frame.draw(&mut svg);
        let width = frame.to_x(edge(1)) - frame.to_x(edge(0));
        for (k, &count) in bars.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (top, bottom) = (frame.to_y(count as f64), frame.to_y(0.0));
            let from = first + k as u32 * bin;
            let range = if bin == 1 { from.to_string() } else { format!("{from} to {}", from + bin - 1) };
            let _ = writeln!(
                svg,
                "<rect x=\"{:.2}\" y=\"{top:.2}\" width=\"{:.2}\" height=\"{:.2}\" fill=\"{}\"><title>{range}: {count}</title></rect>",
                frame.to_x(edge(k)) + width * 0.06,
                width * 0.88,
                bottom - top,
                PALETTE[0]
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(counts: Vec<(u32, u64)>) -> Histogram {
        Histogram { title: "t".into(), x: "iterations".into(), y: "inputs".into(), counts }
    }

    #[test]
    fn every_number_has_its_bar_and_many_share_them() {
        let svg = histogram(vec![(8, 3), (9, 100), (11, 1)]).to_svg();
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("<title>9: 100</title>"));
        let svg = histogram((0..1000).map(|k| (k, 1)).collect()).to_svg();
        assert!(svg.matches("<title>").count() <= 41 && svg.contains("<title>0 to 24: 25</title>"));
    }

    #[test]
    fn nothing_counted_is_an_empty_chart() {
        let svg = histogram(Vec::new()).to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("<title>"));
    }
}
