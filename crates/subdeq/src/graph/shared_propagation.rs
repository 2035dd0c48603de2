//! Propagation over a graph that several ranks share, without a network around it.

use std::sync::Arc;

use subdeq_engine::cpu::graph::{Adjacency, Company, Division, NodeMatrix, Propagation};
use subdeq_engine::{Cpu, Extent, GraphMap, Measure, SampleReport, Solver, Stopping};
use subdeq_ranks::Ranks;

use super::Csr;
use super::company::RankCompany;
use crate::{Error, Result};

/// A map over a graph of which every rank has the rows that a [`Division`] gives to it.
///
/// ```
/// use subdeq::Ranks;
/// use subdeq::graph::{Division, GraphModel, SharedPropagation, normalised_adjacency};
///
/// let (ranks, path) = (Ranks::alone(), normalised_adjacency(3, &[(0, 1), (1, 2)])?);
/// let division = Division::by_lengths(3, |row| path.starts[row]);
/// let model = GraphModel::equilibrium("appnp-tanh", 0.1)?;
/// let mut propagation = SharedPropagation::new(&ranks, &model.map, &division, path, 1, 1)?;
/// // 90 iterations bring any start within 1e-4 of where it was: nobody has to ask whether they are enough.
/// let z = propagation.iterate(&[1.0, 0.0, 0.0], 90)?;
/// let (solved, report) = propagation.solve(&[1.0, 0.0, 0.0], 1e-6, 500)?;
/// assert!(report.converged() && z.iter().zip(&solved).all(|(a, b)| (a - b).abs() < 1e-4));
/// # Ok::<(), subdeq::Error>(())
/// ```
pub struct SharedPropagation {
    company: Arc<RankCompany>,
    adjacency: Adjacency<f32>,
    propagation: Propagation<f32>,
    channels: usize,
}

/// What has travelled from one rank to the others since it was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Rows that each application of the map brings here.
    pub rows_taken: usize,
    /// Rows that each application sends from here.
    pub rows_given: usize,
    /// Bytes that were sent from here, rank to rank.
    pub bytes_given: u64,
    /// Messages in which they went.
    pub messages: u64,
}

impl SharedPropagation {
    /// Takes over this rank's rows of a symmetric matrix (columns numbered as in the whole), for states of so many channels.
    ///
    /// # Errors
    /// Rows that are not this rank's part, entries that are not finite, a map without channels.
    pub fn new(
        ranks: &Ranks,
        map: &GraphMap,
        division: &Division,
        rows: Csr<f32>,
        channels: usize,
        threads: usize,
    ) -> Result<SharedPropagation> {
        let company = Arc::new(RankCompany::new(ranks));
        let messenger: Arc<dyn Company<f32>> = company.clone();
        let adjacency = Adjacency::part(messenger, division, rows)?;
        let propagation = Propagation::new(&Cpu::new(threads)?, map, &adjacency.edges(), channels)?;
        Ok(SharedPropagation { company, adjacency, propagation, channels })
    }

    /// `F` applied so many times to `F(0; f)`, all of this rank's rows. The number is known beforehand, by
    /// [`super::GraphCertificate::iterations`] for example: ranks exchange rows, and none waits for a decision.
    ///
    /// # Errors
    /// Injections that do not fit, or a message that failed.
    pub fn iterate(&mut self, f: &[f32], times: usize) -> Result<Vec<f32>> {
        let f = NodeMatrix::from_rows(self.adjacency.nodes(), self.channels, f)?;
        Ok(self.iterated(&f, times)?.to_rows())
    }

    /// The same without copies of state and injection.
    ///
    /// # Errors
    /// As for [`SharedPropagation::iterate`].
    pub fn iterated(&mut self, f: &NodeMatrix<f32>, times: usize) -> Result<NodeMatrix<f32>> {
        let edges = self.adjacency.edges();
        let mut z = NodeMatrix::zeros(self.adjacency.nodes(), self.channels);
        let mut image = z.clone();
        self.propagation.apply(&edges, None, f, None, &mut z)?;
        for _ in 0..times {
            self.propagation.apply(&edges, Some(&z), f, None, &mut image)?;
            std::mem::swap(&mut z, &mut image);
        }
        self.check()?;
        Ok(z)
    }

    /// Iterates until the relative residual of the whole state is at most `tolerance`, which all ranks agree on in every step.
    ///
    /// # Errors
    /// As for [`SharedPropagation::iterate`].
    pub fn solve(
        &mut self,
        f: &[f32],
        tolerance: f64,
        max_iterations: usize,
    ) -> Result<(Vec<f32>, SampleReport)> {
        let nodes = self.adjacency.nodes();
        let f = NodeMatrix::from_rows(nodes, self.channels, f)?;
        let mut z = NodeMatrix::zeros(nodes, self.channels);
        let (measure, extent) = (Measure::Relative, Extent::PerSample);
        let stopping = Stopping { measure, tolerance, max_iterations, extent };
        let edges = self.adjacency.edges();
        let report = self.propagation.solve(&edges, &f, &Solver::Picard, &stopping, &mut z)?;
        self.check()?;
        Ok((z.to_rows(), report))
    }

    /// Number of rows that are here.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.adjacency.nodes()
    }

    /// What has travelled since this was last asked.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let [rows_taken, rows_given] = self.adjacency.rows_that_travel();
        let [bytes_given, messages] = self.company.take_traffic();
        Traffic { rows_taken, rows_given, bytes_given, messages }
    }

    fn check(&self) -> Result<()> {
        Company::<f32>::failure(&*self.company).map_or(Ok(()), |why| Err(Error::Invalid(why)))
    }
}
