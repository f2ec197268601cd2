//! The code within a response.

use std::collections::BTreeMap;

/// Code, and the language that its fence names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block<'a> {
    /// A name of the table of languages.
    pub(super) language: &'a str,
    /// The code as it stands there.
    pub(super) code: &'a str,
}

/// How fenced blocks name a language, by its name in the table.
pub(super) type Fences = BTreeMap<String, Vec<String>>;

/// The last fenced block in a language of the table after the thinking; the whole text as python if there is no fence at all. A block
/// without a language counts where none has one of the table. `None` if all blocks are in other languages.
pub(super) fn extract<'a>(response: &'a str, fences: &'a Fences) -> Option<Block<'a>> {
    let text = response.rsplit_once("</think>").map_or(response, |(_, answer)| answer);
    let blocks = blocks(text);
    if blocks.is_empty() {
        return Some(Block { language: "python", code: text });
    }
    let named = blocks
        .iter()
        .rev()
        .find_map(|(info, code)| Some(Block { language: language(info, fences)?, code }));
    let bare = || blocks.iter().rev().find(|(info, _)| info.is_empty());
    named.or_else(|| bare().map(|(_, code)| Block { language: "python", code }))
}

fn language<'a>(info: &str, fences: &'a Fences) -> Option<&'a str> {
    let fits = |names: &[String]| names.iter().any(|name| name.eq_ignore_ascii_case(info));
    fences
        .iter()
        .find(|(name, names)| name.eq_ignore_ascii_case(info) || fits(names))
        .map(|(name, _)| name.as_str())
}

/// The fenced blocks of a text: the first word after the fence, and what stands up to the closing fence or, as when a response was cut
/// off, the end.
fn blocks(text: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut open: Option<(&str, &str, usize)> = None;
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let (begin, end) = (at, at + line.len());
        at = end;
        let Some((fence, info)) = fence(line) else { continue };
        match open {
            None => open = Some((fence, info, end)),
            Some((opening, language, from)) if info.is_empty() && fence.starts_with(opening) => {
                found.push((language, &text[from..begin]));
                open = None;
            }
            Some(_) => {}
        }
    }
    found.extend(open.map(|(_, language, from)| (language, &text[from..])));
    found
}

/// The fence that a line is, and the first word after it.
fn fence(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let mark = line.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = line.trim_start_matches(mark);
    let fence = &line[..line.len() - rest.len()];
    let inline = rest.contains('`');
    (fence.len() >= 3 && !inline).then(|| (fence, rest.split_whitespace().next().unwrap_or("")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fences() -> Fences {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        [("python".to_owned(), names(&["py", "python3"])), ("cpp".to_owned(), names(&["c++"]))]
            .into()
    }

    fn check(response: &str, expected: Option<(&str, &str)>) {
        let fences = fences();
        let found = extract(response, &fences);
        assert_eq!(
            found.as_ref().map(|block| (block.language, block.code)),
            expected,
            "{response:?}"
        );
    }

    #[test]
    fn the_last_block_in_a_known_language_wins() {
        check("```python\na\n```\nthen\n```py\nb\n```\n```bash\npip\n```", Some(("python", "b\n")));
        check("```python\na\n```\n```C++\nb\n```", Some(("cpp", "b\n")));
        check("```\na\n```\n", Some(("python", "a\n")));
        check("```\na\n```\n```python\nb\n```\n```\noutput\n```", Some(("python", "b\n")));
        check("```java\na\n```", None);
    }

    #[test]
    fn what_was_thought_does_not_count() {
        check("<think>```python\na\n```</think>\n```python\nb\n```", Some(("python", "b\n")));
        check("```python\na\n```</think>  return 1\n", Some(("python", "  return 1\n")));
    }

    #[test]
    fn a_block_that_was_cut_off_ends_with_the_text() {
        check("```python\na\nb", Some(("python", "a\nb")));
    }

    #[test]
    fn a_fence_is_closed_by_one_of_its_kind() {
        check("````python\ns = '''\n```\n'''\n````\n", Some(("python", "s = '''\n```\n'''\n")));
        check("say ```x``` and\n  ~~~python\n  a\n  ~~~", Some(("python", "  a\n")));
        check("```x``` alone", Some(("python", "```x``` alone")));
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in "(```|~~~|python|\n|</think>|ä| ){0,40}") {
            let _ = extract(&text, &fences());
        }
    }
}
