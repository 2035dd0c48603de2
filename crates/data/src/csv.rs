//! Tables of numbers as text: one row per line, separated by commas, semicolons or blanks, with or without a header.

use std::io::Read;
use std::path::Path;

use crate::error::{DataError, Place, Result};
use crate::source::{self, Source};

/// A line is at most this long: read whole, it is what decides how much memory a table takes before it is understood.
const MAX_LINE: u64 = 1 << 24;
/// A header has at most this many names: the pixels of an image of 1024 x 1024.
const MAX_NAMES: usize = (1 << 20) + 1;

/// A table of numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Table {
    /// Column names if the first line is not numeric.
    pub header: Option<Vec<String>>,
    /// Number of columns.
    pub columns: usize,
    /// The numbers, row by row.
    pub values: Vec<f64>,
}

impl Table {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.columns).unwrap_or(0)
    }

    /// Reads a table from a file (`.gz` or not).
    pub fn read(path: &Path) -> Result<Self> {
        Self::read_from(&mut source::open_text(path)?)
    }

    /// Reads a table from memory; `name` is used in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        Self::read_from(&mut Source::from_bytes(bytes, name))
    }

    fn read_from<R: Read>(source: &mut Source<R>) -> Result<Self> {
        let mut values = Vec::new();
        let (header, columns) = rows_of(source, |_, row| {
            values.extend_from_slice(row);
            Ok(())
        })?;
        Ok(Table { header, columns, values })
    }
}

/// Calls `visit` with the number (from 0) and the values of every row of a file, one after the other: neither the text
/// nor the table is ever in memory as a whole. Returns the number of columns.
pub(crate) fn for_each_row(path: &Path, visit: impl FnMut(usize, &[f64]) -> Result<()>) -> Result<usize> {
    rows_of(&mut source::open_text(path)?, visit).map(|(_, columns)| columns)
}

/// The same for anything that is read; returns the header and the number of columns.
fn rows_of<R: Read>(
    source: &mut Source<R>,
    mut visit: impl FnMut(usize, &[f64]) -> Result<()>,
) -> Result<(Option<Vec<String>>, usize)> {
    let name = source.name().to_owned();
    let error = |line: usize, problem: String| {
        DataError::malformed(
            &name,
            Place::Line(line as u64 + 1),
            problem,
            "every line needs the same number of numbers",
        )
    };
    let (mut header, mut columns, mut rows) = (None, 0, 0);
    let (mut buffer, mut row) = (Vec::new(), Vec::new());
    for number in 0.. {
        let Some(line) = source.line(&mut buffer, MAX_LINE)? else { break };
        let line = std::str::from_utf8(line).map_err(|_| error(number, "is not text".to_owned()))?;
        let line = if number == 0 { line.trim_start_matches('\u{feff}') } else { line };
        if line.trim().is_empty() {
            continue;
        }
        row.clear();
        let mut bad = None;
        for field in fields(line) {
            match field.parse::<f64>() {
                Ok(value) => row.push(value),
                Err(_) => {
                    bad = Some(field);
                    break;
                }
            }
        }
        if let Some(field) = bad {
            if rows == 0 && header.is_none() {
                if fields(line).nth(MAX_NAMES).is_some() {
                    return Err(error(number, format!("names more than {MAX_NAMES} columns")));
                }
                header = Some(fields(line).map(|f| f.trim_matches('"').to_owned()).collect());
                continue;
            }
            let shown: String = field.chars().take(40).collect();
            return Err(error(number, format!("'{shown}' is not a number")));
        }
        if rows == 0 {
            columns = row.len();
        } else if row.len() != columns {
            let problem = format!("has {} columns, the lines before have {columns}", row.len());
            return Err(error(number, problem));
        }
        visit(rows, &row)?;
        rows += 1;
    }
    Ok((header, columns))
}

/// The fields of a line. Commas or semicolons separate if there are any, else blanks.
pub(crate) fn fields(line: &str) -> impl Iterator<Item = &str> {
    let separated = line.contains([',', ';']);
    let pattern = move |c: char| if separated { c == ',' || c == ';' } else { c.is_whitespace() };
    line.split(pattern).map(str::trim).filter(move |f| separated || !f.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_separators_and_blank_lines() {
        for text in ["a,b\n1,2\n\n3,4\n", "a;b\r\n1; 2\r\n3;4", "a b\n1\t2\n3  4\n"] {
            let table = Table::from_bytes(text.as_bytes(), "t").unwrap();
            assert_eq!(table.header.as_deref(), Some(&["a".to_owned(), "b".to_owned()][..]));
            assert_eq!((table.columns, table.rows(), &table.values[..]), (2, 2, &[1., 2., 3., 4.][..]));
        }
    }

    #[test]
    fn errors_name_the_line() {
        let error = Table::from_bytes(b"1,2\n3,x\n", "t.csv").unwrap_err().to_string();
        assert!(error.contains("t.csv, line 2: 'x' is not a number"), "{error}");
        let error = Table::from_bytes(b"1,2\n3\n", "t.csv").unwrap_err().to_string();
        assert!(error.contains("line 2: has 1 columns"), "{error}");
        assert!(Table::from_bytes(b"1,2\n\xff\n", "t.csv").unwrap_err().to_string().contains("line 2"));
        assert_eq!(Table::from_bytes(b"", "t").unwrap().rows(), 0);
    }
}
