//! The protocols that others report on: 50 / 25 / 25 % of the nodes at random, and HyperGCN's ten given divisions.
//!
//! Each division of the nodes is an experiment of its own: the search (`--tune`) tries the settings of [`Protocol::settings`] on the
//! division's own validation nodes, and the best of them is trained once more and tested. No setting is chosen by nodes that are
//! tested in the same division, and the record of a search has no test accuracy.
//!
//! * *half*: training stops, and an epoch is selected, by the validation quarter.
//! * *given*: there are no validation nodes, and all unlabelled nodes are tested. The search holds fifths of the labelled nodes
//!   back in turn, as many as make [`HELD_BACK`] nodes; the test run trains on all of them. Nothing stops early: the last epoch
//!   counts. The labelled nodes have all classes equally often, which the tested ones do not.

use serde::{Deserialize, Serialize};
use subdeq::Verdict;
use subdeq::graph::{
    GraphConfig, GraphEpoch, GraphModel, GraphSplit, Prediction, Selection, Teaching, train_graph,
};
use subdeq_data::graph::GraphSplitRule;

use super::super::ledger::{self, Run};
use super::jobs::{Next, Waits, first_open, side_by_side};
use super::shelf::Shelf;
use super::{DISTANCE, Options, anchors, protocol_markdown, write_table};
use crate::failure::Failure;
use crate::graph::Graph;

/// Nodes that the folds of a search on a given division hold back together, at least.
const HELD_BACK: usize = 150;
/// Into how many folds labelled nodes are divided.
const FOLDS: usize = 5;
/// How many epochs may bring nothing better.
const PATIENCE: usize = 60;
/// What is evaluated is the mean of the weights over about twenty epochs.
const AVERAGING: f64 = 0.95;
/// Learning from nodes without labels, where labels are few.
const TEACHING: Teaching = Teaching::new(1.0);
/// The model unless others are asked for.
const MODEL: &str = "hyper-appnp";

/// Which protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// 50 / 25 / 25 %, ten times at random.
    Half,
    /// HyperGCN's ten divisions.
    Given,
}

/// What a search chooses.
#[derive(Clone, Copy)]
struct Settings {
    /// Teleport probability.
    teleport: f64,
    /// Hidden units.
    hidden: usize,
    /// Share of features and of hidden units that a step leaves out.
    dropout: f64,
    /// Adam's L2 term.
    weight_decay: f64,
}

const fn settings(teleport: f64, hidden: usize, dropout: f64, weight_decay: f64) -> Settings {
    Settings { teleport, hidden, dropout, weight_decay }
}

/// What a search tries with half the nodes labelled; the first is used without one.
const MANY_LABELS: [Settings; 8] = [
    settings(0.3, 64, 0.5, 1e-3),
    settings(0.15, 64, 0.5, 1e-3),
    settings(0.6, 64, 0.5, 1e-3),
    settings(0.6, 32, 0.5, 2e-3),
    settings(0.3, 64, 0.7, 1e-3),
    settings(0.3, 64, 0.3, 1e-4),
    settings(0.5, 128, 0.3, 1e-4),
    settings(0.15, 64, 0.3, 1e-4),
];

/// The same with a few nodes labelled: more is gathered from far, and weights are held back more.
const FEW_LABELS: [Settings; 5] = [
    settings(0.1, 64, 0.6, 2e-3),
    settings(0.05, 64, 0.6, 2e-3),
    settings(0.2, 64, 0.6, 2e-3),
    settings(0.1, 64, 0.8, 2e-3),
    settings(0.1, 64, 0.6, 5e-4),
];

/// What a run is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// To compare settings on validation nodes: a fold of the labelled nodes, or the only set that there is.
    Search {
        /// Which.
        fold: usize,
    },
    /// To be tested.
    Test,
}

/// What makes a run this run and no other: what is run, and everything that decides its result but the program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub protocol: Protocol,
    pub graph: String,
    /// Which division of the nodes; also the seed of weights and dropout.
    pub split: u64,
    pub stage: Stage,
    pub config: GraphConfig,
}

