//! An axis: a range of numbers, its ticks, and where a number falls on it.

/// Linear or logarithmic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal distances for equal differences.
    Linear,
    /// Equal distances for equal ratios (positive numbers only).
    Log,
}

/// A labelled axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What is measured along it.
    pub label: String,
    /// Linear or logarithmic.
    pub scale: Scale,
    /// Whether only whole numbers are measured along it, as epochs are.
    pub whole: bool,
}

impl Axis {
    /// An axis whose range follows the data.
    pub fn new(label: &str, scale: Scale) -> Self {
        Self { label: label.to_owned(), scale, whole: false }
    }

    /// A linear axis of whole numbers: nothing happens between two epochs.
    pub fn whole(label: &str) -> Self {
        Self { whole: true, ..Self::new(label, Scale::Linear) }
    }

    /// The distance of two ticks of a linear axis.
    fn step(&self, lo: f64, hi: f64) -> f64 {
        let step = tick_step(lo, hi);
        if self.whole { step.max(1.0) } else { step }
    }

    /// Whether a number can be drawn on this axis at all.
    pub fn accepts(&self, x: f64) -> bool {
        x.is_finite() && (self.scale == Scale::Linear || x > 0.0)
    }

    /// The range to draw for these values: the smallest tidy one around them.
    pub fn resolve(&self, values: impl Iterator<Item = f64>) -> (f64, f64) {
        let (mut lo, mut hi) = (f64::INFINITY, f64::NEG_INFINITY);
        for x in values.filter(|&x| self.accepts(x)) {
            lo = lo.min(x);
            hi = hi.max(x);
        }
        if lo > hi {
            return if self.scale == Scale::Log { (0.1, 1.0) } else { (0.0, 1.0) };
        }
        match self.scale {
            Scale::Log => {
                let (lo, hi) = (10f64.powf(lo.log10().floor()), 10f64.powf(hi.log10().ceil()));
                if lo < hi { (lo, hi) } else { (lo / 10.0, hi) }
            }
            Scale::Linear => {
                if lo == hi {
                    let half = if self.whole { 1.0 } else { 0.5 };
                    return (lo - half, hi + half);
                }
                let step = self.step(lo, hi);
                ((lo / step).floor() * step, (hi / step).ceil() * step)
            }
        }
    }

    /// Position of `x` in `[0, 1]` along the range.
    pub fn place(&self, x: f64, (lo, hi): (f64, f64)) -> f64 {
        match self.scale {
            Scale::Linear => (x - lo) / (hi - lo),
            Scale::Log => (x.ln() - lo.ln()) / (hi.ln() - lo.ln()),
        }
    }

    /// Ticks with their labels; a label may hold an exponent after `^`.
    pub fn ticks(&self, (lo, hi): (f64, f64)) -> Vec<(f64, String)> {
        match self.scale {
            Scale::Linear => {
                let step = self.step(lo, hi);
                let digits = (-step.log10().floor()).max(0.0) as usize;
                let (first, last) = ((lo / step).ceil() as i64, (hi / step + 1e-9).floor() as i64);
                (first..=last).map(|k| k as f64 * step).map(|x| (x, format!("{x:.digits$}"))).collect()
            }
            Scale::Log => {
                let (first, last) = (lo.log10().ceil() as i32, hi.log10().floor() as i32);
                let stride = ((last - first) / 8 + 1) as usize;
                (first..=last).step_by(stride).map(|e| (10f64.powi(e), format!("10^{e}"))).collect()
            }
        }
    }
}

/// A step of 1, 2 or 5 times a power of ten that cuts the range into about five pieces.
fn tick_step(lo: f64, hi: f64) -> f64 {
    let raw = (hi - lo) / 5.0;
    let unit = 10f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0].into_iter().find(|f| f * unit >= raw * 0.999).unwrap_or(10.0);
    factor * unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_ticks_are_tidy_and_inside() {
        let axis = Axis::new("x", Scale::Linear);
        let range = axis.resolve([0.3, 9.7].into_iter());
        assert_eq!(range, (0.0, 10.0));
        let labels: Vec<_> = axis.ticks(range).into_iter().map(|t| t.1).collect();
        assert_eq!(labels, ["0", "2", "4", "6", "8", "10"]);
    }

    #[test]
    fn whole_numbers_have_whole_ticks() {
        let axis = Axis::whole("epoch");
        for last in [1.0, 2.0, 3.0, 7.0] {
            let range = axis.resolve([1.0, last].into_iter());
            let labels: Vec<_> = axis.ticks(range).into_iter().map(|t| t.1).collect();
            assert!(labels.iter().all(|label| label.parse::<i32>().is_ok()), "{labels:?}");
            assert!(labels.contains(&"1".to_owned()) || last > 5.0, "{labels:?}");
        }
    }

    #[test]
    fn log_axis_spans_whole_decades_and_drops_what_it_cannot_show() {
        let axis = Axis::new("r", Scale::Log);
        let range = axis.resolve([0.0, 3e-7, 0.2, f64::NAN].into_iter());
        assert!((range.0 / 1e-7 - 1.0).abs() < 1e-9 && (range.1 - 1.0).abs() < 1e-9);
        assert_eq!(axis.ticks(range).first().map(|t| t.1.as_str()), Some("10^-7"));
        assert!(!axis.accepts(0.0));
    }

    #[test]
    fn a_single_value_still_gets_a_range() {
        let range = Axis::new("x", Scale::Linear).resolve(std::iter::once(3.0));
        assert!(range.0 < 3.0 && range.1 > 3.0);
        let range = Axis::new("x", Scale::Log).resolve(std::iter::once(1.0));
        assert!(range.0 < range.1);
    }
}
