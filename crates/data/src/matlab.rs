//! MATLAB v5 files (SVHN): numeric arrays, compressed or not; everything else in the file is skipped.

use std::io::Read;
use std::path::Path;

use flate2::read::ZlibDecoder;

use crate::budget::Budget;
use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::npy::{Dtype, NpyData};
use crate::source::{self, Source, element_count};

const MATRIX: u32 = 14;
const COMPRESSED: u32 = 15;
/// Bytes of text, version and byte-order mark in front of the first element.
const HEADER: usize = 128;
/// MATLAB has no limit, but no dataset has more axes or longer names.
const MAX_DIMS: usize = 32;
const MAX_NAME: usize = 1 << 12;

/// A numeric array, first axis fastest (MATLAB's order).
#[derive(Debug, Clone, PartialEq)]
pub struct MatArray {
    /// The variable's name.
    pub name: String,
    /// Length of each axis.
    pub dims: Vec<usize>,
    /// The values as stored, which may be a smaller type than the variable's class.
    pub data: NpyData,
}

/// Reads all numeric arrays of a MATLAB v5 file.
pub fn read(path: &Path) -> Result<Vec<MatArray>> {
    let length = path.metadata().map_err(DataError::io("open", path))?.len();
    read_from(source::open(path)?, length)
}

/// Reads all numeric arrays of a MATLAB v5 file in memory; `name` is used in errors.
pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Vec<MatArray>> {
    read_from(Source::from_bytes(bytes, name), bytes.len() as u64)
}

fn read_from<R: Read>(mut source: Source<R>, length: u64) -> Result<Vec<MatArray>> {
    // One budget for all variables, and for the file around them if that is compressed too.
    let budget = source.budget().cloned().unwrap_or_else(|| Budget::arrays(length));
    let header: [u8; HEADER] = source.array()?;
    let big_endian = match &header[126..] {
        b"IM" => false,
        b"MI" => true,
        _ => {
            let remedy = "save with MATLAB's option '-v7' (or '-v6'), not '-v7.3'";
            return Err(DataError::malformed(
                source.name(),
                Place::Byte(126),
                format!("not a MATLAB v5 file (byte-order mark {:02x?})", &header[126..]),
                remedy,
            ));
        }
    };
    let mut arrays = Vec::new();
    while !source.at_end()? {
        let kind = word(&mut source, big_endian)?;
        let size = word(&mut source, big_endian)?;
        match kind {
            COMPRESSED => {
                let compressed = source.bytes(size as usize, "a compressed variable")?;
                let decoder = ZlibDecoder::new(compressed.as_slice());
                let name =
                    format!("{}, compressed variable before byte {}", source.name(), source.position());
                let mut inner = Source::unpacked(decoder, &name, u64::MAX, &budget);
                let kind = word(&mut inner, big_endian)?;
                let size = word(&mut inner, big_endian)?;
                if kind == MATRIX {
                    arrays.extend(matrix(&mut inner, big_endian, u64::from(size))?);
                }
            }
            MATRIX => arrays.extend(matrix(&mut source, big_endian, u64::from(size))?),
            _ => source.skip(u64::from(size))?,
        }
    }
    Ok(arrays)
}

