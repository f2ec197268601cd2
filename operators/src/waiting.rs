//! Groups that the trainer has not been given yet.

use std::collections::VecDeque;

use arrow::compute::concat_batches;
use arrow::datatypes::UInt64Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;

use crate::overlap::Fetch;

/// Groups with the capabilities to pass them on, or to say what failed.
pub(crate) struct Held {
    pub(crate) capabilities: [Capability<Step>; 2],
    pub(crate) batch: Batch,
}

impl Held {
    pub(crate) fn step(&self) -> Step {
        *self.capabilities[0].time()
    }
}

/// Groups that wait, and when they go.
pub(crate) struct Waiting {
    fetch: Fetch,
    groups: VecDeque<Held>,
    /// Devices that train.
    devices: u32,
    /// The step of which the trainer was given a part.
    begun: Option<Step>,
}

impl Waiting {
    pub(crate) fn new(fetch: Fetch, devices: u32) -> Self {
        Self { fetch, groups: VecDeque::new(), devices, begun: None }
    }

    pub(crate) fn push(&mut self, held: Held) {
        self.groups.push_back(held);
    }

    /// Trains on `devices` devices from now on; whether these are others than before.
    pub(crate) fn place(&mut self, devices: u32) -> bool {
        std::mem::replace(&mut self.devices, devices) != devices
    }

    /// The earliest step that waits.
    pub(crate) fn first(&self) -> Option<Step> {
        self.groups.iter().map(Held::step).min()
    }

    /// What the trainer is to be given now, of the earliest step, as one.
    pub(crate) fn next(&mut self, frontier: &MutableAntichain<Step>) -> Option<Held> {
        let step = self.first().filter(|_| self.devices > 0)?;
        let complete = !frontier.less_equal(&step);
        let most = match self.fetch {
            Fetch::Streamed { max_groups } => max_groups,
            Fetch::Once if complete || self.begun != Some(step) => None,
            Fetch::WholeStep if complete => None,
            Fetch::Once | Fetch::WholeStep => return None,
        };
        self.begun = Some(step);
        let (same, later): (VecDeque<Held>, VecDeque<Held>) =
            self.groups.drain(..).partition(|held| held.step() == step);
        self.groups = later;
        let (now, rest) = split(joined(same)?, most.unwrap_or(usize::MAX));
        self.groups.extend(rest);
        Some(now)
    }
}

/// Groups of one step as one.
fn joined(mut same: VecDeque<Held>) -> Option<Held> {
    let first = same.pop_front()?;
    if same.is_empty() {
        return Some(first);
    }
    let batches = std::iter::once(&first).chain(&same).map(|held| &held.batch);
    let batch = concat(batches)?;
    Some(Held { capabilities: first.capabilities, batch })
}

/// Batches of one stream as one; none without rows.
pub(crate) fn concat<'a>(batches: impl Iterator<Item = &'a Batch>) -> Option<Batch> {
    let rows: Vec<_> = batches.filter_map(Batch::rows).collect();
    let schema = rows.first()?.schema();
    let rows = concat_batches(&schema, rows).expect("invariant: a stream has one schema");
    Some(Batch::new(rows))
}

/// The first `most` groups, and the others.
fn split(held: Held, most: usize) -> (Held, Option<Held>) {
    let prompts = held.batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let rows: usize =
        prompts.chunk_by(|one, next| one == next).take(most.max(1)).map(<[_]>::len).sum();
    let Some(batch) = held.batch.rows().filter(|batch| rows < batch.num_rows()) else {
        return (held, None);
    };
    let (now, rest) = (batch.slice(0, rows), batch.slice(rows, batch.num_rows() - rows));
    let rest = Held { capabilities: held.capabilities.clone(), batch: Batch::new(rest) };
    (Held { capabilities: held.capabilities, batch: Batch::new(now) }, Some(rest))
}
