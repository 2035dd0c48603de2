//! Time, memory and traffic of a propagation over a large graph that ranks share. Every rank makes its own rows of the graph: nobody has
//! the whole.

use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use subdeq::Ranks;
use subdeq::graph::{Csr, Division, GraphModel, NodeMatrix, SharedPropagation};

use super::{Args, median_ms, peak_mib};
use crate::failure::Failure;

/// What is propagated, as the trainings have it.
const MODEL: &str = "appnp-tanh";
const TELEPORT: f64 = 0.1;
/// Applications of the map in one reading: their number is known beforehand, as from a certificate.
const APPLICATIONS: usize = 10;
/// Readings if nothing is said.
const READINGS: usize = 5;

/// The graph of the case `graph-ranks`.
#[derive(clap::Args)]
#[command(next_help_heading = "The graph of graph-ranks")]
pub struct Sizes {
    /// Entries of its matrix, about.
    #[arg(long, value_name = "N", default_value_t = 100_000_000)]
    entries: usize,
    /// Neighbours of a node.
    #[arg(long, value_name = "N", default_value_t = 48)]
    neighbours: usize,
    /// Neighbours are at most so many rows apart.
    #[arg(long, value_name = "N", default_value_t = 20_000)]
    band: usize,
    /// Channels of a state.
    #[arg(long, value_name = "N", default_value_t = 16)]
    channels: usize,
}

/// A graph that is symmetric by its making: node `i` is joined to `i + d` and `i - d` for every distance `d` of a fixed list.
struct Ladder {
    nodes: usize,
    distances: Vec<usize>,
}

impl Ladder {
    fn new(sizes: &Sizes) -> Result<Ladder, Failure> {
        let &Sizes { entries, neighbours, band, .. } = sizes;
        let (nodes, count) = (entries / (neighbours + 1), neighbours / 2);
        if count == 0 || band < count || nodes <= band {
            return Err(Failure::usage(format!(
                "a graph of {entries} entries with {neighbours} neighbours a node, at most {band} rows apart, cannot be made: it needs \
                 2 neighbours, a band of at least half of them, and more nodes than that"
            )));
        }
        // Each from a stretch of its own, at a place that a multiplicative hash chooses; the last is the band's end.
        let stretch = band / count;
        let place = |k: usize| (k as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let mut distances: Vec<usize> =
            (0..count).map(|k| k * stretch + 1 + place(k) as usize % stretch).collect();
        distances[count - 1] = band;
        Ok(Ladder { nodes, distances })
    }

    /// Neighbours of a node, and itself.
    fn degree(&self, node: usize) -> usize {
        let [below, above] = [node, self.nodes - 1 - node];
        let within = |bound: usize| self.distances.partition_point(|&distance| distance <= bound);
        1 + within(below) + within(above)
    }

    /// Entries of the rows before this one.
    fn before(&self, row: usize) -> usize {
        // Of each distance, row i has an entry below from i = d on, and one above up to i = nodes - 1 - d.
        let pairs = |&d: &usize| row.saturating_sub(d) + row.min(self.nodes - d);
        row + self.distances.iter().map(pairs).sum::<usize>()
    }

    fn rows(&self, rows: std::ops::Range<usize>) -> Csr<f32> {
        let entries = self.before(rows.end) - self.before(rows.start);
        let (mut columns, mut values) = (Vec::with_capacity(entries), Vec::with_capacity(entries));
        let mut starts = Vec::with_capacity(rows.len() + 1);
        starts.push(0);
        for row in rows.clone() {
            let root = (self.degree(row) as f64).sqrt();
            let below = self.distances.iter().rev().filter_map(|&distance| row.checked_sub(distance));
            let above = self.distances.iter().map(|&distance| row + distance).filter(|&j| j < self.nodes);
            for j in below.chain([row]).chain(above) {
                columns.push(j as u32);
                values.push((1.0 / (root * (self.degree(j) as f64).sqrt())) as f32);
            }
            starts.push(columns.len());
        }
        Csr { rows: rows.len(), cols: self.nodes, starts, columns, values }
    }
}

/// Readings of some applications; the first rank prints one line.
pub fn measure(args: &Args, ranks: &Ranks) -> Result<ExitCode, Failure> {
    let sizes = &args.graph_ranks;
    let graph = Ladder::new(sizes)?;
    let model = GraphModel::equilibrium(MODEL, TELEPORT).map_err(Failure::usage)?;
    let division = Division::by_lengths(graph.nodes, |row| graph.before(row));
    let rows = division.rows_of(ranks.rank(), ranks.size());
    let part = graph.rows(rows.clone());
    let entries = part.columns.len() as u64;
    let channels = sizes.channels;
    let mut propagation = SharedPropagation::new(ranks, &model.map, &division, part, channels, args.threads)
        .map_err(Failure::other)?;
    let mut f = NodeMatrix::zeros(rows.len(), channels);
    for (place, row) in rows.clone().enumerate() {
        f.row_mut(place).iter_mut().enumerate().for_each(|(c, x)| *x = ((row + c) % 97) as f32 / 97.0);
    }
    let iterated =
        |propagation: &mut SharedPropagation, times| propagation.iterated(&f, times).map_err(Failure::other);
    iterated(&mut propagation, 1)?;
    let _ = propagation.traffic();
    let mut seconds = Vec::new();
    let readings = args.repeats.unwrap_or(READINGS);
    let mut state = None;
    for _ in 0..readings {
        ranks.any(false).map_err(Failure::other)?;
        let clock = Instant::now();
        let first = iterated(&mut propagation, 0)?;
        ranks.any(false).map_err(Failure::other)?;
        let start = clock.elapsed().as_secs_f64();
        drop(first);
        let clock = Instant::now();
        state = Some(iterated(&mut propagation, APPLICATIONS)?);
        ranks.any(false).map_err(Failure::other)?;
        seconds.push((clock.elapsed().as_secs_f64() - start) / APPLICATIONS as f64);
    }
    let traffic = propagation.traffic();
    let applications = (readings * APPLICATIONS) as u64;
    // The state's bits, which depend on nothing but the graph: the exclusive or of all numbers, whoever has them.
    let bits = state.map_or(0, |state| {
        (0..state.nodes()).flat_map(|row| state.row(row)).fold(0, |bits: u32, x| bits ^ x.to_bits())
    });
    let mine = [
        entries,
        peak_mib().unwrap_or(0),
        traffic.rows_taken as u64,
        traffic.bytes_given / applications,
        traffic.messages / applications,
        u64::from(bits),
    ];
    let all = ranks.all_gather(&mine).map_err(Failure::other)?;
    let of = |place: usize| all.iter().skip(place).step_by(mine.len()).copied().collect::<Vec<u64>>();
    if ranks.is_first() {
        let ms = median_ms(&mut seconds);
        println!(
            "{}",
            json!({
                "case": "graph-ranks", "model": MODEL, "ranks": ranks.size(), "threads": args.threads,
                "nodes": graph.nodes, "entries": of(0).iter().sum::<u64>(), "channels": channels, "band": sizes.band,
                "application_ms": ms,
                "entries_per_second": of(0).iter().sum::<u64>() as f64 / (ms * 1e-3),
                "peak_mib_by_rank": of(1),
                "halo_rows_by_rank": of(2),
                "bytes_given_by_rank": of(3),
                "messages_by_rank": of(4),
                "bits": format!("{:08x}", of(5).iter().fold(0, |a, b| a ^ b)),
            })
        );
    }
    Ok(ExitCode::SUCCESS)
}
