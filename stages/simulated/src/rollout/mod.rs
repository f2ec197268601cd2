//! A rollout engine of a simulated cluster.
//!
//! The engine behaves like an engine with continuous batching. It admits responses first come, first served, while its KV cache has room,
//! and pauses decoding for their prefill. It decodes the admitted responses together, and preempts the newest response when the cache is
//! full. A response that was preempted or moved is prefilled again, unless its KV cache was sent. The engine counts tokens instead of
//! sampling them. The length of a response comes from a [`LengthModel`], time from a [`VirtualClock`], and the duration of each operation
//! from [`Cost`].
//!
//! The prompt of a simulated request is a single id: the dataset row, which determines all other traits of the prompt.

mod config;
mod dispatch;
mod instance;
pub mod lengths;
mod requests;
#[cfg(test)]
mod tests;

pub use config::{Collect, Dispatch, HandOut, SimulatedEngineConfig, SimulatedEngineError};

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;

use rollpacker_dataflow::clock::{Alarm, Clock, Nanos, VirtualClock};
use rollpacker_dataflow::step::{PolicyVersion, SampleId};

use self::dispatch::DispatchController;
use self::instance::{End, Instance, NANOS, Shape};
use self::lengths::LengthModel;
use self::requests::Requests;
use crate::cluster::Cost;
use rollpacker_stages::rollout::{
    FinishReason, Placement, Policy, Request, RolloutEngine, RolloutError, RolloutEvent, Waker,
};

/// A [`RolloutEngine`] that uses only virtual time.
///
/// Beyond the contract:
/// - Loading weights pauses each instance for the transfer and set-up, after the current iteration. An instance that is not in use loads
///   the weights when it is used again.
/// - A change of tensor parallelism restarts all instances, and their responses are prefilled again unless their KV caches are sent.
/// - With fewer instances, the responses of released instances go to the least loaded instances, prefilled again or with their KV caches.
///   With more instances, all waiting responses are distributed again.
/// - Responses that end within a report interval are reported together at its end. Responses that are [collected
///   together](Collect::Together) are reported when the last requested response has ended.
pub struct SimulatedEngine {
    clock: VirtualClock,
    alarm: Alarm,
    /// The time to which the alarm is set.
    alarm_time: Option<Nanos>,
    config: SimulatedEngineConfig,
    lengths: Arc<dyn LengthModel>,
    shape: Shape,
    /// All instances; the first `in_use` are in use.
    instances: Vec<InstanceEntry>,
    in_use: usize,
    loaded: Option<PolicyVersion>,
    /// Time at which the transfer of the `loaded` weights ends.
    loaded_at: Nanos,
    controller: DispatchController,
    requests: Requests,
    /// Responses without an instance, with their arrival times.
    unassigned: Vec<(f64, usize)>,
    /// Due times of the instances. An entry counts only if it equals the due time of the instance; others are outdated.
    due: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// Responses that ended by themselves and are not reported yet, by the time of their end.
    ended: BinaryHeap<Reverse<(Nanos, SampleId, usize)>>,
    reports: VecDeque<RolloutEvent>,
    ends: Vec<End>,
    failed: bool,
}

/// An instance and the engine's data about it.
#[derive(Debug, Default)]
struct InstanceEntry {
    instance: Instance,
    /// The version of the instance's weights; `None` before the first load.
    version: Option<PolicyVersion>,
    due: Option<Nanos>,
}

