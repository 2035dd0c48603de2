//! A reader for the Python pickles of the Planetoid files: NumPy arrays, SciPy CSR matrices, dictionaries of lists.
//!
//! A pickle is a program for a small stack machine that can call any Python function. This reader runs only the
//! instructions that build those three kinds of data; a name other than the few below, or any other instruction, is
//! an error. Nothing is ever executed, and every instruction adds at most one value, so memory is bounded by the file.

use std::collections::HashMap;

use super::csr::Csr;
use crate::error::{DataError, Place, Result};
use crate::npy::{Dtype, NpyArray, to_c_order};
use crate::source::{Source, element_count};

/// What a pickle held.
#[derive(Debug, Clone, PartialEq)]
pub enum Pickled {
    /// A NumPy array of numbers.
    Array(NpyArray),
    /// A SciPy CSR matrix.
    Sparse(Csr),
    /// A dictionary from integers to lists of integers (a graph's neighbour lists).
    Lists(Vec<(usize, Vec<usize>)>),
}

/// Values a pickle may make. One byte can make one, and a value takes 40 bytes; the largest Planetoid file has 200 thousand.
const MAX_VALUES: usize = 1 << 22;

/// Reads one pickle; `name` is used in errors.
pub fn read(bytes: &[u8], name: &str) -> Result<Pickled> {
    let mut machine = Machine {
        bytes,
        at: 0,
        name,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
    };
    let result = machine.run()?;
    machine.extract(result)
}

/// Index into `Machine::values`; the memo and containers refer to values by it, as Python refers to objects.
type Id = usize;

enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// A byte string: offset and length in the file.
    Text(usize, usize),
    Tuple(Vec<Id>),
    List(Vec<Id>),
    Dict(Vec<(Id, Id)>),
    Name(Name),
    Dtype {
        name: (usize, usize),
        big_endian: bool,
    },
    /// A NumPy array: its state (version, shape, type, order, bytes) once it is known.
    Array(Option<Id>),
    /// A CSR matrix: its dictionary once it is known.
    Sparse(Option<Id>),
}

/// The only names a pickle may mention.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Name {
    CsrMatrix,
    Reconstruct,
    NdArray,
    NumpyDtype,
    DefaultDict,
    List,
}

