//! As much of HTTP as the proxy needs: one call per connection.

use std::io::{self, BufRead, Read, Write};
use std::net::TcpStream;

use super::{SCORE, TOKENS};

/// A call of the client.
pub(super) struct Request {
    pub(super) kind: String,
    /// Method and path.
    line: String,
    pub(super) body: Vec<u8>,
    /// `true` while the last byte of the body is unread: if a connection is closed with unread data, the system resets it.
    has_rest: bool,
}

impl Request {
    /// Reads a call. The last byte of its body stays unread; it is the closing brace of a JSON object.
    pub(super) fn read(connection: &mut TcpStream) -> io::Result<Self> {
        let head = head(connection)?;
        let line = head.split(" HTTP/").next().unwrap_or_default().to_owned();
        let length: usize = header(&head, "content-length").map_or(0, |text| text.parse().unwrap());
        let mut body = vec![0; length.saturating_sub(1)];
        connection.read_exact(&mut body)?;
        let has_rest = length > 0;
        body.extend(has_rest.then_some(b'}'));
        Ok(Self { kind: kind(&line, &body), line, body, has_rest })
    }

    /// Returns a call without a body.
    pub(super) fn get(path: &str) -> Self {
        let line = format!("GET {path}");
        Self { kind: path.to_owned(), line, body: Vec::new(), has_rest: false }
    }

    /// Reads the last byte, so that the connection can be closed without a reset.
    pub(super) fn read_rest(&mut self, connection: &mut TcpStream) {
        if std::mem::take(&mut self.has_rest) {
            // The client may be gone.
            drop(connection.read_exact(&mut [0]));
        }
    }

    /// Sends the call to a server. With this version of HTTP, its answer is not divided into chunks.
    pub(super) fn send(&self, server: &mut TcpStream) -> io::Result<()> {
        let (line, length) = (&self.line, self.body.len());
        let json = "content-type: application/json";
        write!(server, "{line} HTTP/1.0\r\n{json}\r\ncontent-length: {length}\r\n\r\n")?;
        server.write_all(&self.body)
    }
}

fn kind(line: &str, body: &[u8]) -> String {
    let path = line.split([' ', '?']).nth(1).unwrap_or_default();
    let is_streamed = || String::from_utf8_lossy(body).contains("\"stream\":true");
    match path {
        "/inference/v1/generate" if is_streamed() => TOKENS.to_owned(),
        "/inference/v1/generate" => SCORE.to_owned(),
        path => path.to_owned(),
    }
}

/// Reads up to the empty line after the headers, and not further.
fn head(connection: &mut TcpStream) -> io::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        connection.read_exact(&mut byte)?;
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Returns the value of a header.
pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| {
        let (found, value) = line.split_once(':')?;
        found.eq_ignore_ascii_case(name).then_some(value.trim())
    };
    head.lines().find_map(value)
}

/// Reads the head of an answer.
pub(super) fn answer_head(server: &mut impl BufRead) -> io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if server.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}

/// Sends a whole answer.
pub(super) fn respond(
    client: &mut TcpStream,
    status: &str,
    header: &str,
    body: &str,
) -> io::Result<()> {
    let length = body.len();
    let end = "connection: close";
    write!(client, "HTTP/1.1 {status}\r\n{header}{end}\r\ncontent-length: {length}\r\n\r\n{body}")
}

/// Sends the head of an answer whose body follows in chunks.
pub(super) fn respond_in_chunks(client: &mut TcpStream) -> io::Result<()> {
    let headers = "content-type: text/event-stream\r\nconnection: close";
    write!(client, "HTTP/1.1 200 OK\r\n{headers}\r\ntransfer-encoding: chunked\r\n\r\n")
}

/// Sends a chunk; an empty one ends the answer.
pub(super) fn chunk(client: &mut TcpStream, data: &str) -> io::Result<()> {
    client.write_all(format!("{:x}\r\n{data}\r\n", data.len()).as_bytes())
}