impl Key {
    /// Whether the program would make this run today. What was made with other settings is neither looked at nor reported.
    pub fn is_of_today(&self) -> bool {
        let tried = self.protocol.tried(&self.config.model.name).unwrap_or_default();
        tried.iter().any(|config| seeded(config, self.split) == self.config)
    }
}

fn seeded(config: &GraphConfig, seed: u64) -> GraphConfig {
    GraphConfig { seed, ..config.clone() }
}

/// Test nodes to which the model gives about the same probability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    pub nodes: usize,
    /// Sum of the probabilities of the chosen classes.
    pub probability: f64,
    /// Nodes whose chosen class is right.
    pub right: usize,
}

/// Bins of a calibration curve, of equal width.
pub const BINS: usize = 10;

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub key: Key,
    /// Labelled, validation and test nodes.
    pub nodes: [usize; 3],
    /// Accuracy in percent on the validation nodes, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation_accuracy: Option<f64>,
    /// What was found on the test nodes; nothing in a search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub test: Option<Tested>,
    /// The epoch that counts.
    pub best_epoch: usize,
    /// Epochs until training stopped.
    pub epochs: usize,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// The largest numbers of iterations of a training step's solve and adjoint solve.
    pub iterations: [u32; 2],
    /// Share of the epochs whose solves all reached their tolerance.
    pub converged: f64,
    /// The commit that the program was built from.
    pub commit: String,
}

/// What is said about a tested model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tested {
    /// Test accuracy in percent.
    pub accuracy: f64,
    /// The calibration curve.
    pub calibration: Vec<Bin>,
    /// `proven` or `unproven`.
    pub verdict: String,
    /// The proved contraction factor, and its metric.
    pub factor: Option<f64>,
    pub metric: Option<String>,
    /// Iterations to a distance of [`DISTANCE`] from the solution: promised, and counted.
    pub promised: Option<u64>,
    pub measured: u64,
}

/// The runs of one protocol.
pub type Ledger = ledger::Ledger<Record>;

impl Run for Record {
    fn repeats(&self, other: &Self) -> bool {
        self.key == other.key
    }

    fn order(&self, _other: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Ledger {
    fn find(&self, key: &Key) -> Option<&Record> {
        self.runs().iter().find(|run| run.key == *key)
    }
}

impl Protocol {
    /// As it is asked for, and in the names of files.
    pub fn name(self) -> &'static str {
        match self {
            Protocol::Half => "half",
            Protocol::Given => "given",
        }
    }

    /// What a search tries.
    fn settings(self) -> &'static [Settings] {
        match self {
            Protocol::Half => &MANY_LABELS,
            Protocol::Given => &FEW_LABELS,
        }
    }

    /// How the nodes without labels are learned from: where labels are few.
    fn teaching(self) -> Option<Teaching> {
        match self {
            Protocol::Half => None,
            Protocol::Given => Some(TEACHING),
        }
    }

    /// The trainings that a search tries; the first is the one without a search.
    fn tried(self, model: &str) -> Result<Vec<GraphConfig>, Failure> {
        let config = |&Settings { teleport, hidden, dropout, weight_decay }: &Settings| {
            let model = GraphModel::equilibrium(model, teleport).map_err(Failure::other)?;
            let (epochs, selection) = match self {
                Protocol::Half => (250, Selection::BestValidation),
                Protocol::Given => (150, Selection::LastEpoch),
            };
            Ok(GraphConfig {
                hidden,
                feature_dropout: dropout,
                hidden_dropout: dropout,
                edge_dropout: 0.0,
                penalty: 0.0,
                weight_decay,
                epochs,
                patience: PATIENCE,
                averaging: AVERAGING,
                teaching: self.teaching(),
                selection,
                ..GraphConfig::new(model)
            })
        };
        self.settings().iter().map(config).collect()
    }

    /// How the nodes are divided.
    fn rule(self, split: u64) -> GraphSplitRule {
        match self {
            Protocol::Half => GraphSplitRule::Share { labelled: 0.5 },
            Protocol::Given => GraphSplitRule::GivenAsIs { index: split as usize },
        }
    }
}

