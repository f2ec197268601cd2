//! The observed state of a round while it runs.

use std::collections::BTreeMap;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::PromptId;
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use crate::survival::Survival;
use crate::wire::decision::RoundKind;
use crate::wire::finish_reason::is_returned_whole;

/// The state of a round according to the events so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct RoundProgress {
    pub(super) round: RoundKind,
    groups: BTreeMap<PromptId, GroupProgress>,
    launched: u32,
    outstanding: u32,
    completed: u32,
    prompt_tokens: u64,
    preemptions: u64,
    admitted: u32,
    admitted_tokens: u64,
    /// The number of responses of the last admitted group; `None` before the first admission.
    group_size: Option<u32>,
    /// The lengths of the responses that have ended. Running responses are missing, so the distribution represents the round only when the
    /// round is over.
    pub(super) lengths: Survival,
    /// The ended response with the highest sampling rate: the number of tokens that it sampled in this round, and the time from the launch
    /// of its group to its end. `None` until a response has ended. Running responses are assumed to be as fast. Responses that wait in the
    /// queue of an engine are slower, so the number of tokens cached now is overestimated.
    fastest: Option<(u32, Nanos)>,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct GroupProgress {
    launched: Nanos,
    prompt_length: u32,
    samples: u32,
    outstanding: u32,
    /// The number of responses that ended by themselves.
    whole: u32,
    /// The number of tokens of the responses that ended by themselves, prompts included.
    tokens: u64,
    is_admitted: bool,
}

/// A response that ended, was paused or was dropped; the fields are as in [`Event::Response`](super::Event::Response).
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedResponse {
    pub(super) tokens: u32,
    pub(super) resumed: u32,
    pub(super) preemptions: u32,
    pub(super) finish_reason: FinishReason,
}

/// A summary of a round. The next round of the same kind is expected to be like it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoundLoad {
    /// The number of launched responses.
    pub launched: u32,
    /// The number of launched responses that ended by themselves.
    pub completed: u32,
    /// The number of launched prompts.
    pub prompts: u32,
    /// The number of launched prompts that were admitted.
    pub admitted: u32,
    /// The number of prompt tokens of all launched responses.
    pub prompt_tokens: u64,
    /// The number of times that the engine evicted the KV cache of a response.
    pub preemptions: u64,
}

/// Running responses of about the same age.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Cohort {
    pub(super) count: f64,
    /// The mean prompt length in tokens, over the responses.
    pub(super) prompt_length: f64,
    /// The estimated number of tokens sampled per response so far.
    pub(super) tokens: f64,
}

/// Groups that are not admitted yet and lack the same number of responses.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Incomplete {
    pub(super) groups: f64,
    /// The number of tokens of the responses of these groups that ended by themselves, prompts included.
    pub(super) tokens: f64,
}

/// The maximum number of cohorts. A schedule that launches continuously has as many ages as prompts, so neighboring ages are merged.
const MAX_COHORTS: usize = 8;

impl RoundProgress {
    pub(super) fn new(round: RoundKind) -> Self {
        Self {
            round,
            groups: BTreeMap::new(),
            launched: 0,
            outstanding: 0,
            completed: 0,
            prompt_tokens: 0,
            preemptions: 0,
            admitted: 0,
            admitted_tokens: 0,
            group_size: None,
            lengths: Survival::default(),
            fastest: None,
            is_closed: false,
        }
    }

    pub(super) fn launch(&mut self, now: Nanos, prompt: PromptId, samples: u32, length: u32) {
        let group = self.groups.entry(prompt).or_insert(GroupProgress {
            launched: now,
            prompt_length: length,
            samples: 0,
            outstanding: 0,
            whole: 0,
            tokens: 0,
            is_admitted: false,
        });
        group.samples += samples;
        group.outstanding += samples;
        self.launched += samples;
        self.outstanding += samples;
        self.prompt_tokens += u64::from(samples) * u64::from(length);
    }

    pub(super) fn end(&mut self, now: Nanos, prompt: PromptId, response: EndedResponse) {
        let Some(group) = self.groups.get_mut(&prompt) else { return };
        let EndedResponse { tokens, resumed, preemptions, finish_reason } = response;
        group.outstanding = group.outstanding.saturating_sub(1);
        self.outstanding = self.outstanding.saturating_sub(1);
        self.preemptions += u64::from(preemptions);
        if finish_reason.is_whole() {
            group.whole += 1;
            group.tokens += u64::from(tokens) + u64::from(group.prompt_length);
            self.completed += 1;
        }
        // A response that was kept whole sampled nothing in this round and was observed before: it counts neither for the pace nor for
        // the lengths.
        if is_returned_whole(finish_reason, tokens, resumed) {
            return;
        }
        let ran = (tokens.saturating_sub(resumed), now.since(group.launched));
        if ran.1 > Nanos(0) && self.fastest.is_none_or(|fastest| pace(ran) > pace(fastest)) {
            self.fastest = Some(ran);
        }
        // A paused response is observed when it ends in a later round.
        if finish_reason != FinishReason::Pause {
            self.lengths.observe(tokens, finish_reason.is_whole());
        }
    }

