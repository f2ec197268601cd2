//! Breaks text into lines for a terminal.

/// Appends `words` and a line break to `text`. A line that would exceed `width` characters continues on a new line after `indent` spaces.
/// A word that is longer than a line is not broken. `None` breaks no lines, and a width below `indent + 20` counts as `indent + 20`.
pub(crate) fn wrap(text: &mut String, words: &str, indent: usize, width: Option<usize>) {
    let mut column = text.rsplit('\n').next().unwrap_or_default().chars().count();
    let mut is_first = true;
    for word in words.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        let is_full = width.is_some_and(|width| column + 1 + length > width.max(indent + 20));
        if is_full && column > indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if !is_first || words.starts_with(' ') {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
        is_first = false;
    }
    text.push('\n');
}
