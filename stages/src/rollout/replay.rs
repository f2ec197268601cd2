//! The replay of lengths: which response is made to end where.

use std::collections::BTreeMap;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::lengths::Lengths;

/// Hands [`Lengths`] out to the responses of an engine: one a launch, and the same again where a response goes on.
#[derive(Debug)]
pub(super) struct Replay {
    lengths: Lengths,
    /// Responses launched, by step.
    launched: BTreeMap<Step, u64>,
    /// What responses were given that are not whole: any of them may go on in a later step.
    given: BTreeMap<(PromptId, u32), Given>,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    /// The step that launched the response.
    launched: Step,
    length: u32,
}

impl Replay {
    pub(super) fn new(lengths: Lengths) -> Self {
        Self { lengths, launched: BTreeMap::new(), given: BTreeMap::new() }
    }

    /// The length of a response that is launched.
    pub(super) fn launch(&mut self, id: SampleId) -> u32 {
        let SampleId { step, prompt, sample } = id;
        let launched = self.launched.entry(step).or_default();
        let length = self.lengths.get(step, *launched);
        *launched += 1;
        self.given.insert((prompt, sample), Given { launched: step, length });
        length
    }

    /// The length of a response that goes on: the one it was `launched` with. One that was not launched here is launched now.
    pub(super) fn resume(&mut self, launched: SampleId) -> u32 {
        let given = self.given.get(&(launched.prompt, launched.sample));
        match given.filter(|given| given.launched == launched.step) {
            Some(given) => given.length,
            None => self.launch(launched),
        }
    }

    /// Forgets a response that is whole. Another of the same prompt and sample, launched later, is not meant.
    pub(super) fn end(&mut self, id: SampleId) {
        let key = (id.prompt, id.sample);
        if self.given.get(&key).is_some_and(|given| given.launched <= id.step) {
            self.given.remove(&key);
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
    fn a_response_that_goes_on_keeps_its_length_and_takes_none_of_the_others() {
        let mut replay = Replay::new(Lengths::new(vec![vec![9, 3], vec![5, 7]]).unwrap());
        assert_eq!((replay.launch(id(0, 0)), replay.launch(id(0, 1))), (9, 3));
        assert_eq!((replay.resume(id(0, 0)), replay.resume(id(0, 0))), (9, 9));
        assert_eq!((replay.launch(id(1, 2)), replay.launch(id(1, 1))), (5, 7));
        assert_eq!(replay.resume(id(1, 1)), 7, "launched anew");
        replay.end(id(0, 1));
        assert_eq!(replay.resume(id(1, 1)), 7, "what ended is the one before");
        replay.end(id(3, 1));
        assert_eq!(replay.given.len(), 2);
        assert_eq!(replay.resume(id(0, 5)), 9, "of another engine");
    }
}
