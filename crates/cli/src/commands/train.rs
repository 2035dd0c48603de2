//! `subdeq train`.

mod follow;
mod graph;
mod graph_source;
mod recipe;
mod side_by_side;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use serde_json::{Value, json};
use subdeq::model::CoreSpec;
use subdeq::sliced::USUAL_SLICES;
use subdeq::train::{
    Evaluation, EvaluationOptions, RunFolder, RunOptions, TrainConfig, lead_run, parameter_count,
};
use subdeq::{Layout, Ranks};

pub use graph_source::SplitOfShards;

use super::eval;
use crate::blocks::{self, Blocks};
use crate::dataset::{self, Dataset, Division};
use crate::device::{AnyDevice, on_device};
use crate::failure::Failure;
use crate::options::{Compute, DataDir, Output, Telling};
use crate::progress::TrainingProgress;
use crate::recipe::Wishes;
use crate::report;
use crate::solving::Solving;
use crate::statistics::{deviation, mean};
use crate::stop::Stop;
use crate::together::on_ranks;
use crate::waiting::Waiting;

/// Train a classifier around an equilibrium layer; without arguments, on digits that come with the program.
///
/// A run is a folder: config.toml, metrics.jsonl, checkpoint.safetensors, model.safetensors, evaluation.json. The model
/// with the lowest validation error (or the last, if no images are held out) is kept, certified and tested. A run that
/// was stopped or killed continues with --resume, bit for bit as if nothing had happened.
///
/// Proved for every input: monotone (default), monotone-tied, monotone-product, monotone-tanh, mondeq-relu, mondeq-tanh,
/// split-sign, row-signed, excitatory, divisive, rational, power-ratio, gains. The paper's, proved only where a
/// certificate says so: subdeq-tanh, subdeq-normalized-tanh, subdeq-abs-normalized-tanh, subdeq-normalized-power-tanh,
/// subdeq-power-tanh. For comparison: node-relu, node-tanh, explicit-tanh.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// digits, mnist, fashion-mnist, cifar10, svhn, tiny-imagenet, or a folder, .npz, .csv or archive with images [default:
    /// digits]; or a graph: karate, cora-cit, cora-author, citeseer, dblp, pubmed, or a folder or .npz with one.
    #[arg(long)]
    data: Option<String>,
    /// Dense layers or 3x3 convolutions [default: dense for digits and MNIST, conv for the others].
    #[arg(long, value_enum)]
    arch: Option<Arch>,
    /// The model [default: monotone].
    #[arg(long)]
    model: Option<String>,
    /// Passes over the training images [default: the published program's].
    #[arg(long, value_name = "N")]
    epochs: Option<usize>,
    /// Seed of parameters and order [default: 0].
    #[arg(long)]
    seed: Option<u64>,
    /// Train so many times, with seeds from --seed on, and print mean and deviation.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// With --seeds: so many trainings of images at the same time, each with its part of the cores, or all on one GPU.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "seeds")]
    jobs: usize,
    /// The folder of the run; with --seeds, of one folder per seed [default: a new one under runs/].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Continue the run in --out; begin it if there is none. With --epochs it becomes longer or shorter.
    #[arg(long, requires = "out")]
    resume: bool,
    /// Train as a config.toml says; options given beside it take the place of what it has.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Images per batch; more than there are means all of them [default: 128; 32 for digits, 64 for tiny-imagenet].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Learning rate at the beginning; it falls to 1e-6 along a cosine [default: 0.001].
    #[arg(long)]
    lr: Option<f64>,
    /// Adam's L2 term [default: 0.00001].
    #[arg(long)]
    weight_decay: Option<f64>,
    /// Units (dense) or channels (conv) of the equilibrium [default: the published program's].
    #[arg(long, visible_alias = "width", value_name = "N")]
    channels: Option<usize>,
    /// A network of blocks of these widths, such as 64,128,128, each an equilibrium behind its injection with batch norm. From the
    /// second on, a convolution's injection has stride 2 while the sides of the images are even and at least 6. What a config.toml
    /// can say about each block is in docs/config.md.
    #[arg(long, value_name = "LIST", value_parser = Blocks::parse, conflicts_with = "channels")]
    blocks: Option<Blocks>,
    /// Side of the window of the average pooling in front of the last layer (conv) [default: 8; 6 for MNIST, 4 for digits; with
    /// --blocks, what leaves as many cells].
    #[arg(long, value_name = "N")]
    pool: Option<usize>,
    /// How the images are divided and standardised: as in the published program, as the paper says, or with all official training
    /// images to train on (standard; the last epoch's model is kept) [default: release].
    #[arg(long, value_parser = ["release", "paper", "standard"])]
    split: Option<String>,
    /// Training images that --split standard holds out to select the epoch [default: none].
    #[arg(long, value_name = "N")]
    validation: Option<usize>,
    /// Seed of the division [default: 0].
    #[arg(long)]
    split_seed: Option<u64>,
    /// Start each image's solve where the one of the epoch before ended.
    #[arg(long)]
    warm_start: bool,
    /// Test images to certify one by one at the end, where nothing is proved for all inputs.
    #[arg(long, value_name = "N", default_value_t = 100)]
    certify: usize,
    /// Slices that each batch is cut into for several processes (mpirun) to share. Results depend on it in their last digits, on the
    /// number of processes they do not [default: 16 under mpirun, else 0 for none].
    #[arg(long, value_name = "N")]
    slices: Option<usize>,
    /// Time between two checkpoints within an epoch; the end of every epoch is one.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    checkpoint_seconds: u64,
    #[command(flatten)]
    data_dir: DataDir,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    recipe: recipe::RecipeOptions,
    #[command(flatten)]
    solving: Solving,
    #[command(flatten)]
    graph: graph::GraphOptions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arch {
    Dense,
    Conv,
}

