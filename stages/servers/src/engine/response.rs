//! A response in progress: the tokens that are kept, and those of the call that runs.

use std::ops::RangeInclusive;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_stages::rollout::{Completion, FinishReason, Partial, TokenVersions};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::server::Piece;

/// A response that was requested and not reported yet.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) id: SampleId,
    pub(super) prompt: Arc<[i32]>,
    /// The version of the policy at the time of the request. New tokens are of this version or a later one.
    pub(super) oldest: PolicyVersion,
    kept: Kept,
    pub(super) call: Option<Running>,
    /// The number of calls in a row that failed and brought no token.
    pub(super) failed_attempts: u32,
    /// The number of calls that a busy server refused.
    pub(super) busy: u32,
    /// The number of aborts that had no effect yet.
    pub(super) aborts: u32,
    /// The number of calls that were made.
    calls: u32,
    pub(super) is_aborted: bool,
    started: Option<Nanos>,
    finished: Nanos,
    /// The server of the last call.
    instance: usize,
}

/// Tokens that are part of the response.
#[derive(Debug, Default)]
struct Kept {
    tokens: Vec<i32>,
    logprobs: Vec<f32>,
    versions: TokenVersions,
}

/// A call that continues a response.
#[derive(Debug)]
pub(super) struct Running {
    /// The number of the call, which distinguishes late reports from current ones.
    pub(super) number: u64,
    /// The id of the request.
    pub(super) id: String,
    pub(super) server: usize,
    /// The version of the server's weights at the start of the call.
    pub(super) version: PolicyVersion,
    fresh: Piece,
    /// The number of fresh tokens that had arrived when the server began to load other weights. The versions of later ones are known only
    /// from the server's labels.
    certain: Option<usize>,
    pub(super) task: AbortHandle,
    /// The time of the last abort call, if one was made.
    pub(super) abort_sent: Option<Instant>,
}

impl Running {
    pub(super) fn new(
        number: u64,
        id: String,
        server: usize,
        version: PolicyVersion,
        task: AbortHandle,
    ) -> Self {
        let fresh = Piece::default();
        Self { number, id, server, version, fresh, certain: None, task, abort_sent: None }
    }

    pub(super) fn add(&mut self, piece: Piece) {
        self.fresh.tokens.extend(piece.tokens);
        self.fresh.logprobs.extend(piece.logprobs);
    }

    /// Records that the server begins to load other weights.
    pub(super) fn server_loads(&mut self) {
        self.certain.get_or_insert(self.fresh.tokens.len());
    }
}

impl Response {
    pub(super) fn new(
        id: SampleId,
        prompt: Arc<[i32]>,
        oldest: PolicyVersion,
        resumed: Option<Partial>,
    ) -> Self {
        let kept = resumed.map_or_else(Kept::default, |partial| Kept {
            tokens: partial.response_ids,
            logprobs: partial.logprobs,
            versions: partial.token_versions,
        });
        Self {
            id,
            prompt,
            oldest,
            kept,
            call: None,
            failed_attempts: 0,
            busy: 0,
            aborts: 0,
            calls: 0,
            is_aborted: false,
            started: None,
            finished: Nanos(0),
            instance: 0,
        }
    }

    /// Returns the number of kept tokens.
    pub(super) fn kept(&self) -> u32 {
        u32::try_from(self.kept.tokens.len()).unwrap_or(u32::MAX)
    }

    /// Returns the last kept token.
    pub(super) fn last(&self) -> Option<i32> {
        self.kept.tokens.last().copied()
    }

    /// Returns the number of tokens of prompt and response.
    pub(super) fn tokens(&self) -> u64 {
        let fresh = self.call.as_ref().map_or(0, |call| call.fresh.tokens.len());
        (self.prompt.len() + self.kept.tokens.len() + fresh) as u64
    }

    /// Returns the prompt and the kept tokens.
    pub(super) fn input(&self) -> Vec<i32> {
        [&self.prompt, self.kept.tokens.as_slice()].concat()
    }

    /// Starts a call.
    pub(super) fn run(&mut self, call: Running, now: Nanos) {
        self.started.get_or_insert(now);
        self.instance = call.server;
        self.calls += 1;
        self.call = Some(call);
    }

    /// Ends a call whose server reported the versions of all tokens. Returns the number of tokens kept.
    ///
    /// # Errors
    /// The first label that is not an allowed version; all fresh tokens are discarded then, and their number is returned, too.
    pub(super) fn keep_labelled(
        &mut self,
        labels: &[(String, usize)],
        allowed: &RangeInclusive<PolicyVersion>,
    ) -> Result<usize, (String, usize)> {
        let Some(Running { fresh, .. }) = self.call.take() else { return Ok(0) };
        let mut versions = TokenVersions::default();
        for (label, tokens) in labels {
            match label.parse().ok().map(PolicyVersion).filter(|found| allowed.contains(found)) {
                Some(version) => versions.push_run(version, *tokens),
                None => return Err((label.clone(), fresh.tokens.len())),
            }
        }
        let count = fresh.tokens.len();
        self.kept.tokens.extend(fresh.tokens);
        self.kept.logprobs.extend(fresh.logprobs);
        let runs = versions.runs().iter();
        runs.for_each(|&(version, tokens)| self.kept.versions.push_run(version, tokens as usize));
        Ok(count)
    }

    /// Ends a call without the server's labels. The tokens that are certainly of the version at the start of the call are kept, the others
    /// are discarded. Returns the numbers of both.
    pub(super) fn keep_certain(&mut self) -> (usize, usize) {
        let Some(Running { mut fresh, certain, version, .. }) = self.call.take() else {
            return (0, 0);
        };
        let all = fresh.tokens.len();
        let kept = certain.unwrap_or(all);
        fresh.tokens.truncate(kept);
        fresh.logprobs.truncate(kept);
        self.kept.versions.push_run(version, kept);
        self.kept.tokens.extend(fresh.tokens);
        self.kept.logprobs.extend(fresh.logprobs);
        (kept, all - kept)
    }

    /// Ends a call whose tokens cannot be trusted. Returns the number of tokens discarded.
    pub(super) fn discard(&mut self) -> usize {
        self.call.take().map_or(0, |call| call.fresh.tokens.len())
    }

    /// Records the time of the last token.
    pub(super) fn moved(&mut self, now: Nanos) {
        self.finished = now;
    }

    /// Returns the report of the response.
    pub(super) fn complete(
        self,
        finish_reason: FinishReason,
        now: Nanos,
        detokenize: &dyn Fn(&[i32]) -> String,
    ) -> Completion {
        let started = self.started.unwrap_or(now);
        Completion {
            id: self.id,
            response_length: self.kept(),
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

/// Returns the defect of a partial response: the field, the expected value and the value found.
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