/// Graphs that are asked for, and the trainings of the models that are; words that name nothing would quietly run nothing.
fn cells(protocol: Protocol, options: &Options<'_>) -> Result<Vec<(String, Vec<GraphConfig>)>, Failure> {
    fn words<'a>(lists: &'a [String], default: &[&'a str]) -> Vec<&'a str> {
        let given: Vec<&str> = lists.iter().flat_map(|list| list.split(',')).collect();
        if given.is_empty() { default.to_vec() } else { given }
    }
    let (graphs, models) = (words(options.only, &anchors::GRAPHS), words(options.models, &[MODEL]));
    let known_graphs = [&anchors::GRAPHS[..], &anchors::WITH_CITING[..]].concat();
    let known_models = [&GraphModel::NAMES[..], &GraphModel::OWN_NAMES[..]].concat();
    for (option, words, known) in [("--only", &graphs, &known_graphs), ("--models", &models, &known_models)] {
        if let Some(word) = words.iter().find(|word| !known.contains(word)) {
            return Err(Failure::usage(format!("{option} {word}: known are {}", known.join(", "))));
        }
    }
    let cell = |graph: &str, model: &str| Ok((graph.to_owned(), protocol.tried(model)?));
    graphs.iter().flat_map(|graph| models.iter().map(move |model| cell(graph, model))).collect()
}

/// Runs what is not in the ledger yet, prints the table as markdown and writes it beside the ledger. `tune`: whether settings
/// are searched for.
pub fn run(protocol: Protocol, tune: bool, options: &Options<'_>) -> Result<(), Failure> {
    let cells = cells(protocol, options)?;
    let name = format!("graphs-{}", protocol.name());
    let mut ledger = Ledger::open(options.out, &name)?;
    if options.runs_missing {
        let shelf = Shelf::new(options.data_dir);
        // Split by split, so that every cell has its first run before any has its second.
        let experiments = (0..options.seeds).flat_map(|split| cells.iter().map(move |cell| (split, cell)));
        let experiments = experiments.map(|(split, (graph, tried))| {
            let folds = if tune { folds(protocol, &shelf, graph, &tried[0], split)? } else { 0 };
            Ok(Experiment { protocol, graph, split, tried, folds })
        });
        let experiments = experiments.collect::<Result<Vec<Experiment<'_>>, Failure>>()?;
        let next = |ledger: &Ledger, begun: &[Key]| next(&experiments, ledger, begun);
        ledger = side_by_side(ledger, options.jobs, next, |key| make(key, &shelf, options.threads))?;
    }
    write_table(options.out, &name, &protocol_markdown::report(protocol, &ledger))
}

/// A division of a graph's nodes, and what is trained on it.
struct Experiment<'a> {
    protocol: Protocol,
    graph: &'a str,
    split: u64,
    /// What a search tries.
    tried: &'a [GraphConfig],
    /// How many sets of validation nodes the search has; 0: none is made, and the first config is tested.
    folds: usize,
}

impl Experiment<'_> {
    fn key(&self, stage: Stage, config: &GraphConfig) -> Key {
        let (graph, config) = (self.graph.to_owned(), seeded(config, self.split));
        Key { protocol: self.protocol, graph, split: self.split, stage, config }
    }

    /// The runs of the search.
    fn searches(&self) -> impl Iterator<Item = Key> {
        self.tried
            .iter()
            .flat_map(move |config| (0..self.folds).map(move |fold| self.key(Stage::Search { fold }, config)))
    }

    /// The run that is tested: with the best of the search, the first of several, if the search is complete.
    fn test(&self, ledger: &Ledger) -> Option<Key> {
        if self.folds == 0 {
            return Some(self.key(Stage::Test, &self.tried[0]));
        }
        let mut best: Option<(f64, &GraphConfig)> = None;
        for config in self.tried {
            let searched = |fold| ledger.find(&self.key(Stage::Search { fold }, config));
            let runs: Option<Vec<&Record>> = (0..self.folds).map(searched).collect();
            let right = |run: &&Record| Some(run.validation_accuracy? * run.nodes[1] as f64);
            let right: Option<Vec<f64>> = runs?.iter().map(right).collect();
            let right: f64 = right?.iter().sum();
            if best.is_none_or(|(most, _)| right > most) {
                best = Some((right, config));
            }
        }
        best.map(|(_, config)| self.key(Stage::Test, config))
    }
}

