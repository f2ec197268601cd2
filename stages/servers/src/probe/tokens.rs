//! Token ids, log-probabilities and greedy decoding.

use tokio::sync::watch;

use super::finding::{Checked, Finding};
use super::report::Check;
use super::session::{ProbeSession, model_failure};
use crate::canary::CanaryFigures;
use crate::vllm::protocol::SamplingParams;

const RESPONSES_PER_CALL: u32 = 3;
const SHORT_RESPONSE_TOKENS: u32 = 16;

impl ProbeSession {
    pub(super) async fn check_tokens(&mut self) {
        let token_ids = self.check_token_ids().await;
        self.record(Check::TokenIds, token_ids);
        let several = self.check_several_responses().await;
        self.record(Check::SeveralResponses, several);
        let logprobs = self.check_logprobs().await;
        self.noise = logprobs.as_ref().ok().map(|(_, figures)| *figures);
        self.record(Check::Logprobs, logprobs.map(|(finding, _)| finding));
        let greedy = self.check_greedy().await;
        self.record(Check::Greedy, greedy);
        let streaming = self.check_streaming().await;
        self.record(Check::Streaming, streaming);
    }

    pub(super) async fn check_token_ids(&self) -> Checked {
        self.client.check_tokens(self.canary(), &self.salt(0)).await?;
        Ok(Finding::passed("token ids in, token ids with log-probabilities out"))
    }

    async fn check_several_responses(&self) -> Checked {
        let call = self.call(self.prompt(), 1.0, SHORT_RESPONSE_TOKENS);
        let found =
            self.generate_unstreamed(&call, |params| params.n = Some(RESPONSES_PER_CALL)).await?;
        let is_right = found.len() == RESPONSES_PER_CALL as usize
            && found.iter().all(|one| one.sampled.tokens.len() == SHORT_RESPONSE_TOKENS as usize);
        let details =
            format!("expected {RESPONSES_PER_CALL} responses of {SHORT_RESPONSE_TOKENS} tokens");
        Ok(Finding::passed_if(is_right, details).figure("responses", found.len() as f64))
    }

    /// Compares the server's log-probabilities of scored and of sampled tokens with the program's log-probabilities. Returns the finding
    /// and the figures of the comparison if the figures are within the bounds, or else the failed finding.
    async fn check_logprobs(&self) -> Result<(Finding, CanaryFigures), Finding> {
        let mut server = self.client.score(self.canary(), &self.salt(0)).await?;
        let mut reference = self.model.score(self.canary()).map_err(model_failure)?;
        let scored = server.len();
        let prompt = self.prompt();
        let sampled = self
            .generate_one(&self.call(prompt.clone(), 1.0, SHORT_RESPONSE_TOKENS), |_| {})
            .await?
            .sampled;
        reference.extend(self.model_scores(&prompt, &sampled.tokens)?);
        server.extend(&sampled.logprobs);
        let figures = CanaryFigures::compare(&server, &reference, None);
        let passes = figures.passes(&self.config.canary);
        let details = format!("{scored} scored and {} sampled tokens", sampled.tokens.len());
        let finding = Finding::passed_if(passes, details).with_scores(&figures);
        if passes { Ok((finding, figures)) } else { Err(finding) }
    }

    async fn check_greedy(&self) -> Checked {
        let tolerance = self.tolerance();
        let (mut tokens, mut equal, mut largest) = (0_u32, 0_u32, 0.0_f64);
        for share in [4, 2, 1] {
            let prompt = self.canary()[..(self.canary().len() / share).max(1)].to_vec();
            let response = self
                .generate_one(&self.call(prompt.clone(), 0.0, SHORT_RESPONSE_TOKENS), ignore_ends)
                .await?;
            for gap in self.gaps(&prompt, &response.sampled.tokens)? {
                tokens += 1;
                equal += u32::from(gap <= 0.0);
                largest = largest.max(gap);
            }
        }
        let details = "difference to the program's most likely token in nats";
        let finding = Finding::passed_if(largest <= tolerance, details)
            .figure("tokens", f64::from(tokens))
            .figure("equal", f64::from(equal))
            .figure("largest", largest)
            .figure("tolerance", tolerance);
        Ok(finding)
    }

    /// Returns, for each token of a response, the log-probability of the most likely token at its position minus the log-probability of the
    /// token, in nats. Both are from the program's forward pass.
    fn gaps(&self, prompt: &[i32], response: &[i32]) -> Result<Vec<f64>, Finding> {
        let all = [prompt, response].concat();
        let best = self.model.best_logprobs(&all).map_err(model_failure)?;
        let scores = self.model_scores(prompt, response)?;
        let gaps = best[prompt.len() - 1..].iter().zip(scores);
        Ok(gaps.map(|(best, score)| f64::from(*best) - f64::from(score)).collect())
    }

    async fn check_streaming(&self) -> Checked {
        let prompt = self.prompt();
        let whole = self
            .generate_one(&self.call(prompt.clone(), 0.0, SHORT_RESPONSE_TOKENS), |_| {})
            .await?
            .sampled;
        let call = self.call(prompt.clone(), 0.0, SHORT_RESPONSE_TOKENS);
        let streamed = self.generate_streamed(&call, watch::Sender::new(0)).await?.sampled;
        let both = whole.tokens.iter().zip(&streamed.tokens);
        let same = both.take_while(|(one, other)| one == other).count();
        let details = "greedy tokens that are equal with and without `stream`";
        let finding = |passes| Finding::passed_if(passes, details).figure("tokens", same as f64);
        if whole.tokens == streamed.tokens {
            return Ok(finding(true));
        }
        // Batches differ, so one of two tokens of nearly equal probability may be chosen; the tokens after it then have another context.
        let (Some(one), Some(other)) = (whole.tokens.get(same), streamed.tokens.get(same)) else {
            return Ok(finding(false));
        };
        let context = [&prompt[..], &whole.tokens[..same]].concat();
        let next = self.model.next_logprobs(&context).map_err(model_failure)?;
        let of = |token: i32| usize::try_from(token).ok().and_then(|at| next.get(at).copied());
        let gap = of(*one).zip(of(*other)).map(|(one, other)| f64::from((one - other).abs()));
        Ok(finding(gap.is_some_and(|gap| gap <= self.tolerance())))
    }
}

/// Lets a response continue after end-of-sequence tokens. Removes `min_tokens`, which would exclude these tokens from sampling.
pub(super) fn ignore_ends(params: &mut SamplingParams) {
    (params.ignore_eos, params.min_tokens) = (Some(true), None);
}
