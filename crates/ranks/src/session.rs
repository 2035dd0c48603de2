//! The time in which a program belongs to a group of processes.

use crate::{Error, Ranks, Result};

/// Kept by `main` until the work is done: its end is the end of MPI in this process.
pub struct Session {
    ranks: Ranks,
    #[cfg(feature = "mpi")]
    _mpi: Option<ferrompi::Mpi>,
}

impl Session {
    /// Joins the processes that were started with this one, if there are any.
    ///
    /// # Errors
    /// Several processes without the feature `mpi`, or an MPI that does not start.
    pub fn join() -> Result<Session> {
        match launched() {
            None | Some(1) => Ok(Session::alone()),
            Some(processes) => Session::together(processes),
        }
    }

    /// One process.
    #[must_use]
    pub fn alone() -> Session {
        Session {
            ranks: Ranks::alone(),
            #[cfg(feature = "mpi")]
            _mpi: None,
        }
    }

    #[cfg(not(feature = "mpi"))]
    fn together(processes: usize) -> Result<Session> {
        Err(Error::WithoutMpi { processes })
    }

    #[cfg(feature = "mpi")]
    fn together(processes: usize) -> Result<Session> {
        // The thread that speaks may change, but no two speak at a time.
        let mpi = ferrompi::Mpi::init_thread(ferrompi::ThreadLevel::Serialized)?;
        let ranks = Ranks::of_world(mpi.world());
        if ranks.size() != processes {
            return Err(Error::Mpi(format!(
                "the launcher started {processes} processes, MPI sees {}: is `mpirun` of the same MPI as this program?",
                ranks.size()
            )));
        }
        Ok(Session { ranks, _mpi: Some(mpi) })
    }

    /// The ranks.
    #[must_use]
    pub fn ranks(&self) -> &Ranks {
        &self.ranks
    }
}

/// Which process this is of those that the launcher started together; 0 where there is no launcher. For those who cannot join.
#[must_use]
pub fn launched_rank() -> usize {
    ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"].into_iter().find_map(number).unwrap_or(0)
}

/// The processes of a launch that are on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// Which of them this is, from 0.
    pub place: usize,
    /// How many they are.
    pub count: usize,
}

impl Neighbours {
    /// As the launcher says; a process alone where it says nothing.
    #[must_use]
    pub fn here() -> Neighbours {
        let first_of = |names: [&str; 3]| names.into_iter().find_map(number);
        Neighbours {
            place: first_of(["OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"]).unwrap_or(0),
            count: first_of(["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"])
                .unwrap_or(1)
                .max(1),
        }
    }
}

fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

/// How many processes the launcher started together, if a launcher did: OpenMPI, MPICH and Intel MPI (PMI), PMIx by Slurm.
fn launched() -> Option<usize> {
    if let Some(size) = number("OMPI_COMM_WORLD_SIZE").or_else(|| number("PMI_SIZE")) {
        return Some(size);
    }
    // A Slurm step sets SLURM_NTASKS for programs that do not work together too; PMIx is there only for those that do.
    std::env::var_os("PMIX_RANK").and_then(|_| number("SLURM_STEP_NUM_TASKS"))
}
