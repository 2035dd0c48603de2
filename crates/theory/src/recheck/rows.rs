//! Products with an operator over a box, straight from its definition: every weight times the end of the interval that its sign
//! asks for, and a bound of what the sums lose. (The proofs are found with centres and radii.)

use subdeq_map::{Conv, Operator, Padding};

use crate::bound::Upper;
use crate::interval::Interval;
use crate::round::{gamma, tiny, vectorised};

/// `W x` for `x` in the box, entry by entry.
pub(super) fn box_product(operator: &Operator, on: &[Interval]) -> Vec<Interval> {
    let mut sums = Sums::new(on);
    sums.add(operator, |w| w);
    sums.intervals(operator.terms())
}

/// `W+ x` and `W- x` for `x` in the box.
pub(super) fn drives(operator: &Operator, on: &[Interval]) -> (Vec<Interval>, Vec<Interval>) {
    let part = |sign: f64| {
        let mut sums = Sums::new(on);
        sums.add(operator, |w| (sign * w).max(0.0));
        sums.intervals(operator.terms())
    };
    (part(1.0), part(-1.0))
}

/// `|W| v` for `v >= 0`, rounded up.
pub(super) fn absolute_product(operator: &Operator, v: &[f64]) -> Vec<Upper> {
    let on: Vec<Interval> = v.iter().map(|&v| Interval::point(v)).collect();
    let mut sums = Sums::new(&on);
    sums.add(operator, f64::abs);
    sums.intervals(operator.terms()).into_iter().map(|sum| Upper::new(sum.hi)).collect()
}

/// The ends of a box, and sums over them.
struct Sums {
    lower: Vec<f64>,
    upper: Vec<f64>,
    /// The larger of both ends in absolute value.
    size: Vec<f64>,
    low: Vec<f64>,
    high: Vec<f64>,
    /// Sums of absolute values: what the roundings are relative to.
    magnitude: Vec<f64>,
}

/// Partial sums of a row.
const LANES: usize = 8;

impl Sums {
    fn new(on: &[Interval]) -> Sums {
        let zeros = vec![0.0; on.len()];
        Sums {
            lower: on.iter().map(|x| x.lo).collect(),
            upper: on.iter().map(|x| x.hi).collect(),
            size: on.iter().map(|x| x.magnitude()).collect(),
            low: zeros.clone(),
            high: zeros.clone(),
            magnitude: zeros,
        }
    }