impl Arch {
    fn layout(self) -> Layout {
        match self {
            Arch::Dense => Layout::Dense,
            Arch::Conv => Layout::Conv,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Arch::Dense => "dense",
            Arch::Conv => "conv",
        }
    }
}

fn shown<T: ToString>(value: Option<T>) -> Option<String> {
    value.map(|value| value.to_string())
}

/// One run that ended.
struct Finished {
    folder: PathBuf,
    config: TrainConfig,
    evaluation: Evaluation,
}

/// Whether other trainings of this process run beside one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Company {
    None,
    Others,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.seeds == Some(0) {
        return Err(Failure::usage("--seeds must be at least 1"));
    }
    if args.jobs == 0 {
        return Err(Failure::usage("--jobs must be at least 1"));
    }
    let given = graph::given_config(args)?;
    if given.is_some() || args.data.as_deref().is_some_and(crate::graph::is_graph) {
        return on_ranks(|ranks| graph::run(args, ranks, given));
    }
    args.graph.refuse()?;
    on_ranks(|ranks| if ranks.is_first() { lead(args, ranks) } else { follow::follow(args, ranks) })
}

/// The work of the first rank, which is the only one if nobody started several.
fn lead(args: &Args, ranks: &Ranks) -> Result<ExitCode, Failure> {
    let (data, first) = prepare(args, ranks)?;
    let base = match &args.out {
        Some(path) => path.clone(),
        None => new_folder(&first),
    };
    let seeds = first.seed..first.seed.saturating_add(args.seeds.unwrap_or(1));
    let runs = seeds.map(|seed| {
        let folder = if args.seeds.is_some() { base.join(format!("seed-{seed}")) } else { base.clone() };
        (folder, TrainConfig { seed, ..first.clone() })
    });
    let finished = if args.jobs > 1 {
        side_by_side::train_all(args, ranks, &data, &runs.collect::<Vec<_>>())?
    } else {
        let one = |(folder, config)| one_after_another(args, ranks, &data, folder, config);
        runs.map(one).collect::<Result<_, _>>()?
    };
    follow::announce(ranks, None)?;
    let page = report::write(std::slice::from_ref(&base), None)?;
    tell_results(args, &finished, &page);
    Ok(ExitCode::SUCCESS)
}

/// A run that nothing is trained beside.
fn one_after_another(
    args: &Args,
    ranks: &Ranks,
    data: &Dataset,
    folder: PathBuf,
    config: TrainConfig,
) -> Result<Finished, Failure> {
    // Before anything is written: what ranks cannot share is no run.
    follow::announce(ranks, Some(&config))?;
    let device = follow::device_of(args, ranks, &config, &data.parts)?;
    let (run, config) = open(args, &folder, config)?;
    train(args, ranks, device, data, run, config, Company::None)
}

