//! The groups that wait for the trainer, and the calls that pass these groups to the trainer.

use std::collections::VecDeque;

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, give_fault};
use rollpacker_dataflow::operator::{Operator, Output};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_dataflow::watchdog::{WaitGuard, WaitHandle};
use rollpacker_stages::train::TrainError;

use crate::overlap::GroupDelivery;
use crate::wire::rows::{Row, gather_first};

/// Groups of one step, with the capabilities to pass them on or to report an error.
pub(crate) struct HeldGroups {
    pub(crate) output: Capability<Step>,
    pub(crate) errors: Capability<Step>,
    pub(crate) batch: Batch,
}

impl HeldGroups {
    pub(crate) fn step(&self) -> Step {
        *self.output.time()
    }
}

/// The queue of groups, and the call that passes groups to the trainer. At most one call runs at a time. `T` is the result of a call.
pub(crate) struct GroupCalls<T> {
    delivery: GroupDelivery,
    groups: VecDeque<HeldGroups>,
    /// The number of devices that train now.
    devices: u32,
    /// The last step from which the trainer received groups.
    begun: Option<Step>,
    waits: WaitHandle,
    /// The handle for waits for a training device. It is separate from `waits`, because both may hold a wait for the same step.
    device_waits: WaitHandle,
    /// The earliest step with queued groups and its wait, while no device trains.
    without_device: Option<(Step, WaitGuard)>,
    running: Option<RunningCall<T>>,
    /// The groups of a failed call. Their capabilities are kept: the step must not complete, and no later group may be passed on.
    failed: Option<HeldGroups>,
}

struct RunningCall<T> {
    held: HeldGroups,
    reply: Reply<Result<T, TrainError>>,
    _waiting: WaitGuard,
}

impl<T> GroupCalls<T> {
    /// Creates the queue and the calls of `operator`. `devices` is the initial number of devices that train.
    pub(crate) fn new(operator: &mut Operator<'_>, delivery: GroupDelivery, devices: u32) -> Self {
        Self {
            delivery,
            groups: VecDeque::new(),
            devices,
            begun: None,
            waits: operator.wait_handle(),
            device_waits: operator.wait_handle(),
            without_device: None,
            running: None,
            failed: None,
        }
    }

    /// Reads the number of devices that train from the last row of a batch of placements. Returns the number if it changed, and `None`
    /// otherwise.
    pub(crate) fn read_placements(&mut self, placements: &Batch) -> Option<u32> {
        let devices = placements.values::<UInt32Type>(column::TRAINING_DEVICES).values();
        let devices = *devices.last()?;
        (std::mem::replace(&mut self.devices, devices) != devices).then_some(devices)
    }

    pub(crate) fn push(&mut self, held: HeldGroups) {
        self.groups.push_back(held);
    }

    /// Returns the earliest step with queued groups; `None` if there is none.
    pub(crate) fn first(&self) -> Option<Step> {
        self.groups.iter().map(HeldGroups::step).min()
    }

    /// Returns the groups and the result of the running call once the call has ended. Returns `None` if no call runs or the call has not
    /// ended. If the call failed, emits the error as a fault of the operator `name`, returns `None`, and makes no further calls. Also
    /// updates the wait for a training device.
    pub(crate) fn poll_ended(
        &mut self,
        name: &str,
        errors: &mut Output,
    ) -> Option<(HeldGroups, T)> {
        self.update_device_wait();
        let outcome = self.running.as_ref()?.reply.poll_outcome()?;
        let held = self.running.take()?.held;
        match outcome {
            Ok(result) => Some((held, result)),
            Err(error) => {
                give_fault(errors, &held.errors, Fault::of(name, &error));
                self.failed = Some(held);
                None
            }
        }
    }

