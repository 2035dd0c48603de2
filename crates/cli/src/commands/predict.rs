//! `subdeq predict`.

mod graph;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use subdeq::Backend;
use subdeq::model::{Answer, Classifier};
use subdeq::train::{ModelNote, certified_radii};

use crate::colour::{bad, doubtful, good};
use crate::device::on_device;
use crate::failure::Failure;
use crate::graph::GraphRunConfig;
use crate::options::{Compute, DataDir, Output};
use crate::pictures::{self, Image, Wanted};
use crate::trained;

/// Images that are looked at together.
const BATCH: usize = 256;

/// Say what a trained model sees in images, or in the nodes of its graph, and whether its equation has one solution only.
///
/// What is proved is that the fixed point behind an answer is the only one, and within which distance the answer stays the
/// same; not that the answer is right.
///
/// Exit status: 0; 1 if some file could not be read (the others are answered); 10 if for some image the fixed point is not
/// proved to be the only one.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run, or a model.safetensors.
    run: PathBuf,
    /// Images: .png, .jpg, .npy (one or several), IDX files (.gz or not), folders of pictures, - for standard input. Colour and
    /// grey are brought to what the model takes. Of a run on a graph: numbers of nodes, from 0 [default: all].
    inputs: Vec<PathBuf>,
    /// Bring pictures of another size to the model's.
    #[arg(long)]
    resize: bool,
    /// Say the K most probable classes.
    #[arg(long, value_name = "K", default_value_t = 1)]
    top: usize,
    #[command(flatten)]
    data_dir: DataDir,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    output: Output,
}

/// What is proved about an answer.
struct Proof {
    /// `proven`, `unproven` or `refuted`: that the fixed point is the only one; none for models without one.
    verdict: Option<&'static str>,
    /// No image closer than this, in the 2-norm of pixels from 0 to 1, is given another class.
    radius: Option<f64>,
}

/// How it went, for the exit status.
#[derive(Default)]
struct Tally {
    failed: usize,
    unproven: bool,
}

impl Tally {
    /// Says what is wrong with a file and goes on.
    fn fail(&mut self, args: &Args, file: &str, why: &Failure) {
        self.failed += 1;
        eprintln!("subdeq: {why}");
        if args.output.json() {
            println!("{}", json!({ "file": file, "error": why.to_string() }));
        }
    }

    fn exit_code(&self) -> ExitCode {
        match self {
            Tally { failed: 1.., .. } => ExitCode::from(1),
            Tally { unproven: true, .. } => ExitCode::from(10),
            _ => ExitCode::SUCCESS,
        }
    }
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.top == 0 {
        return Err(Failure::usage("--top must be at least 1"));
    }
    if let Some(config) = GraphRunConfig::of(&args.run)? {
        return graph::run(args, &config);
    }
    if args.inputs.is_empty() {
        return Err(Failure::usage("which images? Name files or folders, or - for standard input"));
    }
    on_device!(args.compute.device()?, |device| predict(args, &device))
}

fn predict<D: Backend<Elem = f32>>(args: &Args, device: &Arc<D>) -> Result<ExitCode, Failure> {
    let (mut model, note) = trained::load(&args.run, device)?;
    let mut tally = Tally::default();
    for input in &args.inputs {
        match pictures::files(input) {
            Ok(files) => {
                for file in files {
                    let wanted =
                        Wanted { data: &note.config.data, model: &model.spec().clone(), resize: args.resize };
                    match pictures::read(&file, wanted) {
                        Ok(images) => answer(args, &mut model, &note, &images, &mut tally)?,
                        Err(why) => tally.fail(args, &file.display().to_string(), &why),
                    }
                }
            }
            Err(why) => tally.fail(args, &input.display().to_string(), &why),
        }
    }
    Ok(tally.exit_code())
}

fn answer<D: Backend<Elem = f32>>(
    args: &Args,
    model: &mut Classifier<D>,
    note: &ModelNote,
    images: &[Image],
    tally: &mut Tally,
) -> Result<(), Failure> {
    let data = &note.config.data;
    for batch in images.chunks(BATCH) {
        let x: Vec<f32> = batch.iter().flat_map(|image| image.standardised(data, model.spec())).collect();
        let answers = model.answers(&x).map_err(Failure::other)?;
        let proofs = proofs(args, model, note, &x, &answers)?;
        for ((image, answer), proof) in batch.iter().zip(&answers).zip(&proofs) {
            tally.unproven |= proof.verdict.is_some_and(|verdict| verdict != "proven");
            tell(args, image, answer, proof, &data.class_names);
        }
    }
    Ok(())
}

