//! Invariant: no device does two things at once, under any schedule.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PolicyVersion, Step};
use rollpacker_operators::placement::{Decision, Event, PlacementPolicy};
use rollpacker_operators::report::StepReport;
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_simulated::train::SimulatedTrainer;
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer};

use super::{job, owned, reports};
use crate::simulate::job::Job;
use crate::simulate::run::Stages;
use crate::simulate::setup::InstanceLog;
use crate::simulate::variant::{self, Variant};
use crate::simulate::{placement, population};

/// An interval of time, in nanoseconds.
type Span = (u64, u64);

/// The activity on the devices of a run.
#[derive(Default)]
struct Log {
    /// The intervals in which the trainer computed, each with its number of devices.
    training: Vec<(Span, u32)>,
    /// The number of devices of an instance, by the time in nanoseconds from which it applies.
    tensor_parallel: BTreeMap<u64, u32>,
}

type Shared = Arc<Mutex<Log>>;

struct LoggedTrainer {
    trainer: SimulatedTrainer,
    clock: VirtualClock,
    devices: u32,
    log: Shared,
}

impl LoggedTrainer {
    fn logged<R>(&mut self, work: impl FnOnce(&mut SimulatedTrainer) -> R) -> R {
        let begun = self.clock.now();
        let result = work(&mut self.trainer);
        let span = (begun.0, self.clock.now().0);
        self.log.lock().expect("unpoisoned").training.push((span, self.devices));
        result
    }
}

impl Trainer for LoggedTrainer {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        self.trainer.publish(version)
    }

    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        self.logged(|trainer| trainer.accumulate(step, sequences))
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        self.logged(|trainer| trainer.update(step))
    }

    fn place(&mut self, devices: u32) {
        self.devices = devices;
        self.trainer.place(devices);
    }

    fn save(&mut self, folder: &std::path::Path) -> Result<(), TrainError> {
        self.trainer.save(folder)
    }
}

struct LoggedPlacement {
    policy: Box<dyn PlacementPolicy>,
    now: Nanos,
    log: Shared,
}

impl PlacementPolicy for LoggedPlacement {
    fn on(&mut self, now: Nanos, event: Event) {
        self.now = now;
        self.policy.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        let decision = self.policy.poll()?;
        let width = decision.rollout.tensor_parallel;
        self.log.lock().expect("unpoisoned").tensor_parallel.insert(self.now.0, width);
        Some(decision)
    }
}

/// Runs a job and returns the activity on its devices and its steps.
fn watched(job: &Job) -> (Log, Vec<StepReport>) {
    let log = Shared::default();
    let seed = job.raw.sim.seed;
    let stages = Stages::new(job, seed).expect("it starts");
    let clock = stages.clock.clone();
    let lengths = population::lengths(job, seed).expect("valid lengths");
    let (layout, devices) = (job.training_layout, job.training_gpus);
    let trainer = SimulatedTrainer::new(job.cost(), layout, devices, lengths, clock.clone());
    let trainer = LoggedTrainer { trainer, clock: clock.clone(), devices, log: log.clone() };
    let trainer = TrainerThread::in_virtual_time(clock, Box::new(trainer));
    let policy = placement::policy(job).expect("it fits");
    let pipeline = stages
        .builder(job, trainer, &InstanceLog::default())
        .expect("valid options")
        .placement(LoggedPlacement { policy, now: Nanos(0), log: log.clone() })
        .build();
    let reports = reports(pipeline.expect("it publishes"));
    (std::mem::take(&mut log.lock().expect("unpoisoned")), reports)
}

/// Returns the intervals in which each instance, by its number, had responses in flight. A response that moved counts for the instance
/// where it ended.
fn generating(reports: &[StepReport]) -> BTreeMap<u32, Vec<Span>> {
    let mut spans: BTreeMap<u32, Vec<Span>> = BTreeMap::new();
    for batch in reports.iter().flat_map(|report| &report.responses) {
        let instances = batch.values::<UInt32Type>(column::INSTANCE).values();
        let started = batch.values::<UInt64Type>(column::STARTED).values();
        let finished = batch.values::<UInt64Type>(column::FINISHED).values();
        for ((&instance, &started), &finished) in instances.iter().zip(started).zip(finished) {
            spans.entry(instance).or_default().push((started, finished));
        }
    }
    spans.into_iter().map(|(instance, spans)| (instance, joined(spans))).collect()
}

/// Merges intervals that touch or overlap, in order.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut joined: Vec<Span> = Vec::new();
    for (begun, ended) in spans {
        match joined.last_mut() {
            Some(last) if begun <= last.1 => last.1 = last.1.max(ended),
            _ => joined.push((begun, ended)),
        }
    }
    joined
}

fn overlap(one: Span, other: Span) -> u64 {
    one.1.min(other.1).saturating_sub(one.0.max(other.0))
}

impl Log {
    /// Returns the number of devices of an instance at a time.
    fn width(&self, at: u64) -> u32 {
        let before = self.tensor_parallel.range(..=at).next_back();
        before.map_or_else(|| panic!("no placement at {at}"), |(_, width)| *width)
    }
}

/// Checks that instances and trainer share no device, and that devices are busy for more than 5 % and at most all of the time.
fn check(name: &str, job: &Job) {
    let (log, reports) = watched(job);
    let (instances, gpus) = (generating(&reports), job.raw.cluster.gpus);
    let mut busy = 0.0;
    for (instance, &span) in
        instances.iter().flat_map(|(i, spans)| spans.iter().map(move |s| (i, s)))
    {
        let width = log.width(span.0);
        busy += f64::from(width) * (span.1 - span.0) as f64;
        for &(training, devices) in &log.training {
            let both = overlap(span, training);
            let free = gpus - (instance + 1) * width;
            assert!(
                both <= 1 || devices <= free,
                "{name}: instance {instance} of {width} GPUs generates in {span:?}, and {devices} of {gpus} GPUs train in {training:?}"
            );
        }
    }
    for ((begun, ended), devices) in log.training {
        busy += f64::from(devices) * (ended - begun) as f64;
    }
    let end = reports.last().expect("steps").closed.0 as f64;
    let share = busy / (end * f64::from(gpus));
    assert!(share <= 1.0, "{name}: devices are busy {share} of the time");
    assert!(share > 0.05, "{name}: devices are busy {share} of the time");
}

const BASE: &str = r#"
[cluster]
gpus = 8
[model]
name = "Qwen3-1.7B"
[training]
tensor_parallel = 1
[rollout]
n = 4
max_num_seqs = 16
[data]
train_batch_size = 16
max_response_length = 4096
[sim]
steps = 6
"#;

fn settings(variant: &Variant, more: &[&str]) -> Vec<String> {
    variant.overrides().chain(owned(more)).collect()
}

#[test]
fn no_device_generates_and_trains_at_once_whatever_the_schedule() {
    for variant in variant::all() {
        for more in [&[][..], &["rollout.tensor_parallel=2", "sim.seed=2"]] {
            let name = format!("{} {more:?}", variant.label);
            check(&name, &job(BASE, &settings(variant, more)));
        }
    }
}

#[test]
fn devices_that_leave_a_rollout_early_train_alone() {
    let placements = [
        &["stream.rounds=all", "stream.trigger=fixed"][..],
        &["stream.rounds=all", "stream.trigger=predicted", "stream.consolidate=true"],
        &["planner.rule=predictive", "stream.keep=0.25"],
        &["pipeline.placement=separate", "pipeline.training_gpus=2"],
    ];
    for more in placements {
        check(&format!("{more:?}"), &job(BASE, &owned(more)));
    }
}
