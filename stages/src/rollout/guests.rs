//! Guests: models that are not the actor's, run on the actor's instances between its iterations.
//!
//! The actor comes first. A guest has a share, in tokens: beside an iteration of the actor it may process as many, decoded and prefilled
//! ones together. What it does not use is kept only as far as its next iteration needs it, so that a prompt longer than the share comes to
//! its turn after some iterations; over any number of iterations a guest takes no more than its share of each. While the actor has
//! nothing to do a guest runs on, and the instance looks for the actor's commands between its iterations.
//!
//! Guests change when the actor's tokens are sampled, never which: nothing of the two is shared but the thread.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::Waker;
use super::counters::Counters;
use super::statistics::InstanceStatistics;

/// Tokens that a guest processes at least between two looks at the commands of an actor that has nothing to do.
const ALONE_TOKENS: usize = 512;

/// The models that wait for an engine to run on. A clone is a handle of the same list.
///
/// A model enters it when it is made; an engine that [hosts](super::torch::TorchEngine::host) the list runs all that are in it then.
#[derive(Clone, Default)]
pub struct Guests(Arc<Mutex<Vec<Weak<dyn Guest>>>>);

/// A model that can be run on the instances of an engine.
pub(crate) trait Guest: Send + Sync {
    /// A part of it to run on one instance, which `wake` has look for work; none if it cannot be split further, or has failed.
    fn tenant(&self, wake: Waker) -> Option<Box<dyn Tenant>>;

    /// Tokens that it may process beside an iteration of the actor; at least 1.
    fn share(&self) -> usize;
}

/// What runs on an instance besides its generator.
///
/// # Contract
/// Its faults are its own: it tells those who wait for it, has nothing to do from then on, and neither fails nor panics. Dropped, it
/// leaves what it has not done to others.
pub(crate) trait Tenant: Send {
    /// Tokens that its next iteration would take, were it given all it wants; 0 while it has nothing to do.
    fn wants(&mut self) -> usize;

    /// Runs an iteration of up to `most` tokens; how many it took. None if the least that it can do takes more.
    fn step(&mut self, most: usize) -> usize;
}

impl Guests {
    /// Whether nothing waits for an engine.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    /// Puts a model on the list, for as long as it is used.
    pub(crate) fn invite(&self, guest: Weak<dyn Guest>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(guest);
    }

    /// A part of each model for one instance.
    pub(super) fn lodgers(&self, wake: &Waker) -> Vec<Lodger> {
        let lodger = |guest: Arc<dyn Guest>| {
            Some(Lodger::new(guest.tenant(Arc::clone(wake))?, guest.share()))
        };
        self.all().into_iter().filter_map(lodger).collect()
    }

    fn all(&self) -> Vec<Arc<dyn Guest>> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|guest| guest.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A tenant of an instance, and what it may still take.
pub(crate) struct Lodger {
    tenant: Box<dyn Tenant>,
    share: usize,
    credit: usize,
}

impl Lodger {
    pub(crate) fn new(tenant: Box<dyn Tenant>, share: usize) -> Self {
        Self { tenant, share, credit: 0 }
    }

    pub(crate) fn is_idle(&mut self) -> bool {
        self.tenant.wants() == 0
    }

    /// Its turn beside an iteration of the actor; tokens that it took.
    pub(crate) fn beside_actor(&mut self) -> usize {
        let wants = self.tenant.wants();
        if wants == 0 {
            self.credit = 0;
            return 0;
        }
        self.credit = (self.credit + self.share).min(self.share.max(wants));
        let took = self.tenant.step(self.credit);
        self.credit = self.credit.saturating_sub(took);
        took
    }

    /// Its turn while the actor has nothing to do; tokens that it took.
    pub(crate) fn alone(&mut self) -> usize {
        match self.tenant.wants() {
            0 => 0,
            wants => self.tenant.step(wants.max(ALONE_TOKENS)),
        }
    }
}

/// What guests took of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestUse {
    /// Tokens that they processed, decoded and prefilled.
    pub tokens: u64,
    /// Time that they took beside iterations of the actor, in nanoseconds, summed over instances.
    pub beside_ns: u64,
    /// Time of the iterations of the actor itself, in nanoseconds, summed over instances.
    pub actor_ns: u64,
}

