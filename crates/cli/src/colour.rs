//! Colour for verdicts and outcomes, to be printed with `anstream`, which takes it away where there is no terminal or where
//! `NO_COLOR` asks for none.

use anstyle::{AnsiColor, Style};

const GOOD: Style = AnsiColor::Green.on_default().bold();
const BAD: Style = AnsiColor::Red.on_default().bold();
const DOUBTFUL: Style = AnsiColor::Yellow.on_default().bold();

/// What is as one wants it.
pub fn good(text: &str) -> String {
    format!("{GOOD}{text}{GOOD:#}")
}

/// What went wrong.
pub fn bad(text: &str) -> String {
    format!("{BAD}{text}{BAD:#}")
}

/// What nobody knows.
pub fn doubtful(text: &str) -> String {
    format!("{DOUBTFUL}{text}{DOUBTFUL:#}")
}

/// A certificate in words, the word that it begins with in its colour.
pub fn verdict(words: &str) -> String {
    let Some((word, rest)) = words.split_once(':') else { return words.to_owned() };
    let coloured = match word {
        "PROVEN" => good(word),
        "REFUTED" => bad(word),
        "UNPROVEN" => doubtful(word),
        _ => return words.to_owned(),
    };
    format!("{coloured}:{rest}")
}

/// The same as part of a list that is indented so far.
pub fn verdict_within(words: &str, indent: &str) -> String {
    verdict(words).replace('\n', &format!("\n{indent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_word_of_a_verdict_is_coloured() {
        let coloured = verdict("PROVEN: one: two");
        assert!(coloured.starts_with("\x1b[") && coloured.ends_with(": one: two"), "{coloured:?}");
        assert_eq!(anstream::adapter::strip_str(&coloured).to_string(), "PROVEN: one: two");
        assert_eq!(verdict("nothing: here"), "nothing: here");
    }
}
