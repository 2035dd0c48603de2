//! Certificates by form: the right factor for every architecture, and none where the counterexamples live.

use subdeq_map::{Activation, Form, Groups, Layout, Map, Overrides, PNorm, SignStructure};
use subdeq_theory::by_form::{WeightFacts, prove, weak_degree};
use subdeq_theory::certificate::{Certificate, Metric, Scope, Theorem, Verdict};

fn facts(rows: &[&[f64]]) -> WeightFacts {
    WeightFacts::of_rows(rows.iter().copied())
}

fn nonnegative() -> WeightFacts {
    facts(&[&[7.0, 0.0], &[3.0, 50.0]])
}

fn row_signed() -> WeightFacts {
    facts(&[&[7.0, 2.0], &[-3.0, -50.0]])
}

fn mixed() -> WeightFacts {
    facts(&[&[2.0, -2.0], &[-90.0, 4.0]])
}

fn named(name: &str) -> Map {
    Map::named(name, Layout::Dense).unwrap()
}

/// The theorem and the factor.
fn proof(map: &Map, weights: &WeightFacts, y_min: f64) -> Option<(Theorem, f64)> {
    match prove(map, weights, y_min) {
        Ok(Verdict::Proven { theorem, factor, states, starts, .. }) => {
            assert_eq!(starts, Some(states));
            Some((theorem, factor.unwrap()))
        }
        Ok(other) => panic!("a proof by form is a proof: {other:?}"),
        Err(_) => None,
    }
}

fn assert_factor(map: &Map, weights: &WeightFacts, theorem: Theorem, factor: f64) {
    let (by, c) = proof(map, weights, 0.0).unwrap_or_else(|| panic!("{map} is not proven"));
    assert_eq!(by, theorem, "{map}");
    assert!((c - factor).abs() < 2.1e-6, "{map}: {c} against {factor}");
}

#[test]
fn factors_of_the_papers_models() {
    assert_factor(&named("subdeq-tanh"), &nonnegative(), Theorem::NonnegativeWeights, 0.246994);
    assert_factor(&named("subdeq-tanh"), &row_signed(), Theorem::RowSignedWeights, 0.999124);
    assert_factor(&named("subdeq-normalized-tanh"), &nonnegative(), Theorem::NormalisedMonotone, 0.201446);
    assert_factor(&named("subdeq-normalized-tanh"), &row_signed(), Theorem::NormalisedGeneral, 0.700642);
    let absolute = named("subdeq-abs-normalized-tanh");
    assert_factor(&absolute, &nonnegative(), Theorem::NormalisedMonotone, 0.246994);
    assert!(proof(&absolute, &mixed(), 0.0).is_none(), "it is a map for W >= 0");
    let conv = Map::named("subdeq-normalized-tanh", Layout::Conv).unwrap();
    let interacting = |facts: WeightFacts| WeightFacts { interacting_groups: true, ..facts };
    assert_factor(&conv, &interacting(nonnegative()), Theorem::NormalisedInteracting, 2.0 * 0.201446);
    // 2 * 0.499196 at 1.603 is below one, so rows of one sign pass even where groups interact.
    assert_factor(&conv, &interacting(row_signed()), Theorem::NormalisedInteracting, 0.998392);
}

#[test]
fn factors_of_the_sound_architectures() {
    for weights in [nonnegative(), row_signed(), mixed()] {
        assert_factor(&named("split-sign"), &weights, Theorem::SplitSign, 0.536676);
        let at = |name: &str, shift: f64| named(name).with_shift(shift).unwrap();
        assert_factor(&at("divisive", 1.2), &weights, Theorem::Divisive, 0.493988);
        assert_factor(&at("rational", 1.2), &weights, Theorem::Rational, 0.300770);
        assert_factor(&named("power-ratio"), &weights, Theorem::PowerRatio, 0.98);
        assert!(proof(&named("gains"), &weights, 0.0).unwrap().1 < 1.0);
    }
    assert_factor(&named("excitatory"), &nonnegative(), Theorem::NonnegativeWeights, 0.246994);
    assert_factor(&named("row-signed"), &row_signed(), Theorem::RowSignedWeights, 0.420205);
    assert!(proof(&named("excitatory"), &row_signed(), 0.0).is_none());
    assert!(proof(&named("row-signed"), &mixed(), 0.0).is_none());
    // A5: ||W||_inf times mu_p(1.2), so 4.04 is allowed and 4.05 is not.
    let small = facts(&[&[4.0, -0.04], &[0.0, 1.0]]);
    assert_factor(&named("monomial"), &small, Theorem::Monomial, 0.997856);
    assert!(proof(&named("monomial"), &facts(&[&[4.0, -0.05]]), 0.0).is_none());
    let tanh_gains = named("gains")
        .with(&Overrides { activation: Some(Activation::Tanh), ..Overrides::default() }, Layout::Dense)
        .unwrap();
    assert!(proof(&tanh_gains, &mixed(), 0.0).is_some());
}

