//! Abort, pause, resume and the label of the weights.

use std::time::Duration;

use tokio::sync::watch;

use super::finding::{Checked, Finding};
use super::report::Check;
use super::session::{ProbeSession, StreamedResponse};
use crate::server::{Call, Finish};
use crate::vllm::protocol::PauseMode;

/// The number of tokens after which a response is interrupted.
const INTERRUPT_TOKENS: usize = 4;
/// The maximum number of attempts to interrupt a response before it reaches its full length.
const MAX_ATTEMPTS: u32 = 4;
/// The time after a pause within which tokens that were sampled before it may still arrive.
const SETTLE_TIME: Duration = Duration::from_millis(200);
/// The duration, after `SETTLE_TIME`, in which no token may arrive.
const SILENT_TIME: Duration = Duration::from_millis(500);
/// The length, in tokens, of the first response that a pause waits for. The length is multiplied by 4 if a response ends before the pause.
const FIRST_WAIT_TOKENS: u32 = 64;

impl ProbeSession {
    pub(super) async fn check_control(&mut self) {
        let abort = self.check_abort().await;
        self.record(Check::Abort, abort);
        let pause = self.check_pause_abort().await;
        self.record(Check::PauseAbort, pause);
        self.resume_if_paused().await;
        let pause = self.check_pause_wait().await;
        self.record(Check::PauseWait, pause);
        self.resume_if_paused().await;
        let pause = self.check_pause_keep().await;
        self.record(Check::PauseKeep, pause);
        self.resume_if_paused().await;
        let label = self.check_label().await;
        self.record(Check::WeightLabel, label);
    }

    /// Resumes after a check that failed, so that the next check is not delayed.
    async fn resume_if_paused(&self) {
        if self.undo.paused.get() {
            // The end of the probe tries again, and reports the error.
            let _tried_again = self.resume().await;
        }
    }

    /// Makes a call, and runs `act` once the response has `tokens` tokens. `act` receives the number of tokens so far as a value that it
    /// can watch. Returns the response and the result of `act`. If either fails, the other is cancelled. Fails if the response ends before
    /// it has `tokens` tokens.
    async fn act_during<A>(
        &self,
        call: &Call,
        tokens: usize,
        act: impl AsyncFnOnce(&mut watch::Receiver<usize>) -> Result<A, Finding>,
    ) -> Result<(StreamedResponse, A), Finding> {
        let (progress, mut seen) = watch::channel(0);
        let acted = async {
            if seen.wait_for(|count| *count >= tokens).await.is_err() {
                let details = format!("a response ended before it had {tokens} tokens");
                return Err(Finding::unchecked(details));
            }
            act(&mut seen).await
        };
        futures::try_join!(self.generate_streamed(call, progress), acted)
    }

    /// Starts a long response and interrupts it with `act`. Repeats this if the response reached its full length, up to `MAX_ATTEMPTS`
    /// attempts in total: a small model is fast, and a busy server sends many tokens at once. Returns the last response, which may still
    /// have its full length.
    async fn interrupt(
        &self,
        act: impl AsyncFn(&Call) -> Result<(), Finding>,
    ) -> Result<StreamedResponse, Finding> {
        let mut attempt = 1;
        loop {
            let call = self.call(self.prompt(), 1.0, self.long_response_tokens());
            let act = async |_: &mut watch::Receiver<usize>| act(&call).await;
            let (streamed, ()) = self.act_during(&call, INTERRUPT_TOKENS, act).await?;
            if streamed.outcome.finish != Finish::Length || attempt == MAX_ATTEMPTS {
                return Ok(streamed);
            }
            attempt += 1;
        }
    }

    async fn check_abort(&self) -> Checked {
        let abort = async |call: &Call| Ok::<_, Finding>(self.client.abort(&call.id).await?);
        Ok(finding_of_interrupted(&self.interrupt(abort).await?, "an aborted response"))
    }

    async fn check_pause_abort(&self) -> Checked {
        let pause = async |_: &Call| {
            self.pause(PauseMode::Abort).await?;
            self.end_pause().await
        };
        Ok(finding_of_interrupted(&self.interrupt(pause).await?, "a response that a pause ended"))
    }

    async fn check_pause_wait(&self) -> Checked {
        let mut tokens = FIRST_WAIT_TOKENS.min(self.long_response_tokens());
        loop {
            let call = self.call(self.prompt(), 1.0, tokens);
            let pause = async |seen: &mut watch::Receiver<usize>| {
                let was_running = *seen.borrow() < tokens as usize;
                self.pause(PauseMode::Wait).await?;
                Ok::<_, Finding>(was_running)
            };
            let (streamed, was_running) = self.act_during(&call, 1, pause).await?;
            self.end_pause().await?;
            if was_running {
                let (found, finish) = (streamed.sampled.tokens.len(), streamed.outcome.finish);
                let is_right = found == tokens as usize && finish == Finish::Length;
                let details = format!("a response of {tokens} tokens that a pause waited for");
                return Ok(Finding::passed_if(is_right, details).figure("tokens", found as f64));
            }
            if tokens >= self.long_response_tokens() {
                return Err(Finding::unchecked("all responses ended before the pause"));
            }
            tokens = (tokens * 4).min(self.long_response_tokens());
        }
    }

