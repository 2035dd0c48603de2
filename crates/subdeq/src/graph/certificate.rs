//! What is proved about a propagation.

use serde::{Deserialize, Serialize};
use subdeq_engine::GraphNorm;
use subdeq_engine::cpu::graph::OutputActivation;
use subdeq_map::{Form, Map, SignStructure};
use subdeq_theory::bound::Upper;
use subdeq_theory::bounds::Contraction;
use subdeq_theory::by_form::{self, WeightFacts};
use subdeq_theory::certificate::{Attempt, Metric, States, Theorem, Verdict};

use super::{Csr, GraphModel, GraphOperator, power_means};
use crate::{Error, Result};

/// What is known about the injection `f`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "kebab-case")]
pub enum InjectionBound {
    /// `f >= 0`, whatever the weights and features (by its last activation).
    Nonnegative,
    /// `f >= bound` for the injection at hand.
    AtLeast(f64),
    /// Nothing.
    Any,
}

/// A verdict about a propagation over one graph.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphCertificate {
    /// The map.
    pub map: Map,
    /// For which injections the verdict holds.
    pub injection: InjectionBound,
    /// What was found.
    pub verdict: Verdict,
}

impl GraphCertificate {
    /// The contraction factor, where one is proved.
    #[must_use]
    pub fn factor(&self) -> Option<f64> {
        match self.verdict {
            Verdict::Proven { factor, .. } => factor,
            _ => None,
        }
    }

    /// Applications of the map after which the iterate is proved to be within `tolerance` of the solution, if two
    /// successive iterates were `residual` apart at the start, both in the certificate's metric.
    #[must_use]
    pub fn iterations(&self, residual: f64, tolerance: f64) -> Option<u64> {
        Some(Contraction::new(self.factor()?)?.iterations_from_residual(residual, tolerance))
    }
}

impl GraphCertificate {
    /// Checks a factor in a norm anew, by other means than it was found, every operation rounded upwards. In the 2-norm:
    /// `||A||_2^2 <= max_i (A x)_i/x_i max_j (A' x)_j/x_j` for positive `x`, from the square roots of the rows' lengths on. In the weighted
    /// sup norm of power means: their gain for the weights that the certificate names, and every premise of the theorem.
    ///
    /// # Errors
    /// A verdict that is not a proof in a norm, or one that this does not confirm.
    pub fn recheck(&self, operator: &GraphOperator<f32>) -> Result<()> {
        let Verdict::Proven { theorem, factor: Some(factor), .. } = self.verdict else {
            return Err(Error::invalid("there is no factor to be checked"));
        };
        let bound = match theorem {
            Theorem::GraphPropagation => self.factor_in_the_two_norm(operator)?,
            Theorem::PowerMeans => power_means::factor_again(self, operator)?,
            _ => return Err(Error::invalid("there is no factor in a norm to be checked")),
        };
        // Said so that a number that is none is refused.
        if !((0.0..1.0).contains(&factor) && bound < 1.0) {
            return Err(Error::invalid(format!(
                "a contraction has a factor below 1, not {factor} (at most {bound})"
            )));
        }
        if bound > factor * (1.0 + RECHECKED) {
            return Err(Error::invalid(format!("the factor is at most {bound}, not {factor}")));
        }
        Ok(())
    }

    /// Whether [`GraphCertificate::recheck`] has something to say.
    #[must_use]
    pub fn is_in_a_norm(&self) -> bool {
        matches!(
            self.verdict,
            Verdict::Proven { theorem: Theorem::GraphPropagation | Theorem::PowerMeans, .. }
        )
    }