/// The data and the config of the first seed.
fn prepare(args: &Args, ranks: &Ranks) -> Result<(Dataset, TrainConfig), Failure> {
    let data_dir = args.data_dir.path();
    let _waiting = Waiting::begin(args.output.progress(), "reading the data");
    if let Some(path) = args.stored_config() {
        let mut config = RunFolder::read_config(&path).map_err(Failure::other)?;
        if args.config.is_some() {
            let (data, mut config) = overridden(args, config)?;
            config.slices = args.slices_of(config.slices, ranks);
            return Ok((data, config));
        }
        args.agree_with(&config, &path)?;
        config.seed = args.seed.unwrap_or(config.seed);
        config.epochs = args.epochs.unwrap_or(config.epochs);
        return Ok((dataset::reload(&config.data, data_dir)?, config));
    }
    let name = args.data.as_deref().unwrap_or("digits");
    let split = args.split.as_deref().unwrap_or("release");
    let division =
        Division { split, validation: args.validation.unwrap_or(0), seed: args.split_seed.unwrap_or(0) };
    let data = dataset::load(name, data_dir, &division)?;
    let small = matches!(name, "digits" | "mnist" | "fashion-mnist");
    let layout = match args.arch {
        Some(arch) => arch.layout(),
        None if small => Layout::Dense,
        None => Layout::Conv,
    };
    if args.pool.is_some() && layout != Layout::Conv {
        return Err(Failure::usage("--pool belongs to --arch conv"));
    }
    let mut config =
        crate::recipe::config(&data, layout, args.seed.unwrap_or(0), &args.recipe.wishes(args.wishes()))?;
    args.recipe.apply(&mut config)?;
    blocks::cores_mut(&mut config.model).try_for_each(|core| args.solving.apply(core))?;
    config.slices = args.slices_of(0, ranks);
    Ok((data, config))
}

/// A config with the options that were given in the place of what it has.
fn overridden(args: &Args, mut config: TrainConfig) -> Result<(Dataset, TrainConfig), Failure> {
    let data_dir = args.data_dir.path();
    let data = if args.data.is_some()
        || args.split.is_some()
        || args.split_seed.is_some()
        || args.validation.is_some()
    {
        let name = args.data.as_deref().unwrap_or(&config.data.name);
        let division = Division {
            split: args.split.as_deref().unwrap_or(&config.data.split),
            validation: args.validation.unwrap_or(config.data.validation),
            seed: args.split_seed.unwrap_or(config.data.split_seed),
        };
        dataset::load(name, data_dir, &division)?
    } else {
        dataset::reload(&config.data, data_dir)?
    };
    // Mirroring is the recipe's, not the data's.
    let flips = config.data.flips;
    config.data.clone_from(&data.config);
    config.data.flips = flips;
    let model = &mut config.model;
    [model.channels, model.height, model.width] = data.shape;
    model.classes = data.classes;
    let before = if model.pool.is_some() { Layout::Conv } else { Layout::Dense };
    let layout = args.arch.map_or(before, Arch::layout);
    if args.blocks.is_none() {
        blocks::keep_layout(model, layout)?;
    }
    if args.model.is_some() || layout != before {
        let name = args.model.clone().unwrap_or_else(|| model.core.name().to_owned());
        let core = crate::recipe::core(&name, layout)?;
        blocks::cores_mut(model).for_each(|of_block| of_block.clone_from(&core));
    }
    if args.pool.is_some() && layout != Layout::Conv {
        return Err(Failure::usage("--pool belongs to --arch conv"));
    }
    let pool = model.pool.unwrap_or_else(|| crate::recipe::usual_pool(&data));
    model.pool = (layout == Layout::Conv).then_some(pool);
    if let Some(blocks) = &args.blocks {
        blocks.apply(model, args.pool, crate::recipe::usual_pool(&data));
    } else if let Some(window) = args.pool {
        blocks::set_last_window(model, window);
    }
    if args.channels.is_some() && !model.deeper.is_empty() {
        return Err(Failure::usage("--channels is for models of one block: say all widths with --blocks"));
    }
    model.hidden = args.channels.unwrap_or(model.hidden);
    config.epochs = args.epochs.unwrap_or(config.epochs);
    config.batch = args.batch.unwrap_or(config.batch);
    config.rate.start = args.lr.unwrap_or(config.rate.start);
    config.weight_decay = args.weight_decay.unwrap_or(config.weight_decay);
    config.seed = args.seed.unwrap_or(config.seed);
    config.warm_start |= args.warm_start;
    args.recipe.apply(&mut config)?;
    blocks::cores_mut(&mut config.model).try_for_each(|core| args.solving.apply(core))?;
    Ok((data, config))
}

