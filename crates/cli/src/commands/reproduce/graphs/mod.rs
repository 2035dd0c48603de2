//! The paper's graph experiments: Table 4 and the appendix's table.
//!
//! Each cell is run in three forms. *release* is what the published code computes: ten unrolled steps from a signed
//! injection, rows normalised, in Table 4 with the injection inside the tanh. *solved* is the same map solved to its
//! equilibrium. *paper* is what the paper writes: the equilibrium with a positive injection and normalised columns, which
//! its uniqueness theorem is about.

mod ledger;
mod markdown;
mod paper;

use std::path::Path;

use serde::{Deserialize, Serialize};
use subdeq::Verdict;
use subdeq::graph::{GraphConfig, GraphModel, Joined, train_graph};
use subdeq_data::graph::GraphSplitRule;

use crate::failure::Failure;
use crate::graph::Graph;
use ledger::{Key, Ledger, Record};
use paper::Cell;

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
    /// The published code's map, solved to its equilibrium.
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
    /// Only cells for which each of these lists has the graph or the form; none: all.
    pub only: &'a [String],
    /// Only these models; none: all.
    pub models: &'a [String],
    /// Runs per cell.
    pub seeds: u64,
    /// Folder of the ledger and of the table.
    pub out: &'a Path,
    /// Where the data are.
    pub data_dir: Option<&'a Path>,
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
        }
        .map_err(Failure::other)?;
        Ok(if form == Form::Equilibrium { model.solved() } else { model })
    }

    fn split_rule(self, form: Form) -> GraphSplitRule {
        match (self, form) {
            (Table::Four, _) => GraphSplitRule::Main,
            (Table::Six, Form::Paper) => GraphSplitRule::AppendixPaper { test_seed: 0 },
            (Table::Six, Form::Release | Form::Equilibrium) => GraphSplitRule::AppendixRelease { test_seed: 0 },
        }
    }
}

/// Runs what is not in the ledger yet, prints the table as markdown and writes it beside the ledger.
pub fn run(table: Table, options: &Options<'_>) -> Result<(), Failure> {
    options.check()?;
    let mut ledger = Ledger::open(options.out, table.name())?;
    for graph_name in paper::GRAPHS {
        let mut graph = None;
        for form in Form::ALL {
            for &(_, model, ..) in table.cells().iter().filter(|cell| cell.0 == graph_name) {
                if options.runs_missing && options.wants(graph_name, model, form) {
                    let mut bench = Bench { table, options, ledger: &mut ledger, graph: &mut graph };
                    bench.cell(graph_name, model, form)?;
                }
            }
        }
    }
    let text = markdown::table(table, &ledger, options.seeds)
        + "\n"
        + &markdown::certificates(table, &ledger, options.seeds);
    let path = options.out.join(format!("{}.md", table.name()));
    std::fs::create_dir_all(options.out)
        .and_then(|()| std::fs::write(&path, &text))
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

/// Where the runs of one graph are made.
struct Bench<'a, 'o> {
    table: Table,
    options: &'a Options<'o>,
    ledger: &'a mut Ledger,
    /// Read when the first run needs it.
    graph: &'a mut Option<Graph>,
}

impl Bench<'_, '_> {
    /// All runs of a cell: the search for the teleport probability, then one run per seed.
    fn cell(&mut self, graph: &str, model: &str, form: Form) -> Result<(), Failure> {
        if self.table == Table::Six {
            for teleport in paper::TELEPORTS {
                self.run(key(graph, model, form, teleport, 0))?;
            }
        }
        let teleport = chosen_teleport(self.table, self.ledger, graph, model, form)
            .ok_or_else(|| Failure::other("the search for the teleport probability is not complete"))?;
        (0..self.options.seeds).try_for_each(|seed| self.run(key(graph, model, form, teleport, seed)))
    }

    /// One run, unless it is in the ledger.
    fn run(&mut self, key: Key) -> Result<(), Failure> {
        if self.ledger.find(&key).is_some() {
            return Ok(());
        }
        if self.graph.is_none() {
            *self.graph = Some(Graph::load(&key.graph, Joined::Pairs, self.options.data_dir)?);
        }
        let graph = self.graph.as_ref().ok_or_else(|| Failure::other("the graph is not there"))?;
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
            key,
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
        self.ledger.add(record)
    }
}
