//! The trainer of a simulated cluster: it computes nothing, but spends the time that the computation would take.

use std::path::Path;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Nanos, VirtualClock};
use rollpacker_dataflow::step::{PolicyVersion, Step};
use rollpacker_model::tensor_file::{Scalar, TensorFile, write};
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer, named_metrics};

use crate::cluster::{Cost, TrainingLayout};
use crate::rollout::lengths::LengthModel;

/// The name of the policy version in a saved state.
const VERSION: &str = "version";
/// The name of the number of devices in use in a saved state.
const PLACED: &str = "placed";
/// The name, in a saved state, of the time that was not spent yet.
const PENDING_SECONDS: &str = "owed_s";

/// A [`Trainer`] that spends virtual time and publishes versions without weights.
///
/// Each call spends the time of its micro-batches on the devices of the last [`place`](Trainer::place); an update spends the time of the
/// optimizer step if the step has responses. Starting on a part of the devices costs the
/// [`handover`](crate::cluster::Calibration::handover), and a later change of their number the
/// [`reassignment`](crate::cluster::Calibration::reassignment). This time is spent before the next group or update. Starting on all devices
/// costs nothing. [`accumulate`](Trainer::accumulate) fails on fewer devices than a copy of the model needs, and [`save`](Trainer::save)
/// always fails, because there are no weights. The trainer reports no loss, because it computes none.
pub struct SimulatedTrainer {
    clock: VirtualClock,
    cost: Cost,
    layout: TrainingLayout,
    lengths: Arc<dyn LengthModel>,
    /// The number of devices of the job.
    devices: u32,
    /// The number of devices in use.
    placed: u32,
    /// The time of a change of devices that was not spent yet, in seconds.
    pending_seconds: f64,
    /// The version that was published last.
    version: PolicyVersion,
    tally: Tally,
}

/// The work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    responses: u64,
    tokens: u64,
    longest: u32,
    flops: f64,
    /// The busy time of the trainer for gradients, in seconds.
    seconds: f64,
    /// The busy time of each call multiplied by the number of devices in use, summed over calls, in seconds.
    device_seconds: f64,
}

impl SimulatedTrainer {
    /// Creates a trainer on `devices` devices, with the model replicated over them in `layout`. `lengths` has the lengths of the prompts,
    /// and `clock` measures the virtual time that the trainer spends.
    #[must_use]
    pub fn new(
        cost: Cost,
        layout: TrainingLayout,
        devices: u32,
        lengths: Arc<dyn LengthModel>,
        clock: VirtualClock,
    ) -> Self {
        let (version, tally) = (PolicyVersion(0), Tally::default());
        Self {
            clock,
            cost,
            layout,
            lengths,
            devices,
            placed: devices,
            pending_seconds: 0.0,
            version,
            tally,
        }
    }

    fn spend(&self, seconds: f64) {
        self.clock.spend(Nanos::from_secs_f64(seconds));
    }

    /// Counts a sequence and returns its number of tokens, prompt and response.
    fn add(&mut self, sequence: &Sequence<'_>) -> f64 {
        let row = sequence.prompt_ids.first().map_or(0, |id| u64::from(id.unsigned_abs()));
        let tokens = self.lengths.prompt(row).prompt_length + sequence.response_length;
        self.tally.responses += 1;
        self.tally.tokens += u64::from(tokens);
        self.tally.longest = self.tally.longest.max(sequence.response_length);
        self.tally.flops += self.cost.training_flops(f64::from(tokens));
        f64::from(tokens)
    }

    fn metrics(&self) -> Metrics {
        let Tally { tokens, flops, seconds, device_seconds, .. } = self.tally;
        let mut metrics = vec![("perf/total_num_tokens", tokens as f64)];
        if seconds > 0.0 {
            let peak = self.cost.hardware().flops;
            metrics.push(("perf/mfu/actor", flops / (device_seconds * peak)));
            metrics.push(("perf/training_devices", device_seconds / seconds));
        }
        named_metrics(metrics)
    }
}