/// How many sets of validation nodes a search has.
fn folds(
    protocol: Protocol,
    shelf: &Shelf<'_>,
    graph: &str,
    config: &GraphConfig,
    split: u64,
) -> Result<usize, Failure> {
    match protocol {
        Protocol::Half => Ok(1),
        Protocol::Given => {
            let graph = shelf.graph(graph, config.model.joined)?;
            let labelled = graph.split(protocol.rule(split), split)?.train.len();
            Ok((HELD_BACK * FOLDS).div_ceil(labelled.max(1)).min(FOLDS))
        }
    }
}

/// The first run that can be begun.
fn next(experiments: &[Experiment<'_>], ledger: &Ledger, begun: &[Key]) -> Next<Key> {
    let plans = experiments.iter().flat_map(|experiment| {
        experiment.searches().map(move |key| (experiment, Some(key))).chain([(experiment, None)])
    });
    first_open(plans, begun, |(experiment, search)| {
        let key = search.or_else(|| experiment.test(ledger)).ok_or(Waits)?;
        Ok(ledger.find(&key).is_none().then_some(key))
    })
}

fn make(key: &Key, shelf: &Shelf<'_>, threads: usize) -> Result<Record, Failure> {
    let graph = shelf.graph(&key.graph, key.config.model.joined)?;
    let split = split(&graph, key)?;
    let config = GraphConfig { threads, ..key.config.clone() };
    let run = train_graph(&graph.problem, &split, &config, |_| ()).map_err(Failure::other)?;
    let test = match key.stage {
        Stage::Search { .. } => None,
        Stage::Test => Some(tested(&graph, &split, &run.classifier, threads)?),
    };
    let most = |count: fn(&GraphEpoch) -> u32| run.epochs.iter().map(count).max().unwrap_or(0);
    let converged = run.epochs.iter().filter(|epoch| epoch.converged).count();
    let record = Record {
        key: key.clone(),
        nodes: [split.train.len(), split.validation.len(), split.test.len()],
        validation_accuracy: (!split.validation.is_empty()).then_some(100.0 * run.validation_accuracy),
        test,
        best_epoch: run.best_epoch,
        epochs: run.epochs.len(),
        seconds: run.seconds,
        iterations: [most(|epoch| epoch.solve_iterations), most(|epoch| epoch.adjoint_iterations)],
        converged: converged as f64 / run.epochs.len() as f64,
        commit: env!("SUBDEQ_COMMIT").to_owned(),
    };
    tell(&record);
    Ok(record)
}

/// The nodes of a run. In the search on a given division the labelled nodes are divided once more.
fn split(graph: &Graph, key: &Key) -> Result<GraphSplit, Failure> {
    let mut split = graph.split(key.protocol.rule(key.split), key.split)?;
    if let (Protocol::Given, Stage::Search { fold }) = (key.protocol, key.stage) {
        let labelled = std::mem::take(&mut split.train);
        for (place, node) in labelled.into_iter().enumerate() {
            let part = if place % FOLDS == fold { &mut split.validation } else { &mut split.train };
            part.push(node);
        }
    }
    Ok(split)
}

/// Tests a model and follows its iteration.
fn tested(
    graph: &Graph,
    split: &GraphSplit,
    classifier: &subdeq::graph::GraphClassifier,
    threads: usize,
) -> Result<Tested, Failure> {
    let problem = &graph.problem;
    let prediction = classifier.predict(problem, threads).map_err(Failure::other)?;
    let convergence = classifier.convergence(problem, DISTANCE).map_err(Failure::other)?;
    let verdict = &convergence.certificate.verdict;
    if convergence.certificate.is_in_a_norm() {
        convergence.certificate.recheck(problem.operator()).map_err(Failure::other)?;
    }
    Ok(Tested {
        accuracy: 100.0 * prediction.accuracy(problem.labels(), &split.test),
        calibration: calibration(&prediction, problem.labels(), &split.test),
        verdict: verdict.name().to_owned(),
        factor: convergence.certificate.factor(),
        metric: match verdict {
            Verdict::Proven { metric, .. } => Some(metric.name().to_owned()),
            _ => None,
        },
        promised: convergence.promised,
        measured: convergence.measured,
    })
}

fn calibration(prediction: &Prediction, labels: &[u32], nodes: &[u32]) -> Vec<Bin> {
    let mut bins = vec![Bin::default(); BINS];
    for &node in nodes {
        let probability = prediction.probability(node as usize);
        let bin = &mut bins[((probability * BINS as f64) as usize).min(BINS - 1)];
        bin.nodes += 1;
        bin.probability += probability;
        bin.right += usize::from(prediction.classes[node as usize] == labels[node as usize]);
    }
    bins
}

fn tell(record: &Record) {
    let Record { key, best_epoch, epochs, seconds, .. } = record;
    let found = match (&record.test, record.validation_accuracy) {
        (Some(test), _) => format!("test accuracy {:.2} %", test.accuracy),
        (None, Some(accuracy)) => format!("validation accuracy {accuracy:.2} %"),
        (None, None) => String::new(),
    };
    eprintln!(
        "{} {} {} split {} {:?}, {}: {found}, epoch {best_epoch} of {epochs}, {seconds:.1} s",
        key.protocol.name(),
        key.graph,
        key.config.model.name,
        key.split,
        key.stage,
        settings_in_words(&key.config),
    );
}

/// What searches choose, of a training.
pub fn settings_in_words(config: &GraphConfig) -> String {
    format!(
        "t {}, {} units, dropout {}, decay {}",
        config.model.map.teleport(),
        config.hidden,
        config.hidden_dropout,
        config.weight_decay
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(config: GraphConfig) -> Record {
        Record {
            key: Key {
                protocol: Protocol::Given,
                graph: "dblp".to_owned(),
                split: 3,
                stage: Stage::Search { fold: 2 },
                config: seeded(&config, 3),
            },
            nodes: [4, 1, 9],
            validation_accuracy: Some(75.0),
            test: None,
            best_epoch: 7,
            epochs: 9,
            seconds: 1.5,
            iterations: [17, 16],
            converged: 1.0,
            commit: "0123456789ab".to_owned(),
        }
    }

    /// A run with another number of epochs, another patience, or whatever else is another run.
    #[test]
    fn runs_made_otherwise_are_not_mistaken_for_those_of_today() {
        let config = Protocol::Given.tried(MODEL).unwrap().remove(1);
        let today = record(config.clone());
        assert!(today.key.is_of_today());
        let others = [
            GraphConfig { epochs: config.epochs + 1, ..config.clone() },
            GraphConfig { patience: config.patience + 1, ..config.clone() },
            GraphConfig { averaging: 0.9, ..config.clone() },
            GraphConfig { teaching: None, ..config.clone() },
            GraphConfig { rate: 0.02, ..config.clone() },
            GraphConfig { weight_decay: 0.123, ..config.clone() },
        ];
        for other in others.map(record) {
            assert!(!other.key.is_of_today() && !other.repeats(&today), "{:?}", other.key);
        }
        assert!(!Key { protocol: Protocol::Half, ..today.key.clone() }.is_of_today());
    }

    /// What a ledger says is found again in it, for every setting; ledgers of older programs are refused.
    #[test]
    fn ledgers_keep_every_setting_to_the_bit() {
        for protocol in [Protocol::Half, Protocol::Given] {
            for config in protocol.tried(MODEL).unwrap() {
                let written = record(config);
                let line = serde_json::to_string(&written).unwrap();
                assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), written);
                let old = line.replace("\"config\"", "\"settings\"");
                let why = serde_json::from_str::<Record>(&old).unwrap_err().to_string();
                assert!(why.contains("missing field `config`"), "{why}");
            }
        }
    }
}
