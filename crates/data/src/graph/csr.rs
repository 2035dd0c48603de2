//! Compressed sparse rows.

use crate::error::{DataError, Place, Result};
use crate::npy::{NpyArray, NpyData};
use crate::npz::Npz;

/// Columns that need no entries to be believed: models have weights for every column, used or not.
const SPARE_COLUMNS: usize = 1 << 16;

/// A sparse matrix by rows: row `i` has the columns `column_indices[row_ptr[i]..row_ptr[i + 1]]`.
///
/// ```
/// use subdeq_data::graph::Csr;
/// // [[0, 2], [3, 0]]
/// let m = Csr::from_parts("m", 2, 2, vec![0, 1, 2], vec![1, 0], vec![2.0, 3.0]).unwrap();
/// assert_eq!(m.row(1), (&[0][..], &[3.0][..]));
/// assert_eq!(m.transpose().row(0), (&[1][..], &[3.0][..]));
/// assert!(Csr::from_parts("column 2 of 2", 1, 2, vec![0, 1], vec![2], vec![1.0]).is_err());
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Csr {
    rows: usize,
    columns: usize,
    row_ptr: Vec<usize>,
    column_indices: Vec<u32>,
    values: Vec<f32>,
}

impl Csr {
    /// Checks that the parts fit together; `name` is used in errors. Rows need not be sorted.
    pub fn from_parts(
        name: &str,
        rows: usize,
        columns: usize,
        row_ptr: Vec<usize>,
        column_indices: Vec<u32>,
        values: Vec<f32>,
    ) -> Result<Self> {
        let wrong = |field: &str, problem: String| {
            DataError::malformed(
                name,
                Place::Field(field.to_owned()),
                problem,
                "save the matrix again (scipy.sparse.save_npz)",
            )
        };
        if row_ptr.len().checked_sub(1) != Some(rows) || row_ptr[0] != 0 {
            let problem =
                format!("{} row pointers for {rows} rows (one more needed, the first 0)", row_ptr.len());
            return Err(wrong("indptr", problem));
        }
        if let Some(i) = row_ptr.windows(2).position(|pair| pair[0] > pair[1]) {
            return Err(wrong("indptr", format!("row {i} ends before it starts")));
        }
        let nnz = row_ptr[rows];
        if column_indices.len() != nnz || values.len() != nnz {
            let problem =
                format!("{} columns and {} values for {nnz} entries", column_indices.len(), values.len());
            return Err(wrong("indices", problem));
        }
        if let Some(i) = column_indices.iter().position(|&c| c as usize >= columns) {
            return Err(wrong(
                "indices",
                format!("entry {i} is in column {}, there are {columns}", column_indices[i]),
            ));
        }
        if let Some(i) = values.iter().position(|v| !v.is_finite()) {
            return Err(wrong("data", format!("entry {i} is {}", values[i])));
        }
        Ok(Csr { rows, columns, row_ptr, column_indices, values })
    }

    /// For parts that are right by construction.
    pub(crate) fn trusted(
        columns: usize,
        row_ptr: Vec<usize>,
        column_indices: Vec<u32>,
        values: Vec<f32>,
    ) -> Self {
        Csr { rows: row_ptr.len() - 1, columns, row_ptr, column_indices, values }
    }

