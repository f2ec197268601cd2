//! Lockstep: races of responses that are decided by tokens, never by wall time.
//!
//! Which responses are the first to end depends on machines, on their load, and on how requests were spread over them. In lockstep all
//! responses are taken to gain one token a tick, wherever they run and however long they wait for a place: a response that is launched
//! at tick `t` and has `n` tokens ends at `t + n`. Engines compute as fast as they can and tell what has ended and how far the slowest
//! is; whoever decides hears of the ends in the order of ticks, and what it drops is cut where it stood at the tick of the decision.
//! So the same prompts are admitted with any number of instances and workers. The cost is that a decision waits until the slowest has
//! come as far.

use rollpacker_dataflow::step::{SampleId, Tick};

use super::FinishReason;

/// A response that has ended by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// When: the tick it was launched at and its tokens, without those that it was resumed with.
    pub tick: Tick,
    /// Which response.
    pub id: SampleId,
    /// Its tokens, those that it was resumed with included.
    pub tokens: u32,
    /// How it ended: [whole](FinishReason::is_whole).
    pub finish_reason: FinishReason,
}

/// How far an engine has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// What has ended since it was last asked, in no order.
    pub ended: Vec<End>,
    /// Every other response that was asked for and not aborted ends later than this; [`Tick::MAX`] if there is none.
    ///
    /// The floor may lag: until an instance says that it dropped an aborted response, the floor may be that of this response. A caller to whom
    /// no response is owed reads it as [`Tick::MAX`].
    pub floor: Tick,
}

/// The side of an engine by which it races in lockstep. Ticks ascend, over all steps.
///
/// # Contract
/// - An engine from which this was asked before its first request gives from [`poll`](super::RolloutEngine::poll) only what ended up to
///   the tick that it was last [advanced](Self::advance) to, and what was aborted. What [`reached`](Self::reached) has told of up to that
///   tick it gives without another wake.
/// - What is sampled for a response is the same to the bit, in whatever company and on whichever instance it is generated.
/// - The waker is called when [`reached`](Self::reached) has something new.
pub trait Lockstep {
    /// How far it has come.
    fn reached(&mut self) -> Reached;

    /// Nothing that ended up to `tick` will be aborted any more, and what is requested from now on is launched at `tick`.
    fn advance(&mut self, tick: Tick);

    /// Drops a response as it stood at `tick`, also if it has ended since: what is reported has the tokens of that tick. No tick is above the
    /// floor that was last [reached](Self::reached). A response that has ended at the very tick is reported with all its tokens, and has
    /// nothing to go on with.
    fn abort_at(&mut self, id: SampleId, tick: Tick);
}
