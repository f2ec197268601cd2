//! The log of a server: everything that its process writes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use rollpacker_stages::secret::redact;

/// The maximum number of lines that an error quotes.
const MAX_LINES: usize = 20;
/// The maximum number of bytes at the end of a log from which the quoted lines are taken. A line that begins earlier is left out, because a
/// secret whose beginning is cut off would not be recognized.
const MAX_BYTES: u64 = 16 << 10;

#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// The size of the file in bytes when the current or last process was started.
    begin: u64,
}

impl Log {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, begin: 0 }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the log for another process, or creates it with its folder. Appends a line with `title`, which separates the output of the
    /// process from earlier output.
    pub(super) fn open(&mut self, title: &str) -> io::Result<File> {
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path)?;
        file.write_all(format!("[rollpacker] {title}\n").as_bytes())?;
        self.begin = file.metadata()?.len();
        Ok(file)
    }

    /// Returns the last `MAX_LINES` lines that the current or last process wrote, indented, without secrets and without blank lines.
    /// Returns a note instead if the last line is too long to quote, and an empty string if there are no lines or the log cannot be read.
    pub(super) fn last_lines(&self) -> String {
        let text = self.read_tail().unwrap_or_default();
        let text = redact(&text);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(MAX_LINES)..];
        last.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n")
    }

    fn read_tail(&self) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        let length = file.metadata()?.len();
        let start = self.begin.max(length.saturating_sub(MAX_BYTES));
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        if start > self.begin {
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            match end {
                Some(end) => drop(bytes.drain(..end)),
                None => return Ok("[a line that is too long to quote]".to_owned()),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_last_process_is_quoted() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Log::new(folder.path().join("servers").join("0.log"));
        assert_eq!(log.last_lines(), "");
        log.open("start 1").expect("a file").write_all(b"old\n").expect("written");
        let mut file = log.open("start 2").expect("a file");
        assert_eq!(log.last_lines(), "");
        let lines: Vec<String> = (0..30).map(|line| format!("line {line}\n")).collect();
        file.write_all(lines.concat().as_bytes()).expect("written");
        let quoted = log.last_lines();
        assert!(quoted.starts_with("    line 10\n") && quoted.ends_with("    line 29"), "{quoted}");
        let all = fs::read_to_string(log.path()).expect("a file");
        assert!(all.starts_with("[rollpacker] start 1\nold\n[rollpacker] start 2\nline 0\n"));
    }

    #[test]
    fn a_secret_at_the_cut_is_not_quoted() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Log::new(folder.path().join("0.log"));
        let mut file = log.open("start 1").expect("a file");
        let url = "http://user:password-at-the-cut@host\n";
        let last = "x".repeat(MAX_BYTES as usize - url.len() + "http://user:pass".len());
        file.write_all(format!("{url}{last}").as_bytes()).expect("written");
        assert_eq!(log.last_lines(), format!("    {last}"));
        file.write_all(&[b'x'; MAX_BYTES as usize]).expect("written");
        assert_eq!(log.last_lines(), "    [a line that is too long to quote]");
    }
}
