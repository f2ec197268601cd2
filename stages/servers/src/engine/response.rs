//! A response in progress: the tokens that are kept, and those of the call that runs.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_stages::rollout::{Completion, FinishReason, Partial, TokenVersions};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::server::TokenChunk;

/// A response that was requested and not reported yet.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) id: SampleId,
    pub(super) prompt: Arc<[i32]>,
    /// The version of the policy at the time of the request. New tokens are of this version or a later one.
    pub(super) min_version: PolicyVersion,
    kept: KeptTokens,
    /// The running call; `None` while the response waits.
    pub(super) call: Option<RunningCall>,
    /// The number of failed calls in a row. A call of which a token is kept restarts the count.
    pub(super) failed_attempts: u32,
    /// The number of calls that a busy server refused.
    pub(super) busy_refusals: u32,
    /// The number of abort calls that have had no effect.
    pub(super) failed_aborts: u32,
    calls: u32,
    /// `true` once the caller has aborted the response.
    pub(super) is_aborted: bool,
    /// The time of the first call.
    started: Option<Nanos>,
    /// The time of the last token; 0 before the first token.
    finished: Nanos,
    /// The index of the server of the last call; 0 before the first call.
    instance: usize,
}

/// Tokens that are part of the response.
#[derive(Debug, Default)]
struct KeptTokens {
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
    versions: TokenVersions,
}

/// A call that continues a response.
#[derive(Debug)]
pub(super) struct RunningCall {
    /// The number of the call, which distinguishes late reports from current ones.
    pub(super) number: u64,
    /// The id of the request on the server, by which it is aborted.
    pub(super) id: String,
    pub(super) server: usize,
    /// The version of the server's weights at the start of the call.
    pub(super) version: PolicyVersion,
    /// The tokens that the call has returned so far.
    fresh: TokenChunk,
    /// The number of fresh tokens that had arrived when the server began to load other weights; `None` if the server has begun no load. The
    /// versions of later tokens are known only from the server's labels.
    certain: Option<usize>,
    pub(super) task: AbortHandle,
    /// The time of the last abort call, if one was made.
    pub(super) abort_sent: Option<Instant>,
}

impl RunningCall {
    pub(super) fn new(
        number: u64,
        id: String,
        server: usize,
        version: PolicyVersion,
        task: AbortHandle,
    ) -> Self {
        let fresh = TokenChunk::default();
        Self { number, id, server, version, fresh, certain: None, task, abort_sent: None }
    }

    pub(super) fn add(&mut self, chunk: TokenChunk) {
        self.fresh.tokens.extend(chunk.tokens);
        self.fresh.logprobs.extend(chunk.logprobs);
    }

    /// Records that the server begins to load other weights.
    pub(super) fn mark_load_started(&mut self) {
        self.certain.get_or_insert(self.fresh.tokens.len());
    }
}

impl Response {
    pub(super) fn new(
        id: SampleId,
        prompt: Arc<[i32]>,
        min_version: PolicyVersion,
        resumed: Option<Partial>,
    ) -> Self {
        let kept = resumed.map_or_else(KeptTokens::default, |partial| KeptTokens {
            tokens: partial.response_ids,
            logprobs: partial.logprobs,
            versions: partial.token_versions,
        });
        Self {
            id,
            prompt,
            min_version,
            kept,
            call: None,
            failed_attempts: 0,
            busy_refusals: 0,
            failed_aborts: 0,
            calls: 0,
            is_aborted: false,
            started: None,
            finished: Nanos(0),
            instance: 0,
        }
    }

