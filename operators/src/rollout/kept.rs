//! Responses that are stopped in one step and go on in another.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::{Completion, FinishReason, Partial};

/// A response that ended, and how many of its tokens an earlier step had sampled.
pub(super) struct Ended {
    pub(super) completion: Completion,
    pub(super) resumed: u32,
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
    samples: BTreeMap<(PromptId, u32), Sample>,
    /// What responses under way brought with them.
    brought: BTreeMap<SampleId, Brought>,
    /// Whole responses of the open round: a pause keeps them, too.
    whole: BTreeMap<SampleId, Completion>,
}

enum Sample {
    Partial(Partial),
    Whole(Completion),
}

#[derive(Clone, Copy)]
struct Brought {
    /// The step that launched the response first.
    launched: Step,
    tokens: u32,
}

impl Kept {
    /// Nothing is kept yet, and no whole response ever is unless the schedule `pauses`.
    pub(super) fn new(pauses: bool) -> Self {
        Self {
            pauses,
            pausing: BTreeSet::new(),
            samples: BTreeMap::new(),
            brought: BTreeMap::new(),
            whole: BTreeMap::new(),
        }
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
            Some(completion) => self.keep(id, Sample::Whole(completion)),
            None => drop(self.pausing.insert(id)),
        }
    }

    /// Lets samples of a prompt go on from what was kept of them.
    pub(super) fn launch(&mut self, step: Step, prompt: PromptId, samples: Range<u32>) -> Launch {
        let mut launch = Launch { runs: Vec::new(), again: Vec::new() };
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let partial = match self.samples.remove(&(prompt, sample)) {
                Some(Sample::Whole(completion)) => {
                    let resumed = completion.response_length;
                    let completion = Completion { id, ..completion };
                    self.whole.insert(id, completion.clone());
                    launch.again.push(Ended { completion, resumed });
                    continue;
                }
                Some(Sample::Partial(partial)) => Some(partial),
                None => None,
            };
            if let Some(partial) = &partial {
                let tokens = partial.response_length;
                self.brought.insert(id, Brought { launched: partial.launched, tokens });
            }
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

    /// Takes in what the engine reports of a response.
    pub(super) fn end(&mut self, mut completion: Completion) -> Ended {
        let id = completion.id;
        let brought = self.brought.remove(&id);
        let pausing = self.pausing.remove(&id);
        if completion.finish_reason.is_whole() {
            if pausing {
                self.keep(id, Sample::Whole(completion.clone()));
            } else if self.pauses {
                self.whole.insert(id, completion.clone());
            }
        } else if pausing {
            completion.finish_reason = FinishReason::Pause;
            let launched = brought.map_or(id.step, |brought| brought.launched);
            self.keep(id, Sample::Partial(partial(&completion, launched)));
        }
        Ended { completion, resumed: brought.map_or(0, |brought| brought.tokens) }
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
