//! Races of the torch engine in [lockstep](super::lockstep): the engine holds responses that have ended until their tick is reached.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use rollpacker_dataflow::step::{PolicyVersion, SampleId, Tick};

use super::lockstep::{End, Reached};
use super::options::Detokenize;
use super::{Completion, FinishReason, RolloutError, RolloutEvent};

/// The circumstances in which a response was requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(super) tick: Tick,
    /// Number of tokens that the response was resumed with.
    pub(super) resumed_tokens: u32,
    /// The policy version that was loaded last before the launch.
    pub(super) policy: PolicyVersion,
}

impl Launch {
    /// Returns the tick at which the response has `tokens` tokens.
    pub(super) fn tick_at_length(self, tokens: usize) -> Tick {
        let own = (tokens as u64).saturating_sub(self.resumed_tokens.into());
        Tick(self.tick.0.saturating_add(own))
    }

    /// Returns the number of tokens that the response has at `tick`, provided that it has not ended before.
    fn tokens_at(self, tick: Tick) -> usize {
        let own = tick.0.saturating_sub(self.tick.0);
        usize::try_from(own.saturating_add(self.resumed_tokens.into())).unwrap_or(usize::MAX)
    }
}

/// The progress of an instance, written by its thread and read by the engine.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<ProgressReading>);

/// A snapshot of the progress of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProgressReading {
    /// Number of batches that the instance has taken; see [`BatchesInFlight`].
    pub(super) batches: u64,
    /// A tick before the end of all responses that the instance has taken and that have not ended; [`Tick::MAX`] if there are none.
    pub(super) floor: Tick,
}

impl Default for ProgressReading {
    fn default() -> Self {
        Self { batches: 0, floor: Tick::MAX }
    }
}

