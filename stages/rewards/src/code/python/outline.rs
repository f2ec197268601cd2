//! The names that a piece of Python defines and uses, and its effects, as far as its tokens show them.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{Statement, Token, statements};
use super::names::Names;

const KEYWORDS: [&str; 37] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "case", "class",
    "continue", "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if",
    "import", "in", "is", "lambda", "match", "nonlocal", "not", "or", "pass", "raise", "return",
    "try", "while", "with", "yield",
];

/// Headers of statements that do nothing themselves apart from running their bodies.
const BRANCHES: [&str; 6] = ["if", "elif", "else", "try", "except", "finally"];

/// The way in which a module binds a name, from the weakest to the strongest. If a name is bound several times, the strongest way counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Binding {
    /// An assignment.
    Value,
    Import,
    /// A function that does nothing: its body is only a docstring, `pass` or `...`.
    Stub,
    /// A function or a class.
    Definition,
}

/// The names that a piece of Python defines and uses, and its effects.
#[derive(Debug, Default)]
pub(in super::super) struct Outline<'a> {
    /// The names of the module, each with the strongest way in which it is bound.
    pub(in super::super) module: BTreeMap<&'a str, Binding>,
    /// The names that are used and not bound, including those of Python's builtins.
    pub(in super::super) free: BTreeSet<&'a str>,
    /// `true` if the code reads its standard input.
    pub(in super::super) reads: bool,
    /// `true` if loading the code does more than define names.
    pub(in super::super) acts: bool,
    /// `true` if the code is only valid within a function: its first statement is indented, or it returns outside of a function.
    pub(in super::super) is_body: bool,
}

impl<'a> Outline<'a> {
    /// Builds the outline of a text, which need not be valid Python.
    pub(in super::super) fn of(text: &'a str) -> Self {
        let statements = statements(text);
        let mut outline = Self::default();
        let mut names = Names::default();
        // The indentation of the function or class that contains the statement.
        let mut within: Option<usize> = None;
        for (number, statement) in statements.iter().enumerate() {
            within = within.filter(|outer| statement.indent > *outer);
            names.read(statement);
            outline.reads |= reads(statement);
            if within.is_none() {
                outline.is_body |=
                    number == 0 && statement.indent > 0 || statement.begins_with("return");
                outline.acts |= acts(statement);
                let stub = || is_stub(statement, &statements[number + 1..]);
                bindings(statement, stub, |name, binding| outline.bind(name, binding));
                within = definition(statement).map(|_| statement.indent);
            }
        }
        outline.free = names.free();
        outline
    }

    fn bind(&mut self, name: &'a str, binding: Binding) {
        let known = self.module.entry(name).or_insert(binding);
        *known = binding.max(*known);
    }

    /// Returns `true` if the text contains code that could be part of a program.
    pub(in super::super) fn is_code(&self) -> bool {
        self.acts || self.is_body || !self.module.is_empty()
    }
}

/// Returns the names that an import such as `from solution import a, b` takes from `module`; empty for other statements.
pub(in super::super) fn imported_from<'a>(statement: &Statement<'a>, module: &str) -> Vec<&'a str> {
    match statement.words().as_slice() {
        [Token::Name("from"), Token::Name(from), Token::Name("import"), names @ ..]
            if *from == module =>
        {
            names
                .split(|token| *token == Token::Sign(","))
                .filter_map(|one| one.iter().find_map(|token| name_of(*token)))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Returns the attributes of a module that a statement uses: `a` in `solution.a`.
pub(in super::super) fn attributes_of<'a>(statement: &Statement<'a>, module: &str) -> Vec<&'a str> {
    let words = statement.words();
    let attribute = |three: &[Token<'a>]| match three {
        [Token::Name(of), Token::Sign("."), Token::Name(name)] if *of == module => Some(*name),
        _ => None,
    };
    words.windows(3).filter_map(attribute).collect()
}

