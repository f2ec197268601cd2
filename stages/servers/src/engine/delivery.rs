//! The preparation of weights, and the delivery that brings servers into rotation.

use std::sync::Arc;

use rollpacker_dataflow::clock::Clock;
use rollpacker_stages::rollout::{Policy, RolloutError};

use super::config::ServersConfig;
use super::coordinator::{Coordinator, Message};
use super::delivery_task::{Delivered, Delivery, Fault, Progress, WeightDeliveryTask};
use super::member::MemberState;
use crate::vllm::protocol::PauseMode;
use crate::weights::{PublishedWeights, WeightRoot};

/// The factor by which the mean difference of the canary may grow since the first delivery before a warning is printed.
const MAX_DRIFT_FACTOR: f64 = 10.0;

pub(super) struct PendingLoad {
    pub(super) policy: Policy,
    pub(super) weights: Box<dyn PublishedWeights>,
}

impl Coordinator {
    /// Starts the preparation of weights on a thread for blocking work: writes the folder of the version and scores the canary. The result
    /// arrives as [`Message::Prepared`].
    pub(super) fn prepare(&mut self, load: PendingLoad) {
        self.loads += 1;
        self.wanted_version = load.policy.version;
        let (number, sender) = (self.loads, self.sender.clone());
        let (root, config, clock) =
            (self.root.clone(), Arc::clone(&self.config), Arc::clone(&self.clock));
        self.tasks.spawn_blocking(move || {
            let prepared = prepare(number, &load, &root, &config, &*clock);
            let _gone = sender.send(Message::Prepared(number, prepared));
        });
    }

    pub(super) fn on_prepared(
        &mut self,
        number: u64,
        prepared: Result<Arc<Delivery>, RolloutError>,
    ) {
        match prepared {
            Err(error) => self.fail(error),
            // Later weights are ready already, so these are delivered to no server.
            Ok(_) if self.latest.as_ref().is_some_and(|(latest, _)| *latest > number) => {}
            Ok(delivery) => {
                self.latest = Some((number, delivery));
                (0..self.members.len()).for_each(|server| self.advance(server));
            }
        }
    }

    /// Starts the delivery of the latest weights to a server, unless a delivery to the server runs or the server was excluded for these
    /// weights. A ready server that has the weights needs no delivery. With [`PauseMode::Wait`], the server first drains its running
    /// responses.
    pub(super) fn advance(&mut self, server: usize) {
        let Some((_, delivery)) = &self.latest else { return };
        let (delivery, wait) = (Arc::clone(delivery), self.config.pause == PauseMode::Wait);
        let member = &mut self.members[server];
        if member.is_delivering {
            return;
        }
        match &member.state {
            MemberState::Ready if member.has_weights_of(&delivery.policy) => {
                return self.record_if_loaded();
            }
            MemberState::Ready | MemberState::Draining if wait && !member.running.is_empty() => {
                member.state = MemberState::Draining;
                return;
            }
            MemberState::Excluded { salt, .. } if *salt == delivery.salt() => return,
            _ => {}
        }
        self.start_delivery(server, delivery);
    }

    fn start_delivery(&mut self, server: usize, delivery: Arc<Delivery>) {
        let member = &mut self.members[server];
        let is_suspect = matches!(member.state, MemberState::Suspect);
        let is_new = matches!(member.state, MemberState::Starting);
        // A server that failed, or that may still run requests of an earlier trainer, aborts its running requests.
        let mode = if is_suspect || is_new { PauseMode::Abort } else { self.config.pause };
        let task = WeightDeliveryTask {
            server: member.server.clone(),
            stall_detector: Arc::clone(&member.stall_detector),
            config: Arc::clone(&self.config),
            clock: Arc::clone(&self.clock),
            model: member.model.clone(),
            mode,
            verified: member.verified.clone(),
            had_weights: is_suspect && member.has_weights_of(&delivery.policy),
            delivery,
        };
        member.is_delivering = true;
        if !is_suspect {
            self.begin_load(server);
        }
        let (sender, breaker) = (self.sender.clone(), self.members[server].breaker.clone());
        self.tasks.spawn(async move {
            if is_suspect {
                breaker.wait_until_permitted().await;
            }
            let report = |progress| drop(sender.send(Message::Progress(server, progress)));
            let result = task.run(report).await;
            let _gone = sender.send(Message::Delivered(server, task.delivery.salt(), result));
        });
    }

    fn begin_load(&mut self, server: usize) {
        self.members[server].state = MemberState::Loading;
        for id in &self.members[server].running {
            let call = self.responses.get_mut(id).and_then(|response| response.call.as_mut());
            if let Some(call) = call {
                call.mark_load_started();
            }
        }
    }

    pub(super) fn on_progress(&mut self, server: usize, progress: Progress) {
        match progress {
            Progress::LoadStarted => self.begin_load(server),
            Progress::CanaryFailed(figures) => {
                let name = self.members[server].server.name();
                tracing::warn!(server = name, %figures, "the canary failed; loading the weights again");
                let measurements = &self.output.shared.measurements;
                measurements.record_canary(&figures);
                measurements.update(|reading| reading.canary_reloads += 1);
                self.cancel_calls(server);
            }
        }
    }

    pub(super) fn on_delivered(
        &mut self,
        server: usize,
        salt: String,
        result: Result<Delivered, Fault>,
    ) {
        self.members[server].is_delivering = false;
        match result {
            Ok(delivered) => self.rejoin(server, delivered),
            Err(Fault::Folder(error)) => self.fail(self.load_error(error.to_string())),
            Err(fault) => {
                self.cancel_calls(server);
                self.exclude(server, salt, fault);
            }
        }
        self.advance(server);
        self.dispatch();
    }