impl SimulatedEngine {
    /// Creates an engine of a model whose responses have the lengths of `lengths`.
    ///
    /// # Errors
    /// Returns an error if an option is out of bounds or the model does not fit on an instance. Also returns an error if the tensor
    /// parallelism is 0 or exceeds the devices of a server.
    pub fn new(
        config: SimulatedEngineConfig,
        cost: Cost,
        lengths: Arc<dyn LengthModel>,
        clock: VirtualClock,
    ) -> Result<Self, SimulatedEngineError> {
        config.check()?;
        let Placement { instances, tensor_parallel } = config.placement;
        let interval = cost.calibration().dispatch_interval;
        let shape = Shape::new(cost, tensor_parallel, &config)?;
        Ok(Self {
            alarm: clock.alarm(|| {}),
            clock,
            alarm_time: None,
            config,
            lengths,
            shape,
            instances: (0..instances).map(|_| InstanceEntry::default()).collect(),
            in_use: instances as usize,
            loaded: None,
            loaded_at: Nanos(0),
            controller: DispatchController::new(config.dispatch, config.hand_out, interval),
            requests: Requests::default(),
            unassigned: Vec::new(),
            due: BinaryHeap::new(),
            ended: BinaryHeap::new(),
            reports: VecDeque::new(),
            ends: Vec::new(),
            failed: false,
        })
    }

    /// Returns the current time in nanoseconds.
    fn now(&self) -> f64 {
        self.clock.now().0 as f64
    }

    /// Returns the end of the report interval that contains `at`.
    fn report_time(&self, at: Nanos) -> Nanos {
        let interval = self.config.report_interval.0.max(1);
        Nanos(at.0.div_ceil(interval) * interval)
    }

    /// Sends requested responses to the instances.
    fn dispatch(&mut self) {
        if self.controller.is_empty() {
            return;
        }
        let now = self.now();
        let assigned = self.controller.assign(now, self.in_use, &*self.lengths, &mut self.requests);
        let mut unassigned = Vec::new();
        for (instance, arrival, slot) in assigned {
            match instance {
                Some(instance) => self.enqueue(instance, arrival, slot),
                None => unassigned.push((arrival, slot)),
            }
        }
        if !unassigned.is_empty() {
            self.distribute(unassigned);
        }
    }

    fn enqueue(&mut self, instance: usize, arrival: f64, slot: usize) {
        self.requests.get_mut(slot).instance = instance as u32;
        self.instances[instance].instance.enqueue(slot, arrival, &mut self.requests);
        self.note_due(instance);
    }

    /// Calls `work` with an instance, then records the responses that ended in it and its due time.
    fn with_instance<R>(
        &mut self,
        instance: usize,
        work: impl FnOnce(&mut Instance, &Shape, &mut Requests, &mut Vec<End>) -> R,
    ) -> R {
        let entry = &mut self.instances[instance];
        let result = work(&mut entry.instance, &self.shape, &mut self.requests, &mut self.ends);
        for End { slot, at } in self.ends.drain(..) {
            let ended = (Nanos(at.ceil() as u64), self.requests.get(slot).id, slot);
            self.ended.push(Reverse(ended));
        }
        self.note_due(instance);
        result
    }

    fn note_due(&mut self, instance: usize) {
        let entry = &mut self.instances[instance];
        let due = entry.instance.due(&self.shape, &self.requests).map(|at| Nanos(at.ceil() as u64));
        if due != entry.due {
            entry.due = due;
            self.due.extend(due.map(|due| Reverse((due, instance))));
        }
    }

    /// Returns the next due time and its instance; `None` if no instance has a due time.
    fn next_due(&mut self) -> Option<(Nanos, usize)> {
        while let Some(&Reverse((at, instance))) = self.due.peek() {
            if self.instances[instance].due == Some(at) {
                return Some((at, instance));
            }
            self.due.pop();
        }
        None
    }

    /// Simulates everything that can be reported by now, and reports it.
    ///
    /// Events are reported only at multiples of the report interval, so the horizon is the last such multiple. Instances are advanced to it
    /// in the order of their due times. Outdated entries of `due` are skipped by `next_due`, so the heap needs no removals.
    fn catch_up(&mut self) {
        let interval = self.config.report_interval.0.max(1);
        let horizon = Nanos(self.clock.now().0 / interval * interval);
        while let Some((at, instance)) = self.next_due()
            && at <= horizon
        {
            self.due.pop();
            self.instances[instance].due = None;
            self.with_instance(instance, |instance, shape, requests, ended| {
                instance.advance(horizon.0 as f64, shape, requests, ended);
            });
        }
        while let Some((at, slot)) = self.next_report()
            && at <= horizon
        {
            self.ended.pop();
            self.report(slot, at, None);
        }
    }

