//! Colocated models: models other than the actor that run on the actor's instances between its iterations.
//!
//! The actor has priority. A colocated model has a share: the number of tokens, decoded and prefilled together, that it may process on an
//! instance after each iteration of the actor. Unused tokens are saved only as far as the colocated model's next iteration needs them, so
//! that a prompt longer than the share runs after some iterations. Averaged over all iterations of the actor so far, a colocated model
//! takes no more than its share per iteration. While the actor is idle, colocated models keep running, and the instance checks for commands
//! after one iteration of each of them.
//!
//! Actor and colocated models share only threads, so colocated models affect when the actor's tokens are sampled. In deterministic mode
//! they do not affect which tokens are sampled. In other modes they may, because the last bits of logits depend on which responses are
//! computed together.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Waker;
use super::counters::Counters;
use super::statistics::InstanceStatistics;

/// Number of tokens that a colocated model may process in an iteration while the actor is idle. An iteration that needs more tokens gets as
/// many as it needs.
const ALONE_TOKENS: usize = 512;

/// A list of models that an engine can run on its instances. A clone is a handle to the same list.
///
/// [`TorchChat::register_in`](crate::judge::TorchChat::register_in) adds a model. [`TorchEngine::colocate`](super::TorchEngine::colocate)
/// runs the models that are in the list at the time of the call. An instance that is placed later runs the models that are in the list when
/// it is placed.
#[derive(Clone, Default)]
pub struct ColocatedModels(Arc<Mutex<Vec<Weak<dyn ColocatedModel>>>>);

/// A model that can be run on the instances of an engine.
pub(crate) trait ColocatedModel: Send + Sync {
    /// Returns a workload that runs the model on the instance with the number `instance`, from 0. The model calls `wake` when there may be
    /// work for the workload. Returns `None` if the model cannot run on this instance, or the workload cannot be created.
    fn workload(&self, wake: Waker, instance: u32) -> Option<Box<dyn ColocatedWorkload>>;

    /// Returns the number of tokens that the colocated model may process on an instance after each iteration of the actor, on average; at
    /// least 1.
    fn share(&self) -> usize;
}

/// A workload that runs on an instance in addition to its generator.
///
/// # Contract
/// A workload handles its own errors: it reports them to its callers, has no work from then on, and neither returns an error nor panics.
/// When it is dropped, its unfinished work returns to the model, which continues it elsewhere.
pub(crate) trait ColocatedWorkload: Send {
    /// Returns the number of tokens that an iteration needs to advance the work in progress, or to begin the next work; 0 if there is no
    /// work. An iteration with a larger limit may process more.
    fn pending_tokens(&mut self) -> usize;

    /// Runs an iteration of at most `max` tokens and returns the number of tokens processed. Does nothing if the smallest possible
    /// iteration is larger.
    fn step(&mut self, max: usize) -> usize;
}

impl ColocatedModels {
    /// Returns `true` if the list has no models. Models that were dropped do not count.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Adds a model to the list. The list does not keep the model alive.
    pub(crate) fn add(&self, model: Weak<dyn ColocatedModel>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(model);
    }

    /// Returns a workload of each model for one instance. Models that return no workload are left out.
    pub(super) fn workloads(&self, wake: &Waker, instance: u32) -> Vec<BudgetedWorkload> {
        let workload = |model: Arc<dyn ColocatedModel>| {
            Some(BudgetedWorkload::new(model.workload(Arc::clone(wake), instance)?, model.share()))
        };
        self.all().into_iter().filter_map(workload).collect()
    }

    fn all(&self) -> Vec<Arc<dyn ColocatedModel>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|model| model.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A workload of an instance, with the share of its model and the tokens that were saved for its next iteration.
pub(crate) struct BudgetedWorkload {
    workload: Box<dyn ColocatedWorkload>,
    share: usize,
    credit: usize,
}

impl BudgetedWorkload {
    pub(crate) fn new(workload: Box<dyn ColocatedWorkload>, share: usize) -> Self {
        Self { workload, share, credit: 0 }
    }

    pub(crate) fn is_idle(&mut self) -> bool {
        self.workload.pending_tokens() == 0
    }

    /// Runs the workload after an iteration of the actor, within the share and the tokens saved so far. Returns the number of tokens
    /// processed. Discards the saved tokens if there is no work.
    pub(crate) fn step_with_actor(&mut self) -> usize {
        let pending_tokens = self.workload.pending_tokens();
        if pending_tokens == 0 {
            self.credit = 0;
            return 0;
        }
        // Save unused tokens up to what the next iteration needs. Without this cap, a colocated model with little work could save many
        // tokens and then delay the actor by using all of them at once.
        self.credit = (self.credit + self.share).min(self.share.max(pending_tokens));
        let took = self.workload.step(self.credit);
        self.credit = self.credit.saturating_sub(took);
        took
    }

