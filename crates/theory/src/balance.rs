//! Diagonal scalings `T W T^-1` by powers of two, which floating point carries out exactly: what T2, T3 and A7 hold in where
//! they do not hold as the weights stand.

use subdeq_map::Operator;

use crate::operator::channel_sums;

/// Sweeps over the unknowns; few are needed, and any `T` is as good as another for a proof.
const SWEEPS: usize = 30;
/// Exponents stay where no weight that matters under- or overflows.
const LARGEST_EXPONENT: f64 = 60.0;

/// `T`, one entry per unknown or per channel of a convolution, that makes the sums of `|T W T^-1|` over each row and over each
/// column about equal (Osborne's balancing). `None` where it would be the identity, and for graphs.
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
    let n = matrix.len();
    let mut a: Vec<f64> = matrix.weights().iter().map(|w| w.abs()).collect();
    let mut exponents = vec![0.0f64; n];
    for _ in 0..SWEEPS {
        let mut changed = false;
        for i in 0..n {
            let others = || (0..n).filter(|&j| j != i);
            let row: f64 = others().map(|j| a[i * n + j]).sum();
            let column: f64 = others().map(|j| a[j * n + i]).sum();
            let step = (0.5 * (column / row).log2()).round();
            let fits = step.is_finite() && (exponents[i] + step).abs() <= LARGEST_EXPONENT;
            if step == 0.0 || !fits {
                continue;
            }
            exponents[i] += step;
            for j in others() {
                a[i * n + j] *= step.exp2();
                a[j * n + i] *= (-step).exp2();
            }
            changed = true;
        }
        if !changed {
            break;
        }
    }
    let t: Vec<f64> = exponents.into_iter().map(f64::exp2).collect();
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
