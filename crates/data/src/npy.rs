//! NumPy's `.npy` arrays, versions 1 to 3, C and Fortran order, either byte order.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use crate::error::{DataError, GET_AGAIN, Place, Result};
use crate::source::{self, Source, element_count};

const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Headers are a line of text; versions 2 and 3 allow 4 GiB, which no honest writer uses.
const MAX_HEADER: usize = 1 << 20;
/// NumPy's own limit.
const MAX_DIMS: usize = 64;

/// The elements of an array, in C (row-major) order.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum NpyData {
    /// 32-bit floating point.
    F32(Vec<f32>),
    /// 64-bit floating point.
    F64(Vec<f64>),
    /// Bytes; booleans are read as 0 and 1.
    U8(Vec<u8>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Unsigned 32-bit integers.
    U32(Vec<u32>),
    /// Unsigned 64-bit integers.
    U64(Vec<u64>),
    /// Signed bytes.
    I8(Vec<i8>),
    /// Signed 16-bit integers.
    I16(Vec<i16>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// Signed 64-bit integers.
    I64(Vec<i64>),
    /// Fixed-width byte strings (`S` types), `width` bytes each, padded with zeros.
    Bytes {
        /// Bytes per string.
        width: usize,
        /// The strings one after the other.
        data: Vec<u8>,
    },
}

/// Runs one expression for whichever numeric element type an [`NpyData`] holds; strings get the second one.
macro_rules! each_number {
    ($data:expr, $v:ident => $body:expr, $strings:expr) => {
        match $data {
            NpyData::F32($v) => $body,
            NpyData::F64($v) => $body,
            NpyData::U8($v) => $body,
            NpyData::U16($v) => $body,
            NpyData::U32($v) => $body,
            NpyData::U64($v) => $body,
            NpyData::I8($v) => $body,
            NpyData::I16($v) => $body,
            NpyData::I32($v) => $body,
            NpyData::I64($v) => $body,
            NpyData::Bytes { .. } => $strings,
        }
    };
}

/// An array with its shape.
///
/// ```
/// use subdeq_data::npy::{NpyArray, NpyData};
/// let a = NpyArray::new(vec![2, 3], NpyData::F32(vec![1., 2., 3., 4., 5., 6.])).unwrap();
/// let bytes = a.to_bytes();
/// let b = NpyArray::from_bytes(&bytes, "a.npy").unwrap();
/// assert_eq!(a, b);
/// assert_eq!(b.to_f64().unwrap()[5], 6.0);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NpyArray {
    shape: Vec<usize>,
    data: NpyData,
}

impl NpyArray {
    /// An array of the given shape; the number of elements must be the product of the shape.
    pub fn new(shape: Vec<usize>, data: NpyData) -> Result<Self> {
        let count = element_count(&shape, "array")?;
        let len = match &data {
            NpyData::Bytes { width: 0, .. } => count,
            NpyData::Bytes { width, data } if data.len() % width == 0 => data.len() / width,
            NpyData::Bytes { width, data } => {
                let problem = format!("{} bytes are not whole strings of {width}", data.len());
                return Err(DataError::request(problem, "pad every string to the width"));
            }
            numbers => each_number!(numbers, v => v.len(), 0),
        };
        if len != count {
            let problem = format!("{len} elements do not fill the shape {shape:?} ({count} elements)");
            return Err(DataError::request(problem, "give the shape that belongs to the data"));
        }
        Ok(NpyArray { shape, data })
    }

    /// The length of each axis; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements.
    pub fn data(&self) -> &NpyData {
        &self.data
    }

