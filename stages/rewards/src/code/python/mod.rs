//! Python at the level of tokens: enough to find the names that a text defines and uses, without running or compiling it.

mod lexer;
mod names;
mod outline;

pub(super) use lexer::{Statement, Token, statements};
pub(super) use outline::{Binding, Outline, attributes_of, imported_from, is_keyword};