impl Args {
    /// The config that is begun from (--config) or continued (--resume), if there is one.
    fn stored_config(&self) -> Option<PathBuf> {
        match (&self.config, &self.out) {
            (Some(path), _) => Some(path.clone()),
            (None, Some(out)) if self.resume => {
                let seed = self.seed.unwrap_or(0);
                let folder =
                    if self.seeds.is_some() { out.join(format!("seed-{seed}")) } else { out.clone() };
                Some(folder.join("config.toml")).filter(|path| path.exists())
            }
            _ => None,
        }
    }

    /// The slices of a run that begins; several ranks need some.
    fn slices_of(&self, stored: usize, ranks: &Ranks) -> usize {
        match self.slices.unwrap_or(stored) {
            0 if ranks.size() > 1 => USUAL_SLICES,
            slices => slices,
        }
    }

    /// What to say when the user has stopped the run in `folder`, with the options that no config has.
    fn how_to_go_on(&self, folder: &Path) -> String {
        let data_dir =
            self.data_dir.path().map_or(String::new(), |path| format!(" --data-dir {}", path.display()));
        let device = self.compute.named_device().map_or(String::new(), |name| format!(" --device {name}"));
        format!("stopped; go on with `subdeq train --resume --out {}{data_dir}{device}`", folder.display())
    }

    /// Refuses options that contradict the run that is to be continued. Epochs may change.
    fn agree_with(&self, stored: &TrainConfig, path: &Path) -> Result<(), Failure> {
        let TrainConfig { data, model, .. } = stored;
        // What the options would make of the run's model.
        let mut asked = model.clone();
        blocks::cores_mut(&mut asked).try_for_each(|core| self.solving.apply(core))?;
        if asked != *model {
            let differences = differences(&json!(model), &json!(asked));
            return Err(Failure::usage(format!(
                "{} was begun otherwise ({differences}): leave --solver, --tol and --max-iterations out to continue it, or \
                 choose another --out",
                path.parent().unwrap_or(path).display()
            )));
        }
        let layout = if model.pool.is_some() { "conv" } else { "dense" };
        let asked = [
            ("--data", self.data.as_deref().map(dataset::absolute), data.name.clone()),
            ("--split", self.split.clone(), data.split.to_string()),
            ("--validation", shown(self.validation), data.validation.to_string()),
            ("--split-seed", shown(self.split_seed), data.split_seed.to_string()),
            ("--arch", self.arch.map(|arch| arch.name().to_owned()), layout.to_owned()),
            ("--model", self.model.clone(), model.core.name().to_owned()),
            ("--channels", shown(self.channels), model.hidden.to_string()),
            ("--blocks", shown(self.blocks.as_ref()), Blocks::of(model).to_string()),
            ("--pool", shown(self.pool), shown(blocks::last_window(model)).unwrap_or("nothing".to_owned())),
            ("--batch", shown(self.batch), stored.batch.to_string()),
            ("--lr", shown(self.lr), stored.rate.start.to_string()),
            ("--weight-decay", shown(self.weight_decay), stored.weight_decay.to_string()),
            ("--slices", shown(self.slices), stored.slices.to_string()),
            ("--warm-start", self.warm_start.then(|| "true".to_owned()), stored.warm_start.to_string()),
        ];
        let differs = |(option, asked, stored): &(&str, Option<String>, String)| {
            let asked = asked.as_ref().filter(|asked| *asked != stored)?;
            Some(format!("{option} {asked} where it has {stored}"))
        };
        let recipe = self.recipe.asked(stored);
        let differences: Vec<String> = asked.iter().chain(&recipe).filter_map(differs).collect();
        if differences.is_empty() {
            return Ok(());
        }
        Err(Failure::usage(format!(
            "{} was begun otherwise ({}): leave these options out to continue it, or choose another --out",
            path.parent().unwrap_or(path).display(),
            differences.join(", ")
        )))
    }

