//! Training end to end on generated graphs, odd input, reproducibility.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// A planted partition: nodes of one class are joined more often, features say a little about the class.
fn planted(nodes: usize, classes: usize, seed: u64) -> (GraphProblem, GraphSplit) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let labels: Vec<u32> = (0..nodes).map(|node| (node % classes) as u32).collect();
    let mut edges = Vec::new();
    for i in 0..nodes {
        for j in 0..i {
            let p = if labels[i] == labels[j] { 0.10 } else { 0.01 };
            if rng.random_bool(p) {
                edges.push((i as u32, j as u32));
            }
        }
    }
    let cols = 8 * classes;
    let mut features = Csr { rows: nodes, cols, starts: vec![0], columns: vec![], values: vec![] };
    for &label in &labels {
        for column in 0..cols {
            if rng.random_bool(if column / 8 == label as usize { 0.4 } else { 0.15 }) {
                features.columns.push(column as u32);
                features.values.push(1.0);
            }
        }
        features.starts.push(features.columns.len());
    }
    let ids: Vec<u32> = (0..nodes as u32).collect();
    let (train, rest) = ids.split_at(nodes / 10);
    let (validation, test) = rest.split_at(rest.len() / 2);
    let split = GraphSplit { train: train.into(), validation: validation.into(), test: test.into() };
    let problem =
        GraphProblem::new(normalised_adjacency(nodes, &edges).unwrap(), features, labels, classes).unwrap();
    (problem, split)
}

fn all_models() -> Vec<GraphModel> {
    let mut models: Vec<GraphModel> = GraphModel::NAMES
        .iter()
        .flat_map(|name| [GraphModel::paper(name, 0.1).unwrap(), GraphModel::release(name, 0.1).unwrap()])
        .collect();
    models.push(GraphModel::release_main("appnp-normalized-tanh", 0.1).unwrap());
    let own = GraphModel::OWN_NAMES.map(|name| GraphModel::equilibrium(name, 0.1).unwrap());
    // Power means need hyperedges.
    models.extend(own.into_iter().filter(|model| model.map.power().is_none()));
    models.extend(["appnp-tanh", "appnp-tanh-2"].map(|name| GraphModel::equilibrium(name, 0.1).unwrap()));
    models
}

#[test]
fn every_model_learns_a_planted_partition() {
    let (problem, split) = planted(240, 3, 1);
    for model in all_models() {
        let config = GraphConfig { epochs: 80, hidden: 16, ..GraphConfig::new(model) };
        let run = train_graph(&problem, &split, &config, |_| ()).unwrap();
        let what = format!("{} {:?}: {}", config.model.name, config.model.mode, run.test_accuracy);
        // A third would be chance, and features alone give about 0.6. Linear propagation, which listens to neighbours as
        // they are, gets 0.95 and more. With the shift a state is at least 1.2, where tanh is nearly flat: neighbours then
        // weigh at most the factor of the certificate, a quarter, and accuracy stays near that of the features.
        let least = if config.model.map.is_linear() { 0.8 } else { 0.55 };
        assert!(run.test_accuracy > least, "{what}");
        assert!(run.epochs.iter().all(|epoch| epoch.converged), "{what}");
        assert!(run.epochs.last().unwrap().loss < run.epochs[0].loss, "{what}");
        let again = run.classifier.predict(&problem, 1).unwrap();
        assert_eq!(again.accuracy(problem.labels(), &split.test), run.test_accuracy, "{what}");
    }
}

#[test]
fn threads_do_not_change_a_bit_and_seeds_do() {
    let (problem, split) = planted(900, 3, 2);
    for model in [GraphModel::paper("appnp-normalized-tanh", 0.1), GraphModel::release("appnp-tanh-2", 0.1)] {
        let config = GraphConfig { epochs: 4, ..GraphConfig::new(model.unwrap()) };
        let run = |seed: u64, threads: usize| {
            let config = GraphConfig { seed, threads, ..config.clone() };
            let run = train_graph(&problem, &split, &config, |_| ()).unwrap();
            (run.epochs, run.classifier.weights)
        };
        let one = run(1, 1);
        assert!(one == run(1, 2) && one == run(1, 3));
        assert!(one != run(2, 1));
    }
}

