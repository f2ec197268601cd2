//! Fenced code blocks, according to CommonMark and to what models actually write.
//!
//! The rules are based on CommonMark. A fence is three or more backticks or tildes, also within block quotes and list items. It is closed
//! by a fence of the same kind that is at least as long and indented by less than four more columns. The content loses the indentation of
//! the fence.
//!
//! Some deviations accept code that a person would recognize although a CommonMark renderer would not show it as code. A fence may follow a
//! tag (`<answer>`), or stand at the end of a line if it names a language. It may be indented by more than its list item allows. A tag may
//! follow the closing fence. A fence that names a language ends a preceding block that was never closed. A CommonMark parser would reject
//! each of these, and would treat the code after a line with only `<answer>` as HTML.

use super::super::python::{Token, statements};

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Part<'a> {
    Fenced {
        /// The info string: the rest of the line after the opening fence.
        info: &'a str,
        /// The code, without the indentation of the fence.
        code: String,
    },
    /// Consecutive lines outside of fenced blocks.
    Prose(String),
}

/// Splits a text into its parts. `names_language` returns `true` if an info string begins with the name of a supported programming
/// language.
pub(super) fn parts<'a>(text: &'a str, names_language: &impl Fn(&str) -> bool) -> Vec<Part<'a>> {
    let mut parts = Vec::new();
    let mut open: Option<OpenBlock<'a>> = None;
    let mut prose = String::new();
    let mut docstring = Docstring::default();
    for line in text.split_inclusive('\n') {
        let fence = Fence::read(line, names_language);
        let fence = fence.filter(|fence| open.is_some() || !docstring.contains(fence));
        open = match open.take() {
            Some(block) => match block.take(line, fence.as_ref(), names_language) {
                Step::Inside(block) => Some(block),
                Step::Closed(block) => {
                    parts.push(block.close());
                    None
                }
                Step::EndedBefore(block) => {
                    parts.push(block.close());
                    open_or_append(line, fence, &mut prose, &mut parts)
                }
            },
            None => {
                docstring.read(line);
                open_or_append(line, fence, &mut prose, &mut parts)
            }
        };
    }
    parts.extend(open.map(OpenBlock::close_at_end));
    parts.extend((!prose.is_empty()).then_some(Part::Prose(prose)));
    parts
}

/// The state of string literals in code outside of fences: a docstring may contain an example with fences of its own.
#[derive(Default)]
struct Docstring {
    quotes: Option<&'static str>,
}

impl Docstring {
    fn read(&mut self, mut line: &str) {
        let find = |line: &str, quotes: &'static str| Some((line.find(quotes)?, quotes));
        loop {
            let next = match self.quotes {
                Some(quotes) => find(line, quotes),
                None => find(line, "\"\"\"").into_iter().chain(find(line, "'''")).min(),
            };
            let Some((at, quotes)) = next else { return };
            self.quotes = self.quotes.xor(Some(quotes));
            line = &line[at + quotes.len()..];
        }
    }

    /// Returns `true` if a fence belongs to the open string: it is indented by four columns or more, which Markdown does not allow.
    fn contains(&self, fence: &Fence<'_>) -> bool {
        self.quotes.is_some() && fence.column >= 4
    }
}

/// Handles a line outside of blocks. If `fence` opens a block, moves the text in `prose` to `parts` and returns the block. Otherwise
/// appends the line to `prose`.
fn open_or_append<'a>(
    line: &str,
    fence: Option<Fence<'a>>,
    prose: &mut String,
    parts: &mut Vec<Part<'a>>,
) -> Option<OpenBlock<'a>> {
    match &fence {
        Some(_) if !prose.is_empty() => parts.push(Part::Prose(std::mem::take(prose))),
        Some(_) => {}
        None => prose.push_str(line),
    }
    fence.map(|fence| OpenBlock { fence, lines: Vec::new() })
}

/// A line that can open a block.
#[derive(Clone, Copy, Debug)]
struct Fence<'a> {
    mark: char,
    length: usize,
    /// The number of columns before the content of the line, within the block quotes. Tags and text before the fence are content.
    column: usize,
    /// The number of block quotes around the fence.
    quotes: usize,
    info: &'a str,
    /// `true` if only block quotes, list markers and blanks precede the fence.
    is_alone: bool,
}

impl<'a> Fence<'a> {
    fn read(line: &'a str, names_language: &impl Fn(&str) -> bool) -> Option<Self> {
        let ContentStart { quotes, column, rest } = ContentStart::of(line);
        let tagged = skip_tags(rest);
        let fence = |rest: &'a str, is_alone| {
            let (mark, length) = fence_run(rest)?;
            let info = rest[length..].trim();
            (mark == '~' || !info.contains('`')).then_some(Self {
                mark,
                length,
                column,
                quotes,
                info,
                is_alone,
            })
        };
        let at_end = || {
            let at = rest.find("```").or_else(|| rest.find("~~~"))?;
            fence(&rest[at..], false)
                .filter(|it| names_language(it.info) && !it.info.contains(char::is_whitespace))
        };
        fence(tagged, tagged.len() == rest.len()).or_else(at_end)
    }
}