    fn rejoin(&mut self, server: usize, delivered: Delivered) {
        let member = &mut self.members[server];
        let name = member.server.name();
        if member.is_lost && member.failures > 0 {
            tracing::warn!(server = name, "an inference server is back in rotation");
        }
        tracing::debug!(server = name, figures = %delivered.figures, "a server has the weights");
        let first = *member.first_difference.get_or_insert(delivered.figures.mean);
        if delivered.figures.has_grown(MAX_DRIFT_FACTOR, first)
            && !std::mem::replace(&mut member.has_drifted, true)
        {
            tracing::warn!(
                server = name,
                figures = %delivered.figures,
                "the canary has drifted since the first delivery: the server may not load all of the weights"
            );
        }
        member.state = MemberState::Ready;
        member.is_lost = false;
        member.verified = Some(delivered.verified);
        // The breaker is reset when a response ends, not here: a server that fails only when it generates must not be retried without
        // delay.
        member.failures = 0;
        member.policy = Some(delivered.policy);
        let measurements = &self.output.shared.measurements;
        measurements.record_canary(&delivered.figures);
        measurements.record_phases(delivered.phases);
        self.count_servers();
        self.complete_unverified(server);
        self.record_if_loaded();
    }

    fn exclude(&mut self, server: usize, salt: String, fault: Fault) {
        let member = &mut self.members[server];
        let name = member.server.name();
        self.last_fault = Some(fault.to_string());
        member.breaker.record_failure();
        member.failures += 1;
        if member.is_lost {
            tracing::debug!(server = name, %fault, "an inference server stays out of rotation");
        } else {
            tracing::warn!(server = name, %fault, "an inference server is out of rotation");
        }
        self.count_lost(server);
        let member = &mut self.members[server];
        member.state = match fault {
            Fault::Canary { .. } => MemberState::Excluded { salt, fault },
            _ => MemberState::Suspect,
        };
    }

    /// Records a failed call. A server that is ready or drains leaves the rotation until it answers and has the latest weights; the state
    /// of any other server stays the same.
    pub(super) fn mark_suspect(&mut self, server: usize, fault: String) {
        let member = &mut self.members[server];
        member.breaker.record_failure();
        let is_in_rotation = matches!(member.state, MemberState::Ready | MemberState::Draining);
        // One line per failure of a server, not one per response.
        if is_in_rotation {
            tracing::warn!(
                fault,
                "a call to an inference server failed; responses go on elsewhere"
            );
        } else {
            tracing::debug!(fault, "a call to an inference server failed");
        }
        self.last_fault = Some(fault);
        self.output.shared.measurements.update(|reading| reading.server_errors += 1);
        if is_in_rotation {
            self.members[server].state = MemberState::Suspect;
            self.count_lost(server);
            self.advance(server);
        }
    }

    /// Counts a server that leaves the rotation because of a fault. A server that is already lost is not counted again.
    fn count_lost(&mut self, server: usize) {
        if !std::mem::replace(&mut self.members[server].is_lost, true) {
            self.output.shared.measurements.update(|reading| reading.servers_lost += 1);
        }
        self.count_servers();
    }

    fn count_servers(&self) {
        let servers = self.members.iter().filter(|member| member.is_in_rotation()).count();
        self.output.shared.measurements.update(|reading| reading.servers_ready = servers as u64);
    }

    /// Records the present time if at least one server is available, and every available server is ready with the wanted version.
    fn record_if_loaded(&self) {
        let has = |version| version == Some(self.wanted_version);
        let in_rotation = || self.members.iter().filter(|member| !member.is_unavailable());
        let all = in_rotation().all(|member| member.is_ready() && has(member.version()));
        if all && in_rotation().next().is_some() {
            self.output.shared.set_loaded(self.wanted_version, self.clock.now());
        }
    }

    /// Returns an error if every server is excluded because it does not use the weights that it was given; `None` otherwise.
    pub(super) fn error_if_all_excluded(&self) -> Option<RolloutError> {
        let faults = self.members.iter().map(|member| match &member.state {
            MemberState::Excluded { fault, .. } => Some(fault.to_string()),
            _ => None,
        });
        let faults: Vec<String> = faults.collect::<Option<_>>()?;
        Some(self.load_error(faults.join("; ")))
    }

    fn load_error(&self, reason: String) -> RolloutError {
        let policy = self.latest.as_ref().map(|(_, delivery)| delivery);
        let location = policy.map_or_else(String::new, |delivery| {
            delivery.folder.path().to_string_lossy().into_owned()
        });
        RolloutError::Load { version: self.wanted_version, location, reason }
    }
}

/// Writes the folder of a version and scores the canary.
fn prepare(
    number: u64,
    load: &PendingLoad,
    root: &WeightRoot,
    config: &ServersConfig,
    clock: &dyn Clock,
) -> Result<Arc<Delivery>, RolloutError> {
    let PendingLoad { policy, weights } = load;
    let failed = |reason: String| RolloutError::Load {
        version: policy.version,
        location: policy.location.clone(),
        reason,
    };
    let begin = clock.now();
    let folder =
        root.write(policy, number, &**weights).map_err(|error| failed(error.to_string()))?;
    let tokens = &config.canary.tokens;
    let reference = weights.score(tokens).map_err(failed)?;
    if reference.len() + 1 != tokens.len() || !reference.iter().all(|score| score.is_finite()) {
        return Err(failed(format!(
            "the trainer's scores of the canary: expected {} finite log-probabilities, found {reference:?}",
            tokens.len() - 1
        )));
    }
    let write = clock.now().since(begin);
    Ok(Arc::new(Delivery { policy: policy.clone(), folder, reference: reference.into(), write }))
}