    /// Returns the next response to report and the time of its end; `None` if none can be reported yet.
    fn next_report(&self) -> Option<(Nanos, usize)> {
        let waits = self.config.collect == Collect::Together && !self.requests.all_ended();
        let Reverse((at, _, slot)) = self.ended.peek().filter(|_| !waits)?;
        Some((*at, *slot))
    }

    /// Reports a response that has ended. Without a `reason`, it ended by itself.
    fn report(&mut self, slot: usize, at: Nanos, reason: Option<FinishReason>) {
        let whole = if self.requests.get(slot).tokens < self.lengths.cap() {
            FinishReason::Stop
        } else {
            FinishReason::Length
        };
        let completion = self.requests.remove(slot, at, reason.unwrap_or(whole));
        self.reports.push_back(RolloutEvent::Completed(completion));
    }

    /// Sets the alarm to the next time at which there may be something to report.
    fn schedule_alarm(&mut self) {
        let due = self.next_due().map(|(at, _)| at);
        let ended = self.next_report().map(|(at, _)| at);
        let next = due.into_iter().chain(ended).min().map(|at| self.report_time(at));
        self.set_alarm_at(next);
    }

    fn set_alarm_at(&mut self, at: Option<Nanos>) {
        if at == self.alarm_time {
            return;
        }
        self.alarm_time = at;
        match at {
            Some(at) => self.alarm.set(at),
            None => self.alarm.clear(),
        }
    }

    /// Returns the seconds until an instance samples with new weights.
    fn loading(&self) -> f64 {
        self.shape.cost.weight_sync() + self.shape.cost.rollout_overhead()
    }

    /// Starts to use the instances `from..to`, which must be idle. They are held for `pause` seconds, and for the loading of weights if
    /// their weights are outdated.
    fn start_instances(&mut self, from: usize, to: usize, pause: f64) {
        let loading = self.loading();
        let now = self.now();
        let sites = self.instances.len().max(to);
        self.instances.resize_with(sites, InstanceEntry::default);
        for entry in &mut self.instances[from..to] {
            let stale = entry.version != self.loaded;
            entry.version = self.loaded;
            let loading = if stale { loading } else { 0.0 };
            entry.instance.hold(now + NANOS * (pause + loading));
        }
        self.in_use = to;
    }

    /// Stops using the instances from `from` on. Returns their responses, each with the time from which it can run elsewhere.
    fn evict(&mut self, from: usize) -> Vec<(f64, usize)> {
        let now = self.now();
        let evicted = (from..self.in_use).flat_map(|instance| {
            self.with_instance(instance, |instance, shape, requests, ended| {
                instance.evict(now, shape, requests, ended)
            })
        });
        let evicted = evicted.collect();
        self.in_use = from;
        evicted
    }

    /// Assigns responses to the least loaded instances in use; without such instances, they stay unassigned. The state of an instance may
    /// lie before the current time, so arrival times are raised to the current time.
    fn distribute(&mut self, slots: Vec<(f64, usize)>) {
        if self.in_use == 0 {
            self.unassigned.extend(slots);
            return;
        }
        let load = |(at, entry): (usize, &InstanceEntry)| Reverse((entry.instance.load(), at));
        let mut loads: BinaryHeap<_> =
            self.instances[..self.in_use].iter().enumerate().map(load).collect();
        let now = self.now();
        for (arrival, slot) in slots {
            let mut least_loaded = loads.peek_mut().expect("invariant: an instance is in use");
            let Reverse((load, instance)) = *least_loaded;
            *least_loaded = Reverse((load + 1, instance));
            drop(least_loaded);
            self.enqueue(instance, arrival.max(now), slot);
        }
    }

