//! Tests with the `python3` of the machine. Without one, they print `skipped`.

mod failures;
mod results;
mod signatures;

use std::time::Duration;

use rollpacker_stages::catalog::read;
use rollpacker_stages::reward::ErrorKind;
use serde_json::Value;
use tempfile::TempDir;

use super::*;

/// The longest time that a test waits for a score.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// A reward whose file is in a folder of its own.
struct Scorer {
    reward: PythonReward,
    folder: TempDir,
}

#[allow(clippy::print_stderr, reason = "a skipped test prints a message")]
fn is_skipped() -> bool {
    let found = std::process::Command::new("python3").arg("--version").output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        eprintln!("skipped: there is no python3");
    }
    !found
}

/// Makes a reward from the text of its file. `options` are those other than `file`.
fn made(code: &str, options: Value) -> Result<Scorer, CatalogError> {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("reward.py");
    std::fs::write(&file, code).expect("written");
    let mut options = options.as_object().expect("options").clone();
    options.insert("file".to_owned(), json!(file));
    Ok(Scorer { reward: PythonReward::new(read(options)?)?, folder })
}

fn scorer(code: &str) -> Scorer {
    with(code, json!({}))
}

fn with(code: &str, options: Value) -> Scorer {
    made(code, options).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the reason why a reward cannot be made.
fn refused(code: &str, options: Value) -> String {
    made(code, options).err().expect("refused").to_string()
}

impl Scorer {
    async fn score(&self, response: &str) -> Result<Score, RewardError> {
        self.score_sample(&sample(response)).await
    }

    async fn score_sample(&self, sample: &Sample) -> Result<Score, RewardError> {
        let context = Context::detached();
        let score = self.reward.score(sample, &context);
        tokio::time::timeout(MAX_WAIT, score).await.expect("it answers")
    }

    async fn value(&self, response: &str) -> f64 {
        self.score(response).await.unwrap_or_else(|error| panic!("{error}")).value
    }

    async fn error(&self, response: &str) -> RewardError {
        self.score(response).await.expect_err("an error")
    }
}

fn sample(response: &str) -> Sample {
    Sample {
        messages: r#"[{"role": "user", "content": "6 * 7?"}]"#.to_owned(),
        extra_info: Some(r#"{"solution": "42", "level": 3}"#.to_owned()),
        response_ids: vec![4, 2],
        ..Sample::of("openai/gsm8k", response, Some("42"))
    }
}
