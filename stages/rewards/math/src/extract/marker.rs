//! Markers before answers: `####`, `<answer>`, `Answer:`, `A:`.

use super::super::units;
use super::{Candidate, Content};

/// Returns the contents of the last `<answer>` tag, and the rest of the line after the last occurrence of each other marker.
pub(super) fn marked(text: &str, priority: i32) -> Vec<Candidate> {
    let mut found: Vec<Candidate> = Vec::new();
    found.extend(tagged(text, priority));
    found.extend(after(text, "####", priority));
    for marker in ["answer:", "Answer:", "ANSWER:", "A:"] {
        found.extend(after(text, marker, priority));
    }
    found
}

fn tagged(text: &str, priority: i32) -> Option<Candidate> {
    let begin = text.rfind("<answer>")? + "<answer>".len();
    let end = begin + text[begin..].find("</answer>")?;
    let content = Content::Line(text[begin..end].to_owned());
    Some(Candidate { priority, span: (begin, end), content })
}

/// Returns the rest of the line after the last occurrence of a marker, without surrounding blanks and asterisks and without final periods.
/// A bracket before a single character is also removed. Returns `None` if the marker does not occur, if nothing remains, or if a letter, a
/// digit or a backslash precedes the marker.
fn after(text: &str, marker: &str, priority: i32) -> Option<Candidate> {
    let at = text.rfind(marker)?;
    let glued = text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '\\');
    let begin = at + marker.len();
    let line = text[begin..].lines().next()?;
    let content = line.trim().trim_matches('*').trim().trim_end_matches('.');
    let content = content.strip_prefix(['(', '[']).filter(|_| content.len() < 3).unwrap_or(content);
    let taken = !(glued || content.is_empty());
    let span = (begin, begin + line.len());
    taken.then(|| Candidate { priority, span, content: Content::Line(content.to_owned()) })
}

/// Returns `true` if a line has a digit, `\`, `$` or `=`, and also words that are not part of the mathematics. Such a line contains an
/// answer, but is not an answer.
pub(super) fn is_sentence(line: &str) -> bool {
    let bare = without_commands(line);
    let words: Vec<&str> =
        bare.split(|c: char| !c.is_alphabetic()).filter(|word| word.chars().count() > 2).collect();
    let known = |word: &&str| {
        let lower = word.to_lowercase();
        // Capital letters name points, as in `\angle ABC`.
        let points = word.len() <= 5 && word.chars().all(char::is_uppercase);
        points || units::is_unit(&lower) || KNOWN.contains(&lower.as_str())
    };
    let symbols = line.contains(|c: char| c.is_ascii_digit() || "\\$=".contains(c));
    symbols && words.iter().any(|word| !known(word))
}

/// Words of more than two letters that are part of the mathematics.
const KNOWN: &[&str] = &[
    "and",
    "sin",
    "cos",
    "tan",
    "cot",
    "sec",
    "csc",
    "log",
    "exp",
    "sqrt",
    "max",
    "min",
    "mod",
    "gcd",
    "lcm",
    "arcsin",
    "arccos",
    "arctan",
    "sinh",
    "cosh",
    "tanh",
    "percent",
    "pct",
    "inf",
    "infinity",
    "percentage",
];

/// Returns the text without commands and without the contents of text commands.
fn without_commands(line: &str) -> String {
    let mut bare = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find('\\') {
        bare.push_str(&rest[..at]);
        bare.push(' ');
        let after = &rest[at + 1..];
        let name = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
        let words = after[..name].starts_with("text")
            || ["begin", "end", "mbox", "operatorname", "color"].contains(&&after[..name]);
        let skipped = if words { after[name..].find('}').unwrap_or(0) } else { 0 };
        rest = &after[name + skipped..];
        if name == 0 {
            let mut characters = rest.chars();
            characters.next();
            rest = characters.as_str();
        }
    }
    bare.push_str(rest);
    bare
}
