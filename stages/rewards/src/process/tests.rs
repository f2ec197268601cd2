use std::path::Path;
use std::time::Duration;

use rollpacker_stages::reward::{ErrorKind, SharedReward};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use super::*;

/// A reward whose program is a shell: `$line` is the request and `$id` its number.
fn shell(body: &str) -> ProcessReward {
    shells(body, 1)
}

fn shells(body: &str, processes: usize) -> ProcessReward {
    let script = format!(
        r#"while read -r line; do id=${{line##*\"id\":}}; id=${{id%%\}}*}}; id=${{id%%,*}}; {body}; done"#
    );
    let command = ["sh", "-c", &script].map(str::to_owned).to_vec();
    ProcessReward::new(ProcessOptions { command, processes, fields: all() }).expect("options")
}

async fn score(reward: &ProcessReward, response: &str) -> Result<Score, RewardError> {
    reward.score(&Sample::of("any", response, Some("truth")), &Context::detached()).await
}

/// A named pipe. It reaches its end when all possible writers have ended.
fn fifo(folder: &Path) -> (String, pipe::Receiver) {
    let path = folder.join("alive");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("a pipe");
    assert!(made.success());
    let receiver = pipe::OpenOptions::new().open_receiver(&path).expect("opens");
    (path.display().to_string(), receiver)
}

