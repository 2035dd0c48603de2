//! A training loop of one's own: own data, own batches, own optimiser (gradient descent with Nesterov's momentum), and a file at
//! the end that `subdeq certify`, `predict` and Python read.
//!
//!     cargo run --release -p subdeq --example own_optimiser -- rings.safetensors

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq::model::{Classifier, ClassifierSpec, CoreSpec};
use subdeq::train::{Cosine, DataConfig, ModelNote, Recipe, TrainConfig, save_model};
use subdeq::{Cpu, Init, Layout, Result};

const SAMPLES: usize = 600;
const BATCH: usize = 50;
const EPOCHS: usize = 60;
const RATE: f32 = 0.03;
const MOMENTUM: f32 = 0.9;

/// Points in the plane in two classes: inside and outside of a ring.
fn rings(rng: &mut ChaCha8Rng) -> (Vec<[f32; 2]>, Vec<u32>) {
    let points: Vec<[f32; 2]> = (0..SAMPLES).map(|_| [0; 2].map(|_| rng.random_range(-1.5..1.5))).collect();
    let labels = points.iter().map(|[x, y]| u32::from(x.hypot(*y) > 1.0)).collect();
    (points, labels)
}

/// Nesterov's momentum: any optimiser is a function of a name, a parameter and its gradient.
#[derive(Default)]
struct Nesterov {
    velocities: HashMap<String, Vec<f32>>,
}

impl Nesterov {
    fn step(&mut self, name: &str, parameter: &mut [f32], gradient: &[f32], rate: f32) {
        let velocity = self.velocities.entry(name.to_owned()).or_insert_with(|| vec![0.0; parameter.len()]);
        for ((p, v), g) in parameter.iter_mut().zip(velocity).zip(gradient) {
            *v = MOMENTUM * *v + g;
            *p -= rate * (g + MOMENTUM * *v);
        }
    }
}

fn main() -> Result<()> {
    let mut rng = ChaCha8Rng::seed_from_u64(0);
    let (points, labels) = rings(&mut rng);
    let spec = ClassifierSpec {
        channels: 2,
        height: 1,
        width: 1,
        hidden: 24,
        pool: None,
        injection_norm: false,
        classes: 2,
        core: CoreSpec::named("monotone", Layout::Dense)?,
        init: Init::default(),
        deeper: Vec::new(),
        lipschitz: None,
    };
    let mut model = Classifier::new(Arc::new(Cpu::<f32>::new(0)?), spec.clone(), &mut rng)?;
    let mut optimiser = Nesterov::default();
    let mut order: Vec<usize> = (0..SAMPLES).collect();
    for epoch in 1..=EPOCHS {
        order.shuffle(&mut rng);
        let rate = RATE * (1.0 - epoch as f32 / (EPOCHS + 1) as f32);
        let mut loss = 0.0;
        for picks in order.chunks(BATCH) {
            let x: Vec<f32> = picks.iter().flat_map(|&i| points[i]).collect();
            let y: Vec<u32> = picks.iter().map(|&i| labels[i]).collect();
            loss += model.gradients(&x, &y)?.loss * picks.len() as f64 / SAMPLES as f64;
            model.update_with(|name, parameter, gradient| optimiser.step(name, parameter, gradient, rate))?;
        }
        if epoch % 10 == 0 {
            println!("epoch {epoch}: loss {loss:.4}");
        }
    }
    let found = model.evaluate(&points.concat(), &labels)?;
    let error = 100.0 * (1.0 - found.correct as f64 / SAMPLES as f64);
    println!("{error:.2} % of the points are given the wrong class");
    assert!(error < 5.0, "this training is easier than that");

    let certificate = model.certify()?;
    // What the file says about the training; the numbers went in as they are.
    let data = DataConfig {
        name: "rings".into(),
        split: "none".into(),
        validation: 0,
        split_seed: 0,
        fingerprint: String::new(),
        white: 1,
        mean: vec![0.0; 2],
        deviation: vec![1.0; 2],
        class_names: vec!["inside".into(), "outside".into()],
        flips: false,
    };
    let rate = Cosine { start: RATE.into(), end: 0.0 };
    let config = TrainConfig {
        epochs: EPOCHS,
        batch: BATCH,
        weight_decay: 0.0,
        seed: 0,
        warm_start: false,
        slices: 0,
        rate,
        recipe: Recipe::default(),
        data,
        model: spec,
    };
    let path = std::env::args().nth(1).map_or("rings.safetensors".into(), PathBuf::from);
    save_model(&path, &mut model, &ModelNote { config, selected: (EPOCHS, error), certificate })?;
    println!("written to {}", path.display());
    Ok(())
}
