//! `subdeq eval`.

pub mod graph;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use subdeq::Backend;
use subdeq::train::{EVALUATION, Evaluation, EvaluationOptions, RunFolder, evaluate_in_full};

use crate::colour::{self, bad};
use crate::device::on_device;
use crate::failure::Failure;
use crate::graph::GraphRunConfig;
use crate::options::{Compute, DataDir, Output};
use crate::waiting::Waiting;
use crate::{robustness, trained};

/// Test a trained model: error, convergence, certificates.
///
/// Writes evaluation.json into the run's folder if the data are the run's own and the folder can be written.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run, or a model.safetensors.
    run: PathBuf,
    /// Other data with images of the same size, by name, folder or file [default: the run's]: their test images, or all of
    /// them if none are for testing. Classes are matched by their names; some may be missing.
    #[arg(long)]
    data: Option<String>,
    /// Test images to certify one by one, where nothing is proved for all inputs.
    #[arg(long, value_name = "N", default_value_t = 100)]
    samples: usize,
    /// Radii (2-norm of pixels from 0 to 1, such as 0.5,1,1.58) at which the accuracy is wanted that is proved to stay, whatever is
    /// changed within them [default: usual ones, for models of train --lipschitz].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = radius)]
    radii: Vec<f64>,
    /// Attack the first N test images (1000 if no number is given) by gradients, at the radii and within what is proved for each;
    /// models of train --lipschitz.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1000")]
    attack: Option<usize>,
    #[command(flatten)]
    data_dir: DataDir,
    #[command(flatten)]
    compute: Compute,
    #[command(flatten)]
    output: Output,
}

pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    if let Some(config) = GraphRunConfig::of(&args.run)? {
        return graph::run(args, &config);
    }
    on_device!(args.compute.device()?, |device| evaluate(args, &device))
}

fn evaluate<D: Backend<Elem = f32>>(args: &Args, device: &Arc<D>) -> Result<ExitCode, Failure> {
    let (mut model, note) = trained::load(&args.run, device)?;
    let waiting = Waiting::begin(args.output.progress(), "reading the data and testing");
    let (test, own) = trained::test_images(&note.config, args.data.as_deref(), args.data_dir.path())?;
    let plan = EvaluationOptions {
        certify: args.samples,
        threads: args.compute.count(),
        radii: args.radii.clone(),
        attack: args.attack.unwrap_or(0),
        ..EvaluationOptions::default()
    };
    let mut evaluation = evaluate_in_full(&mut model, &note, &test, &plan).map_err(Failure::other)?;
    drop(waiting);
    if own && args.run.is_dir() {
        let (folder, _) = RunFolder::open(&args.run).map_err(Failure::other)?;
        // The result is worth more than its file.
        if let Err(why) = folder.write_json(EVALUATION, &evaluation) {
            eprintln!("subdeq: {why}");
        }
    } else if let Some(data) = args.data.as_ref().filter(|_| !own) {
        evaluation.data.clone_from(data);
    }
    if args.output.json() {
        println!("{}", serde_json::to_string(&evaluation).map_err(Failure::other)?);
    } else {
        print(&evaluation);
    }
    Ok(ExitCode::SUCCESS)
}

/// A radius from the command line.
fn radius(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(radius) if radius >= 0.0 && radius.is_finite() => Ok(radius),
        _ => Err("a radius is a number from 0".to_owned()),
    }
}

/// The evaluation in a few lines.
pub fn print(evaluation: &Evaluation) {
    let Evaluation {
        samples, error, converged, certified, certified_samples, all_inputs, median_factor, ..
    } = evaluation;
    let wrong = (error * *samples as f64 / 100.0).round();
    let solved = format!("{:.2} % of the solves converged", 100.0 * converged);
    anstream::println!(
        "test error {error:.2} % ({wrong} of {samples} wrong), {}",
        if *converged == 1.0 { solved } else { bad(&solved) }
    );
    if let Some(verdict) = all_inputs {
        anstream::println!("certificate: {}", colour::verdict(&verdict.words));
        if verdict.verdict != "proven"
            && let Some(share) = certified
        {
            let factor = median_factor.map_or(String::new(), |factor| format!(", median factor {factor:.4}"));
            println!(
                "one by one: {:.1} % of {certified_samples} test inputs are proved to have exactly one fixed point{factor}",
                100.0 * share
            );
        }
    }
    if let Some(found) = &evaluation.robustness {
        robustness::lines(found).iter().for_each(|line| println!("{line}"));
    }
}
