//! Loads a trained model and asks it about images, one by one: class, probability, whether the answer is proved to be the only
//! one, and how far the image may move before it could change.
//!
//!     cargo run --release -- train --out run
//!     cargo run --release -p subdeq --example load_and_predict -- run/model.safetensors
//!
//! The images are drawn at random here; yours come as numbers in the scale of the training data.

use std::path::PathBuf;
use std::sync::Arc;

use rand::{Rng, SeedableRng};
use subdeq::train::{certified_radii, load_model};
use subdeq::{Cpu, Result};

const IMAGES: usize = 3;

fn main() -> Result<()> {
    let path = std::env::args().nth(1).map_or("run/model.safetensors".into(), PathBuf::from);
    let (mut model, note) = load_model(&Arc::new(Cpu::<f32>::new(0)?), &path)?;
    let data = &note.config.data;

    // Channels x height x width, one image after the other, standardised as in training.
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(0);
    let pixels = model.spec().height * model.spec().width;
    let mut standardised = |at: usize| {
        let channel = at / pixels % model.spec().channels;
        let pixel = f64::from(rng.random_range(0..=data.white)) / f64::from(data.white);
        ((pixel - data.mean[channel]) / data.deviation[channel]) as f32
    };
    let x: Vec<f32> = (0..IMAGES * model.input_len()).map(&mut standardised).collect();

    if let Some(certificate) = &note.certificate {
        println!("{certificate}");
    }
    let answers = model.answers(&x)?;
    let radii = certified_radii(&mut model, &note, &x)?;
    for (image, (answer, radius)) in answers.iter().zip(radii).enumerate() {
        let class = answer.class();
        let name = data.class_names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let percent = 100.0 * answer.probability(class);
        let solve = if answer.converged { "converged" } else { "did not converge" };
        let radius = radius.map_or("no radius is proved".to_owned(), |r| format!("the same within {r:.2e}"));
        println!(
            "image {image}: {name}, {percent:.1} % (solve {solve} after {} steps; {radius})",
            answer.iterations
        );
    }
    Ok(())
}