/// The position where the content of a line begins: after block quotes, list markers and blanks.
struct ContentStart<'a> {
    quotes: usize,
    column: usize,
    rest: &'a str,
}

impl<'a> ContentStart<'a> {
    fn of(line: &'a str) -> Self {
        let mut start = Self { quotes: 0, column: 0, rest: line };
        loop {
            let (column, rest) = skip_blanks(start.rest, start.column);
            start = Self { column, rest, ..start };
            if let Some(quoted) = rest.strip_prefix('>') {
                let quoted = quoted.strip_prefix(' ').unwrap_or(quoted);
                start = Self { quotes: start.quotes + 1, column: 0, rest: quoted };
            } else if let Some(length) = list_marker(rest) {
                start = Self { column: column + length, rest: &rest[length..], ..start };
            } else {
                return start;
            }
        }
    }
}

/// Returns the length of a list marker (`-`, `*`, `+`, `1.` or `1)`, followed by a blank) if the text begins with one.
fn list_marker(rest: &str) -> Option<usize> {
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let marks: &[char] = if digits == 0 { &['-', '*', '+'] } else { &['.', ')'] };
    let after = rest[digits..].strip_prefix(marks)?;
    (digits < 10 && after.starts_with([' ', '\t'])).then_some(digits + 1)
}

/// Skips blanks. Returns the column after them and the rest of the text. A tab advances to the next multiple of four.
fn skip_blanks(text: &str, mut column: usize) -> (usize, &str) {
    let rest = text.trim_start_matches([' ', '\t']);
    for blank in text[..text.len() - rest.len()].chars() {
        column = if blank == '\t' { (column / 4 + 1) * 4 } else { column + 1 };
    }
    (column, rest)
}

/// Skips tags such as `<answer>`.
fn skip_tags(mut text: &str) -> &str {
    while let Some((tag, rest)) = text.strip_prefix('<').and_then(|text| text.split_once('>')) {
        if tag.contains(['`', '~', '<']) {
            break;
        }
        text = rest.trim_start();
    }
    text
}

/// Returns the character and the length of a fence at the start of a text.
fn fence_run(text: &str) -> Option<(char, usize)> {
    let mark = text.chars().next().filter(|mark| matches!(mark, '`' | '~'))?;
    let length = text.len() - text.trim_start_matches(mark).len();
    (length >= 3).then_some((mark, length))
}

struct OpenBlock<'a> {
    fence: Fence<'a>,
    lines: Vec<&'a str>,
}

/// The effect of a line on an open block.
enum Step<'a> {
    Inside(OpenBlock<'a>),
    Closed(OpenBlock<'a>),
    /// The line is outside of the block, which thereby ends.
    EndedBefore(OpenBlock<'a>),
}

impl<'a> OpenBlock<'a> {
    fn take(
        mut self,
        line: &'a str,
        fence: Option<&Fence<'_>>,
        names_language: &impl Fn(&str) -> bool,
    ) -> Step<'a> {
        let Some(content) = unquote(line, self.fence.quotes) else {
            return Step::EndedBefore(self);
        };
        let (column, rest) = skip_blanks(content, 0);
        let is_near = column <= self.fence.column + 3;
        if is_near && self.is_closed_by(rest) {
            return Step::Closed(self);
        }
        let opens = |fence: &&Fence<'_>| {
            let is_longer = fence.length >= self.fence.length || !names_language(self.fence.info);
            fence.is_alone && is_longer && names_language(fence.info)
        };
        if is_near && fence.is_some_and(|fence| opens(&fence)) {
            return Step::EndedBefore(self);
        }
        self.lines.push(content);
        Step::Inside(self)
    }

    fn is_closed_by(&self, rest: &str) -> bool {
        fence_run(rest).is_some_and(|(mark, length)| {
            let after = rest[length..].trim();
            mark == self.fence.mark
                && length >= self.fence.length
                && (after.is_empty() || after.starts_with('<'))
        })
    }

    fn close(self) -> Part<'a> {
        Part::Fenced { info: self.fence.info, code: self.code() }
    }

    /// Returns a block that no fence closed before the end of the text. The code ends at the first fence within a line that is outside of
    /// string literals, if there is one.
    fn close_at_end(self) -> Part<'a> {
        let mut code = self.code();
        let fence: String = std::iter::repeat_n(self.fence.mark, self.fence.length).collect();
        let closed = statements(&code)
            .iter()
            .flat_map(|statement| &statement.tokens)
            .find(|(at, token)| {
                matches!(token, Token::Foreign("`") | Token::Sign("~"))
                    && code[*at..].starts_with(&fence)
            })
            .map(|(at, _)| *at);
        code.truncate(closed.unwrap_or(code.len()));
        Part::Fenced { info: self.fence.info, code }
    }

    /// Returns the lines without the indentation of the fence, or without the indentation of the first line that is not blank if that is
    /// smaller.
    fn code(&self) -> String {
        let first = self.lines.iter().find(|line| !line.trim().is_empty());
        let indent = first.map_or(0, |line| skip_blanks(line, 0).0).min(self.fence.column);
        let mut code = String::new();
        for line in &self.lines {
            push_dedented(&mut code, line, indent);
        }
        code
    }
}

