//! What is proved about power means over the hyperedges of one graph; the theorem is
//! [`subdeq_theory::theorems::power_means`].
//!
//! A hyperedge `e` of `n_e` nodes makes `h_e(z) = n_e mean_i((b_ie |z_i|)^p)^(1/p)` of a state. For any positive `v` the propagation
//! contracts in `max_i |z_i|/v_i` by `(1 - t) max_i (sum_e b_ie h_e(v) + own_i v_i) / v_i`, the damping times the *gain*. Taken is
//! `v_i = sqrt(d_i)`, `d_i` the number of node `i`'s hyperedges and itself: for [`super::normalised_incidence`], whose entries are rounded
//! downwards, the gain is 1 up to the rounding of this computation.

use std::ops::RangeInclusive;

use subdeq_map::{Form, Map, SignStructure};
use subdeq_theory::bound::Upper;
use subdeq_theory::certificate::{Attempt, Evidence, Metric, States, Verdict};
use subdeq_theory::interval::Interval;
use subdeq_theory::power_mean;

use super::certificate::RECHECKED;
use super::{Csr, GraphCertificate, GraphOperator, InjectionBound};
use crate::{Error, Result};

/// The verdict about power means over these hyperedges; a proof that [`GraphCertificate::recheck`] does not confirm is none.
pub(super) fn certify(
    map: Map,
    operator: &GraphOperator<f32>,
    injection: InjectionBound,
) -> GraphCertificate {
    let verdict = prove(&map, operator, injection)
        .unwrap_or_else(|refused| Verdict::Unproven { why: refused.outcome.clone(), tried: vec![refused] });
    let mut certificate = GraphCertificate { map, injection, verdict };
    if certificate.verdict.is_proven()
        && let Err(why) = certificate.recheck(operator)
    {
        certificate.verdict = Verdict::Unproven { why: why.to_string(), tried: Vec::new() };
    }
    certificate
}

fn prove(
    map: &Map,
    operator: &GraphOperator<f32>,
    injection: InjectionBound,
) -> std::result::Result<Verdict, Attempt> {
    let refused = |why: Error| Attempt::new("power means", why.to_string(), f64::NAN);
    let hypergraph = Hypergraph::new(map, operator).map_err(refused)?;
    let v = hypergraph.weights();
    let gain = hypergraph.gain(&v);
    power_mean::prove(map, gain, v, least(injection))
}

/// No entry of an injection is below this.
fn least(injection: InjectionBound) -> f64 {
    match injection {
        InjectionBound::Nonnegative => 0.0,
        InjectionBound::AtLeast(bound) => bound,
        InjectionBound::Any => f64::NEG_INFINITY,
    }
}

/// Nodes in hyperedges, such as the theorem is about.
struct Hypergraph<'a> {
    p: f64,
    incidence: &'a Csr<f32>,
    own: &'a [f32],
    /// One row per hyperedge.
    hyperedges: Csr<f32>,
}

impl<'a> Hypergraph<'a> {
    /// Refuses what the theorem says nothing about.
    fn new(map: &Map, operator: &'a GraphOperator<f32>) -> Result<Self> {
        let (Form::PowerMean { p, .. }, GraphOperator::Hyperedges { incidence, own }) =
            (map.form(), operator)
        else {
            return Err(Error::invalid("power means are taken over hyperedges, and there are none"));
        };
        operator.check()?;
        if incidence.values.iter().chain(own).any(|weight| *weight < 0.0) {
            return Err(Error::invalid("a weight of a node in a hyperedge, or of its own, is negative"));
        }
        let rising = |row: &[usize]| incidence.columns[row[0]..row[1]].windows(2).all(|two| two[0] < two[1]);
        if !incidence.starts.windows(2).all(rising) {
            return Err(Error::invalid("the hyperedges of a node are not in order, or one is there twice"));
        }
        Ok(Self { p, incidence, own, hyperedges: incidence.transposed() })
    }

