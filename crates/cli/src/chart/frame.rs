//! What every chart has: a title, two axes with ticks, and the box that the data is drawn in.

use std::fmt::Write;

use super::{Axis, escape};

/// Width of one chart.
pub const WIDTH: f64 = 480.0;
/// Height of one chart, without a legend.
pub const HEIGHT: f64 = 340.0;
/// Room for the labels of the vertical axis; legends start there too.
pub const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 36.0;
const BOTTOM: f64 = 48.0;

/// The box of a chart, `offset` from the left end of the figure.
pub struct Frame<'a> {
    pub title: &'a str,
    pub x: &'a Axis,
    pub y: &'a Axis,
    pub x_range: (f64, f64),
    pub y_range: (f64, f64),
    pub offset: f64,
}

impl Frame<'_> {
    /// Horizontal position of a number.
    pub fn to_x(&self, x: f64) -> f64 {
        self.offset + LEFT + (WIDTH - LEFT - RIGHT) * self.x.place(x, self.x_range)
    }

    /// Vertical position of a number.
    pub fn to_y(&self, y: f64) -> f64 {
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - self.y.place(y, self.y_range))
    }

    /// Title, grid, tick labels, box and axis labels.
    pub fn draw(&self, svg: &mut String) {
        let (w, h) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
        let (left, bottom) = (self.offset + LEFT, TOP + h);
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\" fill=\"currentColor\">{}</text>",
            left + w / 2.0,
            escape(self.title)
        );
        for (value, label) in self.x.ticks(self.x_range) {
            let x = self.to_x(value);
            grid_line(svg, (x, TOP), (x, bottom));
            tick_label(svg, (x, bottom + 18.0), "middle", &label);
        }
        for (value, label) in self.y.ticks(self.y_range) {
            let y = self.to_y(value);
            grid_line(svg, (left, y), (left + w, y));
            tick_label(svg, (left - 7.0, y + 4.5), "end", &label);
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{left}\" y=\"{TOP}\" width=\"{w}\" height=\"{h}\" fill=\"none\" stroke=\"currentColor\" stroke-opacity=\"0.5\"/>\n\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"currentColor\">{}</text>\n\
             <text transform=\"translate({} {}) rotate(-90)\" text-anchor=\"middle\" fill=\"currentColor\">{}</text>",
            left + w / 2.0,
            HEIGHT - 8.0,
            escape(&self.x.label),
            self.offset + 16.0,
            TOP + h / 2.0,
            escape(&self.y.label)
        );
    }
}

/// Opens an SVG document. Text and lines take the page's colour through `currentColor`, so that it reads on light and on
/// dark pages.
pub fn open_svg(width: f64, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"Ubuntu, Helvetica, Arial, sans-serif\" font-size=\"13\" color=\"#1f2328\" role=\"img\">\n\
         <style>@media (prefers-color-scheme: dark) {{ svg {{ color: #e6edf3; }} }}</style>\n"
    )
}

fn grid_line(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line x1=\"{:.2}\" y1=\"{:.2}\" x2=\"{:.2}\" y2=\"{:.2}\" stroke=\"currentColor\" stroke-opacity=\"0.13\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// A tick label; what follows `^` is set as an exponent.
fn tick_label(svg: &mut String, (x, y): (f64, f64), anchor: &str, label: &str) {
    let text = match label.split_once('^') {
        Some((base, exponent)) => format!("{base}<tspan dy=\"-5\" font-size=\"10\">{exponent}</tspan>"),
        None => label.to_owned(),
    };
    let _ = writeln!(
        svg,
        "<text x=\"{x:.2}\" y=\"{y:.2}\" text-anchor=\"{anchor}\" fill=\"currentColor\">{text}</text>"
    );
}