    /// The elements, without a copy.
    pub fn into_data(self) -> NpyData {
        self.data
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        // A zero first: (usize::MAX, 2, 0) is a legal shape whose partial product overflows.
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// NumPy's name of the element type, e.g. `<f4`.
    pub fn dtype(&self) -> String {
        dtype_of(&self.data)
    }

    /// All elements as `f64` (64-bit integers beyond 2^53 are rounded); strings are refused.
    #[allow(clippy::unnecessary_cast)] // one of the types of the macro is f64 itself
    pub fn to_f64(&self) -> Result<Vec<f64>> {
        each_number!(&self.data, v => Ok(v.iter().map(|&x| x as f64).collect()), Err(self.not_numbers()))
    }

    /// All elements as `f32`, rounded to nearest; strings are refused.
    #[allow(clippy::unnecessary_cast)] // one of the types of the macro is f32 itself
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        each_number!(&self.data, v => Ok(v.iter().map(|&x| x as f32).collect()), Err(self.not_numbers()))
    }

    /// All elements as indices; negative, fractional or too large ones are refused by position and value.
    pub fn to_usize(&self) -> Result<Vec<usize>> {
        fn convert<T: Copy + std::fmt::Display>(
            v: &[T],
            index: impl Fn(T) -> Option<usize>,
        ) -> Result<Vec<usize>> {
            let one = |(i, &x): (usize, &T)| {
                index(x).ok_or_else(|| {
                    DataError::request(
                        format!("element {i} is {x}, which is not an index"),
                        "indices must be integers >= 0",
                    )
                })
            };
            v.iter().enumerate().map(one).collect()
        }
        let whole = |x: f64| (x >= 0.0 && x.fract() == 0.0 && x <= 9e15).then_some(x as usize);
        match &self.data {
            NpyData::F32(v) => convert(v, |x| whole(f64::from(x))),
            NpyData::F64(v) => convert(v, whole),
            NpyData::U8(v) => convert(v, |x| Some(usize::from(x))),
            NpyData::U16(v) => convert(v, |x| Some(usize::from(x))),
            NpyData::U32(v) => convert(v, |x| usize::try_from(x).ok()),
            NpyData::U64(v) => convert(v, |x| usize::try_from(x).ok()),
            NpyData::I8(v) => convert(v, |x| usize::try_from(x).ok()),
            NpyData::I16(v) => convert(v, |x| usize::try_from(x).ok()),
            NpyData::I32(v) => convert(v, |x| usize::try_from(x).ok()),
            NpyData::I64(v) => convert(v, |x| usize::try_from(x).ok()),
            NpyData::Bytes { .. } => Err(self.not_numbers()),
        }
    }

    /// [`Self::to_usize`] for an array of a file: an error says in which file and under which name it is.
    pub(crate) fn indices(&self, file: &str, array: &str) -> Result<Vec<usize>> {
        self.to_usize().map_err(|error| located(error, file, array))
    }

    /// [`Self::to_f32`] in the same way.
    pub(crate) fn numbers(&self, file: &str, array: &str) -> Result<Vec<f32>> {
        self.to_f32().map_err(|error| located(error, file, array))
    }

    fn not_numbers(&self) -> DataError {
        let problem = format!("the array holds strings ({}), numbers were expected", self.dtype());
        DataError::request(problem, "give an array of numbers")
    }