#[test]
fn training_stops_when_nothing_gets_better() {
    let (problem, split) = planted(120, 2, 3);
    let model = GraphModel::paper("appnp-tanh", 0.1).unwrap();
    let config = GraphConfig { epochs: 400, patience: 5, rate: 0.0, ..GraphConfig::new(model) };
    // With a rate of zero every epoch is equally good: the last counts, and patience never runs out.
    let run = train_graph(&problem, &split, &config, |_| ()).unwrap();
    assert_eq!((run.best_epoch, run.epochs.len()), (400, 400));
    // With steps that are too long accuracy falls below its best, and six epochs later training ends.
    let mut seen = 0;
    let config = GraphConfig { rate: 0.5, ..config };
    let run = train_graph(&problem, &split, &config, |_| seen += 1).unwrap();
    assert_eq!(run.epochs.len(), seen);
    assert!(seen < 400 && seen - run.best_epoch == 6, "{seen} epochs, the best is {}", run.best_epoch);
    let best = run.epochs.iter().map(|epoch| epoch.validation_accuracy).fold(0.0, f64::max);
    assert_eq!(run.validation_accuracy, best);
}

#[test]
fn iterations_are_as_few_as_promised() {
    let (problem, split) = planted(150, 3, 5);
    let solved = GraphModel::NAMES.map(|name| GraphModel::release(name, 0.1).unwrap().solved());
    for model in all_models().into_iter().chain(solved) {
        let config = GraphConfig { epochs: 20, hidden: 8, ..GraphConfig::new(model) };
        let run = train_graph(&problem, &split, &config, |_| ()).unwrap();
        let convergence = run.classifier.convergence(&problem, 1e-6).unwrap();
        let what = format!("{}: {convergence:?}", config.model.name);
        assert_eq!(convergence.promised.is_some(), convergence.certificate.verdict.is_proven(), "{what}");
        assert!(convergence.promised.is_none_or(|promised| convergence.measured <= promised), "{what}");
        if let Some(factor) = convergence.certificate.factor() {
            // Down to what f64 resolves; every step must shrink the residual by the factor.
            let shrinks = |pair: &[f64]| pair[1] <= factor * pair[0] * (1.0 + 1e-9) + 1e-13;
            assert!(convergence.residuals.windows(2).all(shrinks), "{what}");
        }
        let (evaluation, prediction) = run.classifier.evaluate(&problem, &split.test, 1).unwrap();
        assert_eq!(evaluation.accuracy, 100.0 * run.test_accuracy, "{what}");
        let solved = matches!(config.model.mode, GraphMode::Equilibrium { .. });
        assert_eq!(evaluation.certified.is_some(), solved, "{what}");
        let proven = solved && convergence.certificate.verdict.is_proven();
        assert_eq!(evaluation.certified == Some(1.0), proven, "{what}");
        let counted: u64 = evaluation.confusion.iter().flatten().sum();
        assert_eq!(counted as usize, split.test.len());
        assert!((0..problem.nodes()).all(|node| prediction.probability(node) >= 1.0 / 3.0 - 1e-9));
    }
}

#[test]
fn isolated_nodes_are_classified_by_their_features() {
    let labels = vec![0, 1, 0, 1, 0, 1];
    let features = Csr {
        rows: 6,
        cols: 2,
        starts: (0..7).collect(),
        columns: vec![0, 1, 0, 1, 0, 1],
        values: vec![1.0; 6],
    };
    let problem = GraphProblem::new(normalised_adjacency(6, &[]).unwrap(), features, labels, 2).unwrap();
    let split = GraphSplit { train: vec![0, 1], validation: vec![2, 3], test: vec![4, 5] };
    for model in all_models() {
        let config = GraphConfig { epochs: 100, ..GraphConfig::new(model) };
        assert_eq!(train_graph(&problem, &split, &config, |_| ()).unwrap().test_accuracy, 1.0);
    }
}

