//! A simplified interface for schedules with a pool of fresh prompts, one round at a time, and replacement of rejected prompts.
//!
//! Most built-in schedules implement [`RoundPolicy`]. It decides between two rounds which prompts the next round launches and how many of
//! them it admits. Everything inside a round follows from its [`Plan`]: launches, admissions, aborts, and the deferral of the rest. A type
//! that also implements `Serialize` and `Deserialize` is a [`Schedule`], whose snapshots are its serialized state.

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::fault::Origin;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::FinishReason;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::checked::Violation;
pub use super::plan::{KeptSamples, LeftoverPrompt, Order, Plan, PlannedPrompt, RoundRules};
pub use super::pool::Pool;
pub use super::prompt_store::{PromptStore, RoundShare};
pub use super::round::{OpenRound, Vacancy};
pub use super::rounds::{NextAction, Rounds};
use super::variance::ZeroVarianceFilter;
use super::{Decision, Event, Offer, Schedule};

/// The decisions of a schedule between two rounds. A type that also implements `Serialize` and `Deserialize` is a [`Schedule`].
///
/// # Contract
/// - [`next`](Self::next) depends only on the state, so that it returns the same value until an event changes the state.
/// - [`open`](Self::open) takes the prompts of its plan from the pool or from the prompts that earlier rounds left, and passes the plan to
///   [`Rounds::open`]. A plan has at least one prompt.
/// - [`close`](Self::close) stores the prompts that the round leaves, decides [`Defer`](Decision::Defer) for each of these prompts that was
///   launched, and passes the step to [`Rounds::close`]. If no round [remains](Rounds::remaining), it instead rejects each prompt that
///   any round launched, because a resumed run may have fewer steps. [`PromptStore::close`] does all of this.
/// - The serialized state contains everything that [`next`](Self::next) depends on. Maps have numbers or text as keys.
///
/// # Example
/// ```
/// use rollpacker_operators::schedule::round_policy::*;
/// use rollpacker_operators::schedule::testkit::{World, check_schedule};
/// use serde::{Deserialize, Serialize};
///
/// /// Launches 6 prompts with 2 responses each, trains on the first 4 to complete, and takes the others into the next round.
/// #[derive(Serialize, Deserialize)]
/// struct FirstFour {
///     store: PromptStore,
///     rounds: Rounds,
/// }
///
/// impl RoundPolicy for FirstFour {
///     type Upcoming = RoundShare;
///
///     fn rounds(&mut self) -> &mut Rounds {
///         &mut self.rounds
///     }
///
///     fn rounds_ref(&self) -> &Rounds {
///         &self.rounds
///     }
///
///     fn pool(&mut self) -> &mut Pool {
///         self.store.pool()
///     }
///
///     fn next(&self) -> NextAction<RoundShare> {
///         self.store.next(&self.rounds, 6, 4)
///     }
///
///     fn open(&mut self, share: RoundShare) {
///         self.rounds.open(Plan::new(share.epoch, self.store.take(share), 4, 2));
///     }
///
///     fn close(&mut self, round: OpenRound) {
///         self.store.close(round, &mut self.rounds);
///     }
/// }
///
/// let start = || FirstFour { store: PromptStore::default(), rounds: Rounds::new(None) };
/// let world = World::new(&[vec!["math".into(); 20]], 1);
/// check_schedule(start, &world).expect("it keeps the contract of a schedule");
/// ```
pub trait RoundPolicy {
    /// The description of the next round, which [`next`](Self::next) returns and [`open`](Self::open) receives.
    type Upcoming: PartialEq;

    /// Returns the state of the rounds: the steps that are due, the open round, and the decisions that were not polled yet.
    fn rounds(&mut self) -> &mut Rounds;

    /// Returns a shared reference to the state that [`rounds`](Self::rounds) returns.
    fn rounds_ref(&self) -> &Rounds;

    /// Returns the fresh prompts: prompts that were offered and not taken.
    fn pool(&mut self) -> &mut Pool;

    /// Returns the next action, assuming that the policy of the next round is published.
    fn next(&self) -> NextAction<Self::Upcoming>;

    /// Opens the round that `upcoming` describes. Called when [`next`](Self::next) returns [`Round`](NextAction::Round) and the policy of
    /// the round is published.
    fn open(&mut self, upcoming: Self::Upcoming);

    /// Closes a round that is complete: it admits no further group, and all its paused responses have ended.
    fn close(&mut self, round: OpenRound);

    /// Stores an offered prompt. The default puts all prompts into the lane `""` of the pool.
    fn offer(&mut self, Offer { prompt, epoch, .. }: Offer) {
        self.pool().put(epoch, &Default::default(), prompt);
    }

    /// Records that a response of `tokens` tokens ended. The default passes the end to the open round; schedules outside of this crate must
    /// keep the default.
    fn on_response(&mut self, id: SampleId, tokens: u32, reason: FinishReason) {
        self.rounds().on_response(id, tokens, reason);
    }

    /// Records the reward of a response; NaN if the response could not be scored. The default passes the reward to the open round;
    /// schedules outside of this crate must keep the default.
    fn on_score(&mut self, id: SampleId, score: f64) {
        self.rounds().on_score(id, score);
    }

