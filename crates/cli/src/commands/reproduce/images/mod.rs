//! The paper's image experiments: Table 3, the appendix table (Table 5) and Figure 2, run by run.

mod figure2;
mod ledger;
mod markdown;
mod rows;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde_json::Value;
use subdeq::train::{EvaluationOptions, RunFolder, RunOptions, TrainConfig, train_run};
use subdeq::{Layout, Ranks};

use crate::dataset::{self, Dataset, Division};
use crate::device::{AnyDevice, DeviceName, on_device};
use crate::failure::Failure;
use crate::options::Telling;
use crate::paper::Column;
use crate::recipe::{self, Wishes};
use crate::stop::Stop;
use crate::waiting::Waiting;
use ledger::{Entry, Ledger, Machine};

/// Test inputs that are certified one by one, where nothing is proved for all of them. One input of a convolutional layer takes
/// a core up to a second: a thousand of them take longer than the training, on a GPU.
fn certified(column: Column) -> usize {
    if column.convolutional() { 100 } else { 1000 }
}

/// Which of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// All models, and the sound ones below them.
    Three,
    /// The subhomogeneous ones with those of the appendix.
    Five,
}

impl Table {
    /// Both.
    pub const ALL: [Table; 2] = [Table::Three, Table::Five];
}

/// What to run, and where the results go.
pub struct Options<'a> {
    /// Who shares the missing runs.
    pub ranks: &'a Ranks,
    /// Only these columns; none: all.
    pub only: &'a [String],
    /// Only these rows; none: all.
    pub models: &'a [String],
    /// Runs per cell.
    pub seeds: u64,
    /// Epochs, if others than the paper's.
    pub epochs: Option<usize>,
    /// Folder of the ledger, the table and the figure.
    pub out: &'a Path,
    /// Folder of the run folders.
    pub runs: &'a Path,
    /// Where the data are.
    pub data_dir: Option<&'a Path>,
    /// Runs at the same time.
    pub jobs: usize,
    /// Where they run.
    pub device: DeviceName,
    /// Threads of a run.
    pub threads: usize,
    /// Whether missing runs are made; else there are only those of the ledger.
    pub runs_missing: bool,
}

/// One run to be made, or that was made.
struct Task {
    row: &'static str,
    config: TrainConfig,
    folder: PathBuf,
    /// The config as the ledger keeps it.
    key: Value,
}

/// Runs what is not in the ledger yet, prints the tables and writes them beside the ledger.
pub fn tables(tables: &[Table], options: &Options<'_>) -> Result<(), Failure> {
    let mut texts = vec![String::new(); tables.len()];
    let mut failed = Vec::new();
    for column in columns(options)? {
        let names = chosen_rows(options, rows::of_tables(tables, column))?;
        if names.is_empty() {
            continue;
        }
        let (tasks, ledger, failures) = run_column(column, &names, options)?;
        for (text, &table) in texts.iter_mut().zip(tables) {
            let mut names = names.clone();
            names.retain(|name| rows::names(table, column).contains(name));
            if !names.is_empty() {
                *text += &markdown::table(column, &names, &tasks, &ledger);
                text.push('\n');
            }
        }
        failed.extend(failures);
    }
    for (text, table) in texts.iter().zip(tables).filter(|_| options.ranks.is_first()) {
        let name = match table {
            Table::Three => "table3.md",
            Table::Five => "table5.md",
        };
        write(options.out, name, text.as_bytes())?;
        print!("{text}");
    }
    told(failed)
}

/// Runs the models of Table 3 that are not in the ledger yet and draws their validation accuracy, a figure per column: the
/// paper's, of the dense MNIST models, if nothing is said.
pub fn figure2(options: &Options<'_>) -> Result<(), Failure> {
    let columns = if options.only.is_empty() { vec![Column::MnistDense] } else { columns(options)? };
    let mut failed = Vec::new();
    for column in columns {
        let printed: Vec<&str> = column.table3().iter().map(|row| row.model).collect();
        let names = match options.models {
            [] => printed,
            _ => chosen_rows(options, rows::names(Table::Three, column))?,
        };
        let (tasks, ledger, failures) = run_column(column, &names, options)?;
        if options.ranks.is_first() {
            figure2::write(options.out, column, &names, &tasks, &ledger)?;
        }
        failed.extend(failures);
    }
    told(failed)
}