    pub(super) fn kept_tokens(&self) -> u32 {
        u32::try_from(self.kept.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Returns the last kept token; `None` if no token is kept.
    pub(super) fn last_kept(&self) -> Option<i32> {
        self.kept.tokens.last().copied()
    }

    /// Returns the number of tokens of the prompt, the kept tokens and the fresh tokens of the running call.
    pub(super) fn total_tokens(&self) -> u64 {
        let fresh = self.call.as_ref().map_or(0, |call| call.fresh.tokens.len());
        (self.prompt.len() + self.kept.tokens.len() + fresh) as u64
    }

    /// Returns the prompt and the kept tokens.
    pub(super) fn input(&self) -> Vec<i32> {
        [&self.prompt, self.kept.tokens.as_slice()].concat()
    }

    pub(super) fn begin_call(&mut self, call: RunningCall, now: Nanos) {
        self.started.get_or_insert(now);
        self.instance = call.server;
        self.calls += 1;
        self.call = Some(call);
    }

    /// Ends a call whose server reported the versions of all tokens. Keeps all fresh tokens.
    ///
    /// # Errors
    /// Returns the first label that is not an allowed version, and the number of fresh tokens, which are all discarded.
    pub(super) fn keep_labelled(
        &mut self,
        labels: &[(String, usize)],
        allowed: &RangeInclusive<PolicyVersion>,
    ) -> Result<(), (String, usize)> {
        let Some(RunningCall { fresh, .. }) = self.call.take() else { return Ok(()) };
        let mut versions = TokenVersions::default();
        for (label, tokens) in labels {
            match label.parse().ok().map(PolicyVersion).filter(|found| allowed.contains(found)) {
                Some(version) => versions.push_run(version, *tokens),
                None => return Err((label.clone(), fresh.tokens.len())),
            }
        }
        let runs = versions.runs().iter();
        runs.for_each(|&(version, tokens)| self.kept.versions.push_run(version, tokens as usize));
        self.keep(fresh);
        Ok(())
    }

    /// Ends a call without the server's labels. Keeps the fresh tokens that are certainly of the version at the start of the call, and
    /// discards the others. Returns the number of discarded tokens.
    pub(super) fn keep_certain(&mut self) -> usize {
        let Some(RunningCall { mut fresh, certain, version, .. }) = self.call.take() else {
            return 0;
        };
        let all = fresh.tokens.len();
        let kept = certain.unwrap_or(all);
        fresh.tokens.truncate(kept);
        fresh.logprobs.truncate(kept);
        self.kept.versions.push_run(version, kept);
        self.keep(fresh);
        all - kept
    }

    /// Appends the fresh tokens of a call, if there are any, to the kept tokens.
    fn keep(&mut self, fresh: TokenChunk) {
        if !fresh.tokens.is_empty() {
            self.failed_attempts = 0;
        }
        self.kept.tokens.extend(fresh.tokens);
        self.kept.logprobs.extend(fresh.logprobs);
    }

    /// Returns `true` if the running call has no token, and neither the caller nor a load of weights can have aborted it.
    pub(super) fn is_refused(&self) -> bool {
        let is_refused =
            |call: &RunningCall| call.fresh.tokens.is_empty() && call.certain.is_none();
        !self.is_aborted && self.call.as_ref().is_some_and(is_refused)
    }

    /// Ends a call whose tokens cannot be trusted. Returns the number of tokens discarded.
    pub(super) fn discard(&mut self) -> usize {
        self.call.take().map_or(0, |call| call.fresh.tokens.len())
    }

    pub(super) fn record_token_time(&mut self, now: Nanos) {
        self.finished = now;
    }

    pub(super) fn complete(
        self,
        finish_reason: FinishReason,
        now: Nanos,
        detokenize: &dyn Fn(&[i32]) -> String,
    ) -> Completion {
        let started = self.started.unwrap_or(now);
        Completion {
            id: self.id,
            response_length: self.kept_tokens(),
            text: detokenize(&self.kept.tokens),
            response_ids: self.kept.tokens,
            logprobs: self.kept.logprobs,
            token_versions: self.kept.versions,
            finish_reason,
            started,
            finished: self.finished.max(started),
            preemptions: self.calls.saturating_sub(1),
            instance: u32::try_from(self.instance).unwrap_or(u32::MAX),
        }
    }
}

/// Returns the first field of a partial response whose length is wrong, with the expected and the found number of entries. `None` if all
/// lengths agree with `response_length`.
pub(super) fn defect(partial: &Partial) -> Option<(&'static str, String, String)> {
    let expected = partial.response_length as usize;
    let lengths = [
        ("response_ids", partial.response_ids.len()),
        ("logprobs", partial.logprobs.len()),
        ("token_versions", partial.token_versions.len()),
    ];
    let (field, found) = lengths.into_iter().find(|&(_, found)| found != expected)?;
    Some((field, format!("{expected} entries"), found.to_string()))
}
