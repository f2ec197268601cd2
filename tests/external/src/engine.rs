//! An engine that responds with the beginning of the prompt.

use std::collections::VecDeque;

use rollpacker::engines::EngineContext;
use rollpacker::prelude::*;
use rollpacker::stages::catalog::CatalogError;
use serde::Deserialize;

/// The options of the engine.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixOptions {
    /// Number of tokens by which a response is longer than the response of the previous sample; at least 1.
    longer: u32,
}

/// An engine whose sample `i` of a prompt has the first `(i + 1) * longer` tokens of the prompt, or fewer if the prompt or the maximum
/// length of a response is shorter.
pub struct Prefix {
    longer: u32,
    context: EngineContext,
    version: PolicyVersion,
    ended: VecDeque<Completion>,
    waker: Option<Waker>,
}

impl Prefix {
    /// Starts the engine. Fails if `longer` is 0.
    pub fn start(options: PrefixOptions, context: EngineContext) -> Result<Self, CatalogError> {
        if options.longer == 0 {
            return Err(CatalogError::out_of_range("longer", "at least 1", 0));
        }
        let (longer, version) = (options.longer, PolicyVersion(0));
        Ok(Self { longer, context, version, ended: VecDeque::new(), waker: None })
    }

    fn respond(&self, id: SampleId, prompt: &[i32]) -> Completion {
        let max = self.context.settings.sampling.max_new_tokens;
        let length = ((id.sample + 1) * self.longer).min(max).min(prompt.len() as u32);
        let ids = prompt[..length as usize].to_vec();
        let now = self.context.clock.now();
        Completion {
            id,
            response_length: length,
            logprobs: vec![0.0; ids.len()],
            token_versions: TokenVersions::of(self.version, ids.len()),
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

impl RolloutEngine for Prefix {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, prompt_ids, .. }: Request) {
        for sample in samples {
            let ended = self.respond(SampleId { step, prompt, sample }, &prompt_ids);
            self.ended.push_back(ended);
        }
        self.waker.iter().for_each(|wake| wake());
    }

    fn abort(&mut self, _id: SampleId) {}

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.ended.pop_front().map(RolloutEvent::Completed)
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}