fn told(failures: Vec<String>) -> Result<(), Failure> {
    if failures.is_empty() { Ok(()) } else { Err(Failure::other(failures.join("\n"))) }
}

fn write(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    let path = folder.join(name);
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, bytes))
        .map_err(|why| Failure::other(format!("{} cannot be written: {why}", path.display())))
}

fn columns(options: &Options<'_>) -> Result<Vec<Column>, Failure> {
    let named = |name: &str| {
        Column::ALL.into_iter().find(|column| column.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Column::ALL.iter().map(|column| column.name()).collect();
            Failure::usage(format!("there is no column `{name}`; known are {}", known.join(", ")))
        })
    };
    let words: Vec<&str> = options.only.iter().flat_map(|words| words.split(',')).collect();
    if words.is_empty() { Ok(Column::ALL.to_vec()) } else { words.into_iter().map(named).collect() }
}

/// The rows that were asked for, in the order of the table.
fn chosen_rows(options: &Options<'_>, names: Vec<&'static str>) -> Result<Vec<&'static str>, Failure> {
    let words: Vec<&str> = options.models.iter().flat_map(|words| words.split(',')).collect();
    if let Some(unknown) = words.iter().find(|word| !names.contains(word)) {
        return Err(Failure::usage(format!("there is no row `{unknown}`; known are {}", names.join(", "))));
    }
    Ok(names.into_iter().filter(|name| words.is_empty() || words.contains(name)).collect())
}

