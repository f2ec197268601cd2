//! The timeline of a run: when each response was generated and scored, and how each step spent its time.
//!
//! A timeline comes from the reports of a simulated run ([`TimelineStep::of`]) or from the run folder of a live run. [`chrome`] writes it
//! in the Chrome trace format, which Perfetto reads.

pub mod chrome;
pub mod continuations;
mod report;
mod slots;

use rollpacker_dataflow::clock::Nanos;

/// An interval, as start and end. The end is not before the start.
pub type Interval = (Nanos, Nanos);

/// A step of a timeline. All times have the same origin.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimelineStep {
    /// The number of the step, from 1.
    pub step: u64,
    /// The kind of the round, such as `full`, `short` or `long`.
    pub round: String,
    /// The stages of the step by name, one after the other, without the time that overlaps with the previous step.
    pub stages: Vec<(&'static str, Interval)>,
    /// The interval of the validation after the step; `None` if there was none.
    pub validation: Option<Interval>,
    /// The intervals in which the trainer computed, in order; empty if they were not recorded.
    pub training: Vec<Interval>,
    /// The responses that ended or were paused in the step.
    pub responses: Vec<TimelineResponse>,
}

/// A response on a timeline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TimelineResponse {
    /// The id of the prompt.
    pub prompt: u64,
    /// The index of the response in its group, from 0.
    pub sample: u32,
    /// The index of the engine instance, from 0.
    pub instance: u32,
    /// The time from the start of the response to its last token. `None` for a response that an earlier step kept whole.
    pub rollout: Option<Interval>,
    /// The time in which the response was scored. `None` for responses that were not trained on in the step.
    pub scoring: Option<Interval>,
    /// The length of the response in tokens, including the tokens that earlier steps sampled.
    pub tokens: u32,
    /// The number of tokens that earlier steps sampled.
    pub resumed: u32,
    /// The reason why the response ended or was paused, such as `stop`, `abort` or `pause`.
    pub finish_reason: String,
    /// `true` if the response was trained on, in the step itself or in a later step. Only steps that
    /// [`Continuations`](continuations::Continuations) completed take later steps into account.
    pub trained: bool,
    /// The score, if the response was trained on.
    pub score: Option<f64>,
}

/// The names of the stages of a step, each with the metric that contains the duration of the stage in seconds.
const STAGES: [(&str, &str); 4] = [
    ("weight sync", "timing_s/weight_sync"),
    ("rollout", "timing_s/rollout"),
    ("reward", "timing_s/reward_exposed"),
    ("training", "timing_s/training_exposed"),
];

impl TimelineStep {
    /// Sets the stages and the validation of the step from its metrics. `closed` is the time at which the step and its validation were
    /// complete, and `metric` returns a metric by name. A missing metric counts as 0, and stages without duration are left out.
    #[must_use]
    pub fn with_stages(self, closed: Nanos, metric: impl Fn(&str) -> Option<f64>) -> Self {
        let seconds = |name: &str| Nanos::from_secs_f64(metric(name).unwrap_or(0.0));
        let testing = seconds("timing_s/testing");
        let trained = closed.since(testing);
        let all: u64 = STAGES.iter().map(|(_, name)| seconds(name).0).sum();
        let mut at = Nanos(trained.0.saturating_sub(all));
        let stages = STAGES.map(|(stage, name)| {
            let end = Nanos((at.0 + seconds(name).0).min(trained.0));
            (stage, (std::mem::replace(&mut at, end), end))
        });
        let validation = (testing > Nanos(0)).then_some((trained, closed));
        let stages = stages.into_iter().filter(|(_, (from, to))| to > from).collect();
        Self { stages, validation, ..self }
    }
}

/// Returns the interval in which a response was scored. The interval ends at `scored` and lasts for `took`, but does not begin before
/// `ended`, the time at which the response ended. It is empty if `scored` is before `ended`.
#[must_use]
pub fn scoring(ended: Nanos, scored: Nanos, took: Nanos) -> Interval {
    (scored.since(took).max(ended).min(scored), scored)
}

#[cfg(test)]
mod tests;
