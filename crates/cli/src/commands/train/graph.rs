//! `subdeq train` on a graph.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;
use subdeq::Ranks;
use subdeq::graph::{
    GraphConfig, GraphModel, GraphNorm, GraphSplit, OutputActivation, Teaching, train_shared_graph_run,
};
use subdeq::train::{EpochMetrics, Evaluation, RunFolder};
use subdeq_data::graph::GraphSplitRule;

use super::Args;
use super::graph_source::Source;
use crate::commands::eval;
use crate::failure::Failure;
use crate::graph::{GraphData, GraphRunConfig, Kind};
use crate::names;
use crate::options::Telling;
use crate::statistics::{deviation, mean};
use crate::stop::Stop;
use crate::waiting::Waiting;

/// What only graphs have.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Graphs")]
pub struct GraphOptions {
    /// `equilibrium`: solved, signed injection, certified with the factor 1 - T; `paper`: as the paper writes it (equilibrium,
    /// positive injection, certified); `release`: as the published program has it (ten unrolled steps from a signed
    /// injection) [default: equilibrium].
    #[arg(long, value_enum)]
    form: Option<Form>,
    /// Teleport probability [default: 0.1].
    #[arg(long, value_name = "T")]
    teleport: Option<f64>,
    /// Power of the means that hyper-power's hyperedges take of their nodes, from 1 (the linear mean) to 100 [default: 2].
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    power: Option<f64>,
    /// Share of the nodes that is labelled [default: the paper's, else the division given with the data, else 0.1].
    #[arg(long, value_name = "SHARE")]
    labelled: Option<f64>,
    /// Divide the nodes as the data's given division number K says.
    #[arg(long, value_name = "K", conflicts_with = "labelled")]
    given_split: Option<usize>,
    /// What the paper's form normalises: entries of a node (rows) or of a class (columns) [default: columns].
    #[arg(long, value_enum)]
    normalise: Option<Normalise>,
    /// What makes the paper's form's injection positive [default: softplus].
    #[arg(long, value_enum)]
    positive: Option<Positive>,
    /// End after so many epochs without a better validation accuracy [default: 500].
    #[arg(long, value_name = "N")]
    patience: Option<usize>,
    /// Share of the features' entries that a step leaves out [default: 0.5].
    #[arg(long, value_name = "SHARE")]
    feature_dropout: Option<f64>,
    /// Share of the hidden units that a step leaves out [default: 0.5].
    #[arg(long, value_name = "SHARE")]
    hidden_dropout: Option<f64>,
    /// This times the squares of the last layer's weights is added to the loss [default: 0.0025].
    #[arg(long, value_name = "P")]
    penalty: Option<f64>,
    /// Learn from nodes without labels too: this is what the model's own opinion about them weighs beside the labels; helps where
    /// labels are few [default: 0].
    #[arg(long, value_name = "W")]
    teaching: Option<f64>,
    /// What is evaluated is a running mean of the weights, of which each epoch keeps this share [default: 0].
    #[arg(long, value_name = "SHARE")]
    averaging: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Form {
    Equilibrium,
    Paper,
    Release,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Normalise {
    Rows,
    Columns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Positive {
    Softplus,
    Relu,
}

impl GraphOptions {
    /// Refuses options that mean nothing without a graph.
    pub fn refuse(&self) -> Result<(), Failure> {
        let given = [
            ("--form", self.form.is_some()),
            ("--teleport", self.teleport.is_some()),
            ("--power", self.power.is_some()),
            ("--labelled", self.labelled.is_some()),
            ("--given-split", self.given_split.is_some()),
            ("--normalise", self.normalise.is_some()),
            ("--positive", self.positive.is_some()),
            ("--patience", self.patience.is_some()),
            ("--feature-dropout", self.feature_dropout.is_some()),
            ("--hidden-dropout", self.hidden_dropout.is_some()),
            ("--penalty", self.penalty.is_some()),
            ("--teaching", self.teaching.is_some()),
            ("--averaging", self.averaging.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Failure::usage(format!("{option} is for graphs, these are images"))),
            None => Ok(()),
        }
    }

    /// How nodes without labels are learned from, where something was said about it.
    fn teaching(&self) -> Option<Option<Teaching>> {
        self.teaching.map(|weight| (weight != 0.0).then_some(Teaching::new(weight)))
    }
}

/// One run that ended.
struct Finished {
    folder: PathBuf,
    config: GraphRunConfig,
    evaluation: Evaluation,
}

/// The config that a run without options continues, or that `--config` names, if it is one for a graph.
pub fn given_config(args: &Args) -> Result<Option<GraphRunConfig>, Failure> {
    let folder = match (&args.config, &args.out) {
        (Some(path), _) => return GraphRunConfig::read(path),
        (None, Some(out)) if args.resume && args.data.is_none() => match args.seeds {
            Some(_) => out.join(format!("seed-{}", args.seed.unwrap_or(0))),
            None => out.clone(),
        },
        _ => return Ok(None),
    };
    GraphRunConfig::of(&folder)
}

/// A config with the options that were given in the place of what it has.
fn overridden(args: &Args, mut config: GraphRunConfig) -> Result<GraphRunConfig, Failure> {
    let options = &args.graph;
    let of_the_model = [
        ("--data", args.data.is_some()),
        ("--model", args.model.is_some()),
        ("--form", options.form.is_some()),
        ("--teleport", options.teleport.is_some()),
        ("--power", options.power.is_some()),
        ("--normalise", options.normalise.is_some()),
        ("--positive", options.positive.is_some()),
    ];
    if let Some((option, _)) = of_the_model.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!(
            "{option} makes another model or graph than the config's: leave it out, or leave --config and --resume out"
        )));
    }
    let GraphRunConfig { data, training, .. } = &mut config;
    if let Some(seed) = args.seed {
        (training.seed, data.split_seed) = (seed, seed);
    }
    data.split_seed = args.split_seed.unwrap_or(data.split_seed);
    data.split = asked_split(options).unwrap_or(data.split);
    training.hidden = args.channels.unwrap_or(training.hidden);
    training.rate = args.lr.unwrap_or(training.rate);
    training.weight_decay = args.weight_decay.unwrap_or(training.weight_decay);
    training.epochs = args.epochs.unwrap_or(training.epochs);
    training.patience = options.patience.unwrap_or(training.patience);
    training.feature_dropout = options.feature_dropout.unwrap_or(training.feature_dropout);
    training.hidden_dropout = options.hidden_dropout.unwrap_or(training.hidden_dropout);
    training.penalty = options.penalty.unwrap_or(training.penalty);
    training.teaching = options.teaching().unwrap_or(training.teaching);
    training.averaging = options.averaging.unwrap_or(training.averaging);
    args.solving.apply_to_graph(&mut training.model)?;
    Ok(config)
}