/// Makes the runs of a column that were not made yet, each rank its part of them. What failed is told, not a reason to leave the others.
fn run_column(
    column: Column,
    names: &[&'static str],
    options: &Options<'_>,
) -> Result<(Vec<Task>, Ledger, Vec<String>), Failure> {
    let waiting = Waiting::begin(Telling::usual(false), "reading the data");
    let division = Division { split: "release", validation: 0, seed: 0 };
    let data = dataset::load(column.data(), options.data_dir, &division)?;
    drop(waiting);
    let tasks = tasks(column, names, &data, options)?;
    let ledger = Ledger::open(options.out, column.name())?;
    let missing = |task: &Task| options.runs_missing && ledger.find(task.row, &task.key).is_none();
    let open = told_open(options.ranks, &tasks.iter().map(missing).collect::<Vec<bool>>())?;
    let open: Vec<&Task> = tasks.iter().zip(open).filter_map(|(task, open)| open.then_some(task)).collect();
    if open.is_empty() {
        return Ok((tasks, ledger, Vec::new()));
    }
    let (ranks, jobs) = (options.ranks, options.jobs);
    if ranks.is_first() {
        let at_a_time = jobs * ranks.size();
        eprintln!("{}: {} of {} runs to make, {at_a_time} at a time", column.name(), open.len(), tasks.len());
    }
    let open: Vec<&Task> = open.into_iter().skip(ranks.rank()).step_by(ranks.size()).collect();
    let device = AnyDevice::new(options.device, options.threads)?.name();
    let machine = Machine::here(device, options.threads, jobs);
    let (next, ledger, failures) = (AtomicUsize::new(0), Mutex::new(ledger), Mutex::new(Vec::new()));
    let stop = Stop::listen()?;
    let work = || {
        while let Some(task) = open.get(next.fetch_add(1, Ordering::Relaxed)) {
            if stop.asked() {
                return;
            }
            let made = make(column, task, &data, options, machine.clone(), &stop).and_then(|entry| {
                let line = told_entry(column, &entry);
                ledger.lock().unwrap_or_else(PoisonError::into_inner).add(entry)?;
                eprintln!("{line}");
                Ok(())
            });
            if let Err(why) = made
                && !stop.asked()
            {
                let sentence = format!("{} {} seed {}: {why}", column.name(), task.row, task.config.seed);
                eprintln!("{sentence}");
                failures.lock().unwrap_or_else(PoisonError::into_inner).push(sentence);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs.min(open.len()) {
            scope.spawn(work);
        }
    });
    stop.finish();
    if ranks.any(stop.asked()).map_err(Failure::other)? {
        return Err(stop.failure("stopped; the same command goes on with the runs that were begun".into()));
    }
    let failures = failures.into_inner().unwrap_or_else(PoisonError::into_inner);
    let failures = everywhere(ranks, &failures)?;
    // With what the other ranks have made.
    Ok((tasks, Ledger::open(options.out, column.name())?, failures))
}

/// Which runs are missing, as the first rank has found: a slower one may find some made already.
fn told_open(ranks: &Ranks, open: &[bool]) -> Result<Vec<bool>, Failure> {
    let mut told: Vec<u8> = open.iter().map(|&open| open.into()).collect();
    ranks.broadcast(&mut told, 0).map_err(Failure::other)?;
    Ok(told.into_iter().map(|open| open == 1).collect())
}

/// The sentences of all ranks.
fn everywhere(ranks: &Ranks, sentences: &[String]) -> Result<Vec<String>, Failure> {
    let lines: String =
        sentences.iter().map(|sentence| format!("{}\n", sentence.replace('\n', " "))).collect();
    let all = ranks.all_gather(lines.as_bytes()).map_err(Failure::other)?;
    Ok(String::from_utf8_lossy(&all).lines().map(str::to_owned).collect())
}

/// Seed by seed, so that every row has its first run before any has its second.
fn tasks(
    column: Column,
    names: &[&'static str],
    data: &Dataset,
    options: &Options<'_>,
) -> Result<Vec<Task>, Failure> {
    let layout = if column.convolutional() { Layout::Conv } else { Layout::Dense };
    let mut tasks = Vec::new();
    for seed in 0..options.seeds {
        for &row in names {
            let wishes = Wishes { epochs: options.epochs, ..Wishes::default() };
            let mut config = recipe::config(data, layout, seed, &wishes)?;
            config.model.core = rows::core(row, layout)?;
            rows::with_recipe(row, column, &mut config);
            let length = options.epochs.map_or(String::new(), |epochs| format!("-{epochs}-epochs"));
            let folder = options.runs.join(column.name()).join(row).join(format!("seed-{seed}{length}"));
            let key = ledger::as_json(&config)?;
            tasks.push(Task { row, config, folder, key });
        }
    }
    Ok(tasks)
}

/// The runs of a row that were made.
fn made<'a>(row: &str, tasks: &[Task], ledger: &'a Ledger) -> Vec<&'a Entry> {
    let of_row = tasks.iter().filter(|task| task.row == row);
    of_row.filter_map(|task| ledger.find(task.row, &task.key)).collect()
}

/// Makes a run, from its checkpoint if it was begun.
fn make(
    column: Column,
    task: &Task,
    data: &Dataset,
    options: &Options<'_>,
    machine: Machine,
    stop: &Stop,
) -> Result<Entry, Failure> {
    let folder = if task.folder.join("config.toml").exists() {
        let (folder, stored) = RunFolder::open(&task.folder).map_err(Failure::other)?;
        if stored != task.config {
            return Err(Failure::other(format!(
                "{} was begun with another config: choose another --runs, or remove it",
                task.folder.display()
            )));
        }
        folder
    } else {
        RunFolder::create(&task.folder, &task.config).map_err(Failure::other)?
    };
    let threads = options.threads;
    let device = AnyDevice::new(options.device, threads)?;
    let plan = EvaluationOptions { certify: certified(column), threads, ..EvaluationOptions::default() };
    let on = &mut |_: subdeq::train::Progress<'_>| stop.flow();
    let run = RunOptions { evaluation: plan, ..RunOptions::default() };
    let trained =
        on_device!(device, |device| train_run(&device, &folder, &task.config, &data.parts, &run, on));
    let evaluation = trained.map_err(Failure::other)?.ok_or_else(|| Failure::other("was stopped"))?;
    let epochs = folder.read_metrics().map_err(Failure::other)?;
    Entry::new(task.row, &task.config, &evaluation, &epochs, machine)
}

fn told_entry(column: Column, entry: &Entry) -> String {
    format!(
        "{} {} seed {}: test error {:.2} %, epoch {} selected, {:.1} s per epoch",
        column.name(),
        entry.model,
        entry.seed,
        entry.error,
        entry.best_epoch,
        entry.seconds_per_epoch
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_model() {
        for column in Column::ALL {
            let layout = if column.convolutional() { Layout::Conv } else { Layout::Dense };
            for table in Table::ALL {
                for name in rows::names(table, column) {
                    assert_eq!(rows::core(name, layout).unwrap().name(), name);
                }
            }
        }
    }
}
