//! A small attack on certified systems of every kind; the large one is the example `attack`.

// The table of fractions uses what the test does not.
#[allow(dead_code)]
#[path = "../../examples/attack/campaign.rs"]
mod campaign;
#[allow(dead_code)]
#[path = "../../examples/attack/evaluate.rs"]
mod evaluate;
#[allow(dead_code)]
#[path = "../../examples/attack/forge.rs"]
mod forge;

#[test]
fn no_certified_system_has_a_second_fixed_point() {
    let report =
        campaign::run(campaign::Settings { first: 0, draws: 1500, starts: 10, seed: 20_260, thorough: 0.3 });
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    assert!(report.certified > 750, "only {} systems were certified", report.certified);
    // Every family and most theorems must have been attacked, or the campaign says nothing about them.
    assert_eq!(report.by_family.len(), campaign::FAMILIES.len());
    assert!(report.by_theorem.len() >= 18, "{:?}", report.by_theorem);
    assert!(report.forged > 10_000 && report.refuted > 20, "{} {}", report.forged, report.refuted);
}
