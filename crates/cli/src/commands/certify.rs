//! `subdeq certify`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use subdeq::Backend;
use subdeq::model::NetworkCertificate;
use subdeq::subdeq_map::{Conv, Layout, Map, Operator, OperatorError};
use subdeq::subdeq_theory::bounds::Contraction;
use subdeq::subdeq_theory::by_form::weak_degree;
use subdeq::subdeq_theory::certificate::{Certificate, Scope, Verdict};
use subdeq::subdeq_theory::certify::{Certifier, CertifyError};
use subdeq::train::{certify_samples, fits_memory, is_model_file};

use crate::colour;
use crate::device::on_device;
use crate::failure::Failure;
use crate::graph::{self, GraphRunConfig};
use crate::named_map::{MapOptions, padding, take};
use crate::options::{Compute, DataDir, Telling};
use crate::trained;
use crate::waiting::Waiting;
use crate::weights::Array;

/// The image side of a convolution that neither --side nor the injection tells.
const DEFAULT_SIDE: usize = 32;

/// Say whether a layer has exactly one fixed point: proven, refuted or unproven.
///
/// Of a trained model (RUN), of weights in a file (--weights), or of weights that come with the program. Exit status: 0
/// proven, 10 unproven, 11 refuted, 2 bad usage, 1 any other error.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run or its model.safetensors, to certify that model.
    #[arg(conflicts_with_all = ["weights", "map", "activation", "shift", "power", "norm", "teleport", "side"])]
    run: Option<PathBuf>,
    /// Look at so many of the run's test inputs one by one.
    #[arg(long, requires = "run", value_name = "N")]
    samples: Option<usize>,
    /// W (A for monotone-tied) as .npy or .safetensors, f32 or f64: n x n (dense, graph) or c x c x 3 x 3 (convolution). A run's model.safetensors
    /// needs no --map.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Which tensor of a .safetensors file.
    #[arg(long, requires = "weights")]
    tensor: Option<String>,
    /// The map: subdeq-tanh, split-sign, divisive, monotone, ... (an unknown name lists them all).
    #[arg(long)]
    map: Option<String>,
    #[command(flatten)]
    options: MapOptions,
    /// Teleport probability of a graph map.
    #[arg(long, allow_negative_numbers = true)]
    teleport: Option<f64>,
    /// Inputs y, one per row (a graph map: one matrix, nodes x features), to be certified one by one.
    #[arg(long, requires = "weights", conflicts_with = "inputs")]
    injection: Option<PathBuf>,
    /// The inputs that the verdict is about [default: all for monotone maps, else nonnegative].
    #[arg(long, value_enum)]
    inputs: Option<Inputs>,
    /// Side of the square image of a convolution [default: that of the injection, else 32].
    #[arg(long)]
    side: Option<usize>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    data_dir: DataDir,
    #[command(flatten)]
    compute: Compute,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Inputs {
    /// Every real y.
    All,
    /// Every y >= 0.
    Nonnegative,
}

impl Args {
    /// The inputs that were asked about.
    fn scope(&self, map: &Map) -> Scope {
        match self.inputs {
            None => Scope::widest(map),
            Some(Inputs::All) => Scope::AllInputs,
            Some(Inputs::Nonnegative) => Scope::NonnegativeInputs,
        }
    }

