//! Assigns prompts to the workers that generate their responses.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::PromptId;

use super::Decision;

/// The assignment of prompts to workers, by the load of each worker.
///
/// All samples of a prompt stay on one worker, so that the group is assembled and trained on where it is generated. A prompt with kept
/// tokens goes to the worker that holds the tokens. Any other prompt goes to the worker with the fewest responses in flight; ties are
/// broken by the fewest prompt tokens, then by the lowest worker index. The generated tokens do not depend on the assignment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PromptAffinity {
    loads: Vec<WorkerLoad>,
    assignments: BTreeMap<PromptId, PromptAssignment>,
}

/// Returns the index of the worker, out of `workers`, that restores the kept tokens of a prompt from a snapshot.
pub(crate) fn worker_of_kept(prompt: PromptId, workers: usize) -> u32 {
    let worker = prompt.0 % workers.max(1) as u64;
    u32::try_from(worker).expect("invariant: there are fewer than 2^32 workers")
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct WorkerLoad {
    /// The number of responses in flight.
    responses: u64,
    /// The number of prompt tokens of these responses. A prompt counts once for each of its responses.
    prompt_tokens: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PromptAssignment {
    worker: u32,
    /// The number of responses in flight.
    responses: u64,
    prompt_length: u64,
    /// `true` if tokens of the prompt are kept on the worker, or will be.
    kept: bool,
    /// `true` if the round that launched the prompt last has decided about it.
    decided: bool,
}

impl PromptAffinity {
    /// Creates an empty assignment over `workers` workers; 0 counts as 1.
    pub(crate) fn new(workers: usize) -> Self {
        Self { loads: vec![WorkerLoad::default(); workers.max(1)], assignments: BTreeMap::new() }
    }

    /// Assigns prompts with tokens from a snapshot to the workers that [restore them](worker_of_kept).
    pub(crate) fn with_kept(mut self, prompts: impl IntoIterator<Item = PromptId>) -> Self {
        let workers = self.workers();
        self.assignments.extend(prompts.into_iter().map(|prompt| {
            let worker = worker_of_kept(prompt, workers);
            let assignment = PromptAssignment {
                worker,
                responses: 0,
                prompt_length: 0,
                kept: true,
                decided: true,
            };
            (prompt, assignment)
        }));
        self
    }

    pub(crate) fn workers(&self) -> usize {
        self.loads.len()
    }

    /// Updates the assignments for a decision, and returns the worker that the decision concerns; `None` if the decision concerns all
    /// workers. `length` returns the length of a prompt in tokens.
    pub(crate) fn assign(
        &mut self,
        decision: &Decision,
        length: impl FnOnce(PromptId) -> u32,
    ) -> Option<u32> {
        match decision {
            Decision::Launch { prompt, samples, .. } => {
                Some(self.launch(*prompt, u64::from(samples.end - samples.start), length(*prompt)))
            }
            Decision::Abort { id, .. } => Some(self.worker_of(id.prompt)),
            Decision::Pause { id, .. } => {
                Some(self.change(id.prompt, |assignment| assignment.kept = true))
            }
            Decision::Defer { prompt, .. } => {
                Some(self.change(*prompt, |assignment| assignment.decided = true))
            }
            Decision::Admit { prompt, .. } | Decision::Reject { prompt, .. } => {
                Some(self.change(*prompt, |assignment| {
                    (assignment.decided, assignment.kept) = (true, false)
                }))
            }
            Decision::Open { .. }
            | Decision::Close { .. }
            | Decision::Finish
            | Decision::Fail { .. } => None,
        }
    }

    /// Records that a response to the prompt ended, or was dropped.
    pub(crate) fn on_end(&mut self, prompt: PromptId) {
        if let Some(assignment) = self.assignments.get_mut(&prompt) {
            assignment.responses = assignment.responses.saturating_sub(1);
            let load = &mut self.loads[assignment.worker as usize];
            load.responses = load.responses.saturating_sub(1);
            load.prompt_tokens = load.prompt_tokens.saturating_sub(assignment.prompt_length);
        }
        self.remove_if_unused(prompt);
    }

    fn launch(&mut self, prompt: PromptId, responses: u64, prompt_length: u32) -> u32 {
        let (lightest, prompt_length) = (self.least_loaded_worker(), u64::from(prompt_length));
        let fresh = PromptAssignment {
            worker: lightest,
            responses: 0,
            prompt_length,
            kept: false,
            decided: false,
        };
        let assignment = self.assignments.entry(prompt).or_insert(fresh);
        assignment.responses += responses;
        assignment.prompt_length = prompt_length;
        assignment.decided = false;
        let load = &mut self.loads[assignment.worker as usize];
        load.responses += responses;
        load.prompt_tokens += responses * prompt_length;
        assignment.worker
    }

    fn least_loaded_worker(&self) -> u32 {
        let lightest = (0..).zip(&self.loads).min_by_key(|&(worker, load)| (*load, worker));
        lightest.map_or(0, |(worker, _)| worker)
    }

    fn change(&mut self, prompt: PromptId, change: impl FnOnce(&mut PromptAssignment)) -> u32 {
        let worker = self.worker_of(prompt);
        if let Some(assignment) = self.assignments.get_mut(&prompt) {
            change(assignment);
        }
        self.remove_if_unused(prompt);
        worker
    }

    /// Returns the worker of a prompt; the first worker if the prompt is not assigned.
    fn worker_of(&self, prompt: PromptId) -> u32 {
        self.assignments.get(&prompt).map_or(0, |assignment| assignment.worker)
    }

    /// Removes the assignment of a prompt that has no responses in flight and no kept tokens, and about which its round has decided.
    fn remove_if_unused(&mut self, prompt: PromptId) {
        let is_unused = |assignment: &PromptAssignment| {
            assignment.responses == 0 && assignment.decided && !assignment.kept
        };
        if self.assignments.get(&prompt).is_some_and(is_unused) {
            self.assignments.remove(&prompt);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Reason;
    use rollpacker_dataflow::step::{SampleId, Step};

    const REASON: Reason = Reason::Fresh;

    fn launch(
        affinity: &mut PromptAffinity,
        prompt: u64,
        samples: u32,
        length: u32,
    ) -> Option<u32> {
        let prompt = PromptId(prompt);
        affinity
            .assign(&Decision::Launch { prompt, samples: 0..samples, reason: REASON }, |_| length)
    }

    fn assign(affinity: &mut PromptAffinity, decision: Decision) -> Option<u32> {
        affinity.assign(&decision, |_| unreachable!("only a launch needs a length"))
    }

    fn id(prompt: u64) -> SampleId {
        SampleId { step: Step(0), prompt: PromptId(prompt), sample: 0 }
    }

    fn admit(prompt: u64) -> Decision {
        let (prompt, samples) = (PromptId(prompt), vec![0]);
        Decision::Admit { prompt, samples, weights: Vec::new(), reason: REASON }
    }

    #[test]
    fn a_prompt_goes_to_the_least_loaded_worker() {
        let mut affinity = PromptAffinity::new(3);
        let workers: Vec<_> =
            [(0, 4, 9), (1, 4, 5), (2, 2, 5), (3, 1, 5), (4, 1, 5), (5, 1, 5), (6, 1, 1)]
                .into_iter()
                .map(|(prompt, samples, length)| launch(&mut affinity, prompt, samples, length))
                .collect();
        // The last two prompts go to the workers with fewer prompt tokens among those with equal responses.
        assert_eq!(workers, [0, 1, 2, 2, 2, 1, 2].map(Some));
        (0..4).for_each(|_| affinity.on_end(PromptId(1)));
        assert_eq!(launch(&mut affinity, 7, 1, 1), Some(1));
    }

    #[test]
    fn decisions_on_a_prompt_go_to_its_worker_and_those_on_the_round_to_all() {
        let mut affinity = PromptAffinity::new(2);
        assert_eq!(launch(&mut affinity, 0, 2, 1), Some(0));
        assert_eq!(launch(&mut affinity, 1, 2, 1), Some(1));
        // More samples of a prompt go to its worker, although the other worker has less load.
        assert_eq!(launch(&mut affinity, 1, 2, 1), Some(1));
        assert_eq!(assign(&mut affinity, admit(1)), Some(1));
        // The surplus is aborted after the prompt was admitted.
        assert_eq!(assign(&mut affinity, Decision::Abort { id: id(1), reason: REASON }), Some(1));
        assert_eq!(assign(&mut affinity, Decision::Finish), None);
    }

    #[test]
    fn a_prompt_goes_to_the_worker_with_its_tokens_until_it_is_admitted() {
        let mut affinity = PromptAffinity::new(2);
        launch(&mut affinity, 0, 4, 1);
        assert_eq!(launch(&mut affinity, 1, 1, 1), Some(1));
        assert_eq!(assign(&mut affinity, Decision::Pause { id: id(1), reason: REASON }), Some(1));
        assign(&mut affinity, Decision::Defer { prompt: PromptId(1), reason: REASON });
        affinity.on_end(PromptId(1));
        (0..4).for_each(|_| affinity.on_end(PromptId(0)));
        assert_eq!(launch(&mut affinity, 1, 1, 1), Some(1), "where the tokens are");
        affinity.on_end(PromptId(1));
        assert_eq!(assign(&mut affinity, admit(1)), Some(1));
        assign(&mut affinity, admit(0));
        assert_eq!(affinity, PromptAffinity::new(2), "nothing is left behind");
    }

    #[test]
    fn a_prompt_deferred_without_tokens_goes_to_any_worker() {
        let mut affinity = PromptAffinity::new(2);
        launch(&mut affinity, 0, 1, 1);
        assign(&mut affinity, Decision::Defer { prompt: PromptId(0), reason: REASON });
        assert_eq!(launch(&mut affinity, 1, 1, 1), Some(1));
        affinity.on_end(PromptId(0));
        launch(&mut affinity, 2, 3, 1);
        assert_eq!(launch(&mut affinity, 0, 1, 1), Some(1));
    }
}
