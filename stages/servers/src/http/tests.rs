use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns an endpoint whose server answers one call with `head`, the status line and headers, and `body`.
fn answering(head: &'static str, body: Vec<u8>) -> Endpoint {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("a client");
        let mut request = [0; 4096];
        let _length = client.read(&mut request).expect("a request");
        let head = format!("HTTP/1.1 {head}\r\nConnection: close\r\n\r\n");
        client.write_all(head.as_bytes()).expect("a client that reads");
        // The client may close the connection before it has read the whole body.
        let _closed = client.write_all(&body);
    });
    Endpoint::new(&url, None).expect("a valid URL")
}

#[tokio::test]
async fn a_success_without_events_is_quoted() {
    let body = br#"{"error": {"message": "out of order"}}"#.to_vec();
    let endpoint = answering("200 OK\r\nContent-Type: application/json", body);
    let error = endpoint.stream("/generate", &()).await.err().expect("an error").to_string();
    let expected =
        "expected the content type `text/event-stream`, found `application/json`: out of order";
    assert!(error.ends_with(expected), "{error}");
}

#[tokio::test]
async fn an_event_without_an_end_is_refused() {
    let kind = "200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8";
    let endpoint = answering(kind, [b"data: ".to_vec(), vec![b'x'; 2 * MAX_ANSWER]].concat());
    let mut events = endpoint.stream("/generate", &()).await.expect("events");
    let error = events.next().await.expect_err("an error");
    assert!(error.to_string().contains("events of at most"), "{error}");
}

#[tokio::test]
async fn a_redirect_names_its_target_and_is_not_retried() {
    let head = "307 Temporary Redirect\r\nLocation: https://other:8000/health";
    let endpoint = answering(head, Vec::new());
    let error = endpoint.text("/health", LIMIT).await.expect_err("a redirect");
    assert!(error.to_string().contains("a redirect to `https://other:8000/health`"), "{error}");
    assert!(!error.is_retryable());
}
