//! An independent model of a rollout that runs iteration by iteration, compared with the engine that jumps from event to event.
//!
//! It shares only the drawn lengths and the cost formulas with the pipeline. Each instance samples one token of each running response at a
//! time, ended responses are collected at every report interval, and the rules of the two schedules are those of the paper.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_operators::report::{StepReport, ids};
use rollpacker_simulated::cluster::{Cost, Decode};
use rollpacker_simulated::rollout::lengths::LengthModel;

use super::{job, owned, reports};
use crate::simulate::job::Job;
use crate::simulate::raw::{Dispatch, HandOut};
use crate::simulate::{population, run};

const NANOS: f64 = 1e9;

/// Responses by prompt.
type Kept = BTreeMap<PromptId, BTreeSet<u32>>;

#[derive(Clone, Copy, Debug)]
struct Response {
    id: SampleId,
    prompt_length: u32,
    length: u32,
    tokens: u32,
    has_ended: bool,
}

impl Response {
    fn context(&self) -> u64 {
        u64::from(self.prompt_length + self.tokens)
    }
}

/// The properties that all instances share.
struct Engine {
    cost: Cost,
    decode: Decode,
    capacity: u64,
    max_running: usize,
}

/// An instance. Responses are indices into the list of all responses of the round. Running responses are in the order of their admission,
/// and waiting responses have the time of their arrival. Times are in nanoseconds.
#[derive(Default)]
struct Instance {
    at: f64,
    waiting: VecDeque<(f64, usize)>,
    running: Vec<usize>,
}

impl Instance {
    fn kv_tokens(&self, all: &[Response]) -> u64 {
        self.running.iter().map(|&slot| all[slot].context()).sum()
    }

    /// Runs all iterations that end by `now`. Returns the responses that ended, each with the time of its end in nanoseconds.
    fn run(&mut self, now: f64, engine: &Engine, all: &mut [Response]) -> Vec<(u64, usize)> {
        let mut ended = Vec::new();
        while self.at <= now {
            self.admit(engine, all);
            let (running, held) = (self.running.len(), self.kv_tokens(all));
            if running == 0 {
                match self.waiting.front() {
                    Some((arrival, _)) if *arrival <= now => self.at = self.at.max(*arrival),
                    _ => break,
                }
            } else if running > 1 && engine.capacity.saturating_sub(held) < running as u64 {
                let newest = self.running.pop().expect("more than one");
                self.waiting.push_front((self.at, newest));
            } else if self.next_end(engine, all) <= now {
                ended.extend(self.sample(engine, all));
            } else {
                break;
            }
        }
        ended
    }

    fn admit(&mut self, engine: &Engine, all: &[Response]) {
        let now = self.at;
        while let Some(&(arrival, slot)) = self.waiting.front() {
            let (running, context) = (self.running.len(), all[slot].context());
            let room = engine.capacity - engine.capacity / 100;
            let fits = running < engine.max_running
                && self.kv_tokens(all) + context + running as u64 <= room;
            if arrival > now || !(running == 0 || fits) {
                break;
            }
            self.waiting.pop_front();
            self.running.push(slot);
            self.at += NANOS * engine.cost.prefill(1, context as f64);
        }
    }

    fn next_end(&self, engine: &Engine, all: &[Response]) -> f64 {
        self.at + NANOS * engine.decode.iteration(self.running.len() as u32, self.kv_tokens(all))
    }

    /// Runs one iteration. Returns the responses that ended, each with the time of its end in nanoseconds.
    fn sample(&mut self, engine: &Engine, all: &mut [Response]) -> Vec<(u64, usize)> {
        self.at = self.next_end(engine, all);
        for &slot in &self.running {
            all[slot].tokens += 1;
            all[slot].has_ended = all[slot].tokens == all[slot].length;
        }
        let (ended, running) = self.running.iter().partition(|&&slot| all[slot].has_ended);
        self.running = running;
        let at = self.at.ceil() as u64;
        Vec::into_iter(ended).map(|slot: usize| (at, slot)).collect()
    }

    /// Drops responses when the current iteration ends, and returns the responses that ended in the iteration.
    fn abort(
        &mut self,
        now: f64,
        dropped: &BTreeSet<usize>,
        engine: &Engine,
        all: &mut [Response],
    ) -> Vec<(u64, usize)> {
        let under_way = self.at < now && !self.running.is_empty();
        let ended = if under_way { self.sample(engine, all) } else { Vec::new() };
        self.at = if self.running.is_empty() { self.at.max(now) } else { self.at };
        self.running.retain(|slot| !dropped.contains(slot));
        self.waiting.retain(|(_, slot)| !dropped.contains(slot));
        ended
    }
}

