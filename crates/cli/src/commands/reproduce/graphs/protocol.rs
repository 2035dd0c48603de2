//! The protocols that others report on: 50 / 25 / 25 % of the nodes at random, and HyperGCN's ten given divisions.
//!
//! Each division of the nodes is an experiment of its own: the search (`--tune`) tries the settings of [`Protocol::settings`] on the
//! division's own validation nodes, and the best of them is trained once more and tested. No setting is chosen by nodes that are
//! tested in the same division, and the record of a search has no test accuracy.
//!
//! * *half*: training stops, and an epoch is selected, by the validation quarter.
//! * *given*: there are no validation nodes, and all unlabelled nodes are tested. The search holds fifths of the labelled nodes
//!   back in turn, as many as make [`HELD_BACK`] nodes; the test run trains on all of them. Nothing stops early: the last epoch
//!   counts.

use std::path::Path;

use serde::{Deserialize, Serialize};
use subdeq::Verdict;
use subdeq::graph::{
    GraphConfig, GraphEpoch, GraphModel, GraphSplit, InjectionBound, Prediction, Selection, train_graph,
};
use subdeq::subdeq_map::Map;
use subdeq_data::graph::GraphSplitRule;

use super::super::ledger::{self, Run};
use super::jobs::{Next, Waits, first_open, side_by_side};
use super::shelf::Shelf;
use super::{DISTANCE, anchors, protocol_markdown};
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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Teleport probability.
    pub teleport: f64,
    /// Hidden units.
    pub hidden: usize,
    /// Share of features and of hidden units that a step leaves out.
    pub dropout: f64,
    /// Adam's L2 term.
    pub weight_decay: f64,
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
const FEW_LABELS: [Settings; 6] = [
    settings(0.1, 64, 0.7, 2e-3),
    settings(0.05, 64, 0.7, 2e-3),
    settings(0.2, 64, 0.8, 5e-3),
    settings(0.05, 64, 0.8, 5e-3),
    settings(0.1, 32, 0.5, 2e-3),
    settings(0.1, 64, 0.5, 5e-4),
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

/// What makes a run this run and no other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub protocol: Protocol,
    pub graph: String,
    pub model: String,
    /// Which division of the nodes; also the seed of weights and dropout.
    pub split: u64,
    pub stage: Stage,
    pub settings: Settings,
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

    /// Epochs of a training at most (half), or always (given).
    fn epochs(self) -> usize {
        match self {
            Protocol::Half => 250,
            Protocol::Given => 100,
        }
    }

    /// How the nodes are divided.
    fn rule(self, split: u64) -> GraphSplitRule {
        match self {
            Protocol::Half => GraphSplitRule::Share { labelled: 0.5 },
            Protocol::Given => GraphSplitRule::GivenAsIs { index: split as usize },
        }
    }
}

/// What to run, and where the results go.
pub struct Options<'a> {
    pub protocol: Protocol,
    /// Whether settings are searched for.
    pub tune: bool,
    /// Only these graphs (lists with commas); none: those that others report on.
    pub only: &'a [String],
    /// Only these models (lists with commas); none: [`MODEL`].
    pub models: &'a [String],
    /// Divisions of the nodes.
    pub splits: u64,
    pub out: &'a Path,
    pub data_dir: Option<&'a Path>,
    pub jobs: usize,
    pub threads: usize,
    pub runs_missing: bool,
}

impl Options<'_> {
    fn words<'b>(lists: &'b [String], default: &[&'b str]) -> Vec<&'b str> {
        let given: Vec<&str> = lists.iter().flat_map(|list| list.split(',')).collect();
        if given.is_empty() { default.to_vec() } else { given }
    }

    /// Graphs and models that are asked for; words that name nothing would quietly run nothing.
    fn cells(&self) -> Result<Vec<(String, String)>, Failure> {
        let graphs = Self::words(self.only, &anchors::GRAPHS);
        let models = Self::words(self.models, &[MODEL]);
        let known_graphs = [&anchors::GRAPHS[..], &anchors::WITH_CITING[..]].concat();
        let known_models = [&GraphModel::NAMES[..], &GraphModel::OWN_NAMES[..]].concat();
        for (option, words, known) in
            [("--only", &graphs, &known_graphs), ("--models", &models, &known_models)]
        {
            if let Some(word) = words.iter().find(|word| !known.contains(word)) {
                return Err(Failure::usage(format!("{option} {word}: known are {}", known.join(", "))));
            }
        }
        let pair = |graph: &str, model: &str| (graph.to_owned(), model.to_owned());
        Ok(graphs.iter().flat_map(|graph| models.iter().map(|model| pair(graph, model))).collect())
    }
}

/// Runs what is not in the ledger yet, prints the table as markdown and writes it beside the ledger.
pub fn run(options: &Options<'_>) -> Result<(), Failure> {
    let cells = options.cells()?;
    let name = format!("graphs-{}", options.protocol.name());
    let mut ledger = Ledger::open(options.out, &name)?;
    if options.runs_missing {
        let shelf = Shelf::new(options.data_dir);
        let bench = Bench { options, shelf: &shelf };
        // Split by split, so that every cell has its first run before any has its second.
        let experiments: Vec<(u64, &str, &str)> = (0..options.splits)
            .flat_map(|split| cells.iter().map(move |(graph, model)| (split, &graph[..], &model[..])))
            .collect();
        let folds = bench.folds(&experiments)?;
        let next = |ledger: &Ledger, begun: &[Key]| bench.next(&experiments, &folds, ledger, begun);
        ledger = side_by_side(ledger, options.jobs, next, |key| bench.make(key))?;
    }
    let text = protocol_markdown::report(options.protocol, &ledger);
    let path = options.out.join(format!("{name}.md"));
    std::fs::create_dir_all(options.out)
        .and_then(|()| std::fs::write(&path, &text))
        .map_err(|why| Failure::other(format!("{} cannot be written: {why}", path.display())))?;
    print!("{text}");
    Ok(())
}