    fn factor_in_the_two_norm(&self, operator: &GraphOperator<f32>) -> Result<f64> {
        let Form::Graph { teleport } = self.map.form() else {
            return Err(Error::invalid(format!("`{}` does not propagate over a graph", self.map)));
        };
        if self.map.normalisation().is_some() || !self.map.activation().slopes_in_unit_interval() {
            return Err(Error::invalid(format!("`{}` may stretch what it is given", self.map)));
        }
        let everywhere = matches!(
            &self.verdict,
            Verdict::Proven {
                metric: Metric::WeightedTwoNorm { t },
                states: States::Reals,
                starts: Some(States::Reals),
                ..
            } if t.is_empty()
        );
        if !everywhere {
            return Err(Error::invalid(
                "the proof is one in the 2-norm, of a solution that is unique among all states and reached from all",
            ));
        }
        let kept = (1.0 - teleport).next_up();
        Ok((kept * norm_rounded_upwards(operator)?).next_up())
    }
}

/// What rounding upwards may add to a factor, relative to it.
pub(super) const RECHECKED: f64 = 1e-9;

fn norm_rounded_upwards(operator: &GraphOperator<f32>) -> Result<f64> {
    let numbers = operator.stored().values.iter().chain(operator.own().unwrap_or_default());
    if !numbers.clone().all(|x| (0.0..f32::INFINITY).contains(x)) {
        return Err(Error::invalid("a weight of the graph is negative or not finite"));
    }
    let above = |matrix: &Csr<f32>, x: &[f64]| -> Vec<f64> {
        let row = |range: &[usize]| {
            (range[0]..range[1]).fold(0.0f64, |sum, k| {
                let product = f64::from(matrix.values[k]) * x[matrix.columns[k] as usize];
                (sum + product.next_up()).next_up()
            })
        };
        matrix.starts.windows(2).map(row).collect()
    };
    let stored = operator.stored();
    let transposed = stored.transposed();
    let own = operator.own();
    let length = |row: &[usize]| ((row[1] - row[0]) as f64 + f64::from(u8::from(own.is_some()))).max(1.0);
    let largest =
        |image: &[f64], x: &[f64]| Upper::largest(image.iter().zip(x).map(|(y, x)| (y / x).next_up())).get();
    let image = |x: &[f64]| match own {
        None => above(stored, x),
        Some(own) => {
            let passed = above(stored, &above(&transposed, x));
            let kept = own.iter().zip(x).map(|(&own, x)| (f64::from(own) * x).next_up());
            passed.iter().zip(kept).map(|(a, b)| (a + b).next_up()).collect()
        }
    };
    let mut x: Vec<f64> = stored.starts.windows(2).map(|row| length(row).sqrt()).collect();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let next = image(&x);
        let bound = match own {
            None => {
                let squared = largest(&next, &x) * largest(&above(&transposed, &x), &x);
                squared.next_up().sqrt().next_up()
            }
            // Symmetric: one ratio is enough.
            Some(_) => largest(&next, &x),
        };
        best = best.min(bound);
        // Any positive vector gives a bound; the images come ever nearer to the one that gives the least.
        let top = next.iter().fold(f64::MIN_POSITIVE, |top, &y| top.max(y));
        x = next.iter().map(|y| (y / top).max(1e-100)).collect();
    }
    Ok(best)
}

impl GraphModel {
    /// What is proved about the propagation over this graph, for every injection that the model's network can make.
    #[must_use]
    pub fn certify(&self, operator: &GraphOperator<f32>) -> GraphCertificate {
        self.certify_for(operator, self.injection_bound())
    }

    /// What is proved about the propagation over this graph, for injections with a known lower bound.
    #[must_use]
    pub fn certify_for(&self, operator: &GraphOperator<f32>, injection: InjectionBound) -> GraphCertificate {
        match self.map.power() {
            Some(_) => power_means::certify(self.map.equation(), operator, injection),
            None => self.certify_by(&GraphFacts::of(operator), injection),
        }
    }

