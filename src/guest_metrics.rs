//! Metrics about the guests of a live engine, reported in each step.
//!
//! Guests are other models, such as judges, that run on the engine's instances.

use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::step::Step;
use rollpacker_operators::report::{Observer, ObserverState, StepProgress, StepReport};
use rollpacker_stages::train::Metrics;
use rollpacker_torch::rollout::guests::{GuestUse, Hosting};

/// An observer that adds the guests' use of the engine since the previous step to the reports of steps.
pub struct GuestObserver<O> {
    /// The observer that receives the extended reports.
    pub observer: O,
    /// The measurement of the guests' use; `None` if the engine has no guests.
    pub guest_usage: Option<Hosting>,
}

impl<O: Observer> Observer for GuestObserver<O> {
    fn progress(&mut self, progress: &StepProgress) {
        self.observer.progress(progress);
    }

    fn warning(&mut self, warning: &Fault) {
        self.observer.warning(warning);
    }

    fn failed(&mut self, fault: &Fault) {
        self.observer.failed(fault);
    }

    /// Adds `rollout/guest_slowdown`, which is [`GuestUse::slowdown`], and `rollout/guest_tokens`, the tokens that guests processed.
    fn step(&mut self, mut report: StepReport) {
        if let Some(used) = self.guest_usage.as_mut().map(Hosting::take) {
            report.metrics.extend(metrics(&used));
        }
        self.observer.step(report);
    }

    fn save(&self, saved: &mut ObserverState) {
        self.observer.save(saved);
    }

    fn snapshot(&mut self, step: Step, metrics: &Metrics) {
        self.observer.snapshot(step, metrics);
    }
}

fn metrics(used: &GuestUse) -> [(String, f64); 2] {
    [
        ("rollout/guest_slowdown".to_owned(), used.slowdown()),
        ("rollout/guest_tokens".to_owned(), used.tokens as f64),
    ]
}
