//! Extraction of the contents of `\boxed{...}` and `\fbox{...}`.

use std::sync::LazyLock;

use regex::Regex;

use crate::regex;

/// Boxes that make up one answer, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Boxes(Vec<Boxed>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Boxed {
    /// The left-hand side before the box, without blanks: `y_1` for `y_1 = \boxed{2}`.
    name: Option<String>,
    content: String,
}

impl Boxes {
    /// Returns the boxes of a text, except for a box that repeats the next one and for all boxes before one without a closing brace.
    /// Returns `None` if there is no box.
    pub(crate) fn all(text: &str) -> Option<Self> {
        read(text, |_, _, _| true)
    }

    /// Returns the last box of a text together with the preceding boxes that are part of the same answer. Returns `None` if there is no
    /// box.
    pub(crate) fn last(text: &str) -> Option<Self> {
        read(text, belongs)
    }

    pub(crate) fn joined(all: Vec<Self>) -> Self {
        Self(all.into_iter().flat_map(|boxes| boxes.0).collect())
    }

    /// Returns the contents, separated by commas.
    pub(crate) fn bare(&self) -> String {
        let contents: Vec<&str> = self.0.iter().map(|boxed| boxed.content.as_str()).collect();
        contents.join(",")
    }

    /// Returns the boxes as equations separated by commas. Returns `None` if there are fewer than two boxes, or if their left-hand sides
    /// are missing or not all different.
    pub(crate) fn equations(&self) -> Option<String> {
        if self.0.len() < 2 {
            return None;
        }
        let equations: Option<Vec<String>> = self.0.iter().map(Boxed::equation).collect();
        let names: std::collections::BTreeSet<_> = self.0.iter().map(|boxed| &boxed.name).collect();
        (names.len() == self.0.len()).then_some(equations?.join(","))
    }
}

impl Boxed {
    fn equation(&self) -> Option<String> {
        self.name.as_ref().map(|name| format!("{name}={}", self.content))
    }

    /// Returns `true` if both have names that only differ in their subscripts or primes.
    fn is_sibling_of(&self, other: &Self) -> bool {
        let (Some(one), Some(other)) = (&self.name, &other.name) else { return false };
        let stem = |name: &str| name.chars().take_while(|c| !"_'".contains(*c)).collect::<String>();
        one != other && stem(one) == stem(other)
    }
}

/// A name and an equality sign directly before a box: `y_1 = `, `x_{12}&=`, `f^*(t) = `.
static NAME: LazyLock<Regex> = LazyLock::new(|| {
    let decorations = r"(?:_(?:\{[^{}]*\}|[A-Za-z0-9])|\^(?:\{[*'\\a-z]*\}|\*)|')*";
    let name = format!(r"\\?[A-Za-z]+{decorations}(?:\s*\([A-Za-z0-9, ]*\))?");
    regex(&format!(r"(?:^|[\s${{(,;&]|\\quad|\\\\)({name})\s*&?\s*=\s*$"))
});

/// The number of bytes before a box in which its name is searched.
const NAME_BYTES: usize = 60;

/// Returns the byte offset and the text of the name before the equality sign that ends a text. Returns `None` if there is no name or an
/// operator precedes it.
fn name_at_end(text: &str) -> Option<(usize, String)> {
    let mut from = text.len().saturating_sub(NAME_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    let name = NAME.captures(&text[from..])?.get(1)?;
    let before = text[..from + name.start()].trim_end();
    let is_operand = before.ends_with(['+', '-', '*', '/', '^', '=', '<', '>']);
    let name_text = name.as_str().chars().filter(|c| !c.is_whitespace()).collect();
    (!is_operand).then_some((from + name.start(), name_text))
}

/// Returns the byte offset of the first `\boxed{` of a text, or else of the first `\boxed`. If a name precedes the box, returns the offset
/// of the name. Returns `None` if there is no `\boxed`.
pub(crate) fn begin(text: &str) -> Option<usize> {
    let begin = text.find("\\boxed{").or_else(|| text.find("\\boxed"))?;
    Some(name_at_end(&text[..begin]).map_or(begin, |(begin, _)| begin))
}

/// The maximum number of boxes that [`contents`] examines. The bound limits the work, since each box may extend to the end of the text.
const MAX_BOXES: usize = 100;

/// Returns the contents of the last boxes of a text, from the last box to the first. Before each of them is its byte offset.
///
/// A box is `\boxed{...}` or `\fbox{...}`. Only the last 100 boxes are examined. Boxes that have no braces, lack the closing brace or
/// contain another box are left out.
///
/// ```
/// let boxes: Vec<_> = rollpacker_math::boxed(r"\boxed{\frac12} or \boxed{3}").collect();
/// assert_eq!(boxes, [(26, "3"), (7, r"\frac12")]);
/// ```
pub fn contents(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (begin, open) = last_command(rest)?;
        let content = braced(rest, open).map(|(content, _)| (open + 1, content));
        rest = &rest[..begin];
        Some(content)
    })
    .take(MAX_BOXES)
    .flatten()
}