/// The settings of a division's test run: the best of its search, the first of several, if the search is complete.
fn chosen(ledger: &Ledger, key: &Key, folds: usize) -> Option<Settings> {
    let mut best: Option<(f64, Settings)> = None;
    for &settings in key.protocol.settings() {
        let searched = |fold| ledger.find(&Key { stage: Stage::Search { fold }, settings, ..key.clone() });
        let runs: Option<Vec<&Record>> = (0..folds).map(searched).collect();
        let right = |run: &&Record| Some(run.validation_accuracy? * run.nodes[1] as f64);
        let right: Option<Vec<f64>> = runs?.iter().map(right).collect();
        let right: f64 = right?.iter().sum();
        if best.is_none_or(|(most, _)| right > most) {
            best = Some((right, settings));
        }
    }
    best.map(|(_, settings)| settings)
}

/// Where runs are made.
struct Bench<'a> {
    options: &'a Options<'a>,
    shelf: &'a Shelf<'a>,
}

impl Bench<'_> {
    /// How many sets of validation nodes the search of each experiment has.
    fn folds(&self, experiments: &[(u64, &str, &str)]) -> Result<Vec<usize>, Failure> {
        let folds = |&(split, graph, model): &(u64, &str, &str)| match self.options.protocol {
            Protocol::Half => Ok(1),
            Protocol::Given => {
                let joined = GraphModel::equilibrium(model, Map::TELEPORT).map_err(Failure::usage)?.joined;
                let graph = self.shelf.graph(graph, joined)?;
                let labelled = graph.split(Protocol::Given.rule(split), split)?.train.len();
                Ok((HELD_BACK * FOLDS).div_ceil(labelled.max(1)).min(FOLDS))
            }
        };
        experiments.iter().map(folds).collect()
    }

    /// The first run that can be begun.
    fn next(
        &self,
        experiments: &[(u64, &str, &str)],
        folds: &[usize],
        ledger: &Ledger,
        begun: &[Key],
    ) -> Next<Key> {
        let (tune, settings) = (self.options.tune, self.options.protocol.settings());
        let plans = experiments.iter().zip(folds).flat_map(|(experiment, &folds)| {
            let searches = settings.iter().take(if tune { settings.len() } else { 0 });
            let searches = searches.flat_map(move |&settings| {
                (0..folds).map(move |fold| (experiment, folds, Some((settings, fold))))
            });
            searches.chain([(experiment, folds, None)])
        });
        first_open(plans, begun, |(&(split, graph, model), folds, search)| {
            let (protocol, graph, model) = (self.options.protocol, graph.to_owned(), model.to_owned());
            let key = Key { protocol, graph, model, split, stage: Stage::Test, settings: settings[0] };
            let key = match search {
                Some((settings, fold)) => Key { stage: Stage::Search { fold }, settings, ..key },
                None if tune => {
                    let settings = chosen(ledger, &key, folds).ok_or(Waits)?;
                    Key { settings, ..key }
                }
                None => key,
            };
            Ok(ledger.find(&key).is_none().then_some(key))
        })
    }

    fn make(&self, key: &Key) -> Result<Record, Failure> {
        let Settings { teleport, hidden, dropout, weight_decay } = key.settings;
        let model = GraphModel::equilibrium(&key.model, teleport).map_err(Failure::other)?;
        let graph = self.shelf.graph(&key.graph, model.joined)?;
        let split = split(&graph, key)?;
        let config = GraphConfig {
            hidden,
            feature_dropout: dropout,
            hidden_dropout: dropout,
            edge_dropout: 0.0,
            penalty: 0.0,
            weight_decay,
            epochs: key.protocol.epochs(),
            patience: PATIENCE,
            averaging: AVERAGING,
            selection: match key.protocol {
                Protocol::Half => Selection::BestValidation,
                Protocol::Given => Selection::LastEpoch,
            },
            seed: key.split,
            threads: self.options.threads,
            ..GraphConfig::new(model)
        };
        let run = train_graph(&graph.problem, &split, &config, |_| ()).map_err(Failure::other)?;
        let test = match key.stage {
            Stage::Search { .. } => None,
            Stage::Test => Some(tested(&graph, &split, &run.classifier, self.options.threads)?),
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
    // Proofs for injections of any sign are those in the 2-norm.
    if verdict.is_proven() && convergence.certificate.injection == InjectionBound::Any {
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
    let Settings { teleport, hidden, dropout, weight_decay } = key.settings;
    let found = match (&record.test, record.validation_accuracy) {
        (Some(test), _) => format!("test accuracy {:.2} %", test.accuracy),
        (None, Some(accuracy)) => format!("validation accuracy {accuracy:.2} %"),
        (None, None) => String::new(),
    };
    eprintln!(
        "{} {} {} split {} {:?}, t {teleport}, {hidden} units, dropout {dropout}, decay {weight_decay}: {found}, epoch \
         {best_epoch} of {epochs}, {seconds:.1} s",
        key.protocol.name(),
        key.graph,
        key.model,
        key.split,
        key.stage,
    );
}
