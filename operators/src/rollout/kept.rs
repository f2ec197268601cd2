//! Responses that are stopped in one step and go on in another.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_stages::rollout::{Completion, FinishReason, Partial};

/// A response that ended.
#[derive(Clone)]
pub(super) struct Ended {
    pub(super) completion: Completion,
    /// How many of its tokens an earlier step had sampled.
    pub(super) resumed: u32,
    /// The policy of the step that launched it first.
    pub(super) version: PolicyVersion,
}

/// What a launch asks of the engine, and what is there already.
pub(super) struct Launch {
    /// Samples to generate, each run with what is resumed of it.
    pub(super) runs: Vec<(Range<u32>, Vec<Partial>)>,
    /// Whole responses that were kept, under their new ids.
    pub(super) again: Vec<Ended>,
}

/// Whether a response is one that an earlier round kept whole: it is given again, without another token sampled, and was observed when it
/// ended. `resumed` of its `tokens` are from an earlier step.
#[must_use]
pub fn is_given_again(finish_reason: FinishReason, tokens: u32, resumed: u32) -> bool {
    finish_reason.is_whole() && resumed > 0 && resumed == tokens
}

/// What is kept of responses from one round for a later one.
pub(super) struct Kept {
    /// Whether the schedule pauses responses at all.
    pauses: bool,
    /// Responses that are being stopped to be continued.
    pausing: BTreeSet<SampleId>,
    /// What was kept of each.
    samples: Samples,
    /// What responses under way brought with them.
    brought: BTreeMap<SampleId, Brought>,
    /// Whole responses of the open round: a pause keeps them, too.
    whole: BTreeMap<SampleId, Ended>,
}

/// Kept responses by prompt and sample.
pub(super) type Samples = BTreeMap<(PromptId, u32), Sample>;

/// A kept response.
pub(super) enum Sample {
    Partial(Partial, PolicyVersion),
    Whole(Ended),
}

#[derive(Clone, Copy)]
struct Brought {
    /// The step that launched the response first, and its policy.
    launched: Step,
    version: PolicyVersion,
    tokens: u32,
}

impl Kept {
    /// Nothing is kept so far, and no whole response ever is unless the schedule `pauses`.
    pub(super) fn new(pauses: bool) -> Self {
        Self {
            pauses,
            pausing: BTreeSet::new(),
            samples: Samples::new(),
            brought: BTreeMap::new(),
            whole: BTreeMap::new(),
        }
    }

    /// The same with `samples` kept from earlier rounds.
    pub(super) fn with(self, samples: Samples) -> Self {
        Self { samples, ..self }
    }

    /// What is kept for later rounds.
    pub(super) fn samples(&self) -> &Samples {
        &self.samples
    }

    /// The round of `step` is the one that is open: what earlier ones did not pause is forgotten.
    pub(super) fn open(&mut self, step: Step) {
        let first = SampleId { step, ..SampleId::default() };
        if self.whole.first_key_value().is_some_and(|(id, _)| *id < first) {
            self.whole = self.whole.split_off(&first);
        }
    }

    /// Keeps a response: as it is if it has ended, otherwise as it will be when it is stopped.
    pub(super) fn pause(&mut self, id: SampleId) {
        match self.whole.remove(&id) {
            Some(ended) => self.keep(id, Sample::Whole(ended)),
            None => drop(self.pausing.insert(id)),
        }
    }

    /// Lets samples of a prompt go on from what was kept of them.
    pub(super) fn launch(&mut self, step: Step, prompt: PromptId, samples: Range<u32>) -> Launch {
        let mut launch = Launch { runs: Vec::new(), again: Vec::new() };
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let partial = match self.samples.remove(&(prompt, sample)) {
                Some(Sample::Whole(ended)) => {
                    let resumed = ended.completion.response_length;
                    let completion = Completion { id, ..ended.completion };
                    let ended = Ended { completion, resumed, ..ended };
                    self.whole.insert(id, ended.clone());
                    launch.again.push(ended);
                    continue;
                }
                Some(Sample::Partial(partial, version)) => {
                    let (launched, tokens) = (partial.launched, partial.response_length);
                    self.brought.insert(id, Brought { launched, version, tokens });
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

    /// Takes in what the engine reports of a response, which the policy of `version` was asked for.
    pub(super) fn end(&mut self, mut completion: Completion, version: PolicyVersion) -> Ended {
        let id = completion.id;
        let first =
            self.brought.remove(&id).unwrap_or(Brought { launched: id.step, version, tokens: 0 });
        let pausing = self.pausing.remove(&id);
        if pausing && !completion.finish_reason.is_whole() {
            completion.finish_reason = FinishReason::Pause;
            let partial = partial(&completion, first.launched);
            self.keep(id, Sample::Partial(partial, first.version));
        }
        let ended = Ended { completion, resumed: first.tokens, version: first.version };
        if ended.completion.finish_reason.is_whole() {
            if pausing {
                self.keep(id, Sample::Whole(ended.clone()));
            } else if self.pauses {
                self.whole.insert(id, ended.clone());
            }
        }
        ended
    }

    fn keep(&mut self, id: SampleId, sample: Sample) {
        self.samples.insert((id.prompt, id.sample), sample);
    }
}

fn partial(completion: &Completion, launched: Step) -> Partial {
    Partial {
        sample: completion.id.sample,
        launched,
        response_length: completion.response_length,
        response_ids: completion.response_ids.clone(),
        logprobs: completion.logprobs.clone(),
        token_versions: completion.token_versions.clone(),
    }
}
