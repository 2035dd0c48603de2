//! What the first of several ranks knows and the others are told.

use serde::{Deserialize, Serialize};
use subdeq_ranks::Ranks;

use super::{Checkpoint, TensorFile};
use crate::{Error, Result};

/// What is told of a checkpoint before its numbers.
#[derive(Serialize, Deserialize)]
struct Announced {
    note: Checkpoint,
    /// Names and lengths of its arrays.
    arrays: Vec<(String, usize)>,
}

/// The checkpoint that the first rank has read, on every rank.
pub(super) fn told_checkpoint(
    ranks: &Ranks,
    read: Option<TensorFile<Checkpoint>>,
) -> Result<Option<TensorFile<Checkpoint>>> {
    if ranks.size() == 1 {
        return Ok(read);
    }
    let fault =
        |why: serde_json::Error| Error::Invalid(format!("the checkpoint cannot be told to the ranks: {why}"));
    let announced = read.as_ref().map(|TensorFile { note, tensors }| Announced {
        note: note.clone(),
        arrays: tensors.iter().map(|(name, data)| (name.clone(), data.len())).collect(),
    });
    let text = ranks.tell(&serde_json::to_string(&announced).map_err(fault)?)?;
    let Some(Announced { note, arrays }) = serde_json::from_str(&text).map_err(fault)? else {
        return Ok(None);
    };
    let mut tensors = match read {
        Some(file) => file.tensors,
        None => arrays.into_iter().map(|(name, len)| (name, vec![0.0; len])).collect(),
    };
    for (_, data) in &mut tensors {
        ranks.broadcast(data, 0)?;
    }
    Ok(Some(TensorFile { note, tensors }))
}
