//! A queue of groups that have not been passed to the trainer yet.

use std::collections::VecDeque;

use arrow_array::types::UInt64Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_dataflow::watchdog::{WaitGuard, WaitHandle};

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

/// Queued groups, and the rule by which they are passed to the trainer.
pub(crate) struct GroupQueue {
    fetch: GroupDelivery,
    groups: VecDeque<HeldGroups>,
    /// The number of devices that train at the moment.
    devices: u32,
    /// The last step from which the trainer received groups.
    begun: Option<Step>,
}

impl GroupQueue {
    pub(crate) fn new(fetch: GroupDelivery, devices: u32) -> Self {
        Self { fetch, groups: VecDeque::new(), devices, begun: None }
    }

    pub(crate) fn push(&mut self, held: HeldGroups) {
        self.groups.push_back(held);
    }

    /// Sets the number of devices that train. Returns `true` if the number changed.
    pub(crate) fn place(&mut self, devices: u32) -> bool {
        std::mem::replace(&mut self.devices, devices) != devices
    }

    /// Returns the earliest step with queued groups.
    pub(crate) fn first(&self) -> Option<Step> {
        self.groups.iter().map(HeldGroups::step).min()
    }

    /// Removes and returns the groups that the trainer must receive now, as one batch of the earliest queued step. Returns `None` if
    /// nothing is due.
    ///
    /// Nothing is due while no device trains. With [`GroupDelivery::Once`], the first call for a step returns what is there, and later
    /// calls return `None` until `frontier` has passed the step; [`GroupDelivery::WholeStep`] always waits for that. All queued groups of
    /// the step are joined before `max_groups` of them are split off, because a batch may hold several groups. The rest returns to the
    /// queue with the same capabilities.
    pub(crate) fn next(&mut self, frontier: &MutableAntichain<Step>) -> Option<HeldGroups> {
        let step = self.first().filter(|_| self.devices > 0)?;
        let complete = !frontier.less_equal(&step);
        let most = match self.fetch {
            GroupDelivery::Streamed { max_groups } => max_groups,
            GroupDelivery::Once if complete || self.begun != Some(step) => None,
            GroupDelivery::WholeStep if complete => None,
            GroupDelivery::Once | GroupDelivery::WholeStep => return None,
        };
        self.begun = Some(step);
        let (same, later): (VecDeque<HeldGroups>, VecDeque<HeldGroups>) =
            self.groups.drain(..).partition(|held| held.step() == step);
        self.groups = later;
        let (now, rest) = split(joined(same)?, most.unwrap_or(usize::MAX));
        self.groups.extend(rest);
        Some(now)
    }
}

/// The wait of queued groups for a device that trains, which the watchdog reports.
pub(crate) struct DeviceWait {
    waiting: WaitHandle,
    held: Option<(Step, WaitGuard)>,
}

impl DeviceWait {
    /// Creates a wait that is reported through `waiting`, which must not be used for other waits.
    pub(crate) fn new(waiting: WaitHandle) -> Self {
        Self { waiting, held: None }
    }

    /// Begins or ends the wait according to the queue.
    pub(crate) fn update(&mut self, queue: &GroupQueue) {
        let step = queue.first().filter(|_| queue.devices == 0);
        if self.held.as_ref().map(|(step, _)| *step) != step {
            let what = || "the placement to let a device train";
            self.held = step.map(|step| (step, self.waiting.hold(step, what)));
        }
    }
}

/// Joins groups of one step into one batch.
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

/// Splits off the groups after the first `most`.
fn split(held: HeldGroups, most: usize) -> (HeldGroups, Option<HeldGroups>) {
    let prompts = held.batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let rows: usize =
        prompts.chunk_by(|one, next| one == next).take(most.max(1)).map(<[_]>::len).sum();
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