/// The division of the nodes that was asked for.
fn asked_split(options: &GraphOptions) -> Option<GraphSplitRule> {
    let given = options.given_split.map(|index| GraphSplitRule::Given { index });
    options.labelled.map(|labelled| GraphSplitRule::Share { labelled }).or(given)
}

/// What a rank tells of its progress: only the first speaks.
fn telling(args: &Args, ranks: &Ranks) -> Telling {
    if ranks.is_first() { args.output.progress() } else { Telling::Nothing }
}

/// Trains on the graph of that name, or as a config says.
pub fn run(args: &Args, ranks: &Ranks, given: Option<GraphRunConfig>) -> Result<ExitCode, Failure> {
    refuse_image_options(args)?;
    let data_dir = args.data_dir.path();
    let waiting = Waiting::begin(telling(args, ranks), "reading the graph");
    let (graph, first) = match given {
        Some(config) => {
            let config = overridden(args, config)?;
            (Source::load(&config.data.name, config.training.model.joined, ranks, data_dir)?, config)
        }
        None => {
            let model = model(args)?;
            let name = args.data.as_deref().unwrap_or("karate");
            let graph = Source::load(name, model.joined, ranks, data_dir)?;
            let config = config(args, &graph, model)?;
            (graph, config)
        }
    };
    drop(waiting);
    first.training.check_sizes(graph.problem()).map_err(Failure::usage)?;
    let seed = first.training.seed;
    let base = args.out.clone().unwrap_or_else(|| new_folder(&first));
    let mut finished = Vec::new();
    for seed in seed..seed.saturating_add(args.seeds.unwrap_or(1)) {
        let folder = if args.seeds.is_some() { base.join(format!("seed-{seed}")) } else { base.clone() };
        let mut config = first.clone();
        // Seeds vary the split as well, as in the paper, unless one split is asked for.
        (_, config.data.split_seed) = graph.division(None, args.split_seed, seed)?;
        config.training.seed = seed;
        finished.extend(train(args, ranks, &graph, &folder, config)?);
    }
    if ranks.is_first() {
        tell(args, &finished);
    }
    Ok(ExitCode::SUCCESS)
}