    /// Runs the workload while the actor is idle. Returns the number of tokens processed.
    pub(crate) fn step_alone(&mut self) -> usize {
        match self.workload.pending_tokens() {
            0 => 0,
            pending_tokens => self.workload.step(pending_tokens.max(ALONE_TOKENS)),
        }
    }
}

/// The resources that the colocated models of an engine used in a period, and the time of the actor in this period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ColocatedUse {
    /// Number of tokens processed, decoded and prefilled, including tokens that were processed while the actor was idle.
    pub tokens: u64,
    /// Time that colocated models took between iterations of the actor, in nanoseconds, summed over instances.
    pub colocated_ns: u64,
    /// Time of the actor's own iterations, in nanoseconds, summed over instances.
    pub actor_ns: u64,
}

impl ColocatedUse {
    /// Returns the slowdown of the actor by its colocated models: the time of the colocated models between the actor's iterations, divided
    /// by the time of these iterations.
    ///
    /// Returns 0 if the actor did not run. Work of colocated models while the actor is idle does not count; a command that arrives
    /// meanwhile waits for at most one iteration of each colocated model.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        if self.actor_ns == 0 { 0.0 } else { self.colocated_ns as f64 / self.actor_ns as f64 }
    }
}

/// Measures the tokens and the time that the colocated models of a torch engine use. It may be moved to another thread and read while the
/// engine runs. A clone starts from the last reading of the original and is read independently.
#[derive(Clone, Debug)]
pub struct ColocatedUseMeter {
    instances: Vec<Arc<Counters>>,
    before: ColocatedUse,
}

impl ColocatedUseMeter {
    pub(super) fn new(instances: Vec<Arc<Counters>>) -> Self {
        Self { instances, before: ColocatedUse::default() }
    }

    /// Returns the usage since the last call on this meter, or since the engine started if this is the first call.
    pub fn take(&mut self) -> ColocatedUse {
        let sum = |of: fn(&InstanceStatistics) -> u64| -> u64 {
            self.instances.iter().map(|counters| of(&counters.read(0))).sum()
        };
        let now = ColocatedUse {
            tokens: sum(|instance| instance.colocated_tokens),
            colocated_ns: sum(|instance| instance.colocated_ns),
            actor_ns: sum(|instance| instance.busy_ns),
        };
        let before = std::mem::replace(&mut self.before, now);
        ColocatedUse {
            tokens: now.tokens - before.tokens,
            colocated_ns: now.colocated_ns - before.colocated_ns,
            actor_ns: now.actor_ns - before.actor_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A workload of indivisible pieces, and the limits of the steps that were run.
    struct Pieces(Vec<usize>, Arc<Mutex<Vec<usize>>>);

    impl ColocatedWorkload for Pieces {
        fn pending_tokens(&mut self) -> usize {
            self.0.last().copied().unwrap_or(0)
        }

        fn step(&mut self, max: usize) -> usize {
            self.1.lock().unwrap().push(max);
            self.0.pop_if(|piece| *piece <= max).unwrap_or(0)
        }
    }

    fn workload(pieces: &[usize], share: usize) -> (BudgetedWorkload, Arc<Mutex<Vec<usize>>>) {
        let given = Arc::new(Mutex::new(Vec::new()));
        let pieces = pieces.iter().rev().copied().collect();
        (BudgetedWorkload::new(Box::new(Pieces(pieces, Arc::clone(&given))), share), given)
    }

    #[test]
    fn a_long_piece_waits_until_its_share_has_accumulated() {
        let (mut workload, _) = workload(&[10, 3, 3, 25], 10);
        let took: Vec<usize> = (0..8).map(|_| workload.step_with_actor()).collect();
        // The tokens that the short pieces do not use count towards the long piece, up to the share.
        assert_eq!(took, [10, 3, 3, 0, 25, 0, 0, 0]);
        assert!(workload.is_idle());
    }

    #[test]
    fn without_the_actor_a_workload_gets_all_its_tokens() {
        let (mut workload, given) = workload(&[3, 4000], 10);
        assert_eq!(
            (workload.step_alone(), workload.step_alone(), workload.step_alone()),
            (3, 4000, 0)
        );
        assert_eq!(*given.lock().unwrap(), [ALONE_TOKENS, 4000]);
    }

    #[test]
    fn the_slowdown_is_the_colocated_time_over_the_actors() {
        let used = ColocatedUse { tokens: 9, colocated_ns: 30, actor_ns: 120 };
        assert_eq!(used.slowdown(), 0.25);
        assert_eq!(ColocatedUse { actor_ns: 0, ..used }.slowdown(), 0.0);
    }

    proptest! {
        #[test]
        fn a_workload_takes_at_most_its_share_over_any_iterations(
            pieces in prop::collection::vec(1..60usize, 1..40),
            share in 1..30usize,
        ) {
            let (mut workload, _) = workload(&pieces, share);
            let mut took = 0;
            for iteration in 1..3000 {
                took += workload.step_with_actor();
                prop_assert!(took <= iteration * share);
            }
            prop_assert_eq!(took, pieces.iter().sum::<usize>(), "all pieces are processed");
        }
    }
}