    /// `v_i = sqrt(d_i)`.
    fn weights(&self) -> Vec<f64> {
        self.incidence.starts.windows(2).map(|row| ((row[1] - row[0] + 1) as f64).sqrt()).collect()
    }

    /// The gain for these weights, rounded up.
    fn gain(&self, v: &[f64]) -> f64 {
        let times = |a: f32, b: f64| Interval::point(f64::from(a)) * Interval::point(b);
        let mut given = Vec::new();
        let made: Vec<f64> = rows(&self.hyperedges)
            .map(|nodes| {
                given.clear();
                given.extend(nodes.map(|(node, weight)| times(weight, v[node]).hi));
                power_mean::hyperedge(&given, self.p)
            })
            .collect();
        let gains = rows(self.incidence).enumerate().map(|(i, hyperedges)| {
            let own = times(self.own[i], v[i]);
            let sum = hyperedges.fold(own, |sum, (e, weight)| sum + times(weight, made[e]));
            (sum / Interval::point(v[i])).hi
        });
        Upper::largest(gains).get()
    }

    /// The same anew: what each hyperedge makes goes to its nodes at once, and every operation is followed by a step upwards.
    fn gain_again(&self, v: &[f64]) -> f64 {
        let mut sums: Vec<f64> =
            self.own.iter().zip(v).map(|(&own, v)| (f64::from(own) * v).next_up()).collect();
        for nodes in rows(&self.hyperedges) {
            let given: Vec<(usize, f64, f64)> = nodes
                .map(|(node, weight)| (node, f64::from(weight), (f64::from(weight) * v[node]).next_up()))
                .collect();
            let made = norm_upwards(&given, self.p);
            for &(node, weight, _) in &given {
                sums[node] = (sums[node] + (weight * made).next_up()).next_up();
            }
        }
        Upper::largest(sums.iter().zip(v).map(|(sum, v)| (sum / v).next_up())).get()
    }
}

/// Weights of nodes, square roots of how many hyperedges they are in: far from where products overflow or lose digits.
const WEIGHTS: RangeInclusive<f64> = 1e-100..=1e100;

/// What the library's powers may be off by, relatively: far more than they are.
const POWERS: f64 = 1e-12;

/// `n^(1-1/p) ||u||_p` of the third numbers, above it: the norm itself, relative to the largest so that it stays in range.
fn norm_upwards(given: &[(usize, f64, f64)], p: f64) -> f64 {
    let top = Upper::largest(given.iter().map(|&(_, _, u)| u)).get();
    if top == 0.0 {
        return 0.0;
    }
    let powers: f64 = given.iter().map(|&(_, _, u)| (u / top).powf(p)).sum();
    let count = given.len() as f64;
    let slack = 1.0 + POWERS + 4.0 * count * f64::EPSILON;
    count.powf(1.0 - 1.0 / p) * powers.powf(1.0 / p) * top * slack
}

/// The entries of each row: columns and weights.
fn rows(matrix: &Csr<f32>) -> impl Iterator<Item = impl Iterator<Item = (usize, f32)> + '_> + '_ {
    let row = |range: &[usize]| {
        let range = range[0]..range[1];
        let columns = matrix.columns[range.clone()].iter().map(|&column| column as usize);
        columns.zip(matrix.values[range].iter().copied())
    };
    matrix.starts.windows(2).map(row)
}

