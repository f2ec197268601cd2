//! The list of keys as text.

use std::fmt::Write;

use super::{Key, SectionKeys};
use crate::wrap::wrap;

/// Returns the keys as text. Lines are broken to at most `width` characters where words are short enough, and not at all if `width` is
/// `None`.
pub(crate) fn text(sections: &[SectionKeys], width: Option<usize>) -> String {
    let mut text = String::new();
    for section in sections {
        let gap = if text.is_empty() { "" } else { "\n" };
        // Writing to a string does not fail.
        let _ = write!(text, "{gap}[{}]", section.name);
        wrap(&mut text, &format!(" {}", section.about), 4, width);
        for key in &section.keys {
            add_key(&mut text, key, width);
        }
    }
    text
}

fn add_key(text: &mut String, key: &Key, width: Option<usize>) {
    let unit = if key.unit.is_empty() { String::new() } else { format!(", {}", key.unit) };
    let of = key.belongs_to.as_ref().map(|of| format!(", of {of}")).unwrap_or_default();
    let default = key.default.as_ref().map(|default| format!(" = {default}")).unwrap_or_default();
    let kind = if key.kind.is_empty() { "option" } else { &key.kind };
    text.push_str("  ");
    wrap(text, &format!("{}{default} ({kind}{unit}{of})", key.name), 6, width);
    let mut line = |label: &str, value: &str| {
        if !value.is_empty() {
            text.push_str("      ");
            wrap(text, &format!("{label}{value}"), 6, width);
        }
    };
    line("", &key.meaning);
    line("range: ", key.range.as_deref().unwrap_or_default());
    line("verl: ", &key.verl.join(", "));
    line("TRL: ", &key.trl.join(", "));
    let aliases = key.aliases.iter().map(|(alias, peers)| format!("{alias} ({peers})"));
    line("also: ", &aliases.collect::<Vec<_>>().join(", "));
}
