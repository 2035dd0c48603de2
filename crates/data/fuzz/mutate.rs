//! Fuzzing on a stable compiler: seeded mutations of small seed files, thrown at every reader.
//!
//! Without coverage feedback, but with mutations made for these formats: flipped bits, extreme integers in either byte
//! order, pieces cut out, doubled, or taken from another seed, numbers in text replaced.

use std::io::{Cursor, Write};
use std::path::Path;

use rand::{RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use subdeq_data::graph::{Hypergraph, edge_list, parse_splits, pickle};
use subdeq_data::jxl_sheet::Sheet;
use subdeq_data::npy::NpyArray;
use subdeq_data::npz::Npz;
use subdeq_data::picture::Picture;
use subdeq_data::{archive, cifar, csv, idx, matlab};

/// Readers by the name of their seed folder.
pub const READERS: &[&str] = &[
    "npy",
    "npz",
    "idx",
    "cifar",
    "matlab",
    "csv",
    "jxl",
    "picture",
    "archive",
    "pickle",
    "hypergraph",
    "edge_list",
    "splits",
];

/// Runs one reader on some bytes; whether it accepted them does not matter, only that it returns.
/// `variant` chooses among ways to present them.
pub fn read(reader: &str, bytes: &[u8], variant: u64) -> bool {
    match reader {
        "npy" => NpyArray::from_bytes(bytes, "fuzz").is_ok(),
        "npz" => Npz::from_bytes(bytes, "fuzz").is_ok(),
        // Now and then (it is slow) behind a valid compression, so that the parser behind it is reached.
        "idx" if variant.is_multiple_of(32) => idx::from_bytes(&gzip(bytes), "fuzz").is_ok(),
        "idx" => idx::from_bytes(bytes, "fuzz").is_ok(),
        "cifar" => cifar::from_bytes(bytes, "fuzz").is_ok(),
        "matlab" => matlab::from_bytes(bytes, "fuzz").is_ok(),
        "csv" => csv::Table::from_bytes(bytes, "fuzz").is_ok(),
        "jxl" => Sheet::from_bytes(bytes, "fuzz").is_ok_and(|s| s.cut(8, 2, "fuzz", &mut Vec::new()).is_ok()),
        "picture" => Picture::from_bytes(bytes, "fuzz").is_ok(),
        "archive" => {
            let name = ["f.tar", "f.tar.gz", "f.tar.xz", "f.zip"][variant as usize % 4];
            archive::for_each_in(Cursor::new(bytes), name, |_| true, |_, _| Ok(())).is_ok()
        }
        "pickle" => pickle::read(bytes, "fuzz").is_ok(),
        "hypergraph" => {
            let parsed = Hypergraph::parse(&String::from_utf8_lossy(bytes), 5, "fuzz");
            parsed.is_ok_and(|h| h.clique_pairs("fuzz").is_ok())
        }
        "edge_list" => edge_list::parse(&String::from_utf8_lossy(bytes), "fuzz").is_ok(),
        "splits" => parse_splits(&String::from_utf8_lossy(bytes), 5, "fuzz").is_ok(),
        other => panic!("no reader '{other}'; there are {READERS:?}"),
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).expect("writing to memory");
    encoder.finish().expect("writing to memory")
}

/// The seed files of a reader.
pub fn seeds(corpus: &Path, reader: &str) -> Vec<Vec<u8>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(corpus.join(reader)).expect("seed folder").flatten().map(|e| e.path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("seed file")).collect()
}

/// A source of mutated inputs.
pub struct Mutator {
    random: ChaCha8Rng,
    seeds: Vec<Vec<u8>>,
}

const EXTREMES: [u64; 14] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    u64::MAX / 2,
    u64::MAX,
];
const WORDS: [&str; 10] =
    ["-1", "0", "4294967296", "18446744073709551615", "1e309", "nan", ",", "\n", "(", "'"];

impl Mutator {
    pub fn new(seed: u64, seeds: Vec<Vec<u8>>) -> Self {
        Mutator { random: ChaCha8Rng::seed_from_u64(seed), seeds }
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.random.next_u64() % bound.max(1) as u64) as usize
    }

    /// The next input and a number that chooses how it is presented.
    pub fn next(&mut self) -> (Vec<u8>, u64) {
        let choice = self.below(self.seeds.len());
        let mut bytes = self.seeds[choice].clone();
        for _ in 0..1 + self.below(4) {
            self.mutate(&mut bytes);
        }
        bytes.truncate(1 << 14);
        (bytes, self.random.next_u64())
    }

    pub fn mutate(&mut self, bytes: &mut Vec<u8>) {
        let at = self.below(bytes.len());
        let length = 1 + self.below(8);
        let end = (at + length).min(bytes.len());
        match self.below(9) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.random.next_u64() as u8,
            2 => {
                let value = EXTREMES[self.below(EXTREMES.len())];
                let width = [1, 2, 4, 8][self.below(4)];
                let mut word = value.to_le_bytes()[..width].to_vec();
                if self.below(2) == 0 {
                    word.reverse();
                }
                let stop = (at + width).min(bytes.len());
                bytes.splice(at..stop, word);
            }
            3 => drop(bytes.drain(at..end)),
            4 => bytes.truncate(at),
            5 => {
                let piece = bytes[at..end].to_vec();
                let times = 1 + self.below(20);
                bytes.splice(at..at, piece.repeat(times));
            }
            6 => {
                let other = self.below(self.seeds.len());
                let from = self.below(self.seeds[other].len());
                let to = (from + 1 + self.below(64)).min(self.seeds[other].len());
                let piece = self.seeds[other][from..to].to_vec();
                bytes.splice(at..end, piece);
            }
            7 => {
                let word = WORDS[self.below(WORDS.len())];
                bytes.splice(at..end, word.bytes());
            }
            _ => {
                let fill = (0..length).map(|_| self.random.next_u64() as u8).collect::<Vec<u8>>();
                bytes.splice(at..at, fill);
            }
        }
    }
}
