//! Tests of functions that fail, end their process, hang or flood their output.

use super::*;

/// A function that follows the response: `die`, `hang`, `flood`, ...; other responses score 1.
const FOLLOWING: &str = r#"
import asyncio, ctypes, os, sys, threading, time

def inner(n):
    return {}[n]

def compute_score(solution_str, **_):
    if solution_str == "raise":
        return inner(7)
    if solution_str == "deep":
        return compute_score_again()
    if solution_str == "chained":
        try:
            inner(8)
        except KeyError as error:
            raise ValueError("wrapped ü\ud800") from error
    if solution_str == "exit":
        sys.exit("by itself")
    if solution_str == "refused":
        raise ConnectionRefusedError("nobody listens")
    if solution_str == "late":
        raise asyncio.TimeoutError()
    if solution_str == "die":
        print("last words", file=sys.stderr)
        os._exit(3)
    if solution_str == "segfault":
        ctypes.string_at(0)
    if solution_str == "hang":
        while True:
            pass
    if solution_str == "flood":
        for _ in range(50):
            print("x" * 100_000)
            os.write(2, b"y" * 100_000)
    if solution_str == "print":
        print('{"id": 0, "score": 9}')
        os.write(1, b'{"id": 0, "score": 9}\n')
        sys.__stdout__.write('{"id": 0, "score": 9}\n')
        sys.__stdout__.flush()
    if solution_str == "read":
        return len(sys.stdin.read())
    if solution_str == "fork":
        child = os.fork()
        if child == 0:
            return 9
        os.waitpid(child, 0)
    if solution_str == "orphan":
        if os.fork() == 0:
            time.sleep(1000)
        os._exit(4)
    return 1

def compute_score_again():
    return compute_score_again()
"#;

#[tokio::test]
async fn an_exception_has_its_traceback_and_ends_no_process() {
    if is_skipped() {
        return;
    }
    let scorer = scorer(FOLLOWING);
    let error = scorer.error("raise").await;
    assert_eq!(error.kind, ErrorKind::Fatal);
    let reason = error.reason;
    assert!(reason.starts_with("`compute_score` raised KeyError: 7\nTraceback (most"), "{reason}");
    assert!(reason.contains("reward.py\", line 9, in compute_score"), "{reason}");
    assert!(reason.contains("in inner\n    return {}[n]"), "{reason}");
    assert!(!reason.contains("<rollpacker>"), "{reason}");
    let chained = scorer.error("chained").await.reason;
    assert!(chained.starts_with("`compute_score` raised ValueError: wrapped ü?\n"), "{chained}");
    assert!(chained.contains("KeyError: 8") && chained.contains("direct cause"), "{chained}");
    let deep = scorer.error("deep").await.reason;
    assert!(deep.contains("raised RecursionError: ") && deep.len() < 3000, "{deep}");
    let exit = scorer.error("exit").await.reason;
    assert!(exit.starts_with("`compute_score` raised SystemExit: by itself"), "{exit}");
    for temporary in ["refused", "late"] {
        assert_eq!(scorer.error(temporary).await.kind, ErrorKind::Retryable, "{temporary}");
    }
    assert_eq!(scorer.value("x").await, 1.0);
}

#[tokio::test]
async fn a_process_that_dies_loses_only_its_sample() {
    if is_skipped() {
        return;
    }
    let scorer = with(FOLLOWING, json!({"processes": 2}));
    for (response, expected) in [
        ("die", "ended before it answered: exit status: 3; its output: last words"),
        ("segfault", "SIGSEGV"),
        ("orphan", "exit status: 4"),
    ] {
        let (died, scored) = tokio::join!(scorer.score(response), scorer.score("x"));
        let error = died.expect_err("it died");
        assert_eq!(error.kind, ErrorKind::Retryable, "{error}");
        assert!(error.reason.contains(expected), "{error}");
        assert_eq!(scored, Ok(1.0.into()));
        assert_eq!(scorer.value("x").await, 1.0);
    }
}