#[test]
fn normalised_sound_architectures() {
    let normalised = |name: &str, shift: f64, activation: Option<Activation>| {
        let norm = Some(PNorm::Inf);
        let overrides = Overrides { activation, shift: Some(shift), norm, ..Overrides::default() };
        named(name).with(&overrides, Layout::Dense).unwrap()
    };
    let tanh = Some(Activation::Tanh);
    assert_factor(&normalised("split-sign", 1.603, tanh), &mixed(), Theorem::NormalisedGeneral, 0.873753);
    assert_factor(&normalised("divisive", 1.2, None), &mixed(), Theorem::NormalisedGeneral, 0.493988);
    assert!(proof(&normalised("split-sign", 1.4, tanh), &mixed(), 0.0).is_none());
}

#[test]
fn graph_models() {
    let graph = |name: &str| Map::named(name, Layout::Graph).unwrap();
    for name in ["appnp-tanh", "appnp-tanh-2"] {
        assert_factor(&graph(name), &nonnegative(), Theorem::NonnegativeWeights, 0.246994);
    }
    assert_factor(&graph("appnp-normalized-tanh"), &nonnegative(), Theorem::NormalisedMonotone, 0.246994);
    let by_node = graph("appnp-normalized-tanh").normalised(PNorm::Inf, Groups::GraphRows).unwrap();
    let interacting = WeightFacts { interacting_groups: true, ..nonnegative() };
    assert_factor(&by_node, &interacting, Theorem::NormalisedInteracting, 0.493988);
    // Linear propagation has degree one: the 2-norm decides.
    let with_norm = |norm| WeightFacts { two_norm: Some(norm), ..nonnegative() };
    assert_factor(&graph("appnp"), &with_norm(1.0), Theorem::GraphPropagation, 0.9);
    assert!(proof(&graph("appnp"), &with_norm(1.2), 0.0).is_none());
    assert!(proof(&graph("appnp"), &nonnegative(), 0.0).is_none());
}

#[test]
fn counterexamples_are_never_proven() {
    // E1, E2, E8 by their signs; E6 (an input below zero) is refused before it comes here.
    let balanced = facts(&[&[1.0, -1.0], &[-1.0, 1.0]]);
    assert!(proof(&named("subdeq-tanh"), &balanced, 0.0).is_none());
    assert!(
        weak_degree(&named("subdeq-tanh")).unwrap().bound() < 1.0,
        "the paper's condition holds all the same"
    );
    assert!(proof(&named("subdeq-tanh"), &facts(&[&[2.0, -2.0], &[0.0, 0.0]]), 0.0).is_none());
    assert!(proof(&named("subdeq-normalized-tanh"), &balanced, 0.0).is_none());
    // E4: interacting groups, mu_p(0.05) = 0.80485.
    let e4 = Map::single(Activation::Tanh, 0.05).unwrap();
    let e4 = e4.normalised(PNorm::Inf, Groups::Blocks { size: 1 }).unwrap();
    assert!(proof(&e4, &WeightFacts { interacting_groups: true, ..nonnegative() }, 0.0).is_none());
    // E8: the release's power scaling, rows of one sign.
    let e8 = Map::single(Activation::Tanh, 1.01).unwrap().with_power(0.999).unwrap();
    assert!(proof(&e8, &facts(&[&[0.0, -2.0], &[-2.0, 0.0]]), 0.0).is_none());
    // Negative rows under an inner injection: a large y undoes any inhibition.
    assert!(proof(&named("mondeq-tanh"), &row_signed(), 0.0).is_none());
    let inner = named("subdeq-tanh").inner().unwrap();
    assert!(proof(&inner, &row_signed(), 0.0).is_none());
}

