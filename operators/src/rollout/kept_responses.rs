//! Responses that are kept from one round for a later one: paused responses, which are continued, and whole responses, which are returned
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_stages::rollout::{Completion, FinishReason, Partial};

/// A response that ended by itself, was paused or was aborted.
#[derive(Clone)]
pub(super) struct EndedResponse {
    pub(super) completion: Completion,
    /// The number of tokens of the response that earlier steps sampled.
    pub(super) resumed: u32,
    /// The policy version of the step that launched the response first.
    pub(super) version: PolicyVersion,
}

/// The result of launching samples: requests for the engine, and responses that are available already.
pub(super) struct LaunchPlan {
    /// The samples to generate, as runs of consecutive samples. Each run has the partial responses to continue.
    pub(super) runs: Vec<(Range<u32>, Vec<Partial>)>,
    /// Whole responses from an earlier round, under their new ids.
    pub(super) returned: Vec<EndedResponse>,
}

/// The responses that are kept from one round for a later one.
pub(super) struct KeptResponses {
    /// `true` if the schedule may pause responses.
    pauses: bool,
    /// Responses that are being stopped, to be kept for a later round.
    pausing: BTreeSet<SampleId>,
    /// The responses that later rounds continue or return.
    samples: KeptById,
    /// The origin of the responses in flight that continue an earlier response.
    continued: BTreeMap<SampleId, ContinuedFrom>,
    /// The responses of the open round that ended by themselves and were not paused. A pause moves the response to `samples`.
    whole: BTreeMap<SampleId, EndedResponse>,
}

pub(super) type KeptById = BTreeMap<(PromptId, u32), KeptResponse>;

pub(super) enum KeptResponse {
    /// The tokens of a paused response, and the policy version of the step that launched it first.
    Partial(Partial, PolicyVersion),
    /// A response that ended by itself.
    Whole(EndedResponse),
}

/// The origin of a continued response.
#[derive(Clone, Copy)]
struct ContinuedFrom {
    /// The step that launched the response first.
    launched: Step,
    /// The policy version of the step that launched the response first.
    version: PolicyVersion,
    /// The number of tokens that the response had when it was continued.
    tokens: u32,
}

impl KeptResponses {
    /// Creates an empty state. Whole responses are kept only if the schedule `pauses`.
    pub(super) fn new(pauses: bool) -> Self {
        Self {
            pauses,
            pausing: BTreeSet::new(),
            samples: KeptById::new(),
            continued: BTreeMap::new(),
            whole: BTreeMap::new(),
        }
    }

    /// Sets the responses that are kept for later rounds, when a run is resumed.
    pub(super) fn with(self, samples: KeptById) -> Self {
        Self { samples, ..self }
    }

    pub(super) fn samples(&self) -> &KeptById {
        &self.samples
    }

    /// Opens the round of `step` and drops whole responses of earlier rounds that were not paused.
    pub(super) fn open(&mut self, step: Step) {
        let first = SampleId { step, ..SampleId::default() };
        if self.whole.first_key_value().is_some_and(|(id, _)| *id < first) {
            self.whole = self.whole.split_off(&first);
        }
    }

    /// Keeps a response. A whole response is kept as it is. A running response is kept with the tokens that it has when the engine stops
    /// it, or whole if it ends by itself before the engine stops it.
    pub(super) fn pause(&mut self, id: SampleId) {
        match self.whole.remove(&id) {
            Some(ended) => self.keep(id, KeptResponse::Whole(ended)),
            None => drop(self.pausing.insert(id)),
        }
    }

    /// Launches samples of a prompt. A sample that was kept whole is returned again, a partial one is continued, and any other is generated
    /// from its first token.
    pub(super) fn launch(
        &mut self,
        step: Step,
        prompt: PromptId,
        samples: Range<u32>,
    ) -> LaunchPlan {
        let mut launch = LaunchPlan { runs: Vec::new(), returned: Vec::new() };
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let partial = match self.samples.remove(&(prompt, sample)) {
                Some(KeptResponse::Whole(ended)) => {
                    let resumed = ended.completion.response_length;
                    let completion = Completion { id, ..ended.completion };
                    let ended = EndedResponse { completion, resumed, ..ended };
                    self.whole.insert(id, ended.clone());
                    launch.returned.push(ended);
                    continue;
                }
                Some(KeptResponse::Partial(partial, version)) => {
                    let (launched, tokens) = (partial.launched, partial.response_length);
                    self.continued.insert(id, ContinuedFrom { launched, version, tokens });
                    Some(partial)
                }
                None => None,
            };
            match launch.runs.last_mut().filter(|(run, _)| run.end == sample) {
                Some((run, resumed)) => {
                    run.end += 1;
                    resumed.extend(partial);
                }
                None => launch.runs.push((sample..sample + 1, partial.into_iter().collect())),
            }
        }
        launch
    }

    /// Records the end of a response that the engine reports, and returns the response. `version` is the policy version with which the
    /// response was requested. An abort of a response that is being paused becomes a pause, and the response is kept.
    pub(super) fn end(
        &mut self,
        mut completion: Completion,
        version: PolicyVersion,
    ) -> EndedResponse {
        let id = completion.id;
        let first = self.continued.remove(&id).unwrap_or(ContinuedFrom {
            launched: id.step,
            version,
            tokens: 0,
        });
        let pausing = self.pausing.remove(&id);
        if pausing && !completion.finish_reason.is_whole() {
            completion.finish_reason = FinishReason::Pause;
            let partial = partial(&completion, first.launched);
            self.keep(id, KeptResponse::Partial(partial, first.version));
        }
        let ended = EndedResponse { completion, resumed: first.tokens, version: first.version };
        if ended.completion.finish_reason.is_whole() {
            if pausing {
                self.keep(id, KeptResponse::Whole(ended.clone()));
            } else if self.pauses {
                self.whole.insert(id, ended.clone());
            }
        }
        ended
    }

    fn keep(&mut self, id: SampleId, sample: KeptResponse) {
        self.samples.insert((id.prompt, id.sample), sample);
    }
}

/// Returns the tokens of a completion that a later step continues. `launched` is the step that launched the response first.
pub(super) fn partial(completion: &Completion, launched: Step) -> Partial {
    Partial {
        sample: completion.id.sample,
        launched,
        response_length: completion.response_length,
        response_ids: completion.response_ids.clone(),
        logprobs: completion.logprobs.clone(),
        token_versions: completion.token_versions.clone(),
    }
}
