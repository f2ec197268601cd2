//! The ledger on streams: facts of each step in, arrangements that keep them, metrics out.

use std::collections::BTreeMap;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::differential_dataflow::AsCollection;
use rollpacker_dataflow::differential_dataflow::VecCollection;
use rollpacker_dataflow::operator::{Operator, Updates};
use rollpacker_dataflow::schema;
use rollpacker_dataflow::snapshot::Part;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_stages::train::Metrics;
use serde::{Deserialize, Serialize};

use super::bias::{UNIT, Weighed};
use super::by_step::by_step;
use super::facts::{Facts, Gathering, Launches, Length, Waits};
use super::known::{self, KnownFacts};
use super::{Lengths, Recorded};
use crate::policy::metrics_batch;
use crate::resume::Keeper;

/// The diff of a length: responses, weights and squared weights.
type Weighing = (i64, i64, i64);
/// The diff of a row: launched; ended by themselves, their tokens and squares; trained, their scores.
type Rows = (i64, (i64, i64, i64), (i64, i64));

/// A fact about all that has happened up to a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
enum Told {
    /// Responses and tokens trained so far, the policy's mean as bits, and the metrics with values as bits.
    Lengths { trained: (i64, i64), mean: u64, metrics: Vec<(String, u64)> },
    /// Sums over rows; then the sum over rows of the squared deviations from the row's own mean.
    Rows { rows: i64, sums: Rows, within: i64 },
    /// Prompts that wait: how many, the sum of the steps since when, and the first of these.
    Waiting { prompts: i64, sum: i64, first: u64 },
}

pub(super) fn ledger(recorded: Recorded<'_>, cap: u32) -> BatchStream<'_> {
    let resumed = recorded.resumable.step();
    let Read { lengths, rows, waiting } = read(recorded);
    let told = compare(lengths, cap).concat(histories(rows)).concat(waits(waiting));
    by_step(told, "bias", resumed, |step, changes| metrics_batch(&metrics(step, changes)))
}

/// The facts as collections.
struct Read<'scope> {
    lengths: VecCollection<'scope, Step, Length, Weighing>,
    rows: VecCollection<'scope, Step, u64, Rows>,
    waiting: VecCollection<'scope, Step, (PromptId, Step), isize>,
}

/// A step that is not complete, with a capability for each output.
type Open = ([Capability<Step>; 3], Gathering);

/// Adds up each step, and hands it over once it is complete.
fn read(recorded: Recorded<'_>) -> Read<'_> {
    let resumable = &recorded.resumable;
    let scope = recorded.responses.scope();
    let (worker, mut operator) = (scope.index(), Operator::new("ledger", scope));
    let mut inputs = [
        operator.input(recorded.responses, Pipeline, &schema::RESPONSES),
        operator.input(recorded.groups, Pipeline, &schema::GROUPS),
        operator.input(recorded.decisions, Pipeline, &schema::DECISIONS),
    ];
    let (lengths, length_stream) = operator.updates(&[0, 1, 2]);
    let (rows, row_stream) = operator.updates(&[0, 1, 2]);
    let (waiting, waiting_stream) = operator.updates(&[0, 1, 2]);
    let parts = [known::LENGTHS, known::ROWS, known::WAITS];
    let mut parts = Keeping(parts.map(|name| resumable.keep_first(name, &mut operator)));
    let mut reader = Reader {
        outputs: Outputs { lengths, rows, waiting },
        first_counted: Step(recorded.warmup_steps),
        waits: Waits::default(),
        known: KnownFacts::default(),
    };
    let mut restored =
        resumable.resumed_first(worker).map(|resumed| (resumed.step(), resumed.facts.clone()));
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        let mut capabilities = restored.as_ref().map(|_| capabilities);
        let mut steps: BTreeMap<Step, Open> = BTreeMap::new();
        move |frontiers| {
            if let Some((capabilities, (step, known))) = capabilities.take().zip(restored.take()) {
                reader.restore(capabilities, step, known);
            }
            let indices = reader.outputs.indices();
            for (kind, input) in inputs.iter_mut().enumerate() {
                input.for_each(|capability, batch| {
                    let held = || indices.map(|output| capability.retain(output));
                    let step = steps.entry(*capability.time());
                    let (_, gathering) = step.or_insert_with(|| (held(), Gathering::default()));
                    gathering.take(kind, &batch);
                });
            }
            while let Some(first) = steps.first_entry() {
                let step = *first.key();
                if frontiers.iter().any(|frontier| frontier.less_equal(&step)) {
                    break;
                }
                let (held, gathering) = first.remove();
                parts.before(step, &reader.known);
                reader.close(step, &held, gathering, parts.is_on());
            }
            parts.passed(frontiers, &reader.known);
        }
    });
    Read {
        lengths: length_stream.as_collection(),
        rows: row_stream.as_collection(),
        waiting: waiting_stream.as_collection(),
    }
}

/// The parts of lengths, rows and waiting prompts.
struct Keeping([Keeper; 3]);

