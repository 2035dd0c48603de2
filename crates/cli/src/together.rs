//! The program as one of several processes that `mpirun` started together.

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use subdeq::Ranks;
use subdeq::subdeq_ranks::{Session, launched_rank};

use crate::colour;
use crate::failure::Failure;

/// How long a rank that fails leaves the first one to say the same: usually all fail alike, and once is enough.
const PRECEDENCE: Duration = Duration::from_secs(1);

/// Joins the processes that were started with this one and does its part of the work. What goes wrong on one rank ends all.
pub fn on_ranks(work: impl FnOnce(&Ranks) -> Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
    let session = Session::join().map_err(|why| {
        if launched_rank() > 0 {
            thread::sleep(PRECEDENCE);
        }
        Failure::other(why)
    })?;
    let ranks = session.ranks();
    if ranks.size() == 1 {
        return work(ranks);
    }
    let worked = same_program(ranks).and_then(|()| work(ranks));
    let (code, failure) = match worked {
        Ok(code) => (code, None),
        // All have stopped at the same step.
        Err(stopped @ Failure::Stopped { .. }) if ranks.is_first() => (ExitCode::SUCCESS, Some(stopped)),
        Err(Failure::Stopped { .. }) => (ExitCode::SUCCESS, None),
        Err(failure) => end_all(ranks, &failure),
    };
    // Whoever ended while others write would end them: launchers see to that.
    ranks.any(false).map_err(Failure::other)?;
    failure.map_or(Ok(code), Err)
}

/// Refuses to work with other programs: they would round otherwise, or speak of other things.
fn same_program(ranks: &Ranks) -> Result<(), Failure> {
    let program = std::env::current_exe().and_then(std::fs::read);
    let program = program.map_err(|why| Failure::other(format!("the program cannot read itself: {why}")))?;
    let hint = "install the same build of it on every machine";
    ranks.agree("the program", &program, hint).map_err(Failure::other)
}

/// Says what went wrong, and ends all ranks.
fn end_all(ranks: &Ranks, failure: &Failure) -> ! {
    if ranks.is_first() {
        anstream::eprintln!("{} {failure}", colour::bad("subdeq:"));
    } else {
        thread::sleep(PRECEDENCE);
        anstream::eprintln!("{} rank {}: {failure}", colour::bad("subdeq:"), ranks.rank());
    }
    ranks.abort(failure.status())
}