    fn add(&mut self, operator: &Operator, weight: impl Fn(f64) -> f64 + Copy) {
        match operator {
            Operator::Dense(_) => vectorised(
                #[inline(always)]
                || self.add_dense(operator.weights(), weight),
            ),
            Operator::Conv(conv) => vectorised(
                #[inline(always)]
                || self.add_conv(conv, weight),
            ),
            Operator::Graph(graph) => {
                let columns = graph.columns();
                for node in 0..graph.nodes() {
                    for (neighbour, a) in graph.neighbours(node) {
                        self.add_run(weight(a), node * columns, neighbour * columns, columns);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn add_dense(&mut self, matrix: &[f64], weight: impl Fn(f64) -> f64) {
        let n = self.low.len();
        for (i, row) in matrix.chunks_exact(n).enumerate() {
            let (mut low, mut high, mut magnitude) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
            let whole = n - n % LANES;
            for start in (0..whole).step_by(LANES) {
                let (row, lower) = (&row[start..][..LANES], &self.lower[start..][..LANES]);
                let (upper, size) = (&self.upper[start..][..LANES], &self.size[start..][..LANES]);
                for k in 0..LANES {
                    let w = weight(row[k]);
                    let (a, b) = if w >= 0.0 { (lower[k], upper[k]) } else { (upper[k], lower[k]) };
                    low[k] += w * a;
                    high[k] += w * b;
                    magnitude[k] += w.abs() * size[k];
                }
            }
            for (j, &w) in row.iter().enumerate().skip(whole) {
                let w = weight(w);
                let (a, b) =
                    if w >= 0.0 { (self.lower[j], self.upper[j]) } else { (self.upper[j], self.lower[j]) };
                low[0] += w * a;
                high[0] += w * b;
                magnitude[0] += w.abs() * self.size[j];
            }
            self.low[i] = low.iter().sum();
            self.high[i] = high.iter().sum();
            self.magnitude[i] = magnitude.iter().sum();
        }
    }

    #[inline(always)]
    fn add_conv(&mut self, conv: &Conv, weight: impl Fn(f64) -> f64) {
        let (h, w, side) = (conv.height() as isize, conv.width() as isize, conv.side() as isize);
        let plane = conv.pixels();
        for output in 0..conv.channels() {
            for input in 0..conv.channels() {
                for (tap, &k) in conv.taps(output, input).iter().enumerate() {
                    let k = weight(k);
                    if k == 0.0 {
                        continue;
                    }
                    let (down, right) = (tap as isize / side - side / 2, tap as isize % side - side / 2);
                    for row in 0..h {
                        let source = match conv.padding() {
                            Padding::Circular => (row + down).rem_euclid(h),
                            Padding::Zero if row + down < 0 || row + down >= h => continue,
                            Padding::Zero => row + down,
                        };
                        let to = output * plane + (row * w) as usize;
                        let from = input * plane + (source * w) as usize;
                        // The columns whose neighbour lies inside, and those that wrap around.
                        let (first, last) = ((-right).max(0), (w - right).min(w));
                        let run = |start: isize, end: isize, shift: isize| {
                            (
                                to + start as usize,
                                from + (start + shift) as usize,
                                (end - start).max(0) as usize,
                            )
                        };
                        if first < last {
                            let (to, from, len) = run(first, last, right);
                            self.add_run(k, to, from, len);
                        }
                        if conv.padding() == Padding::Circular {
                            let (start, end, shift) =
                                if right < 0 { (0, -right, right + w) } else { (w - right, w, right - w) };
                            let (to, from, len) = run(start, end, shift);
                            self.add_run(k, to, from, len);
                        }
                    }
                }
            }
        }
    }

    /// `w` times a run of neighbouring entries.
    #[inline(always)]
    fn add_run(&mut self, w: f64, to: usize, from: usize, len: usize) {
        let (below, above) = if w >= 0.0 { (&self.lower, &self.upper) } else { (&self.upper, &self.lower) };
        let (below, above, size) = (&below[from..][..len], &above[from..][..len], &self.size[from..][..len]);
        let (low, high) = (&mut self.low[to..][..len], &mut self.high[to..][..len]);
        let magnitude = &mut self.magnitude[to..][..len];
        for k in 0..len {
            low[k] += w * below[k];
            high[k] += w * above[k];
            magnitude[k] += w.abs() * size[k];
        }
    }

    fn intervals(self, terms: usize) -> Vec<Interval> {
        let relative = gamma(terms + LANES) * (1.0 + 2.0 * gamma(terms + LANES));
        let ends = self.low.iter().zip(&self.high).zip(&self.magnitude);
        ends.map(|((low, high), magnitude)| {
            let slack = (relative * magnitude + tiny(2 * terms + 2)).next_up();
            Interval::new((low - slack).next_down(), (high + slack).next_up())
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_over_boxes_are_those_of_the_definition() {
        let number = |k: usize| ((k * 7919 + 13) % 101) as f64 / 50.0 - 1.0;
        let numbers = |len: usize| (0..len).map(number).collect::<Vec<f64>>();
        let operators = [
            Operator::dense(11, numbers(121)).unwrap(),
            Operator::conv(2, 3, 5, Padding::Zero, numbers(36)).unwrap(),
            Operator::conv(2, 1, 1, Padding::Zero, numbers(36)).unwrap(),
            Operator::conv(2, 4, 3, Padding::Circular, numbers(36)).unwrap(),
            Operator::conv(2, 5, 6, Padding::Circular, numbers(100)).unwrap(),
            Operator::graph(3, vec![0, 2, 3, 4], vec![0, 2, 1, 0], numbers(4)).unwrap(),
        ];
        for w in operators {
            let on: Vec<Interval> =
                (0..w.len()).map(|k| Interval::new(number(3 * k), number(3 * k) + 0.3)).collect();
            let (found, (plus, minus)) = (box_product(&w, &on), drives(&w, &on));
            for i in 0..w.len() {
                let sum = |part: fn(f64) -> f64| {
                    w.row(i).iter().fold(Interval::point(0.0), |sum, &(j, w)| {
                        if part(w) == 0.0 { sum } else { sum + Interval::point(part(w)) * on[j] }
                    })
                };
                for (found, exact) in [
                    (found[i], sum(|w| w)),
                    (plus[i], sum(|w| w.max(0.0))),
                    (minus[i], sum(|w| (-w).max(0.0))),
                ] {
                    assert!(
                        found.lo <= exact.lo + 1e-13 && exact.lo - found.lo < 1e-12,
                        "{found:?} {exact:?}"
                    );
                    assert!(
                        found.hi >= exact.hi - 1e-13 && found.hi - exact.hi < 1e-12,
                        "{found:?} {exact:?}"
                    );
                }
            }
        }
    }
}
