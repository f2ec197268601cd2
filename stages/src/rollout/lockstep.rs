//! Lockstep: races between responses that are decided by tokens instead of wall time.
//!
//! Which responses end first depends on the machines, on their load, and on how requests were distributed. In lockstep all responses are
//! treated as gaining one token per tick, wherever they run and however long they wait for a slot: a response that is launched at tick `t`
//! and has `n` tokens ends at `t + n`. Engines compute as fast as they can, and report which responses have ended and how far the slowest
//! response is. The scheduler receives the ends in the order of ticks. A response that it drops is cut to the tokens that the response had
//! at the tick of the decision. The same prompts are therefore admitted with any number of instances and workers. The cost is that a
//! decision waits until the slowest response has reached its tick.

use rollpacker_dataflow::step::{SampleId, Tick};

use super::FinishReason;

/// The end of a response. Engines report the responses that have ended by themselves; the caller of an engine may also use this type for
/// responses that it aborts or pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// The tick of the end. For a response that has ended by itself, it is the launch tick plus the tokens of the response, without the
    /// tokens with which it was resumed.
    pub tick: Tick,
    /// The response.
    pub id: SampleId,
    /// Number of tokens of the response, including the tokens with which it was resumed.
    pub tokens: u32,
    /// The finish reason; in the reports of an engine, always [whole](FinishReason::is_whole).
    pub finish_reason: FinishReason,
}

/// The progress of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The responses that have ended since the last call, in no particular order.
    pub ended: Vec<End>,
    /// A tick that precedes the ends of all other responses that were requested and not aborted; [`Tick::MAX`] if there are none.
    ///
    /// The floor may lag: until an instance reports that it dropped an aborted response, this response may still limit the floor. A caller
    /// that expects no response must treat the floor as [`Tick::MAX`].
    pub floor: Tick,
}

/// The interface of an engine for races in lockstep. Ticks ascend across all steps.
///
/// # Contract
/// - If this interface was requested before the first [`Request`](super::Request), [`poll`](super::RolloutEngine::poll) returns only
///   responses that ended up to the tick of the last [`advance`](Self::advance), and aborted responses. If [`reached`](Self::reached) has
///   reported an end up to that tick, `poll` returns its response without another wake.
/// - The tokens and log-probabilities of a response are bit-identical, independent of the rest of the batch and of the instance that
///   generates it.
/// - The waker is called when [`reached`](Self::reached) has something new.
///
/// # Example
/// ```
/// use std::collections::BTreeMap;
///
/// use rollpacker_dataflow::step::{SampleId, Tick};
/// use rollpacker_stages::rollout::FinishReason;
/// use rollpacker_stages::rollout::lockstep::{End, Lockstep, Reached};
///
/// /// Responses that are launched at tick 0, by their numbers of tokens. They are computed at once.
/// struct Computed {
///     responses: BTreeMap<SampleId, u32>,
///     now: Tick,
/// }
///
/// impl Lockstep for Computed {
///     fn reached(&mut self) -> Reached {
///         let end = |(&id, &tokens): (&SampleId, &u32)| {
///             let tick = Tick(u64::from(tokens));
///             End { tick, id, tokens, finish_reason: FinishReason::Stop }
///         };
///         let ended = self.responses.iter().map(end).filter(|end| end.tick > self.now).collect();
///         Reached { ended, floor: Tick::MAX }
///     }
///
///     fn advance(&mut self, tick: Tick) {
///         self.now = tick;
///     }
///
///     fn abort_at(&mut self, id: SampleId, tick: Tick) {
///         if let Some(tokens) = self.responses.get_mut(&id) {
///             *tokens = (*tokens).min(tick.0 as u32);
///         }
///     }
/// }
///
/// // Train on the first two of three responses, and drop the third at the tick of the second.
/// let id = |sample| SampleId { sample, ..SampleId::default() };
/// let responses = BTreeMap::from([(id(0), 90), (id(1), 20), (id(2), 50)]);
/// let mut engine = Computed { responses, now: Tick(0) };
/// let mut ended = engine.reached().ended;
/// ended.sort();
/// let [_, second, third] = ended[..] else { panic!("three responses") };
/// engine.advance(second.tick);
/// engine.abort_at(third.id, second.tick);
/// assert_eq!(engine.responses, BTreeMap::from([(id(0), 50), (id(1), 20), (id(2), 50)]));
/// ```
pub trait Lockstep {
    /// Returns the progress of the engine.
    fn reached(&mut self) -> Reached;

    /// Sets the current tick. No response that ended up to `tick` will be aborted any more, and later requests are launched at `tick`.
    fn advance(&mut self, tick: Tick);

    /// Drops a response as it was at `tick`, even if it has ended since: the completion has the tokens of that tick.
    ///
    /// `tick` must not exceed the last floor of [`reached`](Self::reached). A response that ended at exactly `tick` is reported with all
    /// its tokens and cannot be resumed.
    fn abort_at(&mut self, id: SampleId, tick: Tick);
}
