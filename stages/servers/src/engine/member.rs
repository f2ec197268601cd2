//! A server as a member of the rotation.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_stages::rollout::Policy;
use tokio::time::Instant;

use super::cache_room::CacheRoom;
use super::delivery_task::Fault;
use crate::breaker::Breaker;
use crate::canary::Proven;
use crate::server::{Limits, Outcome, Pulse, Server};
use crate::weights::salt;

/// The state of a server.
#[derive(Clone, Debug)]
pub(super) enum MemberState {
    /// The server waits for the first weights.
    Starting,
    /// The server takes responses.
    Ready,
    /// The server takes no more responses, and loads weights when its running ones have ended.
    Draining,
    /// The server loads weights.
    Loading,
    /// A call failed. The server takes responses again when it answers and has the weights.
    Suspect,
    /// The server does not use these weights. The next ones are delivered to it again.
    Out {
        /// The salt of the weights.
        salt: String,
        fault: Fault,
    },
}

/// A server as a member of the rotation.
pub(super) struct Member {
    pub(super) server: Server,
    /// The expected name of the model.
    pub(super) model: String,
    pub(super) pulse: Arc<Pulse>,
    pub(super) breaker: Breaker,
    pub(super) state: MemberState,
    /// The weights of the last delivery that passed.
    pub(super) policy: Option<Policy>,
    pub(super) proven: Option<Proven>,
    /// The mean difference of the canary after the first delivery, in nats.
    pub(super) first_difference: Option<f64>,
    /// `true` once the drift of the canary was reported.
    pub(super) has_drifted: bool,
    pub(super) running: BTreeSet<SampleId>,
    /// Tokens of the running responses and their prompts.
    pub(super) load: u64,
    pub(super) room: CacheRoom,
    /// The earliest time of the next call, while the server is busy.
    pub(super) not_before: Option<Instant>,
    /// The number of consecutive failed attempts to bring the server into rotation.
    pub(super) failures: u32,
    /// `true` after a fault, until the server has weights again that the canary has proven.
    pub(super) is_lost: bool,
    /// `true` while an attempt to bring the server into rotation runs.
    pub(super) is_delivering: bool,
    /// Responses that ended with tokens of weights that the canary has not proven yet.
    pub(super) unproven: Vec<(SampleId, u64, Outcome)>,
}

impl Member {
    pub(super) fn new(server: Server, model: String, limits: Limits) -> Self {
        Self {
            server,
            model,
            pulse: Arc::new(Pulse::new(limits)),
            breaker: Breaker::default(),
            state: MemberState::Starting,
            policy: None,
            proven: None,
            first_difference: None,
            has_drifted: false,
            running: BTreeSet::new(),
            load: 0,
            room: CacheRoom::default(),
            not_before: None,
            failures: 0,
            is_lost: false,
            is_delivering: false,
            unproven: Vec::new(),
        }
    }

    pub(super) fn version(&self) -> Option<PolicyVersion> {
        self.policy.as_ref().map(|policy| policy.version)
    }

    /// Returns `true` if the server's last weights are those of `policy`.
    pub(super) fn has(&self, policy: &Policy) -> bool {
        self.policy.as_ref().is_some_and(|own| salt(own) == salt(policy))
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, MemberState::Ready)
    }

    /// Returns `true` if the server is in rotation. A server that loads new weights stays in rotation, unless it had left it before.
    pub(super) fn is_in_rotation(&self) -> bool {
        !self.is_lost && self.policy.is_some()
    }

    /// Returns `true` if the server is neither in rotation nor on the way to it. A server that failed to load more than once in a row is
    /// not on the way.
    pub(super) fn is_gone(&self) -> bool {
        match self.state {
            MemberState::Suspect | MemberState::Out { .. } => true,
            MemberState::Loading => self.failures > 1,
            MemberState::Starting | MemberState::Ready | MemberState::Draining => false,
        }
    }

    /// Returns `true` if the server can start a response of a policy not older than `oldest`.
    pub(super) fn takes(&self, oldest: PolicyVersion, most: usize, now: Instant) -> bool {
        self.is_ready()
            && self.version() >= Some(oldest)
            && self.running.len() < most
            && self.not_before.is_none_or(|time| time <= now)
    }
}