#[test]
fn inputs_bounded_away_from_zero_help() {
    let power = Map::single(Activation::Tanh, 0.0).unwrap().with_power(0.99).unwrap();
    assert!(
        proof(&power, &nonnegative(), 0.0).is_none(),
        "tanh(0)^0.99 = 0: zero is a fixed point for y = 0"
    );
    let (_, c) = proof(&power, &nonnegative(), 0.1).unwrap();
    assert!((c - 0.99).abs() < 1e-9);
    let (_, c) = proof(&named("subdeq-tanh"), &nonnegative(), 0.4).unwrap();
    assert!(c < 0.2018, "the degree of tanh + 1.6 counts");
    let normalised_power = named("subdeq-normalized-power-tanh");
    assert!(proof(&normalised_power, &nonnegative(), 0.0).is_none());
    assert!(proof(&normalised_power, &nonnegative(), 0.01).is_some());
    assert!(proof(&normalised_power, &facts(&[&[1.0, 2.0], &[0.5, 0.1]]), 0.0).is_some());
}

#[test]
fn signs_are_read_off_the_weights() {
    assert_eq!(nonnegative().signs, SignStructure::Nonnegative);
    assert_eq!(row_signed().signs, SignStructure::RowSigned);
    assert_eq!(mixed().signs, SignStructure::Mixed);
    assert_eq!(facts(&[&[-0.0, 0.0]]).signs, SignStructure::Nonnegative);
    assert!(mixed().sup_norm() >= 94.0 && mixed().sup_norm() < 94.0 + 1e-9);
}

#[test]
fn maps_by_name() {
    for name in Map::NAMES {
        let layouts: &[Layout] =
            if Map::is_of_graph(name) { &[Layout::Graph] } else { &[Layout::Dense, Layout::Conv] };
        for &layout in layouts {
            let map = Map::named(name, layout).unwrap();
            let json = serde_json::to_string(&map).unwrap();
            assert_eq!(serde_json::from_str::<Map>(&json).unwrap(), map, "{json}");
        }
    }
    let message = |name: &str| Map::named(name, Layout::Dense).unwrap_err().to_string();
    assert!(message("subdeq-tahn").contains("subdeq-tahn") && message("subdeq-tahn").contains("split-sign"));
    assert!(message("node-relu").contains("not an equilibrium"));
    assert_eq!(named("subdeq-tanh").to_string(), "z = tanh(W z) + y + 1.2");
    assert_eq!(named("subdeq-normalized-power-tanh").to_string(), "z = norm_inf((tanh(W z + y))^0.99)");
    let bad =
        |overrides: Overrides| named("subdeq-tanh").with(&overrides, Layout::Dense).unwrap_err().to_string();
    assert!(bad(Overrides { power: Some(-1.0), ..Overrides::default() }).contains("not -1"));
    assert!(bad(Overrides { shift: Some(f64::NAN), ..Overrides::default() }).contains("NaN"));
    assert!("0.5".parse::<PNorm>().is_err() && "inf".parse::<PNorm>() == Ok(PNorm::Inf));
    assert_eq!(named("power-ratio").form(), Form::PowerRatio { p: 0.49, e: 1.0 });
}

#[test]
fn certificates_survive_json() {
    let verdict = prove(&named("gains"), &mixed(), 0.0).unwrap();
    let certificate = Certificate { map: named("gains"), scope: Scope::NonnegativeInputs, verdict };
    let json = serde_json::to_string(&certificate).unwrap();
    assert_eq!(serde_json::from_str::<Certificate>(&json).unwrap(), certificate);
    let text = certificate.to_string();
    assert!(
        text.starts_with("PROVEN")
            && text.contains("exactly one positive fixed point for every input y >= 0"),
        "{text}"
    );
    let Verdict::Proven { metric, .. } = certificate.verdict else { unreachable!() };
    assert_eq!(metric, Metric::Thompson);
}