    /// The identity: one-hot features for graphs that have none.
    pub fn identity(size: usize) -> Self {
        Self::trusted(size, (0..=size).collect(), (0..size as u32).collect(), vec![1.0; size])
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The number of stored entries.
    pub fn nnz(&self) -> usize {
        self.values.len()
    }

    /// Where each row starts, and the end.
    pub fn row_ptr(&self) -> &[usize] {
        &self.row_ptr
    }

    /// The column of each entry.
    pub fn column_indices(&self) -> &[u32] {
        &self.column_indices
    }

    /// The value of each entry.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Columns and values of row `i`.
    pub fn row(&self, i: usize) -> (&[u32], &[f32]) {
        let range = self.row_ptr[i]..self.row_ptr[i + 1];
        (&self.column_indices[range.clone()], &self.values[range])
    }

    /// Row pointers, columns and values, without a copy.
    pub fn into_parts(self) -> (Vec<usize>, Vec<u32>, Vec<f32>) {
        (self.row_ptr, self.column_indices, self.values)
    }

    /// The transposed matrix, each row sorted by column.
    pub fn transpose(&self) -> Csr {
        let mut row_ptr = vec![0; self.columns + 1];
        self.column_indices.iter().for_each(|&c| row_ptr[c as usize + 1] += 1);
        (0..self.columns).for_each(|c| row_ptr[c + 1] += row_ptr[c]);
        let mut next = row_ptr.clone();
        let mut columns = vec![0; self.nnz()];
        let mut values = vec![0.0; self.nnz()];
        for i in 0..self.rows {
            let (row_columns, row_values) = self.row(i);
            for (&c, &v) in row_columns.iter().zip(row_values) {
                let at = next[c as usize];
                (columns[at], values[at]) = (i as u32, v);
                next[c as usize] += 1;
            }
        }
        Self::trusted(self.rows, row_ptr, columns, values)
    }

    /// A CSR matrix as written by `scipy.sparse.save_npz`; the names may have a prefix (`adj_data`, ..).
    pub fn from_npz(npz: &Npz, prefix: &str, name: &str) -> Result<Self> {
        let array = |field: &str| npz.get(&format!("{prefix}{field}"));
        if prefix.is_empty() && npz.contains("format") {
            let format = npz.get("format")?.data();
            let csr = matches!(format, NpyData::Bytes { data, .. } if data.starts_with(b"csr"));
            if !csr {
                let shown = match format {
                    NpyData::Bytes { data, .. } => {
                        String::from_utf8_lossy(&data[..data.len().min(20)]).into_owned()
                    }
                    _ => npz.get("format")?.dtype(),
                };
                let problem = format!("the sparse format is '{shown}', not csr");
                return Err(DataError::malformed(
                    name,
                    Place::Field("format".into()),
                    problem,
                    "save matrix.tocsr()",
                ));
            }
        }
        let shape = array("shape")?.indices(name, &format!("{prefix}shape"))?;
        let &[rows, columns] = &shape[..] else {
            let problem = format!("{} sizes, two expected", shape.len());
            return Err(DataError::malformed(name, Place::Field("shape".into()), problem, "save a matrix"));
        };
        Self::from_arrays(name, rows, columns, array("indptr")?, array("indices")?, array("data")?)
    }

    pub(crate) fn from_arrays(
        name: &str,
        rows: usize,
        columns: usize,
        row_ptr: &NpyArray,
        column_indices: &NpyArray,
        values: &NpyArray,
    ) -> Result<Self> {
        // An index too large for u32 is out of range in any case; the check in `from_parts` then reports it.
        let indices = column_indices
            .indices(name, "indices")?
            .into_iter()
            .map(|c| u32::try_from(c).unwrap_or(u32::MAX))
            .collect();
        if u32::try_from(columns).is_err() || u32::try_from(rows).is_err() {
            let problem = format!("{rows} x {columns} is too large");
            return Err(DataError::malformed(
                name,
                Place::Field("shape".into()),
                problem,
                "at most 2^32 - 1 rows and columns",
            ));
        }
        let row_ptr = row_ptr.indices(name, "indptr")?;
        let matrix = Self::from_parts(name, rows, columns, row_ptr, indices, values.numbers(name, "data")?)?;
        matrix.require_plausible_columns(name)?;
        Ok(matrix)
    }

    /// Fails if there are far more columns than entries: the transposed matrix and the weights of a model are as large as
    /// the number of columns says, which is a single number in the file.
    pub(crate) fn require_plausible_columns(&self, name: &str) -> Result<()> {
        let most = SPARE_COLUMNS.saturating_add(self.rows).saturating_add(self.nnz());
        if self.columns > most {
            let problem = format!(
                "{} columns, but there are only {} rows with {} entries ({most} columns are the most)",
                self.columns,
                self.rows,
                self.nnz()
            );
            let remedy = "leave out the columns that are empty";
            return Err(DataError::malformed(name, Place::Field("shape".into()), problem, remedy));
        }
        Ok(())
    }

    /// A dense matrix (row by row) without its zeros.
    pub fn from_dense(name: &str, rows: usize, columns: usize, dense: &[f32]) -> Result<Self> {
        if columns == 0 || dense.len() != rows.saturating_mul(columns) {
            return Err(DataError::request(
                format!("{name}: {} numbers for {rows} x {columns}", dense.len()),
                "give one number per row and column",
            ));
        }
        let (mut row_ptr, mut indices, mut values) = (vec![0], Vec::new(), Vec::new());
        for i in 0..rows {
            let row = &dense[i * columns..(i + 1) * columns];
            for (c, &v) in row.iter().enumerate().filter(|(_, v)| **v != 0.0) {
                indices.push(c as u32);
                values.push(v);
            }
            row_ptr.push(indices.len());
        }
        Self::from_parts(name, rows, columns, row_ptr, indices, values)
    }
}
