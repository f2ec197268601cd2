//! A server as a member of the rotation.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_stages::rollout::Policy;
use tokio::time::Instant;

use super::cache_estimate::CacheEstimate;
use super::delivery_task::Fault;
use crate::breaker::Breaker;
use crate::canary::VerifiedDelivery;
use crate::server::{Limits, Outcome, Server, StallDetector};
use crate::weights::salt;

#[derive(Clone, Debug)]
pub(super) enum MemberState {
    /// The server waits for the first weights.
    Starting,
    /// The server takes responses.
    Ready,
    /// The server takes no more responses, and loads weights when its running responses have ended.
    Draining,
    Loading,
    /// A call or a delivery failed, or the server did not answer at the start of the engine. The server takes responses again when it
    /// answers and has the weights.
    Suspect,
    /// The server does not use the weights that it was given. It stays out of rotation until other weights are delivered.
    Excluded {
        /// The salt of the weights that the server does not use.
        salt: String,
        fault: Fault,
    },
}

pub(super) struct Member {
    pub(super) server: Server,
    /// The expected name of the model.
    pub(super) model: String,
    pub(super) stall_detector: Arc<StallDetector>,
    pub(super) breaker: Breaker,
    pub(super) state: MemberState,
    /// The policy of the last delivery for which the canary passed; `None` before the first, and after a response with a wrong version.
    pub(super) policy: Option<Policy>,
    /// The scores of the last delivery for which the canary passed; `None` before the first.
    pub(super) verified: Option<VerifiedDelivery>,
    /// The mean difference of the canary after the first delivery, in nats; `None` before the first delivery.
    pub(super) first_difference: Option<f64>,
    /// `true` once the drift of the canary was reported.
    pub(super) has_drifted: bool,
    /// The responses with a call to the server.
    pub(super) running: BTreeSet<SampleId>,
    /// Tokens of the running responses and their prompts.
    pub(super) load: u64,
    pub(super) cache: CacheEstimate,
    /// The earliest time of the next call after the server was busy; `None` if it has refused no call.
    pub(super) not_before: Option<Instant>,
    /// The number of consecutive failed attempts to bring the server into rotation.
    pub(super) failures: u32,
    /// `true` after a fault, or if the server did not answer at the start of the engine, until a delivery to the server has passed the
    /// canary.
    pub(super) is_lost: bool,
    /// `true` while an attempt to bring the server into rotation runs.
    pub(super) is_delivering: bool,
    /// Responses that ended with tokens of weights for which the canary has not passed yet, with the numbers and outcomes of their calls.
    pub(super) unverified: Vec<(SampleId, u64, Outcome)>,
}

impl Member {
    pub(super) fn new(server: Server, model: String, limits: Limits) -> Self {
        Self {
            server,
            model,
            stall_detector: Arc::new(StallDetector::new(limits)),
            breaker: Breaker::default(),
            state: MemberState::Starting,
            policy: None,
            verified: None,
            first_difference: None,
            has_drifted: false,
            running: BTreeSet::new(),
            load: 0,
            cache: CacheEstimate::default(),
            not_before: None,
            failures: 0,
            is_lost: false,
            is_delivering: false,
            unverified: Vec::new(),
        }
    }

    pub(super) fn version(&self) -> Option<PolicyVersion> {
        self.policy.as_ref().map(|policy| policy.version)
    }

    /// Returns `true` if the server's last verified weights are the weights of `policy`.
    pub(super) fn has_weights_of(&self, policy: &Policy) -> bool {
        self.policy.as_ref().is_some_and(|own| salt(own) == salt(policy))
    }

    pub(super) fn is_ready(&self) -> bool {
        matches!(self.state, MemberState::Ready)
    }

    /// Returns `true` if the server is in rotation: it has verified weights, and no fault has taken it out of rotation since the last
    /// delivery. A server that loads new weights stays in rotation, unless it left the rotation before the load.
    pub(super) fn is_in_rotation(&self) -> bool {
        !self.is_lost && self.policy.is_some()
    }

    /// Returns `true` if the server is neither in rotation nor about to join it. A server that loads weights after two or more failures in
    /// a row does not count as about to join.
    pub(super) fn is_unavailable(&self) -> bool {
        match self.state {
            MemberState::Suspect | MemberState::Excluded { .. } => true,
            MemberState::Loading => self.failures > 1,
            MemberState::Starting | MemberState::Ready | MemberState::Draining => false,
        }
    }

    /// Starts no call to the busy server before `time`, or a later time that the server has stated before.
    pub(super) fn postpone(&mut self, time: Instant) {
        self.not_before = self.not_before.max(Some(time));
    }

    /// Returns `true` if the server can start a response at the time `now`: it is ready, its policy version is at least `min_version`, it
    /// runs fewer than `max` responses, and it is not busy.
    pub(super) fn accepts(&self, min_version: PolicyVersion, max: usize, now: Instant) -> bool {
        self.is_ready()
            && self.version() >= Some(min_version)
            && self.running.len() < max
            && self.not_before.is_none_or(|time| time <= now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::http::Endpoint;
    use crate::server::Protocol;

    #[test]
    fn a_busy_server_is_not_called_before_the_latest_time_that_it_stated() {
        let endpoint = Endpoint::new("http://127.0.0.1:1", None).expect("a valid URL");
        let server = Server::new(Protocol::Vllm, endpoint, Limits::default());
        let mut member = Member::new(server, "m".to_owned(), Limits::default());
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        member.postpone(later);
        member.postpone(now);
        assert_eq!(member.not_before, Some(later));
    }
}