    /// Begins a call with the groups that are due, unless a call is running or has failed. `what` names the awaited work in the reports of
    /// the watchdog.
    pub(crate) fn begin(
        &mut self,
        frontier: &MutableAntichain<Step>,
        what: &'static str,
        call: impl FnOnce(Step, Batch) -> Reply<Result<T, TrainError>>,
    ) {
        if self.running.is_some() || self.failed.is_some() {
            return;
        }
        self.running = self.next(frontier).map(|held| {
            let _waiting = self.waits.hold(held.step(), || what);
            RunningCall { reply: call(held.step(), held.batch.clone()), held, _waiting }
        });
    }

    /// Removes and returns the groups that the trainer must receive now, as one batch of the earliest queued step. Returns `None` if no
    /// group is due.
    ///
    /// No group is due while no device trains. Otherwise the result depends on the delivery:
    ///
    /// - [`GroupDelivery::Streamed`]: each call returns at most `max_groups` groups. The other groups of the step stay in the queue.
    /// - [`GroupDelivery::Once`]: the first call for a step returns the queued groups of the step. Later calls return `None` until
    ///   `frontier` has passed the step, and then the other groups.
    /// - [`GroupDelivery::WholeStep`]: calls return `None` until `frontier` has passed the step, and then all groups.
    fn next(&mut self, frontier: &MutableAntichain<Step>) -> Option<HeldGroups> {
        let step = self.first().filter(|_| self.devices > 0)?;
        let complete = !frontier.less_equal(&step);
        let max = match self.delivery {
            GroupDelivery::Streamed { max_groups } => max_groups,
            GroupDelivery::Once if complete || self.begun != Some(step) => None,
            GroupDelivery::WholeStep if complete => None,
            GroupDelivery::Once | GroupDelivery::WholeStep => return None,
        };
        self.begun = Some(step);
        let (same, later): (VecDeque<HeldGroups>, VecDeque<HeldGroups>) =
            self.groups.drain(..).partition(|held| held.step() == step);
        self.groups = later;
        let (now, rest) = split(joined(same)?, max.unwrap_or(usize::MAX));
        self.groups.extend(rest);
        Some(now)
    }

    /// Begins the wait for a device if groups are queued while no device trains, and ends it otherwise.
    fn update_device_wait(&mut self) {
        let step = self.first().filter(|_| self.devices == 0);
        if self.without_device.as_ref().map(|(step, _)| *step) != step {
            let what = || "the placement to let a device train";
            self.without_device = step.map(|step| (step, self.device_waits.hold(step, what)));
        }
    }
}

/// Joins groups of one step into one batch; `None` if there are none.
fn joined(mut same: VecDeque<HeldGroups>) -> Option<HeldGroups> {
    let first = same.pop_front()?;
    if same.is_empty() {
        return Some(first);
    }
    let batches = std::iter::once(&first).chain(&same).map(|held| &held.batch);
    let batch = concat(batches)?;
    Some(HeldGroups { batch, ..first })
}

/// Concatenates batches of one stream; `None` if there are no rows.
pub(crate) fn concat<'a>(batches: impl Iterator<Item = &'a Batch>) -> Option<Batch> {
    let rows: Vec<Row> = batches.flat_map(Row::all).collect();
    let schema = rows.first()?.batch.rows()?.schema();
    Some(Batch::from_columns(&schema, gather_first(&rows, schema.fields().len())))
}

/// Splits `held` after the first `max` groups, or after the first group if `max` is 0. The second value holds the other groups; it is
/// `None` if there are none.
fn split(held: HeldGroups, max: usize) -> (HeldGroups, Option<HeldGroups>) {
    let prompts = held.batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let rows: usize =
        prompts.chunk_by(|one, next| one == next).take(max.max(1)).map(<[_]>::len).sum();
    let Some(batch) = held.batch.rows().filter(|batch| rows < batch.num_rows()) else {
        return (held, None);
    };
    let (now, rest) = (batch.slice(0, rows), batch.slice(rows, batch.num_rows() - rows));
    let rest = HeldGroups {
        output: held.output.clone(),
        errors: held.errors.clone(),
        batch: Batch::new(rest),
    };
    (HeldGroups { batch: Batch::new(now), ..held }, Some(rest))
}
