//! An instance of a simulated engine: continuous batching, simulated from event to event.
//!
//! All running responses gain one token per iteration. The iteration at which a response ends is therefore known when it is admitted.
//! Between two events (an end, a full KV cache, an arrival) there are only iterations, whose total time has a closed form ([`Decode`]).
//! Time is an `f64` in nanoseconds: whole nanoseconds are exact up to 104 days, and fractions do not accumulate an error that matters.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::config::SimulatedEngineConfig;
use super::requests::{RequestHandle, RequestState, Requests};
use crate::cluster::{Cost, CostError, Decode};

/// Nanoseconds per second.
pub(super) const NANOS: f64 = 1e9;

/// The parameters that all instances of an engine share.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) cost: Cost,
    pub(super) tensor_parallel: u32,
    pub(super) decode: Decode,
    /// Capacity of the KV cache, in tokens.
    pub(super) capacity: u64,
    /// Maximum number of responses that run at once.
    pub(super) max_running: u32,
    /// Bandwidth at which an instance sends KV caches, in bytes/s; `None` if moved responses are computed again.
    pub(super) kv_transfer_bandwidth: Option<f64>,
}

impl Shape {
    pub(super) fn new(
        cost: Cost,
        tensor_parallel: u32,
        config: &SimulatedEngineConfig,
    ) -> Result<Self, CostError> {
        let &SimulatedEngineConfig { max_running, slowdown, kv_transfer_bandwidth, .. } = config;
        let capacity = cost.kv_capacity(tensor_parallel)?;
        let decode = cost.decode(tensor_parallel).slowed(slowdown);
        Ok(Self { cost, tensor_parallel, decode, capacity, max_running, kv_transfer_bandwidth })
    }

    /// Returns the nanoseconds between the admission of a response of `context` tokens and its first decode iteration: the time of the
    /// prefill, or 0 if the instance has the KV cache of the response.
    fn start(&self, context: u64, has_cache: bool) -> f64 {
        if has_cache {
            return 0.0;
        }
        NANOS * self.cost.prefill(self.tensor_parallel, context as f64)
    }

    /// Returns the nanoseconds to send the KV cache of a response of `context` tokens to another instance, or `None` if it is not sent.
    fn transfer(&self, context: u64) -> Option<f64> {
        let bandwidth = self.kv_transfer_bandwidth?;
        let bytes = context as f64 * self.cost.model().kv_bytes_per_token();
        Some(NANOS * bytes / bandwidth)
    }

    /// Returns `true` if an instance with `running` responses that hold `held` tokens may admit a response of `context` tokens. This
    /// requires that fewer than `max_running` responses run, and that the KV cache has room for the response and a token of each running
    /// one. A hundredth of the capacity is reserved for growth. A single response always runs.
    pub(super) fn admits(&self, context: u64, running: u32, held: u64) -> bool {
        let room = self.capacity - self.capacity / 100;
        running == 0 || running < self.max_running && held + context + u64::from(running) <= room
    }
}

/// A response that ended by itself, and the time of its end in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    pub(super) slot: usize,
    pub(super) at: f64,
}

/// An engine instance.
///
/// # Invariants
/// All events up to `at` have been simulated. `at` is the end of an iteration, a prefill, a pause or an idle time. `at` is later than the
/// time to which the instance was advanced only if this time lies in a prefill, a pause or a [hold](Self::hold), or if a change had to wait
/// for the end of an iteration.
#[derive(Debug, Default)]
pub(super) struct Instance {
    at: f64,
    /// Time at which the last iteration ended; a prefill may have followed.
    sampled: f64,
    iteration: u64,
    running: u32,
    /// Number of tokens in the KV cache.
    held: u64,
    /// Running responses by the iteration at which they end; may also have void handles.
    ends: BinaryHeap<Reverse<(u64, RequestHandle)>>,
    /// Running responses in the order of their admission; may also have void handles.
    admitted: Vec<RequestHandle>,
    /// Responses that are not admitted, with their arrival times.
    waiting: VecDeque<(f64, RequestHandle)>,
    /// Number of waiting responses; the queue may also have void handles.
    waiting_responses: u32,
}

