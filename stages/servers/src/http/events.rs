//! Server-sent events.

use std::ops::Range;

use reqwest::Response;
use serde::de::DeserializeOwned;

use super::{Endpoint, ServerError};

/// The maximum size of an event in bytes. The log-probabilities of a token take about 100 bytes.
const MAX_EVENT: usize = 16 << 20;

/// The server-sent events of an answer. Dropping this value closes the connection.
pub(crate) struct Events {
    endpoint: Endpoint,
    path: String,
    response: Response,
    parser: EventParser,
}

impl Events {
    pub(super) fn new(endpoint: Endpoint, path: &str, response: Response) -> Self {
        Self { endpoint, path: path.to_owned(), response, parser: EventParser::default() }
    }

    /// Returns the data of the next event; `None` after the last one.
    pub(crate) async fn next(&mut self) -> Result<Option<String>, ServerError> {
        loop {
            if let Some(data) = self.parser.next_event() {
                return String::from_utf8(data).map(Some).map_err(|error| {
                    self.endpoint.invalid_answer(&self.path, "events in UTF-8", error)
                });
            }
            if self.parser.held() > MAX_EVENT {
                let expected = format!("events of at most {MAX_EVENT} bytes");
                return Err(self.endpoint.invalid_answer(&self.path, &expected, "more"));
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.parser.push(&bytes),
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.endpoint.connection_error(&self.path, error)),
            }
        }
    }

    pub(crate) fn json<A: DeserializeOwned>(&self, data: &str) -> Result<A, ServerError> {
        self.endpoint.json(&self.path, data.as_bytes())
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }
}

/// Splits the bytes of an answer into events. Each byte is read once. Lines end with `\n` or `\r\n`; a byte order mark and lines that end
/// with `\r` alone, which the specification also allows, are not supported, since the engines send neither. Comments and fields other than
/// `data` are skipped.
#[derive(Debug, Default)]
struct EventParser {
    bytes: Vec<u8>,
    /// The number of bytes at the beginning of `bytes` that were parsed.
    parsed: usize,
    /// The number of bytes at the beginning of `bytes` that were searched for the end of a line.
    searched: usize,
    /// The data of the event that has begun; `None` between two events.
    data: Option<Vec<u8>>,
}

impl EventParser {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.parsed);
        self.searched -= self.parsed;
        self.parsed = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the number of bytes of the event that is not complete yet.
    fn held(&self) -> usize {
        self.bytes.len() - self.parsed + self.data.as_ref().map_or(0, Vec::len)
    }

    /// Returns the data of the next event; `None` if the event is not complete yet.
    fn next_event(&mut self) -> Option<Vec<u8>> {
        loop {
            let line = self.next_line()?;
            let line = &self.bytes[line];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if let Some(data) = self.data.take() {
                    return Some(data);
                }
            } else if let Some(value) = line.strip_prefix(b"data:") {
                let value = value.strip_prefix(b" ").unwrap_or(value);
                match &mut self.data {
                    Some(data) => {
                        data.push(b'\n');
                        data.extend_from_slice(value);
                    }
                    None => self.data = Some(value.to_vec()),
                }
            }
        }
    }

    /// Returns the place of the next line, without its `\n`; `None` if no whole line is left.
    fn next_line(&mut self) -> Option<Range<usize>> {
        let end = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let Some(end) = end.map(|end| self.searched + end) else {
            self.searched = self.bytes.len();
            return None;
        };
        let line = self.parsed..end;
        (self.parsed, self.searched) = (end + 1, end + 1);
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_their_bytes_arrive() {
        let text = ": ping\n\nevent: x\ndata: one\nid: 1\n\ndata:two\r\ndata:  é\r\n\r\n\n\ndata:\n\ndata: left";
        for size in 1..text.len() {
            let (mut parser, mut found) = (EventParser::default(), Vec::new());
            for bytes in text.as_bytes().chunks(size) {
                parser.push(bytes);
                found.extend(std::iter::from_fn(|| parser.next_event()));
            }
            let found: Vec<_> =
                found.into_iter().map(|data| String::from_utf8(data).unwrap()).collect();
            assert_eq!(found, ["one", "two\n é", ""], "{size}");
            assert_eq!(parser.held(), "data: left".len());
        }
    }
}
