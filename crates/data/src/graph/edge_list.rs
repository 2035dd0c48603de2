//! Edge lists as text: two node ids per line, counted from 0; `#` and `%` start comments; further columns are ignored.

use crate::csv::fields;
use crate::error::{DataError, Place, Result};

/// Reads an edge list; ids are checked against the number of nodes when the matrix is built.
pub fn parse(text: &str, name: &str) -> Result<Vec<(u32, u32)>> {
    let mut edges = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split(['#', '%']).next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let mut ids = fields(line).map(|field| (field, field.parse::<u32>()));
        match (ids.next(), ids.next()) {
            (Some((_, Ok(a))), Some((_, Ok(b)))) => edges.push((a, b)),
            // Column names.
            (Some((_, Err(_))), Some((_, Err(_)))) if edges.is_empty() => {}
            _ => {
                let shown: String = line.chars().take(40).collect();
                let remedy = "write two node ids (from 0) per line";
                let problem = format!("'{shown}' is not an edge");
                return Err(DataError::malformed(name, Place::Line(number as u64 + 1), problem, remedy));
            }
        }
    }
    Ok(edges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_comments_and_errors() {
        let edges = parse("source,target\n# a comment\n0,1\n2 3 0.5\n4\t5 % end\n", "t").unwrap();
        assert_eq!(edges, [(0, 1), (2, 3), (4, 5)]);
        assert!(parse("0 1\n7\n", "e.txt").unwrap_err().to_string().contains("e.txt, line 2"));
        assert!(parse("0 1\n-1 2\n", "t").is_err());
        assert_eq!(parse("", "t").unwrap(), []);
    }
}