fn policy(version: PolicyVersion) -> Policy {
    Policy { version, location: format!("simulated:{version}"), digest: version.0 }
}

impl Trainer for SimulatedTrainer {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        self.version = version;
        Ok(policy(version))
    }

    fn accumulate(&mut self, _step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        let min = self.layout.devices();
        if self.placed < min {
            let placed = self.placed;
            return Err(TrainError::Backend {
                operation: "accumulating gradients",
                reason: format!(
                    "the trainer is placed on {placed} devices, expected at least the {min} of a copy of the model"
                ),
            });
        }
        let tokens: Vec<f64> = sequences.iter().map(|sequence| self.add(sequence)).collect();
        let seconds = self.cost.training(self.placed, self.layout, &tokens);
        self.tally.seconds += seconds;
        self.tally.device_seconds += seconds * f64::from(self.placed);
        let pending_seconds = std::mem::take(&mut self.pending_seconds);
        self.spend(seconds + pending_seconds);
        Ok(())
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        let Tally { responses, longest, .. } = self.tally;
        let mut seconds = std::mem::take(&mut self.pending_seconds);
        if responses > 0 {
            seconds += self.cost.optimizer(responses, longest);
        }
        self.spend(seconds);
        let metrics = self.metrics();
        self.tally = Tally::default();
        Ok((self.publish(PolicyVersion(step.next().0))?, metrics))
    }

    fn place(&mut self, devices: u32) {
        let before = std::mem::replace(&mut self.placed, devices);
        let calibration = self.cost.calibration();
        self.pending_seconds = match (before, devices) {
            // With 0 devices nothing computes. If the trainer takes over all devices, they were handed over by the rollout, which accounts
            // for that cost.
            (_, 0) => 0.0,
            (before, devices) if before == devices => self.pending_seconds,
            (0, devices) if devices >= self.devices => 0.0,
            (0, _) => calibration.handover,
            _ => calibration.reassignment,
        };
    }

    fn save(&mut self, folder: &Path) -> Result<(), TrainError> {
        Err(TrainError::Backend {
            operation: "saving",
            reason: format!("a simulated trainer has no weights to write to {}", folder.display()),
        })
    }

    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        let numbers = [
            (VERSION.to_owned(), Scalar::Integer(self.version.0 as i64)),
            (PLACED.to_owned(), Scalar::Integer(i64::from(self.placed))),
            (PENDING_SECONDS.to_owned(), Scalar::Float(self.pending_seconds)),
        ];
        write(file, &numbers).map_err(TrainError::state)
    }

    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        let file = TensorFile::open(file).map_err(TrainError::state)?;
        let integer = |name| file.integer(name).map(i64::unsigned_abs).map_err(TrainError::state);
        let (version, placed) = (PolicyVersion(integer(VERSION)?), integer(PLACED)?);
        self.pending_seconds = file.float(PENDING_SECONDS).map_err(TrainError::state)?;
        self.placed = u32::try_from(placed).unwrap_or(u32::MAX);
        Ok(vec![self.publish(version)?])
    }
}

#[cfg(test)]
mod tests {
    use rollpacker_dataflow::clock::Clock;

    use super::*;
    use crate::cluster::{Calibration, Hardware, ModelShape};
    use crate::rollout::lengths::{EmpiricalConfig, LengthsConfig, PopulationConfig};

    const LAYOUT: TrainingLayout =
        TrainingLayout { tensor_parallel: 2, pipeline: 1, context: 1, micro_batch_tokens: 1 };

    fn trainer(clock: &VirtualClock) -> SimulatedTrainer {
        let model = ModelShape::built_in("Qwen2.5-7B").expect("built in");
        let hardware = Hardware::built_in("H800").expect("built in");
        let cost = Cost::new(hardware, model, Calibration::default());
        let lengths = LengthsConfig::Empirical(EmpiricalConfig::rollpacker());
        let lengths = lengths.build(&PopulationConfig::default(), 1, 8192).expect("in bounds");
        SimulatedTrainer::new(cost, LAYOUT, 16, lengths, clock.clone())
    }