fn word<R: Read>(source: &mut Source<R>, big_endian: bool) -> Result<u32> {
    let bytes = source.array()?;
    Ok(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

/// The tag of an element inside a matrix: type, bytes of data, bytes of padding after it.
struct Tag {
    kind: u32,
    size: usize,
    padding: u64,
}

fn tag<R: Read>(source: &mut Source<R>, big_endian: bool) -> Result<Tag> {
    let first = word(source, big_endian)?;
    if first >> 16 != 0 {
        // Small format: size in the upper half, four bytes of data directly behind.
        let size = (first >> 16) as usize;
        if size > 4 {
            return Err(source.error(format!("a small element announces {size} bytes"), GET_AGAIN));
        }
        return Ok(Tag { kind: first & 0xffff, size, padding: 4 - size as u64 });
    }
    let size = word(source, big_endian)? as usize;
    Ok(Tag { kind: first, size, padding: (8 - size as u64 % 8) % 8 })
}

/// A matrix of `size` bytes whose tag has been read; `None` (and skipped) if it is not a plain numeric array.
fn matrix<R: Read>(source: &mut Source<R>, big_endian: bool, size: u64) -> Result<Option<MatArray>> {
    let end = source.position().saturating_add(size);
    let flags = tag(source, big_endian)?;
    if flags.size != 8 {
        return Err(source.error(format!("array flags of {} bytes (8 expected)", flags.size), GET_AGAIN));
    }
    let class_and_flags = word(source, big_endian)?;
    word(source, big_endian)?;
    let (class, complex) = (class_and_flags & 0xff, class_and_flags & 0x800 != 0);
    if !(6..=15).contains(&class) || complex {
        source.skip(end.saturating_sub(source.position()))?;
        return Ok(None);
    }
    let dims_tag = tag(source, big_endian)?;
    if dims_tag.size % 4 != 0 || dims_tag.size / 4 > MAX_DIMS {
        return Err(source.error(format!("dimensions of {} bytes", dims_tag.size), GET_AGAIN));
    }
    let mut dims = Vec::new();
    for _ in 0..dims_tag.size / 4 {
        dims.push(word(source, big_endian)? as usize);
    }
    source.skip(dims_tag.padding)?;
    let name_tag = tag(source, big_endian)?;
    if name_tag.size > MAX_NAME {
        return Err(source.error(format!("a variable name of {} bytes", name_tag.size), GET_AGAIN));
    }
    let name = source.bytes(name_tag.size, "a variable name")?;
    let name = String::from_utf8_lossy(&name).into_owned();
    source.skip(name_tag.padding)?;
    let data = numbers(source, big_endian, &dims, &name)?;
    Ok(Some(MatArray { name, dims, data }))
}

fn numbers<R: Read>(source: &mut Source<R>, big_endian: bool, dims: &[usize], name: &str) -> Result<NpyData> {
    let tag = tag(source, big_endian)?;
    let (dtype, width) = match tag.kind {
        1 => ("i1", 1),
        2 => ("u1", 1),
        3 => ("i2", 2),
        4 => ("u2", 2),
        5 => ("i4", 4),
        6 => ("u4", 4),
        7 => ("f4", 4),
        9 => ("f8", 8),
        12 => ("i8", 8),
        13 => ("u8", 8),
        other => {
            return Err(source.error(format!("variable {name} has the unknown data type {other}"), GET_AGAIN));
        }
    };
    let count = element_count(dims, source.name())?;
    if count.checked_mul(width) != Some(tag.size) {
        let problem = format!("variable {name} of size {dims:?} has {} bytes of data", tag.size);
        return Err(source.error(problem, GET_AGAIN));
    }
    let order = if big_endian { '>' } else { '<' };
    let dtype = Dtype::parse(&format!("{order}{dtype}"))
        .ok_or_else(|| source.error(format!("data type {dtype}"), GET_AGAIN))?;
    let data = dtype.read(source, count)?;
    // Some writers leave out the padding behind the last element.
    let padding = if source.at_end()? { 0 } else { tag.padding };
    source.skip(padding)?;
    Ok(data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn element(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(data);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes
    }

    fn variable(name: &str, dims: &[u32], data: &[u8]) -> Vec<u8> {
        let dims: Vec<u8> = dims.iter().flat_map(|d| d.to_le_bytes()).collect();
        let parts = [
            element(6, &[9, 0, 0, 0, 0, 0, 0, 0]),
            element(5, &dims),
            element(1, name.as_bytes()),
            element(2, data),
        ];
        element(MATRIX, &parts.concat())
    }

    fn file(elements: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = vec![b' '; 124];
        bytes.extend(*b"\x00\x01IM");
        bytes.extend(elements.concat());
        bytes
    }

    fn compressed(element: &[u8]) -> Vec<u8> {
        let mut z = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        z.write_all(element).unwrap();
        let data = z.finish().unwrap();
        // Compressed elements are not padded.
        [&COMPRESSED.to_le_bytes()[..], &(data.len() as u32).to_le_bytes(), &data].concat()
    }

    #[test]
    fn plain_and_compressed() {
        let x = variable("X", &[2, 3], &[1, 2, 3, 4, 5, 6]);
        let y = variable("y", &[3, 1], &[1, 2, 10]);
        let plain = from_bytes(&file(&[x.clone(), y.clone()]), "t").unwrap();
        let packed = from_bytes(&file(&[compressed(&x), compressed(&y)]), "t").unwrap();
        assert_eq!(plain, packed);
        assert_eq!(plain[0].dims, [2, 3]);
        assert_eq!((plain[1].name.as_str(), &plain[1].data), ("y", &NpyData::U8(vec![1, 2, 10])));
    }

    #[test]
    fn wrong_sizes_are_errors() {
        let error = from_bytes(&file(&[variable("X", &[2, 4], &[1; 6])]), "s.mat").unwrap_err().to_string();
        assert!(error.contains("s.mat") && error.contains("variable X of size [2, 4]"), "{error}");
        let good = file(&[variable("X", &[2, 3], &[1; 6])]);
        for cut in 1..good.len() - 2 {
            // A file cut right behind the header is an empty but legal one.
            assert!(cut == HEADER || from_bytes(&good[..cut], "t").is_err(), "cut at {cut}");
        }
    }
}
