//! A local judge behind an OpenAI-compatible API. It can stop in the middle of a run.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

/// A server that judges responses until it stops.
pub(crate) struct JudgeServer {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    address: SocketAddr,
    /// The number of answers before the server stops.
    left: AtomicUsize,
    answered: AtomicUsize,
}

/// The verdict of the server on a response.
pub(crate) fn verdict(response: &str) -> bool {
    response.len().is_multiple_of(3)
}

impl JudgeServer {
    /// Starts a server that gives this many answers. Later requests are closed without an answer, and the server stops listening.
    pub(crate) fn start(answers: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("is bound");
        let (left, answered) = (AtomicUsize::new(answers), AtomicUsize::new(0));
        let state = Arc::new(State { address, left, answered });
        let all = state.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                if all.is_dead() {
                    return;
                }
                let state = all.clone();
                std::thread::spawn(move || state.serve(&connection));
            }
        });
        Self { address, state }
    }

    /// Returns the address of the server, as the reward option `base_url` takes it.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(crate) fn answered(&self) -> usize {
        self.state.answered.load(Ordering::SeqCst)
    }
}

impl State {
    fn is_dead(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }

    fn serve(&self, mut connection: &TcpStream) {
        let mut reader = BufReader::new(connection);
        while let Some(request) = read(&mut reader) {
            let take = |left: usize| left.checked_sub(1);
            let Ok(before) = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            else {
                return;
            };
            self.answered.fetch_add(1, Ordering::SeqCst);
            let body = answer(&request).to_string();
            let length = body.len();
            let text = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{body}");
            // The write fails if the client has already ended, which is not an error of the server.
            drop(connection.write_all(text.as_bytes()));
            if before == 1 {
                // This connection wakes the listener, which then ends.
                drop(TcpStream::connect(self.address));
            }
        }
    }
}

/// Returns the verdict on the response in a request, as an answer of the API.
fn answer(request: &Value) -> Value {
    assert_eq!(request["model"], "judge");
    let prompt = request["messages"][0]["content"].as_str().expect("a text");
    let verdict_line =
        if verdict(judged_response(prompt)) { "Verdict: YES" } else { "Verdict: NO" };
    json!({"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": verdict_line}}]})
}

/// Returns the judged response, which is between the first and the last line of the prompt.
fn judged_response(prompt: &str) -> &str {
    let inner = prompt.split_once('\n').and_then(|(_, rest)| rest.rsplit_once('\n'));
    inner.expect("a response between two lines").0
}

fn read(reader: &mut impl BufRead) -> Option<Value> {
    let lines = reader.by_ref().lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    assert!(head.first()?.starts_with("POST /v1/chat/completions "), "{head:?}");
    let length = head
        .iter()
        .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.expect("a length")];
    reader.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}