/// Returns `true` if the first box of `next` continues the enumeration in the boxes of `formula`, as `y_2 = ...` continues `y_1 = ...`.
/// Returns `false` if the text `between` the formulas has at least 70 characters or contains a correction.
pub(crate) fn continue_enumeration(formula: &str, between: &str, next: &str) -> bool {
    let boxed = |formula: &str| formula.contains("\\boxed").then(|| Boxes::all(formula))?;
    let (Some(boxes), Some(next)) = (boxed(formula), boxed(next)) else { return false };
    let siblings = boxes.0.last().zip(next.0.first());
    siblings.is_some_and(|(last, first)| last.is_sibling_of(first)) && !is_apart(between)
}

/// Returns `true` if the text between two boxes has at least 70 characters or contains a correction.
fn is_apart(between: &str) -> bool {
    const CORRECTIONS: &[&str] = &[
        "no",
        "not",
        "wait",
        "wrong",
        "sorry",
        "oops",
        "actually",
        "instead",
        "rather",
        "incorrect",
        "correct",
    ];
    let mut words = between.split(|c: char| !c.is_alphanumeric());
    between.chars().take(100).count() >= 70
        || words.any(|word| CORRECTIONS.contains(&word.to_lowercase().as_str()))
}

/// Returns `true` if a box and the following box `next` are part of the same answer. This is so if fewer than 10 characters are between
/// them, if they continue an enumeration, or if their contents differ and a comma, a semicolon, `and` or `or` is between them. Returns
/// `false` if the text between them has at least 70 characters or contains a correction.
fn belongs(boxed: &Boxed, between: &str, next: &Boxed) -> bool {
    if is_apart(between) {
        return false;
    }
    let mut words = between.split(|c: char| !c.is_alphanumeric());
    let separated = between.contains([',', ';']) || words.any(|word| word == "and" || word == "or");
    let near = between.chars().take(10).count() < 10;
    near || boxed.is_sibling_of(next) || (boxed.content != next.content && separated)
}

/// Returns the last box of a text and the preceding boxes, in the order of the text. The first box from the end that does not belong to the
/// next box, and all boxes before it, are left out. A box with the same contents as the next box is also left out, unless both continue an
/// enumeration. If the last box has no closing brace, it extends to the end of the text and is returned alone. Any other box without a
/// closing brace is left out, together with all boxes before it. Returns `None` if there is no box.
fn read(text: &str, belongs: fn(&Boxed, &str, &Boxed) -> bool) -> Option<Boxes> {
    let mut boxes: Vec<Boxed> = Vec::new();
    let mut rest = text;
    while let Some((begin, open)) = last_command(rest) {
        let Some((content, end)) = braced(rest, open) else {
            if boxes.is_empty() {
                let content = rest[open..].trim_start_matches('{').to_owned();
                boxes.push(Boxed { name: None, content });
            }
            break;
        };
        let content = with_percent(content.trim(), &rest[end..]);
        let name = name_at_end(&rest[..begin]).map(|(_, name)| name);
        let boxed = Boxed { name, content };
        match boxes.last() {
            Some(next) if !belongs(&boxed, &rest[end..], next) => break,
            Some(next) if boxed.content == next.content && !boxed.is_sibling_of(next) => {}
            _ => boxes.push(boxed),
        }
        rest = &rest[..begin];
    }
    boxes.reverse();
    (!boxes.is_empty()).then_some(Boxes(boxes))
}