#[test]
fn bad_input_is_refused_with_a_sentence() {
    let message = |error: crate::Error| error.to_string();
    assert!(message(normalised_adjacency(2, &[(0, 1), (2, 0)]).unwrap_err()).contains("edge 1"));
    let matrix = || normalised_adjacency(2, &[(0, 1)]).unwrap();
    let features =
        |rows: usize| Csr { rows, cols: 1, starts: vec![0; rows + 1], columns: vec![], values: vec![] };
    let refused = |features, labels, classes| {
        message(GraphProblem::new(matrix(), features, labels, classes).unwrap_err())
    };
    assert!(refused(features(3), vec![0, 1], 2).contains("3 rows of features"));
    assert!(refused(features(2), vec![0], 2).contains("1 labels"));
    assert!(refused(features(2), vec![0, 2], 2).contains("node 1 has class 2"));
    let empty = Csr { rows: 0, cols: 0, starts: vec![0], columns: vec![], values: vec![] };
    assert!(GraphProblem::new(empty, features(0), vec![], 2).is_err());

    let (problem, split) = planted(40, 2, 4);
    let config = GraphConfig { epochs: 1, ..GraphConfig::new(GraphModel::paper("appnp-tanh", 0.1).unwrap()) };
    let refused = |split: &GraphSplit, config: &GraphConfig| {
        message(train_graph(&problem, split, config, |_| ()).unwrap_err())
    };
    assert!(refused(&GraphSplit { test: vec![40], ..split.clone() }, &config).contains("test node 40"));
    assert!(refused(&GraphSplit { test: vec![0], ..split.clone() }, &config).contains("listed twice"));
    assert!(
        refused(&GraphSplit { validation: vec![], ..split.clone() }, &config).contains("no validation nodes")
    );
    assert!(refused(&split, &GraphConfig { edge_dropout: 1.0, ..config.clone() }).contains("edge dropout"));
    assert!(refused(&split, &GraphConfig { rate: f64::NAN, ..config.clone() }).contains("learning rate"));
    let mut linear = GraphConfig::new(GraphModel::paper("appnp", 0.1).unwrap());
    linear.edge_dropout = 0.5;
    assert!(refused(&split, &linear).contains("norm above one"));
    assert!(GraphModel::paper("appnp", 1.0).is_err() && GraphModel::paper("gcn", 0.1).is_err());
}

/// Large graphs are kept in another order inside; nobody outside may notice.
#[test]
fn nodes_of_a_large_graph_keep_their_numbers() {
    const NODES: usize = 40_000;
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let links: Vec<(u32, u32)> =
        (0..3 * NODES as u32).map(|k| (k % NODES as u32, rng.random_range(0..NODES as u32))).collect();
    // The same graph with every node's number taken for another: 7919 has no factor in common with 40,000.
    let renamed = |node: u32| (u64::from(node) * 7919 % NODES as u64) as u32;
    let mut originals = vec![0; NODES];
    (0..NODES as u32).for_each(|node| originals[renamed(node) as usize] = node);
    let problem = |edges: &[(u32, u32)], original: &dyn Fn(u32) -> u32| {
        let nodes = || (0..NODES as u32).map(original);
        let features = Csr {
            rows: NODES,
            cols: 10,
            starts: (0..=NODES).collect(),
            columns: nodes().map(|node| node % 10).collect(),
            values: nodes().map(|node| (node % 17) as f32 / 8.0).collect(),
        };
        let labels = nodes().map(|node| node % 3).collect();
        GraphProblem::new(normalised_adjacency(NODES, edges).unwrap(), features, labels, 3).unwrap()
    };
    let first = problem(&links, &|node| node);
    let links: Vec<(u32, u32)> = links.iter().map(|&(i, j)| (renamed(i), renamed(j))).collect();
    let second = problem(&links, &|node| originals[node as usize]);

    let split = GraphSplit { train: vec![0, 1, 2], validation: vec![3, 4], test: vec![5] };
    let config = GraphConfig::new(GraphModel::paper("appnp-tanh", 0.1).unwrap());
    let classifier = GraphTrainer::new(&first, &split, &config).unwrap().classifier().unwrap();
    let (one, two) = (classifier.predict(&first, 2).unwrap(), classifier.predict(&second, 1).unwrap());
    for node in 0..NODES {
        let other = renamed(node as u32) as usize;
        assert_eq!(first.labels()[node], second.labels()[other]);
        for (a, b) in one.state[3 * node..][..3].iter().zip(&two.state[3 * other..][..3]) {
            assert!((a - b).abs() <= 2e-6 * a.abs(), "node {node}: {a} and {b}");
        }
    }
}

