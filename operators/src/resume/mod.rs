//! Resuming a run: the operators whose state outlives a step, and how that state is restored.
//!
//! The state of most operators belongs to one step, and a snapshot taken at the end of a step does not contain it. State that outlives a
//! step is written by the operator that owns it, as parts with these names:
//!
//! | part | operator | content |
//! |---|---|---|
//! | `schedule` | schedule | the state of the schedule, in the schedule's own format |
//! | `prompts` | schedule | undecided prompts, unsent decisions, the last offered or skipped prompt, and the extra read-ahead |
//! | `curriculum` | schedule | the pass rates of dataset rows, unused results, and counts of judged prompts, if there is a curriculum |
//! | `rollout` | rollout | the responses that are kept for later rounds, partial or whole |
//! | `advantage` | advantage | the coefficient of the KL penalty in rewards, if it is adaptive |
//! | `placement` | placement | the learned state of the placement policy: parallelism, lengths and loads by kind of round |
//! | `trainer` | update | weights, optimizers, and the policies that later steps sample with |
//! | `ledger_lengths`, `ledger_pairs`, `ledger_rows`, `ledger_waits` | ledger | lengths, response pairs, dataset rows, deferred prompts |
//! | `ledger_anchors` | executions | the longest correct execution of each test case, from which limits are derived, and audit results |
//! | `report` | report | the state of the observer: totals, and the positions in its output files |
//!
//! An operator whose state depends on the order of steps writes the state just before it starts the next step. When snapshots are taken,
//! the schedule opens a round only after it has received all responses of the previous round. A snapshot therefore holds the state between
//! the two rounds.
//!
//! Architecture invariant: the module that writes a part also reads it.

mod error;
mod operator_parts;
pub(crate) mod part;

pub use error::ResumeError;
pub(crate) use operator_parts::OperatorParts;

use std::cell::RefCell;
use std::rc::Rc;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::fault::{Fault, fault_stream};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::snapshot::{Commits, RestoredSnapshot, Snapshots};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::Scope;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;

/// The state of an operator in a snapshot.
pub(crate) trait SavedState: Sized {
    /// Reads the state from the parts that the operator wrote. Returns `None` or an empty state if the operator wrote none.
    ///
    /// # Errors
    /// If a part cannot be read, or its layout differs from the expected one.
    fn read(restored: &RestoredSnapshot) -> Result<Option<Self>, ResumeError>;
}

/// Access of a graph's operators to snapshots: the operators register their parts and read the state that they resume from. By default, no
/// snapshots are taken and the run starts from the beginning.
#[derive(Clone, Default)]
pub struct Resumable<'scope> {
    snapshots: Option<Snapshots<'scope>>,
    restored: Option<RestoredSnapshot>,
    /// The first part that could not be read.
    unreadable: Rc<RefCell<Option<ResumeError>>>,
}

impl<'scope> Resumable<'scope> {
    /// Creates the access to snapshots. If `snapshots` is `None`, no snapshots are taken. If `restored` is `None`, the run starts from the
    /// beginning.
    #[must_use]
    pub fn new(snapshots: Option<Snapshots<'scope>>, restored: Option<RestoredSnapshot>) -> Self {
        Self { snapshots, restored, unreadable: Rc::default() }
    }

    /// Returns a stream with the error of the first part that an operator could not read. The stream is empty if all parts could be read.
    /// Call it after all operators are built.
    #[must_use]
    pub fn errors(&self, scope: Scope<'scope, Step>) -> BatchStream<'scope> {
        match self.unreadable.borrow().as_ref() {
            Some(error) => fault_stream(scope, Fault::of("resume", error)),
            None => empty(scope),
        }
    }

    /// Installs the operator that commits complete snapshots. Call it after all operators are built. Returns `None` if no snapshots are
    /// taken.
    #[must_use]
    pub fn commit(self) -> Option<Commits<'scope>> {
        self.snapshots.map(Snapshots::commit)
    }

    /// Returns `true` if snapshots are taken.
    pub(crate) fn is_enabled(&self) -> bool {
        self.snapshots.is_some()
    }

    /// Reads the state that an operator resumes from. Returns `None` if the run starts from the beginning, or if the operator wrote no
    /// part. Also returns `None` if a part cannot be read; [`errors`](Self::errors) then ends the run.
    pub(crate) fn read<T: SavedState>(&self) -> Option<T> {
        match T::read(self.restored.as_ref()?) {
            Ok(state) => state,
            Err(error) => {
                self.unreadable.borrow_mut().get_or_insert(error);
                None
            }
        }
    }

    /// Reads the state as [`read`](Self::read) does, and also returns the step of the snapshot. Returns `None` on all workers but the
    /// first. This is for operators whose whole state is on the first worker.
    pub(crate) fn read_first<T: SavedState>(&self, worker: usize) -> Option<(Step, T)> {
        let step = self.step().filter(|_| worker == 0)?;
        Some((step, self.read()?))
    }

    /// Returns the step of the snapshot, which is the last step that its state includes; `None` if the run starts from the beginning.
    pub(crate) fn step(&self) -> Option<Step> {
        self.restored.as_ref().map(RestoredSnapshot::step)
    }

    /// Registers a part for which each worker writes its own state.
    pub(crate) fn register_each(
        &self,
        name: &'static str,
        operator: &mut Operator<'scope>,
    ) -> OperatorParts {
        self.register(name, operator, false)
    }

    /// Registers a part for which only the first worker has a state.
    pub(crate) fn register_first(
        &self,
        name: &'static str,
        operator: &mut Operator<'scope>,
    ) -> OperatorParts {
        self.register(name, operator, true)
    }

    fn register(
        &self,
        name: &'static str,
        operator: &mut Operator<'scope>,
        first_only: bool,
    ) -> OperatorParts {
        let parts = self.snapshots.as_ref().map(|snapshots| snapshots.parts(name, operator));
        OperatorParts::new(parts, first_only)
    }
}
