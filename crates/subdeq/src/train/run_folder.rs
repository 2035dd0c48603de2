//! The folder of a run.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checkpoint::read_note;
use super::regular_file::read_regular_text;
use super::{Checkpoint, EpochMetrics, TensorFile, TrainConfig, read_regular_file, replace_file};
use crate::{Error, Result};

/// A config of more bytes is not one.
const MAX_CONFIG: u64 = 16 << 20;
/// Nor are metrics or evaluations.
const MAX_METRICS: u64 = 1 << 30;
/// How long a process that was just killed, perhaps with others by a launcher that has ended already, may take to be gone.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often one looks whether it is.
const PAUSE: Duration = Duration::from_millis(50);

/// Paths and files of one run.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

/// The sole right to train in a folder.
#[derive(Debug)]
pub struct Claim {
    /// Locked while it is open.
    _folder: Option<File>,
}

impl RunFolder {
    /// A new run: makes the folder and writes its config.
    ///
    /// # Errors
    /// A folder that holds another run already, or cannot be written.
    pub fn create(path: &Path, config: &impl Serialize) -> Result<Self> {
        let run = Self { path: path.to_owned() };
        fs::create_dir_all(path).map_err(|why| {
            Error::Invalid(format!("the run folder {} cannot be written: {why}", path.display()))
        })?;
        let _claim = run.claim()?;
        if run.config_path().exists() {
            return Err(Error::Invalid(format!(
                "{} holds a run already: continue it with --resume, or choose another --out",
                path.display()
            )));
        }
        run.write_config(config)?;
        Ok(run)
    }

    /// A run that is there, with its config.
    ///
    /// # Errors
    /// A folder without a config, or one that cannot be understood.
    pub fn open(path: &Path) -> Result<(Self, TrainConfig)> {
        let run = Self { path: path.to_owned() };
        let config = Self::read_config(&run.config_path())?;
        Ok((run, config))
    }

    /// A run that is there, with a config of another kind than [`TrainConfig`].
    ///
    /// # Errors
    /// A folder without a config, or one of a different kind.
    pub fn open_as<C: DeserializeOwned>(path: &Path) -> Result<(Self, C)> {
        let run = Self { path: path.to_owned() };
        let config = read_toml(&run.config_path())?;
        Ok((run, config))
    }

    /// The same run with another number of epochs; says how many are done.
    ///
    /// # Errors
    /// Fewer than are done, a folder that cannot be written or that another process trains in.
    pub fn change_epochs(&self, config: &TrainConfig) -> Result<usize> {
        let _claim = self.claim()?;
        let done = self.position()?.map_or(0, |at| at.epoch + usize::from(at.batches > 0));
        if config.epochs < done {
            return Err(Error::Invalid(format!(
                "{} has begun epoch {done}: it cannot become shorter than that",
                self.path.display()
            )));
        }
        self.write_config(config)?;
        Ok(done)
    }

    /// Where the checkpoint stands, if one was written yet.
    ///
    /// # Errors
    /// One that is damaged.
    pub fn position(&self) -> Result<Option<Checkpoint>> {
        let path = self.checkpoint_path();
        path.exists().then(|| read_note(&path)).transpose()
    }

    fn write_config(&self, config: &impl Serialize) -> Result<()> {
        let unwritable = |why: &dyn std::fmt::Display| {
            Error::Invalid(format!("the run folder {} cannot be written: {why}", self.path.display()))
        };
        let text = toml::to_string_pretty(config).map_err(|why| unwritable(&why))?;
        replace_file(&self.config_path(), |out| out.write_all(text.as_bytes()))
            .map_err(|why| unwritable(&why))
    }

    /// A config from a file.
    ///
    /// # Errors
    /// A file that cannot be read or understood; the message names the line.
    pub fn read_config(path: &Path) -> Result<TrainConfig> {
        let config: TrainConfig = read_toml(path)?;
        config.check()?;
        Ok(config)
    }

