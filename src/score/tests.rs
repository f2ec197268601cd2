use rollpacker_dataflow::clock::WallClock;
use rollpacker_stages::reward::{Reward, RewardError, Score};
use serde_json::Value;

use super::*;

/// A reward for which later rows finish earlier.
struct Backwards;

impl Reward for Backwards {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let row: u64 = sample.response.parse().map_err(RewardError::fatal)?;
        for _ in row..1000 {
            tokio::task::yield_now().await;
        }
        Ok(Score::from(row as f64).component("half", row as f64 / 2.0))
    }
}

fn scoring(concurrency: usize) -> Scoring {
    Scoring {
        router: Router::default().route("*", Backwards),
        columns: ScoreColumns {
            default_data_source: "made-up".to_owned(),
            ..ScoreColumns::default()
        },
        concurrency,
        limits: Limits::default(),
        clock: Arc::new(WallClock::start()),
    }
}

async fn run(concurrency: usize, text: &str) -> (Vec<Value>, ScoreSummary) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    std::fs::write(&path, text).expect("written");
    let mut output = Vec::new();
    let summary = scoring(concurrency).run(&path, &mut output, |_, _| {}).await.expect("scored");
    let lines = String::from_utf8(output).expect("text");
    (lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect(), summary)
}

#[tokio::test]
async fn lines_keep_the_order_of_the_rows() {
    let text: String = (0..200).map(|row| format!("{{\"response\": \"{row}\"}}\n")).collect();
    for concurrency in [1, 3, 500] {
        let (lines, summary) = run(concurrency, &text).await;
        let scores: Vec<_> = lines.iter().map(|line| line["score"].as_f64()).collect();
        assert_eq!(scores, (0..200).map(|row| Some(f64::from(row))).collect::<Vec<_>>());
        assert!(lines.iter().zip(0..).all(|(line, row)| line["index"] == row));
        assert_eq!((summary.rows, summary.scored), (200, 200));
        assert!((summary.mean.expect("scores") - 99.5).abs() < 1e-9);
        assert!((summary.components["half"] - 49.75).abs() < 1e-9);
    }
}

#[tokio::test]
async fn a_file_without_rows_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rows.jsonl");
    for text in ["", "\n\n"] {
        std::fs::write(&path, text).expect("written");
        let scored = scoring(1).run(&path, &mut Vec::new(), |_, _| {}).await;
        let error = scored.expect_err("no rows").to_string();
        assert_eq!(error, format!("{}: expected at least one row, found 0", path.display()));
    }
}

#[tokio::test]
async fn a_row_with_an_error_does_not_affect_other_rows() {
    let (lines, summary) =
        run(2, "{\"response\": \"5\"}\n{nonsense\n{\"response\": \"x\"}\n{\"x\": 1}\n").await;
    assert_eq!(lines[0]["outcome"], "scored");
    assert!(lines[0]["error"].is_null());
    for (line, reason) in [(1, "a JSON object"), (2, "failed: invalid digit"), (3, "`response`")] {
        assert!(lines[line]["score"].is_null());
        assert_eq!(lines[line]["outcome"], "error");
        let error = lines[line]["error"].as_str().expect("an error");
        assert!(error.contains(reason), "{error}");
    }
    assert_eq!(summary.errors, [("fatal".to_owned(), 1), ("input".to_owned(), 2)].into());
    assert_eq!(summary.first_errors["input"].0, 1);
    assert_eq!(summary.by_data_source["made-up"].rows, 2);
    assert_eq!((summary.failed(), summary.mean), (3, Some(5.0)));
}