    /// Reads an array from bytes; `name` is used in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        Self::read_from(&mut Source::from_bytes(bytes, name))
    }

    /// Reads a `.npy` file.
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_from(&mut source::open(path)?)
    }

    /// Reads one array and demands that nothing follows it.
    pub(crate) fn read_from<R: Read>(source: &mut Source<R>) -> Result<Self> {
        let header = Header::read(source)?;
        let count = element_count(&header.shape, source.name())?;
        let data = header.dtype.read(source, count)?;
        source.expect_end()?;
        let data = if header.fortran_order && header.shape.len() > 1 {
            to_c_order(data, &header.shape)
        } else {
            data
        };
        Ok(NpyArray { shape: header.shape, data })
    }

    /// The array as a `.npy` file, version 1, little-endian, C order.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = self.header();
        match &self.data {
            NpyData::Bytes { data, .. } => bytes.extend_from_slice(data),
            numbers => each_number!(numbers, v => v.iter().for_each(|x| bytes.extend(x.to_le_bytes())), ()),
        }
        bytes
    }

    /// Writes a `.npy` file.
    pub fn write(&self, path: &Path) -> Result<()> {
        let file = File::create(path).map_err(DataError::io("create", path))?;
        let mut writer = BufWriter::new(file);
        writer.write_all(&self.to_bytes()).and_then(|()| writer.flush()).map_err(DataError::io("write", path))
    }

    fn header(&self) -> Vec<u8> {
        let dims: Vec<String> = self.shape.iter().map(usize::to_string).collect();
        let comma = if dims.len() == 1 { "," } else { "" };
        let dict = format!(
            "{{'descr': '{}', 'fortran_order': False, 'shape': ({}{comma}), }}",
            self.dtype(),
            dims.join(", ")
        );
        // Version 1 has 10 bytes before the text; the data must start at a multiple of 64.
        let padding = (64 - (10 + dict.len() + 1) % 64) % 64;
        let length = dict.len() + padding + 1;
        let mut bytes = MAGIC.to_vec();
        bytes.extend([1, 0]);
        bytes.extend((length as u16).to_le_bytes());
        bytes.extend(dict.as_bytes());
        bytes.extend(std::iter::repeat_n(b' ', padding));
        bytes.push(b'\n');
        bytes
    }
}

/// The array's own complaint, which does not know where the array is from, with its place.
fn located(error: DataError, file: &str, array: &str) -> DataError {
    match error {
        DataError::Request { problem, remedy } => {
            DataError::malformed(file, Place::Field(array.to_owned()), problem, remedy)
        }
        other => other,
    }
}

fn dtype_of(data: &NpyData) -> String {
    match data {
        NpyData::F32(_) => "<f4".into(),
        NpyData::F64(_) => "<f8".into(),
        NpyData::U8(_) => "|u1".into(),
        NpyData::U16(_) => "<u2".into(),
        NpyData::U32(_) => "<u4".into(),
        NpyData::U64(_) => "<u8".into(),
        NpyData::I8(_) => "|i1".into(),
        NpyData::I16(_) => "<i2".into(),
        NpyData::I32(_) => "<i4".into(),
        NpyData::I64(_) => "<i8".into(),
        NpyData::Bytes { width, .. } => format!("|S{width}"),
    }
}

/// Element type and byte order.
pub(crate) struct Dtype {
    big_endian: bool,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    Bool,
    Float(usize),
    Signed(usize),
    Unsigned(usize),
    Bytes(usize),
}

impl Dtype {
    /// From NumPy's short name, e.g. `<f4`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (order, rest) = match text.as_bytes().first()? {
            b'<' | b'|' | b'=' => (false, &text[1..]),
            b'>' => (true, &text[1..]),
            _ => (false, text),
        };
        let letter = *rest.as_bytes().first()?;
        let width: usize = rest.get(1..)?.parse().ok()?;
        let kind = match (letter, width) {
            (b'b', 1) => Kind::Bool,
            (b'f', 4 | 8) => Kind::Float(width),
            (b'i', 1 | 2 | 4 | 8) => Kind::Signed(width),
            (b'u', 1 | 2 | 4 | 8) => Kind::Unsigned(width),
            (b'S' | b'a', _) => Kind::Bytes(width),
            _ => return None,
        };
        Some(Dtype { big_endian: order, kind })
    }

    pub(crate) fn read<R: Read>(&self, source: &mut Source<R>, count: usize) -> Result<NpyData> {
        // One closure per type: little- or big-endian bytes to a number.
        macro_rules! numbers {
            ($variant:ident, $type:ty) => {{
                let convert = if self.big_endian { <$type>::from_be_bytes } else { <$type>::from_le_bytes };
                Ok(NpyData::$variant(source.elements(count, "the array", convert)?))
            }};
        }
        match self.kind {
            Kind::Bool => {
                let bytes = source.elements(count, "the array", |[b]: [u8; 1]| b)?;
                match bytes.iter().position(|&b| b > 1) {
                    Some(i) => {
                        Err(source.error(format!("boolean {i} is {}, not 0 or 1", bytes[i]), GET_AGAIN))
                    }
                    None => Ok(NpyData::U8(bytes)),
                }
            }
            Kind::Float(4) => numbers!(F32, f32),
            Kind::Float(_) => numbers!(F64, f64),
            Kind::Signed(1) => numbers!(I8, i8),
            Kind::Signed(2) => numbers!(I16, i16),
            Kind::Signed(4) => numbers!(I32, i32),
            Kind::Signed(_) => numbers!(I64, i64),
            Kind::Unsigned(1) => numbers!(U8, u8),
            Kind::Unsigned(2) => numbers!(U16, u16),
            Kind::Unsigned(4) => numbers!(U32, u32),
            Kind::Unsigned(_) => numbers!(U64, u64),
            Kind::Bytes(0) if count > 0 => {
                // Nothing in the file would justify any number of them.
                Err(source.error(format!("{count} strings of no width"), "save an array of numbers"))
            }
            Kind::Bytes(width) => {
                let total = count.saturating_mul(width);
                Ok(NpyData::Bytes { width, data: source.bytes(total, "the array of strings")? })
            }
        }
    }
}

