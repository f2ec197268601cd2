//! Lists of names as code.

use std::fmt::Display;

/// Formats names as code, separated by commas.
pub(crate) fn code_list<T: Display>(names: impl IntoIterator<Item = T>) -> String {
    names.into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