    /// Keeps other processes from training in the folder for as long as the claim lives; the system ends it with the
    /// process, however that ends. Reading needs no claim.
    ///
    /// # Errors
    /// Another process has it, and keeps it for ten seconds.
    pub fn claim(&self) -> Result<Claim> {
        // Where folders cannot be locked (some network disks), two processes are the user's affair.
        let Ok(folder) = File::open(&self.path) else { return Ok(Claim { _folder: None }) };
        let began = Instant::now();
        loop {
            match folder.try_lock() {
                Ok(()) => return Ok(Claim { _folder: Some(folder) }),
                Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => thread::sleep(PAUSE),
                Err(TryLockError::WouldBlock) => {
                    return Err(Error::Invalid(format!(
                        "another process trains in {}: wait until it has ended, or choose another --out",
                        self.path.display()
                    )));
                }
                Err(TryLockError::Error(_)) => return Ok(Claim { _folder: None }),
            }
        }
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn config_path(&self) -> PathBuf {
        self.path.join("config.toml")
    }

    fn checkpoint_path(&self) -> PathBuf {
        self.path.join("checkpoint.safetensors")
    }

    fn metrics_path(&self) -> PathBuf {
        self.path.join("metrics.jsonl")
    }

    /// Where the selected parameters are.
    #[must_use]
    pub fn model_path(&self) -> PathBuf {
        self.path.join("model.safetensors")
    }

    /// Writes a checkpoint.
    ///
    /// # Errors
    /// A disk that is full.
    pub fn write_checkpoint<N: Serialize + DeserializeOwned>(
        &self,
        checkpoint: &TensorFile<N>,
    ) -> Result<()> {
        checkpoint.write(&self.checkpoint_path())
    }

    /// The checkpoint, if one was written yet.
    ///
    /// # Errors
    /// One that is damaged.
    pub fn read_checkpoint<N: Serialize + DeserializeOwned>(&self) -> Result<Option<TensorFile<N>>> {
        if !self.checkpoint_path().exists() {
            return Ok(None);
        }
        TensorFile::read(&self.checkpoint_path()).map(Some)
    }

    /// What is wrong with the checkpoint, with its name.
    pub(crate) fn bad_checkpoint(&self, why: &Error) -> Error {
        Error::Invalid(format!("{}: {why}", self.checkpoint_path().display()))
    }

    /// Appends the metrics of an epoch.
    ///
    /// # Errors
    /// A disk that is full.
    pub fn append_metrics(&self, metrics: &EpochMetrics) -> Result<()> {
        self.append_epochs(std::slice::from_ref(metrics))
    }

    /// Appends the metrics of several epochs at once.
    ///
    /// # Errors
    /// A disk that is full.
    pub fn append_epochs(&self, epochs: &[EpochMetrics]) -> Result<()> {
        let path = self.metrics_path();
        let fault = |why: String| Error::Invalid(format!("{} cannot be written: {why}", path.display()));
        let mut text = String::new();
        for metrics in epochs {
            text.push_str(&serde_json::to_string(metrics).map_err(|why| fault(why.to_string()))?);
            text.push('\n');
        }
        let mut file =
            OpenOptions::new().create(true).append(true).open(&path).map_err(|why| fault(why.to_string()))?;
        file.write_all(text.as_bytes()).and_then(|()| file.sync_data()).map_err(|why| fault(why.to_string()))
    }

    /// The metrics of all completed epochs. A last line that a killed process left half written is not one.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn read_metrics(&self) -> Result<Vec<EpochMetrics>> {
        let path = self.metrics_path();
        if !path.exists() {
            return Ok(Vec::new());
        }
        let text = read_regular_text(&path, MAX_METRICS)?;
        Ok(text.lines().map_while(|line| serde_json::from_str(line).ok()).collect())
    }

    /// Cuts the metrics back to what a checkpoint knows of, line by line as they are.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn keep_metrics(&self, lines: usize) -> Result<()> {
        let path = self.metrics_path();
        let fault =
            |why: std::io::Error| Error::Invalid(format!("{} cannot be written: {why}", path.display()));
        if !path.exists() {
            return Ok(());
        }
        let text = read_regular_text(&path, MAX_METRICS)?;
        let kept: String = text.split_inclusive('\n').take(lines).collect();
        if kept == text {
            return Ok(());
        }
        replace_file(&path, |out| out.write_all(kept.as_bytes())).map_err(fault)
    }

    /// Writes a value as JSON under a name of the caller's.
    ///
    /// # Errors
    /// A disk that is full.
    pub fn write_json(&self, name: &str, value: &impl Serialize) -> Result<()> {
        let path = self.path.join(name);
        let fault = |why: String| Error::Invalid(format!("{} cannot be written: {why}", path.display()));
        let text = serde_json::to_string_pretty(value).map_err(|why| fault(why.to_string()))?;
        replace_file(&path, |out| out.write_all(text.as_bytes())).map_err(|why| fault(why.to_string()))
    }

    /// Reads what [`RunFolder::write_json`] wrote; `None` where there is no such file.
    ///
    /// # Errors
    /// A file that cannot be understood.
    pub fn read_json<V: DeserializeOwned>(&self, name: &str) -> Result<Option<V>> {
        let path = self.path.join(name);
        if !path.exists() {
            return Ok(None);
        }
        serde_json::from_slice(&read_regular_file(&path, MAX_METRICS)?)
            .map(Some)
            .map_err(|why| Error::Invalid(format!("{}: {why}", path.display())))
    }
}

fn read_toml<C: DeserializeOwned>(path: &Path) -> Result<C> {
    let text = read_regular_text(path, MAX_CONFIG)?;
    toml::from_str(&text).map_err(|why| Error::Invalid(format!("{}: {why}", path.display())))
}
