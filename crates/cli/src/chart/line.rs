//! Line charts, one or several panels side by side, with one legend.

use std::fmt::Write;

use super::frame::{Frame, HEIGHT, LEFT, WIDTH, open_svg};
use super::{Axis, PALETTE, escape};

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stroke {
    /// Unbroken.
    Solid,
    /// Dashed: the competitor, the reference.
    Dashed,
}

/// One named line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its name in the legend; the same name has the same colour in every panel.
    pub name: String,
    /// Points from left to right; those the axes cannot show are left out.
    pub points: Vec<(f64, f64)>,
    /// Solid or dashed.
    pub stroke: Stroke,
}

/// One chart of a figure.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Heading.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Lines.
    pub series: Vec<Series>,
}

/// Panels side by side above one legend.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The panels, from left to right.
    pub panels: Vec<Panel>,
}

const LEGEND_ROW: f64 = 22.0;
/// Room for a line in the legend, and for a character of a name behind it.
const LEGEND_LINE: f64 = 36.0;
const CHARACTER: f64 = 7.5;

impl Figure {
    /// The figure as a self-contained SVG document.
    pub fn to_svg(&self) -> String {
        let names = self.names();
        let width = WIDTH * self.panels.len().max(1) as f64;
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        let room = width - LEFT;
        let columns = ((room / (LEGEND_LINE + CHARACTER * (longest + 2) as f64)) as usize).max(1);
        // A name that is longer than the figure is wide is set narrower: nothing is cut off.
        let narrow = LEGEND_LINE + CHARACTER * longest as f64 > room;
        let legend_height = names.len().div_ceil(columns) as f64 * LEGEND_ROW + 10.0;
        let mut svg = open_svg(width, HEIGHT + legend_height);
        for (k, panel) in self.panels.iter().enumerate() {
            panel.draw(&mut svg, k as f64 * WIDTH, &names);
        }
        for (k, name) in names.iter().enumerate() {
            let x = LEFT + (k % columns) as f64 * room / columns as f64;
            let fitted = if narrow && CHARACTER * name.chars().count() as f64 > room - LEGEND_LINE {
                format!(" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\"", room - LEGEND_LINE - 4.0)
            } else {
                String::new()
            };
            let y = HEIGHT + 12.0 + (k / columns) as f64 * LEGEND_ROW;
            let dash = self.dash_of(name);
            let _ = writeln!(
                svg,
                "<line x1=\"{x}\" y1=\"{y}\" x2=\"{}\" y2=\"{y}\" stroke=\"{}\" stroke-width=\"2.5\"{dash}/>\
                 <text x=\"{}\" y=\"{}\"{fitted} fill=\"currentColor\">{}</text>",
                x + 28.0,
                colour(&names, name),
                x + LEGEND_LINE,
                y + 4.5,
                escape(name)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Every series name once, in order of appearance.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for series in self.panels.iter().flat_map(|p| &p.series) {
            if !names.contains(&series.name) {
                names.push(series.name.clone());
            }
        }
        names
    }

    fn dash_of(&self, name: &str) -> &'static str {
        let series = self.panels.iter().flat_map(|p| &p.series).find(|s| s.name == name);
        series.map_or("", |s| dash(s.stroke))
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, offset: f64, names: &[String]) {
        let visible = |&(x, y): &(f64, f64)| self.x.accepts(x) && self.y.accepts(y);
        let points = || self.series.iter().flat_map(|s| s.points.iter().copied()).filter(visible);
        let frame = Frame {
            title: &self.title,
            x: &self.x,
            y: &self.y,
            x_range: self.x.resolve(points().map(|p| p.0)),
            y_range: self.y.resolve(points().map(|p| p.1)),
            offset,
        };
        frame.draw(svg);
        for series in &self.series {
            let path: Vec<String> = series
                .points
                .iter()
                .filter(|p| visible(p) && inside(p.0, frame.x_range) && inside(p.1, frame.y_range))
                .map(|&(x, y)| format!("{:.2},{:.2}", frame.to_x(x), frame.to_y(y)))
                .collect();
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2.2\" stroke-linejoin=\"round\"{}/>",
                path.join(" "),
                colour(names, &series.name),
                dash(series.stroke)
            );
        }
    }
}

fn inside(x: f64, (lo, hi): (f64, f64)) -> bool {
    x >= lo && x <= hi
}

fn dash(stroke: Stroke) -> &'static str {
    match stroke {
        Stroke::Solid => "",
        Stroke::Dashed => " stroke-dasharray=\"7 4\"",
    }
}

fn colour(names: &[String], name: &str) -> &'static str {
    let index = names.iter().position(|n| n == name).unwrap_or(0);
    PALETTE[index % PALETTE.len()]
}

#[cfg(test)]
mod tests {
    use super::super::{Scale, render_png};
    use super::*;

    fn figure() -> Figure {
        let series = |name: &str, rate: f64| Series {
            name: name.to_owned(),
            points: (0..20).map(|k| (f64::from(k), rate.powi(k))).collect(),
            stroke: Stroke::Solid,
        };
        let panel = |title: &str| Panel {
            title: title.to_owned(),
            x: Axis::new("iteration", Scale::Linear),
            y: Axis::new("relative residual", Scale::Log),
            series: vec![series("a < b", 0.3), series("slow", 0.8)],
        };
        Figure { panels: vec![panel("dense"), panel("convolutional")] }
    }

    #[test]
    fn names_are_escaped_and_listed_once_in_the_legend() {
        let svg = figure().to_svg();
        assert_eq!(svg.matches("a &lt; b").count(), 1);
        assert_eq!(svg.matches("<polyline").count(), 4);
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn points_that_cannot_be_shown_are_left_out() {
        let mut f = figure();
        f.panels[0].series[0].points.push((20.0, 0.0));
        f.panels[0].series[0].points.push((21.0, f64::NAN));
        let svg = f.to_svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn png_has_the_size_of_the_figure_times_the_scale() {
        let png = render_png(&figure().to_svg(), 2.0).unwrap();
        assert_eq!(&png[1..4], b"PNG");
        let width = u32::from_be_bytes(png[16..20].try_into().unwrap());
        assert_eq!(width, 2 * 2 * WIDTH as u32);
    }
}
