//! Metrics of a live engine, reported in each step: the drift of its profile, the work of colocated models, the metrics of inference
//! servers, and the placements.
//!
//! Colocated models are other models, such as judges, that run on the engine's instances.

use std::cell::RefCell;
use std::rc::Rc;

use rollpacker_dataflow::fault::Fault;
use rollpacker_dataflow::step::Step;
use rollpacker_operators::placement::PlacementLog;
use rollpacker_operators::report::{Observer, ObserverState, StepProgress, StepReport};
use rollpacker_stages::rollout::profile::Row;
use rollpacker_stages::train::Metrics;
use rollpacker_torch::rollout::colocated::{ColocatedUse, ColocatedUseMeter};

use crate::engines::MetricSource;
use crate::profile_monitor::ProfileMonitor;

/// An observer that adds the metrics of the engine since the previous step to the reports of steps.
pub struct EngineObserver<O, L> {
    /// The observer that receives the extended reports.
    pub observer: O,
    /// The monitor of the profile; `None` if the recipe has no profile, and on all workers but the first.
    pub monitor: Option<Rc<RefCell<ProfileMonitor>>>,
    /// A function that returns the iterations that the engine measured since the previous call.
    pub live: L,
    /// The meter of the work of colocated models; `None` if the engine has no colocated models.
    pub colocated_use: Option<ColocatedUseMeter>,
    /// A function that returns the metrics of an engine over servers since the previous call; `None` for other engines.
    pub server_metrics: Option<MetricSource>,
    /// The log of the placement policy; `None` if the placement is fixed.
    pub placement: Option<PlacementLog>,
}

impl<O: Observer, L: FnMut() -> Vec<Row>> Observer for EngineObserver<O, L> {
    fn progress(&mut self, progress: &StepProgress) {
        self.observer.progress(progress);
    }

    fn warning(&mut self, warning: &Fault) {
        self.observer.warning(warning);
    }

    fn failed(&mut self, fault: &Fault) {
        self.observer.failed(fault);
    }

    /// Adds the metrics of each field that is present to the report:
    ///
    /// - `monitor`: the metrics of [`ProfileMonitor::step`].
    /// - `colocated_use`: `rollout/guest_slowdown`, which is [`ColocatedUse::slowdown`], and `rollout/guest_tokens`, the number of tokens
    ///   that colocated models processed.
    /// - `server_metrics`: the metrics that the function returns.
    /// - `placement`: the placements of the step, and
    ///   [their metrics](rollpacker_operators::placement::StepPlacement::metrics).
    fn step(&mut self, mut report: StepReport) {
        // Take the iterations even without a monitor, so that they do not accumulate.
        let live = (self.live)();
        if let Some(monitor) = &self.monitor {
            report.metrics.extend(monitor.borrow_mut().step(&live));
        }
        if let Some(used) = self.colocated_use.as_mut().map(ColocatedUseMeter::take) {
            report.metrics.extend(colocated_metrics(&used));
        }
        if let Some(metrics) = &mut self.server_metrics {
            report.metrics.extend(metrics());
        }
        report.placement = self.placement.as_ref().map(|log| log.take(report.step, report.closed));
        if let Some(placement) = &report.placement {
            report.metrics.extend(placement.metrics());
        }
        self.observer.step(report);
    }

    fn save(&self, saved: &mut ObserverState) {
        if let Some(monitor) = &self.monitor {
            monitor.borrow().save(saved);
        }
        self.observer.save(saved);
    }

    fn snapshot(&mut self, step: Step, metrics: &Metrics) {
        self.observer.snapshot(step, metrics);
    }
}

fn colocated_metrics(used: &ColocatedUse) -> [(String, f64); 2] {
    [
        ("rollout/guest_slowdown".to_owned(), used.slowdown()),
        ("rollout/guest_tokens".to_owned(), used.tokens as f64),
    ]
}