/// The responses that a round keeps. A prompt is kept once `responses` of its responses have ended, with exactly these responses. The round
/// is over when it has kept `open_groups` more prompts.
struct Round {
    open_groups: usize,
    responses: usize,
    ended: Kept,
    kept: Kept,
}

impl Round {
    fn end(&mut self, id: SampleId) {
        if self.open_groups == 0 || self.kept.contains_key(&id.prompt) {
            return;
        }
        let ended = self.ended.entry(id.prompt).or_default();
        ended.insert(id.sample);
        if ended.len() == self.responses {
            self.kept.insert(id.prompt, ended.clone());
            self.open_groups -= 1;
        }
    }

    fn is_open_for(&self, id: SampleId) -> bool {
        self.open_groups > 0 && !self.kept.contains_key(&id.prompt)
    }
}

/// The outcome of a round: the time from its opening until its last response has ended or was dropped, and the responses that it keeps.
struct Predicted {
    nanos: u64,
    kept: Kept,
}

struct Model<'a> {
    job: &'a Job,
    engine: Engine,
    lengths: Arc<dyn LengthModel>,
    /// The instance that is next in turn.
    next: usize,
}

impl<'a> Model<'a> {
    fn new(job: &'a Job, seed: u64) -> Self {
        let cost = job.cost();
        let engine = Engine {
            decode: cost.decode(1),
            capacity: cost.kv_capacity(1).expect("the model fits"),
            max_running: job.raw.rollout.max_num_seqs as usize,
            cost,
        };
        let lengths = population::lengths(job, seed).expect("valid lengths");
        Self { job, engine, lengths, next: 0 }
    }

    /// Runs a round that opens at `opened`, in nanoseconds. The round launches `samples` responses to each of the prompts `launched`, and
    /// keeps the first `responses` of them that end. Report intervals end at multiples of their length, independently of `opened`.
    fn round(
        &mut self,
        step: Step,
        opened: u64,
        launched: &[PromptId],
        [samples, responses]: [u32; 2],
    ) -> Predicted {
        let mut all = self.responses(step, launched, samples);
        let mut instances = self.dispatch_prompts(opened as f64, launched.len(), &all);
        let open_groups = self.job.raw.data.train_batch_size.min(launched.len());
        let responses = responses as usize;
        let mut round =
            Round { open_groups, responses, ended: Kept::default(), kept: Kept::default() };
        let interval = (self.job.raw.rollout.report_interval_s * NANOS) as u64;
        let (mut unseen, mut last) = (BTreeSet::new(), opened);
        let mut now = opened.div_ceil(interval) * interval;
        while round.open_groups > 0 || !unseen.is_empty() {
            for instance in &mut instances {
                let ended = instance.run(now as f64, &self.engine, &mut all);
                unseen.extend(ended.into_iter().map(|(at, slot)| (at, all[slot].id, slot)));
            }
            let later = unseen.split_off(&(now + 1, SampleId::default(), 0));
            for (at, id, _) in std::mem::replace(&mut unseen, later) {
                last = last.max(at);
                round.end(id);
            }
            let unwanted =
                |slot: &usize| !all[*slot].has_ended && !round.is_open_for(all[*slot].id);
            let dropped: BTreeSet<usize> = (0..all.len()).filter(unwanted).collect();
            for instance in &mut instances {
                let has = |slot: &usize| dropped.contains(slot);
                let is_hit =
                    instance.running.iter().chain(instance.waiting.iter().map(|(_, s)| s)).any(has);
                if is_hit {
                    last = last.max(now);
                    let ended = instance.abort(now as f64, &dropped, &self.engine, &mut all);
                    unseen.extend(ended.into_iter().map(|(at, slot)| (at, all[slot].id, slot)));
                }
            }
            now += interval;
        }
        Predicted { nanos: last - opened, kept: round.kept }
    }