impl<'a> Statement<'a> {
    pub(super) fn words(&self) -> Vec<Token<'a>> {
        self.tokens.iter().map(|(_, token)| *token).collect()
    }

    pub(super) fn begins_with(&self, name: &str) -> bool {
        matches!(self.tokens[0].1, Token::Name(first) if first == name)
    }

    /// Returns the targets of an assignment, as the tokens before each `=`; empty if the statement assigns nothing.
    fn assigned(&self) -> Vec<&[(usize, Token<'a>)]> {
        let mut depth = 0;
        let outside = |(_, token): &(usize, Token<'a>)| {
            depth = deepen(depth, *token);
            depth == 0 && *token == Token::Sign("=")
        };
        let mut targets: Vec<_> = self.tokens.split(outside).collect();
        targets.pop();
        let is_target = |part: &&[(usize, Token<'a>)]| {
            part.iter().all(|(_, token)| *token != Token::Name("lambda"))
        };
        targets.into_iter().take_while(is_target).collect()
    }
}

pub(super) fn deepen(depth: usize, token: Token<'_>) -> usize {
    match token {
        Token::Sign("(" | "[" | "{") => depth + 1,
        Token::Sign(")" | "]" | "}") => depth.saturating_sub(1),
        _ => depth,
    }
}

/// Returns the name of a token, or `None` if the token is not a name or is a keyword.
pub(super) fn name_of(token: Token<'_>) -> Option<&str> {
    match token {
        Token::Name(name) if !is_keyword(name) => Some(name),
        _ => None,
    }
}

pub(in super::super) fn is_keyword(name: &str) -> bool {
    // The soft keywords are common as names.
    KEYWORDS.contains(&name) && !matches!(name, "match" | "case")
}

/// Returns the name of the function or class that a statement defines; `None` for any other statement.
pub(super) fn definition<'a>(statement: &Statement<'a>) -> Option<&'a str> {
    let words: Vec<_> = statement.words().into_iter().take(3).collect();
    match words[..] {
        [Token::Name("def" | "class"), Token::Name(name), ..]
        | [Token::Name("async"), Token::Name("def"), Token::Name(name)] => Some(name),
        _ => None,
    }
}

/// Calls `bind` with each name that a statement binds in the module, and the way in which it is bound. `stub` is called for definitions and
/// returns `true` for a stub.
fn bindings<'a>(
    statement: &Statement<'a>,
    stub: impl Fn() -> bool,
    mut bind: impl FnMut(&'a str, Binding),
) {
    if let Some(name) = definition(statement) {
        return bind(name, if stub() { Binding::Stub } else { Binding::Definition });
    }
    if statement.begins_with("import") || statement.begins_with("from") {
        return imports(statement).for_each(|name| bind(name, Binding::Import));
    }
    targets(statement).for_each(|name| bind(name, Binding::Value));
}

/// Returns the names that an import binds.
pub(super) fn imports<'a>(statement: &Statement<'a>) -> impl Iterator<Item = &'a str> {
    let words = statement.words();
    let from =
        words.iter().position(|token| *token == Token::Name("import")).map_or(0, |at| at + 1);
    let names: Vec<_> = words[from..]
        .split(|token| *token == Token::Sign(","))
        .filter_map(|one| {
            let renamed = one.iter().position(|token| *token == Token::Name("as"));
            one[renamed.unwrap_or(0)..].iter().find_map(|token| name_of(*token))
        })
        .collect();
    names.into_iter()
}

/// Returns the names that a statement assigns to, without attributes and names within brackets.
pub(super) fn targets<'a>(statement: &Statement<'a>) -> impl Iterator<Item = &'a str> {
    let names = |target: &[(usize, Token<'a>)]| {
        let mut depth = 0;
        // An annotation follows the colon.
        let tokens =
            target.iter().map(|(_, token)| *token).take_while(|token| *token != Token::Sign(":"));
        let tokens: Vec<_> = tokens.collect();
        let is_part = |at: Option<usize>| {
            let token = at.and_then(|at| tokens.get(at));
            matches!(token, Some(Token::Sign("." | "[" | "(")))
        };
        let mut names = Vec::new();
        for (at, token) in tokens.iter().enumerate() {
            depth = deepen(depth, *token);
            if depth == 0 && !is_part(Some(at + 1)) && !is_part(at.checked_sub(1)) {
                names.extend(name_of(*token));
            }
        }
        names
    };
    statement.assigned().into_iter().flat_map(names).collect::<Vec<_>>().into_iter()
}

/// Returns `true` if `header` begins a function whose body consists only of docstrings, `pass` and `...`. `following` are the statements
/// after the header. Returns `false` for a class.
fn is_stub(header: &Statement<'_>, following: &[Statement<'_>]) -> bool {
    if header.begins_with("class") {
        return false;
    }
    let mut depth = 0;
    let colon = header.tokens.iter().position(|(_, token)| {
        depth = deepen(depth, *token);
        depth == 0 && *token == Token::Sign(":")
    });
    let Some(colon) = colon else { return false };
    let inline = &header.tokens[colon + 1..];
    let mut body = following.iter().take_while(|statement| statement.indent > header.indent);
    (inline.is_empty() || does_nothing(inline))
        && body.all(|statement| does_nothing(&statement.tokens))
}

