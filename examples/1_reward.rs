//! A reward: what it receives, what it returns, and how the data source of a prompt selects it. Nothing is trained.
//!
//! `cargo run --no-default-features --example 1_reward`

#![allow(clippy::print_stdout, reason = "a program")]

use rollpacker::prelude::*;

/// A reward of 1 if the text after the last `marker` is the reference answer, and 0 otherwise.
struct FinalAnswer {
    marker: &'static str,
}

impl Reward for FinalAnswer {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        // A prompt without a reference answer cannot be scored. A wrong response can: it has a low score.
        let expected = sample.ground_truth.as_deref();
        let expected = expected.ok_or_else(|| RewardError::fatal("expected a ground truth"))?;
        let answer = sample.response.rsplit_once(self.marker).map(|(_, answer)| answer.trim());
        let right = answer == Some(expected);
        // Components become metrics, labels are written with the response.
        let score = Score::from(f64::from(right))
            .component("has_answer", f64::from(answer.is_some()))
            .label("answer", answer.unwrap_or("none"));
        Ok(score)
    }
}

/// A reward of 1 for a response without a line break, and 0 otherwise.
struct OneLine;

impl Reward for OneLine {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(Score::from(f64::from(!sample.response.contains('\n'))))
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    // The longest matching pattern determines the reward: `math/poems` goes to `OneLine`.
    let router = Router::default()
        .route("math/*", FinalAnswer { marker: "A:" })
        .route("math/poems", OneLine);
    for (data_source, response, truth) in [
        ("math/sums", "17 + 25 = 42, A: 42", Some("42")),
        ("math/sums", "A: 41", Some("42")),
        ("math/sums", "forty-two", Some("42")),
        ("math/poems", "Roses are red", None),
        ("math/sums", "A: 42", None),
    ] {
        let sample = Sample::of(data_source, response, truth);
        match router.score(&sample, &Context::detached()).await {
            Ok(score) => println!("{response:?}: {} {:?}", score.value, score.labels),
            Err(error) => println!("{response:?}: {error}"),
        }
    }
    Ok(())
}
