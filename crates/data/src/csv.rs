//! Tables of numbers as text: one row per line, separated by commas, semicolons or blanks, with or without a header.

use std::path::Path;

use crate::error::{DataError, Place, Result};
use crate::source;

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
        let bytes = source::open(path)?.rest(u64::MAX - 1)?;
        Self::from_bytes(&bytes, &path.display().to_string())
    }

    /// Reads a table from memory; `name` is used in errors.
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self> {
        let error = |line: usize, problem: String| {
            DataError::malformed(
                name,
                Place::Line(line as u64 + 1),
                problem,
                "every line needs the same number of numbers",
            )
        };
        let text = std::str::from_utf8(bytes).map_err(|e| {
            let line = bytes[..e.valid_up_to()].iter().filter(|&&b| b == b'\n').count();
            error(line, "is not text".to_owned())
        })?;
        let mut table = Table { header: None, columns: 0, values: Vec::new() };
        for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            if line.trim().is_empty() {
                continue;
            }
            let before = table.values.len();
            let mut bad = None;
            for field in fields(line) {
                match field.parse::<f64>() {
                    Ok(value) => table.values.push(value),
                    Err(_) => {
                        bad = Some(field);
                        break;
                    }
                }
            }
            if let Some(field) = bad {
                if before == 0 && table.header.is_none() {
                    table.values.clear();
                    table.header = Some(fields(line).map(|f| f.trim_matches('"').to_owned()).collect());
                    continue;
                }
                let shown: String = field.chars().take(40).collect();
                return Err(error(number, format!("'{shown}' is not a number")));
            }
            let columns = table.values.len() - before;
            if before == 0 {
                table.columns = columns;
            } else if columns != table.columns {
                return Err(error(
                    number,
                    format!("has {columns} columns, the lines before have {}", table.columns),
                ));
            }
        }
        Ok(table)
    }
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
