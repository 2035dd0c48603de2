//! Where the datasets are: `--data-dir`, else the environment variable `SUBDEQ_DATA`, else the usual places.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::{DataError, Result};

/// The environment variable that names the data folder.
pub const DATA_VARIABLE: &str = "SUBDEQ_DATA";

/// The folders to look in, best first: only the given one if one is given; else only `SUBDEQ_DATA` if that is set; else
/// `data`, `../shared/data` and the user's own data folder.
pub fn candidates(given: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = given {
        return vec![path.to_path_buf()];
    }
    if let Some(path) = env::var_os(DATA_VARIABLE).filter(|value| !value.is_empty()) {
        return vec![path.into()];
    }
    let mut places = vec![PathBuf::from("data"), PathBuf::from("../shared/data")];
    places.extend(user_folder());
    places
}

/// The folder that downloads go to: the given one, `SUBDEQ_DATA`, or the user's own data folder.
pub fn download_folder(given: Option<&Path>) -> Result<PathBuf> {
    let named = given.map(Path::to_path_buf).or_else(|| env::var_os(DATA_VARIABLE).map(PathBuf::from));
    named.filter(|path| !path.as_os_str().is_empty()).or_else(user_folder).ok_or_else(|| {
        DataError::request("no home folder to keep data in", format!("use --data-dir or set {DATA_VARIABLE}"))
    })
}

fn user_folder() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = variable("XDG_DATA_HOME").or_else(|| Some(variable("HOME")?.join(".local/share")))?;
    Some(base.join("subdeq"))
}

/// The first of the candidate folders that has the sub-folder `name`.
pub(crate) fn find(name: &str, given: Option<&Path>) -> Result<PathBuf> {
    let searched: Vec<PathBuf> = candidates(given).iter().map(|root| root.join(name)).collect();
    if let Some(found) = searched.iter().find(|path| path.is_dir()) {
        return Ok(found.clone());
    }
    Err(DataError::Missing {
        what: format!("data set '{name}'"),
        searched,
        remedy: format!("say where with --data-dir or {DATA_VARIABLE}, or get it with `subdeq data fetch`"),
    })
}
