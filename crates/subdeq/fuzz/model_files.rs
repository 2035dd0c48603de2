//! Fuzzing of model files and checkpoints: small ones of every kind, mutated in their bytes, in their header, in their note
//! and in their numbers, loaded and used as the program does.
//!
//! A mutant that is refused with a sentence is as good as one that works; what counts is that the process lives.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Map, Value, json};
use subdeq::graph::{
    Csr, GraphConfig, GraphModel, GraphProblem, GraphSplit, load_graph_model, normalised_adjacency,
    train_graph_run,
};
use subdeq::model::{ClassifierSpec, CoreSpec};
use subdeq::train::{
    Cosine, DataConfig, EvaluationOptions, Images, Parts, Recipe, RunFolder, RunOptions, TrainConfig,
    evaluate_in_full, load_model, train_run,
};
use subdeq::{Cpu, Init, Layout};

const SIDE: usize = 6;
const MODEL: &str = "model.safetensors";
const CHECKPOINT: &str = "checkpoint.safetensors";

/// What is mutated, and in which run.
#[derive(Clone)]
pub struct Seed {
    pub name: String,
    kind: Kind,
    /// Files of the run's folder.
    files: Vec<(String, Vec<u8>)>,
    /// The one that is mutated.
    target: &'static str,
}

#[derive(Clone)]
enum Kind {
    Images(Box<TrainConfig>),
    Graph(Box<GraphConfig>),
}

/// Devices and data that all cases share.
pub struct World {
    device: Arc<Cpu<f32>>,
    images: Parts,
    problem: GraphProblem,
    split: GraphSplit,
}

impl World {
    pub fn new() -> World {
        let images = |count: usize| {
            let pixels = (0..count * SIDE * SIDE).map(|i| (i * 37 % 256) as u8).collect();
            let labels = (0..count).map(|i| (i % 2) as u32).collect();
            Images::new(pixels, labels, [1, SIDE, SIDE], 255.0, &[0.5], &[0.3]).expect("images")
        };
        let features = Csr {
            rows: 6,
            cols: 3,
            starts: (0..7).collect(),
            columns: vec![0, 1, 2, 0, 1, 2],
            values: vec![1.0; 6],
        };
        let edges = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)];
        let adjacency = normalised_adjacency(6, &edges).expect("a graph");
        World {
            device: Arc::new(Cpu::new(1).expect("a processor")),
            images: Parts { train: images(6), validation: images(2), test: images(3) },
            problem: GraphProblem::new(adjacency, features, vec![0, 0, 0, 1, 1, 1], 2).expect("a problem"),
            split: GraphSplit { train: vec![0, 5], validation: vec![1, 4], test: vec![2, 3] },
        }
    }

    /// A model file and a checkpoint of every kind, made by training.
    pub fn seeds(&self) -> Vec<Seed> {
        let mut seeds = Vec::new();
        let mut add = |name: &str, kind: &Kind| {
            let scratch = tempfile::tempdir().expect("a folder");
            self.train(kind, scratch.path(), true).expect("a seed that trains");
            let entries = fs::read_dir(scratch.path()).expect("a folder").flatten();
            let file = |entry: fs::DirEntry| {
                (entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path()).expect("a file"))
            };
            let files: Vec<_> = entries.map(file).collect();
            for target in [MODEL, CHECKPOINT] {
                let name = format!("{name}-{}", target.split('.').next().unwrap_or(target));
                seeds.push(Seed { name, kind: kind.clone(), files: files.clone(), target });
            }
        };
        for (name, layout, warm_start) in [
            ("monotone", Layout::Dense, false),
            ("split-sign", Layout::Dense, true),
            ("gains", Layout::Dense, false),
            ("subdeq-tanh", Layout::Dense, false),
            ("node-tanh", Layout::Dense, false),
            ("power-ratio", Layout::Conv, false),
            ("monotone-product", Layout::Conv, false),
            ("monotone-tied", Layout::Dense, false),
            ("explicit-tanh", Layout::Conv, false),
        ] {
            add(
                &format!("{name}-{layout:?}").to_lowercase(),
                &Kind::Images(Box::new(config(name, layout, warm_start))),
            );
        }
        for name in ["appnp", "appnp-normalized-tanh"] {
            let model = GraphModel::paper(name, 0.1).expect("a name");
            let config = GraphConfig { hidden: 2, epochs: 3, ..GraphConfig::new(model) };
            add(name, &Kind::Graph(Box::new(config)));
        }
        seeds
    }

    fn train(&self, kind: &Kind, folder: &Path, new: bool) -> subdeq::Result<()> {
        match kind {
            Kind::Images(config) => {
                let run =
                    if new { RunFolder::create(folder, &**config)? } else { RunFolder::open(folder)?.0 };
                let evaluation =
                    EvaluationOptions { certify: 1, examples: 1, threads: 1, ..Default::default() };
                let options = RunOptions { evaluation, ..RunOptions::default() };
                let watch = &mut |_: subdeq::train::Progress<'_>| ControlFlow::Continue(());
                train_run(&self.device, &run, config, &self.images, &options, watch)?;
            }
            Kind::Graph(config) => {
                let run = if new {
                    RunFolder::create(folder, &**config)?
                } else {
                    RunFolder::open_as::<GraphConfig>(folder)?.0
                };
                let watch = &mut |_: &subdeq::train::EpochMetrics| ControlFlow::Continue(());
                let every = Duration::from_secs(3600);
                train_graph_run(&run, &self.problem, &self.split, config, every, watch)?;
            }
        }
        Ok(())
    }

    /// Loads what is in the folder and uses it. `Err` is the sentence that it was refused with.
    fn load_and_use(&self, seed: &Seed, folder: &Path) -> subdeq::Result<()> {
        if seed.target == CHECKPOINT {
            return self.train(&seed.kind, folder, false);
        }
        match &seed.kind {
            Kind::Images(_) => {
                let (mut model, note) = load_model(&self.device, &folder.join(MODEL))?;
                let plan = EvaluationOptions { certify: 1, examples: 1, threads: 1, ..Default::default() };
                evaluate_in_full(&mut model, &note, &self.images.test, &plan).map(drop)
            }
            Kind::Graph(_) => {
                let (classifier, _) = load_graph_model(&folder.join(MODEL))?;
                classifier.evaluate(&self.problem, &self.split.test, 1).map(drop)
            }
        }
    }
}