impl Progress {
    /// Publishes the progress of an instance. All ends up to the floor must have been reported before. Returns `true` if the progress has
    /// changed.
    pub(super) fn publish(&self, now: ProgressReading) -> bool {
        let mut reading = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *reading, now) != now
    }

    pub(super) fn read(&self) -> ProgressReading {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The batches that were sent to an instance and that it may not have taken yet. A batch is the group of responses that is sent in one
/// command.
#[derive(Debug, Default)]
pub(super) struct BatchesInFlight {
    sent: u64,
    floors: VecDeque<Tick>,
}

impl BatchesInFlight {
    /// Records a batch whose responses end later than `floor`.
    pub(super) fn send(&mut self, floor: Tick) {
        self.sent += 1;
        self.floors.push_back(floor);
    }

    /// Returns a tick before the end of all responses that the instance has, and of all that are in transit to it.
    pub(super) fn floor(&mut self, reading: ProgressReading) -> Tick {
        let pending = self.sent.saturating_sub(reading.batches);
        while self.floors.len() as u64 > pending {
            self.floors.pop_front();
        }
        reading.floor.min(self.pending_floor())
    }

    /// Returns a tick before the end of all responses of the batches that were not taken at the last call of [`floor`](Self::floor), or
    /// were sent since.
    pub(super) fn pending_floor(&self) -> Tick {
        self.floors.iter().copied().min().unwrap_or(Tick::MAX)
    }
}

/// The responses of an engine in lockstep. Responses that have ended are held until their tick is reached.
#[derive(Debug, Default)]
pub(super) struct LockstepRace {
    /// The tick that the engine was last advanced to.
    now: Tick,
    /// The launches of the responses that have not been reported.
    launched: BTreeMap<SampleId, Launch>,
    /// The responses that have ended and may still be aborted, by the tick of their end.
    ended: BTreeMap<(Tick, SampleId), Completion>,
    /// Ends that have not been reported to the caller.
    unreported: Vec<End>,
    /// Aborted responses that their instance has not reported yet, with the tick of the abort; `None` for an abort without a tick.
    aborted: BTreeMap<SampleId, Option<Tick>>,
    /// The events that the caller has not polled, in order.
    events: VecDeque<RolloutEvent>,
}

impl LockstepRace {
    pub(super) fn now(&self) -> Tick {
        self.now
    }

    pub(super) fn launch(&mut self, id: SampleId, launch: Launch) {
        self.launched.insert(id, launch);
    }

    /// Processes an event of the instances. Reports a response that was aborted or has not ended by itself, and holds every other response
    /// until its tick is reached. A failure discards all responses.
    pub(super) fn process_event(&mut self, event: RolloutEvent, detokenize: &Detokenize) {
        match event {
            RolloutEvent::Completed(completion) => self.end(completion, detokenize),
            RolloutEvent::Failed(error) => self.fail(error),
        }
    }

    /// Discards all responses and reports the error.
    fn fail(&mut self, error: RolloutError) {
        *self = Self { now: self.now, ..Self::default() };
        self.events.push_back(RolloutEvent::Failed(error));
    }

    fn end(&mut self, completion: Completion, detokenize: &Detokenize) {
        let id = completion.id;
        let launch = self.launched.get(&id).copied().unwrap_or_default();
        if let Some(tick) = self.aborted.remove(&id) {
            return self.report_cut(completion, tick, detokenize);
        }
        if !completion.finish_reason.is_whole() {
            return self.report(completion);
        }
        let (tokens, finish_reason) = (completion.response_length, completion.finish_reason);
        let tick = launch.tick_at_length(completion.response_ids.len());
        self.unreported.push(End { tick, id, tokens, finish_reason });
        self.ended.insert((tick, id), completion);
    }

    /// Returns the ends that were not returned before, and `floor`. The caller must have passed all ends up to `floor` to
    /// [`process_event`](Self::process_event).
    pub(super) fn reached(&mut self, floor: Tick) -> Reached {
        Reached { ended: std::mem::take(&mut self.unreported), floor }
    }

    /// Releases the responses that ended up to `tick`, in the order of ticks. Returns `true` if there are events.
    pub(super) fn advance(&mut self, tick: Tick) -> bool {
        self.now = self.now.max(tick);
        while let Some(first) = self.ended.first_entry().filter(|first| first.key().0 <= self.now) {
            let completion = first.remove();
            self.report(completion);
        }
        !self.events.is_empty()
    }

    /// Aborts a response. The response keeps the tokens that it had at `tick`, or all its tokens if `tick` is `None`. Returns `true` if the
    /// abort must still be sent to the instance, and `false` if the response has ended, was aborted before, or is unknown.
    pub(super) fn abort(
        &mut self,
        id: SampleId,
        tick: Option<Tick>,
        detokenize: &Detokenize,
    ) -> bool {
        if !self.launched.contains_key(&id) {
            return false;
        }
        let held = self.ended.keys().find(|(_, ended)| *ended == id).copied();
        let Some(completion) = held.and_then(|key| self.ended.remove(&key)) else {
            return match self.aborted.entry(id) {
                Entry::Vacant(entry) => {
                    entry.insert(tick);
                    true
                }
                Entry::Occupied(_) => false,
            };
        };
        self.unreported.retain(|end| end.id != id);
        self.report_cut(completion, tick, detokenize);
        false
    }

    pub(super) fn event(&mut self) -> Option<RolloutEvent> {
        self.events.pop_front()
    }

    fn report_cut(&mut self, whole: Completion, tick: Option<Tick>, detokenize: &Detokenize) {
        let launch = self.launched.get(&whole.id).copied().unwrap_or_default();
        let tokens = tick.map_or(usize::MAX, |tick| launch.tokens_at(tick));
        self.report(cut(whole, tokens, detokenize));
    }

    fn report(&mut self, completion: Completion) {
        self.launched.remove(&completion.id);
        self.events.push_back(RolloutEvent::Completed(completion));
    }
}

/// Marks a response as aborted, and cuts it to its first `tokens` tokens if it has more.
fn cut(mut completion: Completion, tokens: usize, detokenize: &Detokenize) -> Completion {
    completion.finish_reason = FinishReason::Abort;
    if tokens < completion.response_ids.len() {
        completion.response_ids.truncate(tokens);
        completion.logprobs.truncate(tokens);
        completion.token_versions.truncate(tokens);
        completion.response_length = u32::try_from(tokens).unwrap_or(u32::MAX);
        completion.text = detokenize(&completion.response_ids);
    }
    completion
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rollpacker_dataflow::clock::Nanos;

    use super::super::TokenVersions;
    use super::*;

    fn id(sample: u32) -> SampleId {
        SampleId { sample, ..SampleId::default() }
    }

    fn detokenize() -> Detokenize {
        Arc::new(|ids: &[i32]| format!("{ids:?}"))
    }

    fn completion(sample: u32, tokens: i32, finish_reason: FinishReason) -> Completion {
        let response_ids: Vec<i32> = (0..tokens).collect();
        Completion {
            id: id(sample),
            response_length: tokens as u32,
            logprobs: vec![-1.0; response_ids.len()],
            token_versions: TokenVersions::of(PolicyVersion(0), response_ids.len()),
            text: detokenize()(&response_ids),
            response_ids,
            finish_reason,
            started: Nanos(0),
            finished: Nanos(0),
            preemptions: 0,
            instance: 0,
        }
    }

    /// Returns a race of responses that were all launched at tick 5, each with one token.
    fn race(samples: std::ops::Range<u32>) -> LockstepRace {
        let mut race = LockstepRace::default();
        let launch = Launch { tick: Tick(5), resumed_tokens: 1, ..Launch::default() };
        samples.for_each(|sample| race.launch(id(sample), launch));
        race
    }

    fn end(race: &mut LockstepRace, sample: u32, tokens: i32, reason: FinishReason) {
        race.process_event(
            RolloutEvent::Completed(completion(sample, tokens, reason)),
            &detokenize(),
        );
    }

    fn drain_events(race: &mut LockstepRace) -> Vec<(u32, u32, FinishReason)> {
        let events = std::iter::from_fn(|| race.event()).map(|event| match event {
            RolloutEvent::Completed(completion) => {
                assert_eq!(completion.text, detokenize()(&completion.response_ids));
                assert_eq!(completion.logprobs.len(), completion.token_versions.len());
                assert_eq!(completion.logprobs.len(), completion.response_length as usize);
                (completion.id.sample, completion.response_length, completion.finish_reason)
            }
            RolloutEvent::Failed(error) => panic!("{error}"),
        });
        events.collect()
    }

    #[test]
    fn an_ended_response_waits_for_its_tick() {
        let mut race = race(0..3);
        end(&mut race, 1, 9, FinishReason::Length);
        end(&mut race, 0, 4, FinishReason::Stop);
        let ticks: Vec<_> = race.reached(Tick(8)).ended.iter().map(|end| end.tick).collect();
        assert_eq!(ticks, [Tick(13), Tick(8)]);
        assert_eq!(race.reached(Tick(9)), Reached { ended: vec![], floor: Tick(9) });
        assert!(!race.advance(Tick(7)));
        assert!(race.advance(Tick(8)));
        assert_eq!(drain_events(&mut race), [(0, 4, FinishReason::Stop)]);
        race.advance(Tick(20));
        assert_eq!(drain_events(&mut race), [(1, 9, FinishReason::Length)]);
        assert_eq!(race.now(), Tick(20));
    }

    #[test]
    fn an_aborted_response_is_cut_at_its_tick() {
        let mut race = race(0..4);
        end(&mut race, 0, 9, FinishReason::Stop);
        assert!(!race.abort(id(0), Some(Tick(8)), &detokenize()), "it is held");
        assert!(race.abort(id(1), Some(Tick(8)), &detokenize()), "it runs");
        assert!(!race.abort(id(1), Some(Tick(8)), &detokenize()), "once");
        assert!(race.abort(id(2), Some(Tick(5)), &detokenize()));
        assert!(race.abort(id(3), None, &detokenize()));
        assert!(!race.abort(id(9), Some(Tick(8)), &detokenize()), "unknown");
        end(&mut race, 1, 12, FinishReason::Stop);
        end(&mut race, 2, 3, FinishReason::Abort);
        end(&mut race, 3, 3, FinishReason::Abort);
        let cut = |sample, tokens| (sample, tokens, FinishReason::Abort);
        assert_eq!(drain_events(&mut race), [cut(0, 4), cut(1, 4), cut(2, 1), cut(3, 3)]);
        assert_eq!(race.reached(Tick::MAX).ended, [], "dropped responses are not reported");
        assert!(race.launched.is_empty() && race.aborted.is_empty() && race.ended.is_empty());
    }

    #[test]
    fn a_share_that_is_not_taken_holds_the_floor() {
        let mut in_flight = BatchesInFlight::default();
        let reading = |batches, floor| ProgressReading { batches, floor: Tick(floor) };
        assert_eq!(in_flight.floor(ProgressReading::default()), Tick::MAX);
        in_flight.send(Tick(3));
        in_flight.send(Tick(7));
        assert_eq!(in_flight.floor(reading(0, 50)), Tick(3));
        assert_eq!(in_flight.floor(reading(1, 50)), Tick(7));
        assert_eq!(in_flight.floor(reading(1, 6)), Tick(6));
        assert_eq!(in_flight.floor(reading(2, 50)), Tick(50));
    }

    #[test]
    fn after_a_failure_no_other_event_is_reported() {
        let mut race = race(0..2);
        end(&mut race, 0, 4, FinishReason::Stop);
        let error = RolloutError::Engine { instance: 1, reason: "gone".to_owned() };
        race.process_event(RolloutEvent::Failed(error.clone()), &detokenize());
        assert!(race.advance(Tick(90)));
        assert_eq!(race.event(), Some(RolloutEvent::Failed(error)));
        assert_eq!(race.event(), None);
    }
}
