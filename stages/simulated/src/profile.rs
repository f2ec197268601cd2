//! The iterations of the simulated engine, according to its cost model.

use rollpacker_dataflow::clock::{Clock, Nanos, VirtualClock};

use crate::cluster::Cost;
use rollpacker_stages::rollout::RolloutError;
use rollpacker_stages::rollout::profile::{Measure, Phase, Point};

/// A simulated cluster whose iterations take the virtual time that [`Cost`] predicts.
///
/// Prompts are prefilled one after the other, as in the simulated engine. Instances are identical and share nothing, so their number has no
/// effect. Other work on their devices, such as a judge, is not included.
pub struct SimulatedMeasure {
    cost: Cost,
    clock: VirtualClock,
    /// Seconds of an iteration at the current point.
    seconds: f64,
}

impl SimulatedMeasure {
    /// Creates a measurement of `cost`; each iteration advances `clock`.
    #[must_use]
    pub fn new(cost: Cost, clock: VirtualClock) -> Self {
        Self { cost, clock, seconds: 0.0 }
    }

    /// Returns an error unless an instance can hold the model and, in its KV cache, the sequences of the point.
    fn check(&self, point: Point) -> Result<(), RolloutError> {
        let broken = |reason| RolloutError::Engine { instance: 0, reason };
        let capacity = self
            .cost
            .kv_capacity(point.tensor_parallel)
            .map_err(|error| broken(error.to_string()))?;
        if point.work() as u64 <= capacity {
            return Ok(());
        }
        let Point { batch_size, tokens, .. } = point;
        let reason = format!(
            "{batch_size} sequences of {tokens} tokens exceed the {capacity} tokens of the KV cache of an instance"
        );
        Err(broken(reason))
    }
}

impl Measure for SimulatedMeasure {
    fn prepare(&mut self, point: Point) -> Result<(), RolloutError> {
        self.check(point)?;
        let Point { phase, tensor_parallel, batch_size, tokens, .. } = point;
        self.seconds = match phase {
            Phase::Prefill => {
                f64::from(batch_size) * self.cost.prefill(tensor_parallel, f64::from(tokens))
            }
            Phase::Decode => {
                self.cost.decode(tensor_parallel).iteration(batch_size, point.work() as u64)
            }
        };
        Ok(())
    }

    fn seconds(&mut self) -> Result<f64, RolloutError> {
        let end = self.clock.now().0.saturating_add(Nanos::from_secs_f64(self.seconds).0);
        self.clock.advance_to(Nanos(end));
        Ok(self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{Calibration, Hardware, ModelShape};

    fn engine() -> (SimulatedMeasure, VirtualClock) {
        let hardware = Hardware::built_in("H800").expect("built in");
        let model = ModelShape::built_in("Qwen2.5-14B").expect("built in");
        let clock = VirtualClock::default();
        let cost = Cost::new(hardware, model, Calibration::default());
        (SimulatedMeasure::new(cost, clock.clone()), clock)
    }

    fn point(phase: Phase, batch_size: u32, tokens: u32) -> Point {
        Point { phase, instances: 2, tensor_parallel: 4, batch_size, tokens }
    }

    #[test]
    fn an_iteration_takes_the_time_of_the_cost_model() {
        let (mut engine, clock) = engine();
        let cost = engine.cost.clone();
        engine.prepare(point(Phase::Decode, 8, 1024)).unwrap();
        let decode = engine.seconds().unwrap();
        assert_eq!(decode, cost.decode(4).iteration(8, 8 * 1024));
        engine.prepare(point(Phase::Prefill, 3, 512)).unwrap();
        let prefill = engine.seconds().unwrap();
        assert_eq!(prefill, 3.0 * cost.prefill(4, 512.0));
        assert!((clock.now().as_secs_f64() - decode - prefill).abs() < 1e-8);
    }

    #[test]
    fn a_point_that_no_instance_holds_is_refused() {
        let (mut engine, _clock) = engine();
        let refused = engine.prepare(point(Phase::Decode, 1 << 16, 1 << 10)).unwrap_err();
        assert!(refused.to_string().contains("65536 sequences of 1024 tokens"), "{refused}");
        let wide = Point { tensor_parallel: 16, ..point(Phase::Decode, 1, 1) };
        assert!(engine.prepare(wide).unwrap_err().to_string().contains("found 16"));
    }
}