fn config(name: &str, layout: Layout, warm_start: bool) -> TrainConfig {
    TrainConfig {
        epochs: 1,
        batch: 3,
        weight_decay: 1e-5,
        seed: 1,
        warm_start,
        slices: 0,
        rate: Cosine { start: 1e-3, end: 1e-6 },
        recipe: Recipe::default(),
        data: DataConfig {
            name: "generated".to_owned(),
            split: "release".to_owned(),
            validation: 0,
            split_seed: 0,
            fingerprint: String::new(),
            white: 255,
            mean: vec![0.5],
            deviation: vec![0.3],
            class_names: vec!["a".to_owned(), "b".to_owned()],
            flips: false,
        },
        model: ClassifierSpec {
            height: SIDE,
            width: SIDE,
            channels: 1,
            hidden: 2,
            pool: (layout == Layout::Conv).then_some(2),
            injection_norm: layout == Layout::Conv,
            classes: 2,
            core: CoreSpec::named(name, layout).expect("a name"),
            init: Init::Release,
            deeper: Vec::new(),
            lipschitz: None,
        },
    }
}

/// A folder that holds a seed, and mutants of it one after the other.
pub struct Fuzzer<'a> {
    world: &'a World,
    seed: &'a Seed,
    folder: PathBuf,
    random: ChaCha8Rng,
}

impl<'a> Fuzzer<'a> {
    pub fn new(world: &'a World, seed: &'a Seed, folder: &Path, number: u64) -> Self {
        let fuzzer = Fuzzer {
            world,
            seed,
            folder: folder.join(&seed.name),
            random: ChaCha8Rng::seed_from_u64(number),
        };
        fs::create_dir_all(&fuzzer.folder).expect("a folder");
        fuzzer.restore();
        fuzzer
    }

    fn restore(&self) {
        for (name, bytes) in &self.seed.files {
            fs::write(self.folder.join(name), bytes).expect("a file");
        }
    }