enum Next {
    /// Each running response samples this many tokens.
    Iterations(u64),
    /// The KV cache is full.
    Full,
    /// The instance is idle, and the next response arrives at this time.
    Arrival(f64),
    Nothing,
}

impl Instance {
    /// Returns the number of responses that run or wait.
    pub(super) fn load(&self) -> u32 {
        self.running + self.waiting_responses
    }

    /// Adds a response at the end of the queue.
    pub(super) fn enqueue(&mut self, slot: usize, arrival: f64, requests: &mut Requests) {
        let handle = requests.set_state(slot, RequestState::Waiting);
        self.waiting.push_back((arrival, handle));
        self.waiting_responses += 1;
    }

    /// Adds a preempted response at the front of the queue.
    fn enqueue_first(&mut self, slot: usize, arrival: f64, requests: &mut Requests) {
        let handle = requests.set_state(slot, RequestState::Waiting);
        self.waiting.push_front((arrival, handle));
        self.waiting_responses += 1;
    }

    /// Keeps the instance idle until `until`.
    pub(super) fn hold(&mut self, until: f64) {
        self.at = self.at.max(until);
    }

    /// Simulates all events up to `until`.
    ///
    /// Each round starts between two iterations. It admits what has arrived and fits, and then jumps to the next event: the end of a
    /// response, a full KV cache, the first iteration boundary after an arrival, or an arrival while nothing runs. A jump that would end
    /// after `until` is not made, because the caller may change the instance before. The instance then stays at its last decided boundary,
    /// and the next call computes the jump again.
    pub(super) fn advance(
        &mut self,
        until: f64,
        shape: &Shape,
        requests: &mut Requests,
        ended: &mut Vec<End>,
    ) {
        while self.at <= until {
            // During a prefill, other responses may have arrived.
            if self.admit(shape, requests) {
                continue;
            }
            match self.next(shape, requests) {
                Next::Iterations(count) => {
                    if self.time_after(count, shape) > until {
                        return;
                    }
                    self.iterate(count, shape, requests, ended);
                }
                Next::Full => self.preempt(requests),
                Next::Arrival(at) if at <= until => self.hold(at),
                Next::Arrival(_) | Next::Nothing => return,
            }
        }
    }

    /// Simulates all events up to the first time from `now` on at which the instance can be changed: between two iterations.
    fn advance_to_boundary(
        &mut self,
        now: f64,
        shape: &Shape,
        requests: &mut Requests,
        ended: &mut Vec<End>,
    ) {
        self.advance(now, shape, requests, ended);
        if self.running == 0 {
            self.hold(now);
        } else if self.at < now {
            let seconds = (now - self.at) / NANOS;
            let whole = shape.decode.within(seconds, self.running, self.held);
            self.iterate(whole, shape, requests, ended);
            if self.at < now && self.running > 0 {
                self.iterate(1, shape, requests, ended);
            }
        }
    }

    /// Returns the time of the next event that may have to be reported if nothing changes. The returned time is never too late. `None` if
    /// there is no such event.
    pub(super) fn due(&mut self, shape: &Shape, requests: &Requests) -> Option<f64> {
        // A response that is admitted may end before the running responses.
        if self.first_admissible(self.at, shape, requests).is_some() {
            return Some(self.at);
        }
        match self.next(shape, requests) {
            Next::Iterations(count) => Some(self.time_after(count, shape)),
            Next::Full => Some(self.at),
            Next::Arrival(at) => Some(at),
            Next::Nothing => None,
        }
    }

    fn next(&mut self, shape: &Shape, requests: &Requests) -> Next {
        let arrival = self.next_arrival(shape, requests);
        if self.running == 0 {
            return arrival.map_or(Next::Nothing, Next::Arrival);
        }
        let until_arrival = arrival.map_or(u64::MAX, |arrival| {
            1 + shape.decode.within((arrival - self.at) / NANOS, self.running, self.held)
        });
        match self.iterations_until_full(shape) {
            0 => Next::Full,
            full => {
                Next::Iterations(full.min(self.iterations_until_end(requests)).min(until_arrival))
            }
        }
    }

