//! The responses that a simulated engine owes.

use std::collections::HashMap;

use rollpacker_dataflow::step::SampleId;
use slab::Slab;

use crate::rollout::{Completion, FinishReason};
use rollpacker_dataflow::clock::Nanos;

/// All responses that are owed, whichever instance has them.
#[derive(Debug, Default)]
pub(super) struct Requests {
    live: Slab<Live>,
    /// Those that have not ended.
    open: HashMap<SampleId, usize>,
    turns: u64,
}

/// A response that is owed.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) id: SampleId,
    /// Tokens of the prompt.
    pub(super) prompt_length: u32,
    /// Tokens that it will have.
    pub(super) length: u32,
    /// Tokens that it had at `since`.
    pub(super) tokens: u32,
    /// Iteration of its instance from which on it runs; only while it runs.
    pub(super) since: u64,
    /// What may still refer to it; see [`Ticket`].
    pub(super) turn: u64,
    pub(super) state: State,
    pub(super) instance: u32,
    pub(super) preemptions: u32,
    /// When it was first admitted, in nanoseconds.
    pub(super) started: Option<f64>,
}

/// Where a response is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
    Ended,
}

/// A reference to a response in the queue or heap of an instance. It is void once the response has moved on: queues are not searched
/// when a response leaves from their middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    pub(super) slot: usize,
    pub(super) turn: u64,
}

impl Live {
    /// Tokens of prompt and response when its instance is at `iteration`.
    pub(super) fn context(&self, iteration: u64) -> u64 {
        u64::from(self.prompt_length) + u64::from(self.tokens_at(iteration))
    }

    /// Tokens of the response when its instance is at `iteration`.
    pub(super) fn tokens_at(&self, iteration: u64) -> u32 {
        match self.state {
            State::Running => self.tokens + (iteration - self.since) as u32,
            State::Waiting | State::Ended => self.tokens,
        }
    }
}

impl Requests {
    /// Takes a response in.
    pub(super) fn insert(&mut self, live: Live) -> usize {
        let id = live.id;
        let slot = self.live.insert(live);
        let before = self.open.insert(id, slot);
        debug_assert!(before.is_none(), "{id} was asked for twice");
        slot
    }

    pub(super) fn open(&self, id: SampleId) -> Option<usize> {
        self.open.get(&id).copied()
    }

    /// Whether all have ended.
    pub(super) fn have_ended(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn get(&self, slot: usize) -> &Live {
        &self.live[slot]
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> &mut Live {
        &mut self.live[slot]
    }

    /// Gives a response its next state; all tickets that it had are void.
    pub(super) fn turn(&mut self, slot: usize, state: State) -> Ticket {
        self.turns += 1;
        let live = &mut self.live[slot];
        live.state = state;
        live.turn = self.turns;
        Ticket { slot, turn: self.turns }
    }

    /// The response that a ticket refers to, unless it is void.
    pub(super) fn find(&self, ticket: Ticket) -> Option<&Live> {
        self.live.get(ticket.slot).filter(|live| live.turn == ticket.turn)
    }

    /// Notes that a response has ended, with `tokens` tokens; it stays until it is [removed](Self::remove).
    pub(super) fn end(&mut self, slot: usize, tokens: u32) {
        self.turn(slot, State::Ended);
        self.live[slot].tokens = tokens;
        self.open.remove(&self.live[slot].id);
    }

    /// What is reported of an ended response, which is owed no longer.
    pub(super) fn remove(
        &mut self,
        slot: usize,
        finished: Nanos,
        finish_reason: FinishReason,
    ) -> Completion {
        let live = self.live.remove(slot);
        Completion {
            id: live.id,
            response_length: live.tokens,
            response_ids: Vec::new(),
            logprobs: Vec::new(),
            token_versions: Vec::new(),
            text: String::new(),
            finish_reason,
            started: live.started.map_or(finished, |started| Nanos(started as u64)),
            finished,
            preemptions: live.preemptions,
            instance: live.instance,
        }
    }
}
