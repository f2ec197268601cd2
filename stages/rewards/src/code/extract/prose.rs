//! Code in text without fences: runs of lines that can be Python.

use super::super::python::{Statement, Token, is_keyword, statements};

/// Keywords of statements that have a body. Indented lines after such a statement belong to it.
const COMPOUND: [&str; 12] = [
    "def", "class", "async", "if", "elif", "else", "for", "while", "with", "try", "except",
    "finally",
];

/// Returns the runs of Python in a text, each as whole lines. A text that is Python from beginning to end is one run.
pub(super) fn code_runs(text: &str) -> Vec<&str> {
    let statements = statements(text);
    let mut runs = Vec::new();
    // The start of the current run, and its last statement so far.
    let mut run: Option<(usize, &Statement<'_>)> = None;
    let mut in_body = false;
    for statement in &statements {
        let belongs = in_body && statement.indent > 0;
        in_body = belongs || is_code(statement) && has_body(statement);
        if belongs || is_code(statement) {
            run = Some((run.map_or(statement.start, |(start, _)| start), statement));
        } else if let Some((start, last)) = run.take() {
            runs.push(&text[start..last.end]);
        }
    }
    runs.extend(run.map(|(start, last)| &text[start..last.end]));
    match runs[..] {
        [only] if only.trim() == text.trim() => vec![text],
        _ => runs,
    }
}

fn has_body(statement: &Statement<'_>) -> bool {
    matches!(statement.tokens[0].1, Token::Name(first) if COMPOUND.contains(&first))
}

/// Returns `true` if a statement can be Python and is not more likely to be prose.
fn is_code(statement: &Statement<'_>) -> bool {
    let tokens: Vec<Token<'_>> = statement.tokens.iter().map(|(_, token)| *token).collect();
    let is_foreign = |token: &Token<'_>| matches!(token, Token::Foreign(_));
    !statement.unbalanced
        && !tokens.iter().any(is_foreign)
        && !tokens
            .windows(2)
            .any(|pair| is_operand(pair[0]) && is_operand(pair[1]) && !are_texts(pair))
        && begins_like_code(&tokens)
        && ends_like_code(&tokens)
}

/// Returns `true` if a token is a number, a string literal, or a name that is no keyword.
fn is_operand(token: Token<'_>) -> bool {
    match token {
        Token::Name(name) => !is_keyword(name) && !matches!(name, "match" | "case" | "type"),
        Token::Number(_) | Token::Text(_) => true,
        _ => false,
    }
}

fn are_texts(pair: &[Token<'_>]) -> bool {
    matches!(pair, [Token::Text(_), Token::Text(_)])
}

fn begins_like_code(tokens: &[Token<'_>]) -> bool {
    let has = |sign| tokens.contains(&Token::Sign(sign));
    let has_name = |name| tokens.contains(&Token::Name(name));
    match tokens[0] {
        Token::Name("def" | "class") => matches!(tokens.get(1), Some(Token::Name(_))) && has(":"),
        Token::Name("for") => has_name("in") && has(":"),
        Token::Name("else" | "try" | "finally") => tokens.get(1) == Some(&Token::Sign(":")),
        Token::Name(first) if COMPOUND.contains(&first) => has(":"),
        Token::Name("from") => has_name("import"),
        Token::Name("import" | "del" | "global" | "nonlocal" | "assert") => tokens.len() > 1,
        Token::Name("and" | "or" | "is" | "in" | "as") => false,
        Token::Name(first) if is_keyword(first) => true,
        // Python parses `Note: this` as an annotation.
        Token::Name(_) => tokens.len() > 1 && (has("=") || tokens[1] != Token::Sign(":")),
        Token::Number(_) => tokens.len() > 1 && tokens[1] != Token::Sign(")"),
        Token::Text(_) => true,
        Token::Sign("@" | "...") => true,
        // Python parses `[PYTHON]` as a list, but models write it as a tag.
        Token::Sign("(" | "[" | "{") => has("=") || tokens[1..].contains(&Token::Sign("(")),
        // A leading `*` is a list or emphasis in Markdown; in Python it only occurs in `*a, b = c`.
        Token::Sign("*") => has("="),
        _ => false,
    }
}

fn ends_like_code(tokens: &[Token<'_>]) -> bool {
    match tokens[tokens.len() - 1] {
        Token::Sign(")" | "]" | "}" | ";" | "...") => true,
        Token::Sign(",") => tokens.contains(&Token::Sign("=")),
        Token::Sign(":") => {
            matches!(tokens[0], Token::Name(first) if COMPOUND.contains(&first) || matches!(first, "match" | "case"))
        }
        Token::Sign(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_among_prose() {
        let code = "from typing import List\n\n# Adds.\ndef f(a: List[int]) -> int:\n    \"\"\"Doc.\n\n    What it's for?\n    \"\"\"\n    b = a ? broken\n    return b\n\nx = f(1)\n";
        assert_eq!(code_runs(code), [code]);
        let text = format!(
            "Here's how (see below:\n\n{code}\nThis function adds.\nTime complexity: O(n).\n"
        );
        assert_eq!(code_runs(&text), [code]);
        assert_eq!(code_runs("    return a\n"), ["    return a\n"]);
        assert_eq!(code_runs("So:\n\n    return a + b\n\nDone."), ["    return a + b\n"]);
        assert_eq!(code_runs("import a\nThen:\nprint(a)\n"), ["import a\n", "print(a)\n"]);
    }

    #[test]
    fn prose_is_not_code() {
        for line in [
            "Here is the solution:",
            "Explanation",
            "Note: it works",
            "Complexity: O(n)",
            "1. First",
            "2) x",
            "- item",
            "**Bold**",
            "for example, this",
            "It's done.",
            "Therefore,",
            "in time",
            "a → b",
            "```",
            "#",
            "from this we get",
            "with this",
            "[PYTHON]",
            "[/PYTHON]",
            "(note)",
            "5",
        ] {
            assert_eq!(code_runs(line), Vec::<&str>::new(), "{line}");
        }
        for line in [
            "x = 5",
            "print(1)",
            "print('it is', x)",
            "@cache",
            "else:",
            "(a, b) = c",
            "return",
            "*a, b = c",
            "a.b()",
        ] {
            assert_eq!(code_runs(line), [line], "{line}");
        }
    }

    proptest::proptest! {
        #[test]
        fn runs_are_found_in_any_text(text in "(def f\\(\\):|    |return 1|\n|Prose here\\.|x = |é|\\(|'){0,40}") {
            for run in code_runs(&text) {
                proptest::prop_assert!(text.contains(run));
            }
        }
    }
}