    /// What is proved about the propagation over a graph of which this is known.
    #[must_use]
    pub fn certify_by(&self, facts: &GraphFacts, injection: InjectionBound) -> GraphCertificate {
        let map = self.map.equation();
        let rows = self.map.normalisation() == Some(GraphNorm::Rows);
        let facts = WeightFacts { interacting_groups: rows && facts.nodes > 1, ..facts.of_weights() };
        let by_form = match injection {
            InjectionBound::Nonnegative => by_form::prove(&map, &facts, 0.0),
            InjectionBound::AtLeast(bound) => by_form::prove(&map, &facts, bound),
            InjectionBound::Any => {
                Err(refusal("the injection may be negative, which voids every proof by form"))
            }
        };
        let verdict = by_form.or_else(|refused| by_form::graph_propagation(&map, &facts).ok_or(refused));
        let verdict = verdict.unwrap_or_else(|refused| Verdict::Unproven {
            why: format!("{}; make the injection positive (ReLU or softplus output)", refused.outcome),
            tried: vec![refused],
        });
        GraphCertificate { map, injection, verdict }
    }

    /// What is known of the injections that the model's network makes, whatever its weights.
    pub(super) fn injection_bound(&self) -> InjectionBound {
        match self.output {
            OutputActivation::Signed => InjectionBound::Any,
            OutputActivation::Relu | OutputActivation::Softplus => InjectionBound::Nonnegative,
        }
    }
}

fn refusal(outcome: impl Into<String>) -> Attempt {
    Attempt { test: "proof by form".into(), outcome: outcome.into(), value: None }
}

/// What a proof needs to know about the matrix of a propagation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphFacts {
    /// Number of nodes.
    pub nodes: usize,
    /// The signs of its entries.
    pub signs: SignStructure,
    /// Whether every entry that is stored is `> 0`.
    pub all_positive: bool,
    /// An upper bound of the 2-norm of a matrix without negative entries.
    pub two_norm: Option<f64>,
}

impl GraphFacts {
    /// Looks at all entries. `B B' + diag(own)` has no negative entry if `B` and `own` have none.
    #[must_use]
    pub fn of(operator: &GraphOperator<f32>) -> GraphFacts {
        let numbers = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let (stored, own) = (operator.stored(), numbers(operator.own().unwrap_or_default()));
        let values = numbers(&stored.values);
        let rows = stored.starts.windows(2).map(|range| &values[range[0]..range[1]]);
        let WeightFacts { signs, all_positive, .. } = WeightFacts::of_rows(rows.chain(own.chunks(1)));
        let two_norm = (signs == SignStructure::Nonnegative).then(|| two_norm(operator));
        GraphFacts { nodes: operator.nodes(), signs, all_positive, two_norm }
    }

    /// Proofs about graphs need no sums of rows.
    fn of_weights(&self) -> WeightFacts {
        let &GraphFacts { signs, all_positive, two_norm, .. } = self;
        WeightFacts { signs, all_positive, two_norm, ..WeightFacts::of_rows(std::iter::empty()) }
    }
}

/// Most rounds of the power iteration behind [`two_norm`], which ends when a round gains less than this.
const ROUNDS: usize = 20;
const GAIN: f64 = 1e-9;