    /// Returns the time of the next arrival that might be admitted; `None` if the maximum number of responses runs or no later arrival is
    /// known.
    fn next_arrival(&mut self, shape: &Shape, requests: &Requests) -> Option<f64> {
        if self.running >= shape.max_running {
            return None;
        }
        self.first_waiting(requests).map(|(arrival, _)| arrival).filter(|at| *at > self.at)
    }

    /// Returns the number of iterations until a response ends; `u64::MAX` if nothing runs.
    fn iterations_until_end(&mut self, requests: &Requests) -> u64 {
        while let Some(&Reverse((iteration, handle))) = self.ends.peek() {
            if requests.find(handle).is_some() {
                return iteration - self.iteration;
            }
            self.ends.pop();
        }
        u64::MAX
    }

    /// Returns the number of iterations until the KV cache is full; `u64::MAX` for at most one running response, which is not limited.
    fn iterations_until_full(&self, shape: &Shape) -> u64 {
        if self.running <= 1 {
            return u64::MAX;
        }
        shape.capacity.saturating_sub(self.held) / u64::from(self.running)
    }

    /// Returns the time at which `count` iterations from now have ended.
    fn time_after(&self, count: u64, shape: &Shape) -> f64 {
        self.at + NANOS * shape.decode.iterations(count, self.running, self.held)
    }

    /// Samples `count` tokens for each running response. No response may end before the last iteration.
    fn iterate(
        &mut self,
        count: u64,
        shape: &Shape,
        requests: &mut Requests,
        ended: &mut Vec<End>,
    ) {
        if count == 0 {
            return;
        }
        self.at = self.time_after(count, shape);
        self.sampled = self.at;
        self.iteration += count;
        self.held += count * u64::from(self.running);
        while self.iterations_until_end(requests) == 0 {
            let Some(Reverse((_, RequestHandle { slot, .. }))) = self.ends.pop() else { break };
            let length = requests.get(slot).length;
            self.remove_running(slot, requests);
            requests.end(slot, length);
            ended.push(End { slot, at: self.at });
        }
    }

    /// Removes a running response from the counts.
    fn remove_running(&mut self, slot: usize, requests: &Requests) {
        self.held -= requests.get(slot).context(self.iteration);
        self.running -= 1;
    }

    /// Admits responses that have arrived and fit, first come first served. Each response is prefilled immediately, unless it brings its KV
    /// cache. Returns `true` if a response was admitted.
    fn admit(&mut self, shape: &Shape, requests: &mut Requests) -> bool {
        let (boundary, waited) = (self.at, self.waiting_responses);
        while let Some(handle) = self.first_admissible(boundary, shape, requests) {
            let live = requests.get(handle.slot);
            let (context, has_cache) = (live.context(self.iteration), live.has_cache);
            self.waiting.pop_front();
            self.waiting_responses -= 1;
            self.at += shape.start(context, has_cache);
            self.run(handle.slot, boundary, context, requests);
        }
        self.waiting_responses < waited
    }

    /// Returns the first waiting response if it has arrived by `boundary` and fits.
    fn first_admissible(
        &mut self,
        boundary: f64,
        shape: &Shape,
        requests: &Requests,
    ) -> Option<RequestHandle> {
        let (arrival, handle) = self.first_waiting(requests)?;
        let context = requests.get(handle.slot).context(self.iteration);
        let fits = shape.admits(context, self.running, self.held);
        (arrival <= boundary && fits).then_some(handle)
    }

    fn run(&mut self, slot: usize, boundary: f64, context: u64, requests: &mut Requests) {
        let handle = requests.set_state(slot, RequestState::Running);
        let iteration = self.iteration;
        let live = requests.get_mut(slot);
        live.since = iteration;
        live.has_cache = false;
        live.started.get_or_insert(boundary);
        let left = u64::from(live.length - live.tokens);
        self.ends.push(Reverse((iteration + left, handle)));
        self.admitted.push(handle);
        self.drop_void_handles(requests);
        self.held += context;
        self.running += 1;
    }

