//! Names that people mistype.

use std::fmt::Display;

use crate::failure::Failure;

/// How alike two names must be for one to be taken for the other (Jaro's measure, from 0 to 1), as clap has it.
const ALIKE: f64 = 0.7;

/// The known name that was probably meant.
pub fn meant<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let alike = known.iter().map(|&candidate| (strsim::jaro(name, candidate), candidate));
    let best = alike.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > ALIKE).then_some(best.1)
}

/// A complaint about a name, with the one that was probably meant.
pub fn unknown(complaint: impl Display, name: &str, known: &[&str]) -> Failure {
    match meant(name, known).filter(|_| !known.contains(&name)) {
        Some(other) => Failure::usage(format!("{complaint}. Did you mean `{other}`?")),
        None => Failure::usage(complaint),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_other_words_are_not() {
        let known = ["monotone", "split-sign", "mnist"];
        assert_eq!(meant("monoton", &known), Some("monotone"));
        assert_eq!(meant("splitsign", &known), Some("split-sign"));
        assert_eq!(meant("mnits", &known), Some("mnist"));
        assert_eq!(meant("xyz", &known), None);
        // A known name is complained about for another reason.
        assert_eq!(unknown("no", "monotone", &known).to_string(), "no");
    }
}
