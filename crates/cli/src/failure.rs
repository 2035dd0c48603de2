//! What goes wrong, in one sentence, and the exit status that it gives.

use std::fmt;
use std::process::ExitCode;

/// Why a command could not do its work.
#[derive(Debug)]
pub enum Failure {
    /// The command line asks for something that does not exist or makes no sense: exit status 2.
    Usage(String),
    /// Everything else, bad files above all: exit status 1.
    Other(String),
    /// The user asked for an end: exit status 128 and the signal's number, as shells have it.
    Stopped { signal: u8, sentence: String },
}

impl Failure {
    /// A fault of the command line.
    pub fn usage(sentence: impl fmt::Display) -> Failure {
        Failure::Usage(sentence.to_string())
    }

    /// Any other fault.
    pub fn other(sentence: impl fmt::Display) -> Failure {
        Failure::Other(sentence.to_string())
    }

    /// The exit status of the program.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.status())
    }

    /// The same as a number.
    pub fn status(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::Other(_) => 1,
            Failure::Stopped { signal, .. } => 128 + signal,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Usage(sentence) | Failure::Other(sentence) | Failure::Stopped { sentence, .. } => {
                f.write_str(sentence)
            }
        }
    }
}
