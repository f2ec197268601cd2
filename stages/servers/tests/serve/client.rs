//! A small HTTP client, which shows answers as they are on the wire.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// Returns the data of the server-sent events without the last, which must be `[DONE]`.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert!(self.head.to_lowercase().contains("content-type: text/event-stream"));
        let lines = self.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let mut data: Vec<&str> = lines.collect();
        assert_eq!(data.pop(), Some("[DONE]"));
        data.iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Returns the status, the message and the parameter of an error.
    pub(crate) fn error(&self) -> (u16, String, Value) {
        let error = &self.json()["error"];
        assert_eq!(error["code"], self.status);
        (self.status, error["message"].as_str().unwrap().to_owned(), error["param"].clone())
    }
}

/// Sends a call without waiting for its answer.
pub(crate) fn send(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect(server).unwrap();
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

pub(crate) fn receive(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // Only a test that would hang waits that long.
    stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(body) } else { body.to_owned() };
    Answer { status, head: head.to_owned(), body }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole += &rest[..length];
        body = &rest[length + 2..];
        if length == 0 {
            break;
        }
    }
    whole
}
