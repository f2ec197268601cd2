//! The tables of `docs/recipes.md` and `docs/simulator-keys.md`.

use std::fmt::Write;

use super::{Key, SectionKeys};
use crate::code_list::code_list;

/// Returns the text of all sections. A section has a table of its keys, a list of the options of which only the names are known, and a
/// table of the other options that depend on a name.
pub(crate) fn markdown(sections: &[SectionKeys]) -> String {
    let mut text = String::new();
    for section in sections {
        // Writing to a string does not fail.
        let _ = writeln!(text, "## `[{}]`\n\n{}\n", section.name, section.about);
        let (options, keys): (Vec<&Key>, Vec<&Key>) =
            section.keys.iter().partition(|key| key.belongs_to.is_some());
        table(&mut text, "key", keys.iter().map(|key| (format!("`{}`", key.name), *key)));
        let (bare, options): (Vec<&Key>, Vec<&Key>) =
            options.into_iter().partition(|key| key.kind.is_empty() && key.meaning.is_empty());
        add_names(&mut text, &bare);
        if !options.is_empty() {
            let _ = writeln!(text, "Options that depend on a name:\n");
            let name = |key: &Key| {
                format!("`{}` of {}", key.name, key.belongs_to.as_deref().unwrap_or_default())
            };
            table(&mut text, "option", options.iter().map(|key| (name(key), *key)));
        }
    }
    text
}

fn table<'a>(text: &mut String, first: &str, keys: impl Iterator<Item = (String, &'a Key)>) {
    let _ = writeln!(
        text,
        "| {first} | type, unit | default | range or choices | meaning | verl | TRL |"
    );
    let _ = writeln!(text, "|---|---|---|---|---|---|---|");
    for (name, key) in keys {
        let kind = [key.kind.as_str(), key.unit].into_iter().filter(|part| !part.is_empty());
        let cells = [
            name,
            kind.collect::<Vec<_>>().join(", "),
            key.default.as_deref().map(code).unwrap_or_default(),
            key.range.clone().unwrap_or_default(),
            key.meaning.clone(),
            code_list(&key.verl),
            code_list(&key.trl),
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|"));
        let _ = writeln!(text, "| {} |", cells.join(" | ").replace("  ", " "));
    }
    text.push('\n');
}

/// Lists the options of which only the names are known, one line for each entry.
fn add_names(text: &mut String, options: &[&Key]) {
    for group in options.chunk_by(|one, other| one.belongs_to == other.belongs_to) {
        let names = code_list(group.iter().map(|key| &key.name));
        let of = group[0].belongs_to.as_deref().unwrap_or_default();
        let _ = writeln!(text, "- {of}: {names}");
    }
    if !options.is_empty() {
        text.push('\n');
    }
}

/// Formats a default as code, unless it is described in words.
fn code(default: &str) -> String {
    let is_sentence = default == "none"
        || default.contains('`')
        || (default.contains(' ') && !default.starts_with(['"', '[', '{']));
    if is_sentence { default.to_owned() } else { format!("`{default}`") }
}