#[tokio::test]
async fn a_function_that_hangs_loses_only_its_sample() {
    if is_skipped() {
        return;
    }
    // Loading takes longer than a call may.
    let code = format!("import time\ntime.sleep(2)\n{FOLLOWING}");
    let scorer = with(&code, json!({"processes": 2, "timeout_s": 1.5}));
    let (hung, one, two) = tokio::join!(scorer.score("hang"), scorer.score("x"), scorer.score("x"));
    let error = hung.expect_err("it hangs");
    assert_eq!((error.kind, error.reason.as_str()), (ErrorKind::Timeout, "took longer than 1.5s"));
    assert_eq!((one, two), (Ok(1.0.into()), Ok(1.0.into())));
    assert_eq!(scorer.value("x").await, 1.0);
}

#[tokio::test]
async fn output_neither_blocks_nor_forges_answers() {
    if is_skipped() {
        return;
    }
    let scorer = scorer(FOLLOWING);
    for (response, expected) in [("flood", 1.0), ("print", 1.0), ("read", 0.0), ("fork", 1.0)] {
        assert_eq!(scorer.value(response).await, expected, "{response}");
    }
    scorer.value("flood").await;
    let error = scorer.error("die").await;
    assert!(error.reason.len() < 3000 && error.reason.ends_with("last words"), "{error}");
}

#[tokio::test]
async fn processes_work_at_the_same_time_and_answers_keep_their_samples() {
    if is_skipped() {
        return;
    }
    // Each of the first two calls waits for the mark of the other.
    let code = r#"
import os, time
HERE = os.path.dirname(os.path.abspath(__file__))

def compute_score(solution_str, **_):
    number = int(solution_str)
    if number < 2:
        open(os.path.join(HERE, str(number)), "w").close()
        while not os.path.exists(os.path.join(HERE, str(1 - number))):
            time.sleep(0.001)
    return {"score": number, "pid": os.getpid()}
"#;
    let scorer = with(code, json!({"processes": 2}));
    let responses: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let calls = responses.iter().map(|response| scorer.score(response));
    let scores = futures::future::join_all(calls).await;
    let scores: Vec<Score> = scores.into_iter().map(|score| score.expect("scores")).collect();
    let values: Vec<f64> = scores.iter().map(|score| score.value).collect();
    assert_eq!(values, (0..100).map(f64::from).collect::<Vec<_>>());
    let processes: std::collections::BTreeSet<u64> =
        scores.iter().map(|score| score.components["pid"].to_bits()).collect();
    assert_eq!(processes.len(), 2);
}

#[tokio::test]
async fn one_loop_serves_all_calls_of_a_coroutine_function() {
    if is_skipped() {
        return;
    }
    let code = "import asyncio\nlock = None\n\
                async def compute_score(solution_str, **_):\n    global lock\n    lock = lock or asyncio.get_running_loop().create_future()\n    \
                if solution_str == 'set':\n        lock.set_result(5)\n    return await asyncio.wait_for(lock, 30) if lock.done() else 0";
    let scorer = scorer(code);
    assert_eq!(scorer.value("x").await, 0.0);
    assert_eq!(scorer.value("set").await, 5.0);
}

#[tokio::test]
async fn a_process_ends_when_its_pipe_is_closed() {
    if is_skipped() {
        return;
    }
    // The runner alone, without a reward that would kill it.
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("reward.py");
    std::fs::write(&file, FOLLOWING).expect("written");
    let options = json!({"file": file}).as_object().expect("options").clone();
    let mut first = setup(&read(options).expect("options"));
    first.insert("id".to_owned(), 0.into());
    let mut child = tokio::process::Command::new("python3")
        .args(["-c", START])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .process_group(0)
        .spawn()
        .expect("starts");
    let mut stdin = child.stdin.take().expect("piped");
    let first = format!("{}\n", serde_json::Value::Object(first));
    tokio::io::AsyncWriteExt::write_all(&mut stdin, first.as_bytes()).await.expect("written");
    let mut loaded = tokio::io::BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    let read = tokio::io::AsyncBufReadExt::read_line(&mut loaded, &mut line);
    tokio::time::timeout(MAX_WAIT, read).await.expect("it answers").expect("reads");
    assert!(line.contains("compute_score"), "{line}");
    let hang = json!({"id": 1, "data_source": "", "solution_str": "hang", "ground_truth": null, "extra_info": {}});
    let hang = format!("{hang}\n");
    tokio::io::AsyncWriteExt::write_all(&mut stdin, hang.as_bytes()).await.expect("written");
    drop(stdin);
    let ended = tokio::time::timeout(MAX_WAIT, child.wait()).await.expect("it ends");
    let status = ended.expect("waits");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
}