/// An upper bound of `||A||_2` for `A >= 0`, by Schur's test: `||A||_2^2 <= max_i (A x)_i/y_i max_j (A' y)_j/x_j` for any
/// positive `x, y`. The start, square roots of the row lengths, is the exact answer for normalised adjacencies.
fn two_norm(operator: &GraphOperator<f32>) -> f64 {
    let stored = operator.stored();
    let transposed = stored.transposed();
    // A row's sum of n products of n positive numbers is off by at most n + 1 roundings; over hyperedges there are two such sums
    // and one more product.
    let length = |matrix: &Csr<f32>| matrix.starts.windows(2).map(|row| row[1] - row[0]).max().unwrap_or(0);
    let roundings = length(stored) as f64 + length(&transposed) as f64 + 8.0;
    let slack = 1.0 + 4.0 * roundings * f64::EPSILON;
    let product = |x: &[f64]| match operator {
        GraphOperator::Pairs(matrix) => sparse_product(matrix, x),
        GraphOperator::Hyperedges { incidence, own } => {
            let mut image = sparse_product(incidence, &sparse_product(&transposed, x));
            image.iter_mut().zip(own).zip(x).for_each(|((y, &own), x)| *y += f64::from(own) * x);
            image
        }
    };
    let back = |x: &[f64]| match operator {
        GraphOperator::Pairs(_) => sparse_product(&transposed, x),
        GraphOperator::Hyperedges { .. } => product(x),
    };
    let ratio =
        |above: &[f64], below: &[f64]| Upper::largest(above.iter().zip(below).map(|(a, b)| a / b)).get();
    let positive =
        |x: Vec<f64>| -> Vec<f64> { x.into_iter().map(|x| if x > 0.0 { x } else { 1.0 }).collect() };
    let own = f64::from(u8::from(operator.own().is_some()));
    let mut x: Vec<f64> =
        positive(stored.starts.windows(2).map(|row| ((row[1] - row[0]) as f64 + own).sqrt()).collect());
    let mut y = x.clone();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let (forward, backward) = (product(&x), back(&y));
        let bound = (ratio(&forward, &y) * ratio(&backward, &x)).sqrt() * slack;
        if bound >= best * (1.0 - GAIN) {
            break;
        }
        best = bound;
        y = positive(forward);
        x = positive(back(&y));
        // Scaled back, so that many rounds neither overflow nor vanish; any positive vectors will do.
        let top = x.iter().fold(0.0f64, |a, &b| a.max(b));
        x.iter_mut().for_each(|x| *x = (*x / top).max(1e-100));
    }
    best
}