/// The factor that a certificate's weights give, rounded upwards, where all its other claims hold.
pub(super) fn factor_again(certificate: &GraphCertificate, operator: &GraphOperator<f32>) -> Result<f64> {
    let ensure = |holds: bool, why: &str| if holds { Ok(()) } else { Err(Error::invalid(why)) };
    let Verdict::Proven { metric: Metric::WeightedSup { v }, states, starts, evidence, .. } =
        &certificate.verdict
    else {
        return Err(Error::invalid("power means are proved in a weighted sup norm"));
    };
    let hypergraph = Hypergraph::new(&certificate.map, operator)?;
    ensure(least(certificate.injection) >= 0.0, "power means are of injections from 0 on only")?;
    ensure(
        v.len() == operator.nodes() && v.iter().all(|v| WEIGHTS.contains(v)),
        "there is no positive weight of a reasonable size for each node",
    )?;
    let everywhere = (*states, *starts) == (States::Reals, Some(States::Reals));
    ensure(everywhere, "the solution is unique among all states, and reached from all")?;
    let gain = hypergraph.gain_again(v);
    let Evidence::ByForm { signs: SignStructure::Nonnegative, weight_norm: Some(claimed) } = evidence else {
        return Err(Error::invalid("the proof rests on other numbers than a gain"));
    };
    ensure(gain <= claimed * (1.0 + RECHECKED), &format!("the gain is at most {gain}, not {claimed}"))?;
    let teleport = certificate.map.form().share();
    Ok(((1.0 - teleport).next_up() * gain).next_up())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{GraphModel, normalised_incidence};

    fn model(power: f64) -> GraphModel {
        GraphModel::equilibrium("hyper-power", 0.1).unwrap().with_power(power).unwrap()
    }

    fn hypergraph() -> GraphOperator<f32> {
        let hyperedges = [vec![0, 1, 2, 2], vec![], vec![3], vec![1, 3, 5, 7, 9], (0..20).collect()];
        normalised_incidence(31, &hyperedges).unwrap()
    }

    /// One part of a proof, forged.
    type Forgery = fn(&mut GraphCertificate);

    #[test]
    fn the_factor_is_that_of_the_damping_for_every_power() {
        for power in [1.0, 1.5, 2.0, 3.0, 100.0] {
            let certificate = model(power).certify(&hypergraph());
            let factor = certificate.factor().unwrap();
            assert!((0.9..0.9 * (1.0 + 1e-9)).contains(&factor), "p = {power}: {factor:e}");
            certificate.recheck(&hypergraph()).unwrap();
            let text = serde_json::to_string(&certificate).unwrap();
            assert_eq!(serde_json::from_str::<GraphCertificate>(&text).unwrap(), certificate);
        }
    }

    #[test]
    fn only_injections_that_are_not_negative_are_spoken_of() {
        let verdict = |injection| model(2.0).certify_for(&hypergraph(), injection).verdict;
        assert!(verdict(InjectionBound::AtLeast(0.0)).is_proven());
        for below in [InjectionBound::AtLeast(-1e-30), InjectionBound::AtLeast(f64::NAN), InjectionBound::Any]
        {
            let Verdict::Unproven { why, .. } = verdict(below) else { panic!("{below:?}") };
            assert!(why.contains("numbers from 0 on"), "{why}");
        }
    }

    /// What stretches is no contraction, whatever a certificate says and however large its weights are.
    #[test]
    fn what_stretches_is_confirmed_by_nothing() {
        let incidence = Csr { rows: 1, cols: 1, starts: vec![0, 1], columns: vec![0], values: vec![4.0] };
        let operator = GraphOperator::Hyperedges { incidence, own: vec![0.0] };
        let honest = model(2.0).certify(&hypergraph());
        for (claimed, gain, weight) in
            [(14.5, 16.1, 1.0), (f64::NAN, 16.1, 1.0), (0.1, 0.1, 1e308), (0.1, 0.1, 1e-308)]
        {
            let mut forged = honest.clone();
            let Verdict::Proven { factor, metric, evidence, .. } = &mut forged.verdict else {
                panic!("{honest:?}")
            };
            *factor = Some(claimed);
            *metric = Metric::WeightedSup { v: vec![weight] };
            *evidence = Evidence::ByForm { signs: SignStructure::Nonnegative, weight_norm: Some(gain) };
            assert!(forged.recheck(&operator).is_err(), "{claimed} {gain} {weight}");
        }
    }

    #[test]
    fn forged_certificates_are_refused() {
        let (operator, honest) = (hypergraph(), model(2.0).certify(&hypergraph()));
        honest.recheck(&operator).unwrap();
        let forgeries: [(&str, Forgery); 9] = [
            ("factor", |c| {
                let Verdict::Proven { factor, .. } = &mut c.verdict else { return };
                *factor = Some(0.899);
            }),
            ("weights", |c| {
                let Verdict::Proven { metric: Metric::WeightedSup { v }, .. } = &mut c.verdict else {
                    return;
                };
                v[3] *= 0.99;
            }),
            ("a weight less", |c| {
                let Verdict::Proven { metric: Metric::WeightedSup { v }, .. } = &mut c.verdict else {
                    return;
                };
                v.pop();
            }),
            ("a weight of zero", |c| {
                let Verdict::Proven { metric: Metric::WeightedSup { v }, .. } = &mut c.verdict else {
                    return;
                };
                v[30] = 0.0;
            }),
            ("metric", |c| {
                let Verdict::Proven { metric, .. } = &mut c.verdict else { return };
                *metric = Metric::Thompson;
            }),
            ("gain", |c| {
                let Verdict::Proven { evidence, .. } = &mut c.verdict else { return };
                *evidence = Evidence::ByForm { signs: SignStructure::Nonnegative, weight_norm: Some(0.5) };
            }),
            // An injection of zeros has a solution of zeros, which is not positive.
            ("states", |c| {
                let Verdict::Proven { states, .. } = &mut c.verdict else { return };
                *states = States::Positive;
            }),
            ("injections", |c| c.injection = InjectionBound::Any),
            ("map", |c| c.map = GraphModel::equilibrium("hyper-appnp", 0.1).unwrap().map.equation()),
        ];
        for (what, forge) in forgeries {
            let mut forged = honest.clone();
            forge(&mut forged);
            assert!(forged != honest && forged.recheck(&operator).is_err(), "{what}");
        }
        let mut heavier = operator;
        let GraphOperator::Hyperedges { incidence, .. } = &mut heavier else { panic!("not hyperedges") };
        incidence.values[0] *= 1.01;
        assert!(honest.recheck(&heavier).is_err());
    }

    /// Where nodes weigh differently, hyperedges hold more than their sums; the gain grows with the power, up to the largest's.
    #[test]
    fn unequal_weights_are_proved_as_far_as_they_go() {
        let weighed = |scale: f32| {
            let values = [0.9, 0.1, 0.5, 0.5].map(|x: f32| scale * x).to_vec();
            let incidence =
                Csr { rows: 2, cols: 2, starts: vec![0, 2, 4], columns: vec![0, 1, 0, 1], values };
            GraphOperator::Hyperedges { incidence, own: vec![0.1; 2] }
        };
        let mut before = 0.0;
        for power in [1.0, 1.5, 2.0, 3.0, 100.0] {
            let factor = model(power).certify(&weighed(0.7)).factor().unwrap();
            assert!(factor > before, "p = {power}: {factor}");
            before = factor;
        }
        // Node 0: 0.49 (0.9 sqrt(2) sqrt(0.9^2 + 0.5^2) + 0.1 sqrt(2) sqrt(0.1^2 + 0.5^2)) + 0.1.
        let wanted = 0.9 * (0.49 * (0.9 * 2.12f64.sqrt() + 0.1 * 0.52f64.sqrt()) + 0.1);
        let factor = model(2.0).certify(&weighed(0.7)).factor().unwrap();
        assert!((factor - wanted).abs() < 1e-6, "{factor} {wanted}");
        assert!(!model(2.0).certify(&weighed(1.0)).verdict.is_proven());
        for bad in [-0.1, f32::NAN] {
            let mut operator = weighed(0.7);
            let GraphOperator::Hyperedges { own, .. } = &mut operator else { panic!("not hyperedges") };
            own[1] = bad;
            assert!(!model(2.0).certify(&operator).verdict.is_proven(), "{bad}");
        }
        let mut twice = weighed(0.1);
        let GraphOperator::Hyperedges { incidence, .. } = &mut twice else { panic!("not hyperedges") };
        incidence.columns[1] = 0;
        assert!(!model(2.0).certify(&twice).verdict.is_proven(), "the engine adds up what is listed twice");
    }
}