#[tokio::test]
async fn a_process_scores_one_sample_after_the_other() {
    let reward = shell(r#"echo "{\"id\": $id, \"score\": 0.5, \"pid\": $$, \"note\": \"n\"}""#);
    let first = score(&reward, "x").await.expect("scores");
    assert_eq!((first.value, first.labels["note"].as_str()), (0.5, "n"));
    let second = score(&reward, "x").await.expect("scores");
    assert_eq!(first.components["pid"], second.components["pid"], "the process was not killed");
    assert!(!first.components.contains_key("id"));
}

#[tokio::test]
async fn a_request_has_the_fields_of_the_sample() {
    let python = "import sys, json\nfor line in sys.stdin:\n    r = json.loads(line)\n    print(json.dumps({'id': r['id'], \
                  'score': len(r['response']), 'truth': r['ground_truth'], 'keys': ' '.join(sorted(r))}), flush=True)";
    let command = ["python3", "-c", python].map(str::to_owned).to_vec();
    let options = ProcessOptions { command, processes: 1, fields: all() };
    let reward = ProcessReward::new(options).expect("options");
    let long = "ü\n\"".repeat(100_000);
    let found = score(&reward, &long).await.expect("scores");
    assert_eq!((found.value, found.labels["truth"].as_str()), (300_000.0, "truth"));
    assert_eq!(found.labels["keys"], "data_source extra_info ground_truth id messages response");
}

/// The program reads 65536 bytes of a request at most before it answers, and the rest of the line afterwards.
#[tokio::test]
async fn a_process_may_answer_before_it_has_read_the_request() {
    let python = r#"
import os, re
text = b""
while True:
    while not (number := re.match(rb'[^\n]*?"id":(\d+)', text)):
        text += os.read(0, 65536)
    os.write(1, b'{"id": %s, "score": %d}\n' % (number[1], os.getpid()))
    while b"\n" not in text:
        text += os.read(0, 65536)
    text = text[text.index(b"\n") + 1:]
"#;
    let command = ["python3", "-c", python].map(str::to_owned).to_vec();
    let options = ProcessOptions { command, processes: 1, fields: all() };
    let reward = ProcessReward::new(options).expect("options");
    let long = "x".repeat(1 << 20);
    let mut processes = std::collections::BTreeSet::new();
    for response in [&long, "short", &long, &long] {
        let scored = tokio::time::timeout(Duration::from_secs(30), score(&reward, response));
        let found = scored.await.expect("it answers in time").expect("scores");
        processes.insert(found.value.to_bits());
    }
    assert_eq!(processes.len(), 1, "the process was not killed");
}

#[tokio::test]
async fn errors_are_of_their_kind_and_end_no_process() {
    let reward =
        shell(r#"echo "{\"id\": $id, \"error\": \"by $$\", \"kind\": \"not_applicable\"}""#);
    let error = score(&reward, "x").await.expect_err("an error");
    assert_eq!(error.kind, ErrorKind::NotApplicable);
    assert_eq!(score(&reward, "x").await, Err(error), "the process was not killed");
}

#[tokio::test]
async fn a_process_that_exits_is_reported_and_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("mark").display().to_string();
    let reward = shell(&format!(
        r#"if [ -e {mark} ]; then echo "{{\"id\": $id, \"score\": 1}}"; else touch {mark}; echo no luck >&2; exit 3; fi"#
    ));
    let error = score(&reward, "x").await.expect_err("it exits");
    assert_eq!(error.kind, ErrorKind::Retryable);
    let expected = "the process ended before it answered: exit status: 3; its output: no luck";
    assert_eq!(error.reason, expected);
    assert_eq!(score(&reward, "x").await, Ok(1.0.into()));
}

#[tokio::test]
async fn a_process_that_ended_between_two_calls_is_replaced() {
    let reward = shell(r#"echo "{\"id\": $id, \"score\": $$}"; exit"#);
    let first = score(&reward, "x").await.expect("answers");
    while !reward.pool.idle()[0].has_ended() {
        tokio::task::yield_now().await;
    }
    assert_ne!(score(&reward, "x").await.expect("answers"), first);
}

#[tokio::test]
async fn a_process_that_breaks_the_protocol_is_replaced() {
    let check = async |body: &str, expected: &str| {
        let error = score(&shell(body), "x").await.expect_err("broken");
        assert_eq!(error.kind, ErrorKind::Retryable);
        assert!(error.reason.contains(expected), "{error}");
    };
    check("echo loading", "answered `loading`, which is not a line of JSON with the id 0").await;
    check(r#"echo '{"id": 7, "score": 1}'"#, "not a line of JSON with the id 0").await;
    check(r#"head -c 3000000 /dev/zero"#, "a line of over 1048576 bytes").await;
    check("printf half; exit", "ended before it answered").await;
}

#[tokio::test]
async fn secrets_in_process_output_are_redacted() {
    rollpacker_stages::secret::register("key-of-the-process");
    for body in [
        "echo my key-of-the-process >&2; exit",
        "echo my key-of-the-process",
        r#"echo "{\"id\": $id, \"error\": \"my key-of-the-process\"}""#,
        r#"echo "{\"id\": $id, \"score\": \"my key-of-the-process\"}""#,
        "printf '%1990s' x; echo key-of-the-process",
        "(printf my; printf '%1990s' x; echo key-of-the-process; printf '%1980s' x) >&2; exit",
    ] {
        let error = score(&shell(body), "x").await.expect_err("no score").to_string();
        assert!(!error.contains("the-process") && !error.contains("key-of"), "{body}: {error}");
        assert!(error.contains("[redac") || error.contains("acted]"), "{body}: {error}");
    }
}

#[tokio::test]
async fn a_process_that_cannot_start_is_fatal() {
    let command = vec!["/nonexistent/program".to_owned()];
    let options = ProcessOptions { command, processes: 1, fields: all() };
    let error = score(&ProcessReward::new(options).expect("options"), "x").await;
    let error = error.expect_err("there is none");
    assert_eq!(error.kind, ErrorKind::Fatal);
    assert!(error.reason.starts_with("cannot start `/nonexistent/program`: "), "{error}");
}

#[tokio::test]
async fn a_dropped_call_kills_the_whole_group() {
    let folder = tempfile::tempdir().expect("a folder");
    let (alive, mut receiver) = fifo(folder.path());
    // A child of the process ignores SIGTERM and holds the pipe open.
    let body = format!(r#"(trap '' TERM HUP; exec 3>{alive}; echo go >&3; sleep 1000) & wait"#);
    let reward = SharedReward::new(shell(&body));
    let (sample, context) = (Sample::of("any", "x", None), Context::detached());
    let mut bytes = [0; 3];
    let call = async { drop(reward.score(&sample, &context).await) };
    tokio::select! {
        () = call => panic!("it never answers"),
        read = receiver.read_exact(&mut bytes) => drop(read.expect("reads")),
    }
    // Only the call is dropped, not the reward.
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(30), receiver.read_to_end(&mut rest));
    end.await.expect("no process holds the pipe open").expect("the pipe ends");
    assert!(rest.is_empty());
    drop(reward);
}

#[tokio::test]
async fn a_reward_that_is_dropped_leaves_no_process() {
    let folder = tempfile::tempdir().expect("a folder");
    let (alive, mut receiver) = fifo(folder.path());
    let reward = shell(&format!(r#"exec 3>{alive}; echo "{{\"id\": $id, \"score\": 1}}""#));
    assert_eq!(score(&reward, "x").await, Ok(1.0.into()));
    drop(reward);
    let mut rest = Vec::new();
    let end = tokio::time::timeout(Duration::from_secs(30), receiver.read_to_end(&mut rest));
    end.await.expect("no process holds the pipe open").expect("the pipe ends");
}

#[tokio::test]
async fn processes_work_at_the_same_time() {
    // Each call waits for the mark of the other.
    let folder = tempfile::tempdir().expect("a folder");
    let at = folder.path().display();
    let reward = shells(
        &format!(
            r#"if [ $id = 0 ]; then mkfifo {at}/p 2>/dev/null; echo x > {at}/p; else mkfifo {at}/p 2>/dev/null; read -r _ < {at}/p; fi; echo "{{\"id\": $id, \"score\": 1}}""#
        ),
        2,
    );
    let both = futures::future::join(score(&reward, "a"), score(&reward, "b")).await;
    assert_eq!(both, (Ok(1.0.into()), Ok(1.0.into())));
}

#[test]
fn options_are_checked() {
    let check = |command: &[&str], processes, further: &[&str], expected: &str| {
        let command = command.iter().map(|&word| word.to_owned()).collect();
        let mut fields = all();
        fields.extend(further.iter().map(|&name| (name.to_owned(), Field::Response)));
        let options = ProcessOptions { command, processes, fields };
        let error = ProcessReward::new(options).err().expect("wrong").to_string();
        assert_eq!(error, expected);
    };
    check(&[], 1, &[], "`command`: expected a program, found an empty list");
    check(&["true"], 0, &[], "`processes`: expected a number above 0, found 0");
    let taken =
        "`fields`: expected no field `id`, which is reserved for the request number, found one";
    check(&["true"], 1, &["id"], taken);
}
