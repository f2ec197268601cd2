//! Forwarding a call and its answer.

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;

use super::http::{Request, answer_head, chunk, header, respond, respond_in_chunks};
use super::{Sent, State};

/// Sends a call to the server, and its answer to the client. `change` changes the events of an answer that has any.
pub(super) fn forward(
    state: &State,
    request: &Request,
    client: &mut TcpStream,
    change: impl Fn(usize, &str) -> Sent,
) -> io::Result<()> {
    let (head, mut answer) = called(state, request)?;
    if header(&head, "content-type").is_some_and(|found| found.starts_with("text/event-stream")) {
        return stream(state, &mut answer, client, change);
    }
    let mut body = String::new();
    answer.read_to_string(&mut body)?;
    state.check()?;
    let status = head.lines().next().and_then(|line| line.split_once(' ')).unwrap_or_default().1;
    respond(client, status, "content-type: application/json\r\n", &body)
}

/// Sends a call to the server, and returns the body of a successful answer.
pub(super) fn whole(state: &State, request: &Request) -> io::Result<String> {
    let (head, mut answer) = called(state, request)?;
    let mut body = String::new();
    answer.read_to_string(&mut body)?;
    assert!(head.contains(" 200 OK"), "{head}{body}");
    Ok(body)
}

fn called(state: &State, request: &Request) -> io::Result<(String, BufReader<TcpStream>)> {
    let mut server = TcpStream::connect(state.server()?)?;
    request.send(&mut server)?;
    let mut answer = BufReader::new(server);
    let head = answer_head(&mut answer)?;
    Ok((head, answer))
}

/// Sends events as they arrive.
fn stream(
    state: &State,
    answer: &mut impl BufRead,
    client: &mut TcpStream,
    change: impl Fn(usize, &str) -> Sent,
) -> io::Result<()> {
    respond_in_chunks(client)?;
    let events = answer.lines().filter_map(|line| match line {
        Ok(line) => line.strip_prefix("data: ").map(|data| Ok(data.to_owned())),
        Err(error) => Some(Err(error)),
    });
    for (at, data) in events.enumerate() {
        let data = data?;
        state.check()?;
        // The end of a stream is not JSON.
        let sent = if data == "[DONE]" { Sent::Data(data.clone()) } else { change(at, &data) };
        state.check()?;
        match sent {
            Sent::Data(sent) => chunk(client, &format!("data: {sent}\n\n"))?,
            Sent::Reset => return Err(io::ErrorKind::ConnectionReset.into()),
        }
        if data == "[DONE]" {
            return chunk(client, "");
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}