fn does_nothing(tokens: &[(usize, Token<'_>)]) -> bool {
    matches!(tokens, [(_, Token::Text(_) | Token::Name("pass") | Token::Sign("..."))])
}

/// Returns `true` if a statement of a module does more than define names.
fn acts(statement: &Statement<'_>) -> bool {
    let ends_open = matches!(statement.tokens.last(), Some((_, Token::Sign(":"))));
    match statement.tokens[0].1 {
        Token::Name("def" | "class" | "async" | "import" | "from" | "pass") | Token::Sign("@") => {
            false
        }
        Token::Name(name) if BRANCHES.contains(&name) => !ends_open,
        Token::Text(_) => statement.tokens.len() > 1,
        Token::Foreign(_) => false,
        _ => statement.tokens.len() > 1 && statement.assigned().is_empty(),
    }
}

fn reads(statement: &Statement<'_>) -> bool {
    let tokens = &statement.tokens;
    tokens.iter().enumerate().any(|(at, (_, token))| match token {
        Token::Name("input" | "raw_input" | "stdin" | "fileinput") => true,
        Token::Name("open") => {
            matches!(
                tokens.get(at + 1..at + 3),
                Some([(_, Token::Sign("(")), (_, Token::Number("0"))])
            )
        }
        Token::Text(text) => text.contains("/dev/stdin"),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn module(text: &str, expected: &[(&str, Binding)]) {
        let found: Vec<_> = Outline::of(text).module.into_iter().collect();
        assert_eq!(found, expected, "{text}");
    }

    #[track_caller]
    fn free(text: &str, expected: &[&str]) {
        assert_eq!(Outline::of(text).free.into_iter().collect::<Vec<_>>(), expected, "{text}");
    }

    #[test]
    fn names_of_a_module() {
        use Binding::{Definition, Import, Stub, Value};
        module("def f(a):\n    b = a\n    return b", &[("f", Definition)]);
        module("async def f (a): pass", &[("f", Stub)]);
        module(
            "def f[T](a):\n  '''doc'''\n  ...\nclass C: pass",
            &[("C", Definition), ("f", Stub)],
        );
        module(
            "f = lambda a=1: a\na.b = c[d] = 3\nx: int = 4\np, q = 1, 2",
            &[("f", Value), ("p", Value), ("q", Value), ("x", Value)],
        );
        module(
            "import a.b as c, d.e\nfrom f import (g,\n  h as i)",
            &[("c", Import), ("d", Import), ("g", Import), ("i", Import)],
        );
        module(
            "try:\n    import numpy as np\nexcept ImportError:\n    np = None",
            &[("np", Import)],
        );
        module("f == 3\nprint(f)\n'''\ndef g(): 1\n'''", &[]);
    }

    #[test]
    fn names_from_elsewhere() {
        free("def f(a, *b, c=d):\n    return [g(x, key=a) for x in b] + h.i", &["d", "g", "h"]);
        free("import os\nx = os.sep\nprint(lambda y: y + z)", &["print", "z"]);
        free("with open(p) as q:\n    while (n := q.read()): n", &["open", "p"]);
    }

    #[test]
    fn reads_and_actions_of_a_text() {
        let does = |text| {
            let Outline { reads, acts, is_body, .. } = Outline::of(text);
            (reads, acts, is_body)
        };
        assert_eq!(does("n = int(input())\nprint(n)"), (true, true, false));
        assert_eq!(
            does("import sys\ndef main():\n    sys.stdin.read()\nif __name__ == 'x':\n    main()"),
            (true, true, false)
        );
        assert_eq!(does("def main():\n    print(open(0).read())"), (true, false, false));
        assert_eq!(does("    return a"), (false, true, true));
        assert_eq!(does("x = 1\nreturn x"), (false, true, true));
        assert_eq!(does("5\n"), (false, false, false));
    }

    #[test]
    fn imports_of_tests() {
        let text = "from solution import (a, b as c)\nfrom other import d";
        let found: Vec<_> =
            statements(text).iter().flat_map(|it| imported_from(it, "solution")).collect();
        assert_eq!(found, ["a", "b"]);
    }
}
