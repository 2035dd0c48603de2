//! A few test images with what the model makes of them.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use resvg::tiny_skia::{ColorU8, Pixmap};
use subdeq::train::{Evaluation, Example};

use super::percent;
use super::run::Run;
use crate::chart::escape;

pub fn draw(html: &mut String, run: &Run) {
    let Some(evaluation) = run.evaluation.as_ref().filter(|e| !e.examples.is_empty()) else { return };
    html.push_str("<h2>Test inputs</h2>\n<div class=\"card\"><div class=\"examples\">\n");
    for example in &evaluation.examples {
        draw_example(html, evaluation, example);
    }
    html.push_str("</div>\n");
    if evaluation.examples.iter().any(|e| e.radius.is_some()) {
        html.push_str(
            "<p class=\"muted\">Within a radius (2-norm, pixels from 0 to 1) every image is proved to get the same class, right or wrong.</p>\n",
        );
    }
    html.push_str("</div>\n");
}

fn draw_example(html: &mut String, evaluation: &Evaluation, example: &Example) {
    let name = |class: u32| {
        let known = evaluation.class_names.get(class as usize).cloned();
        escape(&known.unwrap_or_else(|| class.to_string()))
    };
    let miss = example.label != example.prediction;
    let _ = write!(html, "<div class=\"example{}\">", if miss { " miss" } else { "" });
    if let Some(png) = png(example) {
        let _ = write!(
            html,
            "<img alt=\"test image {}, {}\" src=\"data:image/png;base64,{}\">",
            example.index,
            name(example.label),
            STANDARD.encode(png)
        );
    }
    let _ = write!(html, "<b>{}</b> ({})", name(example.prediction), percent(example.probability));
    if miss {
        let _ = write!(html, "<br><span class=\"no\">is {}</span>", name(example.label));
    }
    match example.certified {
        Some(true) => html.push_str("<br><span class=\"proven\">one fixed point: proved</span>"),
        Some(false) => html.push_str("<br><span class=\"unproven\">fixed point: no proof</span>"),
        None => {}
    }
    if let Some(radius) = example.radius {
        let _ = write!(html, "<br>radius {}", rounded_down(radius));
    }
    html.push_str("</div>\n");
}

/// Three digits; a proved radius is never made larger by printing it.
fn rounded_down(radius: f64) -> String {
    if radius > 0.0 && radius.is_finite() {
        let unit = 10f64.powi(radius.log10().floor() as i32 - 2);
        let shown = (radius / unit).floor() * unit;
        if shown < 1e-3 {
            format!("{shown:.2e}")
        } else {
            format!("{shown:.5}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    } else {
        radius.to_string()
    }
}

/// The picture; `None` if its numbers do not fit together, which is no reason to have no report.
fn png(example: &Example) -> Option<Vec<u8>> {
    let (height, width) = (example.height, example.width);
    let plane = height.checked_mul(width)?;
    if !matches!(example.channels, 1 | 3) || example.pixels.len() != plane.checked_mul(example.channels)? {
        return None;
    }
    let mut picture = Pixmap::new(u32::try_from(width).ok()?, u32::try_from(height).ok()?)?;
    for (k, pixel) in picture.pixels_mut().iter_mut().enumerate() {
        let channel = |c: usize| example.pixels[(c % example.channels) * plane + k];
        *pixel = ColorU8::from_rgba(channel(0), channel(1), channel(2), 255).premultiply();
    }
    picture.encode_png().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_radius_is_never_larger_than_the_proved_one() {
        for radius in [0.123_456, 1.999_9, 0.000_123_49, 7.0, 1e-9, 0.009_999] {
            let shown: f64 = rounded_down(radius).parse().unwrap();
            assert!(shown <= radius && shown > 0.98 * radius, "{radius} {shown}");
        }
    }

    #[test]
    fn pictures_have_their_size_and_damage_has_none() {
        let mut example = Example {
            index: 0,
            height: 2,
            width: 3,
            channels: 1,
            pixels: vec![0, 50, 100, 150, 200, 250],
            label: 0,
            prediction: 0,
            probability: 1.0,
            certified: None,
            radius: None,
        };
        let bytes = png(&example).unwrap();
        assert_eq!((&bytes[1..4], bytes[19], bytes[23]), (&b"PNG"[..], 3, 2));
        example.pixels.pop();
        assert!(png(&example).is_none());
        example.channels = 0;
        assert!(png(&example).is_none());
    }
}
