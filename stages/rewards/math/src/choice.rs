//! Labels of multiple-choice questions, within any markup: `B`, `(b)`, `\text{(2)}`, `$\mathbf{B}.$`, `**iv)**`.

use std::sync::LazyLock;

use regex::Regex;

use crate::regex;

/// LaTeX commands that only change the appearance of their argument.
const STYLES: &str = r"\\(?:text[a-z]*|math(?:rm|bf|it|sf|tt|cal|bb|scr|frak|normal)|boldsymbol|bm|mbox|hbox|fbox|boxed|operatorname|emph|underline|rm|bf)\s*";

/// Markup that may enclose a letter. The first matching pattern is removed, repeatedly; its only capture group is the contents.
static WRAPPERS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let pairs = [
        format!(r"(?:{STYLES})?\{{(.*)\}}"),
        r"\$+([^$]*)\$+".to_owned(),
        r"\\\((.*)\\\)".to_owned(),
        r"\\\[(.*)\\\]".to_owned(),
        r"\*+([^*]*)\*+".to_owned(),
        r"_+([^_]*)_+".to_owned(),
        r#"[`"'“‘](.*)[`"'”’]"#.to_owned(),
        r"\((.*)\)".to_owned(),
        r"\[(.*)\]".to_owned(),
        r"\\\{(.*)\\\}".to_owned(),
        r"<([^<>]*)>".to_owned(),
        format!(r"{STYLES}\s(.)"),
        r"(?i:option|choice|answer)\b\s*:?\s*(.*)".to_owned(),
    ];
    pairs.iter().map(|pair| regex(&format!(r"(?s)^{pair}$"))).collect()
});

/// A letter, or up to four of the letters `i`, `v` and `x`.
const LETTERS: &str = "[A-Za-z]|[ivxIVX]{1,4}";
/// A number of a choice.
const NUMBER: &str = "[0-9]{1,2}";

/// A label by itself, or before the text that it labels. `2.5` is no label.
static LABEL: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(
        r"^(?:(?<letters>{LETTERS})(?:$|[)\]}}.:,])|(?<number>{NUMBER})(?:$|[)\]}}]|[.:,](?:$|[^0-9])))"
    ))
});

/// A label in a style command at the start of a text, with the space that follows: `\textbf{(B)}\ `, `\text{2.}`. A closing bracket, a
/// period or a colon must follow the label.
static STYLED: LazyLock<Regex> = LazyLock::new(|| {
    regex(&format!(
        r"^{STYLES}\{{\s*[(\[]?({LETTERS}|{NUMBER})[)\].:]+\s*\}}(?:[\s~]|\\[\s,;:!]|\\q?quad\b)*"
    ))
});

const MAX_WRAPPERS: usize = 8;

/// Returns the label of a choice, as written, if the text is a label or begins with one: `B`, `(b)`, `\text{(iv)}`, `Option B`, `2. Paris`,
/// `\textbf{(B)}\ 5`. Brackets, quotes, emphasis and LaTeX styles around the label are removed.
///
/// A label is a letter, a number of at most two digits, or up to four of the letters `i`, `v` and `x` in either case, as in Roman numerals.
/// Before other text, it must be followed by a closing bracket, a period, a colon or a comma; after a number, a period, colon or comma must
/// not be followed by a digit. Returns `None` for any other text, such as `2.5` or `2 apples`.
///
/// ```
/// use rollpacker_math::choice::label;
///
/// assert_eq!(label(r"\textbf{(ii)}").as_deref(), Some("ii"));
/// assert_eq!(label("B) Paris").as_deref(), Some("B"));
/// assert_eq!(label("2.5"), None);
/// ```
#[must_use]
pub fn label(text: &str) -> Option<String> {
    let text = text.replace("\\left", "").replace("\\right", "").replace("\\ ", " ");
    let bare = unwrapped(&text);
    let label = |text: &str| {
        let found = LABEL.captures(text)?;
        Some(found.name("letters").or(found.name("number"))?.as_str().to_owned())
    };
    label(bare)
        .or_else(|| label(bare.strip_prefix(['(', '['])?))
        .or_else(|| styled(bare).map(|(label, _)| label.to_owned()))
}

/// Returns the letter, in upper case, that labels a choice in LaTeX, and the choice: `B` and `5` for `\textbf{(B)}\ 5`. Returns `None` if
/// there is no such letter or nothing follows it.
pub(crate) fn labelled(text: &str) -> Option<(char, &str)> {
    let (label, choice) = styled(text)?;
    let mut letters = label.chars();
    match (letters.next(), letters.next()) {
        (Some(letter), None) if letter.is_ascii_alphabetic() && !choice.is_empty() => {
            Some((letter.to_ascii_uppercase(), choice))
        }
        _ => None,
    }
}