/// Returns the contents together with a percent sign that follows the box.
fn with_percent(content: &str, after: &str) -> String {
    let after = after.trim_start();
    let percent = after.starts_with('%') || after.starts_with("\\%");
    if percent { format!("{content}\\%") } else { content.to_owned() }
}

/// Returns the byte offsets of the last box and of its contents, or `None` if there is no box. A command at the end of the text has no
/// contents and is not a box.
fn last_command(text: &str) -> Option<(usize, usize)> {
    let mut text = text.trim_end();
    loop {
        let (boxed, framed) = (text.rfind("\\boxed"), text.rfind("\\fbox"));
        let begin = boxed.max(framed)?;
        let after = begin + if boxed == Some(begin) { "\\boxed".len() } else { "\\fbox".len() };
        let contents = text[after..].trim_start();
        if !contents.is_empty() {
            return Some((begin, text.len() - contents.len()));
        }
        text = text[..begin].trim_end();
    }
}

/// Returns the contents of the braces that open at `open`, and the offset after the closing brace. Returns `None` if there is no brace at
/// `open` or it is not closed.
fn braced(text: &str, open: usize) -> Option<(&str, usize)> {
    let mut depth = 0_usize;
    for (offset, byte) in text[open..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1)?,
            _ if depth == 0 => return None,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[open + 1..open + offset], open + offset + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> String {
        Boxes::all(text).map_or_else(|| text.to_owned(), |boxes| boxes.bare())
    }

    fn last(text: &str) -> String {
        Boxes::last(text).map_or_else(|| text.to_owned(), |boxes| boxes.bare())
    }

    #[test]
    fn adjacent_boxes_are_joined() {
        assert_eq!(last("\\boxed{1} and \\boxed{{2}}"), "1,{2}");
        assert_eq!(
            last(
                "\\boxed{1} was wrong, or so it seemed to all of us who had looked into it for long: \\boxed{2}"
            ),
            "2"
        );
        assert_eq!(last("\\boxed{3} so \\boxed{3}"), "3");
        assert_eq!(all("x = \\boxed{4}."), "4");
        assert_eq!(all("no box"), "no box");
        assert_eq!(last("\\boxed 7"), "7");
        assert_eq!(last("\\boxed{7"), "7");
        assert_eq!(last("\\boxed{7} and \\boxed"), "7");
        assert_eq!(all("\\boxed{7} \\%"), "7\\%");
    }

    #[test]
    fn names_are_kept_where_every_box_has_one() {
        let equations = |text| Boxes::last(text).and_then(|boxes| boxes.equations());
        let of = |text: &str| Some(text.to_owned());
        assert_eq!(equations("$y_1 = \\boxed{2}$ and $y_2 = \\boxed{2}$"), of("y_1=2,y_2=2"));
        assert_eq!(equations("$$y_1 = \\boxed{2}$$\n\n$$y_2 = \\boxed{3}$$"), of("y_1=2,y_2=3"));
        assert_eq!(
            equations("y_{1} &= \\boxed{2} \\\\ y_{2} &= \\boxed{3}"),
            of("y_{1}=2,y_{2}=3")
        );
        assert_eq!(equations("f(x) = \\boxed{2}, g(x) = \\boxed{3}"), of("f(x)=2,g(x)=3"));
        assert_eq!(equations("$x = \\boxed{2}$ or $x = \\boxed{3}$"), None);
        assert_eq!(equations("3 + y = \\boxed{2}, 2y = \\boxed{3}"), None);
        assert_eq!(last("$n = \\boxed{3}$\n\nso in total $m = \\boxed{12}$"), "12");
    }

    #[test]
    fn contents_come_from_the_last_box_to_the_first() {
        let found: Vec<_> = contents("\\boxed{1} \\boxed{2 \\fbox{{3}}").collect();
        assert_eq!(found, [(25, "{3}"), (7, "1")]);
        assert_eq!(contents(&"\\boxed".repeat(100_000)).count(), 0);
    }
}
