//! Table 2: conditions under which the paper promises a unique fixed point, each one put to the test.

use subdeq::subdeq_map::{Activation, BadMap, Groups, Layout, Map, Operator, PNorm};
use subdeq::subdeq_theory::by_form;
use subdeq::subdeq_theory::by_form::WeightFacts;
use subdeq::subdeq_theory::certificate::{Certificate, Scope};
use subdeq::subdeq_theory::certify::Certifier;

use crate::colour;
use crate::failure::Failure;

/// One row of the paper's table.
struct Row {
    model: &'static str,
    condition: &'static str,
    truth: &'static str,
    reason: &'static str,
    /// Maps and weights that show it.
    shown: Vec<(Map, Vec<f64>)>,
}

fn rows() -> Result<Vec<Row>, BadMap> {
    // As the paper prints them.
    let outer = Map::single(Activation::Tanh, 1.2)?;
    let inner = outer.inner()?;
    let normalised = |map: Map| map.normalised(PNorm::Inf, Groups::WholeVector);
    let outer_normalised = normalised(Map::single(Activation::Tanh, 1.603)?)?;
    let inner_normalised = normalised(inner)?;
    let positive = || vec![7.0, 0.5, 3.0, 50.0];
    let signed = || vec![1.0, -1.0, -1.0, 1.0];
    let one_sign = || vec![7.0, 0.5, -3.0, -50.0];
    Ok(vec![
        Row {
            model: "s(W z) + y",
            condition: "mu < 1 on R, no condition on W",
            truth: "false; true for rows of one sign",
            reason: "the proof bounds |J| z by |J z|: that is the strong degree, which weights of both signs in a row lack",
            shown: vec![(outer, signed()), (outer, one_sign())],
        },
        Row {
            model: "norm(s(W z) + y)",
            condition: "mu < 1/2 on R, no condition on W",
            truth: "false; true for rows of one sign",
            reason: "the same step",
            shown: vec![(outer_normalised, signed()), (outer_normalised, one_sign())],
        },
        Row {
            model: "norm(s(W z) + y)",
            condition: "mu < 1 on R_++, W >= 0",
            truth: "true for one normalised vector, by Hilbert's metric",
            reason: "the published inequality in Thompson's metric is false (a factor 2 mu is attained), and with several \
                     interacting groups uniqueness needs mu < 1/2",
            shown: vec![(outer_normalised, positive())],
        },
        Row {
            model: "s(W z + y)",
            condition: "mu < 1 on R_++, W >= 0",
            truth: "true",
            reason: "the factor is the degree on R_+, 0.246994 at shift 1.2",
            shown: vec![(inner, positive())],
        },
        Row {
            model: "norm(s(W z + y))",
            condition: "mu < 1 on R_++, W >= 0",
            truth: "true for one normalised vector",
            reason: "as above; images normalised column by column are interacting groups",
            shown: vec![(inner_normalised, positive())],
        },
    ])
}

pub fn print() -> Result<(), Failure> {
    println!("Conditions for a unique fixed point (y >= 0), each put to the test now.\n");
    for row in rows().map_err(Failure::other)? {
        println!("{:<18} if {}", row.model, row.condition);
        println!("  paper: unique.   True? {}.", row.truth);
        println!("  Why: {}.", row.reason);
        for (map, weights) in row.shown {
            let [a, b, c, d] = weights[..] else { return Err(Failure::other("the examples are 2 x 2")) };
            let operator = Operator::dense(2, weights).map_err(Failure::other)?;
            let certified = Certifier::new().certify(&map, &operator, &Scope::NonnegativeInputs);
            let certificate = certified.map_err(Failure::other)?;
            let words = colour::verdict_within(&certificate.to_string(), "  ");
            anstream::println!("  W = [[{a}, {b}], [{c}, {d}]]: {words}");
        }
        println!();
    }
    print_graph_row()
}

/// Interacting groups: the degree counts twice.
fn print_graph_row() -> Result<(), Failure> {
    let columns = Map::named("appnp-normalized-tanh", Layout::Graph).map_err(Failure::other)?;
    let by_node = columns.normalised(PNorm::Inf, Groups::GraphRows).map_err(Failure::other)?;
    let adjacency = [0.5, 0.5, 0.5, 0.5];
    let separate = WeightFacts::of_rows(adjacency.chunks(2));
    let interacting = WeightFacts { interacting_groups: true, ..separate.clone() };
    println!("Graph layers (A >= 0), not in the table: columns are separate groups, nodes interact.");
    for (groups, map, facts) in [
        ("each column divided by its norm", columns, separate),
        ("each node's row divided by its norm", by_node, interacting),
    ] {
        let verdict = by_form::prove(&map, &facts, 0.0).map_err(|attempt| Failure::other(attempt.outcome))?;
        let certificate = Certificate { map, scope: Scope::NonnegativeInputs, verdict };
        anstream::println!("  {groups}: {}", colour::verdict_within(&certificate.to_string(), "  "));
    }
    Ok(())
}