    fn sequence(prompt_ids: &[i32], response_length: u32) -> Sequence<'_> {
        Sequence {
            prompt_ids,
            response_length,
            response_ids: &[],
            logprobs: &[],
            advantages: &[],
            weight: 1.0,
            ..Sequence::default()
        }
    }

    /// Returns the seconds that `work` spends.
    fn spent(clock: &VirtualClock, work: impl FnOnce()) -> f64 {
        let before = clock.now();
        work();
        clock.now().since(before).as_secs_f64()
    }

    #[test]
    fn small_calls_leave_replicas_idle_and_a_handover_counts_once() {
        let clock = VirtualClock::default();
        let mut trainer = trainer(&clock);
        let sequences: Vec<_> = (0..16).map(|_| sequence(&[3], 4000)).collect();
        let whole = spent(&clock, || trainer.accumulate(Step(0), &sequences).unwrap());
        let split = spent(&clock, || {
            sequences.iter().for_each(|s| trainer.accumulate(Step(0), &[*s]).unwrap());
        });
        // Eight replicas: two sequences each, or one sequence at a time on one of them.
        assert!((split - 8.0 * whole).abs() < 1e-6, "{whole} {split}");
        trainer.place(0);
        trainer.place(8);
        let half = spent(&clock, || trainer.accumulate(Step(0), &sequences).unwrap());
        assert!((half - 3.0 - 2.0 * whole).abs() < 1e-6, "{half}: a handover of 3 s, {whole}");
    }

    #[test]
    fn an_update_publishes_the_next_version_and_reports_its_step() {
        let clock = VirtualClock::default();
        let mut trainer = trainer(&clock);
        let sequences: Vec<_> = (0..8).map(|_| sequence(&[3], 4000)).collect();
        trainer.accumulate(Step(4), &sequences).unwrap();
        let mut answer = None;
        let seconds = spent(&clock, || answer = Some(trainer.update(Step(4)).unwrap()));
        let (policy, metrics) = answer.expect("it was called");
        assert_eq!(policy.version, PolicyVersion(5));
        // Half of the peak while the devices compute; launches take about a tenth of the time.
        assert!((0.35..0.5).contains(&metrics["perf/mfu/actor"]), "{}", metrics["perf/mfu/actor"]);
        assert_eq!(metrics["perf/training_devices"], 16.0);
        assert_eq!(seconds, 1.0);
        let empty = spent(&clock, || drop(trainer.update(Step(5)).unwrap()));
        assert_eq!(empty, 0.0, "nothing to update");
    }

    #[test]
    fn a_state_has_the_devices_and_their_pending_seconds() {
        let clock = VirtualClock::default();
        let mut first = trainer(&clock);
        first.place(8);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.safetensors");
        let _published = first.update(Step(6)).unwrap();
        first.place(4);
        first.save_state(&file).unwrap();
        let mut second = trainer(&clock);
        let policies = second.load_state(&file).unwrap();
        assert_eq!(policies, [policy(PolicyVersion(7))]);
        let [first, second] = [first, second].map(|mut trainer| {
            spent(&clock, || trainer.accumulate(Step(7), &[sequence(&[3], 400)]).unwrap())
        });
        assert_eq!(first.to_bits(), second.to_bits());
    }

    #[test]
    fn unsupported_calls_are_errors() {
        let mut trainer = trainer(&VirtualClock::default());
        assert_eq!(
            trainer.save(Path::new("out")).unwrap_err().to_string(),
            "trainer failed in saving: a simulated trainer has no weights to write to out"
        );
        trainer.place(0);
        assert!(trainer.accumulate(Step(0), &[sequence(&[3], 1)]).is_err());
    }
}
