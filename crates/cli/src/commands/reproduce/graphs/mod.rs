//! Experiments on graphs: the paper's Table 4 and its appendix's table here, the protocols of others in [`protocol`].
//!
//! Each cell of the tables is run in three forms. *release* is what the published code computes: ten unrolled steps from a
//! signed injection, rows normalised, in Table 4 with the injection inside the tanh. *equilibrium* is the same map solved to its
//! equilibrium, which is proved to be the only one; where it normalises, rows are projected onto balls instead, since nothing
//! is proved about a normalised map with signed injections. *paper* is what the paper writes: the equilibrium with a
//! positive injection and normalised columns, which its uniqueness theorem is about.

mod anchors;
mod jobs;
mod ledger;
mod markdown;
mod paper;
pub mod protocol;
mod protocol_markdown;
mod shelf;

use std::path::Path;

use serde::{Deserialize, Serialize};
use subdeq::Verdict;
use subdeq::graph::{GraphConfig, GraphModel, Joined, train_graph};
use subdeq_data::graph::GraphSplitRule;

use crate::failure::Failure;
use jobs::{Next, Waits, first_open, side_by_side};
use ledger::{Key, Ledger, Record};
use paper::Cell;
use shelf::Shelf;

/// Distance to the solution for which promised and counted iterations are compared.
const DISTANCE: f64 = 1e-6;

/// Which of the two tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Teleport probability 0.1, a new split for each run.
    Four,
    /// Teleport probability chosen on the validation nodes, one test set for all runs.
    Six,
}

/// Which variant of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Form {
    /// As the published code has it.
    Release,
    /// The published code's map, solved to its equilibrium, with a proof.
    Equilibrium,
    /// As the paper writes it.
    Paper,
}

impl Form {
    const ALL: [Form; 3] = [Form::Release, Form::Equilibrium, Form::Paper];

    fn name(self) -> &'static str {
        match self {
            Form::Release => "release",
            Form::Equilibrium => "equilibrium",
            Form::Paper => "paper",
        }
    }
}

/// What to run, and where the results go.
pub struct Options<'a> {
    /// Only cells for which each of these lists has the graph or the form; none: all. By others' protocols: only these graphs.
    pub only: &'a [String],
    /// Only these models; none: all, or by others' protocols the one for hyperedges.
    pub models: &'a [String],
    /// Runs per cell, or divisions of the nodes.
    pub seeds: u64,
    /// Folder of the ledger and of the table.
    pub out: &'a Path,
    /// Where the data are.
    pub data_dir: Option<&'a Path>,
    /// Runs at the same time.
    pub jobs: usize,
    /// Threads of a run.
    pub threads: usize,
    /// Whether missing runs are made; else there are only those of the ledger.
    pub runs_missing: bool,
}

impl Options<'_> {
    fn wants(&self, graph: &str, model: &str, form: Form) -> bool {
        let named = |list: &String, names: &[&str]| list.split(',').any(|word| names.contains(&word));
        self.only.iter().all(|list| named(list, &[graph, form.name()]))
            && (self.models.is_empty() || self.models.iter().any(|list| named(list, &[model])))
    }

    /// Refuses words that name nothing: they would quietly run nothing.
    fn check(&self) -> Result<(), Failure> {
        let known = |word: &str, names: &[&str]| names.contains(&word);
        let forms = Form::ALL.map(Form::name);
        let unknown = |lists: &[String], names: &[&str]| {
            let words = lists.iter().flat_map(|list| list.split(','));
            words.map(str::to_owned).find(|word| !known(word, names))
        };
        let parts = [&paper::GRAPHS[..], &forms[..]].concat();
        for (option, lists, names) in
            [("--only", self.only, &parts[..]), ("--models", self.models, &GraphModel::NAMES[..])]
        {
            if let Some(word) = unknown(lists, names) {
                return Err(Failure::usage(format!("{option} {word}: known are {}", names.join(", "))));
            }
        }
        Ok(())
    }
}

impl Table {
    fn name(self) -> &'static str {
        match self {
            Table::Four => "table4",
            Table::Six => "table6",
        }
    }

    fn cells(self) -> &'static [Cell] {
        match self {
            Table::Four => &paper::TABLE4,
            Table::Six => &paper::TABLE6,
        }
    }

    fn model(self, form: Form, name: &str, teleport: f64) -> Result<GraphModel, Failure> {
        let model = match (form, self) {
            (Form::Paper, _) => GraphModel::paper(name, teleport),
            (Form::Release | Form::Equilibrium, Table::Four) => GraphModel::release_main(name, teleport),
            (Form::Release | Form::Equilibrium, Table::Six) => GraphModel::release(name, teleport),
        };
        let certified = |model: GraphModel| match model.map.normalisation() {
            Some(_) => model.projected().map(GraphModel::solved),
            None => Ok(model.solved()),
        };
        if form == Form::Equilibrium { model.and_then(certified) } else { model }.map_err(Failure::other)
    }

    fn split_rule(self, form: Form) -> GraphSplitRule {
        match (self, form) {
            (Table::Four, _) => GraphSplitRule::Main,
            (Table::Six, Form::Paper) => GraphSplitRule::AppendixPaper { test_seed: 0 },
            (Table::Six, Form::Release | Form::Equilibrium) => {
                GraphSplitRule::AppendixRelease { test_seed: 0 }
            }
        }
    }
}