fn sparse_product(matrix: &Csr<f32>, x: &[f64]) -> Vec<f64> {
    let row = |range: &[usize]| {
        (range[0]..range[1]).map(|k| f64::from(matrix.values[k]) * x[matrix.columns[k] as usize]).sum()
    };
    matrix.starts.windows(2).map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{normalised_adjacency, normalised_incidence};

    fn star() -> GraphOperator<f32> {
        let edges: Vec<(u32, u32)> = (1..30).map(|j| (0, j)).chain([(3, 4), (7, 8)]).collect();
        normalised_adjacency(31, &edges).unwrap().into()
    }

    #[test]
    fn factors_of_the_theory() {
        let factor = |name: &str| GraphModel::paper(name, 0.1).unwrap().certify(&star()).factor().unwrap();
        for name in ["appnp-tanh", "appnp-tanh-2", "appnp-normalized-tanh", "appnp-normalized-tanh-2"] {
            assert!((factor(name) - 0.246994).abs() < 1e-6, "{name}: {}", factor(name));
        }
        // Linear: 1 - t, up to the rounding of the matrix.
        assert!((factor("appnp") - 0.9).abs() < 1e-6);
        // Rows interact.
        let columns = GraphModel::paper("appnp-normalized-tanh", 0.1).unwrap();
        let rows = columns.normalised_by(GraphNorm::Rows).unwrap();
        assert!((rows.certify(&star()).factor().unwrap() - 0.493988).abs() < 2e-6);
    }

    #[test]
    fn signed_injections_are_judged_honestly() {
        let tanh = GraphModel::release("appnp-tanh-2", 0.1).unwrap();
        let certificate = tanh.certify(&star());
        assert!(matches!(certificate.verdict, Verdict::Proven { theorem: Theorem::GraphPropagation, .. }));
        let normalised = GraphModel::release("appnp-normalized-tanh-2", 0.1).unwrap();
        assert!(!normalised.certify(&star()).verdict.is_proven());
        let for_bound = |bound| normalised.certify_for(&star(), InjectionBound::AtLeast(bound));
        // theta = 0.1: c(1.2, 0.1), doubled since rows interact.
        let mild = for_bound(-1.0).factor().unwrap();
        assert!(mild > 2.0 * 0.246994 && mild < 1.0, "{mild}");
        assert!(!for_bound(-12.0).verdict.is_proven());
        let mut outer = GraphModel::paper("appnp-normalized-tanh", 0.1).unwrap();
        outer.output = OutputActivation::Signed;
        let certificate = outer.certify_for(&star(), InjectionBound::AtLeast(-2.0));
        // shift 1.2 - 0.2 = 1.0: mu_p(1) = 0.278465.
        assert!((certificate.factor().unwrap() - 0.278465).abs() < 1e-5);
        assert!(!outer.certify_for(&star(), InjectionBound::AtLeast(-12.1)).verdict.is_proven());
    }

    #[test]
    fn factors_in_the_two_norm_are_confirmed_and_forgeries_are_not() {
        let hyperedges = [vec![0, 1, 2, 2], vec![], vec![3], vec![1, 3, 5, 7, 9], (0..20).collect()];
        let incidence = normalised_incidence(31, &hyperedges).unwrap();
        for (name, operator) in
            [("appnp-projected-tanh", &star()), ("appnp", &star()), ("hyper-appnp", &incidence)]
        {
            let mut certificate = GraphModel::equilibrium(name, 0.1).unwrap().certify(operator);
            certificate.recheck(operator).unwrap();
            assert!((certificate.factor().unwrap() - 0.9).abs() < 1e-6, "{name}");
            let mut heavier = operator.clone();
            match &mut heavier {
                GraphOperator::Pairs(matrix) => matrix.values.iter_mut().for_each(|x| *x *= 1.001),
                GraphOperator::Hyperedges { own, .. } => own.iter_mut().for_each(|x| *x *= 1.01),
            }
            assert!(certificate.recheck(&heavier).is_err(), "{name}");
            let Verdict::Proven { factor, .. } = &mut certificate.verdict else { panic!("{name}") };
            *factor = Some(0.899);
            assert!(certificate.recheck(operator).unwrap_err().to_string().contains("not 0.899"), "{name}");
            for wrong in [1.0, 14.5, f64::NAN, f64::INFINITY] {
                let mut forged = certificate.clone();
                if let Verdict::Proven { factor, .. } = &mut forged.verdict {
                    *factor = Some(wrong);
                }
                assert!(
                    forged.recheck(&heavier).is_err() && forged.recheck(operator).is_err(),
                    "{name}: {wrong}"
                );
            }
            let mut forged = GraphModel::equilibrium(name, 0.1).unwrap().certify(operator);
            if let Verdict::Proven { metric, .. } = &mut forged.verdict {
                *metric = Metric::Thompson;
            }
            assert!(forged.recheck(operator).is_err(), "{name}: in another metric");
        }
        let normalised = GraphModel::paper("appnp-normalized-tanh", 0.1).unwrap();
        assert!(normalised.certify(&star()).recheck(&star()).is_err());
    }

    /// Rounded downwards, the stored matrix of hyperedges has a norm of at most 1, whatever their sizes.
    #[test]
    fn the_norm_of_hyperedges_is_at_most_one() {
        for size in [1u32, 2, 3, 7, 1000] {
            let hyperedges: Vec<Vec<u32>> = (0..size).map(|k| (k / 2..size).collect()).collect();
            let operator = normalised_incidence(size as usize, &hyperedges).unwrap();
            // Rounding upwards adds less than rounding downwards took, unless nothing had to be rounded.
            assert!(norm_rounded_upwards(&operator).unwrap() <= 1.0 + 1e-12, "{size}");
        }
    }

    #[test]
    fn a_negative_edge_voids_the_proof() {
        let mut matrix = star().stored().clone();
        matrix.values[2] = -matrix.values[2];
        let model = GraphModel::paper("appnp-tanh", 0.1).unwrap();
        assert!(!model.certify(&matrix.into()).verdict.is_proven());
    }

    #[test]
    fn schur_bound_holds_for_a_matrix_that_is_not_symmetric() {
        // [[0, 2], [0, 0]] has the norm 2.
        let matrix = Csr { rows: 2, cols: 2, starts: vec![0, 1, 1], columns: vec![1], values: vec![2.0] };
        let bound = two_norm(&matrix.into());
        assert!(bound >= 2.0, "{bound}");
        assert!(two_norm(&star()) >= 1.0 - 1e-6 && two_norm(&star()) < 1.0 + 1e-6);
    }
}
