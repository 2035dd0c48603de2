//! A3 to A5 on a box again: products end by end, the scalar parts by their definitions.

use subdeq_map::{Activation, Form, Map, Operator};

use super::rows::{box_product, drives};
use super::scalar::Scalar;
use super::{Recheck, ensure};
use crate::bound::Upper;
use crate::interval::Interval;

/// The strong degree on the box after so many steps.
pub(super) fn degree(map: &Map, weights: &Operator, y: &[Interval], steps: usize) -> Result<Upper, Recheck> {
    ensure(map.normalisation().is_none(), "the test is not for normalised maps")?;
    let form = SplitForm { map, weights, s: Scalar::plain(map.activation()), y };
    let mut state = form.start()?;
    for _ in 0..steps.min(1000) {
        let (image, _) = form.evaluate(&state)?;
        for (z, image) in state.iter_mut().zip(image) {
            *z = z.intersect(image).unwrap_or(*z);
        }
    }
    ensure(state.iter().all(|z| z.lo > 0.0), "the box reaches states that are not positive")?;
    let (image, numerators) = form.evaluate(&state)?;
    Ok(numerators.into_iter().zip(image).map(|(n, f)| n.over(f.lo)).fold(Upper::ZERO, Upper::max))
}

struct SplitForm<'a> {
    map: &'a Map,
    weights: &'a Operator,
    s: Scalar,
    y: &'a [Interval],
}

impl SplitForm<'_> {
    /// Every value that the map takes at positive states.
    fn start(&self) -> Result<Vec<Interval>, Recheck> {
        let s = self.map.activation();
        let (low, high) = (self.s.value(Interval::point(0.0)).lo, s.range().1);
        let (low, high) = match self.map.form() {
            Form::SplitSign => (low - high, high - low),
            Form::Divisive { .. } | Form::Monomial => (low, high),
            Form::Rational { .. } => (0.0, 1.0),
            _ => return Err(Recheck::new("the test is not for this form")),
        };
        let values = Interval::new(low.next_down(), high.next_up()) + Interval::point(self.map.shift());
        ensure(values.is_bounded(), "the map is not bounded")?;
        ensure(s.is_increasing(), "the activation is not increasing")?;
        let start: Vec<Interval> = self.y.iter().map(|&y| values + y).collect();
        ensure(start.iter().all(|z| z.lo > 0.0), "the map does not keep positive states positive")?;
        Ok(start)
    }

    /// Values and bounds of `(|J| z)_i` over the box.
    fn evaluate(&self, on: &[Interval]) -> Result<(Vec<Interval>, Vec<Upper>), Recheck> {
        let one = Interval::point(1.0);
        let (up, down) = drives(self.weights, on);
        let logs: Vec<Interval> = on.iter().map(|z| z.ln()).collect();
        let powers = match self.map.form() {
            Form::Monomial => {
                ensure(on.iter().all(|z| z.lo > 0.0), "the logarithm of zero")?;
                box_product(self.weights, &logs).into_iter().map(Interval::exp).collect()
            }
            _ => Vec::new(),
        };
        let scaled = |u: Interval| Upper::new(cut(u).hi) * Upper::new(self.s.slope(u).magnitude());
        let sharper = |u: Interval| scaled(u).min(Upper::new((u * self.s.slope(u)).magnitude()));
        let (mut values, mut numerators) = (Vec::new(), Vec::new());
        for i in 0..on.len() {
            let (u, w) = (cut(up[i]), cut(down[i]));
            let (value, numerator) = match self.map.form() {
                Form::SplitSign => (self.s.value(u) - self.s.value(w), sharper(u) + sharper(w)),
                Form::Divisive { q } => {
                    let ratio = u / (Interval::point(q) + w);
                    let inhibited = Upper::new((one - Interval::point(q) / (Interval::point(q) + w)).hi);
                    (self.s.value(ratio), sharper(ratio) * (Upper::new(1.0) + inhibited))
                }
                Form::Rational { q } => {
                    let total = Interval::point(q) + u + w;
                    let share = u / total;
                    let rest = (Interval::point(q) + w + w) / total;
                    (share, Upper::new((share * rest).hi))
                }
                Form::Monomial => {
                    let sum: Upper = self.weights.row(i).iter().map(|(_, w)| Upper::new(w.abs())).sum();
                    (self.s.value(powers[i]), sharper(powers[i]) * sum)
                }
                _ => return Err(Recheck::new("the test is not for this form")),
            };
            values.push(value + Interval::point(self.map.shift()) + self.y[i]);
            numerators.push(numerator);
        }
        ensure(values.iter().all(|f| f.is_bounded()), "the map is not certainly defined on the box")?;
        Ok((values, numerators))
    }
}

/// Without what is below zero.
fn cut(z: Interval) -> Interval {
    Interval::new(z.lo.max(0.0), z.hi.max(0.0))
}

impl Scalar {
    /// `s` alone.
    fn plain(activation: Activation) -> Scalar {
        Scalar { activation, shift: 0.0, power: 1.0 }
    }
}