    /// The file of --weights, where it is a trained model that is to be certified as such.
    fn model(&self) -> Result<Option<&Path>, Failure> {
        let Some(path) = self.weights.as_deref().filter(|path| self.tensor.is_none() && is_model_file(path))
        else {
            return Ok(None);
        };
        let own = [
            ("--map", self.map.is_some()),
            ("--injection", self.injection.is_some()),
            ("--side", self.side.is_some()),
            ("--teleport", self.teleport.is_some()),
            ("--activation, --shift, --power and --norm", self.options.any()),
        ];
        match own.into_iter().find(|(_, given)| *given) {
            None => Ok(Some(path)),
            Some((option, _)) => Err(Failure::usage(format!(
                "{} is a trained model, which says itself what its equation is: leave {option} out, or name the one array \
                 that is meant with --tensor, equation.W for example",
                path.display()
            ))),
        }
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(model) = args.run.as_deref().map_or_else(|| args.model(), |run| Ok(Some(run)))? {
        if let Some(config) = GraphRunConfig::of(model)? {
            return certify_graph(args, model, &config);
        }
        return on_device!(args.compute.device()?, |device| certify_run(args, model, &device));
    }
    let given = match &args.weights {
        Some(path) => Some((path.display().to_string(), Array::read(path, args.tensor.as_deref())?)),
        None => None,
    };
    let Some(name) = &args.map else {
        return match given {
            Some(_) => Err(Failure::usage("--weights needs a --map, for example --map subdeq-tanh")),
            None => example(args),
        };
    };
    let (source, array) = given.unwrap_or_else(|| ("the example weights".to_owned(), example_weights()));
    let layout = layout(&source, name, &array.shape)?;
    let map = args.options.map(name, args.teleport, layout)?;
    let units = array.shape[0];
    let taken = take(name, &map, &source, array)?;
    let injection = match &args.injection {
        Some(path) => Some((path.as_path(), Array::read(path, None)?)),
        None => None,
    };
    let shape = (units, layout, injection.as_ref().map(|(_, y)| y));
    let operator = operator(args, &source, &map, shape, taken.data)?;
    let waiting = Waiting::begin(Telling::usual(args.json), "looking for proofs");
    let mut certifier = Certifier::new();
    let mut certify =
        |scope: &Scope| certifier.certify(&map, &operator, scope).map_err(|why| refuse(&source, &why));
    let report = match injection {
        None => Report::all_inputs(certify(&args.scope(&map))?),
        Some((path, y)) => {
            let samples = rows(path, &y, &map, &operator)?;
            let samples = samples.into_iter().map(|row| certify(&Scope::Sample { y: row.to_vec() }));
            Report::samples(samples.collect::<Result<Vec<Certificate>, Failure>>()?)
        }
    };
    drop(waiting);
    Report { weights: Some((taken.words, taken.changed)), ..report }.tell(args.json)
}

/// The verdict about a trained model: for all inputs, and one by one if asked for.
fn certify_run<D: Backend<Elem = f32>>(
    args: &Args,
    run: &Path,
    device: &Arc<D>,
) -> Result<ExitCode, Failure> {
    let waiting = Waiting::begin(Telling::usual(args.json), "looking for proofs");
    let (mut model, note) = trained::load(run, device)?;
    let name = note.config.model.core.name();
    let (mut layers, mut has_every_sample) = (Vec::new(), true);
    for layer in model.equilibria() {
        let scope = args.scope(&layer.map().equation());
        // The model's own inputs are among those that its layer is meant for.
        has_every_sample &= scope == layer.scope() || scope == Scope::AllInputs;
        layers.push(layer.certify(scope).map_err(Failure::other)?);
    }
    let network = NetworkCertificate::of(layers).ok_or_else(|| {
        Failure::other(format!("`{name}` has no fixed point, so there is nothing to certify"))
    })?;
    let Some(all) = network.single().cloned() else {
        drop(waiting);
        return tell_network(args, &network);
    };
    let Some(count) = args.samples else {
        drop(waiting);
        return Report::all_inputs(all).tell(args.json);
    };
    let (test, _) = trained::test_images(&note.config, None, args.data_dir.path())?;
    let certificates = if all.verdict.is_proven() && has_every_sample {
        // What holds for every input holds for each.
        vec![all.clone(); count.min(test.len())]
    } else {
        certify_samples(&mut model, &test, count, args.compute.count()).map_err(Failure::other)?
    };
    drop(waiting);
    if certificates.is_empty() {
        return Err(Failure::usage("--samples must be at least 1"));
    }
    Report { certificates, all_inputs: Some(all), about_samples: true, weights: None }.tell(args.json)
}

/// The verdict about a network of several layers.
fn tell_network(args: &Args, network: &NetworkCertificate) -> Result<ExitCode, Failure> {
    if args.samples.is_some() {
        return Err(Failure::usage(
            "--samples is for models of one block: what a deeper one reads of an image is known up to the error of those before it",
        ));
    }
    if args.json {
        let layer = |certificate: &Certificate| {
            let mut object = summary(certificate);
            object["map"] = certificate.map.to_string().into();
            object
        };
        let layers: Vec<Value> = network.layers().iter().map(layer).collect();
        println!(
            "{}",
            json!({
                "verdict": network.verdict(), "words": network.to_string(), "layers": layers, "certificates": network.layers(),
            })
        );
    } else {
        anstream::println!("{}", colour::verdict(&network.to_string()));
    }
    Ok(exit_code(network.verdict()))
}

/// The verdict about a trained model on its graph: for every injection that its network can make, or else for this one.
fn certify_graph(args: &Args, run: &Path, config: &GraphRunConfig) -> Result<ExitCode, Failure> {
    let given = [("--samples", args.samples.is_some()), ("--inputs", args.inputs.is_some())];
    if let Some((option, _)) = given.iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!("{option} is for images: a graph is one input")));
    }
    args.compute.cores_only()?;
    let classifier = graph::trained(run)?;
    let (graph, _) = config.load(args.data_dir.path())?;
    let Some(summary) = graph::verdict(&classifier, &graph)? else {
        return Err(Failure::other(format!(
            "`{}` of {} takes a fixed number of steps: it solves no equation, so there is nothing to certify",
            classifier.model.name,
            run.display()
        )));
    };
    if args.json {
        println!("{}", json!(summary));
    } else {
        anstream::println!("{}", colour::verdict(&summary.words));
    }
    Ok(exit_code(&summary.verdict))
}