    /// Removes the void handles of `admitted` when they clearly outnumber the running responses, which bounds the memory.
    fn drop_void_handles(&mut self, requests: &Requests) {
        if self.admitted.len() > 2 * self.running as usize + 64 {
            self.admitted.retain(|handle| requests.find(*handle).is_some());
        }
    }

    fn first_waiting(&mut self, requests: &Requests) -> Option<(f64, RequestHandle)> {
        while let Some(&first) = self.waiting.front() {
            if requests.find(first.1).is_some() {
                return Some(first);
            }
            self.waiting.pop_front();
        }
        None
    }

    /// Preempts the response that was admitted last.
    fn preempt(&mut self, requests: &mut Requests) {
        while let Some(handle) = self.admitted.pop() {
            if requests.find(handle).is_some() {
                self.stop(handle.slot, requests);
                requests.get_mut(handle.slot).preemptions += 1;
                self.enqueue_first(handle.slot, self.at, requests);
                return;
            }
        }
    }

    /// Stops a running response. It keeps its tokens and loses its KV cache.
    fn stop(&mut self, slot: usize, requests: &mut Requests) {
        self.remove_running(slot, requests);
        let iteration = self.iteration;
        let live = requests.get_mut(slot);
        live.tokens = live.tokens_at(iteration);
    }

    /// Drops a response at `now`. Returns `false` if it ended by itself, at the latest in the iteration that is in progress at `now`.
    pub(super) fn abort(
        &mut self,
        now: f64,
        slot: usize,
        shape: &Shape,
        requests: &mut Requests,
        ended: &mut Vec<End>,
    ) -> bool {
        self.advance_to_boundary(now, shape, requests, ended);
        let live = requests.get(slot);
        match live.state {
            RequestState::Ended => return false,
            RequestState::Waiting => {
                self.waiting_responses -= 1;
                let tokens = live.tokens;
                requests.end(slot, tokens);
            }
            RequestState::Running => {
                // The token of the iteration in progress has not been sampled yet.
                let early = self.sampled > now && live.since < self.iteration;
                let tokens = live.tokens_at(self.iteration) - u32::from(early);
                self.remove_running(slot, requests);
                requests.end(slot, tokens);
            }
        }
        true
    }

    /// Simulates all events up to the first time from `now` on at which the weights can be exchanged, and then pauses for `pause` seconds.
    pub(super) fn pause(
        &mut self,
        now: f64,
        pause: f64,
        shape: &Shape,
        requests: &mut Requests,
        ended: &mut Vec<End>,
    ) {
        self.advance_to_boundary(now, shape, requests, ended);
        self.at += NANOS * pause;
    }

    /// Removes all responses. Returns their slots in the order in which they would run, each with the time from which it can run elsewhere.
    /// KV caches are sent one after the other.
    pub(super) fn evict(
        &mut self,
        now: f64,
        shape: &Shape,
        requests: &mut Requests,
        ended: &mut Vec<End>,
    ) -> Vec<(f64, usize)> {
        self.advance_to_boundary(now, shape, requests, ended);
        let admitted = std::mem::take(&mut self.admitted);
        let running = admitted.into_iter().filter(|handle| requests.find(*handle).is_some());
        let running: Vec<_> = running.map(|handle| handle.slot).collect();
        let mut sent = self.at;
        let mut slots = Vec::with_capacity(running.len());
        for slot in running {
            let transfer = shape.transfer(requests.get(slot).context(self.iteration));
            self.stop(slot, requests);
            requests.get_mut(slot).has_cache = transfer.is_some();
            sent += transfer.unwrap_or(0.0);
            slots.push((sent, slot));
        }
        slots.extend(self.take_waiting(requests));
        self.ends.clear();
        slots
    }

    /// Removes the responses that were not admitted. Returns their slots in the order of the queue, each with its arrival time.
    pub(super) fn take_waiting(&mut self, requests: &Requests) -> Vec<(f64, usize)> {
        self.waiting_responses = 0;
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let valid = waiting.filter(|(_, handle)| requests.find(*handle).is_some());
        valid.map(|(arrival, handle)| (arrival, handle.slot)).collect()
    }
}
