//! How much a file may unpack to, before it is taken for one that lies.
//!
//! Deflate can make a thousand bytes out of one and xz far more, so that the size of a compressed file says little about
//! the memory it asks for. Every compressed file therefore has one budget, for all its members and layers together:
//!
//! | what it holds              | may unpack to, in all                |
//! |----------------------------|--------------------------------------|
//! | arrays, pictures, archives | 64 MiB and 64 times the file's bytes |
//! | text (tables, edge lists)  | 8 MiB and 16 times the file's bytes  |
//!
//! and never to more than 16 GiB beyond the file itself. Real data sets shrink two to ten times; a dense matrix of mostly
//! zeros fits as long as it is small. Text has less because a number of two characters takes up to 30 bytes of memory.
//! What is stored uncompressed has no budget: there the file is as large as it says. Where a shape is declared, it is held
//! against the budget before anything is allocated; where none is, memory grows with what really arrives.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

/// What any file of arrays may unpack to, however small it is, and how many bytes every further byte of it stands for.
const ARRAYS: (u64, u64) = (64 << 20, 64);
/// The same for text.
const TEXT: (u64, u64) = (8 << 20, 16);
/// What no file may unpack to beyond its own size.
const LARGE: u64 = 16 << 30;

/// What the remedy is for a file that unpacks to more than it may.
pub(crate) const TOO_MUCH_REMEDY: &str =
    "if the data are really that large, unpack the file first or save it uncompressed";

/// The bytes that a file may still unpack to; clones share what is left.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    file: u64,
    allowed: u64,
    left: Rc<Cell<u64>>,
    exceeded: Rc<Cell<bool>>,
}

impl Budget {
    fn new(file: u64, rule: (u64, u64)) -> Self {
        let allowed = allowance(file, rule);
        Budget { file, allowed, left: Rc::new(Cell::new(allowed)), exceeded: Rc::new(Cell::new(false)) }
    }

    /// For a file of this many bytes that holds arrays, pictures or other files.
    pub fn arrays(file: u64) -> Self {
        Self::new(file, ARRAYS)
    }

    /// For a file of this many bytes that holds text.
    pub fn text(file: u64) -> Self {
        Self::new(file, TEXT)
    }

    /// How many bytes may still come.
    pub fn left(&self) -> u64 {
        self.left.get()
    }

    /// Takes `count` bytes out; `false` if there are not so many left.
    pub fn spend(&self, count: u64) -> bool {
        match self.left.get().checked_sub(count) {
            Some(left) => {
                self.left.set(left);
                true
            }
            None => {
                self.exceeded.set(true);
                false
            }
        }
    }

    /// Whether more was asked for than there was.
    pub fn exceeded(&self) -> bool {
        self.exceeded.get()
    }

    /// What is wrong, said to people.
    pub fn problem(&self) -> String {
        format!("unpacks to more than {} bytes, too many for a file of {} bytes", self.allowed, self.file)
    }

    /// A reader that draws on this budget and fails when it is used up.
    pub fn meter<R: Read>(&self, inner: R) -> Metered<R> {
        Metered { inner, budget: self.clone() }
    }
}

/// What may come out of `encoded` bytes of pictures: the budget of arrays, for data that arrive piece by piece.
pub(crate) fn picture_allowance(encoded: u64) -> u64 {
    allowance(encoded, ARRAYS)
}

fn allowance(file: u64, (small, expansion): (u64, u64)) -> u64 {
    file.saturating_mul(expansion).saturating_add(small).min(file.saturating_add(LARGE))
}

/// A reader with a [`Budget`].
pub(crate) struct Metered<R> {
    inner: R,
    budget: Budget,
}

impl<R: Read> Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let left = usize::try_from(self.budget.left()).unwrap_or(usize::MAX);
        // With nothing left, one more byte tells the end of the data from too much of it.
        let wanted = buffer.len().min(left.max(1));
        let read = self.inner.read(&mut buffer[..wanted])?;
        if !self.budget.spend(read as u64) {
            return Err(io::Error::other(self.budget.problem()));
        }
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_shared_and_ends_exactly() {
        let budget = Budget::text(0);
        let mut first = budget.meter(io::repeat(7).take(TEXT.0 - 10));
        assert_eq!(io::copy(&mut first, &mut io::sink()).unwrap(), TEXT.0 - 10);
        let mut second = budget.meter(&[1u8; 10][..]);
        assert_eq!(io::copy(&mut second, &mut io::sink()).unwrap(), 10);
        assert!(!budget.exceeded());
        let error = io::copy(&mut budget.meter(&[1u8][..]), &mut io::sink()).unwrap_err().to_string();
        assert!(budget.exceeded() && error.contains("a file of 0 bytes"), "{error}");
    }

    #[test]
    fn large_files_are_bounded_too() {
        assert_eq!(Budget::arrays(1 << 20).left(), (64 << 20) + (64 << 20));
        assert_eq!(Budget::arrays(1 << 40).left(), (1 << 40) + LARGE);
        assert_eq!(Budget::arrays(u64::MAX).left(), u64::MAX);
    }
}
