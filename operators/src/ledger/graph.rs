//! The dataflow of the ledger: the facts of each step enter, arrangements keep them, and metrics leave.

use std::collections::BTreeMap;

use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::differential_dataflow::AsCollection;
use rollpacker_dataflow::differential_dataflow::VecCollection;
use rollpacker_dataflow::frontier::{earliest, may_arrive};
use rollpacker_dataflow::operator::{Operator, Updates};
use rollpacker_dataflow::schema;
use rollpacker_dataflow::snapshot::Part;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;

use super::by_step::by_step;
use super::fact::{Fact, Sums};
use super::fact_totals::{self, FactTotals};
use super::facts::{DeferredPrompts, Facts, StepFacts};
use super::pair_totals;
use super::summaries::{histories, metrics, summarize};
use crate::policy::metrics_batch;
use crate::resume::{OperatorParts, Resumable};

/// The input streams and the settings of the ledger. With several workers, the streams must be routed to the first worker
/// ([`route::gather_at_first`](rollpacker_dataflow::route::gather_at_first)). The facts about a prompt are combined there, and snapshots
/// contain only the facts of that worker.
pub struct LedgerInputs<'scope> {
    /// Batches of [`schema::RESPONSES`]: all responses, including aborted ones.
    pub responses: BatchStream<'scope>,
    /// Batches of [`schema::GROUPS`]: the groups that were trained on.
    pub groups: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`]: the decisions of the schedule.
    pub decisions: BatchStream<'scope>,
    /// The number of initial steps whose lengths, pairs and rows are not counted. With 0, all steps are counted. Deferred prompts are
    /// tracked from the first step on.
    pub warmup_steps: u64,
    /// The access to snapshots, in which the facts are saved.
    pub resumable: Resumable<'scope>,
}

/// Runs the ledger. Returns batches of [`METRICS`](rollpacker_dataflow::schema::METRICS): at most one for each step on each worker. Each
/// metric of a step is in only one of the batches.
///
/// `cap` is the maximum response length of the engine in tokens. The metrics include the shares of responses that are longer than one, two
/// and three quarters of `cap`, and of responses that reach `cap`.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{clock, lengths, metric, rollouts, run, trainer};
/// use rollpacker_operators::ledger::{LedgerInputs, ledger};
/// use rollpacker_operators::resume::Resumable;
/// # use rollpacker_dataflow::bridge::Executor;
/// # use rollpacker_operators::advantage::Grpo;
/// # use rollpacker_operators::{AdvantageExt, GradientExt, GroupExt, RewardExt};
/// # use rollpacker_stages::reward::Limits;
///
/// # let (trainer, _gradients) = trainer();
/// let metrics = run(|scope, _| {
///     let rollouts = rollouts(scope);
///     let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
///     let groups = rollouts
///         .reward(lengths(), Limits::default(), Executor::Inline, clock())
///         .group()
///         .advantage(Grpo::default())
///         .gradient(trainer)
///         .accumulated;
///     let (warmup_steps, resumable) = (0, Resumable::default());
///     ledger(LedgerInputs { responses, groups, decisions, warmup_steps, resumable }, 100)
/// });
/// // Every response is trained on, so the trained lengths equal the policy's lengths: a mean of 1.5 tokens.
/// assert_eq!(metric(&metrics, "bias/policy_mean"), [1.5]);
/// assert_eq!(metric(&metrics, "bias/mean_ratio"), [1.0]);
/// ```
#[must_use]
pub fn ledger(recorded: LedgerInputs<'_>, cap: u32) -> BatchStream<'_> {
    let resumed = recorded.resumable.step();
    let FactCollections { facts, rows } = read(recorded);
    let summaries = summarize(facts.concat(histories(rows)), cap);
    by_step(summaries, "bias", resumed, |step, changes| metrics_batch(&metrics(step, changes)))
}

/// The facts as differential collections.
struct FactCollections<'scope> {
    /// All facts except the facts about rows.
    facts: VecCollection<'scope, Step, Fact, Sums>,
    /// The histories of the dataset rows.
    rows: VecCollection<'scope, Step, u64, Sums>,
}

/// An incomplete step, with a capability for each output.
type Open = ([Capability<Step>; 2], StepFacts);

/// A function that adds a batch to the facts of its step.
type AddBatch = fn(&mut StepFacts, &Batch);