fn known_name(module: &[u8], name: &[u8]) -> Option<Name> {
    match (module, name) {
        (b"scipy.sparse.csr" | b"scipy.sparse._csr", b"csr_matrix") => Some(Name::CsrMatrix),
        (b"numpy.core.multiarray" | b"numpy._core.multiarray", b"_reconstruct") => Some(Name::Reconstruct),
        (b"numpy", b"ndarray") => Some(Name::NdArray),
        (b"numpy", b"dtype") => Some(Name::NumpyDtype),
        (b"collections", b"defaultdict") => Some(Name::DefaultDict),
        (b"__builtin__" | b"builtins", b"list") => Some(Name::List),
        _ => None,
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    name: &'a str,
    values: Vec<Value>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<usize, Id>,
}

impl Machine<'_> {
    fn error(&self, problem: impl Into<String>) -> DataError {
        let remedy = "only the Planetoid files (NumPy arrays, CSR matrices, neighbour lists) are understood";
        DataError::malformed(self.name, Place::Byte(self.at as u64), problem, remedy)
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len());
        let Some(end) = end else {
            return Err(self.error(format!("the pickle ends, {count} more bytes wanted")));
        };
        let part = &self.bytes[self.at..end];
        self.at = end;
        Ok(part)
    }

    fn number<const N: usize>(&mut self) -> Result<usize> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(self.take(N)?);
        Ok(u64::from_le_bytes(wide) as usize)
    }

    fn line(&mut self) -> Result<(usize, usize)> {
        let start = self.at;
        match self.bytes[start..].iter().position(|&b| b == b'\n') {
            Some(length) => {
                self.at = start + length + 1;
                Ok((start, length))
            }
            None => Err(self.error("a name without an end")),
        }
    }

    fn push(&mut self, value: Value) {
        self.stack.push(self.values.len());
        self.values.push(value);
    }

    fn pop(&mut self) -> Result<Id> {
        // Nothing below the last mark belongs to the current expression.
        let floor = self.marks.last().copied().unwrap_or(0);
        if self.stack.len() <= floor {
            return Err(self.error("an instruction without operands"));
        }
        self.stack.pop().ok_or_else(|| self.error("an instruction without operands"))
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(|| self.error("a group without a beginning"))?;
        Ok(self.stack.split_off(mark.min(self.stack.len())))
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let start = self.at;
        self.take(length)?;
        self.push(Value::Text(start, length));
        Ok(())
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        let mut items = (0..count).map(|_| self.pop()).collect::<Result<Vec<Id>>>()?;
        items.reverse();
        self.push(Value::Tuple(items));
        Ok(())
    }

    fn memoise(&mut self, key: usize) -> Result<()> {
        let id = *self.stack.last().ok_or_else(|| self.error("nothing to remember"))?;
        self.memo.insert(key, id);
        Ok(())
    }

    fn recall(&mut self, key: usize) -> Result<()> {
        let id =
            *self.memo.get(&key).ok_or_else(|| self.error(format!("nothing was remembered as {key}")))?;
        self.stack.push(id);
        Ok(())
    }

    fn run(&mut self) -> Result<Id> {
        loop {
            if self.values.len() >= MAX_VALUES {
                return Err(self.error(format!("more than {MAX_VALUES} values")));
            }
            let instruction = self.take(1)?[0];
            match instruction {
                b'.' => return self.pop(),
                0x80 => drop(self.number::<1>()?),
                b'(' => self.marks.push(self.stack.len()),
                b'N' => self.push(Value::None),
                0x88 => self.push(Value::Bool(true)),
                0x89 => self.push(Value::Bool(false)),
                b'K' => {
                    let value = self.number::<1>()?;
                    self.push(Value::Int(value as i64));
                }
                b'M' => {
                    let value = self.number::<2>()?;
                    self.push(Value::Int(value as i64));
                }
                b'J' => {
                    let value = self.number::<4>()? as u32 as i32;
                    self.push(Value::Int(i64::from(value)));
                }
                b'U' => {
                    let length = self.number::<1>()?;
                    self.text(length)?;
                }
                b'T' | b'X' => {
                    let length = self.number::<4>()?;
                    self.text(length)?;
                }
                b'q' => {
                    let key = self.number::<1>()?;
                    self.memoise(key)?;
                }
                b'r' => {
                    let key = self.number::<4>()?;
                    self.memoise(key)?;
                }
                b'h' => {
                    let key = self.number::<1>()?;
                    self.recall(key)?;
                }
                b'j' => {
                    let key = self.number::<4>()?;
                    self.recall(key)?;
                }
                b')' => self.push(Value::Tuple(Vec::new())),
                0x85 => self.tuple(1)?,
                0x86 => self.tuple(2)?,
                0x87 => self.tuple(3)?,
                b't' => {
                    let items = self.pop_to_mark()?;
                    self.push(Value::Tuple(items));
                }
                b']' => self.push(Value::List(Vec::new())),
                b'}' => self.push(Value::Dict(Vec::new())),
                b'a' => {
                    let item = self.pop()?;
                    self.append(vec![item])?;
                }
                b'e' => {
                    let items = self.pop_to_mark()?;
                    self.append(items)?;
                }
                b's' => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set_items(&[key, value])?;
                }
                b'u' => {
                    let items = self.pop_to_mark()?;
                    self.set_items(&items)?;
                }
                b'c' => self.global()?,
                b'R' => self.reduce()?,
                0x81 => self.new_object()?,
                b'b' => self.build()?,
                other => {
                    return Err(
                        self.error(format!("the instruction 0x{other:02x}, which is not allowed here"))
                    );
                }
            }
        }
    }

    fn append(&mut self, items: Vec<Id>) -> Result<()> {
        let target = self.stack.last().copied();
        match target.map(|id| &mut self.values[id]) {
            Some(Value::List(list)) => list.extend(items),
            _ => return Err(self.error("items for something that is not a list")),
        }
        Ok(())
    }

    fn set_items(&mut self, items: &[Id]) -> Result<()> {
        let target = self.stack.last().copied();
        match target.map(|id| &mut self.values[id]) {
            Some(Value::Dict(pairs)) if items.len().is_multiple_of(2) => {
                pairs.extend(items.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            _ => Err(self.error("entries for something that is not a dictionary")),
        }
    }

    fn global(&mut self) -> Result<()> {
        let (module, name) = (self.line()?, self.line()?);
        let part = |(start, length): (usize, usize)| &self.bytes[start..start + length];
        match known_name(part(module), part(name)) {
            Some(known) => {
                self.push(Value::Name(known));
                Ok(())
            }
            None => {
                let shown = |at| String::from_utf8_lossy(part(at)).chars().take(60).collect::<String>();
                Err(self.error(format!("asks for {} {}, which is not allowed", shown(module), shown(name))))
            }
        }
    }

    fn callee(&self, id: Id) -> Option<Name> {
        match self.values[id] {
            Value::Name(name) => Some(name),
            _ => None,
        }
    }

    fn reduce(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Value::Tuple(arguments) = &self.values[arguments] else {
            return Err(self.error("a call without arguments"));
        };
        let first = arguments.first().map(|&id| &self.values[id]);
        let made = match (self.callee(function), first) {
            (Some(Name::Reconstruct), Some(Value::Name(Name::NdArray))) => Value::Array(None),
            (Some(Name::NumpyDtype), Some(&Value::Text(start, length))) => {
                Value::Dtype { name: (start, length), big_endian: false }
            }
            (Some(Name::DefaultDict), Some(Value::Name(Name::List))) => Value::Dict(Vec::new()),
            _ => return Err(self.error("a call that is not allowed")),
        };
        self.push(made);
        Ok(())
    }

    fn new_object(&mut self) -> Result<()> {
        let (_, class) = (self.pop()?, self.pop()?);
        if self.callee(class) != Some(Name::CsrMatrix) {
            return Err(self.error("a new object that is not a CSR matrix"));
        }
        self.push(Value::Sparse(None));
        Ok(())
    }

    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = *self.stack.last().ok_or_else(|| self.error("a state without an object"))?;
        // The second item of a type's state is its byte order.
        let big_endian = match &self.values[state] {
            Value::Tuple(items) => items.get(1).is_some_and(|&id| self.bytes_of(id) == Some(b">")),
            _ => false,
        };
        let is_tuple = matches!(self.values[state], Value::Tuple(_));
        let is_dict = matches!(self.values[state], Value::Dict(_));
        match &mut self.values[target] {
            Value::Dtype { big_endian: order, .. } if is_tuple => *order = big_endian,
            Value::Array(slot) if is_tuple => *slot = Some(state),
            Value::Sparse(slot) if is_dict => *slot = Some(state),
            _ => return Err(self.error("a state that does not belong to its object")),
        }
        Ok(())
    }

    fn bytes_of(&self, id: Id) -> Option<&[u8]> {
        match self.values[id] {
            Value::Text(start, length) => Some(&self.bytes[start..start + length]),
            _ => None,
        }
    }

    fn size(&self, id: Id) -> Result<usize> {
        match self.values[id] {
            Value::Int(value) => {
                usize::try_from(value).map_err(|_| self.error(format!("the size or index {value}")))
            }
            _ => Err(self.error("a size or index that is not a number")),
        }
    }

    fn sizes(&self, id: Id) -> Result<Vec<usize>> {
        match &self.values[id] {
            Value::Tuple(items) | Value::List(items) => items.iter().map(|&item| self.size(item)).collect(),
            _ => Err(self.error("a list of sizes is missing")),
        }
    }

    fn extract(&self, id: Id) -> Result<Pickled> {
        match &self.values[id] {
            Value::Array(Some(state)) => self.array(*state).map(Pickled::Array),
            Value::Sparse(Some(state)) => self.sparse(*state).map(Pickled::Sparse),
            Value::Dict(pairs) => {
                // A list that many keys share would be copied for each: count first.
                let mut total = 0usize;
                let mut lists = Vec::new();
                for &(key, list) in pairs {
                    let list = self.sizes(list)?;
                    total += list.len();
                    if total > self.bytes.len() {
                        return Err(self.error("lists that are longer than the file"));
                    }
                    lists.push((self.size(key)?, list));
                }
                Ok(Pickled::Lists(lists))
            }
            _ => Err(self.error("neither an array, nor a CSR matrix, nor neighbour lists")),
        }
    }

    fn array(&self, state: Id) -> Result<NpyArray> {
        let Value::Tuple(items) = &self.values[state] else {
            return Err(self.error("an array without a state"));
        };
        let &[_, shape, dtype, fortran, data] = &items[..] else {
            return Err(self.error(format!("an array state of {} items, 5 expected", items.len())));
        };
        let shape = self.sizes(shape)?;
        let Value::Dtype { name: (start, length), big_endian } = self.values[dtype] else {
            return Err(self.error("an array without a type"));
        };
        let order = if big_endian { '>' } else { '<' };
        let type_name = String::from_utf8_lossy(&self.bytes[start..start + length]);
        let Some(dtype) = Dtype::parse(&format!("{order}{type_name}")) else {
            return Err(self.error(format!(
                "an array of the type '{}'",
                type_name.chars().take(20).collect::<String>()
            )));
        };
        let Some(data) = self.bytes_of(data) else { return Err(self.error("an array without data")) };
        let mut source = Source::from_bytes(data, self.name);
        let elements = dtype.read(&mut source, element_count(&shape, self.name)?)?;
        source.expect_end()?;
        let fortran = matches!(self.values[fortran], Value::Bool(true)) && shape.len() > 1;
        NpyArray::new(shape.clone(), if fortran { to_c_order(elements, &shape) } else { elements })
    }

    fn sparse(&self, state: Id) -> Result<Csr> {
        let Value::Dict(pairs) = &self.values[state] else {
            return Err(self.error("a matrix without a state"));
        };
        let field = |name: &str| {
            let found = pairs.iter().find(|(key, _)| self.bytes_of(*key) == Some(name.as_bytes()));
            found.map(|&(_, value)| value).ok_or_else(|| self.error(format!("a matrix without '{name}'")))
        };
        let array = |name: &str| match self.values[field(name)?] {
            Value::Array(Some(state)) => self.array(state),
            _ => Err(self.error(format!("'{name}' of a matrix is not an array"))),
        };
        let &[rows, columns] = &self.sizes(field("_shape").or_else(|_| field("shape"))?)?[..] else {
            return Err(self.error("a matrix that has not two dimensions"));
        };
        Csr::from_arrays(self.name, rows, columns, &array("indptr")?, &array("indices")?, &array("data")?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::npy::NpyData;

    /// numpy.array([[1, 2], [3, 4]], dtype='>i2') as Python 2 pickles it with protocol 2.
    fn array_pickle(dtype_state: &[u8], data: &[u8]) -> Vec<u8> {
        let mut p = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87Rq\x03".to_vec();
        p.extend(b"(K\x01K\x02K\x02\x86cnumpy\ndtype\nq\x04U\x02i2K\x00K\x01\x87Rq\x05");
        p.extend(dtype_state);
        p.extend(b"\x89U");
        p.push(data.len() as u8);
        p.extend(data);
        p.extend(b"tb.");
        p
    }

    #[test]
    fn a_small_array() {
        let p = array_pickle(
            b"(K\x03U\x01>NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            &[0, 1, 0, 2, 0, 3, 0, 4],
        );
        let expected = NpyArray::new(vec![2, 2], NpyData::I16(vec![1, 2, 3, 4])).unwrap();
        assert_eq!(read(&p, "t").unwrap(), Pickled::Array(expected));
        for cut in 0..p.len() {
            assert!(read(&p[..cut], "t").is_err(), "cut at {cut}");
        }
    }

    #[test]
    fn neighbour_lists() {
        let p = b"\x80\x02ccollections\ndefaultdict\nq\x01c__builtin__\nlist\nq\x02\x85Rq\x03(K\x00]q\x04(K\x01K\x02eK\x01]q\x05K\x00au.";
        assert_eq!(read(p, "t").unwrap(), Pickled::Lists(vec![(0, vec![1, 2]), (1, vec![0])]));
    }

    #[test]
    fn nothing_else_is_called() {
        // os.system('echo') in protocols 0 and 2.
        for p in [&b"cos\nsystem\n(S'echo'\ntR."[..], b"\x80\x02cposix\nsystem\nU\x04echo\x85R."] {
            let error = read(p, "evil.pickle").unwrap_err().to_string();
            assert!(error.contains("evil.pickle") && error.contains("not allowed"), "{error}");
        }
    }

    #[test]
    fn shared_and_cyclic_lists_end() {
        // A list that contains itself, and one long list under many keys.
        assert!(read(b"\x80\x02]q\x01h\x01a.", "t").is_err());
        let mut p = b"\x80\x02}(K\x00](".to_vec();
        p.extend(b"K\x01".repeat(200));
        p.extend(b"eq\x01");
        p.extend(b"K\x02h\x01".repeat(200));
        p.extend(b"u.");
        assert!(read(&p, "t").unwrap_err().to_string().contains("longer than the file"));
    }
}
