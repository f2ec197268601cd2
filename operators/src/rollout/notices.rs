//! Notices: the progress of a rollout, which the schedule needs to decide a race by tokens.

use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::step::Tick;
use rollpacker_stages::rollout::Completion;
use rollpacker_stages::rollout::lockstep::{End, Reached};

use crate::wire::notice;

/// The unreported progress of one worker's rollout.
#[derive(Debug)]
pub(super) struct Notices {
    worker: u32,
    /// The last tick that the schedule announced.
    tick: Tick,
    /// The number of request rows received so far.
    received: u64,
    /// Ends that the engine does not report through [`Lockstep::reached`](rollpacker_stages::rollout::Lockstep::reached).
    ends: Vec<End>,
    /// The values of `received` and the floor in the last notice. A notice without ends is sent only if one of the two values has changed.
    last_sent: (u64, Tick),
}

impl Notices {
    pub(super) fn new(worker: usize) -> Self {
        Self {
            worker: u32::try_from(worker).unwrap_or(u32::MAX),
            tick: Tick(0),
            received: 0,
            ends: Vec::new(),
            last_sent: (0, Tick::MAX),
        }
    }

    pub(super) fn tick(&self) -> Tick {
        self.tick
    }

    /// Records that the schedule announced `tick`.
    pub(super) fn advance(&mut self, tick: Tick) {
        self.tick = tick;
    }

    pub(super) fn record_received(&mut self, rows: usize) {
        self.received += rows as u64;
    }

    /// Records that a response was aborted, paused or returned again at the last announced tick.
    pub(super) fn end(&mut self, completion: &Completion) {
        self.ends.push(End {
            tick: self.tick,
            id: completion.id,
            tokens: completion.response_length,
            finish_reason: completion.finish_reason,
        });
    }

    /// Returns the progress since the last call, including `reached`, as a batch of [`NOTICES`](rollpacker_dataflow::schema::NOTICES). The
    /// batch has no rows if nothing has changed.
    pub(super) fn batch(&mut self, reached: Reached) -> Batch {
        let Reached { ended, floor } = reached;
        let mut ends = std::mem::take(&mut self.ends);
        ends.extend(ended);
        let last_sent = std::mem::replace(&mut self.last_sent, (self.received, floor));
        if ends.is_empty() && last_sent == self.last_sent {
            return Batch::default();
        }
        notice::write(self.worker, self.received, floor, &ends)
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::step::{PromptId, SampleId, Step};
    use rollpacker_stages::rollout::FinishReason;

    use super::*;
    use crate::wire::notice::{Notice, read};

    fn end(tick: u64, sample: u32) -> End {
        let id = SampleId { step: Step(3), prompt: PromptId(8), sample };
        End { tick: Tick(tick), id, tokens: 5, finish_reason: FinishReason::Stop }
    }

    #[test]
    fn notices_round_trip_and_empty_ones_are_omitted() {
        let mut notices = Notices::new(2);
        assert_eq!(notices.batch(Reached { ended: Vec::new(), floor: Tick::MAX }).num_rows(), 0);
        notices.record_received(7);
        let reached = Reached { ended: vec![end(9, 1), end(4, 0)], floor: Tick(11) };
        let ends = reached.ended.clone();
        let notice = Notice { worker: 2, received: 7, floor: Tick(11), ends };
        assert_eq!(read(&notices.batch(reached)), notice);
        assert_eq!(notices.batch(Reached { ended: Vec::new(), floor: Tick(11) }).num_rows(), 0);
        let later = read(&notices.batch(Reached { ended: Vec::new(), floor: Tick(12) }));
        assert_eq!((later.floor, later.ends), (Tick(12), Vec::new()));
    }
}