    fn wishes(&self) -> Wishes {
        Wishes {
            model: self.model.clone(),
            hidden: self.channels,
            blocks: self.blocks.clone(),
            pool: self.pool,
            epochs: self.epochs,
            batch: self.batch,
            rate: self.lr,
            weight_decay: self.weight_decay,
            warm_start: self.warm_start,
        }
    }
}

/// `runs/DATA-ARCH-MODEL`, with a number behind it if that is taken.
fn new_folder(config: &TrainConfig) -> PathBuf {
    let path = Path::new(&config.data.name);
    let name = if path.is_file() { path.file_stem() } else { path.file_name() };
    let data = name.map_or("data".into(), |name| name.to_string_lossy());
    let arch = if config.model.pool.is_some() { "conv" } else { "dense" };
    free_folder(&format!("{data}-{arch}-{}", config.model.core.name()))
}

/// `runs/NAME`, with a number behind it if that is taken.
fn free_folder(name: &str) -> PathBuf {
    let numbered = (2..).map(|k| format!("{name}-{k}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered).map(|name| Path::new("runs").join(name));
    names.find(|path| !path.exists()).unwrap_or_else(|| PathBuf::from("runs"))
}

/// The folder of the run: a new one, or the one to be continued.
fn open(args: &Args, path: &Path, config: TrainConfig) -> Result<(RunFolder, TrainConfig), Failure> {
    if !args.resume || !path.join("config.toml").exists() {
        return Ok((RunFolder::create(path, &config).map_err(Failure::other)?, config));
    }
    let (run, stored) = RunFolder::open(path).map_err(Failure::other)?;
    if stored == config {
        return Ok((run, stored));
    }
    if (TrainConfig { epochs: config.epochs, ..stored.clone() }) == config {
        let done = run.change_epochs(&config).map_err(Failure::other)?;
        eprintln!(
            "{} epochs instead of {}: from epoch {} on the learning rate follows the cosine of {0}",
            config.epochs,
            stored.epochs,
            done + 1
        );
        return Ok((run, config));
    }
    Err(Failure::usage(format!(
        "{} was begun with another config ({}): leave the options out to continue it, or choose another --out",
        path.display(),
        differences(&json!(stored), &json!(config))
    )))
}

/// The fields in which two configs differ.
fn differences(stored: &Value, asked: &Value) -> String {
    let mut found = Vec::new();
    compare("", stored, asked, &mut found);
    found.join(", ")
}

fn compare(path: &str, stored: &Value, asked: &Value, found: &mut Vec<String>) {
    match (stored, asked) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(&path, &stored[key], &asked[key], found);
            }
        }
        (a, b) if a == b => {}
        (a, b) => found.push(format!("{path} was {a}, not {b}")),
    }
}

fn train(
    args: &Args,
    ranks: &Ranks,
    device: AnyDevice,
    data: &Dataset,
    run: RunFolder,
    config: TrainConfig,
    company: Company,
) -> Result<Finished, Failure> {
    let telling = match (args.output.progress(), company) {
        // One bar cannot tell of several.
        (Telling::Bar, Company::Others) => Telling::Lines,
        (telling, _) => telling,
    };
    if telling != Telling::Nothing {
        let together = follow::in_words(ranks, &config);
        introduce(data, &config, run.path(), &format!("{}{together}", device.name()));
        tell_position(&run)?;
    }
    let options = RunOptions {
        evaluation: EvaluationOptions {
            certify: args.certify,
            threads: args.compute.count(),
            ..EvaluationOptions::default()
        },
        checkpoint_every: Duration::from_secs(args.checkpoint_seconds),
    };
    let seed = (company == Company::Others).then_some(config.seed);
    let mut progress = TrainingProgress::new(telling, config.epochs, seed);
    let stop = Stop::listen()?;
    let mut waiting = None;
    let tell = &mut |step: subdeq::train::Progress<'_>| {
        progress.tell(&step);
        if step.epoch == config.epochs {
            // What is left, certificate and test, ends at once if asked to: all of it can be made again. Others may not be so far.
            if company == Company::None {
                stop.finish();
                waiting = Some(Waiting::begin(telling, "certifying and testing"));
            }
            progress.finish();
        }
        stop.flow()
    };
    let ended =
        on_device!(device, |device| { lead_run(ranks, &device, &run, &config, &data.parts, &options, tell) });
    drop(waiting);
    if company == Company::None {
        stop.finish();
    }
    progress.finish();
    let evaluation =
        ended.map_err(Failure::other)?.ok_or_else(|| stop.failure(args.how_to_go_on(run.path())))?;
    Ok(Finished { folder: run.path().to_owned(), config, evaluation })
}

