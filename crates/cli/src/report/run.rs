//! What a run folder holds, read with patience: a run may be young, or of a kind that has no images.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use subdeq::train::{Evaluation, read_regular_file};
use subdeq_data::image_dataset::protocol;

use crate::failure::Failure;
use crate::paper::Column;

/// A larger file is none of a run's.
const MAX_BYTES: u64 = 1 << 30;

/// How deep run folders are looked for below a folder that is none itself.
const DEEPEST: usize = 4;

/// One run.
pub struct Run {
    /// The folder, as the user gave it.
    pub folder: PathBuf,
    /// The data set's name.
    pub data: String,
    /// The model's name.
    pub model: String,
    /// The seed, if the config has one.
    pub seed: Option<i64>,
    /// Epochs it was asked to do, if the config says so.
    pub epochs: Option<i64>,
    /// The column of the paper's image tables that it belongs to.
    pub column: Option<Column>,
    /// The config as it stands.
    pub config: String,
    /// One object per completed epoch.
    pub metrics: Vec<Map<String, Value>>,
    /// Its evaluation, once it was evaluated.
    pub evaluation: Option<Evaluation>,
    /// A drawing of its graph, where it has a small one.
    pub graph: Option<Drawing>,
}

/// A small graph with what the model says about its nodes (`graph.json`).
#[derive(Deserialize)]
pub struct Drawing {
    /// Nodes with their places.
    pub nodes: Vec<Node>,
    /// Pairs of places in `nodes`.
    pub edges: Vec<(usize, usize)>,
}

/// A node of a drawing.
#[derive(Deserialize)]
pub struct Node {
    /// Place, in any unit.
    pub x: f64,
    /// Place, in the same unit, downwards.
    pub y: f64,
    /// The true class.
    pub label: u32,
    /// The class that the model gives.
    pub prediction: u32,
}

impl Run {
    /// Reads a run folder.
    pub fn read(folder: &Path) -> Result<Self, Failure> {
        let path = folder.join("config.toml");
        let config = read_text(&path)?.ok_or_else(|| {
            Failure::other(format!("{} cannot be read: there is no such file", path.display()))
        })?;
        let table: toml::Table =
            config.parse().map_err(|why| Failure::other(format!("{}: {why}", path.display())))?;
        let evaluation: Option<Evaluation> = read_json(&folder.join("evaluation.json"))?;
        let text = |keys: &[&str]| find(&table, keys).and_then(toml::Value::as_str).map(str::to_owned);
        let evaluated = |field: fn(&Evaluation) -> &String| {
            evaluation.as_ref().map(field).filter(|name| !name.is_empty()).cloned()
        };
        let data = evaluated(|e| &e.data).or_else(|| text(&["data", "name"])).or_else(|| text(&["data"]));
        let model = evaluated(|e| &e.model)
            .or_else(|| text(&["model", "core", "architecture", "name"]))
            .or_else(|| text(&["model", "core", "kind"]))
            .or_else(|| text(&["model"]));
        let whole = |key: &str| table.get(key).and_then(toml::Value::as_integer);
        let classifier = find(&table, &["model", "hidden"]).is_some();
        let data = data.unwrap_or_else(|| "unknown data".into());
        let column = Column::of(&data, find(&table, &["model", "pool"]).is_some()).filter(|_| classifier);
        Ok(Self {
            data,
            column,
            model: model.unwrap_or_else(|| "unnamed model".into()),
            seed: whole("seed"),
            epochs: whole("epochs"),
            metrics: read_metrics(&folder.join("metrics.jsonl"))?,
            graph: read_drawing(&folder.join("graph.json"))?,
            folder: folder.to_owned(),
            config,
            evaluation,
        })
    }

    /// The values of one metric over the epochs, `(epoch, value)`; epochs without it are left out.
    pub fn curve(&self, metric: &str) -> Vec<(f64, f64)> {
        let number = |epoch: &Map<String, Value>, key: &str| epoch.get(key).and_then(Value::as_f64);
        self.metrics
            .iter()
            .enumerate()
            .filter_map(|(k, epoch)| {
                Some((number(epoch, "epoch").unwrap_or((k + 1) as f64), number(epoch, metric)?))
            })
            .collect()
    }

