//! The names that a piece of Python uses and binds.

use std::collections::BTreeSet;

use super::lexer::{Statement, Token};
use super::outline::{deepen, definition, imports, name_of, targets};

/// The names that are used, and those that are bound, anywhere in a text and in any scope.
#[derive(Default)]
pub(super) struct Names<'a> {
    used: BTreeSet<&'a str>,
    bound: BTreeSet<&'a str>,
}

impl<'a> Names<'a> {
    /// Returns the names that are used but bound nowhere.
    pub(super) fn free(&self) -> BTreeSet<&'a str> {
        self.used.difference(&self.bound).copied().collect()
    }

    pub(super) fn read(&mut self, statement: &Statement<'a>) {
        if statement.begins_with("import") || statement.begins_with("from") {
            return self.bound.extend(imports(statement));
        }
        self.bound.extend(definition(statement));
        self.bound.extend(targets(statement));
        let words = statement.words();
        let is_header = definition(statement).is_some() && !statement.begins_with("class");
        let mut context =
            TokenContext { depth: 0, parameters: is_header.then_some((0, 1)), loops: false };
        for at in 0..words.len() {
            self.word(&words, at, &mut context);
        }
    }

    fn word(&mut self, words: &[Token<'a>], at: usize, context: &mut TokenContext) {
        let token = words[at];
        context.depth = deepen(context.depth, token);
        let before = at.checked_sub(1).map(|at| words[at]);
        let after = words.get(at + 1).copied();
        match token {
            Token::Name("lambda") => context.parameters = Some((context.depth, context.depth)),
            Token::Name("for") => context.loops = true,
            Token::Name("in") => context.loops = false,
            Token::Sign(":") if context.parameters.is_some_and(|(end, _)| end == context.depth) => {
                context.parameters = None
            }
            _ => {}
        }
        // An attribute is not a name of its own.
        let Some(name) = name_of(token).filter(|_| before != Some(Token::Sign("."))) else {
            return;
        };
        let first =
            matches!(before, Some(Token::Name("lambda") | Token::Sign("(" | "," | "*" | "**")));
        if context.loops
            || first && context.parameters.is_some_and(|(_, names)| names == context.depth)
            || before == Some(Token::Name("as"))
            || after == Some(Token::Sign(":="))
        {
            self.bound.insert(name);
        } else if after != Some(Token::Sign("=")) || context.depth == 0 {
            self.used.insert(name);
        }
    }
}

struct TokenContext {
    depth: usize,
    /// The bracket depth of the colon that ends the parameters of a function, and the bracket depth of the names of the parameters. `None`
    /// outside of parameters. Names in annotations and default values are deeper, or follow another sign.
    parameters: Option<(usize, usize)>,
    /// `true` between `for` and `in`.
    loops: bool,
}
