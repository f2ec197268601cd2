//! Resuming a run: the operators whose state outlives a step, and how that state is restored.
//!
//! The state of most operators belongs to one step, and a snapshot taken at the end of a step does not contain it. State that outlives a
//! step is written by the operator that owns it, as parts with these names:
//!
//! | part | operator | content |
//! |---|---|---|
//! | `schedule` | schedule | the state of the schedule, in the schedule's own format |
//! | `prompts` | schedule | prompts that were offered and not admitted, and the position in the dataset |
//! | `rollout` | rollout | tokens of paused responses |
//! | `advantage` | advantage | the coefficient of the KL penalty in rewards, if it is adaptive |
//! | `placement` | placement | the learned state of the placement policy: parallelism, lengths and loads by kind of round |
//! | `trainer` | update | weights, optimizers, and the policies that later steps sample with |
//! | `ledger_lengths`, `ledger_pairs`, `ledger_rows`, `ledger_waits` | ledger | its facts |
//! | `ledger_anchors` | executions | the longest correct execution of each test case, from which limits are derived, and audit results |
//! | `report` | report | the state of the observer: totals, and the positions in its output files |
//!
//! An operator whose state depends on the order of steps writes the state just before it starts the next step. When snapshots are taken,
//! the schedule opens a round only after it has received all responses of the previous round, so a snapshot holds the state between the two
//! rounds.
//!
//! Architecture invariant: the module that writes a part also reads it.

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

/// Access of a graph's operators to snapshots, and the state that they resume from. By default, no snapshots are taken and the run starts
/// from the beginning.
#[derive(Clone, Default)]
pub struct Resumable<'scope> {
    snapshots: Option<Snapshots<'scope>>,
    resumed: Option<Rc<Resumed>>,
}

impl<'scope> Resumable<'scope> {
    /// Creates the access to `snapshots`, resuming from `resumed`.
    #[must_use]
    pub fn new(snapshots: Option<Snapshots<'scope>>, resumed: Option<Rc<Resumed>>) -> Self {
        Self { snapshots, resumed }
    }

    /// Commits the snapshots once all operators are built. Returns `None` if no snapshots are taken.
    #[must_use]
    pub fn commit(self) -> Option<Commits<'scope>> {
        self.snapshots.map(Snapshots::commit)
    }

    /// Returns `true` if snapshots are taken.
    pub(crate) fn is_kept(&self) -> bool {
        self.snapshots.is_some()
    }

    /// Returns the state that the run resumes from.
    pub(crate) fn resumed(&self) -> Option<&Resumed> {
        self.resumed.as_deref()
    }

    /// Returns the state that the run resumes from on the first worker, and `None` on all others. For operators whose whole state is on the
    /// first worker.
    pub(crate) fn resumed_first(&self, worker: usize) -> Option<&Resumed> {
        self.resumed().filter(|_| worker == 0)
    }

    /// Returns the last completed step.
    pub(crate) fn step(&self) -> Option<Step> {
        self.resumed().map(Resumed::step)
    }

    /// Registers a part that every worker has for itself.
    pub(crate) fn keep_each(&self, name: &'static str, operator: &mut Operator<'scope>) -> Keeper {
        Keeper::new(self.snapshots.as_ref().map(|snapshots| snapshots.parts(name, operator)), false)
    }

    /// Registers a part that only the first worker has.
    pub(crate) fn keep_first(&self, name: &'static str, operator: &mut Operator<'scope>) -> Keeper {
        Keeper::new(self.snapshots.as_ref().map(|snapshots| snapshots.parts(name, operator)), true)
    }
}
