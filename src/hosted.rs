//! What the guests of a live engine cost, step by step.

use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::step::Step;
use rollpacker_operators::report::{Observer, Progress, Saved, StepReport};
use rollpacker_stages::rollout::guests::{GuestUse, Hosting};
use rollpacker_stages::train::Metrics;

/// An observer whose steps are told what guests took of the engine since the step before.
pub struct Hosted<O> {
    /// Who is told.
    pub observer: O,
    /// What they take; nothing where the engine has no guests.
    pub hosting: Option<Hosting>,
}

impl<O: Observer> Observer for Hosted<O> {
    fn progress(&mut self, progress: &Progress) {
        self.observer.progress(progress);
    }

    fn warning(&mut self, warning: &Fault) {
        self.observer.warning(warning);
    }

    fn failed(&mut self, fault: &Fault) {
        self.observer.failed(fault);
    }

    /// `rollout/guest_slowdown` is [`GuestUse::slowdown`], `rollout/guest_tokens` what they processed.
    fn step(&mut self, mut report: StepReport) {
        if let Some(used) = self.hosting.as_mut().map(Hosting::take) {
            report.metrics.extend(metrics(&used));
        }
        self.observer.step(report);
    }

    fn save(&self, saved: &mut Saved) {
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