/// Hyperedges of three to six nodes, most of them of one class, and features that say little.
fn planted_hyperedges(nodes: usize, classes: usize, seed: u64) -> (GraphProblem, GraphSplit) {
    let (pairs, split) = planted(nodes, classes, seed);
    let mut rng = ChaCha8Rng::seed_from_u64(seed + 1);
    let hyperedges: Vec<Vec<u32>> = (0..nodes)
        .map(|k| {
            let class = k % classes;
            let own = |rng: &mut ChaCha8Rng| (rng.random_range(0..nodes / classes) * classes + class) as u32;
            let any = |rng: &mut ChaCha8Rng| rng.random_range(0..nodes as u32);
            (0..3 + k % 4).map(|_| if rng.random_bool(0.9) { own(&mut rng) } else { any(&mut rng) }).collect()
        })
        .collect();
    let operator = normalised_incidence(nodes, &hyperedges).unwrap();
    let (features, labels) = (pairs.features().clone(), pairs.labels().to_vec());
    (GraphProblem::new(operator, features, labels, classes).unwrap(), split)
}

#[test]
fn hyperedges_are_learned_from_with_a_proof() {
    let (problem, split) = planted_hyperedges(240, 3, 1);
    for name in ["hyper-appnp", "hyper-appnp-tanh", "appnp-projected-tanh"] {
        let model = GraphModel::equilibrium(name, 0.2).unwrap();
        let config = GraphConfig { epochs: 80, hidden: 16, ..GraphConfig::new(model) };
        let run = train_graph(&problem, &split, &config, |_| ()).unwrap();
        assert!(run.test_accuracy > 0.8, "{name}: {}", run.test_accuracy);
        // The norm of what is stored is at most 1; what is stated is a hair above.
        let factor = run.certificate.factor().unwrap();
        assert!((0.8..0.8 * (1.0 + 1e-9)).contains(&factor), "{name}: {factor:e}");
        let convergence = run.classifier.convergence(&problem, 1e-6).unwrap();
        assert!(convergence.measured <= convergence.promised.unwrap(), "{name}: {convergence:?}");
        let dropped = GraphConfig { edge_dropout: 0.5, ..config };
        assert!(train_graph(&problem, &split, &dropped, |_| ()).is_err());
    }
}

#[test]
fn power_means_are_learned_with_a_proof() {
    let (problem, split) = planted_hyperedges(240, 3, 1);
    for power in [1.0, 1.5, 2.0, 3.0] {
        let model = GraphModel::equilibrium("hyper-power", 0.2).unwrap().with_power(power).unwrap();
        let config = GraphConfig { epochs: 80, hidden: 16, ..GraphConfig::new(model) };
        let run = train_graph(&problem, &split, &config, |_| ()).unwrap();
        assert!(run.test_accuracy > 0.75, "p = {power}: {}", run.test_accuracy);
        assert!(run.epochs.iter().all(|epoch| epoch.converged), "p = {power}");
        assert_eq!(run.certificate.injection, InjectionBound::Nonnegative);
        run.certificate.recheck(problem.operator()).unwrap();
        let factor = run.certificate.factor().unwrap();
        assert!((0.8..0.8 * (1.0 + 1e-9)).contains(&factor), "p = {power}: {factor:e}");
        let convergence = run.classifier.convergence(&problem, 1e-6).unwrap();
        assert!(convergence.measured <= convergence.promised.unwrap(), "p = {power}: {convergence:?}");
        let shrinks = |pair: &[f64]| pair[1] <= factor * pair[0] * (1.0 + 1e-9) + 1e-13;
        assert!(convergence.residuals.windows(2).all(shrinks), "p = {power}: {convergence:?}");
        // The same bits with two threads, and from a config that was written down.
        let text = serde_json::to_string(&GraphConfig { threads: 2, ..config.clone() }).unwrap();
        let again = train_graph(&problem, &split, &serde_json::from_str(&text).unwrap(), |_| ()).unwrap();
        assert_eq!((&again.epochs, &again.classifier.weights), (&run.epochs, &run.classifier.weights));
        let dropped = GraphConfig { edge_dropout: 0.5, ..config };
        assert!(train_graph(&problem, &split, &dropped, |_| ()).is_err());
    }
}