    fn responses(&self, step: Step, launched: &[PromptId], samples: u32) -> Vec<Response> {
        let ids = launched
            .iter()
            .flat_map(|&prompt| (0..samples).map(move |sample| SampleId { step, prompt, sample }));
        let response = |id: SampleId| {
            let row = id.prompt.0 % self.job.prompts();
            Response {
                id,
                prompt_length: self.lengths.prompt(row).prompt_length,
                length: self.lengths.response(row, id, 0),
                tokens: 0,
                has_ended: false,
            }
        };
        ids.map(response).collect()
    }

    /// Returns the instances, with the requests of each and their times of arrival.
    fn dispatch_prompts(&mut self, opened: f64, prompts: usize, all: &[Response]) -> Vec<Instance> {
        let cost = &self.engine.cost;
        let begun = opened + NANOS * (cost.weight_sync() + cost.rollout_overhead());
        let each = NANOS * cost.calibration().dispatch_interval;
        let count = self.job.rollout_gpus() as usize;
        let mut instances: Vec<Instance> = Vec::new();
        instances.resize_with(count, || Instance { at: begun, ..Instance::default() });
        let samples = all.len() / prompts;
        for slot in 0..all.len() {
            let instance = match self.job.dispatch {
                Dispatch::RoundRobin => self.next + slot,
                Dispatch::PromptChunks => self.next + slot / samples * count / prompts,
                Dispatch::LeastLoaded => {
                    unreachable!("invariant: no job is drawn with this dispatch")
                }
            };
            let before = match self.job.raw.rollout.hand_out {
                HandOut::Together => all.len(),
                HandOut::Streamed => slot + 1,
            };
            let arrival = begun + each * before as f64;
            instances[instance % count].waiting.push_back((arrival, slot));
        }
        let given = match self.job.dispatch {
            Dispatch::RoundRobin => all.len(),
            Dispatch::PromptChunks => prompts,
            Dispatch::LeastLoaded => unreachable!("invariant: no job is drawn with this dispatch"),
        };
        self.next = (self.next + given) % count;
        instances
    }
}

/// Returns the outcome of a round in the pipeline, for comparison with the model.
fn observed(report: &StepReport) -> Predicted {
    let finished = report
        .responses
        .iter()
        .flat_map(|batch| batch.values::<UInt64Type>(column::FINISHED).values().iter().copied());
    let mut kept = Kept::default();
    for batch in &report.groups {
        for (prompt, sample) in ids(batch) {
            kept.entry(PromptId(prompt)).or_default().insert(sample);
        }
    }
    Predicted { nanos: finished.max().expect("responses") - report.opened.0, kept }
}

/// Tolerance for rounding in sums over single iterations, in nanoseconds.
const ROUNDING: u64 = 100;

fn compare(step: usize, settings: &[String], predicted: &Predicted, report: &StepReport) {
    let observed = observed(report);
    assert_eq!(predicted.kept, observed.kept, "step {step} of {settings:?}");
    let off = predicted.nanos.abs_diff(observed.nanos);
    let times = (predicted.nanos, observed.nanos);
    assert!(off <= ROUNDING, "step {step} of {settings:?}: {times:?} ns");
}

const BASE: &str = r#"
[model]
name = "Qwen3-1.7B"
[training]
tensor_parallel = 1
[tasks]
math = 1
code = 0
judge = 0
[data]
max_response_length = 1500
[pipeline]
placement = "colocated"
"#;