fn refuse(source: &str, why: &CertifyError) -> Failure {
    match why {
        CertifyError::Map(bad) => Failure::usage(bad),
        other => Failure::other(format!("{source}: {other}")),
    }
}

fn layout(source: &str, map: &str, shape: &[usize]) -> Result<Layout, Failure> {
    match *shape {
        [n, m] if n == m && n > 0 => Ok(if Map::is_of_graph(map) { Layout::Graph } else { Layout::Dense }),
        [c, d, s, t] if c == d && c > 0 && s == t && Conv::SIDES.contains(&s) && !Map::is_of_graph(map) => {
            Ok(Layout::Conv)
        }
        _ => Err(Failure::other(format!(
            "{source} has the shape {shape:?}, but `{map}` takes weights of shape n x n{}",
            if Map::is_of_graph(map) { "" } else { " or c x c x 3 x 3" }
        ))),
    }
}

fn operator(
    args: &Args,
    source: &str,
    map: &Map,
    (n, layout, injection): (usize, Layout, Option<&Array>),
    weights: Vec<f64>,
) -> Result<Operator, Failure> {
    let operator = match layout {
        Layout::Dense => Operator::dense(n, weights),
        Layout::Conv => {
            let side = args.side.unwrap_or(DEFAULT_SIDE);
            let (height, width) = match (args.side, injection.map(|y| y.shape.as_slice())) {
                (None, Some(&[.., height, width])) if injection.is_some_and(|y| y.shape.len() >= 3) => {
                    (height, width)
                }
                _ => (side, side),
            };
            // Tests keep several numbers of 8 bytes for each unknown.
            let unknowns = [n, height, width].iter().try_fold(32u64, |n, &side| n.checked_mul(side as u64));
            fits_memory(unknowns, &format!("a convolution of {n} channels on images of {height} x {width}"))
                .map_err(Failure::usage)?;
            Operator::conv(n, height, width, padding(map), weights)
        }
        Layout::Graph => {
            let columns = match injection.map(|y| y.shape.as_slice()) {
                Some(&[_, columns]) => columns,
                _ => 1,
            };
            sparse(n, columns, &weights)
        }
    };
    operator.map_err(|why| Failure::other(format!("{source}: {why}")))
}

/// The compressed rows of a square matrix.
fn sparse(n: usize, columns: usize, entries: &[f64]) -> Result<Operator, OperatorError> {
    let (mut offsets, mut neighbours, mut weights) = (vec![0], Vec::new(), Vec::new());
    for row in entries.chunks(n) {
        for (j, &w) in row.iter().enumerate().filter(|(_, w)| **w != 0.0) {
            neighbours.push(j);
            weights.push(w);
        }
        offsets.push(weights.len());
    }
    Operator::graph(columns, offsets, neighbours, weights)
}

