//! `subdeq predict`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::json;
use subdeq::Network;
use subdeq::model::{Answer, Classifier};
use subdeq::train::{ModelNote, certified_radii};

use crate::device::on_device;
use crate::failure::Failure;
use crate::options::{Compute, Output};
use crate::{pictures, trained};

/// Images that are looked at together.
const BATCH: usize = 256;

/// Say what a trained model sees in images, and whether that answer is the only one its equation has.
///
/// Exit status: 0; 10 if for some image the fixed point is not proved to be the only one.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run.
    run: PathBuf,
    /// Images of the model's size: .png, .jpg, .npy (one or several), IDX files (.gz or not).
    #[arg(required = true)]
    files: Vec<PathBuf>,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    output: Output,
}

/// What is proved about an answer.
struct Proof {
    /// Whether the fixed point is the only one; none for models without one.
    certified: Option<bool>,
    /// No image closer than this, in the 2-norm of pixels from 0 to 1, is given another class.
    radius: Option<f64>,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    on_device!(args.compute.device()?, |device| predict(args, &device))
}

fn predict<D: Network<Elem = f32>>(args: &Args, device: &Arc<D>) -> Result<ExitCode, Failure> {
    let (mut model, note) = trained::load(&args.run, device)?;
    let mut unproven = false;
    for file in &args.files {
        let pictures = pictures::read(file, &note.config.data, model.spec())?;
        for batch in pictures.chunks(BATCH) {
            let x: Vec<f32> =
                batch.iter().flat_map(|p| p.standardised(&note.config.data, model.spec())).collect();
            let answers = model.answers(&x).map_err(Failure::other)?;
            let proofs = proofs(args, &mut model, &note, &x, &answers)?;
            for ((picture, answer), proof) in batch.iter().zip(&answers).zip(&proofs) {
                unproven |= proof.certified == Some(false);
                tell(args.output, &picture.name, answer, proof, &note.config.data.class_names);
            }
        }
    }
    Ok(if unproven { ExitCode::from(10) } else { ExitCode::SUCCESS })
}

fn proofs<D: Network<Elem = f32>>(
    args: &Args,
    model: &mut Classifier<D>,
    note: &ModelNote,
    x: &[f32],
    answers: &[Answer],
) -> Result<Vec<Proof>, Failure> {
    let Some(all) = &note.certificate else {
        return Ok(answers.iter().map(|_| Proof { certified: None, radius: None }).collect());
    };
    if all.verdict.is_proven() {
        let radii = certified_radii(model, note, x).map_err(Failure::other)?;
        return Ok(radii.into_iter().map(|radius| Proof { certified: Some(true), radius }).collect());
    }
    let y = model.injected(x).map_err(Failure::other)?;
    let Some(layer) = model.equilibrium() else { return Ok(Vec::new()) };
    let certificates = layer.certify_samples(&y, args.compute.count()).map_err(Failure::other)?;
    let proof = |c: &subdeq::Certificate| Proof { certified: Some(c.verdict.is_proven()), radius: None };
    Ok(certificates.iter().map(proof).collect())
}

fn tell(output: Output, name: &str, answer: &Answer, proof: &Proof, classes: &[String]) {
    let class = answer.class();
    let label = classes.get(class).cloned().unwrap_or_else(|| class.to_string());
    let probability = answer.probability(class);
    if output.json() {
        let object = json!({
            "file": name, "class": class, "name": label, "probability": probability,
            "converged": answer.converged, "iterations": answer.iterations,
            "certified": proof.certified, "radius": proof.radius,
        });
        println!("{object}");
        return;
    }
    let unsolved = if answer.converged { "" } else { ", the solve did not converge" };
    let proved = match (proof.certified, proof.radius) {
        (None, _) => String::new(),
        (Some(false), _) => ", not proved to be the only fixed point".to_owned(),
        (Some(true), None) => ", proved to be the only fixed point".to_owned(),
        (Some(true), Some(radius)) => {
            format!(
                ", proved to be the only fixed point; the same class for every image closer than {radius:.2e}"
            )
        }
    };
    println!("{name}: {label}, {:.2} %{unsolved}{proved}", 100.0 * probability);
}