struct Header {
    dtype: Dtype,
    fortran_order: bool,
    shape: Vec<usize>,
}

impl Header {
    fn read<R: Read>(source: &mut Source<R>) -> Result<Self> {
        let magic: [u8; 6] = source.array()?;
        if &magic != MAGIC {
            let problem = format!("not a .npy file (starts with {magic:02x?})");
            return Err(source.error(problem, "save the array with numpy.save"));
        }
        let [major, minor] = source.array()?;
        let length = match major {
            1 => usize::from(u16::from_le_bytes(source.array()?)),
            2 | 3 => u32::from_le_bytes(source.array()?) as usize,
            _ => {
                let problem = format!("unknown .npy version {major}.{minor}");
                return Err(source.error(problem, "save the array with numpy.save"));
            }
        };
        if length > MAX_HEADER {
            return Err(source.error(format!("a header of {length} bytes is not plausible"), GET_AGAIN));
        }
        let text = source.bytes(length, "the header")?;
        let text = String::from_utf8_lossy(&text);
        Self::parse(&text).map_err(|(field, problem)| {
            let remedy = "save a plain numeric array (float32, float64, integers) with numpy.save";
            DataError::malformed(
                source.name(),
                Place::Field(format!("header field '{field}'")),
                problem,
                remedy,
            )
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, (&'static str, String)> {
        let descr = value_of(text, "descr").ok_or(("descr", "is missing".to_owned()))?;
        let name =
            quoted(descr).ok_or_else(|| ("descr", format!("is {}, not a plain type", shorten(descr))))?;
        let dtype =
            Dtype::parse(name).ok_or_else(|| ("descr", format!("element type '{}'", shorten(name))))?;
        let order = value_of(text, "fortran_order").ok_or(("fortran_order", "is missing".to_owned()))?;
        let fortran_order = if order.starts_with("True") {
            true
        } else if order.starts_with("False") {
            false
        } else {
            return Err(("fortran_order", format!("is {}, not True or False", shorten(order))));
        };
        let shape = value_of(text, "shape").ok_or(("shape", "is missing".to_owned()))?;
        let shape =
            tuple(shape).ok_or_else(|| ("shape", format!("is {}, not a tuple of sizes", shorten(shape))))?;
        Ok(Header { dtype, fortran_order, shape })
    }
}

fn shorten(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The text after `'key':` in a Python dictionary literal.
fn value_of<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let start = text.find(&format!("'{key}'")).or_else(|| text.find(&format!("\"{key}\"")))?;
    let rest = text[start + key.len() + 2..].trim_start();
    rest.strip_prefix(':').map(str::trim_start)
}

fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| *c == '\'' || *c == '"')?;
    text[1..].split_once(quote).map(|(inside, _)| inside)
}

fn tuple(text: &str) -> Option<Vec<usize>> {
    let (inside, _) = text.strip_prefix('(')?.split_once(')')?;
    let parts = inside.split(',').map(str::trim).filter(|p| !p.is_empty());
    // Python 2 wrote long integers with a trailing L.
    let sizes: Option<Vec<usize>> = parts.map(|p| p.trim_end_matches('L').parse().ok()).collect();
    sizes.filter(|s| s.len() <= MAX_DIMS)
}

/// Reorders elements from Fortran (first axis fastest) to C order (last axis fastest).
pub(crate) fn to_c_order(data: NpyData, shape: &[usize]) -> NpyData {
    fn reorder<T: Copy>(v: &[T], width: usize, shape: &[usize]) -> Vec<T> {
        // The strides of an empty array may overflow, and nothing has to be moved.
        if v.is_empty() {
            return Vec::new();
        }
        // Walk the result in C order and keep the Fortran position up to date, axis by axis like an odometer.
        let mut strides = vec![width; shape.len()];
        for axis in 1..shape.len() {
            strides[axis] = strides[axis - 1] * shape[axis - 1];
        }
        let mut index = vec![0; shape.len()];
        let mut position = 0;
        let mut out = Vec::with_capacity(v.len());
        while out.len() < v.len() {
            out.extend_from_slice(&v[position..position + width]);
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                position += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                position -= strides[axis] * shape[axis];
                index[axis] = 0;
            }
        }
        out
    }
    match data {
        NpyData::F32(v) => NpyData::F32(reorder(&v, 1, shape)),
        NpyData::F64(v) => NpyData::F64(reorder(&v, 1, shape)),
        NpyData::U8(v) => NpyData::U8(reorder(&v, 1, shape)),
        NpyData::U16(v) => NpyData::U16(reorder(&v, 1, shape)),
        NpyData::U32(v) => NpyData::U32(reorder(&v, 1, shape)),
        NpyData::U64(v) => NpyData::U64(reorder(&v, 1, shape)),
        NpyData::I8(v) => NpyData::I8(reorder(&v, 1, shape)),
        NpyData::I16(v) => NpyData::I16(reorder(&v, 1, shape)),
        NpyData::I32(v) => NpyData::I32(reorder(&v, 1, shape)),
        NpyData::I64(v) => NpyData::I64(reorder(&v, 1, shape)),
        NpyData::Bytes { width: 0, data } => NpyData::Bytes { width: 0, data },
        NpyData::Bytes { width, data } => NpyData::Bytes { width, data: reorder(&data, width, shape) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(version: u8, dict: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([version, 0]);
        if version == 1 {
            bytes.extend((dict.len() as u16).to_le_bytes());
        } else {
            bytes.extend((dict.len() as u32).to_le_bytes());
        }
        bytes.extend(dict.as_bytes());
        bytes.extend(data);
        bytes
    }

    #[test]
    fn reads_all_versions_and_both_byte_orders() {
        for version in 1..=3 {
            let dict = "{'descr': '>i2', 'fortran_order': False, 'shape': (3,), }\n";
            let array = NpyArray::from_bytes(&file(version, dict, &[0, 1, 255, 255, 1, 0]), "t").unwrap();
            assert_eq!(array.data(), &NpyData::I16(vec![1, -1, 256]));
        }
    }

    #[test]
    fn fortran_order_becomes_c_order() {
        // numpy.asfortranarray([[1, 2, 3], [4, 5, 6]])
        let dict = "{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }\n";
        let array = NpyArray::from_bytes(&file(1, dict, &[1, 4, 2, 5, 3, 6]), "t").unwrap();
        assert_eq!(array.data(), &NpyData::U8(vec![1, 2, 3, 4, 5, 6]));
    }

    #[test]
    fn three_axes_of_fortran_order() {
        let shape = [2, 3, 4];
        let fortran: Vec<i32> = {
            let mut v = vec![0; 24];
            for (i, j, k) in itertools(shape) {
                v[i + 2 * (j + 3 * k)] = (100 * i + 10 * j + k) as i32;
            }
            v
        };
        let c: Vec<i32> = itertools(shape).map(|(i, j, k)| (100 * i + 10 * j + k) as i32).collect();
        assert_eq!(to_c_order(NpyData::I32(fortran), &shape), NpyData::I32(c));
    }

    fn itertools([a, b, c]: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).map(move |k| (i, j, k))))
    }

    #[test]
    fn scalars_and_empty_arrays() {
        let dict = "{'descr': '|S3', 'fortran_order': False, 'shape': (), }";
        let array = NpyArray::from_bytes(&file(1, dict, b"csr"), "t").unwrap();
        assert_eq!(array.data(), &NpyData::Bytes { width: 3, data: b"csr".to_vec() });
        let dict = "{'descr': '<f4', 'fortran_order': True, 'shape': (0, 18446744073709551615), }";
        assert!(NpyArray::from_bytes(&file(1, dict, b""), "t").unwrap().is_empty());
        let dict = "{'descr': '<f4', 'fortran_order': True, 'shape': (9223372036854775808, 4, 0), }";
        assert!(NpyArray::from_bytes(&file(1, dict, b""), "t").unwrap().is_empty());
        let dict = "{'descr': '|S0', 'fortran_order': False, 'shape': (1000000000000,), }";
        assert!(NpyArray::from_bytes(&file(1, dict, b""), "t").is_err());
    }

    #[test]
    fn huge_shapes_fail_before_allocating() {
        for shape in ["(4000000000000,)", "(4294967295, 4294967295, 4294967295)", "(18446744073709551615,)"] {
            let dict = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
            let error = NpyArray::from_bytes(&file(1, &dict, &[0; 16]), "big.npy").unwrap_err();
            assert!(error.to_string().contains("big.npy"), "{error}");
        }
    }

    #[test]
    fn errors_name_field_and_remedy() {
        let dict = "{'descr': '<f2', 'fortran_order': False, 'shape': (1,), }";
        let error = NpyArray::from_bytes(&file(1, dict, &[0; 2]), "half.npy").unwrap_err().to_string();
        assert!(error.contains("half.npy") && error.contains("'descr'") && error.contains("<f2"), "{error}");
        assert!(error.contains("numpy.save"), "{error}");
    }

    #[test]
    fn trailing_and_missing_bytes_are_errors() {
        let bytes = NpyArray::new(vec![4], NpyData::F32(vec![0.5; 4])).unwrap().to_bytes();
        assert!(NpyArray::from_bytes(&bytes[..bytes.len() - 1], "t").is_err());
        let longer = [bytes.as_slice(), &[0]].concat();
        assert!(NpyArray::from_bytes(&longer, "t").is_err());
    }

    #[test]
    fn indices_must_be_whole_and_not_negative() {
        let array = NpyArray::new(vec![2], NpyData::I32(vec![3, -1])).unwrap();
        assert!(array.to_usize().unwrap_err().to_string().contains("element 1 is -1"));
        let array = NpyArray::new(vec![1], NpyData::F64(vec![0.5])).unwrap();
        assert!(array.to_usize().is_err());
    }

    proptest! {
        #[test]
        fn written_arrays_come_back(rows in 0usize..5, columns in 0usize..5, seed in any::<u64>()) {
            let data: Vec<f64> = (0..rows * columns).map(|i| f64::from_bits(seed ^ (i as u64) << 40)).collect();
            let array = NpyArray::new(vec![rows, columns], NpyData::F64(data)).unwrap();
            let bytes = array.to_bytes();
            // Compared as bytes, because NaN is not equal to itself.
            prop_assert_eq!(NpyArray::from_bytes(&bytes, "t").unwrap().to_bytes(), bytes);
        }
    }
}
