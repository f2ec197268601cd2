//! A small HTTP server for tests. A function answers every request; it may also never answer or break the connection.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

#[derive(Clone, Debug)]
pub(super) struct Request {
    /// Method, path and headers, in lower case.
    pub(super) head: String,
    pub(super) body: Value,
}

pub(super) enum Reply {
    /// Sends a status, further headers, and a body.
    Text(u16, &'static str, String),
    /// Sends the text as it is and closes the connection.
    Raw(&'static str),
    /// Sends nothing, and waits until the client closes the connection.
    Hang,
}

impl Reply {
    pub(super) fn json(value: &Value) -> Self {
        Self::Text(200, "", value.to_string())
    }
}

/// A running server. Dropping it stops the server.
pub(super) struct Server {
    pub(super) url: String,
    seen: Arc<Seen>,
    _tasks: JoinSet<()>,
}

struct Seen {
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    disconnected: Semaphore,
    arrived: Semaphore,
}

type Answer = dyn Fn(usize, &Request) -> Reply + Send + Sync;

impl Server {
    /// Starts a server. `answer` maps the index of a request, from 0, and the request to a reply.
    pub(super) async fn start(
        answer: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("is bound"));
        let seen = Arc::new(Seen {
            requests: Mutex::default(),
            connections: AtomicUsize::new(0),
            disconnected: Semaphore::new(0),
            arrived: Semaphore::new(0),
        });
        let answer: Arc<Answer> = Arc::new(answer);
        let mut tasks = JoinSet::new();
        let all = Arc::clone(&seen);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                all.connections.fetch_add(1, Ordering::Relaxed);
                connections.spawn(serve(stream, Arc::clone(&all), Arc::clone(&answer)));
            }
        });
        Self { url, seen, _tasks: tasks }
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.seen.requests.lock().expect("no panic").clone()
    }

    pub(super) fn connections(&self) -> usize {
        self.seen.connections.load(Ordering::Relaxed)
    }

    /// Waits until a request arrives. Each request ends one wait, also if it arrived before the wait.
    pub(super) async fn arrived(&self) {
        self.seen.arrived.acquire().await.expect("is open").forget();
    }

    /// Waits until a client closes the connection of a request that got [`Reply::Hang`].
    pub(super) async fn disconnected(&self) {
        self.seen.disconnected.acquire().await.expect("is open").forget();
    }
}

async fn serve(mut stream: TcpStream, seen: Arc<Seen>, answer: Arc<Answer>) {
    while let Some(request) = read(&mut stream).await {
        let number = {
            let mut requests = seen.requests.lock().expect("no panic");
            requests.push(request.clone());
            requests.len() - 1
        };
        seen.arrived.add_permits(1);
        match answer(number, &request) {
            Reply::Text(status, headers, body) => {
                let length = body.len();
                let text = format!(
                    "HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
                );
                drop(stream.write_all(text.as_bytes()).await);
            }
            Reply::Raw(text) => {
                drop(stream.write_all(text.as_bytes()).await);
                return;
            }
            Reply::Hang => {
                if let Ok(0) | Err(_) = stream.read(&mut [0]).await {
                    seen.disconnected.add_permits(1);
                }
                return;
            }
        }
    }
}

async fn read(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        bytes.push(stream.read_u8().await.ok()?);
    };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length?.parse().ok()?];
    stream.read_exact(&mut body).await.ok()?;
    Some(Request { head, body: serde_json::from_slice(&body).ok()? })
}
