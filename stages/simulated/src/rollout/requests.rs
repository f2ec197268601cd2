//! The outstanding responses of a simulated engine.

use std::collections::HashMap;

use rollpacker_dataflow::step::SampleId;
use slab::Slab;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_stages::rollout::{Completion, FinishReason, TokenVersions};

/// All responses that were requested and not reported yet, independent of their instance.
#[derive(Debug, Default)]
pub(super) struct Requests {
    live: Slab<Live>,
    /// The slots of the responses that have not ended, by id.
    open: HashMap<SampleId, usize>,
    last_generation: u64,
}

/// A response that was requested and not reported yet.
#[derive(Clone, Debug)]
pub(super) struct Live {
    pub(super) id: SampleId,
    /// Number of tokens of the prompt.
    pub(super) prompt_length: u32,
    /// Number of tokens with which the response ends by itself.
    pub(super) length: u32,
    /// Number of tokens of the response: at iteration `since` while it runs, otherwise at present.
    pub(super) tokens: u32,
    /// Iteration of the instance at which the response started to run; valid only while it runs.
    pub(super) since: u64,
    /// The number of the last change of state. A [`RequestHandle`] is valid only if it has this number.
    pub(super) generation: u64,
    pub(super) state: RequestState,
    pub(super) instance: u32,
    pub(super) preemptions: u32,
    /// `true` if the KV cache was sent to the instance at which the response waits, so that it need not be computed again.
    pub(super) has_cache: bool,
    /// Time of the first admission, in nanoseconds; `None` before it.
    pub(super) started: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestState {
    Waiting,
    Running,
    Ended,
}

/// A reference to a response in the queue or heap of an instance. It becomes void when the state of the response changes, so that queues
/// need not be searched when a response leaves from the middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestHandle {
    pub(super) slot: usize,
    pub(super) generation: u64,
}

impl Live {
    /// Returns the number of tokens of prompt and response when its instance is at `iteration`.
    pub(super) fn context(&self, iteration: u64) -> u64 {
        u64::from(self.prompt_length) + u64::from(self.tokens_at(iteration))
    }

    /// Returns the number of tokens of the response when its instance is at `iteration`.
    pub(super) fn tokens_at(&self, iteration: u64) -> u32 {
        match self.state {
            RequestState::Running => self.tokens + (iteration - self.since) as u32,
            RequestState::Waiting | RequestState::Ended => self.tokens,
        }
    }
}

impl Requests {
    /// Adds a response and returns its slot.
    pub(super) fn insert(&mut self, live: Live) -> usize {
        let id = live.id;
        let slot = self.live.insert(live);
        let before = self.open.insert(id, slot);
        debug_assert!(before.is_none(), "{id} was requested twice");
        slot
    }

    pub(super) fn open(&self, id: SampleId) -> Option<usize> {
        self.open.get(&id).copied()
    }

    pub(super) fn all_ended(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn get(&self, slot: usize) -> &Live {
        &self.live[slot]
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> &mut Live {
        &mut self.live[slot]
    }

    /// Changes the state of a response and returns its new handle. All its earlier handles become void.
    pub(super) fn set_state(&mut self, slot: usize, state: RequestState) -> RequestHandle {
        self.last_generation += 1;
        let live = &mut self.live[slot];
        live.state = state;
        live.generation = self.last_generation;
        RequestHandle { slot, generation: self.last_generation }
    }

    /// Returns the response of a handle; `None` if the handle is void.
    pub(super) fn find(&self, handle: RequestHandle) -> Option<&Live> {
        self.live.get(handle.slot).filter(|live| live.generation == handle.generation)
    }

    /// Marks a response as ended with `tokens` tokens. It stays until it is [removed](Self::remove).
    pub(super) fn end(&mut self, slot: usize, tokens: u32) {
        self.set_state(slot, RequestState::Ended);
        self.live[slot].tokens = tokens;
        self.open.remove(&self.live[slot].id);
    }

    /// Removes an ended response and returns its completion.
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
            token_versions: TokenVersions::default(),
            text: String::new(),
            finish_reason,
            started: live.started.map_or(finished, |started| Nanos(started as u64)),
            finished,
            preemptions: live.preemptions,
            instance: live.instance,
        }
    }
}