/// The injections, one slice each.
fn rows<'a>(path: &Path, y: &'a Array, map: &Map, operator: &Operator) -> Result<Vec<&'a [f64]>, Failure> {
    let file = path.display();
    let expected = map.form().injection_count() * operator.len();
    let count = if y.data.len() == expected { 1 } else { y.shape.first().copied().unwrap_or(0) };
    if count == 0 || count.checked_mul(expected) != Some(y.data.len()) {
        return Err(Failure::other(format!(
            "{file} has the shape {:?}, but each of its rows must have {expected} entries",
            y.shape
        )));
    }
    Ok(y.data.chunks(expected).collect())
}

/// The exit status that goes with a verdict.
fn exit_code(verdict: &str) -> ExitCode {
    match verdict {
        "proven" => ExitCode::SUCCESS,
        "unproven" => ExitCode::from(10),
        _ => ExitCode::from(11),
    }
}

/// The verdict over all inputs or over several samples.
struct Report {
    certificates: Vec<Certificate>,
    about_samples: bool,
    /// The verdict for all inputs, beside those for samples.
    all_inputs: Option<Certificate>,
    /// Where the weights come from, and whether they were changed.
    weights: Option<(String, bool)>,
}

impl Report {
    fn all_inputs(certificate: Certificate) -> Report {
        Report { certificates: vec![certificate], about_samples: false, all_inputs: None, weights: None }
    }

    fn samples(certificates: Vec<Certificate>) -> Report {
        Report { certificates, about_samples: true, all_inputs: None, weights: None }
    }

    /// Prints it; the exit status of the program.
    fn tell(&self, as_json: bool) -> Result<ExitCode, Failure> {
        if as_json {
            println!("{}", self.json());
        } else {
            self.print();
        }
        Ok(exit_code(self.verdict()))
    }

    /// One refuted sample refutes, one unproven one leaves all unproven.
    fn verdict(&self) -> &'static str {
        let any = |name: &str| self.certificates.iter().any(|c| c.verdict.name() == name);
        if any("refuted") {
            "refuted"
        } else if any("unproven") {
            "unproven"
        } else {
            "proven"
        }
    }

    fn print(&self) {
        if let Some((words, true)) = &self.weights {
            println!("weights: {words}");
        }
        if !self.about_samples {
            anstream::println!("{}", shown(&self.certificates[0]));
            return;
        }
        match &self.all_inputs {
            Some(all) => anstream::println!("all inputs: {}", shown(all)),
            None => {
                for (row, certificate) in self.certificates.iter().enumerate() {
                    anstream::println!("row {row}: {}", shown(certificate));
                }
            }
        }
        let count = |name: &str| self.certificates.iter().filter(|c| c.verdict.name() == name).count();
        println!("{} proven, {} unproven, {} refuted", count("proven"), count("unproven"), count("refuted"));
    }

    fn json(&self) -> Value {
        let mut object = summary(self.deciding());
        let fields = object.as_object_mut().expect("a summary is an object");
        fields.insert("verdict".into(), self.verdict().into());
        let scope = match self.certificates[0].scope {
            _ if self.about_samples => "samples",
            Scope::AllInputs => "all-inputs",
            Scope::NonnegativeInputs => "nonnegative-inputs",
            Scope::InputSet { .. } => "input-set",
            Scope::Sample { .. } => "sample",
        };
        fields.insert("scope".into(), scope.into());
        if let Some((words, _)) = &self.weights {
            fields.insert("weights".into(), words.as_str().into());
        }
        fields.insert("map".into(), self.certificates[0].map.to_string().into());
        if self.about_samples && self.verdict() == "proven" {
            fields.insert("factor".into(), json!(self.worst_factor()));
        }
        let samples: Vec<Value> = if self.about_samples { self.sample_rows() } else { Vec::new() };
        fields.insert("samples".into(), samples.into());
        if let Some(all) = &self.all_inputs {
            fields.insert("all_inputs".into(), summary(all));
        }
        if self.about_samples {
            let share = |name: &str| {
                let count = self.certificates.iter().filter(|c| c.verdict.name() == name).count();
                count as f64 / self.certificates.len() as f64
            };
            let shares = json!({ "proven": share("proven"), "unproven": share("unproven"), "refuted": share("refuted") });
            fields.insert("shares".into(), shares);
        }
        let full: Vec<Value> = self.certificates.iter().map(|c| json!(c)).collect();
        fields.insert("certificates".into(), full.into());
        object
    }

    fn sample_rows(&self) -> Vec<Value> {
        let numbered = |(row, certificate): (usize, &Certificate)| {
            let mut object = summary(certificate);
            object["row"] = row.into();
            object
        };
        self.certificates.iter().enumerate().map(numbered).collect()
    }

    /// The certificate that the overall verdict comes from.
    fn deciding(&self) -> &Certificate {
        let verdict = self.verdict();
        self.certificates.iter().find(|c| c.verdict.name() == verdict).unwrap_or(&self.certificates[0])
    }

    /// The largest factor, if every sample has one.
    fn worst_factor(&self) -> Option<f64> {
        let factor = |certificate: &Certificate| match certificate.verdict {
            Verdict::Proven { factor, .. } => factor,
            _ => None,
        };
        self.certificates.iter().map(factor).try_fold(0.0, |worst: f64, c| Some(worst.max(c?)))
    }
}