/// Where a run that was begun before goes on.
fn tell_position(run: &RunFolder) -> Result<(), Failure> {
    if let Some(at) = run.position().map_err(Failure::other)? {
        let batches =
            if at.batches > 0 { format!(" and {} batches of the next", at.batches) } else { String::new() };
        eprintln!("goes on after {} epochs{batches}", at.epoch);
    }
    Ok(())
}

fn introduce(data: &Dataset, config: &TrainConfig, folder: &Path, device: &str) {
    let [channels, height, width] = data.shape;
    let colour = if channels == 1 { "" } else { " in colour" };
    let model = &config.model;
    let images = format!(
        "{}: {} + {} + {} images of {height}x{width}{colour} to train, select and test; {} classes",
        config.data.name,
        data.parts.train.len(),
        data.parts.validation.len(),
        data.parts.test.len(),
        data.classes,
    );
    let widths = if model.deeper.is_empty() {
        model.hidden.to_string()
    } else {
        format!("{} blocks of {}", 1 + model.deeper.len(), Blocks::of(model))
    };
    let size = match blocks::last_window(model) {
        None => format!("dense, {widths} units"),
        Some(pool) => format!("convolutional, {widths} channels, pooled {pool}x{pool}"),
    };
    let parameters = parameter_count(model).map_or(String::new(), |count| format!("; {count} parameters"));
    let solver = match &model.core {
        CoreSpec::Equilibrium { solver: Some(solver), .. } => {
            json!(solver)["name"].as_str().map_or(String::new(), |name| format!(", solved by {name}"))
        }
        _ => String::new(),
    };
    let recipe = recipe::in_words(config).map_or(String::new(), |words| format!("with {words}\n"));
    // In one piece: others may be introduced at the same time.
    eprintln!(
        "{images}\n{}: {size}{parameters}{solver}; seed {}; {}\n{recipe}on {device}",
        model.core.name(),
        config.seed,
        folder.display()
    );
}

fn tell_results(args: &Args, finished: &[Finished], page: &Path) {
    if args.output.json() {
        for one in finished {
            println!("{}", summary(one, page));
        }
    } else {
        finished.iter().for_each(print_one);
        println!("report: {}", page.display());
    }
    let errors: Vec<f64> = finished.iter().map(|one| one.evaluation.error).collect();
    if let Some(deviation) = deviation(&errors) {
        let mean = mean(&errors);
        if args.output.json() {
            println!("{}", json!({ "seeds": errors.len(), "mean_error": mean, "deviation": deviation }));
        } else {
            println!("test error over {} seeds: {mean:.2} +- {deviation:.2} %", errors.len());
        }
    }
}

fn summary(one: &Finished, page: &Path) -> Value {
    let Evaluation {
        samples, error, converged, certified, certified_samples, all_inputs, median_factor, ..
    } = &one.evaluation;
    json!({
        "run": one.folder.display().to_string(),
        "report": page.display().to_string(),
        "data": one.config.data.name,
        "model": one.config.model.core.name(),
        "parameters": parameter_count(&one.config.model).ok(),
        "seed": one.config.seed,
        "error": error,
        "samples": samples,
        "converged": converged,
        "certified": certified,
        "certified_samples": certified_samples,
        "all_inputs": all_inputs,
        "median_factor": median_factor,
    })
}

fn print_one(one: &Finished) {
    eval::print(&one.evaluation);
    println!("run: {}", one.folder.display());
}