impl GuestUse {
    /// How much longer the actor took for its guests: `(actor + beside) / actor - 1`, where `actor` is the time of its iterations and
    /// `beside` that of the guests between them. 0 if it did not run. What a guest does while the actor has nothing to do does not
    /// count; a command of the actor that comes meanwhile waits for at most one iteration of it.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        if self.actor_ns == 0 { 0.0 } else { self.beside_ns as f64 / self.actor_ns as f64 }
    }
}

/// What the guests of a torch engine take, while it works; free to read from any thread.
#[derive(Clone, Debug)]
pub struct Hosting {
    instances: Vec<Arc<Counters>>,
    before: GuestUse,
}

impl Hosting {
    pub(super) fn new(instances: Vec<Arc<Counters>>) -> Self {
        Self { instances, before: GuestUse::default() }
    }

    /// Since the last call.
    pub fn take(&mut self) -> GuestUse {
        let sum = |of: fn(&InstanceStatistics) -> u64| -> u64 {
            self.instances.iter().map(|counters| of(&counters.read(0))).sum()
        };
        let now = GuestUse {
            tokens: sum(|instance| instance.guest_tokens),
            beside_ns: sum(|instance| instance.guest_ns),
            actor_ns: sum(|instance| instance.busy_ns),
        };
        let before = std::mem::replace(&mut self.before, now);
        GuestUse {
            tokens: now.tokens - before.tokens,
            beside_ns: now.beside_ns - before.beside_ns,
            actor_ns: now.actor_ns - before.actor_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Work in pieces that are done whole or not at all, and what was given for each step.
    struct Pieces(Vec<usize>, Arc<Mutex<Vec<usize>>>);

    impl Tenant for Pieces {
        fn wants(&mut self) -> usize {
            self.0.last().copied().unwrap_or(0)
        }

        fn step(&mut self, most: usize) -> usize {
            self.1.lock().unwrap().push(most);
            self.0.pop_if(|piece| *piece <= most).unwrap_or(0)
        }
    }

    fn lodger(pieces: &[usize], share: usize) -> (Lodger, Arc<Mutex<Vec<usize>>>) {
        let given = Arc::new(Mutex::new(Vec::new()));
        let pieces = pieces.iter().rev().copied().collect();
        (Lodger::new(Box::new(Pieces(pieces, Arc::clone(&given))), share), given)
    }

    #[test]
    fn a_long_piece_waits_until_its_share_has_come_together() {
        let (mut lodger, _) = lodger(&[10, 3, 3, 25], 10);
        let took: Vec<usize> = (0..8).map(|_| lodger.beside_actor()).collect();
        // What the short ones left over counts for the long one, as far as each needed it.
        assert_eq!(took, [10, 3, 3, 0, 25, 0, 0, 0]);
        assert!(lodger.is_idle());
    }

    #[test]
    fn alone_it_is_given_what_it_wants() {
        let (mut lodger, given) = lodger(&[3, 4000], 10);
        assert_eq!((lodger.alone(), lodger.alone(), lodger.alone()), (3, 4000, 0));
        assert_eq!(*given.lock().unwrap(), [ALONE_TOKENS, 4000]);
    }

    #[test]
    fn the_slowdown_is_the_guests_time_over_the_actors() {
        let used = GuestUse { tokens: 9, beside_ns: 30, actor_ns: 120 };
        assert_eq!(used.slowdown(), 0.25);
        assert_eq!(GuestUse { actor_ns: 0, ..used }.slowdown(), 0.0);
    }

    proptest! {
        #[test]
        fn over_any_iterations_a_guest_takes_no_more_than_its_share_of_each(
            pieces in prop::collection::vec(1..60usize, 1..40),
            share in 1..30usize,
        ) {
            let (mut lodger, _) = lodger(&pieces, share);
            let mut took = 0;
            for iteration in 1..3000 {
                took += lodger.beside_actor();
                prop_assert!(took <= iteration * share);
            }
            prop_assert_eq!(took, pieces.iter().sum::<usize>(), "all of it is done");
        }
    }
}
