//! Accuracy under changes of the images, in words.

use subdeq::train::Robustness;

/// What was found, line by line.
pub fn lines(found: &Robustness) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(gain), Some(parts)) = (found.gain, &found.parts) {
        let blocks: Vec<String> = parts
            .blocks
            .iter()
            .map(|block| format!("{} x {} x {}", up(block.injection), up(block.layer), up(block.pooling)))
            .collect();
        lines.push(format!(
            "gain from pixels (0 to 1) to logits: at most {}, proved (injection x layer x pooling: {}; head: {})",
            up(gain),
            blocks.join("; "),
            up(parts.head)
        ));
    }
    let certified = found.certified.iter().map(|(radius, share)| format!("{share:.2} % within {radius:.4}"));
    lines.push(format!(
        "right and proved to stay so (2-norm of pixels from 0 to 1): {}",
        certified.collect::<Vec<_>>().join(", ")
    ));
    if let Some(attacked) = &found.attacked {
        let (steps, restarts) = attacked.effort;
        let at = attacked.at.iter().map(|(radius, proved, left)| {
            format!("{proved:.2} % proved <= {left:.2} % left by attacks within {radius:.4}")
        });
        lines.push(format!(
            "attacked ({} images, {restarts} times {steps} steps each): {:.2} % without a change; {}",
            attacked.samples,
            attacked.clean,
            at.collect::<Vec<_>>().join("; ")
        ));
        lines.push(format!(
            "attacked within the radius that is proved for each: {} of {} changed their class",
            attacked.broken, attacked.claims
        ));
    }
    lines
}

/// Five digits; a bound is never made smaller by printing it.
fn up(bound: f64) -> String {
    if !(bound > 0.0 && bound.is_finite()) {
        return bound.to_string();
    }
    let unit = 10f64.powi(bound.log10().floor() as i32 - 4);
    let shown = (bound / unit).ceil() * unit;
    format!("{:.*}", (4.0 - bound.log10().floor()).max(0.0) as usize, shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_bounds_are_not_smaller() {
        for bound in [1.0, 0.999_990_1, 1.234_561, 12.000_01, 0.166_666_67, 3.1e-7] {
            let shown: f64 = up(bound).parse().unwrap();
            assert!(shown >= bound && shown < bound * 1.0002, "{bound} {shown}");
        }
    }
}