    /// Restarts all instances with a different tensor parallelism.
    fn reshape(&mut self, placement: Placement) -> Result<(), SimulatedEngineError> {
        let Placement { instances, tensor_parallel } = placement;
        let cost = self.shape.cost.clone();
        let shape = Shape::new(cost, tensor_parallel, &self.config)?;
        let evicted = self.evict(0);
        self.shape = shape;
        self.instances.clear();
        self.due.clear();
        let restart = self.shape.cost.reconfiguration();
        self.start_instances(0, instances as usize, restart);
        self.distribute_all(evicted);
        Ok(())
    }

    /// Changes the number of instances, with the same tensor parallelism.
    fn resize(&mut self, instances: usize) {
        if instances < self.in_use {
            let evicted = self.evict(instances);
            self.distribute_all(evicted);
        } else if instances > self.in_use {
            let waiting = |entry: &mut InstanceEntry| entry.instance.take_waiting(&self.requests);
            let waiting = self.instances[..self.in_use].iter_mut().flat_map(waiting).collect();
            self.start_instances(self.in_use, instances, 0.0);
            self.distribute_all(waiting);
        }
    }

    /// Distributes the responses that had no instance, and then `slots`.
    fn distribute_all(&mut self, slots: Vec<(f64, usize)>) {
        let mut all = std::mem::take(&mut self.unassigned);
        all.extend(slots);
        self.distribute(all);
    }

    fn fail(&mut self, reason: String) {
        self.failed = true;
        self.reports.clear();
        self.reports.push_back(RolloutEvent::Failed(RolloutError::Engine { instance: 0, reason }));
    }
}

impl RolloutEngine for SimulatedEngine {
    fn load(&mut self, policy: &Policy) {
        self.dispatch();
        if self.loaded.replace(policy.version) == Some(policy.version) {
            return;
        }
        let transfer = Nanos::from_secs_f64(self.shape.cost.weight_sync());
        self.loaded_at = Nanos(self.clock.now().0 + transfer.0);
        let (now, pause) = (self.now(), self.loading());
        self.controller.hold(now + NANOS * pause);
        for instance in 0..self.in_use {
            self.instances[instance].version = self.loaded;
            self.with_instance(instance, |instance, shape, requests, ended| {
                instance.pause(now, pause, shape, requests, ended);
            });
        }
    }

    fn generate(&mut self, request: Request) {
        if !self.failed {
            self.controller.enqueue(request);
            self.set_alarm_at(Some(self.clock.now()));
        }
    }

    fn abort(&mut self, id: SampleId) {
        self.dispatch();
        let Some(slot) = self.requests.open(id) else { return };
        let now = self.now();
        let instance = self.requests.get(slot).instance as usize;
        let dropped = match self.unassigned.iter().position(|(_, waiting)| *waiting == slot) {
            Some(at) => {
                self.unassigned.remove(at);
                let tokens = self.requests.get(slot).tokens;
                self.requests.end(slot, tokens);
                true
            }
            None => self.with_instance(instance, |instance, shape, requests, ended| {
                instance.abort(now, slot, shape, requests, ended)
            }),
        };
        if dropped {
            self.report(slot, self.clock.now(), Some(FinishReason::Abort));
            self.set_alarm_at(Some(self.clock.now()));
        }
    }

    fn place(&mut self, placement: Placement) {
        self.dispatch();
        if placement.tensor_parallel == self.shape.tensor_parallel {
            self.resize(placement.instances as usize);
        } else if let Err(error) = self.reshape(placement) {
            self.fail(error.to_string());
        }
        self.set_alarm_at(Some(self.clock.now()));
    }

    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        (self.loaded == Some(version)).then_some(self.loaded_at)
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        if self.reports.is_empty() && !self.failed {
            self.dispatch();
            self.catch_up();
            if self.reports.is_empty() {
                self.schedule_alarm();
            }
        }
        self.reports.pop_front()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.alarm = self.clock.alarm(move || waker());
        let alarm_time = self.alarm_time.take();
        self.set_alarm_at(alarm_time);
    }
}
