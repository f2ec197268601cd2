//! The placeholders in the names of the table: `<part>` for any text, `{a,b}` for one of several texts.

/// The characters that begin a placeholder, with those that end it.
const PLACEHOLDERS: [(char, char); 2] = [('<', '>'), ('{', '}')];

/// Returns the text before the first placeholder of a pattern, the placeholder's first character and its content, and the text after it;
/// `None` if the pattern has no placeholder.
fn split(pattern: &'static str) -> Option<(&'static str, char, &'static str, &'static str)> {
    let at = pattern.find(['<', '{'])?;
    let (before, from) = pattern.split_at(at);
    let (open, close) = *PLACEHOLDERS.iter().find(|(open, _)| from.starts_with(*open))?;
    let (content, after) = from[1..].split_once(close)?;
    Some((before, open, content, after))
}

/// Returns `true` if the pattern matches the whole of `name`. A `<part>` matches one character or more, also several segments: data sources
/// and rewards may have a `/` in their names.
pub(super) fn matches(pattern: &'static str, name: &str) -> bool {
    let Some((before, open, content, after)) = split(pattern) else { return pattern == name };
    let Some(rest) = name.strip_prefix(before) else { return false };
    if open == '{' {
        let texts = content.split(',').filter_map(|text| rest.strip_prefix(text));
        return texts.into_iter().any(|rest| matches(after, rest));
    }
    let ends = rest.char_indices().skip(1).map(|(end, _)| end).chain([rest.len()]);
    !rest.is_empty() && ends.into_iter().any(|end| matches(after, &rest[end..]))
}

/// Returns the number of bytes of a pattern outside of its placeholders.
pub(super) fn fixed_characters(pattern: &'static str) -> usize {
    split(pattern)
        .map_or(pattern.len(), |(before, _, _, after)| before.len() + fixed_characters(after))
}

/// Returns names that a pattern matches: one for each choice of a `{a,b}`, with `x` for each `<part>`.
#[cfg(test)]
pub(super) fn examples(pattern: &'static str) -> Vec<String> {
    let Some((before, open, content, after)) = split(pattern) else {
        return vec![pattern.to_owned()];
    };
    let texts = if open == '{' { content.split(',').collect() } else { vec!["x"] };
    let tails = examples(after);
    let ends = |text: &str| tails.iter().map(|tail| format!("{before}{text}{tail}")).collect();
    texts.into_iter().flat_map(|text| -> Vec<String> { ends(text) }).collect()
}