fn refuse_image_options(args: &Args) -> Result<(), Failure> {
    let given = [
        ("--arch", args.arch.is_some()),
        ("--batch", args.batch.is_some()),
        ("--blocks", args.blocks.is_some()),
        ("--jobs", args.jobs > 1),
        ("--pool", args.pool.is_some()),
        ("--split", args.split.is_some()),
        ("--warm-start", args.warm_start),
        ("--validation", args.validation.is_some()),
    ];
    let given = given.iter().find_map(|(option, given)| given.then_some(*option));
    match given.or(args.recipe.given()) {
        Some(option) => Err(Failure::usage(format!("{option} is for images, this is a graph"))),
        None => Ok(()),
    }
}

fn model(args: &Args) -> Result<GraphModel, Failure> {
    let options = &args.graph;
    let name = args.model.as_deref().unwrap_or("appnp-tanh");
    let teleport = options.teleport.unwrap_or(0.1);
    let model = match options.form.unwrap_or(Form::Equilibrium) {
        Form::Paper => GraphModel::paper(name, teleport).and_then(|model| adapted(model, options)),
        _ if options.normalise.is_some() || options.positive.is_some() => {
            return Err(Failure::usage("--normalise and --positive belong to --form paper"));
        }
        Form::Release => GraphModel::release(name, teleport),
        Form::Equilibrium => GraphModel::equilibrium(name, teleport),
    };
    let model = match options.power {
        Some(power) => model.and_then(|model| model.with_power(power)),
        None => model,
    };
    let known = [&GraphModel::NAMES[..], &GraphModel::OWN_NAMES[..]].concat();
    model.map_err(|why| Failure::usage(names::unknown(why, name, &known)))
}

fn config(args: &Args, graph: &Source, model: GraphModel) -> Result<GraphRunConfig, Failure> {
    let options = &args.graph;
    let mut defaults = GraphConfig::new(model);
    args.solving.apply_to_graph(&mut defaults.model)?;
    let seed = args.seed.unwrap_or(0);
    let (split, split_seed) = graph.division(asked_split(options), args.split_seed, seed)?;
    let data = GraphData { name: graph.name().to_owned(), split, split_seed };
    let training = GraphConfig {
        hidden: args.channels.unwrap_or(defaults.hidden),
        rate: args.lr.unwrap_or(defaults.rate),
        weight_decay: args.weight_decay.unwrap_or(defaults.weight_decay),
        epochs: args.epochs.unwrap_or(defaults.epochs),
        patience: options.patience.unwrap_or(defaults.patience),
        feature_dropout: options.feature_dropout.unwrap_or(defaults.feature_dropout),
        hidden_dropout: options.hidden_dropout.unwrap_or(defaults.hidden_dropout),
        penalty: options.penalty.unwrap_or(defaults.penalty),
        teaching: options.teaching().flatten(),
        averaging: options.averaging.unwrap_or(defaults.averaging),
        seed,
        ..defaults
    };
    Ok(GraphRunConfig { kind: Kind::Graph, data, training })
}

/// A model of the paper with another normalisation or another positive injection.
fn adapted(mut model: GraphModel, options: &GraphOptions) -> subdeq::Result<GraphModel> {
    if let (Some(normalise), Some(_)) = (options.normalise, model.map.normalisation()) {
        model = model.normalised_by(match normalise {
            Normalise::Rows => GraphNorm::Rows,
            Normalise::Columns => GraphNorm::Columns,
        })?;
    }
    if let Some(positive) = options.positive {
        model.output = match positive {
            Positive::Softplus => OutputActivation::Softplus,
            Positive::Relu => OutputActivation::Relu,
        };
    }
    Ok(model)
}

/// `runs/GRAPH-MODEL`, with a number behind it if that is taken.
fn new_folder(config: &GraphRunConfig) -> PathBuf {
    let data = Path::new(&config.data.name).file_stem().map_or("graph".into(), |name| name.to_string_lossy());
    super::free_folder(&format!("{data}-{}", config.training.model.name))
}

