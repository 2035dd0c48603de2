//! A small attack on what layers claim; the large one is the example `attack_layers`.

#[path = "../../examples/attack_layers/layers.rs"]
mod layers;

#[test]
fn layers_claim_nothing_about_another_equation() {
    let report = layers::run(20_261, 0..6000);
    assert!(report.violations.is_empty(), "{:#?}", report.violations);
    // It says something only if there was something to attack.
    assert!(report.refused > 500 && report.built > 2000 && report.compared > 2000, "{report:?}");
    assert!(
        report.proven > 1000 && report.refuted > 20 && report.solves > 3000 && report.bounds > 500,
        "{report:?}"
    );
}
