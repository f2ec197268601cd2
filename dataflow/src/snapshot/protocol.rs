//! Snapshots of a graph: who takes part, and who commits.

use std::cell::RefCell;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use timely::dataflow::Scope;
use timely::dataflow::operators::Concatenate;

use super::commit::{Commits, commit};
use super::parts::{Parts, Writer};
use super::plan::SnapshotPlan;
use super::store::SnapshotStore;
use crate::batch::BatchStream;
use crate::bridge::{Owner, OwnerThread};
use crate::clock::VirtualClock;
use crate::operator::Operator;
use crate::schema;
use crate::step::Step;

/// The snapshots of one graph on one worker.
///
/// ```text
/// let snapshots = Snapshots::new(scope, &plan);
/// // in each operator that has a state:
/// let mut parts = snapshots.parts("schedule", &mut operator);
/// operator.build(move |capabilities| {
///     parts.start(&capabilities);
///     move |frontiers| {
///         // … for each step that is complete, in order:
///         parts.before(step, |_| state.part());
///         state.apply(step, …);
///         // … and at the end of each activation:
///         parts.passed(frontiers, |_| state.part());
///     }
/// });
/// // last:
/// let commits = snapshots.commit();
/// fault::raise(commits.errors, faults);
/// ```
///
/// Clones are of the same graph.
#[derive(Clone)]
pub struct Snapshots<'scope> {
    scope: Scope<'scope, Step>,
    plan: SnapshotPlan,
    writer: Rc<Writer>,
    /// None once they are committed.
    registered: Rc<RefCell<Option<Registered<'scope>>>>,
}

/// The operators that have a state, by name, with what they say of their parts.
type Registered<'scope> = Vec<(&'static str, BatchStream<'scope>)>;

impl<'scope> Snapshots<'scope> {
    /// Begins snapshots that a thread of this worker writes.
    #[must_use]
    pub fn new(scope: Scope<'scope, Step>, plan: &SnapshotPlan) -> Self {
        let store = plan.store.clone();
        let Ok(thread) = OwnerThread::spawn("snapshots", move || Ok::<_, Infallible>(store));
        Self::on(scope, plan, Owner::Thread(thread))
    }

    /// Begins snapshots in virtual time: they are written at once, and take none.
    #[must_use]
    pub fn in_virtual_time(
        scope: Scope<'scope, Step>,
        plan: &SnapshotPlan,
        clock: VirtualClock,
    ) -> Self {
        Self::on(scope, plan, Owner::in_virtual_time(clock, plan.store.clone()))
    }

    fn on(
        scope: Scope<'scope, Step>,
        plan: &SnapshotPlan,
        owner: Owner<Arc<SnapshotStore>>,
    ) -> Self {
        let writer = Rc::new(Writer::new(scope.peers(), plan, owner));
        let registered = Rc::new(RefCell::new(Some(Vec::new())));
        Self { scope, plan: plan.clone(), writer, registered }
    }

    /// The scope of the graph.
    #[must_use]
    pub fn scope(&self) -> Scope<'scope, Step> {
        self.scope
    }

    /// Registers an operator that has a state, by a name of its own; without the parts of all of them no snapshot is complete.
    ///
    /// One that writes several files registers as often, as `weights` and as `optimizer`.
    ///
    /// # Panics
    /// If the name is taken, or is not of lower-case letters, digits and `_`: it is that of a file. If snapshots are committed already.
    pub fn parts(&self, name: &'static str, operator: &mut Operator<'scope>) -> Parts {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(name.chars().all(fits) && !name.is_empty(), "`{name}` names no part");
        let mut registered = self.registered.borrow_mut();
        let registered =
            registered.as_mut().expect("invariant: operators are registered before the commit");
        assert!(registered.iter().all(|&(other, _)| other != name), "`{name}` is taken");
        // It follows from no input: parts are written also where nothing came, by a capability that is the operator's own.
        let (output, stream) = operator.output(&schema::PARTS, &[]);
        registered.push((name, stream));
        let worker = u32::try_from(self.scope.index()).expect("invariant: workers are few");
        Parts::new(
            (name, worker),
            output,
            operator.waker(),
            operator.waiting(),
            self.writer.clone(),
        )
    }

    /// Commits the snapshots whose parts are complete: once, after all operators have been [registered](Self::parts).
    ///
    /// # Panics
    /// If they are committed already.
    #[must_use]
    pub fn commit(self) -> Commits<'scope> {
        let registered = self.registered.take().expect("invariant: snapshots are committed once");
        let (names, streams): (Vec<_>, Vec<_>) = registered.into_iter().unzip();
        commit(self.scope.concatenate(streams), &names, &self.plan, self.writer)
    }
}