/// Runs what is not in the ledger yet, prints the table as markdown and writes it beside the ledger.
pub fn run(table: Table, options: &Options<'_>) -> Result<(), Failure> {
    options.check()?;
    let mut ledger = Ledger::open(options.out, table.name())?;
    if options.runs_missing {
        let shelf = Shelf::new(options.data_dir);
        let bench = Bench { table, options, shelf: &shelf };
        let next = |ledger: &Ledger, begun: &[Key]| bench.next(ledger, begun);
        ledger = side_by_side(ledger, options.jobs, next, |key| bench.make(key))?;
    }
    let text = markdown::table(table, &ledger, options.seeds)
        + "\n"
        + &markdown::certificates(table, &ledger, options.seeds);
    write_table(options.out, table.name(), &text)
}

/// Prints a table and writes it beside its ledger.
fn write_table(out: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let path = out.join(format!("{name}.md"));
    std::fs::create_dir_all(out)
        .and_then(|()| std::fs::write(&path, text))
        .map_err(|why| Failure::other(format!("{} cannot be written: {why}", path.display())))?;
    print!("{text}");
    Ok(())
}

/// Teleport probabilities and seeds of the runs that a cell is made of, as far as they are known.
fn chosen_teleport(table: Table, ledger: &Ledger, graph: &str, model: &str, form: Form) -> Option<f64> {
    match table {
        Table::Four => Some(0.1),
        Table::Six => {
            let runs: Option<Vec<&Record>> = paper::TELEPORTS
                .iter()
                .map(|&teleport| ledger.find(&key(graph, model, form, teleport, 0)))
                .collect();
            // The first of the best, so that ties are decided the same way always.
            let best = runs?.into_iter().reduce(|best, run| {
                if run.validation_accuracy > best.validation_accuracy { run } else { best }
            });
            best.map(|run| run.key.teleport)
        }
    }
}

fn key(graph: &str, model: &str, form: Form, teleport: f64, seed: u64) -> Key {
    Key { graph: graph.to_owned(), model: model.to_owned(), form, teleport, seed }
}

/// Where runs are made.
struct Bench<'a, 'o> {
    table: Table,
    options: &'a Options<'o>,
    shelf: &'a Shelf<'o>,
}

impl Bench<'_, '_> {
    /// The first run that can be begun: graph by graph, and in each the searches for teleport probabilities first, then a run
    /// per seed.
    fn next(&self, ledger: &Ledger, begun: &[Key]) -> Next<Key> {
        let searched: &[f64] = if self.table == Table::Six { &paper::TELEPORTS } else { &[] };
        let cells = paper::GRAPHS.iter().flat_map(|graph| {
            let cells = move |form| {
                let cells = self.table.cells().iter().filter(move |cell| cell.0 == *graph);
                cells.map(move |&(graph, model, ..)| (graph, model, form))
            };
            Form::ALL.into_iter().flat_map(cells)
        });
        let plans =
            cells.filter(|&(graph, model, form)| self.options.wants(graph, model, form)).flat_map(|cell| {
                let searches = searched.iter().map(move |&teleport| (cell, Some(teleport), 0));
                searches.chain((0..self.options.seeds).map(move |seed| (cell, None, seed)))
            });
        first_open(plans, begun, |((graph, model, form), teleport, seed)| {
            let chosen = teleport.or_else(|| chosen_teleport(self.table, ledger, graph, model, form));
            let key = key(graph, model, form, chosen.ok_or(Waits)?, seed);
            Ok(ledger.find(&key).is_none().then_some(key))
        })
    }

    fn make(&self, key: &Key) -> Result<Record, Failure> {
        let graph = self.shelf.graph(&key.graph, Joined::Pairs)?;
        let model = self.table.model(key.form, &key.model, key.teleport)?;
        let rule = self.table.split_rule(key.form);
        let split = graph.split(rule, key.seed)?;
        let config = GraphConfig { seed: key.seed, threads: self.options.threads, ..GraphConfig::new(model) };
        let run = train_graph(&graph.problem, &split, &config, |_| ()).map_err(Failure::other)?;
        let convergence = match key.form {
            Form::Release => None,
            Form::Equilibrium | Form::Paper => {
                Some(run.classifier.convergence(&graph.problem, DISTANCE).map_err(Failure::other)?)
            }
        };
        // About the injection at hand, where nothing is proved for all.
        let certificate =
            convergence.as_ref().map_or(&run.certificate, |convergence| &convergence.certificate).clone();
        let metric = match &certificate.verdict {
            Verdict::Proven { metric, .. } => Some(metric.name().to_owned()),
            _ => None,
        };
        let converged = run.epochs.iter().filter(|epoch| epoch.converged).count();
        let most =
            |count: fn(&subdeq::graph::GraphEpoch) -> u32| run.epochs.iter().map(count).max().unwrap_or(0);
        let record = Record {
            split: rule,
            nodes: [split.train.len(), split.validation.len(), split.test.len()],
            accuracy: 100.0 * run.test_accuracy,
            validation_accuracy: 100.0 * run.validation_accuracy,
            best_epoch: run.best_epoch,
            epochs: run.epochs.len(),
            seconds: run.seconds,
            iterations: [most(|epoch| epoch.solve_iterations), most(|epoch| epoch.adjoint_iterations)],
            converged: converged as f64 / run.epochs.len() as f64,
            verdict: certificate.verdict.name().to_owned(),
            factor: certificate.factor(),
            metric,
            promised: convergence.as_ref().and_then(|convergence| convergence.promised),
            measured: convergence.map(|convergence| convergence.measured),
            commit: Some(env!("SUBDEQ_COMMIT").to_owned()),
            key: key.clone(),
        };
        eprintln!(
            "{} {} {} teleport {} seed {}: accuracy {:.2} %, best epoch {} of {}, {:.1} s",
            record.key.graph,
            record.key.model,
            record.key.form.name(),
            record.key.teleport,
            record.key.seed,
            record.accuracy,
            record.best_epoch,
            record.epochs,
            record.seconds
        );
        Ok(record)
    }
}
