//! Power means over hyperedges: by how much they stretch distances, and what follows. The theorem is
//! [`crate::theorems::power_means`].

use subdeq_map::{Form, Map, SignStructure};

use crate::bound::Upper;
use crate::by_form::stated;
use crate::certificate::{Attempt, Evidence, Metric, States, Theorem, Verdict};
use crate::interval::Interval;

/// `n mean(u^p)^(1/p)` of `n` numbers `u >= 0`, `p >= 1`, rounded up: what a hyperedge makes of what its nodes give it.
///
/// ```
/// use subdeq_theory::power_mean::hyperedge;
/// // Of equal numbers it is their sum, whatever the power.
/// assert!((hyperedge(&[0.5; 4], 3.0) - 2.0).abs() < 1e-12);
/// // Else it lies above the sum and below the number of times the largest.
/// assert!((hyperedge(&[3.0, 4.0], 2.0) - 50f64.sqrt()).abs() < 1e-12);
/// assert_eq!(hyperedge(&[], 2.0), 0.0);
/// ```
#[must_use]
pub fn hyperedge(numbers: &[f64], p: f64) -> f64 {
    let top = Upper::largest(numbers.iter().copied()).get();
    if top.is_infinite() {
        return top;
    }
    if top == 0.0 {
        return 0.0;
    }
    let (count, top) = (Interval::point(numbers.len() as f64), Interval::point(top));
    let positive = numbers.iter().filter(|&&u| u > 0.0);
    // Shares of the largest, so that no power overflows.
    let powers = positive.fold(Interval::point(0.0), |sum, &u| sum + (Interval::point(u) / top).powf(p));
    let mean = ((powers / count).ln() / Interval::point(p)).exp();
    // A mean is at most the largest, which is exact where the library's functions are not.
    (count * top * Interval::point(mean.hi.min(1.0))).hi
}

/// Uniqueness by the gain of power means: an upper bound of `max_i (sum_e b_ie h_e(v) + own_i v_i) / v_i` for the positive `v`, all
/// weights nonnegative. For inputs `y >= y_min` (entrywise).
///
/// # Errors
/// The [`Attempt`] says what is missing: inputs that are not negative, or a factor below one.
pub fn prove(map: &Map, gain: f64, v: Vec<f64>, y_min: f64) -> Result<Verdict, Attempt> {
    let refused = |why: &str, value| Attempt::new(Theorem::PowerMeans.to_string(), why, value);
    let Form::PowerMean { teleport, .. } = map.form() else {
        return Err(refused("the map has another form", f64::NAN));
    };
    if !(y_min >= 0.0) {
        return Err(refused("power means are of numbers from 0 on, and the injection may be below", y_min));
    }
    let positive = v.iter().all(|v| *v > 0.0 && v.is_finite());
    if !(gain >= 0.0) || !positive {
        return Err(refused("a gain is a number from 0 on, for positive weights", gain));
    }
    let bound = ((Interval::point(1.0) - Interval::point(teleport)) * Interval::point(gain)).hi;
    let Some(factor) = stated(bound) else {
        return Err(refused(&format!("the factor is {bound:.6}, which is not below one"), bound));
    };
    Ok(Verdict::Proven {
        theorem: Theorem::PowerMeans,
        factor: Some(factor),
        metric: Metric::WeightedSup { v },
        states: States::Reals,
        starts: Some(States::Reals),
        evidence: Evidence::ByForm { signs: SignStructure::Nonnegative, weight_norm: Some(gain) },
    })
}
