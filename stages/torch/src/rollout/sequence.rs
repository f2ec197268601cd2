//! A response in flight.

use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Tick};
use rollpacker_stages::serving::EndTokens;

use super::race::Launch;
use super::sampling::{RandomStream, Sampling};
use super::{Completion, FinishReason, Partial, TokenVersions};

/// The inputs that determine the next token of a response, besides the logits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TokenDraw {
    /// The sampling options, of which temperature, top-k and top-p determine the token.
    pub(crate) sampling: Sampling,
    /// Uniform number in [0, 1) at which the distribution is inverted.
    pub(crate) uniform: f64,
    /// `true` if an end-of-sequence token may be sampled.
    pub(crate) may_end: bool,
    /// `true` if the response reaches its forced length, so that an end-of-sequence token replaces the sampled token.
    pub(crate) must_end: bool,
}

/// A prompt with the tokens sampled so far.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub(crate) id: SampleId,
    pub(crate) prompt_ids: Arc<[i32]>,
    /// The sampling options of the response, including the limits on its length.
    pub(crate) sampling: Sampling,
    /// The tokens that end the response; by default the end-of-sequence tokens of the model.
    pub(crate) ends: EndTokens,
    /// Forced length of the response, in tokens; `None` unless lengths are replayed.
    pub(crate) forced_length: Option<u32>,
    /// The circumstances of the request, used in deterministic mode.
    pub(crate) launch: Launch,
    /// Number of leading tokens whose keys and values are in the cache.
    pub(crate) cached: usize,
    /// The policy version that prefilled the cache. Later tokens may have been computed by newer versions.
    pub(crate) cache_version: PolicyVersion,
    /// Number of times that the cached tokens were dropped.
    pub(crate) preemptions: u32,
    started: Option<Nanos>,
    stream: RandomStream,
    response_ids: Vec<i32>,
    logprobs: Vec<f32>,
    token_versions: TokenVersions,
}

impl Sequence {
    pub(crate) fn new(
        id: SampleId,
        prompt_ids: Arc<[i32]>,
        sampling: Sampling,
        stream: RandomStream,
    ) -> Self {
        Self {
            id,
            prompt_ids,
            sampling,
            ends: EndTokens::default(),
            forced_length: None,
            launch: Launch::default(),
            cached: 0,
            cache_version: PolicyVersion::default(),
            preemptions: 0,
            started: None,
            stream,
            response_ids: Vec::new(),
            logprobs: Vec::new(),
            token_versions: TokenVersions::default(),
        }
    }

    /// Sets the length at which the response is forced to end, in tokens; `None` lets the response end by itself.
    pub(crate) fn with_forced_length(self, forced_length: Option<u32>) -> Self {
        Self { forced_length, ..self }
    }

    pub(crate) fn with_end_tokens(self, ends: EndTokens) -> Self {
        Self { ends, ..self }
    }

    pub(super) fn with_launch(self, launch: Launch) -> Self {
        Self { launch, ..self }
    }

    /// Returns the tick that the response has reached.
    pub(super) fn tick(&self) -> Tick {
        self.launch.tick_at_length(self.response_ids.len())
    }

    /// Adds the tokens that an earlier request sampled. The next token is sampled as if the response had not been interrupted. A forced
    /// length is raised so that the response gets at least one more token.
    pub(crate) fn resume(self, partial: &Partial) -> Self {
        Self {
            stream: self.stream.skip(partial.response_length),
            forced_length: self.forced_length.map(|forced| forced.max(partial.response_length + 1)),
            response_ids: partial.response_ids.clone(),
            logprobs: partial.logprobs.clone(),
            token_versions: partial.token_versions.clone(),
            ..self
        }
    }

    /// Returns the number of tokens of prompt and response.
    pub(crate) fn tokens(&self) -> usize {
        self.prompt_ids.len() + self.response_ids.len()
    }

    /// Returns the newest token, which is the input of the next decode iteration.
    pub(crate) fn last_token(&self) -> i32 {
        *self
            .response_ids
            .last()
            .or(self.prompt_ids.last())
            .expect("invariant: the engine refuses empty prompts")
    }

    /// Returns all tokens but the newest. These tokens must be cached before the next decode iteration.
    pub(crate) fn prefix(&self) -> impl Iterator<Item = i32> {
        self.prompt_ids.iter().chain(&self.response_ids).copied().take(self.tokens() - 1)
    }

    /// Returns the tokens sampled so far.
    pub(crate) fn response_ids(&self) -> &[i32] {
        &self.response_ids
    }

    /// Returns `true` if no token has been sampled.
    pub(crate) fn is_fresh(&self) -> bool {
        self.response_ids.is_empty()
    }

    /// Records the time of admission; only the first call has an effect.
    pub(crate) fn start(&mut self, now: Nanos) {
        self.started.get_or_insert(now);
    }

    /// Returns `true` if the response has at least `min_new_tokens` tokens, so that the next token may end it.
    pub(crate) fn may_end(&self) -> bool {
        self.response_ids.len() >= self.sampling.min_new_tokens as usize
    }

