//! The measurements of an engine, for the metrics of a step.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollpacker_dataflow::clock::Nanos;

use crate::canary::CanaryFigures;

/// Access to the measurements of a running engine. Clones share the measurements.
#[derive(Clone, Default)]
pub struct Measurements {
    reading: Arc<Mutex<Reading>>,
}

/// The measurements since the previous reading.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The maximum of [`CanaryFigures::kl`] over the canaries that passed or that caused a reload (`rollout/canary_kl`); `None` if there
    /// were none.
    pub canary_kl: Option<f64>,
    /// The maximum of [`CanaryFigures::max`] over the canaries that passed or that caused a reload (`rollout/canary_max`); `None` if there
    /// were none.
    pub canary_max: Option<f64>,
    /// The maximum time of each phase over all deliveries that succeeded. The servers load at the same time.
    pub phases: Phases,
    /// Number of deliveries that were repeated because the canary failed (`rollout/canary_reloads`).
    pub canary_reloads: u64,
    /// Number of times that a response had to continue on another server, or again on the same server, after a fault or a failed canary
    /// (`rollout/moved_responses`).
    pub moved_responses: u64,
    /// Number of sampled tokens that were discarded, because their weights are unknown or wrong or the server's answer was invalid
    /// (`rollout/server_discarded_tokens`).
    pub discarded_tokens: u64,
    /// Number of generation calls that failed, returned tokens of wrong weights, or were refused by a busy server
    /// (`rollout/server_errors`).
    pub server_errors: u64,
    /// Number of times that a server left the rotation, or failed in its first delivery, because of a fault (`rollout/servers_lost`).
    /// Further faults before the server is back in rotation are not counted.
    pub servers_lost: u64,
    /// The number of servers in rotation at the time of the reading (`rollout/servers_ready`). A server that loads new weights is in
    /// rotation, unless it left the rotation before the load.
    pub servers_ready: u64,
}

/// The times of the phases of a delivery (`timing_s/weight_sync/...`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// Time to write the folder and its checksum, and to score the canary with the trainer's weights (`write`).
    pub write: Nanos,
    /// Time to pause the server, with the wait for running responses in the mode `wait` (`pause`).
    pub pause: Nanos,
    /// Time to load the weights (`load`).
    pub load: Nanos,
    /// Time to label the weights and to resume the server (`resume`).
    pub resume: Nanos,
    /// Time to score the canary with the server's weights (`canary`).
    pub canary: Nanos,
}

impl Phases {
    fn merge_max(&mut self, other: Self) {
        self.write = self.write.max(other.write);
        self.pause = self.pause.max(other.pause);
        self.load = self.load.max(other.load);
        self.resume = self.resume.max(other.resume);
        self.canary = self.canary.max(other.canary);
    }
}

impl Reading {
    /// Returns the measurements with the names of their metrics. The metrics of the canary and of the phases are left out if no canary was
    /// recorded.
    #[must_use]
    pub fn metrics(&self) -> Vec<(&'static str, f64)> {
        let mut metrics = vec![
            ("rollout/canary_reloads", self.canary_reloads as f64),
            ("rollout/moved_responses", self.moved_responses as f64),
            ("rollout/server_discarded_tokens", self.discarded_tokens as f64),
            ("rollout/server_errors", self.server_errors as f64),
            ("rollout/servers_lost", self.servers_lost as f64),
            ("rollout/servers_ready", self.servers_ready as f64),
        ];
        if let Some((kl, max)) = self.canary_kl.zip(self.canary_max) {
            let Phases { write, pause, load, resume, canary } = self.phases;
            metrics.extend([("rollout/canary_kl", kl), ("rollout/canary_max", max)]);
            metrics.extend([
                ("timing_s/weight_sync/write", write.as_secs_f64()),
                ("timing_s/weight_sync/pause", pause.as_secs_f64()),
                ("timing_s/weight_sync/load", load.as_secs_f64()),
                ("timing_s/weight_sync/resume", resume.as_secs_f64()),
                ("timing_s/weight_sync/canary", canary.as_secs_f64()),
            ]);
        }
        metrics
    }
}

impl Measurements {
    /// Returns the measurements since the last call of this method on any clone.
    #[must_use]
    pub fn take(&self) -> Reading {
        let mut reading = self.lock();
        let servers_ready = reading.servers_ready;
        std::mem::replace(&mut *reading, Reading { servers_ready, ..Reading::default() })
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut Reading)) {
        change(&mut self.lock());
    }

    pub(super) fn record_phases(&self, phases: Phases) {
        self.update(|reading| reading.phases.merge_max(phases));
    }

    pub(super) fn record_canary(&self, figures: &CanaryFigures) {
        self.update(|reading| {
            reading.canary_kl = Some(reading.canary_kl.unwrap_or(0.0).max(figures.kl));
            reading.canary_max = Some(reading.canary_max.unwrap_or(0.0).max(figures.max));
        });
    }

    fn lock(&self) -> MutexGuard<'_, Reading> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