    /// Why the run cannot be held against the paper's figure for its model and data, if it cannot.
    pub fn unlike_the_paper(&self) -> Option<String> {
        let column = self.column?;
        let (done, epochs) = (self.metrics.len(), column.epochs());
        if self.epochs != Some(epochs as i64) || done < epochs {
            return Some(format!("{done} epochs, the paper has {epochs}"));
        }
        let [train, test] = protocol(column.data())?.official;
        let tested = self.evaluation.as_ref()?.samples;
        // The release tests the official test images; the paper's table speaks of a share of all of them.
        let least = test.min((train + test) / 10);
        (tested < least).then(|| format!("tested on {tested} images, the paper on {test}"))
    }

    /// Model and seed.
    pub fn title(&self) -> String {
        match self.seed {
            Some(seed) => format!("{} on {}, seed {seed}", self.model, self.data),
            None => format!("{} on {}", self.model, self.data),
        }
    }
}

/// The run folders among and below these folders.
pub fn find_runs(folders: &[PathBuf]) -> Result<Vec<Run>, Failure> {
    let mut runs = Vec::new();
    for folder in folders {
        let mut found = Vec::new();
        look_below(folder, DEEPEST, &mut found)?;
        if found.is_empty() {
            return Err(Failure::other(format!(
                "{} is no run folder and holds none: a run has a config.toml (make one with `subdeq train --out {0}`)",
                folder.display()
            )));
        }
        for folder in found {
            runs.push(Run::read(&folder)?);
        }
    }
    Ok(runs)
}

fn look_below(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    if folder.join("config.toml").is_file() {
        found.push(folder.to_owned());
        return Ok(());
    }
    let mut inside: Vec<PathBuf> = fs::read_dir(folder)
        .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect())
        .map_err(|why| unreadable(folder, &why))?;
    inside.sort();
    for folder in inside.iter().filter(|path| depth > 0 && path.is_dir()) {
        look_below(folder, depth - 1, found)?;
    }
    Ok(())
}

fn find<'a>(table: &'a toml::Table, keys: &[&str]) -> Option<&'a toml::Value> {
    let (first, rest) = keys.split_first()?;
    let value = table.get(*first)?;
    if rest.is_empty() { Some(value) } else { find(value.as_table()?, rest) }
}

fn unreadable(path: &Path, why: &std::io::Error) -> Failure {
    Failure::other(format!("{} cannot be read: {why}", path.display()))
}

/// The text of a file of a run's folder, if there is one.
fn read_text(path: &Path) -> Result<Option<String>, Failure> {
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read_regular_file(path, MAX_BYTES).map_err(Failure::other)?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|why| Failure::other(format!("{} is no text: {why}", path.display())))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, Failure> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|why| Failure::other(format!("{}: {why}", path.display())))
}

/// A last line that a killed process left half written is no epoch; one in the middle is damage.
fn read_metrics(path: &Path) -> Result<Vec<Map<String, Value>>, Failure> {
    let Some(text) = read_text(path)? else { return Ok(Vec::new()) };
    let lines: Vec<&str> = text.lines().collect();
    let mut epochs = Vec::with_capacity(lines.len());
    for (k, line) in lines.iter().enumerate() {
        match serde_json::from_str(line) {
            Ok(epoch) => epochs.push(epoch),
            Err(_) if k + 1 == lines.len() => {}
            Err(why) => return Err(Failure::other(format!("{}, line {}: {why}", path.display(), k + 1))),
        }
    }
    Ok(epochs)
}

fn read_drawing(path: &Path) -> Result<Option<Drawing>, Failure> {
    let drawing: Option<Drawing> = read_json(path)?;
    let Some(Drawing { nodes, edges }) = &drawing else { return Ok(None) };
    if let Some((a, b)) = edges.iter().find(|(a, b)| *a.max(b) >= nodes.len()) {
        return Err(Failure::other(format!(
            "{}: the edge ({a}, {b}) leads to a node that is not there; there are {}",
            path.display(),
            nodes.len()
        )));
    }
    if let Some(k) = nodes.iter().position(|n| !(n.x.is_finite() && n.y.is_finite())) {
        return Err(Failure::other(format!("{}: node {k} has no finite place", path.display())));
    }
    Ok(drawing)
}
