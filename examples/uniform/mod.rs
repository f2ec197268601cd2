//! The smallest engine of a real model: it draws every token uniformly from the vocabulary and never uses the weights.

use std::collections::VecDeque;

use rollpacker::engines::EngineContext;
use rollpacker::prelude::*;
use rollpacker::stages::catalog::CatalogError;
use rollpacker::stages::rollout::Partial;
use serde::Deserialize;

/// The options of the engine: `rollout.engine_options`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UniformOptions {
    /// Number of tokens of a response, from 1 to `data.max_response_length`.
    tokens: u32,
}

/// An engine whose responses are random tokens.
pub(crate) struct Uniform {
    tokens: u32,
    context: EngineContext,
    version: PolicyVersion,
    ended: VecDeque<Completion>,
    waker: Option<Waker>,
}

impl Uniform {
    /// Starts the engine.
    ///
    /// # Errors
    /// If `tokens` is out of its range.
    pub(crate) fn start(
        options: UniformOptions,
        context: EngineContext,
    ) -> Result<Self, CatalogError> {
        let max = context.settings.sampling.max_new_tokens;
        if !(1..=max).contains(&options.tokens) {
            return Err(CatalogError::out_of_range(
                "tokens",
                &format!("1 to {max}"),
                options.tokens,
            ));
        }
        let (tokens, version) = (options.tokens, PolicyVersion(0));
        Ok(Self { tokens, context, version, ended: VecDeque::new(), waker: None })
    }

    /// Returns the whole response `id`: the tokens of `partial`, followed by random tokens.
    fn sample(&self, id: SampleId, partial: Partial) -> Completion {
        let Partial { launched, response_ids, logprobs, mut token_versions, .. } = partial;
        let vocabulary = self.context.vocab_size as u64;
        let seed = [self.context.settings.seed, launched.0, id.prompt.0, id.sample.into()];
        let token = |at: u32| {
            let mixed = seed.iter().chain([&u64::from(at)]).fold(0, |mixed: u64, &part| {
                (mixed ^ part).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
            });
            i32::try_from(mixed % vocabulary).unwrap_or(0)
        };
        let kept = response_ids.len() as u32;
        let new = self.tokens.saturating_sub(kept) as usize;
        let ids: Vec<i32> =
            response_ids.into_iter().chain((kept..self.tokens).map(token)).collect();
        token_versions.push_run(self.version, new);
        let now = self.context.clock.now();
        Completion {
            id,
            response_length: ids.len() as u32,
            logprobs: [logprobs, vec![-(vocabulary as f32).ln(); new]].concat(),
            token_versions,
            text: self.context.tokenizer.decode(&ids, true).unwrap_or_default(),
            response_ids: ids,
            finish_reason: FinishReason::Stop,
            started: now,
            finished: now,
            preemptions: 0,
            instance: 0,
        }
    }
}

impl RolloutEngine for Uniform {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, resumed, .. }: Request) {
        for sample in samples {
            let kept = resumed.iter().find(|partial| partial.sample == sample).cloned();
            let fresh = Partial { launched: step, ..Partial::default() };
            let ended = self.sample(SampleId { step, prompt, sample }, kept.unwrap_or(fresh));
            self.ended.push_back(ended);
        }
        self.waker.iter().for_each(|wake| wake());
    }

    /// Does nothing: a response has ended by the time it could be aborted.
    fn abort(&mut self, _id: SampleId) {}

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.ended.pop_front().map(RolloutEvent::Completed)
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}
