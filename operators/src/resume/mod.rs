//! Resuming: which operators have a state that outlives a step, and how it comes back.
//!
//! Most operators hold what belongs to one step, and the snapshot of a step's end has nothing of it. What outlives a step is written by
//! the operator that has it, as parts of these names:
//!
//! | part | operator | what |
//! |---|---|---|
//! | `schedule` | schedule | the state of the schedule, in its own words |
//! | `prompts` | schedule | prompts that were offered and not admitted, and how far the dataset was read |
//! | `rollout` | rollout | tokens of responses that were paused |
//! | `advantage` | advantage | the factor of the KL divergence in rewards, where it adapts |
//! | `placement` | placement | what a policy of placement has learned: parallelism, lengths and loads by kind of round |
//! | `trainer` | update | weights, optimizers, the policies that later steps sample with |
//! | `ledger_lengths`, `ledger_pairs`, `ledger_rows`, `ledger_waits` | ledger | its facts |
//! | `ledger_anchors` | executions | the longest correct execution of each test case, which limits follow from, and what audits said |
//! | `report` | report | what the observer keeps: totals, and how far its files were written |
//!
//! An operator whose state depends on the order of steps writes it when it is about to take the next one up. The schedule opens a round,
//! where snapshots are taken, only when all responses of the round before have been told: what a snapshot holds is between the two.
//!
//! Architecture invariant: what is written is read by the same module.

mod error;
mod keeper;
pub(crate) mod part;
mod resumed;

pub use error::ResumeError;
pub(crate) use keeper::Keeper;
pub use resumed::{LastPrompt, Resumed};

use std::rc::Rc;

use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::snapshot::{Commits, Snapshots};
use rollpacker_dataflow::step::Step;

/// How the operators of a graph take part in snapshots, and what they go on from. The default takes none, and begins at the beginning.
#[derive(Clone, Default)]
pub struct Resumable<'scope> {
    snapshots: Option<Snapshots<'scope>>,
    resumed: Option<Rc<Resumed>>,
}

impl<'scope> Resumable<'scope> {
    /// Takes part in `snapshots`, and goes on from `resumed`.
    #[must_use]
    pub fn new(snapshots: Option<Snapshots<'scope>>, resumed: Option<Rc<Resumed>>) -> Self {
        Self { snapshots, resumed }
    }

    /// Commits the snapshots, once all operators are built; none where none are taken.
    #[must_use]
    pub fn commit(self) -> Option<Commits<'scope>> {
        self.snapshots.map(Snapshots::commit)
    }

    /// Whether snapshots are taken.
    pub(crate) fn is_kept(&self) -> bool {
        self.snapshots.is_some()
    }

    /// What the run goes on from.
    pub(crate) fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_deref()
    }

    /// The same where the first worker has all there is: none on any other.
    pub(crate) fn resumed_first(&self, worker: usize) -> Option<&Resumed> {
        self.resumed().filter(|_| worker == 0)
    }

    /// The last step that is over.
    pub(crate) fn step(&self) -> Option<Step> {
        self.resumed().map(Resumed::step)
    }

    /// Registers a part of an operator of which every worker has its own.
    pub(crate) fn keep_each(&self, name: &'static str, operator: &mut Operator<'scope>) -> Keeper {
        Keeper::new(self.snapshots.as_ref().map(|snapshots| snapshots.parts(name, operator)), false)
    }

    /// The same where the first worker has all there is.
    pub(crate) fn keep_first(&self, name: &'static str, operator: &mut Operator<'scope>) -> Keeper {
        Keeper::new(self.snapshots.as_ref().map(|snapshots| snapshots.parts(name, operator)), true)
    }
}