/// Sums the facts of each step and emits them once the step is complete.
fn read(recorded: LedgerInputs<'_>) -> FactCollections<'_> {
    let resumable = &recorded.resumable;
    let scope = recorded.responses.scope();
    let (worker, mut operator) = (scope.index(), Operator::new("ledger", scope));
    let mut inputs: [(_, AddBatch); 3] = [
        (operator.input(recorded.responses, Pipeline, &schema::RESPONSES), StepFacts::responses),
        (operator.input(recorded.groups, Pipeline, &schema::GROUPS), StepFacts::groups),
        (operator.input(recorded.decisions, Pipeline, &schema::DECISIONS), StepFacts::decisions),
    ];
    let (facts, fact_stream) = operator.updates(&[0, 1, 2]);
    let (rows, row_stream) = operator.updates(&[0, 1, 2]);
    let parts = [fact_totals::LENGTHS, pair_totals::PAIRS, fact_totals::ROWS, fact_totals::WAITS];
    let mut parts = LedgerParts(parts.map(|name| resumable.register_first(name, &mut operator)));
    let mut reader = Reader {
        outputs: Outputs { facts, rows },
        first_counted: Step(recorded.warmup_steps),
        waits: DeferredPrompts::default(),
        known: FactTotals::default(),
    };
    let mut restored = resumable.read_first::<FactTotals>(worker);
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        let mut capabilities = restored.as_ref().map(|_| capabilities);
        let mut steps: BTreeMap<Step, Open> = BTreeMap::new();
        move |frontiers| {
            if let Some((capabilities, (step, known))) = capabilities.take().zip(restored.take()) {
                reader.restore(capabilities, step, known);
            }
            let indices = reader.outputs.indices();
            for (input, add) in &mut inputs {
                input.for_each(|capability, batch| {
                    let held = || indices.map(|output| capability.retain(output));
                    let step = steps.entry(*capability.time());
                    let (_, gathering) = step.or_insert_with(|| (held(), StepFacts::default()));
                    add(gathering, &batch);
                });
            }
            while let Some(first) = steps.first_entry() {
                let step = *first.key();
                if may_arrive(frontiers, &step) {
                    break;
                }
                let (held, gathering) = first.remove();
                parts.begin_step(step, &reader.known);
                reader.close(step, &held, gathering, parts.is_enabled());
            }
            parts.advance_to(earliest(frontiers), &reader.known);
        }
    });
    FactCollections { facts: fact_stream.as_collection(), rows: row_stream.as_collection() }
}

/// The snapshot parts of lengths, pairs, rows and deferred prompts.
struct LedgerParts([OperatorParts; 4]);

/// A function that encodes a subset of the facts as a snapshot part.
type MakePart = fn(&FactTotals) -> Part;

impl LedgerParts {
    const MAKE_PARTS: [MakePart; 4] = [
        FactTotals::lengths_part,
        FactTotals::pairs_part,
        FactTotals::rows_part,
        FactTotals::waits_part,
    ];

    fn is_enabled(&self) -> bool {
        self.0.iter().all(OperatorParts::is_enabled)
    }

    fn start(&mut self, capabilities: &[Capability<Step>]) {
        self.0.iter_mut().for_each(|parts| parts.start(capabilities));
    }

    fn begin_step(&mut self, step: Step, known: &FactTotals) {
        let parts = self.0.iter_mut().zip(Self::MAKE_PARTS);
        parts.for_each(|(parts, make)| parts.begin_step(step, |_| make(known)));
    }

    fn advance_to(&mut self, frontier: Option<Step>, known: &FactTotals) {
        let parts = self.0.iter_mut().zip(Self::MAKE_PARTS);
        parts.for_each(|(parts, make)| parts.advance_to(frontier, |_| make(known)));
    }
}

struct Outputs {
    facts: Updates<(Fact, Step, Sums)>,
    rows: Updates<(u64, Step, Sums)>,
}

impl Outputs {
    fn indices(&self) -> [usize; 2] {
        [self.facts.index(), self.rows.index()]
    }

    fn give(&mut self, step: Step, held: &[Capability<Step>], facts: &Facts) {
        let summarized = Fact::of_step(facts).map(|(fact, sums)| (fact, step, sums));
        self.facts.give(&held[0], summarized);
        let rows = facts.rows.iter().map(|(row, launches)| (*row, step, launches.into()));
        self.rows.give(&held[1], rows);
    }
}

struct Reader {
    outputs: Outputs,
    first_counted: Step,
    waits: DeferredPrompts,
    /// The sums of all facts, for snapshots. Updated only if snapshots are taken.
    known: FactTotals,
}

impl Reader {
    /// Emits the facts of a snapshot at `step`, the step of the snapshot. No metrics are emitted for this step.
    fn restore(&mut self, mut capabilities: Vec<Capability<Step>>, step: Step, known: FactTotals) {
        capabilities.iter_mut().for_each(|capability| capability.downgrade(&step));
        self.outputs.give(step, &capabilities, &known.facts());
        self.waits = known.waits();
        self.known = known;
    }

    fn close(
        &mut self,
        step: Step,
        held: &[Capability<Step>],
        gathering: StepFacts,
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
