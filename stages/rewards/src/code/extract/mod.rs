//! Extraction of the program from a response. Only this program is judged.
//!
//! Only the text after the thinking counts. If the last [fenced block](fence) in a configured language is not Python, it is the program.
//! Otherwise the program is chosen among the pieces that may be Python. In order of preference, these are the fenced blocks in a configured
//! language, the fenced blocks without a language, the [code between the blocks](prose), and the blocks in other languages. Blocks in other
//! languages are used only if they define a name that the tests use.
//!
//! If the tests use names, the program is the last piece of the highest preference that defines one of them: usage examples and expected
//! output define none, and a correction follows its draft. A function with a body is preferred to one without, such as that of the prompt.
//! For tests of standard input and output, the program is the last piece of the highest preference that reads its input and does something.
//!
//! If a piece uses names that it does not define, the pieces that define them are added, the nearest preceding ones first: imports and
//! helpers are often in blocks of their own. Nothing else is added, so that neither drafts nor examples run with the solution. If no piece
//! qualifies, a response without fences is the program as a whole, and a response with fences has none. A response has at most one program,
//! which is judged once.
//!
//! Architecture invariant: nothing here runs or compiles code. The choice depends only on the text of the response, the configured
//! languages and the names that the tests use.

mod choice;
mod fence;
mod prose;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use choice::{Piece, Rank};
use fence::Part;

use super::python::{Binding, Outline, attributes_of, imported_from, statements};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program<'a> {
    /// The language, by its name in the [`Fences`].
    pub(super) language: &'a str,
    /// The source code, possibly joined from several pieces of the response.
    pub(super) code: String,
}

/// The names that info strings use for each language, by the name of the language: `python`, or one of the sandbox's `languages`.
pub(super) type Fences = BTreeMap<String, Vec<String>>;

/// The definitions that the tests require of a solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A definition of at least one of these names.
    Names {
        names: BTreeSet<String>,
        /// `true` if the prompt has the beginning of the function, so that its body alone is accepted.
        or_body: bool,
    },
    /// A program that is run as a whole.
    Program,
}

impl Wanted {
    /// Returns the names that Python tests require. For each text, these are the names that it imports from `solution`, or else the
    /// attributes of `solution` that it uses and all names that it uses and does not bind.
    pub(super) fn of_tests(tests: &[String]) -> Self {
        let own = |names: Vec<&str>| names.into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
        let of_one = |test: &String| {
            let statements = statements(test);
            let imported =
                own(statements.iter().flat_map(|it| imported_from(it, "solution")).collect());
            if !imported.is_empty() {
                return imported;
            }
            let attributes = statements.iter().flat_map(|it| attributes_of(it, "solution"));
            own(attributes.chain(Outline::of(test).free).collect())
        };
        Self::Names { names: tests.iter().flat_map(of_one).collect(), or_body: false }
    }

    /// Requires one of these names.
    pub(super) fn names<const N: usize>(names: [&str; N], or_body: bool) -> Self {
        Self::Names { names: names.map(str::to_owned).into(), or_body }
    }
}

/// Returns the program of a response. If the last fenced block in one of the languages of `fences` is not Python, it is the program.
/// Otherwise the program is chosen among the pieces that may be Python. If no piece can be the program, a response without fences is
/// returned as a whole, and a response with fences has no program.
pub(super) fn extract<'a>(
    response: &str,
    fences: &'a Fences,
    wanted: &Wanted,
) -> Option<Program<'a>> {
    let text = response.rsplit_once("</think>").map_or(response, |(_, answer)| answer);
    let parts = fence::parts(text, &|info| language(info, fences).is_some());
    let last = parts.iter().rev().find_map(|part| match part {
        Part::Fenced { info, code } => Some((language(info, fences)?, code)),
        Part::Prose(_) => None,
    });
    if let Some((language, code)) = last.filter(|(language, _)| *language != "python") {
        return Some(Program { language, code: code.clone() });
    }
    let candidates: Vec<_> =
        parts.iter().flat_map(|part| candidates(part, fences, wanted)).collect();
    let has_foreign = candidates.iter().any(|(rank, _)| *rank == Rank::Foreign);
    let pieces: Vec<Piece<'_>> =
        candidates.iter().map(|(rank, code)| Piece::new(*rank, code, has_foreign)).collect();
    let has_fences = parts.iter().any(|part| matches!(part, Part::Fenced { .. }));
    let chosen = choice::choose(&pieces, wanted);
    let code = chosen.or_else(|| (!has_fences).then(|| text.to_owned()))?;
    Some(Program { language: "python", code })
}