/// Removes `quotes` block quote markers from a line. Returns `None` if it has fewer.
fn unquote(mut line: &str, quotes: usize) -> Option<&str> {
    for _ in 0..quotes {
        let quoted = line.trim_start_matches([' ', '\t']).strip_prefix('>')?;
        line = quoted.strip_prefix(' ').unwrap_or(quoted);
    }
    Some(line)
}

/// Appends a line without up to `columns` columns of its leading blanks. A tab that extends beyond them is replaced by spaces.
fn push_dedented(code: &mut String, line: &str, columns: usize) {
    let mut column = 0;
    let mut rest = line;
    while column < columns {
        let Some(blank) = rest.chars().next().filter(|it| matches!(it, ' ' | '\t')) else { break };
        column = if blank == '\t' { (column / 4 + 1) * 4 } else { column + 1 };
        rest = &rest[1..];
    }
    code.extend(std::iter::repeat_n(' ', column.saturating_sub(columns)));
    code.push_str(rest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &[(&str, &str)]) {
        let found: Vec<_> = parts(text, &|info| info.starts_with("py"))
            .into_iter()
            .filter_map(|part| match part {
                Part::Fenced { info, code } => Some((info, code)),
                Part::Prose(_) => None,
            })
            .collect();
        let expected: Vec<_> =
            expected.iter().map(|(info, code)| (*info, (*code).to_owned())).collect();
        assert_eq!(found, expected, "{text}");
    }

    #[test]
    fn a_fence_is_closed_by_one_of_its_kind() {
        check("````py\ns = '''\n```\n'''\n````\n", &[("py", "s = '''\n```\n'''\n")]);
        check("~~~py x=1\na\n```\n~~~~\nb", &[("py x=1", "a\n```\n")]);
        check("```py\n    ```\n    a\n   ```", &[("py", "    ```\n    a\n")]);
        check("say ```x``` and ~~~", &[]);
        check("```\r\na\r\n```\r\n", &[("", "a\r\n")]);
    }

    #[test]
    fn a_fence_in_a_list_item_or_a_quote() {
        check("1. say\n\n   ```py\n   a\n     b\n\n   ```\n2. more", &[("py", "a\n  b\n\n")]);
        check("- ```py\n  a\n  ```", &[("py", "a\n")]);
        check("10)\t```py\n\ta\n\t\tb\n\t```", &[("py", "a\n\tb\n")]);
        check("> * x\n>   ```py\n>   a\n>\n>   b\n>   ```", &[("py", "a\n\nb\n")]);
        check("> ```py\n> a\n\nb", &[("py", "a\n")]);
        check("        ```py\n        a\n        ```", &[("py", "a\n")]);
        check("   ```py\na\n    b\n   ```", &[("py", "a\n    b\n")]);
    }

    #[test]
    fn fences_that_deviate_from_markdown_are_found() {
        check("<answer>```py\n    a\n```</answer>", &[("py", "    a\n")]);
        check("Here: ```python\na\n```", &[("python", "a\n")]);
        check("Write ```python and\na", &[]);
        check("```py\na\n\n```py\nb\n```", &[("py", "a\n\n"), ("py", "b\n")]);
        check(
            "````markdown\nSay:\n```py\na\n```\n````",
            &[("markdown", "Say:\n"), ("py", "a\n"), ("", "")],
        );
        check("````py\n```py\n````", &[("py", "```py\n")]);
    }

    #[test]
    fn a_fence_within_a_string_is_not_a_fence() {
        check(
            "def f():\n    \"\"\"Say:\n\n    ```\n    f()\n    ```\n    \"\"\"\n```\nIt is.",
            &[("", "It is.")],
        );
        check("Use \"\"\" so:\n```py\na\n```", &[("py", "a\n")]);
        check("    '''a''' \"\"\"b\"\"\"\n    ```py\n    a\n    ```", &[("py", "a\n")]);
    }

    #[test]
    fn a_block_that_is_not_closed_ends_with_the_text_or_at_a_fence_within_a_line() {
        check("```py\na\nb", &[("py", "a\nb")]);
        check("```py\ns = '```'\nreturn a```\nThat is all.", &[("py", "s = '```'\nreturn a")]);
        check("```py\na\n        ```\nThat is all.", &[("py", "a\n        ")]);
    }

    proptest::proptest! {
        #[test]
        fn every_line_is_read(text in "(```|~~~|py|\n|> |- |1\\. |\t| |<a>|ä){0,60}") {
            let _ = parts(&text, &|info| info.starts_with("py"));
        }
    }
}
