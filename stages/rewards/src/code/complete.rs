//! Solutions that continue their prompts.

use super::python::{Binding, Outline, Statement, Token, statements};

/// The indentation of a function body, in prompts as in most code.
const INDENT: &str = "    ";

/// A solution combined with its prompt.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Completed {
    /// The code of the whole function, or the prompt followed by the body of the function.
    pub(super) solution: String,
    /// The part of the prompt before the function: imports and helpers. Empty if `solution` begins with the prompt.
    pub(super) preamble: String,
}

/// Combines a prompt, which ends within the function or class `entry_point`, with code that contains all of it or only the body.
pub(super) fn complete(code: &str, prompt: &str, entry_point: &str) -> Completed {
    let outline = Outline::of(code);
    if !outline.is_body
        && outline.module.get(entry_point).is_some_and(|binding| *binding != Binding::Import)
    {
        return Completed {
            solution: code.to_owned(),
            preamble: preamble(prompt, entry_point).to_owned(),
        };
    }
    Completed { solution: format!("{prompt}{}", indented(code)), preamble: String::new() }
}

/// Returns the part of a prompt before the function or class `entry_point` and its decorators, or all of the prompt if it has no such
/// definition.
fn preamble<'a>(prompt: &'a str, entry_point: &str) -> &'a str {
    let is_header = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        let name = line.strip_prefix("def ").or_else(|| line.strip_prefix("class "));
        let rest = name.and_then(|line| line.trim_start().strip_prefix(entry_point));
        rest.is_some_and(|rest| rest.trim_start().starts_with(['(', '[', ':']))
    };
    let mut end = 0;
    for line in prompt.split_inclusive('\n') {
        if is_header(line) {
            break;
        }
        end += line.len();
    }
    if end == prompt.len() {
        return prompt;
    }
    // Decorators belong to the definition.
    let is_decorator =
        |line: &&Statement<'_>| matches!(line.tokens.first(), Some((_, Token::Sign("@"))));
    let lines = statements(&prompt[..end]);
    let decorators = lines.iter().rev().take_while(is_decorator);
    &prompt[..decorators.last().map_or(end, |first| first.start)]
}

/// Returns a body with the indentation of a function body. Some responses omit the indentation, either of all lines or, if the response was
/// trimmed, of the first line only.
fn indented(body: &str) -> String {
    let body = body.trim_start_matches(['\r', '\n']);
    if body.starts_with([' ', '\t']) {
        return body.to_owned();
    }
    let only_first = !is_consistent(body);
    let mut found = String::new();
    for (number, line) in body.split_inclusive('\n').enumerate() {
        if !line.trim().is_empty() && (number == 0 || !only_first) {
            found.push_str(INDENT);
        }
        found.push_str(line);
    }
    found
}

/// Returns `true` if the lines are indented as Python requires: deeper only after a colon, and otherwise at a previous level.
fn is_consistent(body: &str) -> bool {
    let mut levels = vec![0];
    let mut opens = false;
    statements(body).iter().all(|statement| {
        let deeper = levels.last().is_none_or(|level| *level < statement.indent);
        let fits = if deeper { opens } else { levels.contains(&statement.indent) };
        levels.retain(|level| *level < statement.indent);
        levels.push(statement.indent);
        opens = matches!(statement.tokens.last(), Some((_, Token::Sign(":"))));
        fits
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROMPT: &str = "import os\nfrom math import pi\n\ndef half(a):\n    return a / 2\n\n@cache\ndef f(a):\n    '''doc'''\n";

    #[test]
    fn a_body_is_indented_after_its_prompt() {
        for (body, expected) in [
            ("    return a\n", "    return a\n"),
            ("return a\n", "    return a\n"),
            ("b = a\nreturn b\n", "    b = a\n    return b\n"),
            ("b = a\n    return b\n", "    b = a\n    return b\n"),
            ("for b in a:\n    yield b\n", "    for b in a:\n        yield b\n"),
            (
                "if a:\n      a()\n\n    for b in a:\n      b()\n",
                "    if a:\n      a()\n\n    for b in a:\n      b()\n",
            ),
            (
                "for b in a:\n        yield b\n    return\n",
                "    for b in a:\n        yield b\n    return\n",
            ),
            ("def ff(a): pass", "    def ff(a): pass"),
            ("    def f(a): pass", "    def f(a): pass"),
        ] {
            let expected =
                Completed { solution: format!("{PROMPT}{expected}"), preamble: String::new() };
            assert_eq!(complete(body, PROMPT, "f"), expected, "{body}");
        }
    }

    #[test]
    fn a_function_keeps_the_preceding_code_of_its_prompt() {
        let preamble =
            "import os\nfrom math import pi\n\ndef half(a):\n    return a / 2\n\n".to_owned();
        for code in [
            "def f(a):\n    return a",
            "async def f (a): pass",
            "def f[T](a): pass",
            "f = lambda a: a",
        ] {
            let expected = Completed { solution: code.to_owned(), preamble: preamble.clone() };
            assert_eq!(complete(code, PROMPT, "f"), expected, "{code}");
        }
        let other = complete("def f(): pass", "import os\n", "f");
        assert_eq!(other.preamble, "import os\n");
        for decorators in ["@a\n", "@a\n@b.c(1)\n", "@a(\n    size=3,\n)\n# comment\n\n"] {
            for before in ["", "import os\n"] {
                let prompt = format!("{before}{decorators}def f(a):\n");
                assert_eq!(complete("def f(): pass", &prompt, "f").preamble, before, "{prompt}");
            }
        }
    }
}