#[test]
fn power_means_that_are_none_are_refused_with_a_sentence() {
    let model = || GraphModel::equilibrium("hyper-power", 0.2).unwrap();
    for power in [0.5, 0.0, -2.0, 1e3, f64::NAN, f64::INFINITY] {
        let refused = model().with_power(power).unwrap_err().to_string();
        assert!(refused.contains("must lie between 1 and 100"), "{refused}");
    }
    let linear = GraphModel::equilibrium("hyper-appnp", 0.2).unwrap();
    assert!(linear.with_power(2.0).unwrap_err().to_string().contains("takes no power means"));
    let (problem, split) = planted_hyperedges(60, 2, 3);
    let refused = |problem: &GraphProblem, model: GraphModel| {
        train_graph(problem, &split, &GraphConfig::new(model), |_| ()).unwrap_err().to_string()
    };
    let signed = GraphModel { output: OutputActivation::Signed, ..model() };
    assert!(refused(&problem, signed).contains("Softplus or Relu"));
    assert!(refused(&problem, GraphModel { joined: Joined::Pairs, ..model() }).contains("over hyperedges"));
    let (pairs, _) = planted(60, 2, 3);
    assert!(refused(&pairs, model()).contains("over hyperedges"));
    assert!(!pairs.certify(&model()).verdict.is_proven());
}

#[test]
fn the_last_epoch_counts_where_nothing_validates() {
    let (problem, split) = planted(120, 2, 6);
    let split = GraphSplit { validation: vec![], ..split };
    let model = GraphModel::equilibrium("appnp", 0.1).unwrap();
    let config = GraphConfig { epochs: 30, patience: 3, ..GraphConfig::new(model) };
    assert!(train_graph(&problem, &split, &config, |_| ()).is_err(), "somebody has to select");
    let config = GraphConfig { selection: Selection::LastEpoch, ..config };
    let run = train_graph(&problem, &split, &config, |_| ()).unwrap();
    assert_eq!((run.best_epoch, run.epochs.len()), (30, 30));
    let again = run.classifier.predict(&problem, 1).unwrap();
    assert_eq!(again.accuracy(problem.labels(), &split.test), run.test_accuracy);
}

/// Large hypergraphs are kept in another order inside as well.
#[test]
fn nodes_of_a_large_hypergraph_keep_their_numbers() {
    const NODES: usize = 40_000;
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let hyperedges: Vec<Vec<u32>> =
        (0..NODES).map(|k| (0..k % 5).map(|_| rng.random_range(0..NODES as u32)).collect()).collect();
    let renamed = |node: u32| (u64::from(node) * 7919 % NODES as u64) as u32;
    let problem = |hyperedges: &[Vec<u32>], numbers: &dyn Fn(u32) -> u32| {
        let mut columns = vec![0; NODES];
        (0..NODES as u32).for_each(|node| columns[numbers(node) as usize] = node % 10);
        let features =
            Csr { rows: NODES, cols: 10, starts: (0..=NODES).collect(), columns, values: vec![1.0; NODES] };
        let operator = normalised_incidence(NODES, hyperedges).unwrap();
        GraphProblem::new(operator, features, vec![0; NODES], 2).unwrap()
    };
    let first = problem(&hyperedges, &|node| node);
    let other: Vec<Vec<u32>> =
        hyperedges.iter().rev().map(|members| members.iter().map(|&node| renamed(node)).collect()).collect();
    let second = problem(&other, &renamed);
    let split = GraphSplit { train: vec![0], validation: vec![1], test: vec![2] };
    let config = GraphConfig::new(GraphModel::equilibrium("hyper-appnp-tanh", 0.2).unwrap());
    let classifier = GraphTrainer::new(&first, &split, &config).unwrap().classifier().unwrap();
    let (one, two) = (classifier.predict(&first, 2).unwrap(), classifier.predict(&second, 1).unwrap());
    for node in 0..NODES {
        let to = renamed(node as u32) as usize;
        for (a, b) in one.state[2 * node..][..2].iter().zip(&two.state[2 * to..][..2]) {
            assert!((a - b).abs() <= 1e-5, "node {node}: {a} and {b}");
        }
    }
}

