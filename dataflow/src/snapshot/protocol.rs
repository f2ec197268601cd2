//! Snapshots of a graph: registration of operators and commits.

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
use crate::bridge::{Service, ServiceThread};
use crate::clock::VirtualClock;
use crate::operator::Operator;
use crate::schema;
use crate::step::Step;

/// The access of the operators of one graph, on one worker, to snapshots: each operator registers its parts, and [`commit`](Self::commit)
/// then installs the operator that commits the snapshots.
///
/// ```text
/// let snapshots = Snapshots::new(scope, &plan);
/// // in each operator that has a state:
/// let mut parts = snapshots.parts("schedule", &mut operator);
/// operator.build(move |capabilities| {
///     parts.start(&capabilities);
///     move |frontiers| {
///         // … for each step that is complete, in order:
///         parts.begin_step(step, |_| state.part());
///         state.apply(step, …);
///         // … and at the end of each activation:
///         parts.advance_to(earliest(frontiers), |_| state.part());
///     }
/// });
/// // last:
/// let commits = snapshots.commit();
/// fault::raise(commits.errors, faults);
/// ```
///
/// Clones refer to the same graph.
#[derive(Clone)]
pub struct Snapshots<'scope> {
    scope: Scope<'scope, Step>,
    plan: SnapshotPlan,
    writer: Rc<Writer>,
    /// `None` once `commit` was called.
    registered: Rc<RefCell<Option<Registered<'scope>>>>,
}

/// The operators that have state, by name, with the streams of their descriptors.
type Registered<'scope> = Vec<(&'static str, BatchStream<'scope>)>;

impl<'scope> Snapshots<'scope> {
    /// Creates the snapshots of a graph; a thread of this worker writes them.
    ///
    /// # Panics
    /// If the system cannot start the thread.
    #[must_use]
    pub fn new(scope: Scope<'scope, Step>, plan: &SnapshotPlan) -> Self {
        let store = plan.store.clone();
        let Ok(thread) = ServiceThread::spawn("snapshots", move || Ok::<_, Infallible>(store));
        Self::on(scope, plan, Service::Thread(thread))
    }

    /// Creates the snapshots of a graph in virtual time. Writes happen immediately and take no virtual time.
    #[must_use]
    pub fn in_virtual_time(
        scope: Scope<'scope, Step>,
        plan: &SnapshotPlan,
        clock: VirtualClock,
    ) -> Self {
        Self::on(scope, plan, Service::in_virtual_time(clock, plan.store.clone()))
    }

    fn on(
        scope: Scope<'scope, Step>,
        plan: &SnapshotPlan,
        service: Service<Arc<SnapshotStore>>,
    ) -> Self {
        let writer = Rc::new(Writer::new(scope.peers(), plan, service));
        let registered = Rc::new(RefCell::new(Some(Vec::new())));
        Self { scope, plan: plan.clone(), writer, registered }
    }

    /// Returns the scope of the graph.
    #[must_use]
    pub fn scope(&self) -> Scope<'scope, Step> {
        self.scope
    }

    /// Registers an operator that has state, under a unique name. A snapshot is complete only with the parts of all registered operators.
    ///
    /// An operator that writes several files registers once for each, such as `weights` and `optimizer`.
    ///
    /// # Panics
    /// If the name is taken or empty, or if [`commit`](Self::commit) was already called. Also if the name contains characters other than
    /// lower-case ASCII letters, digits and `_`, because it becomes a file name.
    pub fn parts(&self, name: &'static str, operator: &mut Operator<'scope>) -> Parts {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(
            name.chars().all(fits) && !name.is_empty(),
            "invalid part name `{name}`: expected lower-case letters, digits and `_`"
        );
        let mut registered = self.registered.borrow_mut();
        let registered =
            registered.as_mut().expect("invariant: operators are registered before the commit");
        assert!(
            registered.iter().all(|&(other, _)| other != name),
            "part name `{name}` is already registered"
        );
        // The output follows from no input: parts are also written when nothing arrived, with the operator's own capability.
        let (output, stream) = operator.output(&schema::PARTS, &[]);
        registered.push((name, stream));
        let worker = u32::try_from(self.scope.index()).expect("invariant: workers are few");
        Parts::new(
            (name, worker),
            output,
            operator.waker(),
            operator.wait_handle(),
            self.writer.clone(),
        )
    }

    /// Installs the operator that commits complete snapshots. Call it once, after all operators have been [registered](Self::parts).
    ///
    /// # Panics
    /// If it was already called, on this value or on a clone.
    #[must_use]
    pub fn commit(self) -> Commits<'scope> {
        let registered = self.registered.take().expect("invariant: snapshots are committed once");
        let (names, streams): (Vec<_>, Vec<_>) = registered.into_iter().unzip();
        commit(self.scope.concatenate(streams), &names, &self.plan, self.writer)
    }
}
