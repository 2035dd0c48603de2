//! How many classes labels may stand for.
//!
//! The largest label decides the number of classes, and everything that has one row per class is as large as that: a
//! single wrong label would ask for gigabytes. Labels of real data count from 0 without large gaps, so a set of `n` labels
//! has at most `n` classes; below [`SMALL`] any number is believed, for a handful of samples out of a larger set.

use std::fmt::Display;

use crate::error::{DataError, Place, Result};

/// As many classes as this need no further reason (ImageNet has 1000).
pub(crate) const SMALL: usize = 1024;

const REMEDY: &str = "number the classes 0, 1, 2, .. without gaps";

/// The largest number of classes that `labels` labels justify.
pub(crate) fn limit(labels: usize) -> usize {
    labels.max(SMALL)
}

/// The labels as numbers of classes and the number of classes, if that is one that so many labels justify.
///
/// `array` names what holds the labels; `name` is the file.
pub(crate) fn checked<L>(
    name: &str,
    array: &str,
    labels: impl ExactSizeIterator<Item = L>,
) -> Result<(Vec<u32>, usize)>
where
    L: Copy + Display + TryInto<usize>,
{
    let (count, most) = (labels.len(), limit(labels.len()));
    let (mut numbers, mut classes) = (Vec::with_capacity(count), 0);
    for (i, label) in labels.enumerate() {
        let number = label.try_into().ok().filter(|&number| number < most);
        let Some((number, narrow)) = number.and_then(|number| Some((number, u32::try_from(number).ok()?)))
        else {
            let problem = format!(
                "label {i} is {label}, beyond the {most} classes that a set of this size can have (labels: {count})"
            );
            return Err(DataError::malformed(name, Place::Field(array.to_owned()), problem, REMEDY));
        };
        classes = classes.max(number + 1);
        numbers.push(narrow);
    }
    Ok((numbers, classes))
}

/// The labels as numbers of classes, if all are below `classes`.
pub(crate) fn below(name: &str, array: &str, classes: usize, labels: &[usize]) -> Result<Vec<u32>> {
    let number = |(i, &label): (usize, &usize)| {
        u32::try_from(label).ok().filter(|_| label < classes).ok_or_else(|| {
            let problem = format!("label {i} is {label}, but there are {classes} classes");
            DataError::malformed(name, Place::Field(array.to_owned()), problem, REMEDY)
        })
    };
    labels.iter().enumerate().map(number).collect()
}

/// Fails if a number of classes that a file announces is more than its labels justify.
pub(crate) fn believable(name: &str, array: &str, classes: usize, labels: usize) -> Result<()> {
    if classes > limit(labels) {
        let problem =
            format!("announces {classes} classes for {labels} labels, {} are the most", limit(labels));
        return Err(DataError::malformed(name, Place::Field(array.to_owned()), problem, REMEDY));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_labels_are_named_and_near_ones_believed() {
        let error = checked("a.npz", "y_train", [0usize, 4_294_967_295].into_iter()).unwrap_err().to_string();
        assert!(
            error.starts_with("a.npz, y_train: label 1 is 4294967295, beyond the 1024 classes"),
            "{error}"
        );
        assert_eq!(checked("a", "y", [0u32, 1023].into_iter()).unwrap(), (vec![0, 1023], 1024));
        assert!(checked("a", "y", [0u32, 1024].into_iter()).is_err());
        assert_eq!(checked("a", "y", 0..2000u32).unwrap().1, 2000);
        assert_eq!(
            checked("a", "y", std::iter::empty::<u32>().collect::<Vec<_>>().into_iter()).unwrap().1,
            0
        );
    }
}