/// Returns one of `values`, drawn by `seed` and `key`.
fn pick<T: Copy>(seed: u64, key: u64, values: &[T]) -> T {
    let mixed = (seed * 64 + key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    values[(mixed >> 33) as usize % values.len()]
}

/// Returns the settings of a small job, drawn by `seed`. Some jobs fill their KV caches and preempt; some have more responses than slots.
fn drawn(seed: u64, schedule: &str) -> Vec<String> {
    // KV caches of about 4000 tokens, of about 8000 tokens, and of more tokens than a round has.
    let memory = pick(seed, 0, &[0.099, 0.105, 0.6]);
    let mut settings = owned(&[
        &format!("schedule.name={schedule}"),
        &format!("cluster.gpus={}", pick(seed, 1, &[1, 2, 3, 5])),
        &format!("data.train_batch_size={}", pick(seed, 2, &[2, 4, 7, 12])),
        &format!("rollout.n={}", pick(seed, 3, &[2, 4, 5, 8])),
        &format!("rollout.max_num_seqs={}", pick(seed, 4, &[3, 8, 256])),
        &format!("rollout.dispatch={}", pick(seed, 5, &["round_robin", "prompt_chunks"])),
        &format!("rollout.hand_out={}", pick(seed, 6, &["together", "streamed"])),
        &format!("rollout.report_interval_s={}", pick(seed, 7, &[0.01, 0.25])),
        &format!("rollout.gpu_memory_utilization={memory}"),
    ]);
    if schedule == "tail_batching" {
        let factors = &["1.0", "1.25", "1.5"];
        settings.push(format!("schedule.eta_prompts={}", pick(seed, 8, factors)));
        settings.push(format!("schedule.eta_responses={}", pick(seed, 9, factors)));
    }
    settings
}

const JOBS: u64 = 24;

#[test]
fn synchronous_rounds_end_at_the_time_of_the_event_model() {
    let mut preempted = 0;
    for seed in 1..=JOBS {
        let settings = [drawn(seed, "sync"), owned(&["sim.steps=3"])].concat();
        let job = job(BASE, &settings);
        let mut model = Model::new(&job, seed);
        let size = job.raw.data.train_batch_size as u64;
        let reports = reports(run::pipeline(&job, seed).expect("it starts"));
        for (step, report) in (0..).zip(&reports) {
            let prompts: Vec<_> = (step * size..(step + 1) * size).map(PromptId).collect();
            let responses = [job.raw.rollout.n; 2];
            let predicted = model.round(Step(step), report.opened.0, &prompts, responses);
            compare(step as usize, &settings, &predicted, report);
            preempted += report.responses.iter().map(preemptions).sum::<u32>();
        }
    }
    assert!(preempted > 50, "KV caches were full {preempted} times");
}

fn preemptions(batch: &rollpacker_dataflow::batch::Batch) -> u32 {
    batch.values::<UInt32Type>(column::PREEMPTIONS).values().iter().sum()
}

/// The number of rounds at the end of a run that are not compared. They may launch fewer prompts, so that the queue is empty at the end.
const LAST: usize = 4;

#[test]
fn tail_batching_keeps_the_responses_of_the_event_model() {
    let mut long = 0;
    for seed in 1..=JOBS {
        let settings = [drawn(seed, "tail_batching"), owned(&["sim.steps=10"])].concat();
        let job = job(BASE, &settings);
        let mut model = Model::new(&job, seed);
        let reports = reports(run::pipeline(&job, seed).expect("it starts"));
        let mut queue = TailBatching::new(&job);
        for (step, report) in (0..).zip(&reports[..reports.len() - LAST]) {
            long += usize::from(queue.is_full());
            let (prompts, responses) = queue.launch();
            let predicted = model.round(Step(step), report.opened.0, &prompts, responses);
            compare(step as usize, &settings, &predicted, report);
            queue.defer(&prompts, &predicted.kept);
        }
    }
    assert!(long > 20, "{long} rounds were long");
}

/// The rules of section 3 of the paper.
struct TailBatching {
    prompts: usize,
    responses: u32,
    short: (usize, u32),
    fresh: u64,
    queue: VecDeque<PromptId>,
}

impl TailBatching {
    fn new(job: &Job) -> Self {
        let (prompts, responses) = (job.raw.data.train_batch_size, job.raw.rollout.n);
        let factor = |key: &str| job.raw.schedule.options[key].as_float().expect("a factor");
        let samples = (factor("eta_responses") * f64::from(responses)).ceil() as u32;
        let short = ((factor("eta_prompts") * prompts as f64).ceil() as usize, samples);
        Self { prompts, responses, short, fresh: 0, queue: VecDeque::new() }
    }

    /// Returns `true` if the next round is a long one.
    fn is_full(&self) -> bool {
        self.queue.len() >= self.prompts
    }

    /// Returns the prompts that the next round launches, the number of responses to each, and the number of them that it keeps.
    fn launch(&mut self) -> (Vec<PromptId>, [u32; 2]) {
        if self.is_full() {
            return (self.queue.drain(..self.prompts).collect(), [self.responses; 2]);
        }
        let (prompts, samples) = self.short;
        let fresh = self.fresh..self.fresh + prompts as u64;
        self.fresh = fresh.end;
        (fresh.map(PromptId).collect(), [samples, self.responses])
    }

    fn defer(&mut self, launched: &[PromptId], kept: &Kept) {
        self.queue.extend(launched.iter().filter(|prompt| !kept.contains_key(prompt)));
    }
}
