//! Left-hand sides that define or name a value and that the grammar of answers does not cover: `E(Y|X) = ...`, `P(X = 2) = ...`,
//! `T^*(x) = ...`, `\mathcal{L}\{f\}(s) = ...`.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::regex;

/// The maximum number of characters of a left-hand side.
const MAX_NAME: usize = 120;

/// A command of LaTeX, with its name as the first group.
static COMMAND: LazyLock<Regex> = LazyLock::new(|| regex(r"(?s)\\([A-Za-z]+|.)"));

/// The names of commands that do not change a name: sizes, fonts and spaces.
const IGNORED: [&str; 39] = [
    "left",
    "right",
    "middle",
    "big",
    "bigl",
    "bigr",
    "bigm",
    "Big",
    "Bigl",
    "Bigr",
    "Bigm",
    "bigg",
    "biggl",
    "biggr",
    "Bigg",
    "Biggl",
    "Biggr",
    "displaystyle",
    "operatorname",
    "mathbb",
    "mathrm",
    "mathcal",
    "mathbf",
    "mathsf",
    "mathit",
    "text",
    "textbf",
    "textit",
    "textrm",
    "mathop",
    "boldsymbol",
    "bm",
    "quad",
    "qquad",
    ",",
    ";",
    ":",
    "!",
    " ",
];

/// Splits an equation that names a value. Returns the left-hand side in a canonical spelling without styling commands, and the right-hand
/// side. Returns `None` for any other text, and for a left-hand side of more than [`MAX_NAME`] characters.
///
/// A name is a letter, a word or a command with its decorations, applied to something in brackets. A product such as `x(x + 1)` is not a
/// name.
pub(super) fn definition(text: &str) -> Option<(String, &str)> {
    let sign = equality_sign(text)?;
    let (name, value) = (text[..sign].trim_end_matches('&'), &text[sign + 1..]);
    let name = spelled(name);
    (name.chars().count() <= MAX_NAME && is_application(&name)).then_some((name, value))
}

/// Returns the byte offset of the first equality sign outside of brackets. Returns `None` if there is none, or if it is part of another
/// sign such as `<=`, `!=` or `:=`.
fn equality_sign(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    let mut before = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth -= 1,
            '=' if depth == 0 => return (!"<>!:\\".contains(before)).then_some(at),
            _ => {}
        }
        before = c;
    }
    None
}

/// Removes blanks, grouping braces, sizes such as `\left` and commands of fonts from a name. Makes all other brackets round, and replaces
/// commands such as `\mid` and `\prime` by their characters.
fn spelled(name: &str) -> String {
    let plain = COMMAND.replace_all(name, |command: &Captures<'_>| match &command[1] {
        "mid" | "vert" | "lvert" | "rvert" => "|".to_owned(),
        "ast" | "star" => "*".to_owned(),
        "prime" => "'".to_owned(),
        "{" => "(".to_owned(),
        "}" => ")".to_owned(),
        name if IGNORED.contains(&name) => String::new(),
        _ => command[0].to_owned(),
    });
    let same = plain.chars().filter(|c| !c.is_whitespace() && !"{}$~".contains(*c));
    same.map(|c| match c {
        '[' => '(',
        ']' => ')',
        c => c,
    })
    .collect()
}

/// Returns `true` if a canonical name is a function with decorations, applied once or several times.
fn is_application(name: &str) -> bool {
    let Some(open) = name.find('(') else { return false };
    let (head, arguments) = name.split_at(open);
    let letters: String = head.chars().filter(|c| c.is_alphabetic()).collect();
    let bare = head.replace("^-", "^").replace("^+", "^");
    let decorated = bare.chars().all(|c| c.is_alphanumeric() || "\\_^*'|".contains(c));
    let named = decorated && head.starts_with(|c: char| c.is_alphabetic() || c == '\\');
    named && !letters.is_empty() && closes_at_end(arguments) && !is_product(head, arguments)
}

/// Returns `true` if the text consists of bracketed groups, none of them empty, with only primes and stars between and after the groups.
fn closes_at_end(arguments: &str) -> bool {
    let mut depth = 0_i32;
    let fits = arguments.chars().all(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ if depth == 0 => return "'*".contains(c),
            _ => {}
        }
        depth >= 0
    });
    fits && depth == 0 && !arguments.contains("()")
}

/// Returns `true` if a letter before brackets is more likely a factor. This is so if the letter also occurs within the brackets, or if it
/// is lower-case, not `f`, `g` or `h`, and before an expression with an operator.
fn is_product(head: &str, arguments: &str) -> bool {
    let mut letters = head.chars();
    let (Some(letter), None) = (letters.next(), letters.next()) else { return false };
    let sum = arguments[1..].contains(['+', '-', '*', '/']);
    arguments.contains(letter) || (sum && letter.is_lowercase() && !"fgh".contains(letter))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, &str)>) {
        let found = definition(text);
        let found = found.as_ref().map(|(name, value)| (name.as_str(), value.trim()));
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn applications_are_names() {
        check("E(Y|X) = \\frac{X}{2}", Some(("E(Y|X)", "\\frac{X}{2}")));
        check("\\mathbb{E}[Y \\mid X] = X", Some(("E(Y|X)", "X")));
        check("\\mathbb{E}\\left[Y^2 | X = x\\right] = 2", Some(("E(Y^2|X=x)", "2")));
        check("T^*(x) = 3x", Some(("T^*(x)", "3x")));
        check("T^{*}(x) &= 3x", Some(("T^*(x)", "3x")));
        check("P(X = 2) = 0.3", Some(("P(X=2)", "0.3")));
        check("\\operatorname{Var}(X + Y) = 5", Some(("Var(X+Y)", "5")));
        check("f^{-1}(3) = 7", Some(("f^-1(3)", "7")));
        check("\\hat{f}(\\xi) = 1", Some(("\\hatf(\\xi)", "1")));
        check("\\mathcal{L}\\{f\\}(s) = \\frac1s", Some(("L(f)(s)", "\\frac1s")));
        check("\\mathbb{E}\\Bigl[X\\Bigr] = 2", Some(("E(X)", "2")));
        check("\\textbf{P}(A) = 1", Some(("P(A)", "1")));
        check("f'(0) = a = 4", Some(("f'(0)", "a = 4")));
        check("y(0) = 4", Some(("y(0)", "4")));
    }

    #[test]
    fn products_and_other_equations_are_not() {
        for text in [
            "x(x + 1) = 12",
            "N(N-1) = 20",
            "2x = 4",
            "x = 4",
            "(x+1)(x+2) = 0",
            "E(Y|X)",
            "a(b + c) = 4",
            "f(x) \\ge 2",
            "f(x) <= 2",
            "x^2 + f(x) = 2",
            "f() = 2",
            "f(x) + 1 = 2",
            "",
            "=",
            "(=",
        ] {
            check(text, None);
        }
    }
}