/// Splits a text that begins with a label in a style command into the label and the text after it.
fn styled(text: &str) -> Option<(&str, &str)> {
    let found = STYLED.captures(text)?;
    let label = found.get(1)?.as_str();
    Some((label, &text[found[0].len()..]))
}

/// Returns the text without up to 8 layers of markup that enclose all of it. A word `option`, `choice` or `answer` before the text counts
/// as a layer. Surrounding blanks, and punctuation after a closing bracket, `$` or `*`, are also removed. Stops at a layer whose brackets
/// do not belong together, as in `(a) or (b)`.
#[must_use]
pub fn unwrapped(text: &str) -> &str {
    let mut text = trimmed(text);
    for _ in 0..MAX_WRAPPERS {
        let inside = WRAPPERS.iter().find_map(|wrapper| wrapper.captures(text)?.get(1));
        match inside.map(|inside| inside.as_str()).filter(|inside| is_balanced(inside, text)) {
            Some(inside) => text = trimmed(inside),
            None => break,
        }
    }
    text
}

/// Removes surrounding blanks, and the punctuation after a closing bracket, `$` or `*`.
fn trimmed(text: &str) -> &str {
    let text = text.trim();
    let before = text.trim_end_matches(['.', ',', ';', '!']).trim_end();
    if before.ends_with(['}', ')', ']', '$', '*']) { before } else { text }
}

/// Returns `true` if the brackets within a wrapper are balanced. Otherwise the outer two brackets are not a pair.
fn is_balanced(inside: &str, wrapper: &str) -> bool {
    let (open, close) = match wrapper.chars().next_back() {
        Some(')') => ('(', ')'),
        Some(']') => ('[', ']'),
        _ => ('{', '}'),
    };
    let mut depth = 0_usize;
    let closes = inside.chars().all(|c| {
        depth += usize::from(c == open);
        c != close || depth.checked_sub(1).map(|less| depth = less).is_some()
    });
    closes && depth == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_out_of_any_wrapper() {
        for text in [
            "B",
            " b ",
            "(B)",
            "[B]",
            "B.",
            "B)",
            "(B).",
            "{B}",
            "B) Paris",
            "B.5",
            "(b) Paris",
            r"\text{B}",
            r"\text{(B)}",
            r"\text{(B)}.",
            r"\text{ (B) }",
            r"\textbf{(B)}",
            r"\textrm{B.}",
            r"\mathrm{(B)}",
            r"\mathbf{B}",
            r"\mathbf B",
            r"(\text{B})",
            r"\left(\text{B}\right)",
            r"\boxed{\text{(B)}}",
            r"$\text{(B)}$",
            r"\(\text{B}\)",
            r"\[B\]",
            "**B**",
            "**(B)**",
            "`B`",
            "\"B\"",
            "“B”",
            r"\textbf{(B)}\ 5",
            r"\textbf{(B) } 5",
            r"\text{Option B}",
            "choice (b)",
            r"\text{B) Paris}",
            "<B>",
            r"\underline{B}",
        ] {
            let found = label(text).map(|label| label.to_uppercase());
            assert_eq!(found.as_deref(), Some("B"), "{text:?}");
        }
    }

    #[test]
    fn a_label_in_latex_is_separated_from_its_choice() {
        assert_eq!(labelled(r"\textbf{(C)}\ 5"), Some(('C', "5")));
        assert_eq!(labelled(r"\textbf{(c) } \frac12"), Some(('C', r"\frac12")));
        for text in [r"\textbf{(C)}", r"\text{C}5", r"(C) 5", r"\text{(CD)} 5"] {
            assert_eq!(labelled(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_label_may_be_a_number() {
        for (text, expected) in [
            ("2", "2"),
            ("(2)", "2"),
            ("2.", "2"),
            ("2) Paris", "2"),
            ("2. Paris", "2"),
            (r"\text{(2)}", "2"),
            (r"\textbf{(2)}\ 5", "2"),
            ("10", "10"),
            ("(iv)", "iv"),
            (r"$\text{(II)}$", "II"),
            ("Option 3", "3"),
            ("**4**", "4"),
            ("b", "b"),
        ] {
            assert_eq!(label(text).as_deref(), Some(expected), "{text:?}");
        }
    }

    #[test]
    fn other_text_has_no_label() {
        for text in [
            "2.5",
            "2,5",
            "2:30",
            "123",
            "2 apples",
            "-2",
            "2/3",
            "2x",
            "vivid",
            "",
            "Paris",
            "BC",
            "(BC)",
            r"\text{even}",
            "a b",
            r"\text{A} or \text{B}",
            r"\text{B}5",
            r"\text{2}5",
            "()",
            r"\text{}",
            "{{{{",
        ] {
            assert_eq!(label(text), None, "{text:?}");
        }
    }
}
