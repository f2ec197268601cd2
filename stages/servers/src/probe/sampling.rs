//! The checks of the distribution of sampled tokens, and of the ends of responses.

use futures::{StreamExt, TryStreamExt, stream};

use super::chi_square::Bins;
use super::finding::{Checked, Finding};
use super::report::Check;
use super::session::{ProbeSession, model_failure};
use super::tokens::ignore_ends;
use crate::server::Finish;
use crate::vllm::protocol::SamplingParams;

/// The number of draws of a first token.
const DRAWS: u32 = 1024;
/// The number of draws of one call, if the server supports `n`.
const DRAWS_PER_CALL: u32 = 32;
/// The number of concurrent calls.
const CALLS: usize = 8;
/// The minimum p-value that passes. A correct server fails in about one of ten thousand probes.
const MIN_P: f64 = 1e-4;
/// The maximum length, in tokens, of the prompt whose next token is drawn.
const MAX_PROMPT: usize = 16;
/// The maximum length, in tokens, of the responses that check lengths and stop tokens.
const LENGTH: u32 = 8;

impl ProbeSession {
    pub(super) async fn check_sampling(&mut self) {
        let sampling = self.check_distribution().await;
        self.record(Check::Sampling, sampling);
        let stop = self.check_stop_and_length().await;
        self.record(Check::StopAndLength, stop);
        let min_tokens = self.check_min_tokens().await;
        self.record(Check::MinTokens, min_tokens);
    }

    async fn check_distribution(&self) -> Checked {
        let (prompt, bins) = self.bins()?;
        let tokens = self.draw(&prompt).await?;
        let Some(test) = bins.test(&tokens) else {
            return Err(Finding::failed("a sampled token is not in the vocabulary"));
        };
        let details = format!(
            "chi-square test of {} first tokens at temperature 1, p of at least {MIN_P}",
            tokens.len()
        );
        let finding = Finding::passed_if(test.p >= MIN_P, details)
            .figure("p", test.p)
            .figure("chi_square", test.statistic)
            .figure("degrees", test.degrees as f64);
        Ok(finding)
    }

    /// Returns the prefix of the canary after which the next token has the most bins, and these bins. A prefix has at most `MAX_PROMPT`
    /// tokens. Fails if no prefix has more than one bin.
    fn bins(&self) -> Result<(Vec<i32>, Bins), Finding> {
        let mut best: Option<(Vec<i32>, Bins)> = None;
        for length in 1..=self.canary().len().min(MAX_PROMPT) {
            let prompt = self.canary()[..length].to_vec();
            let bins = Bins::new(
                &self.model.next_logprobs(&prompt).map_err(model_failure)?,
                DRAWS as usize,
            );
            if best.as_ref().is_none_or(|(_, best)| bins.len() > best.len()) {
                best = Some((prompt, bins));
            }
        }
        let certain = || Finding::unchecked("the model is certain of each token of the canary");
        best.filter(|(_, bins)| bins.len() > 1).ok_or_else(certain)
    }

    /// Draws the first token after a prompt `DRAWS` times.
    async fn draw(&self, prompt: &[i32]) -> Result<Vec<i32>, Finding> {
        let per_call = if self.passed(Check::SeveralResponses) { DRAWS_PER_CALL } else { 1 };
        let calls = (0..DRAWS / per_call).map(|_| async move {
            let call = self.call(prompt.to_vec(), 1.0, 1);
            self.generate_unstreamed(&call, |params| {
                (params.n, params.min_tokens) = (Some(per_call), None)
            })
            .await
        });
        let responses: Vec<_> = stream::iter(calls).buffer_unordered(CALLS).try_collect().await?;
        let firsts = responses.iter().flatten().filter_map(|one| one.sampled.tokens.first());
        let tokens: Vec<i32> = firsts.copied().collect();
        if tokens.len() == DRAWS as usize {
            return Ok(tokens);
        }
        Err(Finding::failed(format!("expected {DRAWS} first tokens, found {}", tokens.len())))
    }

    async fn check_stop_and_length(&self) -> Checked {
        let prompt = self.prompt();
        let ended = self.generate_one(&self.call(prompt.clone(), 0.0, LENGTH), ignore_ends).await?;
        let tokens = ended.sampled.tokens;
        if ended.finish != Finish::Length || tokens.len() != LENGTH as usize {
            let found = format!("{} tokens and the end {:?}", tokens.len(), ended.finish);
            return Err(Finding::failed(format!("expected {LENGTH} tokens, found {found}")));
        }
        // The same response again, with one of its tokens as its end.
        let stop = tokens[tokens.len() / 2];
        let call = self.call(prompt, 0.0, LENGTH);
        let with_stop = |params: &mut SamplingParams| {
            ignore_ends(params);
            params.stop_token_ids = Some(vec![stop]);
        };
        let ended = self.generate_one(&call, with_stop).await?;
        let at = ended.sampled.tokens.iter().position(|token| *token == stop);
        let Some(at) = at else {
            return Err(Finding::unchecked("a greedy response had other tokens the second time"));
        };
        let is_right = ended.finish == Finish::Stop && at + 1 == ended.sampled.tokens.len();
        let details = format!("a response of {LENGTH} tokens, and one that ends with a stop token");
        Ok(Finding::passed_if(is_right, details).figure("stop_at", (at + 1) as f64))
    }

    async fn check_min_tokens(&self) -> Checked {
        let prompt = self.prompt();
        let free = self.generate_one(&self.call(prompt.clone(), 0.0, 1), ignore_ends).await?;
        // The most likely first token must not be chosen while it would end the response.
        let stop = free.sampled.tokens.clone();
        let call = self.call(prompt.clone(), 0.0, LENGTH);
        let with_stop = |params: &mut SamplingParams| {
            params.stop_token_ids = Some(stop.clone());
            params.min_tokens = Some(LENGTH / 2);
        };
        let held = self.generate_one(&call, with_stop).await?.sampled.tokens;
        let early = held.iter().take(LENGTH as usize / 2).any(|token| stop.contains(token));
        let longest = self.long_response_tokens().min(128);
        let endless = self.generate_one(&self.call(prompt, 1.0, longest), ignore_ends).await?;
        let is_right = !early
            && held.len() >= LENGTH as usize / 2
            && endless.sampled.tokens.len() == longest as usize
            && endless.finish == Finish::Length;
        let details = format!(
            "a response with a stop token that waits for {} tokens, and one that ignores ends",
            LENGTH / 2
        );
        let finding = Finding::passed_if(is_right, details)
            .figure("shortest", held.len() as f64)
            .figure("longest", endless.sampled.tokens.len() as f64);
        Ok(finding)
    }
}