    async fn check_pause_keep(&self) -> Checked {
        for _ in 0..MAX_ATTEMPTS {
            if let Some(finding) = self.check_pause_keep_once().await? {
                return Ok(finding);
            }
        }
        Err(Finding::unchecked("all responses ended before the pause"))
    }

    /// Makes one attempt of the check. Returns `None` if the response reached its full length and did not continue after the pause.
    async fn check_pause_keep_once(&self) -> Result<Option<Finding>, Finding> {
        let call = self.call(self.prompt(), 1.0, self.long_response_tokens());
        let pause = async |seen: &mut watch::Receiver<usize>| {
            self.pause(PauseMode::Keep).await?;
            tokio::time::sleep(SETTLE_TIME).await;
            let before = *seen.borrow();
            tokio::time::sleep(SILENT_TIME).await;
            let after = *seen.borrow();
            self.end_pause().await?;
            let continues = seen.wait_for(|count| *count > after).await.is_ok();
            if continues {
                self.client.abort(&call.id).await?;
            }
            Ok::<_, Finding>((after - before, continues))
        };
        let (streamed, (during, continues)) =
            self.act_during(&call, INTERRUPT_TOKENS, pause).await?;
        let tokens = streamed.sampled.tokens.len();
        if !continues && tokens == self.long_response_tokens() as usize {
            return Ok(None);
        }
        let details = match (continues, during) {
            (true, 0) => "a response that continued after the pause",
            (true, _) => "expected no token during the pause, found tokens of a response",
            (false, _) => "expected a response that continues after the pause, found its end",
        };
        let finding = Finding::passed_if(continues && during == 0, details)
            .figure("during_pause", during as f64)
            .figure("tokens", tokens as f64);
        Ok(Some(finding))
    }

    /// Checks that the server reports that it is paused, resumes it, and checks that it samples again.
    async fn end_pause(&self) -> Result<(), Finding> {
        let was_paused = self.client.check_calls().await?;
        self.resume().await?;
        let is_paused = self.client.check_calls().await?;
        match (was_paused, is_paused) {
            (true, false) => self.check_token_ids().await.map(drop),
            (false, _) => Err(Finding::failed("`is_paused` is false during a pause")),
            (_, true) => Err(Finding::failed("`is_paused` is true after `resume`")),
        }
    }

    async fn check_label(&self) -> Checked {
        let first = self.client.reported_label().await?;
        let label = format!("probe-{:016x}", self.nonce);
        self.undo.label.replace(Some(first.clone()));
        self.client.label(&label).await?;
        let call = self.call(self.prompt(), 1.0, INTERRUPT_TOKENS as u32);
        let found = self.generate_streamed(&call, watch::Sender::new(0)).await?.outcome.labels;
        self.set_first_label(&first).await?;
        match found {
            None => Err(Finding::missing("responses have no `weight_versions`")),
            Some(spans) if spans == [(label.clone(), INTERRUPT_TOKENS)] => {
                Ok(Finding::passed("tokens have the label that was set"))
            }
            Some(spans) => Err(Finding::failed(format!(
                "expected {INTERRUPT_TOKENS} tokens with the label `{label}`, found {spans:?}"
            ))),
        }
    }
}

/// Returns the finding for a response that an abort or a pause ended. The client has already compared the numbers of tokens.
fn finding_of_interrupted(streamed: &StreamedResponse, what: &str) -> Finding {
    let (tokens, finish) = (streamed.sampled.tokens.len(), streamed.outcome.finish);
    let finding = match finish {
        Finish::Abort if tokens >= INTERRUPT_TOKENS => {
            Finding::passed(format!("{what} keeps its tokens, and all counts agree"))
        }
        Finish::Abort => {
            Finding::failed(format!("expected {what} to keep at least {INTERRUPT_TOKENS} tokens"))
        }
        _ => Finding::failed(format!("expected {what} to end with `abort`, found {finish:?}")),
    };
    finding.figure("tokens", tokens as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Outcome, TokenChunk};

    #[test]
    fn the_finding_of_an_interrupted_response_tells_its_failure() {
        for (tokens, finish, passes, part) in [
            (INTERRUPT_TOKENS, Finish::Abort, true, "keeps its tokens"),
            (INTERRUPT_TOKENS - 1, Finish::Abort, false, "expected a response to keep at least 4"),
            (INTERRUPT_TOKENS, Finish::Stop, false, "to end with `abort`, found Stop"),
        ] {
            let sampled = TokenChunk { tokens: vec![5; tokens], logprobs: vec![-1.0; tokens] };
            let outcome = Outcome { finish, labels: None };
            let finding =
                finding_of_interrupted(&StreamedResponse { sampled, outcome }, "a response");
            assert_eq!(finding.has_passed(), passes);
            let details = finding.report(Check::Abort).details;
            assert!(details.contains(part), "{details}");
        }
    }
}