    /// Returns the inputs that determine the next token, and advances the random stream.
    pub(crate) fn draw(&mut self) -> TokenDraw {
        let length = self.response_ids.len() + 1;
        let forced = self.forced_length.map(|forced| forced as usize);
        TokenDraw {
            sampling: self.sampling,
            uniform: self.stream.uniform(),
            may_end: forced.is_none() && (self.ends.ignore_eos || self.may_end()),
            must_end: forced.is_some_and(|forced| length >= forced),
        }
    }

    /// Appends a sampled token. All tokens before it are now in the cache. Returns the finish reason if the response ends with the token,
    /// otherwise `None`. A response of a forced length stops there, even if the model has no end-of-sequence token.
    pub(crate) fn push(
        &mut self,
        token: i32,
        logprob: f32,
        version: PolicyVersion,
        eos: &[i32],
    ) -> Option<FinishReason> {
        self.cached = self.tokens();
        self.response_ids.push(token);
        self.logprobs.push(logprob);
        self.token_versions.push(version);
        let has_reached = |length: u32| self.response_ids.len() >= length as usize;
        let is_eos = !self.ends.ignore_eos && eos.contains(&token);
        let is_stop = is_eos || self.ends.stop_token_ids.contains(&token);
        if is_stop || self.forced_length.is_some_and(has_reached) {
            Some(FinishReason::Stop)
        } else {
            has_reached(self.sampling.max_new_tokens).then_some(FinishReason::Length)
        }
    }

    /// Drops the cached tokens, which must be computed again.
    pub(crate) fn preempt(&mut self) {
        self.cached = 0;
        self.preemptions += 1;
    }

    /// Returns the completion of a response that ends `now`. A response that was never admitted counts as started `now`.
    pub(crate) fn complete(
        self,
        finish_reason: FinishReason,
        now: Nanos,
        instance: u32,
        text: impl FnOnce(&[i32]) -> String,
    ) -> Completion {
        Completion {
            id: self.id,
            response_length: u32::try_from(self.response_ids.len()).unwrap_or(u32::MAX),
            text: text(&self.response_ids),
            response_ids: self.response_ids,
            logprobs: self.logprobs,
            token_versions: self.token_versions,
            finish_reason,
            started: self.started.unwrap_or(now),
            finished: now,
            preemptions: self.preemptions,
            instance,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(sampling: Sampling) -> Sequence {
        let id = SampleId::default();
        Sequence::new(id, Arc::from([1, 2, 3]), sampling, RandomStream::new(0, id))
    }

    #[test]
    fn a_response_ends_at_a_stop_token_or_at_the_cap() {
        let mut ending = sequence(Sampling::unrestricted(3));
        assert_eq!(ending.push(7, -1.0, PolicyVersion(0), &[9]), None);
        assert_eq!(ending.push(9, -1.0, PolicyVersion(0), &[9]), Some(FinishReason::Stop));
        let mut cut = sequence(Sampling::unrestricted(1));
        assert_eq!(cut.push(7, -1.0, PolicyVersion(0), &[9]), Some(FinishReason::Length));
    }

    #[test]
    fn a_response_ends_at_its_own_tokens_and_may_ignore_those_of_the_model() {
        let ends = EndTokens { ignore_eos: true, stop_token_ids: Arc::from([5]) };
        let sampling = Sampling { min_new_tokens: 1, ..Sampling::unrestricted(9) };
        let mut ending = sequence(sampling).with_end_tokens(ends);
        assert!(ending.draw().may_end, "tokens that do not end the response are not held back");
        assert!(!ending.may_end());
        assert_eq!(ending.push(9, -1.0, PolicyVersion(0), &[9]), None);
        assert!(ending.may_end());
        assert_eq!(ending.push(5, -1.0, PolicyVersion(0), &[9]), Some(FinishReason::Stop));
    }

    #[test]
    fn a_forced_length_ends_a_response_of_a_model_without_end_tokens() {
        let ends = |forced| {
            let mut sequence = sequence(Sampling::unrestricted(3)).with_forced_length(Some(forced));
            [7, 8, 9].map(|token| sequence.push(token, -1.0, PolicyVersion(0), &[]))
        };
        assert_eq!(ends(2)[..2], [None, Some(FinishReason::Stop)]);
        assert_eq!(ends(9), [None, None, Some(FinishReason::Length)]);
    }

    #[test]
    fn the_prefix_is_all_but_the_newest_token() {
        let mut sequence = sequence(Sampling::unrestricted(9));
        assert_eq!((sequence.prefix().collect(), sequence.last_token()), (vec![1, 2], 3));
        sequence.push(7, -1.0, PolicyVersion(0), &[]);
        assert_eq!((sequence.prefix().collect(), sequence.last_token()), (vec![1, 2, 3], 7));
        assert_eq!(sequence.cached, 3);
    }

    #[test]
    fn end_tokens_are_suppressed_and_forced() {
        let sampling = Sampling { min_new_tokens: 1, ..Sampling::unrestricted(9) };
        let ends = |mut sequence: Sequence| {
            [0, 1].map(|token| {
                let draw = sequence.draw();
                sequence.push(token, -1.0, PolicyVersion(0), &[]);
                (draw.may_end, draw.must_end)
            })
        };
        assert_eq!(ends(sequence(sampling)), [(false, false), (true, false)]);
        let forced = sequence(sampling).with_forced_length(Some(2));
        assert_eq!(ends(forced), [(false, false), (false, true)]);
    }
}
