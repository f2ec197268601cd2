//! A lexer for Python that accepts any text. It splits a text into logical lines and tokens, and marks the tokens and brackets that cannot
//! be Python.
//!
//! It serves to choose among the blocks of a response, which may be prose, output or truncated code; the interpreter decides about the
//! chosen program. Time is linear in the length of the text and there is no recursion, since a response may be hostile.

/// A token. Comments and line breaks are not tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Token<'a> {
    /// A name or keyword.
    Name(&'a str),
    Number(&'a str),
    /// A string literal, including quotes and prefix.
    Text(&'a str),
    /// An operator, a delimiter or a bracket.
    Sign(&'a str),
    /// Anything that is not Python, such as `?` or an unterminated string.
    Foreign(&'a str),
}

/// A logical line: usually a simple statement or the header of a compound statement. It may hold several statements (`a = 1; b = 2`,
/// `if a: b()`) or text that is not Python.
#[derive(Debug)]
pub(in super::super) struct Statement<'a> {
    /// The byte offset where the first line begins.
    pub(in super::super) start: usize,
    /// The byte offset where the last line ends, line break included.
    pub(in super::super) end: usize,
    /// The number of columns before the first token. A tab advances to the next multiple of eight.
    pub(in super::super) indent: usize,
    /// The tokens of the statement, at least one, each with its byte offset.
    pub(in super::super) tokens: Vec<(usize, Token<'a>)>,
    /// `true` if a bracket has no partner in the statement.
    pub(in super::super) unbalanced: bool,
}

/// The operators of more than one character, longest first.
const LONG_SIGNS: [&str; 25] = [
    "**=", "//=", ">>=", "<<=", "...", "->", ":=", "==", "!=", "<=", ">=", "+=", "-=", "*=", "/=",
    "%=", "&=", "|=", "^=", "@=", "**", "//", "<<", ">>", "<>",
];
/// The operators, delimiters and brackets of one character.
const SIGNS: &str = "+-*/%@&|^~<>=.,:;()[]{}";

/// The maximum number of lines in which the definition after a decorator is searched. The bound keeps the time linear.
const MAX_DECORATOR_LINES: usize = 100;

/// Returns the logical lines of a text.
pub(in super::super) fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut lexer = Lexer { text, at: 0 };
    std::iter::from_fn(|| lexer.statement()).collect()
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Returns the next logical line, skipping blank lines and comments.
    fn statement(&mut self) -> Option<Statement<'a>> {
        loop {
            let start = self.at;
            let indent = self.skip_indent();
            self.skip_comment();
            let first = self.rest().chars().next()?;
            if first == '\n' {
                self.at += 1;
                continue;
            }
            let (tokens, unbalanced) = self.line();
            // A line has no token if it consists of a backslash that continues it with a blank line or a comment.
            if !tokens.is_empty() {
                return Some(Statement { start, end: self.at, indent, tokens, unbalanced });
            }
        }
    }

    /// Returns the tokens of a logical line, and `true` if a bracket is unmatched. A line break inside brackets ends the line only if the
    /// next line begins, without indentation, with a statement that no expression can contain.
    fn line(&mut self) -> (Vec<(usize, Token<'a>)>, bool) {
        let mut tokens = Vec::new();
        let (mut depth, mut unbalanced) = (0_usize, false);
        while let Some(next) = self.rest().chars().next() {
            if next == '\n' {
                self.at += 1;
                if depth == 0 || begins_statement(self.rest()) {
                    break;
                }
            } else if next.is_whitespace() || next == '\u{feff}' {
                self.at += next.len_utf8();
            } else if next == '#' {
                self.skip_comment();
            } else if let Some(length) = continuation(self.rest()) {
                self.at += length;
            } else {
                let at = self.at;
                let token = self.token(next);
                match token {
                    Token::Sign("(" | "[" | "{") => depth += 1,
                    Token::Sign(")" | "]" | "}") if depth == 0 => unbalanced = true,
                    Token::Sign(")" | "]" | "}") => depth -= 1,
                    _ => {}
                }
                tokens.push((at, token));
            }
        }
        (tokens, unbalanced || depth > 0)
    }

    fn skip_indent(&mut self) -> usize {
        let mut columns = 0;
        while let Some(blank) = self.rest().chars().next().filter(|it| is_blank(*it)) {
            columns = if blank == '\t' { (columns / 8 + 1) * 8 } else { columns + 1 };
            self.at += blank.len_utf8();
        }
        columns
    }

    fn skip_comment(&mut self) {
        if self.rest().starts_with('#') {
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    fn token(&mut self, next: char) -> Token<'a> {
        let rest = self.rest();
        let name = name_length(rest);
        let quote = rest[name..].chars().next().filter(|quote| matches!(quote, '"' | '\''));
        if let Some(quote) = quote.filter(|_| is_prefix(&rest[..name])) {
            return self.string(name, quote);
        }
        if name > 0 {
            let kind = if next.is_ascii_digit() { Token::Number } else { Token::Name };
            return kind(self.take(if next.is_ascii_digit() { number_length(rest) } else { name }));
        }
        if let Some(sign) = LONG_SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            return Token::Sign(self.take(sign.len()));
        }
        let kind = if SIGNS.contains(next) { Token::Sign } else { Token::Foreign };
        kind(self.take(next.len_utf8()))
    }

    /// Reads a string with a prefix of `prefix` bytes. A string that is not triple-quoted ends at the latest at the first line break
    /// without a backslash before it. An unterminated string is [`Token::Foreign`].
    fn string(&mut self, prefix: usize, quote: char) -> Token<'a> {
        let rest = self.rest();
        let body = &rest[prefix + 1..];
        let is_triple = body.starts_with(quote) && body[1..].starts_with(quote);
        let opening = prefix + if is_triple { 3 } else { 1 };
        let mut escaped = false;
        for (at, character) in rest[opening..].char_indices() {
            let at = opening + at;
            if std::mem::take(&mut escaped) {
                continue;
            }
            let closes = rest[at..].starts_with(quote)
                && (!is_triple
                    || rest[at..].bytes().take(3).filter(|it| *it == quote as u8).count() == 3);
            if closes {
                return Token::Text(self.take(at + if is_triple { 3 } else { 1 }));
            }
            if character == '\n' && !is_triple {
                return Token::Foreign(self.take(at));
            }
            escaped = character == '\\';
        }
        Token::Foreign(self.take(rest.len()))
    }

    fn take(&mut self, length: usize) -> &'a str {
        let taken = &self.rest()[..length];
        self.at += length;
        taken
    }
}

fn is_blank(character: char) -> bool {
    character != '\n' && (character.is_whitespace() || character == '\u{feff}')
}

/// Returns the length in bytes of a backslash and the line break after it, or `None` if the text does not begin with them.
fn continuation(rest: &str) -> Option<usize> {
    let after = rest.strip_prefix('\\')?;
    let line_break = after.strip_prefix('\r').unwrap_or(after).strip_prefix('\n')?;
    Some(rest.len() - line_break.len())
}

/// Returns `true` if a text begins, without indentation, with a definition, a decorator or an import. A line of an expression in brackets
/// cannot begin in this way: it may only begin with `from` (after `yield`), with `async for` and with the operator `@`. Before such a
/// statement, an open bracket is prose or a mistake.
fn begins_statement(rest: &str) -> bool {
    let line = rest.lines().next().unwrap_or("");
    match &line[..name_length(line)] {
        "import" => true,
        "from" => imports_from(line),
        "" => line.starts_with('@') && begins_decorator(rest),
        _ => begins_definition(line),
    }
}

/// Returns `true` if a line that begins with `from` imports, also without a blank as in `from .import name`.
fn imports_from(line: &str) -> bool {
    let mut words = line.split_whitespace().skip(1);
    let is_import = |word: &str| word.starts_with("import");
    words
        .next()
        .is_some_and(|word| word.starts_with('.') && is_import(word.trim_start_matches('.')))
        || words.next().is_some_and(is_import)
}

fn begins_definition(line: &str) -> bool {
    match &line[..name_length(line)] {
        "def" | "class" => true,
        "async" => line.split_whitespace().nth(1) == Some("def"),
        _ => false,
    }
}

/// Returns `true` if a text that begins with `@` begins with a decorator, rather than with an operand of a matrix product. A decorator
/// closes no bracket that it does not open, and a definition follows, possibly after further decorators.
fn begins_decorator(rest: &str) -> bool {
    let mut depth = 0_usize;
    for line in rest.lines().take(MAX_DECORATOR_LINES) {
        let is_blank = line.trim().is_empty() || line.starts_with('#');
        if depth == 0 && !is_blank && !line.starts_with('@') {
            return begins_definition(line);
        }
        for character in line.chars() {
            match character {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' if depth == 0 => return false,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
        }
    }
    false
}

fn name_length(rest: &str) -> usize {
    rest.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(rest.len())
}

fn number_length(rest: &str) -> usize {
    rest.find(|it: char| !it.is_alphanumeric() && !matches!(it, '_' | '.')).unwrap_or(rest.len())
}

fn is_prefix(name: &str) -> bool {
    name.len() <= 2 && name.bytes().all(|it| b"rbfut".contains(&it.to_ascii_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(usize, &str)]) {
        let found: Vec<_> = statements(text)
            .iter()
            .map(|it| {
                let words = it.tokens.iter().map(|(_, token)| match token {
                    Token::Name(text)
                    | Token::Number(text)
                    | Token::Text(text)
                    | Token::Sign(text) => (*text).to_owned(),
                    Token::Foreign(text) => format!("<{text}>"),
                });
                (it.indent, words.collect::<Vec<_>>().join(" "))
            })
            .collect();
        let expected: Vec<_> =
            expected.iter().map(|(indent, words)| (*indent, (*words).to_owned())).collect();
        assert_eq!(found, expected, "{text:?}");
    }

    #[test]
    fn logical_lines() {
        check("a = [1,\n  2]\n\tb", &[(0, "a = [ 1 , 2 ]"), (8, "b")]);
        check("x \\\n  + 1 # one\n\n# two\ny", &[(0, "x + 1"), (0, "y")]);
        check("\\\n\nx \\\n", &[(0, "x")]);
        check("\\\n", &[]);
        check("s = '''\ndef f():\n'''; t", &[(0, "s = '''\ndef f():\n''' ; t")]);
        check("a == b != c := 1.5e3", &[(0, "a == b != c := 1.5e3")]);
    }

    #[test]
    fn strings() {
        check(r#"rb'a\'b' f"c" '' """d"e""" "#, &[(0, r#"rb'a\'b' f"c" '' """d"e""""#)]);
        check("it's\nx", &[(0, "it <'s>"), (0, "x")]);
        check("'''a", &[(0, "<'''a>")]);
    }

    #[test]
    fn text_that_is_not_python() {
        check("a → b?", &[(0, "a <→> b <?>")]);
        check("see (below:\ndef f(): pass", &[(0, "see ( below :"), (0, "def f ( ) : pass")]);
        assert!(statements("f(\n1").iter().all(|it| it.unbalanced));
    }

    #[test]
    fn lines_without_indentation_within_brackets() {
        for inside in [
            "x = (a\n@b.T\n@ c)",
            "x = (a\n@b(1)\n)\n",
            "x = [y\nasync for y in z]",
            "x = (yield\nfrom y)",
            "x = (a\nfor a in b\n)",
        ] {
            assert_eq!(statements(inside).len(), 1, "{inside}");
            for after in ["\ndef f(): pass", "\n@c\ndef f(): pass", "\nimport a"] {
                let found = statements(&format!("{inside}{after}")).len();
                assert_eq!(found, 2 + usize::from(after.contains('@')), "{inside}{after}");
            }
        }
        for begins in [
            "def f(): pass",
            "async def f(): pass",
            "class A: pass",
            "import a",
            "from . import(a)",
            "from .import a",
            "from a.b import c",
            "@a\ndef f(): pass",
            "@a(\n    1,\n)\n# b\n\n@c\nclass A: pass",
        ] {
            let text = format!("see (below:\n{begins}");
            let found = statements(&text);
            assert!(found[0].unbalanced && found[0].end == 12, "{begins}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_to_its_end(text in "(\"|'|\"\"\"|[(){}]|\n|\\\\|#|def |ä|é1.5|`| |\t|\r){0,60}") {
            let statements = statements(&text);
            proptest::prop_assert!(statements.iter().all(|it| !it.tokens.is_empty()));
            let end = statements.last().map_or(0, |last| last.end);
            proptest::prop_assert!(end <= text.len());
        }
    }
}
