//! Certificates that claim what was not proved: each must be refused.

use rand::Rng;
use rand_chacha::ChaCha8Rng;
use subdeq_map::Operator;
use subdeq_theory::certificate::{
    Certificate, Domain, Evidence, Metric, Refutation, Scope, States, Theorem, Verdict,
};

/// A claim altered in one place.
type Forgery = (&'static str, Certificate);

/// How many forgeries of a proof were refused, and those that were not.
pub fn proofs(certificate: &Certificate, weights: &Operator, rng: &mut ChaCha8Rng) -> (usize, Vec<String>) {
    judge(altered_proofs(certificate, weights, rng), weights)
}

/// The same for a refutation.
pub fn refutations(
    certificate: &Certificate,
    weights: &Operator,
    rng: &mut ChaCha8Rng,
) -> (usize, Vec<String>) {
    judge(altered_refutations(certificate, rng), weights)
}

fn judge(forgeries: Vec<Forgery>, weights: &Operator) -> (usize, Vec<String>) {
    let count = forgeries.len();
    let accepted: Vec<String> = forgeries
        .into_iter()
        .filter(|(_, forged)| forged.recheck(weights).is_ok())
        .map(|(what, forged)| format!("a forged {what} was accepted: {forged:?}"))
        .collect();
    (count - accepted.len(), accepted)
}

fn other(states: States) -> States {
    if states == States::Reals { States::Positive } else { States::Reals }
}

fn altered_proofs(certificate: &Certificate, weights: &Operator, rng: &mut ChaCha8Rng) -> Vec<Forgery> {
    let Verdict::Proven { theorem, factor, metric, states, starts, evidence } = certificate.verdict.clone()
    else {
        return Vec::new();
    };
    let with = |verdict: Verdict| Certificate { verdict, ..certificate.clone() };
    let proven = |theorem, factor, metric, states, starts, evidence| {
        with(Verdict::Proven { theorem, factor, metric, states, starts, evidence })
    };
    let (m, e) = (|| metric.clone(), || evidence.clone());
    let mut lies: Vec<Forgery> = vec![
        ("set of states", proven(theorem, factor, m(), other(states), starts, e())),
        ("set of starts", proven(theorem, factor, m(), states, starts.map(other).or(Some(states)), e())),
        ("factor of one", proven(theorem, Some(1.0), m(), states, starts, e())),
        ("factor that is not a number", proven(theorem, Some(f64::NAN), m(), states, starts, e())),
        ("negative factor", proven(theorem, Some(-0.5), m(), states, starts, e())),
    ];
    let other_metric = match metric {
        Metric::Thompson => Metric::Hilbert,
        Metric::Hilbert => Metric::Thompson,
        Metric::WeightedSup { ref v } => Metric::WeightedTwoNorm { t: v.clone() },
        Metric::WeightedTwoNorm { ref t } => Metric::WeightedSup { v: t.clone() },
        Metric::None => Metric::Thompson,
    };
    lies.push(("metric", proven(theorem, factor, other_metric, states, starts, e())));
    let other_theorem = match theorem {
        Theorem::WeightedSup => Theorem::SlopeInterval,
        Theorem::DiagonalStability => Theorem::Monotone,
        Theorem::NonnegativeWeights => Theorem::SplitSign,
        Theorem::NormalisedMonotone => Theorem::NormalisedInteracting,
        _ => Theorem::WeightedSup,
    };
    lies.push(("theorem", proven(other_theorem, factor, m(), states, starts, e())));
    match factor {
        // Factors this small, and small norms, are stated larger than they are.
        Some(c) if c > if matches!(metric, Metric::WeightedTwoNorm { .. }) { 1e-3 } else { 1e-9 } => {
            // A norm is stated as the next rung of a ladder, the others to seven digits; bounds for all pixels of an image
            // that has no inner ones are not tight at all.
            let coarse = matches!(theorem, Theorem::WeightedTwoNorm | Theorem::SecantTwoNorm);
            let least: f64 = if coarse { -0.3 } else { -5.0 };
            let smaller = c * (1.0 - 10f64.powf(rng.random_range(least..0.0)));
            let tame = match &certificate.scope {
                Scope::Sample { y } | Scope::InputSet { ymax: y } => y.iter().all(|y| y.abs() < 1e100),
                _ => true,
            };
            let huge = weights.weights().iter().any(|w| w.abs() > 1e100);
            let inner = weights.as_conv().is_none_or(|conv| conv.height() >= 3 && conv.width() >= 3);
            let tight = tame && !huge && inner;
            if tight {
                lies.push(("smaller factor", proven(theorem, Some(smaller), m(), states, starts, e())));
            }
            lies.push(("missing factor", proven(theorem, None, m(), states, starts, e())));
        }
        Some(_) => {}
        None => lies.push(("factor", proven(theorem, Some(0.5), m(), states, starts, e()))),
    }
    let strong = weights.weights().iter().any(|w| w.abs() > 0.1);
    for (what, evidence) in altered_evidence(&evidence, strong) {
        lies.push((what, proven(theorem, factor, m(), states, starts, evidence)));
    }
    if let Scope::Sample { y } = &certificate.scope {
        let longer = Scope::Sample { y: y.iter().copied().chain([0.0]).collect() };
        lies.push(("input of another length", Certificate { scope: longer, ..certificate.clone() }));
        let undefined = Scope::Sample { y: vec![f64::NAN; y.len()] };
        lies.push(("input that is not a number", Certificate { scope: undefined, ..certificate.clone() }));
    }
    lies
}

fn altered_evidence(evidence: &Evidence, strong: bool) -> Vec<(&'static str, Evidence)> {
    let mut lies = Vec::new();
    let spoiled = |weights: &[f64], bad: f64| {
        let mut weights = weights.to_vec();
        weights[0] = bad;
        weights
    };
    match evidence {
        Evidence::ByForm { signs, weight_norm } => {
            let norm = Some(weight_norm.map_or(1.0, |norm| 0.5 * norm + 1.0));
            lies.push(("norm", Evidence::ByForm { signs: *signs, weight_norm: norm }));
            use subdeq_map::SignStructure::{Mixed, Nonnegative, RowSigned};
            let other = if *signs == Nonnegative { RowSigned } else { Nonnegative };
            let other = if *signs == RowSigned { Mixed } else { other };
            lies.push(("sign structure", Evidence::ByForm { signs: other, weight_norm: *weight_norm }));
        }
        Evidence::RowGains { excitatory, inhibitory } => {
            let (excitatory, mut inhibitory) = (excitatory.clone(), inhibitory.clone());
            inhibitory[0].hi = 2.0 * inhibitory[0].hi + 1.0;
            lies.push(("row sum", Evidence::RowGains { excitatory, inhibitory }));
        }
        Evidence::StrongDegree { .. } => {}
        Evidence::Closing { domain, weights } if !weights.is_empty() => {
            for bad in [-1.0, 0.0, f64::NAN, f64::INFINITY] {
                let weights = spoiled(weights, bad);
                lies.push(("weight of a norm", Evidence::Closing { domain: *domain, weights }));
            }
            lies.push(("missing weights", Evidence::Closing { domain: *domain, weights: Vec::new() }));
        }
        Evidence::Closing { .. } => {
            let weights = Vec::new();
            lies.push(("domain", Evidence::Closing { domain: Domain::Everywhere, weights }));
        }
        Evidence::Secant { steps, anchor, slopes, weights } => {
            let elsewhere: Vec<f64> = anchor.iter().map(|x| x + 10.0).collect();
            let smaller: Vec<f64> = slopes.iter().map(|s| 0.9 * s).collect();
            let secant =
                |anchor, slopes, weights| Evidence::Secant { steps: *steps, anchor, slopes, weights };
            // With weights that hardly count, any anchor does.
            if strong {
                lies.push(("anchor", secant(elsewhere, slopes.clone(), weights.clone())));
            }
            if slopes.iter().any(|s| *s > 1e-5) {
                lies.push(("slope", secant(anchor.clone(), smaller, weights.clone())));
            }
            lies.push(("weight of a norm", secant(anchor.clone(), slopes.clone(), spoiled(weights, -1.0))));
        }
        Evidence::Splitting { weights, margin, lipschitz, step, factor } => {
            let splitting = |margin, lipschitz, step, factor| Evidence::Splitting {
                weights: weights.clone(),
                margin,
                lipschitz,
                step,
                factor,
            };
            lies.push(("margin", splitting(1.01 * margin + 0.01, *lipschitz, *step, *factor)));
            lies.push(("Lipschitz constant", splitting(*margin, 0.9 * lipschitz, *step, *factor)));
            lies.push(("step", splitting(*margin, *lipschitz, -step, *factor)));
            if *factor > 1e-3 {
                lies.push(("splitting factor", splitting(*margin, *lipschitz, *step, 0.9 * factor)));
            }
        }
        Evidence::NormalisedBox { .. } | Evidence::FormBox { .. } => {}
    }
    lies
}

fn altered_refutations(certificate: &Certificate, rng: &mut ChaCha8Rng) -> Vec<Forgery> {
    let Verdict::Refuted { witness } = &certificate.verdict else { return Vec::new() };
    let with = |witness| Certificate { verdict: Verdict::Refuted { witness }, ..certificate.clone() };
    let moved = |point: &[f64], by: f64| point.iter().map(|x| x + by).collect::<Vec<f64>>();
    let off = 10f64.powf(rng.random_range(-4.0..0.5));
    match witness.clone() {
        Refutation::FixedPoints { y, points, radii } => {
            let forged = |points: Vec<Vec<f64>>, radii: Vec<f64>, y: Vec<f64>| {
                with(Refutation::FixedPoints { y, points, radii })
            };
            let twice = vec![points[0].clone(); 2];
            vec![
                ("pair of fixed points that are one", forged(twice, vec![radii[0]; 2], y.clone())),
                ("single fixed point", forged(vec![points[0].clone()], vec![radii[0]], y.clone())),
                (
                    "fixed point",
                    forged(points.iter().map(|p| moved(p, off)).collect(), radii.clone(), y.clone()),
                ),
                ("radius of zero", forged(points.clone(), vec![0.0; radii.len()], y.clone())),
                (
                    "radius that is not a number",
                    forged(points.clone(), vec![f64::NAN; radii.len()], y.clone()),
                ),
                ("infinite radius", forged(points.clone(), vec![f64::INFINITY; radii.len()], y.clone())),
                // Of one input: for a set of them, another one may do as well.
                (
                    "input of a sample",
                    match &certificate.scope {
                        Scope::Sample { .. } => forged(points, radii, moved(&y, off)),
                        _ => forged(points, radii, vec![f64::NAN; y.len()]),
                    },
                ),
            ]
        }
        Refutation::Index { y, point, radius, determinant } => {
            let forged = |point: Vec<f64>, determinant: f64| {
                with(Refutation::Index { y: y.clone(), point, radius, determinant })
            };
            vec![
                ("fixed point", forged(moved(&point, off), determinant)),
                ("determinant", forged(point.clone(), -determinant)),
                ("determinant that is not a number", forged(point, f64::NAN)),
            ]
        }
    }
}