fn proofs<D: Backend<Elem = f32>>(
    args: &Args,
    model: &mut Classifier<D>,
    note: &ModelNote,
    x: &[f32],
    answers: &[Answer],
) -> Result<Vec<Proof>, Failure> {
    let Some(all) = &note.certificate else {
        return Ok(answers.iter().map(|_| Proof { verdict: None, radius: None }).collect());
    };
    let proof = |verdict: &'static str, radius| Proof { verdict: Some(verdict), radius };
    if all.is_proven() {
        let radii = certified_radii(model, note, x).map_err(Failure::other)?;
        return Ok(radii.into_iter().map(|radius| proof(all.verdict(), radius)).collect());
    }
    let y = model.injected(x).map_err(Failure::other)?;
    let Some(layer) = model.equilibrium() else {
        // Nothing is known about single images of a network that is not proved for all.
        return Ok(answers.iter().map(|_| proof("unproven", None)).collect());
    };
    let certificates = layer.certify_samples(&y, args.compute.count()).map_err(Failure::other)?;
    Ok(certificates.iter().map(|certificate| proof(certificate.verdict.name(), None)).collect())
}

/// The most probable classes with their probabilities, the first one first.
fn ranked(probabilities: impl Iterator<Item = f64>, top: usize) -> Vec<(usize, f64)> {
    let mut ranked: Vec<(usize, f64)> = probabilities.enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    ranked.truncate(top);
    ranked
}

fn name_of(classes: &[String], class: usize) -> String {
    classes.get(class).cloned().unwrap_or_else(|| class.to_string())
}

/// `bar, 97.12 % (slant 2.80 %, line 0.08 %)`.
fn in_words(ranked: &[(usize, f64)], classes: &[String]) -> String {
    let shown = |&(class, p): &(usize, f64), separator: &str| {
        format!("{}{separator} {:.2} %", name_of(classes, class), 100.0 * p)
    };
    let Some((first, others)) = ranked.split_first() else { return String::new() };
    let others: Vec<String> = others.iter().map(|other| shown(other, "")).collect();
    let others = if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) };
    format!("{}{others}", shown(first, ","))
}

/// The same for programs.
fn as_json(ranked: &[(usize, f64)], classes: &[String]) -> Value {
    let one = |&(class, p): &(usize, f64)| json!({ "class": class, "name": name_of(classes, class), "probability": p });
    ranked.iter().map(one).collect()
}

fn tell(args: &Args, image: &Image, answer: &Answer, proof: &Proof, classes: &[String]) {
    let probabilities = (0..answer.logits.len()).map(|class| answer.probability(class));
    let ranked = ranked(probabilities, args.top);
    if args.output.json() {
        let class = answer.class();
        let object = json!({
            "file": image.name, "changes": image.changes,
            "class": class, "name": name_of(classes, class), "probability": answer.probability(class),
            "top": as_json(&ranked, classes),
            "converged": answer.converged, "iterations": answer.iterations,
            "verdict": proof.verdict, "certified": proof.verdict.map(|verdict| verdict == "proven"),
            "radius": proof.radius,
        });
        println!("{object}");
        return;
    }
    let changes =
        if image.changes.is_empty() { String::new() } else { format!(" ({})", image.changes.join(", ")) };
    let unsolved =
        if answer.converged { String::new() } else { format!("; {}", bad("the solve did not converge")) };
    let fixed_points = match proof.verdict {
        None => String::new(),
        Some("proven") => format!("; one fixed point: {}", good("proved")),
        Some("refuted") => format!("; one fixed point: {}, there are others", bad("refuted")),
        Some(_) => format!("; one fixed point: {}", doubtful("no proof")),
    };
    let radius = proof.radius.map_or(String::new(), |radius| {
        format!("; no image closer than {radius:.2e} gets another class: {}", good("proved"))
    });
    let words = in_words(&ranked, classes);
    anstream::println!("{}{changes}: {words}{unsolved}{fixed_points}{radius}", image.name);
}