/// What makes a part of the facts.
type Make = fn(&KnownFacts) -> Part;

impl Keeping {
    const MAKE: [Make; 3] =
        [KnownFacts::lengths_part, KnownFacts::rows_part, KnownFacts::waits_part];

    fn is_on(&self) -> bool {
        self.0.iter().all(Keeper::is_on)
    }

    fn start(&mut self, capabilities: &[Capability<Step>]) {
        self.0.iter_mut().for_each(|parts| parts.start(capabilities));
    }

    fn before(&mut self, step: Step, known: &KnownFacts) {
        let parts = self.0.iter_mut().zip(Self::MAKE);
        parts.for_each(|(parts, make)| parts.before(step, |_| make(known)));
    }

    fn passed(&mut self, frontiers: &[MutableAntichain<Step>], known: &KnownFacts) {
        let parts = self.0.iter_mut().zip(Self::MAKE);
        parts.for_each(|(parts, make)| parts.passed(frontiers, |_| make(known)));
    }
}

struct Outputs {
    lengths: Updates<(Length, Step, Weighing)>,
    rows: Updates<(u64, Step, Rows)>,
    waiting: Updates<((PromptId, Step), Step, isize)>,
}

impl Outputs {
    fn indices(&self) -> [usize; 3] {
        [self.lengths.index(), self.rows.index(), self.waiting.index()]
    }

    fn give(&mut self, step: Step, held: &[Capability<Step>], facts: &Facts) {
        self.lengths.give(&held[0], length_updates(facts, step));
        self.rows.give(&held[1], row_updates(facts, step));
        self.waiting.give(&held[2], waiting_updates(facts, step));
    }
}

struct Reader {
    outputs: Outputs,
    first_counted: Step,
    waits: Waits,
    /// Only where snapshots are taken.
    known: KnownFacts,
}

impl Reader {
    /// Hands over what was known at the end of `step`, which no metric tells again.
    fn restore(&mut self, mut capabilities: Vec<Capability<Step>>, step: Step, known: KnownFacts) {
        capabilities.iter_mut().for_each(|capability| capability.downgrade(&step));
        self.outputs.give(step, &capabilities, &known.facts());
        self.waits = known.waits();
        self.known = known;
    }

    fn close(
        &mut self,
        step: Step,
        held: &[Capability<Step>],
        gathering: Gathering,
        is_kept: bool,
    ) {
        let facts = gathering.close(step, &mut self.waits);
        let facts = if step < self.first_counted { facts.of_waits() } else { facts };
        if is_kept {
            self.known.add(&facts, &self.waits);
        }
        self.outputs.give(step, held, &facts);
    }
}

fn length_updates(facts: &Facts, step: Step) -> impl Iterator<Item = (Length, Step, Weighing)> {
    facts.lengths.iter().map(move |(length, Weighed { count, weight, square })| {
        (*length, step, (*count, *weight, *square))
    })
}

fn row_updates(facts: &Facts, step: Step) -> impl Iterator<Item = (u64, Step, Rows)> {
    facts.rows.iter().map(move |(row, Launches { launched, whole: [n, s, q], scored: [t, r] })| {
        (*row, step, (*launched, (*n, *s, *q), (*t, *r)))
    })
}

fn waiting_updates(
    facts: &Facts,
    step: Step,
) -> impl Iterator<Item = ((PromptId, Step), Step, isize)> {
    facts.waiting.iter().map(move |(prompt, since, change)| ((*prompt, *since), step, *change))
}

/// Both length distributions up to each step, and what they say of each other.
fn compare(
    lengths: VecCollection<'_, Step, Length, Weighing>,
    cap: u32,
) -> VecCollection<'_, Step, Told> {
    let told =
        lengths.map(|length| ((), length)).reduce_named("lengths", move |(), facts, told| {
            told.push((of_lengths(facts, cap), 1));
        });
    told.map(|((), told)| told)
}

fn of_lengths(facts: &[(&Length, Weighing)], cap: u32) -> Told {
    let lengths = gathered(facts);
    let mean = lengths.policy.mean().unwrap_or(0.0);
    let metrics = lengths.bias(cap).into_iter().map(|(name, value)| (name, value.to_bits()));
    Told::Lengths {
        trained: (lengths.trained.count(), lengths.trained.tokens()),
        mean: mean.to_bits(),
        metrics: metrics.collect(),
    }
}

fn gathered(facts: &[(&Length, Weighing)]) -> Lengths {
    let mut lengths = Lengths::default();
    for (length, (count, weight, square)) in facts {
        let times = u64::try_from(*count).unwrap_or(0);
        let policies = [&mut lengths.policy, &mut lengths.policy_low];
        match **length {
            Length::Entered(at) => policies.map(|policy| policy.enter_many(at, times)),
            Length::Ended(at) => policies.map(|policy| policy.observe_many(at, true, times)),
            Length::Cut(at) => policies.map(|policy| policy.observe_many(at, false, times)),
            Length::Surplus(at) => {
                let [policy, low] = policies;
                policy.observe_many(at, false, times);
                low.observe_many(at + 1, true, times);
                continue;
            }
            Length::Trained(at) => {
                let weighed = Weighed { count: *count, weight: *weight, square: *square };
                lengths.trained.add(at, weighed);
                continue;
            }
        };
    }
    lengths
}