    /// Mutates the file, loads it; whether it was accepted. The mutant stays if this ends early.
    pub fn case(&mut self) -> bool {
        let target = self.seed.files.iter().find(|(name, _)| name == self.seed.target);
        let mut bytes = target.map(|(_, bytes)| bytes.clone()).unwrap_or_default();
        let mutations = 1 + self.below(3);
        if self.below(4) == 0 {
            (0..mutations).for_each(|_| self.mutate_bytes(&mut bytes));
        } else {
            bytes = self.mutated_parts(&bytes, mutations);
        }
        fs::write(self.folder.join(self.seed.target), bytes).expect("a file");
        let accepted = self.world.load_and_use(self.seed, &self.folder).is_ok();
        if accepted && self.seed.target == CHECKPOINT {
            self.restore();
        }
        accepted
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() % bound.max(1) as u64) as usize
    }

    fn mutate_bytes(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        let end = (at + 1 + self.below(8)).min(bytes.len());
        match self.below(6) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.random.next_u64() as u8,
            2 => drop(bytes.drain(at..end)),
            3 => bytes.truncate(at),
            4 => {
                let piece = bytes[at..end].to_vec();
                let times = 1 + self.below(20);
                bytes.splice(at..at, piece.repeat(times));
            }
            _ => {
                // The length of the header, or any other eight bytes.
                let at = if self.below(2) == 0 { 0 } else { at };
                let word = [0, 1, 7, 1 << 20, 1 << 32, u64::MAX / 2, u64::MAX][self.below(7)].to_le_bytes();
                let stop = (at + 8).min(bytes.len());
                bytes.splice(at..stop, word);
            }
        }
    }

    /// The file with its header, its note or its numbers mutated, and a header length that is right.
    fn mutated_parts(&mut self, bytes: &[u8], mutations: usize) -> Vec<u8> {
        let (length, rest) = bytes.split_first_chunk::<8>().expect("a seed");
        let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
        let mut header: Value = serde_json::from_slice(header).expect("a seed");
        let mut data = data.to_vec();
        for _ in 0..mutations {
            match self.below(8) {
                0 | 1 => self.mutate_json(&mut header),
                2 => {
                    let at = self.below(data.len() / 4) * 4;
                    let odd = [f32::NAN, f32::INFINITY, 3e38, -3e38, 1e-45, 0.0, -1.0, 1e6];
                    data[at..][..4].copy_from_slice(&odd[self.below(odd.len())].to_le_bytes());
                }
                _ => {
                    let text = &mut header["__metadata__"]["subdeq"];
                    let note = text.as_str().and_then(|text| serde_json::from_str(text).ok());
                    let mut note: Value = note.unwrap_or(Value::Null);
                    self.mutate_json(&mut note);
                    *text = note.to_string().into();
                }
            }
            if !header.get("__metadata__").is_some_and(Value::is_object) {
                break;
            }
        }
        let header = serde_json::to_vec(&header).expect("a value");
        [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()
    }

    /// Changes one leaf, one key or one list.
    fn mutate_json(&mut self, value: &mut Value) {
        let deeper = self.below(8) > 0;
        match value {
            Value::Object(fields) if deeper && !fields.is_empty() => {
                let at = self.below(fields.len());
                if let Some((_, inner)) = fields.iter_mut().nth(at) {
                    self.mutate_json(inner);
                }
            }
            Value::Array(items) if deeper && !items.is_empty() => {
                let at = self.below(items.len());
                self.mutate_json(&mut items[at]);
            }
            Value::Object(fields) => self.mutate_fields(fields),
            Value::Array(items) => match self.below(3) {
                0 => drop(items.pop()),
                1 => items.extend(items.first().cloned()),
                _ => items.clear(),
            },
            leaf => *leaf = self.odd_leaf(leaf),
        }
    }

    fn mutate_fields(&mut self, fields: &mut Map<String, Value>) {
        let at = self.below(fields.len());
        let Some(key) = fields.keys().nth(at).cloned() else { return };
        let inner = fields.remove(&key).unwrap_or(Value::Null);
        match self.below(3) {
            0 => {}
            1 => drop(fields.insert(format!("{key}x"), inner)),
            _ => drop(fields.insert(key, json!({ "kind": inner }))),
        }
    }

    fn odd_leaf(&mut self, leaf: &Value) -> Value {
        let numbers = [
            json!(0),
            json!(-1),
            json!(1),
            json!(2),
            json!(3),
            json!(7),
            json!(1000),
            json!(1_000_000),
            json!(1_000_000_000),
            json!(4_000_000_000u64),
            json!(u64::MAX / 4),
            json!(u64::MAX),
            json!(0.5),
            json!(1e-300),
            json!(-1e308),
            json!(1e308),
            json!("NaN"),
            Value::Null,
        ];
        let words = [
            "", "F64", "BF16", "I8", "tanh", "relu", "picard", "anderson", "inner", "outer", "monotone",
            "\u{0}",
        ];
        match leaf {
            Value::Number(number) if self.below(3) == 0 => {
                let near = [0.5, 2.0, -1.0, 1.0 + 1e-9][self.below(4)];
                number.as_u64().map_or_else(
                    || json!(number.as_f64().unwrap_or(0.0) * near),
                    |n| json!(n.saturating_add(1 + near.abs() as u64)),
                )
            }
            Value::String(_) if self.below(4) > 0 => json!(words[self.below(words.len())]),
            Value::Bool(yes) => json!(!yes),
            _ => numbers[self.below(numbers.len())].clone(),
        }
    }
}