    /// Records that a group of `samples` responses is admitted. Has no effect for a prompt that was not launched or was admitted before.
    pub(super) fn admit(&mut self, prompt: PromptId, samples: u32) {
        let Some(group) = self.groups.get_mut(&prompt).filter(|group| !group.is_admitted) else {
            return;
        };
        group.is_admitted = true;
        let whole = u64::from(group.whole.max(1));
        self.admitted += 1;
        self.admitted_tokens += group.tokens * u64::from(samples).min(whole) / whole;
        self.group_size = Some(samples);
    }

    pub(super) fn load(&self) -> RoundLoad {
        RoundLoad {
            launched: self.launched,
            completed: self.completed,
            prompts: u32::try_from(self.groups.len()).unwrap_or(u32::MAX),
            admitted: self.admitted,
            prompt_tokens: self.prompt_tokens,
            preemptions: self.preemptions,
        }
    }

    pub(super) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Returns `true` if the round is not closed and responses are outstanding.
    pub(super) fn is_open(&self) -> bool {
        !self.is_closed && self.outstanding > 0
    }

    pub(super) fn admitted_tokens(&self) -> f64 {
        self.admitted_tokens as f64
    }

    /// Returns the running responses of groups that are not admitted, in at most `MAX_COHORTS` cohorts by age, youngest last.
    pub(super) fn cohorts(&self, now: Nanos) -> Vec<Cohort> {
        let mut ages: BTreeMap<Nanos, (f64, f64)> = BTreeMap::new();
        for group in self.groups.values().filter(|group| group.runs()) {
            let (count, prompt_tokens) = ages.entry(group.launched).or_default();
            *count += f64::from(group.outstanding);
            *prompt_tokens += f64::from(group.outstanding) * f64::from(group.prompt_length);
        }
        let ages: Vec<_> = ages.into_iter().collect();
        ages.chunks(ages.len().div_ceil(MAX_COHORTS).max(1))
            .map(|ages| self.cohort(now, ages))
            .collect()
    }

    fn cohort(&self, now: Nanos, ages: &[(Nanos, (f64, f64))]) -> Cohort {
        let count: f64 = ages.iter().map(|(_, (count, _))| count).sum();
        let prompt_tokens: f64 = ages.iter().map(|(_, (_, tokens))| tokens).sum();
        let seconds: f64 =
            ages.iter().map(|(at, (count, _))| count * now.since(*at).as_secs_f64()).sum();
        Cohort {
            count,
            prompt_length: prompt_tokens / count,
            tokens: self.fastest.map_or(0.0, pace) * seconds / count,
        }
    }

    /// Returns the groups that are not admitted, by the number of responses that they lack. A group is assumed to need as many responses as
    /// the last admitted group had, but not more than were launched. Before the first admission, a group needs all launched responses.
    pub(super) fn incomplete(&self) -> BTreeMap<u32, Incomplete> {
        let mut lacking: BTreeMap<u32, Incomplete> = BTreeMap::new();
        for group in self.groups.values().filter(|group| !group.is_admitted) {
            let size = self.group_size.map_or(group.samples, |size| size.min(group.samples));
            let entry = lacking.entry(size.saturating_sub(group.whole)).or_default();
            entry.groups += 1.0;
            entry.tokens += group.tokens as f64;
        }
        lacking
    }
}

impl GroupProgress {
    fn runs(&self) -> bool {
        !self.is_admitted && self.outstanding > 0
    }
}

impl RoundLoad {
    /// Returns the share of the launched responses that ended by themselves; 0 if none was launched.
    #[must_use]
    pub fn completed_share(self) -> f64 {
        f64::from(self.completed) / f64::from(self.launched.max(1))
    }

    /// Returns the share of the launched prompts that were admitted; 0 if none was launched.
    #[must_use]
    pub fn admitted_share(self) -> f64 {
        f64::from(self.admitted) / f64::from(self.prompts.max(1))
    }
}

/// Returns the sampling rate of a response, in tokens per second.
fn pace((tokens, age): (u32, Nanos)) -> f64 {
    f64::from(tokens) / age.as_secs_f64()
}