/// Sums over rows. Each row is kept as one record, and revised where it is launched again.
fn histories(rows: VecCollection<'_, Step, u64, Rows>) -> VecCollection<'_, Step, Told> {
    let by_row = rows.count_core::<i64>();
    let total = by_row.explode(|(_, sums)| {
        let (_, (n, s, q), _) = sums;
        let within = if n > 0 { q - s * s / n } else { 0 };
        Some(((), ((1i64, within), sums)))
    });
    total.count_core::<isize>().map(|((), ((rows, within), sums))| Told::Rows {
        rows,
        sums,
        within,
    })
}

fn waits(waiting: VecCollection<'_, Step, (PromptId, Step)>) -> VecCollection<'_, Step, Told> {
    let since = waiting.map(|(_, since)| ((), since));
    let told = since.reduce_named("waiting", |(), since, told| {
        let prompts = since.iter().map(|(_, count)| *count as i64).sum();
        let sum = since.iter().map(|(since, count)| since.0 as i64 * *count as i64).sum();
        let first = since.first().map_or(0, |(since, _)| since.0);
        told.push((Told::Waiting { prompts, sum, first }, 1));
    });
    told.map(|((), told)| told)
}

fn metrics(step: Step, changes: &[(Told, isize)]) -> Metrics {
    let mut metrics = Metrics::new();
    for (told, _) in changes.iter().filter(|(_, change)| *change > 0) {
        match told {
            Told::Lengths { metrics: columns, mean, trained } => {
                let columns =
                    columns.iter().map(|(name, bits)| (name.clone(), f64::from_bits(*bits)));
                metrics.extend(columns);
                let now = since(*trained, before(changes));
                let step_mean = now.1 as f64 / now.0 as f64 / f64::from_bits(*mean);
                if step_mean.is_finite() {
                    metrics.insert("bias/step_mean_ratio".to_owned(), step_mean);
                }
            }
            Told::Rows { rows, sums, within } => metrics.extend(of_rows(*rows, *sums, *within)),
            Told::Waiting { prompts, sum, first } => {
                metrics.extend(of_waiting(step, *prompts, *sum, *first));
            }
        }
    }
    if is_over(changes) {
        metrics.extend(of_waiting(step, 0, 0, step.0));
    }
    metrics
}

/// What was trained until the step: what the step takes back.
fn before(changes: &[(Told, isize)]) -> (i64, i64) {
    let taken = changes.iter().find_map(|(told, change)| match told {
        Told::Lengths { trained, .. } if *change < 0 => Some(*trained),
        _ => None,
    });
    taken.unwrap_or_default()
}

fn since(now: (i64, i64), before: (i64, i64)) -> (i64, i64) {
    (now.0 - before.0, now.1 - before.1)
}

/// Whether the last prompt that waited does so no more.
fn is_over(changes: &[(Told, isize)]) -> bool {
    let waiting = |sign: isize| {
        changes
            .iter()
            .any(|(told, change)| matches!(told, Told::Waiting { .. }) && change.signum() == sign)
    };
    waiting(-1) && !waiting(1)
}

fn of_rows(rows: i64, sums: Rows, within: i64) -> Metrics {
    let (launched, (n, s, q), (trained, scores)) = sums;
    let [rows, launched, n, s, q, trained, within] =
        [rows, launched, n, s, q, trained, within].map(|sum| sum as f64);
    let mut metrics = Metrics::from([
        ("ledger/rows".to_owned(), rows),
        ("ledger/launches_per_row".to_owned(), launched / rows),
    ]);
    if trained > 0.0 {
        metrics.insert("ledger/pass_rate".to_owned(), scores as f64 / UNIT / trained);
    }
    // Analysis of variance: the mean square within rows estimates what no history foretells.
    let (total, within) = ((q - s * s / n) / (n - 1.0), within / (n - rows));
    if n > rows && total > 0.0 {
        metrics.insert("ledger/between_row_share".to_owned(), (1.0 - within / total).max(0.0));
    }
    metrics
}

fn of_waiting(step: Step, prompts: i64, sum: i64, first: u64) -> Metrics {
    let mean = if prompts > 0 { step.0 as f64 - sum as f64 / prompts as f64 } else { 0.0 };
    let longest = if prompts > 0 { step.0.saturating_sub(first) } else { 0 };
    Metrics::from([
        ("ledger/waiting_prompts".to_owned(), prompts as f64),
        ("ledger/mean_wait".to_owned(), mean),
        ("ledger/longest_wait".to_owned(), longest as f64),
    ])
}
