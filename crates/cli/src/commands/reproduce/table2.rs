//! Table 2: conditions under which the paper promises a unique fixed point, each one put to the test.

use subdeq::subdeq_theory::by_form;
use subdeq::subdeq_theory::by_form::WeightFacts;
use subdeq::subdeq_theory::certificate::{Certificate, Scope};
use subdeq::subdeq_theory::certify::Certifier;
use subdeq::subdeq_theory::map::{Form, Groups, Injection, Layout, MapSpec, Normalisation, PNorm};
use subdeq::subdeq_theory::operator::Operator;

use crate::failure::Failure;

/// One row of the paper's table.
struct Row {
    model: &'static str,
    condition: &'static str,
    truth: &'static str,
    reason: &'static str,
    /// Maps and weights that show it.
    shown: Vec<(MapSpec, Vec<f64>)>,
}

fn rows() -> Result<Vec<Row>, Failure> {
    let named = |name: &str| MapSpec::named(name, Layout::Dense).map_err(Failure::other);
    let inner = |map: MapSpec| MapSpec { injection: Injection::Inner, ..map };
    let positive = || vec![7.0, 0.5, 3.0, 50.0];
    let signed = || vec![1.0, -1.0, -1.0, 1.0];
    let one_sign = || vec![7.0, 0.5, -3.0, -50.0];
    Ok(vec![
        Row {
            model: "s(W z) + y",
            condition: "mu < 1 on R, no condition on W",
            truth: "false; true for rows of one sign",
            reason: "the proof bounds |J| z by |J z|: that is the strong degree, which weights of both signs in a row lack",
            shown: vec![(named("subdeq-tanh")?, signed()), (named("subdeq-tanh")?, one_sign())],
        },
        Row {
            model: "norm(s(W z) + y)",
            condition: "mu < 1/2 on R, no condition on W",
            truth: "false; true for rows of one sign",
            reason: "the same step",
            shown: vec![
                (named("subdeq-normalized-tanh")?, signed()),
                (named("subdeq-normalized-tanh")?, one_sign()),
            ],
        },
        Row {
            model: "norm(s(W z) + y)",
            condition: "mu < 1 on R_++, W >= 0",
            truth: "true for one normalised vector, by Hilbert's metric",
            reason: "the published inequality in Thompson's metric is false (a factor 2 mu is attained), and with several \
                     interacting groups uniqueness needs mu < 1/2",
            shown: vec![(named("subdeq-normalized-tanh")?, positive())],
        },
        Row {
            model: "s(W z + y)",
            condition: "mu < 1 on R_++, W >= 0",
            truth: "true",
            reason: "the factor is the degree on R_+, 0.246994 at shift 1.2",
            shown: vec![(inner(named("subdeq-tanh")?), positive())],
        },
        Row {
            model: "norm(s(W z + y))",
            condition: "mu < 1 on R_++, W >= 0",
            truth: "true for one normalised vector",
            reason: "as above; images normalised column by column are interacting groups",
            shown: vec![(named("subdeq-abs-normalized-tanh")?, positive())],
        },
    ])
}

pub fn print() -> Result<(), Failure> {
    println!("Conditions for a unique fixed point (y >= 0), each put to the test now.\n");
    for row in rows()? {
        println!("{:<18} if {}", row.model, row.condition);
        println!("  paper: unique.   True? {}.", row.truth);
        println!("  Why: {}.", row.reason);
        for (map, weights) in row.shown {
            let [a, b, c, d] = weights[..] else { return Err(Failure::other("the examples are 2 x 2")) };
            let operator = Operator::dense(2, weights).map_err(Failure::other)?;
            let certificate = Certifier::new().all_inputs(&map, &operator).map_err(Failure::other)?;
            println!("  W = [[{a}, {b}], [{c}, {d}]]: {certificate}");
        }
        println!();
    }
    print_graph_row()
}

/// Interacting groups: the degree counts twice.
fn print_graph_row() -> Result<(), Failure> {
    let columns = MapSpec::named("appnp-normalized-tanh", Layout::Graph).map_err(Failure::other)?;
    let by_node = MapSpec {
        normalisation: Some(Normalisation::new(PNorm::Inf, Groups::GraphRows)),
        form: Form::Graph { teleport: MapSpec::TELEPORT },
        ..columns.clone()
    };
    let adjacency = [0.5, 0.5, 0.5, 0.5];
    let facts = WeightFacts::of_rows(adjacency.chunks(2));
    println!("Graph layers (A >= 0), not in the table: columns are separate groups, nodes interact.");
    for (groups, map) in
        [("each column divided by its norm", columns), ("each node's row divided by its norm", by_node)]
    {
        let verdict = by_form::prove(&map, &facts, 0.0).map_err(|attempt| Failure::other(attempt.outcome))?;
        println!("  {groups}: {}", Certificate { map, scope: Scope::AllInputs, verdict });
    }
    Ok(())
}