/// The verdict in the fields that programs look at; the full certificate is given beside it.
fn summary(certificate: &Certificate) -> Value {
    let mut object = json!({
        "verdict": certificate.verdict.name(),
        "theorem": null, "factor": null, "metric": null, "states": null, "starts": null,
        "witnesses": [], "injection": null, "why": null,
    });
    match &certificate.verdict {
        Verdict::Proven { theorem, factor, metric, states, starts, .. } => {
            object["theorem"] = json!(theorem);
            object["factor"] = json!(factor);
            object["metric"] = metric.name().into();
            object["states"] = json!(states);
            object["starts"] = json!(starts);
        }
        Verdict::Refuted { witness } => {
            object["witnesses"] = json!(witness.points());
            object["injection"] = json!(witness.y());
        }
        Verdict::Unproven { why, .. } => object["why"] = why.as_str().into(),
    }
    object
}

/// A certificate in words and colour.
fn shown(certificate: &Certificate) -> String {
    colour::verdict(&certificate.to_string())
}

/// The same as part of a list.
fn indented(certificate: &Certificate) -> String {
    colour::verdict_within(&certificate.to_string(), "   ")
}

fn example_weights() -> Array {
    Array { shape: vec![2, 2], data: vec![1.0, -1.0, -1.0, 1.0] }
}

/// The published layer and a sound one on the same weights.
fn example(args: &Args) -> Result<ExitCode, Failure> {
    let weights = Operator::dense(2, example_weights().data).map_err(Failure::other)?;
    let certify = |name: &str| -> Result<Certificate, Failure> {
        let map = args.options.map(name, args.teleport, Layout::Dense)?;
        let certificate = Certifier::new().certify(&map, &weights, &args.scope(&map));
        certificate.map_err(|why| refuse("the example", &why))
    };
    let published = certify("subdeq-tanh")?;
    let sound = certify("split-sign")?;
    if args.json {
        let object = |certificate: Certificate| Report::all_inputs(certificate).json();
        println!("{}", json!({ "example": [object(published), object(sound)] }));
        return Ok(ExitCode::SUCCESS);
    }
    println!("Two neurons that inhibit each other: W = [[1, -1], [-1, 1]].\n");
    println!("1. The published layer {}.", published.map);
    if let Ok(mu) = weak_degree(&published.map) {
        let mu = (mu.bound() * 1e6).ceil() / 1e6;
        println!("   Its condition holds: degree {mu:.6}, below one, and nothing is asked of W. But:");
    }
    anstream::println!("   {}\n", indented(&published));
    println!("2. The same weights with the signs split, {}.", sound.map);
    anstream::println!("   {}", indented(&sound));
    if let Verdict::Proven { factor: Some(c), .. } = sound.verdict
        && let Some(c) = Contraction::new(c)
    {
        // All states lie within [shift - 1, shift + 1], up to the same y on both ends.
        let (least, most) = (sound.map.shift() - 1.0, sound.map.shift() + 1.0);
        let count = c.iterations_from_distance((most / least).ln(), 1e-6);
        println!(
            "   From any positive start, {count} iterations bring every entry within one part in a million."
        );
    }
    println!("\nYour own weights: subdeq certify --weights W.npy --map split-sign");
    Ok(ExitCode::SUCCESS)
}
