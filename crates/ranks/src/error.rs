//! What can go wrong between ranks.

/// The result of working together.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong, as a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Several processes were started, of a program that cannot work together.
    #[error(
        "{processes} processes were started together, but this program was built without MPI and each would do the whole work: \
         build it with `--features mpi` (Debian: `apt install libopenmpi-dev`), or start it without `mpirun`"
    )]
    WithoutMpi {
        /// How many, by what the launcher says.
        processes: usize,
    },
    /// Ranks that should have the same do not.
    #[error("ranks 0 and {rank} do not agree about {what}: {hint}")]
    Differs {
        /// What they compared.
        what: String,
        /// The first that differs.
        rank: usize,
        /// What to do about it.
        hint: String,
    },
    /// MPI failed.
    #[error("MPI: {0}")]
    Mpi(String),
}

#[cfg(feature = "mpi")]
impl From<ferrompi::Error> for Error {
    fn from(error: ferrompi::Error) -> Error {
        Error::Mpi(error.to_string())
    }
}
