//! IDX, the format of MNIST: big-endian arrays behind a four-byte type and a list of sizes; `.gz` or not.

use std::io::Read;
use std::path::Path;

use crate::error::{GET_AGAIN, Result};
use crate::npy::{Dtype, NpyArray};
use crate::source::{self, Source, element_count, maybe_gzip};

/// Reads an IDX file, compressed or not.
pub fn read(path: &Path) -> Result<NpyArray> {
    read_from(&mut source::open(path)?)
}

/// Reads IDX data from memory, compressed or not; `name` is used in errors.
pub fn from_bytes(bytes: &[u8], name: &str) -> Result<NpyArray> {
    read_from(&mut maybe_gzip(bytes, name))
}

fn read_from<R: Read>(source: &mut Source<R>) -> Result<NpyArray> {
    let [zero_a, zero_b, code, dims] = source.array()?;
    let dtype = match code {
        0x08 => "u1",
        0x09 => "i1",
        0x0b => ">i2",
        0x0c => ">i4",
        0x0d => ">f4",
        0x0e => ">f8",
        _ => "",
    };
    let dtype = match Dtype::parse(dtype) {
        Some(dtype) if zero_a == 0 && zero_b == 0 && dims > 0 => dtype,
        _ => {
            let problem = format!("not an IDX file (starts with {:02x?})", [zero_a, zero_b, code, dims]);
            return Err(source.error(problem, GET_AGAIN));
        }
    };
    let mut shape = Vec::with_capacity(usize::from(dims));
    for _ in 0..dims {
        shape.push(u32::from_be_bytes(source.array()?) as usize);
    }
    let count = element_count(&shape, source.name())?;
    let data = dtype.read(source, count)?;
    source.expect_end()?;
    NpyArray::new(shape, data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::NpyData;
    use std::io::Write;

    const SMALL: &[u8] = &[0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 6];

    #[test]
    fn plain_and_gzip() {
        let plain = from_bytes(SMALL, "t").unwrap();
        assert_eq!((plain.shape(), plain.data()), (&[2, 3][..], &NpyData::U8(vec![1, 2, 3, 4, 5, 6])));
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        gz.write_all(SMALL).unwrap();
        assert_eq!(from_bytes(&gz.finish().unwrap(), "t").unwrap(), plain);
    }

    #[test]
    fn every_cut_is_an_error() {
        for cut in 0..SMALL.len() {
            assert!(from_bytes(&SMALL[..cut], "t").is_err());
        }
        assert!(from_bytes(&[SMALL, &[7]].concat(), "t").is_err());
    }

    #[test]
    fn a_huge_announced_size_is_refused_at_once() {
        let error =
            from_bytes(&[0, 0, 8, 2, 255, 255, 255, 255, 255, 255, 255, 255, 1], "x.idx").unwrap_err();
        assert!(error.to_string().contains("x.idx, byte 12"), "{error}");
    }
}
