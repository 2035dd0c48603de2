//! What a map means: `F(z; y)` in plain `f64`, written straight from the equation.

use crate::{Form, Injection, Map, Operator, PNorm};

/// Where an equation has no value.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("F(z; y) is not defined in entry {entry} (counting from 0): {why}")]
pub struct Undefined {
    /// The entry.
    pub entry: usize,
    /// What stands in the way.
    pub why: String,
}

impl Map {
    /// `F(z; y)`. Images are stored channel after channel. `hidden` is the operator inside [`Form::Gains`], whose signs are
    /// `P` and `N`; the identity where it is not given.
    ///
    /// ```
    /// use subdeq_map::{Activation, Map, Operator};
    /// let w = Operator::dense(1, vec![-1.0])?;
    /// let power = Map::single(Activation::Identity, 0.5)?.with_power(0.5)?;
    /// assert_eq!(power.evaluate(&w, None, &[0.25], &[1.0])?, [1.5]);
    /// assert!(power.evaluate(&w, None, &[0.75], &[1.0]).is_err(), "a root of a negative number");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A power of a negative number, a logarithm or a quotient at zero, or a group whose norm is zero.
    ///
    /// # Panics
    /// Where `z` or `y` has another length than the operator's states and injections.
    pub fn evaluate(
        &self,
        w: &Operator,
        hidden: Option<&Operator>,
        z: &[f64],
        y: &[f64],
    ) -> Result<Vec<f64>, Undefined> {
        let n = w.len();
        assert_eq!(z.len(), n, "a state has as many entries as the operator has unknowns");
        assert_eq!(y.len(), n * self.form().injection_count(), "an injection that does not fit");
        let mut f =
            (0..n).map(|i| self.entry(w, hidden, z, y, i)).collect::<Result<Vec<f64>, Undefined>>()?;
        if let Some(norm) = self.normalisation() {
            let groups =
                norm.groups.members(w).map_err(|bad| Undefined { entry: 0, why: bad.to_string() })?;
            for group in groups {
                let size = norm.p.norm(&group.iter().map(|&i| f[i]).collect::<Vec<f64>>());
                if !(size > 0.0) {
                    return Err(Undefined {
                        entry: group[0],
                        why: format!("the norm of its group is {size}"),
                    });
                }
                group.iter().for_each(|&i| f[i] /= size);
            }
        }
        if let Some(projection) = self.projection() {
            let groups =
                projection.groups.members(w).map_err(|bad| Undefined { entry: 0, why: bad.to_string() })?;
            for group in groups {
                let size = PNorm::Finite(2.0).norm(&group.iter().map(|&i| f[i]).collect::<Vec<f64>>());
                if size > projection.radius {
                    group.iter().for_each(|&i| f[i] *= projection.radius / size);
                }
            }
        }
        Ok(f)
    }

    /// Entry `i` before any normalisation or projection.
    fn entry(
        &self,
        w: &Operator,
        hidden: Option<&Operator>,
        z: &[f64],
        y: &[f64],
        i: usize,
    ) -> Result<f64, Undefined> {
        let n = w.len();
        let s = |u: f64| self.activation().value(u);
        let undefined = |why: String| Err(Undefined { entry: i, why });
        let row = w.row(i);
        let excitation = || row.iter().filter(|(_, w)| *w > 0.0).map(|&(j, w)| w * z[j]).sum::<f64>();
        let inhibition = || row.iter().filter(|(_, w)| *w < 0.0).map(|&(j, w)| -w * z[j]).sum::<f64>();
        let quotient = |above: f64, below: f64| {
            if below == 0.0 { undefined(format!("{above} / 0")) } else { Ok(above / below) }
        };
        let injected = self.form().share() * y[i];
        let (inner, outer) = match self.injection() {
            Injection::Inner => (injected, 0.0),
            Injection::Outer => (0.0, injected),
        };
        let core = match self.form() {
            Form::Single => s(excitation() - inhibition() + inner),
            Form::Tied { margin, skew } => {
                let apply = |a: &Operator, j: usize| a.row(j).iter().map(|&(k, w)| w * z[k]).sum::<f64>();
                let back = w.transposed();
                // (A' A z)_i, entry by entry of A z where row i of A' is not zero.
                let gram: f64 = back.row(i).iter().map(|&(j, a)| a * apply(w, j)).sum();
                s((1.0 - margin) * z[i] - gram + skew * (apply(w, i) - apply(&back, i)) + inner)
            }
            Form::Graph { teleport } => s((1.0 - teleport) * (excitation() - inhibition()) + inner),
            Form::PowerMean { .. } => {
                return undefined("means over hyperedges, which a matrix does not tell".into());
            }
            Form::SplitSign => s(excitation()) - s(inhibition()),
            Form::Divisive { q } => s(quotient(excitation(), q + inhibition())?),
            Form::Rational { q } => {
                let (p, n) = (excitation(), inhibition());
                quotient(p, q + p + n)?
            }
            Form::PowerRatio { p, e } => {
                let ratio = quotient(excitation() + y[i] + e, inhibition() + y[n + i] + e)?;
                if !(ratio > 0.0) {
                    return undefined(format!("the power {p} of {ratio}"));
                }
                return Ok(ratio.powf(p));
            }
            Form::Gains => row
                .iter()
                .map(|&(j, gain)| {
                    let sign = gain.signum();
                    // P where the gain excites, N where it inhibits.
                    let drive = match hidden {
                        None => z[j],
                        Some(hidden) => {
                            let row = hidden.row(j);
                            row.iter().map(|&(k, u)| (sign * u).max(0.0) * z[k]).sum::<f64>()
                        }
                    };
                    gain * s(drive) + self.tie() * (-gain).max(0.0)
                })
                .sum::<f64>(),
            Form::Monomial => {
                if let Some((_, z)) = row.iter().map(|&(j, _)| (j, z[j])).find(|(_, z)| !(*z > 0.0)) {
                    return undefined(format!("the logarithm of {z}"));
                }
                s(row.iter().map(|&(j, w)| w * z[j].ln()).sum::<f64>().exp())
            }
        };
        let base = core + self.shift();
        if self.power() == 1.0 {
            return Ok(base + outer);
        }
        if base < 0.0 {
            return undefined(format!("the power {} of {base}", self.power()));
        }
        Ok(base.powf(self.power()) + outer)
    }
}
