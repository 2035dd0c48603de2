//! Diagonal scalings `T W T^-1` by powers of two, which floating point carries out exactly: what T2, T3 and A7 hold in where
//! they do not hold as the weights stand.

use subdeq_map::Operator;

use crate::closing::weighted_sup;
use crate::operator::channel_sums;

/// Steps of Collatz and Wielandt's iteration for each of the two vectors.
const ROUNDS: usize = 60;
/// Exponents stay where no weight that matters under- or overflows.
const LARGEST_EXPONENT: f64 = 60.0;

/// `T`, one entry per unknown or per channel of a convolution, that evens out rows and columns: from the left and right Perron
/// vectors of `|W|`. `None` where it would be the identity, and for graphs.
pub(crate) fn weights(operator: &Operator) -> Option<Vec<f64>> {
    let sums;
    let matrix = match operator {
        Operator::Dense(_) => operator,
        Operator::Conv(conv) => {
            sums = channel_sums(conv)?;
            &sums
        }
        Operator::Graph(_) => return None,
    };
    let ones = vec![1.0; matrix.len()];
    let perron = |matrix: &Operator| {
        let mut v = ones.clone();
        weighted_sup::search(matrix, &ones, &mut v, ROUNDS);
        v
    };
    let (right, left) = (perron(matrix), perron(&matrix.transposed()));
    let exponent = |(l, r): (f64, f64)| (0.5 * (l / r).log2()).round();
    let t: Vec<f64> = left
        .into_iter()
        .zip(right)
        .map(exponent)
        .map(|e| if e.is_finite() { e.clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp2() } else { 1.0 })
        .collect();
    t.iter().any(|t| *t != 1.0).then_some(t)
}

/// `T W T^-1`, exactly; `None` unless every weight of `T` is a power of two, there are as many as unknowns or channels, and
/// nothing under- or overflows.
pub(crate) fn scaled(operator: &Operator, t: &[f64]) -> Option<Operator> {
    let (units, taps) = match operator {
        Operator::Dense(_) => (operator.len(), 1),
        Operator::Conv(conv) => (conv.channels(), conv.tap_count()),
        Operator::Graph(_) => return None,
    };
    let power_of_two = |t: &f64| *t > 0.0 && t.is_normal() && t.to_bits() & ((1 << 52) - 1) == 0;
    if t.len() != units || !t.iter().all(power_of_two) {
        return None;
    }
    let (mut at, mut exact) = (0, true);
    let scaled = operator.clone().try_map(|w| {
        let (row, column) = (at / taps / units, at / taps % units);
        at += 1;
        let value = w * (t[row] / t[column]);
        exact &= w == 0.0 || value.is_normal();
        value
    });
    scaled.ok().filter(|_| exact)
}
