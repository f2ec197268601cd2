//! `\boxed{...}` and `\fbox{...}`.

/// The contents of all boxes, separated by commas; the text itself if it has none.
pub(crate) fn all(text: &str) -> String {
    boxes(text, |_, _, _| true).unwrap_or_else(|| text.to_owned())
}

/// The contents of the last box, and of those before it that are part of the same answer.
pub(crate) fn last(text: &str) -> String {
    boxes(text, belongs).unwrap_or_else(|| text.to_owned())
}

/// Whether a box belongs to the next one: close by, or not far and separated as in a list, and not corrected by it.
fn belongs(content: &str, between: &str, next: &str) -> bool {
    const CORRECTIONS: &[&str] = &[
        "no",
        "not",
        "wait",
        "wrong",
        "sorry",
        "oops",
        "actually",
        "instead",
        "rather",
        "incorrect",
        "correct",
    ];
    let length = between.chars().take(100).count();
    let mut words = between.split(|c: char| !c.is_alphanumeric());
    if length >= 70 || words.clone().any(|word| CORRECTIONS.contains(&word.to_lowercase().as_str()))
    {
        return false;
    }
    let separated = between.contains([',', ';']) || words.any(|word| word == "and" || word == "or");
    length < 10 || (content != next && separated)
}

/// The contents of the last boxes up to one that does not belong to its successor.
fn boxes(text: &str, belongs: fn(&str, &str, &str) -> bool) -> Option<String> {
    let mut contents: Vec<String> = Vec::new();
    let mut rest = text;
    while let Some((begin, open)) = last_command(rest) {
        let Some((content, end)) = braced(rest, open) else {
            if contents.is_empty() {
                contents.push(rest[open..].trim_start_matches('{').to_owned());
            }
            break;
        };
        let content = with_percent(content.trim(), &rest[end..]);
        match contents.last() {
            Some(next) if !belongs(&content, &rest[end..], next) => break,
            Some(next) if content == *next => {}
            _ => contents.push(content),
        }
        rest = &rest[..begin];
    }
    contents.reverse();
    (!contents.is_empty()).then(|| contents.join(","))
}

/// The contents with the percent sign that follows their box.
fn with_percent(content: &str, after: &str) -> String {
    let after = after.trim_start();
    let percent = after.starts_with('%') || after.starts_with("\\%");
    if percent { format!("{content}\\%") } else { content.to_owned() }
}

/// Where the last box begins, and where its contents should.
fn last_command(text: &str) -> Option<(usize, usize)> {
    let (boxed, framed) = (text.rfind("\\boxed"), text.rfind("\\fbox"));
    let begin = boxed.max(framed)?;
    let after = begin + if boxed == Some(begin) { "\\boxed".len() } else { "\\fbox".len() };
    let blank = text[after..].len() - text[after..].trim_start().len();
    (after + blank < text.len()).then_some((begin, after + blank))
}

/// The contents of the braces that open at a place, and where they end.
fn braced(text: &str, open: usize) -> Option<(&str, usize)> {
    let mut depth = 0_usize;
    for (offset, byte) in text[open..].bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.checked_sub(1)?,
            _ if depth == 0 => return None,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[open + 1..open + offset], open + offset + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joins_what_belongs_together() {
        assert_eq!(last("\\boxed{1} and \\boxed{{2}}"), "1,{2}");
        assert_eq!(
            last(
                "\\boxed{1} was wrong, or so it seemed to all of us who had looked into it for long: \\boxed{2}"
            ),
            "2"
        );
        assert_eq!(last("\\boxed{3} so \\boxed{3}"), "3");
        assert_eq!(all("x = \\boxed{4}."), "4");
        assert_eq!(all("no box"), "no box");
        assert_eq!(last("\\boxed 7"), "7");
        assert_eq!(last("\\boxed{7"), "7");
        assert_eq!(all("\\boxed{7} \\%"), "7\\%");
    }
}