#[test]
fn the_mean_of_the_weights_is_evaluated_and_survives_a_checkpoint() {
    let (problem, split) = planted(120, 2, 8);
    let model = GraphModel::equilibrium("appnp", 0.1).unwrap();
    let config = GraphConfig { epochs: 30, hidden: 8, averaging: 0.9, ..GraphConfig::new(model) };
    let mut trainer = GraphTrainer::new(&problem, &split, &config).unwrap();
    for _ in 0..11 {
        trainer.next_epoch().unwrap();
    }
    let checkpoint = trainer.checkpoint().unwrap();
    let mut continued = GraphTrainer::resume(&problem, &split, &config, &checkpoint).unwrap();
    while let Some(epoch) = continued.next_epoch().unwrap() {
        assert_eq!(trainer.next_epoch().unwrap(), Some(epoch));
    }
    // The trainings are the same, what is evaluated is not.
    let plain = GraphConfig { averaging: 0.0, ..config.clone() };
    let (mean, last) =
        [&config, &plain].map(|config| train_graph(&problem, &split, config, |_| ()).unwrap()).into();
    assert!(mean.epochs.iter().zip(&last.epochs).all(|(a, b)| a.loss == b.loss));
    assert!(mean.classifier.weights != last.classifier.weights);
    assert!(GraphTrainer::resume(&problem, &split, &plain, &checkpoint).is_err());
    let refused = GraphConfig { averaging: 1.0, ..config };
    assert!(GraphTrainer::new(&problem, &split, &refused).is_err());
}

#[test]
fn nodes_without_labels_are_learned_from_and_it_survives_a_checkpoint() {
    let (problem, split) = planted(240, 3, 9);
    // Few labels, and features that say little: opinions about the others help.
    let few = GraphSplit { train: split.train[..6].to_vec(), ..split };
    let teaching = Teaching { warm_up: 10, ..Teaching::new(1.0) };
    for averaging in [0.0, 0.9] {
        let config = GraphConfig {
            epochs: 40,
            hidden: 16,
            averaging,
            teaching: Some(teaching),
            selection: Selection::LastEpoch,
            ..GraphConfig::new(GraphModel::equilibrium("hyper-appnp", 0.1).unwrap())
        };
        let mut trainer = GraphTrainer::new(&problem, &few, &config).unwrap();
        for _ in 0..11 {
            trainer.next_epoch().unwrap();
        }
        let mut continued =
            GraphTrainer::resume(&problem, &few, &config, &trainer.checkpoint().unwrap()).unwrap();
        while let Some(epoch) = continued.next_epoch().unwrap() {
            assert_eq!(trainer.next_epoch().unwrap(), Some(epoch));
        }
        let taught = train_graph(&problem, &few, &config, |_| ()).unwrap();
        let plain = GraphConfig { teaching: None, ..config.clone() };
        let untaught = train_graph(&problem, &few, &plain, |_| ()).unwrap();
        // The first epoch has no opinion to follow.
        assert_eq!(taught.epochs[0], untaught.epochs[0]);
        assert!(taught.epochs[1].loss > untaught.epochs[1].loss);
        let (with, without) = (taught.test_accuracy, untaught.test_accuracy);
        assert!(with > without - 0.02, "{with} with opinions, {without} without");
        assert!(taught.certificate.verdict.is_proven());
        let refuse = |teaching| {
            let refused = GraphConfig { teaching: Some(teaching), ..config.clone() };
            assert!(GraphTrainer::new(&problem, &few, &refused).is_err(), "{teaching:?}");
        };
        refuse(Teaching { weight: -1.0, ..teaching });
        refuse(Teaching { temperature: 0.0, ..teaching });
        refuse(Teaching { levelling: 1.5, ..teaching });
    }
}
