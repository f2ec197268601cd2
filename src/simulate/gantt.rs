//! Gantt charts of a step: the load of each instance, and the intervals in which the trainer computed.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PolicyVersion, Step};
use rollpacker_operators::report::StepReport;
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::{Inferred, Metrics, Partial, Sequence, TrainError, Trainer};
use serde::Serialize;

/// Number of equal parts into which a step is divided.
const BINS: usize = 240;

/// The activity of instances and trainer during a step. Times are seconds since the previous step was complete or, for the first step,
/// since its round opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Gantt {
    /// The number of the step, from 1.
    pub step: u64,
    /// The duration of the step, in seconds.
    pub seconds: f64,
    /// The mean number of running responses, by instance and by 240th part of the step.
    pub running: Vec<Vec<f32>>,
    /// The intervals in which the trainer computed, as start and end.
    pub training: Vec<(f64, f64)>,
}

impl Gantt {
    /// Creates the chart of a step that began at `from`, with the intervals in which the trainer computed.
    #[must_use]
    pub fn of(report: &StepReport, from: Nanos, training: &[(Nanos, Nanos)]) -> Self {
        let seconds = report.closed.since(from).as_secs_f64();
        let at = |time: Nanos| time.since(from).as_secs_f64().min(seconds);
        let mut running: Vec<Vec<f32>> = Vec::new();
        for batch in &report.responses {
            let instances = batch.values::<UInt32Type>(column::INSTANCE).values();
            let started = batch.values::<UInt64Type>(column::STARTED).values();
            let finished = batch.values::<UInt64Type>(column::FINISHED).values();
            for ((&instance, &started), &finished) in instances.iter().zip(started).zip(finished) {
                let instance = instance as usize;
                if running.len() <= instance {
                    running.resize(instance + 1, vec![0.0; BINS]);
                }
                add_to_bins(
                    &mut running[instance],
                    at(Nanos(started)),
                    at(Nanos(finished)),
                    seconds,
                );
            }
        }
        let training = training
            .iter()
            .map(|&(began, ended)| (at(began), at(ended)))
            .filter(|(began, ended)| ended > began)
            .collect();
        Self { step: report.step.0 + 1, seconds, running, training }
    }
}

/// Adds a response that ran from `began` to `ended` to the bins, which divide a step of `seconds`. Each bin grows by the share of its
/// duration in which the response ran. All times are in seconds.
fn add_to_bins(bins: &mut [f32], began: f64, ended: f64, seconds: f64) {
    if seconds <= 0.0 {
        return;
    }
    let scale = bins.len() as f64 / seconds;
    let (began, ended) = (began * scale, ended * scale);
    for (bin, running) in bins.iter_mut().enumerate().skip(began as usize) {
        let share = (ended.min(bin as f64 + 1.0) - began.max(bin as f64)).max(0.0);
        if share == 0.0 && bin as f64 >= ended {
            break;
        }
        *running += share as f32;
    }
}

/// The intervals in which a trainer computed. Clones share the same log.
#[derive(Clone, Debug, Default)]
pub struct TrainingLog(Arc<Mutex<Vec<(Nanos, Nanos)>>>);

impl TrainingLog {
    /// Removes and returns the intervals that began before `until`. Adjacent intervals are merged. An interval that ends after `until` is
    /// not split.
    #[must_use]
    pub fn take_until(&self, until: Nanos) -> Vec<(Nanos, Nanos)> {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = log.partition_point(|(began, _)| *began < until);
        let rest = log.split_off(later);
        std::mem::replace(&mut log, rest)
    }

    fn add(&self, began: Nanos, ended: Nanos) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match log.last_mut() {
            Some(last) if last.1 >= began => last.1 = last.1.max(ended),
            _ => log.push((began, ended)),
        }
    }
}

/// A trainer that logs the intervals in which it computes.
pub struct TimedTrainer<T> {
    /// The wrapped trainer.
    pub trainer: T,
    /// The clock of the trainer.
    pub clock: Arc<dyn Clock>,
    /// The log to which the intervals are added.
    pub log: TrainingLog,
}

impl<T: Trainer> TimedTrainer<T> {
    fn timed<R>(&mut self, work: impl FnOnce(&mut T) -> R) -> R {
        let began = self.clock.now();
        let result = work(&mut self.trainer);
        self.log.add(began, self.clock.now());
        result
    }
}

impl<T: Trainer> Trainer for TimedTrainer<T> {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        self.trainer.publish(version)
    }

    fn infer(
        &mut self,
        step: Step,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Inferred>, TrainError> {
        self.timed(|trainer| trainer.infer(step, sequences))
    }

    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        self.timed(|trainer| trainer.accumulate(step, sequences))
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        self.timed(|trainer| trainer.update(step))
    }

    fn take_partial(&mut self, step: Step) -> Result<Partial, TrainError> {
        self.trainer.take_partial(step)
    }

    fn put_sum(&mut self, step: Step, sum: Partial) -> Result<(), TrainError> {
        self.trainer.put_sum(step, sum)
    }

    fn place(&mut self, devices: u32) {
        self.trainer.place(devices);
    }

    fn save(&mut self, folder: &Path) -> Result<(), TrainError> {
        self.trainer.save(folder)
    }

    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        self.trainer.save_state(file)
    }

    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        self.trainer.load_state(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_counts_in_the_parts_that_it_touched() {
        let mut bins = vec![0.0; 4];
        add_to_bins(&mut bins, 0.5, 2.25, 4.0);
        add_to_bins(&mut bins, 3.0, 4.0, 4.0);
        assert_eq!(bins, [0.5, 1.0, 0.25, 1.0]);
    }

    #[test]
    fn touching_intervals_are_merged() {
        let log = TrainingLog::default();
        log.add(Nanos(1), Nanos(3));
        log.add(Nanos(3), Nanos(4));
        log.add(Nanos(9), Nanos(12));
        assert_eq!(log.take_until(Nanos(9)), [(Nanos(1), Nanos(4))]);
        assert_eq!(log.take_until(Nanos(10)), [(Nanos(9), Nanos(12))]);
        assert_eq!(log.take_until(Nanos(99)), []);
    }
}