    /// Returns the filter that rejects groups without reward variance, or `None`, the default, if the schedule does not use rewards. A
    /// schedule with a filter [wants scores](Schedule::wants_scores), and its plans must set [`RoundRules::filters`].
    fn filter(&self) -> Option<&ZeroVarianceFilter> {
        None
    }

    /// Returns the number of groups of a lane that a round admits, by which the filter limits the launches. A schedule with a
    /// [`filter`](Self::filter) must override the default, 0.
    fn quota(&self, lane: &str) -> usize {
        let _ = lane;
        0
    }

    /// Removes and returns a prompt of the schedule to replace a rejected prompt, in the lane and of the epoch of `vacancy`. A prompt of
    /// another lane ends the run with an error. `Prompts` waits for further prompts. `Finish`, the default, leaves the rejected prompt
    /// without replacement. Not called once the round has launched as many prompts as the filter allows.
    fn replacement(&mut self, vacancy: &Vacancy) -> NextAction<PlannedPrompt> {
        let _ = vacancy;
        NextAction::Finish
    }

    /// Returns `true` if a plan may set [`RoundRules::pauses`]. Default: `false`.
    fn pauses(&self) -> bool {
        false
    }

    /// Returns the maximum number of prompts of a round, without replacements for rejected prompts, and the number of responses launched
    /// for each. `None`, the default, states that a round launches only the responses that it trains on.
    fn round_size(&self) -> Option<(usize, u32)> {
        None
    }
}

/// Processes an event, and then takes every decision that has become possible.
fn deliver<P: RoundPolicy>(policy: &mut P, event: Event) {
    if policy.rounds().is_finished() {
        return;
    }
    match event {
        Event::Prompt(offer) => policy.offer(offer),
        Event::EndOfPrompts => policy.pool().end(),
        Event::Policy { step } => policy.rounds().on_policy(step),
        Event::Response { id, tokens, finish_reason } => {
            policy.on_response(id, tokens, finish_reason);
        }
        Event::Scored { id, score } => policy.on_score(id, score),
    }
    settle(policy);
}

/// Takes every decision that is possible now.
///
/// The order matters: rejected prompts are replaced before the round is tested for completion, because a replacement that is given up may
/// complete it. A completed round is closed before the next round is considered, because the next round depends on the prompts that the
/// completed round deferred.
fn settle<P: RoundPolicy>(policy: &mut P) {
    refill(policy);
    if let Some(round) = policy.rounds().take_decided() {
        policy.close(round);
    }
    if !policy.rounds().is_idle() {
        return;
    }
    match policy.next() {
        NextAction::Finish => policy.rounds().finish(),
        NextAction::Round(upcoming) if policy.rounds().is_due() => {
            let step = policy.rounds().upcoming();
            policy.open(upcoming);
            if !policy.rounds().has_opened(step) {
                policy.rounds().fail(Violation::NoPlan { step }.failure());
            }
        }
        NextAction::Round(_) | NextAction::Prompts => {}
    }
}

/// Replaces rejected prompts, as far as the filter's bound and the available prompts allow. Decides that the run fails if the bound leaves
/// too few groups and the filter is set to fail.
///
/// Lanes are served in their order: a lane that waits for prompts holds up the lanes after it. Otherwise the order of the launches would
/// depend on the number of prompts that were read ahead.
fn refill<P: RoundPolicy>(policy: &mut P) {
    while let Some(vacancy) = policy.rounds().vacancy() {
        let quota = policy.quota(&vacancy.lane);
        let bound = policy.filter().filter(|filter| !filter.allows(vacancy.prompts, quota));
        if let Some(message) = bound.and_then(|filter| filter.failure(&vacancy)) {
            return policy.rounds().fail(Decision::Fail { origin: Origin::User, message });
        }
        let next = match bound {
            Some(_) => NextAction::Finish,
            None => policy.replacement(&vacancy),
        };
        match next {
            NextAction::Prompts => return,
            NextAction::Round(PlannedPrompt { prompt, lane: found, .. })
                if found != vacancy.lane =>
            {
                let violation =
                    Violation::ReplacementLane { prompt, expected: vacancy.lane, found };
                return policy.rounds().fail(violation.failure());
            }
            NextAction::Round(planned) => policy.rounds().replace(planned),
            NextAction::Finish => policy.rounds().skip_replacement(&vacancy.lane),
        }
    }
}

impl<P: RoundPolicy + Serialize + DeserializeOwned> Schedule for P {
    fn on(&mut self, _now: Nanos, event: Event) {
        deliver(self, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.rounds().poll()
    }

    fn wants_prompts(&self) -> bool {
        let rounds = self.rounds_ref();
        rounds.vacancy().is_some() || (rounds.is_idle() && self.next() == NextAction::Prompts)
    }

    fn wants_scores(&self) -> bool {
        self.filter().is_some()
    }

    fn pauses(&self) -> bool {
        RoundPolicy::pauses(self)
    }

    fn round_size(&self) -> Option<(usize, u32)> {
        RoundPolicy::round_size(self)
    }

    fn is_out_of_steps(&self) -> bool {
        self.rounds_ref().remaining() == 0
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(
            serde_json::to_vec(self).expect("invariant: the keys of every map are numbers or text"),
        )
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let mut saved: P = serde_json::from_slice(saved)?;
        saved.rounds().reopen(self.rounds_ref());
        saved.pool().reopen();
        *self = saved;
        Ok(())
    }
}
