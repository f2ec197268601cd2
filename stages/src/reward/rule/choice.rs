//! The letter of a choice, however it is wrapped: `B`, `(b)`, `\text{(B)}`, `$\mathbf{B}.$`, `**B)**`.

use std::sync::LazyLock;

use regex::Regex;

/// Commands of LaTeX that change how their argument looks, and not what it says.
const STYLES: &str = r"\\(?:text[a-z]*|math(?:rm|bf|it|sf|tt|cal|bb|scr|frak|normal)|boldsymbol|bm|mbox|hbox|fbox|boxed|operatorname|emph|underline|rm|bf)\s*";

/// What may enclose a letter, from the outside in; the contents are the only group that takes part.
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
    pairs.iter().map(|pair| valid(&format!(r"(?s)^{pair}$"))).collect()
});

/// A letter by itself, or marked as the label of what follows.
static LABEL: LazyLock<Regex> = LazyLock::new(|| valid(r"^([A-Za-z])(?:$|[)\]}.:,])"));

/// A styled label with a bracket or a stop at the start of a text.
static LABELLED: LazyLock<Regex> = LazyLock::new(|| {
    valid(&format!(
        r"^{STYLES}\{{\s*[(\[]?([A-Za-z])[)\].:]+\s*\}}(?:[\s~]|\\[\s,;:!]|\\q?quad\b)*"
    ))
});

/// Wrappers that are taken off, at most.
const MAX_WRAPPERS: usize = 8;

fn valid(pattern: &str) -> Regex {
    Regex::new(pattern).expect("invariant: a valid pattern")
}

/// The letter that a text is, in upper case, or the label that it begins with: `B`, `(b)`, `\text{(B)}`, `B) Paris`, `\textbf{(B)} 5`.
pub(super) fn letter(text: &str) -> Option<char> {
    let text = text.replace("\\left", "").replace("\\right", "").replace("\\ ", " ");
    let bare = unwrapped(&text);
    let label = |text: &str| LABEL.captures(text)?[1].chars().next();
    let found = label(bare).or_else(|| label(bare.strip_prefix(['(', '['])?));
    found
        .map(|letter| letter.to_ascii_uppercase())
        .or_else(|| labelled(bare).map(|(letter, _)| letter))
}

/// The letter that labels a choice in LaTeX, in upper case, and the choice: of `\textbf{(B)}\ 5`, `B` and `5`.
pub(super) fn labelled(text: &str) -> Option<(char, &str)> {
    let group = LABELLED.captures(text)?;
    let letter = group[1].chars().next()?.to_ascii_uppercase();
    let choice = &text[group[0].len()..];
    (!choice.is_empty()).then_some((letter, choice))
}

/// The text without what encloses it as a whole.
pub(super) fn unwrapped(text: &str) -> &str {
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

/// Without blanks, and without the stop behind a wrapper.
fn trimmed(text: &str) -> &str {
    let text = text.trim();
    let before = text.trim_end_matches(['.', ',', ';', '!']).trim_end();
    if before.ends_with(['}', ')', ']', '$', '*']) { before } else { text }
}

/// Whether every bracket of the wrapper's kind that opens within closes, none before it opens: otherwise the outer two are no pair.
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
    fn a_letter_is_read_out_of_any_wrapper() {
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
            assert_eq!(letter(text), Some('B'), "{text:?}");
        }
    }

    #[test]
    fn a_label_in_latex_is_told_from_its_choice() {
        assert_eq!(labelled(r"\textbf{(C)}\ 5"), Some(('C', "5")));
        assert_eq!(labelled(r"\textbf{(c) } \frac12"), Some(('C', r"\frac12")));
        for text in [r"\textbf{(C)}", r"\text{C}5", r"(C) 5", r"\text{(CD)} 5"] {
            assert_eq!(labelled(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_no_letter_is_none() {
        for text in [
            "",
            "Paris",
            "BC",
            "(BC)",
            "9",
            r"\text{even}",
            "a b",
            r"\text{A} or \text{B}",
            r"\text{B}5",
            "()",
            r"\text{}",
            "{{{{",
        ] {
            assert_eq!(letter(text), None, "{text:?}");
        }
    }
}
