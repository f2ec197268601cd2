//! Assigns replayed lengths to responses.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::lengths::Lengths;

/// Assigns [`Lengths`] to the responses of an engine, in the order of their launches or by id. A response that is resumed keeps its length.
#[derive(Debug)]
pub(super) struct Replay {
    lengths: Lengths,
    /// `true` to assign lengths by id, so that they do not depend on the order of launches or on the engine that launches.
    by_id: bool,
    /// Number of responses launched, by step. Empty if lengths are assigned by id.
    launched: BTreeMap<Step, u64>,
    /// The lengths of responses that are not whole; each of these responses may be resumed in a later step. Empty if lengths are assigned
    /// by id.
    assigned: BTreeMap<(PromptId, u32), ReplayedLength>,
}

#[derive(Clone, Copy, Debug)]
struct ReplayedLength {
    /// The step that launched the response.
    launched: Step,
    /// The assigned length, in tokens.
    length: u32,
}

impl Replay {
    pub(super) fn new(lengths: Lengths, by_id: bool) -> Self {
        Self { lengths, by_id, launched: BTreeMap::new(), assigned: BTreeMap::new() }
    }

    /// Assigns a length to a response that is launched, and returns it.
    pub(super) fn launch(&mut self, id: SampleId) -> u32 {
        if self.by_id {
            return self.lengths.of(id);
        }
        let SampleId { step, prompt, sample } = id;
        let launched = self.launched.entry(step).or_default();
        let length = self.lengths.get(step, *launched);
        *launched += 1;
        self.assigned.insert((prompt, sample), ReplayedLength { launched: step, length });
        length
    }

    /// Returns the length that a resumed response was launched with. `launched` is the id of the response at its launch. A response that
    /// this engine did not launch gets a length now.
    pub(super) fn resume(&mut self, launched: SampleId) -> u32 {
        let assigned = self.assigned.get(&(launched.prompt, launched.sample));
        match assigned.filter(|assigned| assigned.launched == launched.step) {
            Some(assigned) => assigned.length,
            None => self.launch(launched),
        }
    }

    /// Removes a response that is whole. A response of the same prompt and sample that was launched later is kept.
    pub(super) fn end(&mut self, id: SampleId) {
        let key = (id.prompt, id.sample);
        if self.assigned.get(&key).is_some_and(|assigned| assigned.launched <= id.step) {
            self.assigned.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(step: u64, sample: u32) -> SampleId {
        SampleId { step: Step(step), prompt: PromptId(0), sample }
    }

    #[test]
    fn a_resumed_response_keeps_its_length_and_takes_no_other() {
        let mut replay = Replay::new(Lengths::new(vec![vec![9, 3], vec![5, 7]]).unwrap(), false);
        assert_eq!((replay.launch(id(0, 0)), replay.launch(id(0, 1))), (9, 3));
        assert_eq!((replay.resume(id(0, 0)), replay.resume(id(0, 0))), (9, 9));
        assert_eq!((replay.launch(id(1, 2)), replay.launch(id(1, 1))), (5, 7));
        assert_eq!(replay.resume(id(1, 1)), 7, "launched again");
        replay.end(id(0, 1));
        assert_eq!(replay.resume(id(1, 1)), 7, "only the earlier launch has ended");
        replay.end(id(3, 1));
        assert_eq!(replay.assigned.len(), 2);
        assert_eq!(replay.resume(id(0, 5)), 9, "a response that another engine launched");
    }

    #[test]
    fn replay_by_id_does_not_depend_on_the_order() {
        let lengths = Lengths::new(vec![(1..100).collect()]).unwrap();
        let of = |samples: &[u32]| {
            let mut replay = Replay::new(lengths.clone(), true);
            let mut all: Vec<_> =
                samples.iter().map(|sample| (*sample, replay.launch(id(0, *sample)))).collect();
            all.sort_unstable();
            assert_eq!(replay.resume(id(0, samples[0])), replay.launch(id(0, samples[0])));
            all
        };
        assert_eq!(of(&[0, 1, 2, 3]), of(&[2, 0, 3, 1]));
    }
}