/// One run, of which the first rank has the folder and the end.
fn train(
    args: &Args,
    ranks: &Ranks,
    graph: &Source,
    path: &Path,
    config: GraphRunConfig,
) -> Result<Option<Finished>, Failure> {
    args.compute.cores_only()?;
    let folder = ranks.is_first().then(|| open(args, path, &config)).transpose()?;
    let hint = "give every rank the same options and files";
    ranks.agree("the configuration", json!(config).to_string().as_bytes(), hint).map_err(Failure::other)?;
    let split = graph.split(&config.data)?;
    let telling = telling(args, ranks);
    if telling != Telling::Nothing {
        introduce(ranks, graph, &split, &config, path);
    }
    // Results do not depend on it, so it is no part of the run's config.
    let compute = if ranks.size() > 1 { args.compute.shared() } else { args.compute };
    let training = GraphConfig { threads: compute.count(), ..config.training.clone() };
    let mut progress = Progress::new(telling, training.epochs);
    let every = Duration::from_secs(args.checkpoint_seconds);
    let stop = Stop::listen()?;
    let tell = &mut |epoch: &EpochMetrics| {
        progress.tell(epoch);
        stop.flow()
    };
    let ended =
        train_shared_graph_run(ranks, folder.as_ref(), graph.problem(), &split, &training, every, tell);
    stop.finish();
    let classifier = ended.map_err(Failure::other)?.ok_or_else(|| stop.failure(args.how_to_go_on(path)))?;
    let nodes = (&config.data, &split);
    let evaluation = graph.evaluate(ranks, folder.as_ref(), nodes, &classifier, training.threads)?;
    Ok(evaluation.map(|evaluation| Finished { folder: path.to_owned(), config, evaluation }))
}

/// The folder of the run: a new one, or the one to be continued.
fn open(args: &Args, path: &Path, config: &GraphRunConfig) -> Result<RunFolder, Failure> {
    if !args.resume || !path.join("config.toml").exists() {
        return RunFolder::create(path, config).map_err(Failure::other);
    }
    let (run, stored) = RunFolder::open_as::<GraphRunConfig>(path).map_err(Failure::other)?;
    if stored != *config {
        return Err(Failure::usage(format!(
            "{} was begun with another config ({}): leave the options out to continue it, or choose another --out",
            path.display(),
            super::differences(&json!(stored), &json!(config))
        )));
    }
    Ok(run)
}

fn introduce(ranks: &Ranks, graph: &Source, split: &GraphSplit, config: &GraphRunConfig, folder: &Path) {
    let together = match ranks.size() {
        1 => String::new(),
        size => format!("; shared by {size} ranks"),
    };
    eprintln!(
        "{}: {}; {} + {} + {} nodes to train, select and test{together}",
        config.data.name,
        graph.in_words(),
        split.train.len(),
        split.validation.len(),
        split.test.len()
    );
    let GraphConfig { model, hidden, seed, .. } = &config.training;
    eprintln!(
        "{}: teleport {}{}, {hidden} hidden units; seed {seed}; {}",
        model.name,
        model.map.teleport(),
        model.map.power().map_or_else(String::new, |power| format!(", power {power}")),
        folder.display()
    );
}

/// Tells how a training goes, now and then: epochs are short.
struct Progress {
    telling: Telling,
    epochs: usize,
    every: usize,
}

impl Progress {
    fn new(telling: Telling, epochs: usize) -> Progress {
        Progress { telling, epochs, every: (epochs / 20).max(1) }
    }

    fn tell(&mut self, epoch: &EpochMetrics) {
        if self.telling == Telling::Nothing || !epoch.epoch.is_multiple_of(self.every) {
            return;
        }
        let accuracy = 100.0 - epoch.validation_error.unwrap_or(epoch.train_error);
        let head = format!("epoch {}/{}: loss {:.4}", epoch.epoch, self.epochs, epoch.train_loss);
        match self.telling {
            // As wide as a narrow terminal.
            Telling::Bar => eprintln!("{head}, validation {accuracy:.2} %"),
            _ => eprintln!(
                "{head}, validation accuracy {accuracy:.2} %, iterations {} + {}, {:.1} ms a step",
                epoch.forward_iterations,
                epoch.backward_iterations,
                1e3 * epoch.seconds
            ),
        }
    }
}

fn tell(args: &Args, finished: &[Finished]) {
    for Finished { folder, config, evaluation } in finished {
        if args.output.json() {
            println!(
                "{}",
                json!({
                    "run": folder.display().to_string(),
                    "data": config.data.name,
                    "model": config.training.model.name,
                    "seed": config.training.seed,
                    "accuracy": evaluation.accuracy,
                    "error": evaluation.error,
                    "samples": evaluation.samples,
                    "converged": evaluation.converged,
                    "certified": evaluation.certified,
                    "all_inputs": evaluation.all_inputs,
                })
            );
        } else {
            eval::graph::print(evaluation);
            println!("run: {}", folder.display());
        }
    }
    let accuracies: Vec<f64> = finished.iter().map(|one| one.evaluation.accuracy).collect();
    if let Some(deviation) = deviation(&accuracies) {
        let mean = mean(&accuracies);
        if args.output.json() {
            println!(
                "{}",
                json!({ "seeds": accuracies.len(), "mean_accuracy": mean, "deviation": deviation })
            );
        } else {
            println!("test accuracy over {} seeds: {mean:.2} +- {deviation:.2} %", accuracies.len());
        }
    }
}