/// Returns the pieces of a part that may be Python.
fn candidates<'p>(
    part: &'p Part<'_>,
    fences: &Fences,
    wanted: &Wanted,
) -> Vec<(Rank, Cow<'p, str>)> {
    let candidate = |rank, code: &'p str| {
        let dedented = dedented_definition(code, wanted);
        (rank, dedented.map_or(Cow::Borrowed(code), Cow::Owned))
    };
    match part {
        Part::Fenced { info, code } => {
            let rank = match language(info, fences) {
                Some(_) => Rank::Named,
                None if is_neutral(word(info)) => Rank::Unnamed,
                None => Rank::Foreign,
            };
            vec![candidate(rank, code)]
        }
        Part::Prose(text) => {
            prose::code_runs(text).into_iter().map(|run| candidate(Rank::Prose, run)).collect()
        }
    }
}

/// Returns the code without the indentation of its first line, if the first line is indented and the code then defines a wanted name. Such
/// a block is indented as a whole and is not a function body.
fn dedented_definition(code: &str, wanted: &Wanted) -> Option<String> {
    let Wanted::Names { names, .. } = wanted else { return None };
    let first = code.lines().find(|line| !line.trim().is_empty())?;
    let indent = &first[..first.len() - first.trim_start().len()];
    if indent.is_empty() {
        return None;
    }
    let lines = code
        .split_inclusive('\n')
        .map(|line| line.strip_prefix(indent).unwrap_or(line.trim_start_matches([' ', '\t'])));
    let dedented: String = lines.collect();
    let outline = Outline::of(&dedented);
    let defines =
        names.iter().any(|name| outline.module.get(name.as_str()) == Some(&Binding::Definition));
    (defines && !outline.is_body).then_some(dedented)
}

/// Returns the language of `fences` that an info string names.
fn language<'a>(info: &str, fences: &'a Fences) -> Option<&'a str> {
    let word = word(info);
    let extension = word.rsplit_once('.').map_or("", |(_, extension)| extension);
    // Covers `python3`, `python3.11` and `ipython`.
    let family = word
        .trim_end_matches(|it: char| it.is_ascii_digit() || it == '.')
        .trim_start_matches(['i', 'I']);
    let is = |name: &str| {
        !name.is_empty() && [word, extension].iter().any(|word| name.eq_ignore_ascii_case(word))
    };
    let is_python = |name: &str| {
        name == "python" && ["py", "python"].iter().any(|it| it.eq_ignore_ascii_case(family))
    };
    fences
        .iter()
        .find(|(name, names)| is(name) || is_python(name) || names.iter().any(|name| is(name)))
        .map(|(name, _)| name.as_str())
}

/// Returns the language of an info string, in the notations of common renderers: `python`, `{python}`, `{.python .numberLines}`,
/// `python title="x"`, `python:main.py`, `language-python`.
fn word(info: &str) -> &str {
    let info = info.trim_start_matches(['{', '.', ' ']);
    let ends = |it: char| {
        it.is_whitespace()
            || matches!(it, ',' | ';' | ':' | '=' | '|' | '{' | '}' | '(' | ')' | '[' | ']')
    };
    let word = info.split(ends).next().unwrap_or("");
    word.strip_prefix("language-").or_else(|| word.strip_prefix("lang-")).unwrap_or(word)
}

/// Returns `true` if the first word of an info string does not name a language.
fn is_neutral(word: &str) -> bool {
    const NEUTRAL: [&str; 9] =
        ["", "text", "txt", "plain", "plaintext", "code", "none", "solution", "answer"];
    NEUTRAL.iter().any(|it| it.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests;
