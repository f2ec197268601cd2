//! Lines of JSONL files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use crate::error::DatasetError;
use crate::json_object::{JsonObject, parse_object};

/// The UTF-8 byte order mark, which some programs write at the start of a file.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// A position between two lines of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinePosition {
    /// The byte offset.
    pub(super) offset: u64,
    /// The number of lines before it, including blank ones.
    pub(super) lines: u64,
}

/// A reader of the non-blank lines of a file.
#[derive(Debug)]
pub(super) struct Lines<R = File> {
    pub(super) path: Arc<Path>,
    reader: BufReader<R>,
    /// The current line, without trailing white space. The first line is also without a byte order mark.
    pub(super) line: Vec<u8>,
    /// The position after the current line.
    pub(super) end: LinePosition,
}

impl Lines {
    pub(super) fn open(path: &Arc<Path>, at: LinePosition) -> Result<Self, DatasetError> {
        let file = File::open(path).map_err(DatasetError::io(path, "open"))?;
        let mut lines = Self::of(path, file);
        lines.seek(at)?;
        Ok(lines)
    }

    pub(super) fn seek(&mut self, at: LinePosition) -> Result<(), DatasetError> {
        if at != self.end {
            let start = SeekFrom::Start(at.offset);
            self.reader.seek(start).map_err(DatasetError::io(&self.path, "read"))?;
            self.end = at;
        }
        Ok(())
    }
}

impl<R: Read> Lines<R> {
    /// Creates a reader for content that is already open.
    pub(super) fn of(path: &Arc<Path>, content: R) -> Self {
        let reader = BufReader::with_capacity(1 << 16, content);
        Self { path: path.clone(), reader, line: Vec::new(), end: LinePosition::default() }
    }

    /// Parses the current line as [`parse_object`] does. The position of an error is that in the file, from line 1.
    pub(super) fn object(&self) -> Result<JsonObject, String> {
        parse_object(&self.line).map_err(|error| error.at_line(self.end.lines))
    }

    /// Reads the next non-blank line into `line` and returns its start; `None` at the end of the file.
    pub(super) fn next_line(&mut self) -> Result<Option<LinePosition>, DatasetError> {
        loop {
            let start = self.end;
            self.line.clear();
            let read = self
                .reader
                .read_until(b'\n', &mut self.line)
                .map_err(DatasetError::io(&self.path, "read"))?;
            self.end.offset += read as u64;
            self.end.lines += u64::from(read > 0);
            if start.offset == 0 && self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
            match read {
                0 => return Ok(None),
                _ if self.line.iter().all(u8::is_ascii_whitespace) => {}
                _ => {
                    self.line.truncate(self.line.trim_ascii_end().len());
                    return Ok(Some(start));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_order_mark_at_the_start_is_no_part_of_a_line() {
        let content = b"\xef\xbb\xbf{}\n\xef\xbb\xbf\n";
        let mut lines = Lines::of(&Path::new("rows.jsonl").into(), content.as_slice());
        let at = |offset, lines| LinePosition { offset, lines };
        assert_eq!(lines.next_line().unwrap(), Some(at(0, 0)));
        assert_eq!((lines.line.as_slice(), lines.end), (b"{}".as_slice(), at(6, 1)));
        assert_eq!(lines.next_line().unwrap(), Some(at(6, 1)));
        assert_eq!(lines.line, BYTE_ORDER_MARK);
    }
}
