//! Conformance of trainers.

use std::path::Path;

use rollpacker_dataflow::step::{PolicyVersion, Step};

use super::Nonconformance;
use crate::metrics::depends_on_time;
use crate::rollout::Policy;
use crate::train::{Metrics, Partial, Sequence, TrainError, Trainer};

const PUBLISHES: &str = "the update of step s publishes version s + 1 of the weights";
const ORDER: &str =
    "an update does not depend on the order of its sequences, nor on how they are split over calls";
const NOTHING: &str = "an update without sequences changes no weight";
const STATE: &str = "a restored trainer updates as the one that saved its state";
const REPLICAS: &str = "the sum over replicas updates all of them as a single trainer";
const WORKS: &str = "a trainer accepts sequences of its model";

/// The world in which [`check_trainer`] runs a trainer.
#[derive(Clone, Debug)]
pub struct TrainerWorld<'a> {
    /// The sequences of a step, grouped by prompt. At least two groups.
    pub groups: &'a [Vec<Sequence<'a>>],
    /// The maximum difference of a metric between two ways to compute the same update: relative if the metric's magnitude is above 1,
    /// otherwise absolute. With 0 the trainer is deterministic: weights must be bit-identical, too.
    pub tolerance: f64,
    /// `true` if the digest of a policy is the digest of its weights. `false` leaves out the checks that compare the weights of updates.
    pub has_digests: bool,
    /// `true` if the same calls give bit-identical results; the update of a restored trainer must then be bit-identical. `false` allows a
    /// difference of `tolerance`, for trainers on devices whose kernels add in no fixed order.
    pub is_reproducible: bool,
    /// An empty folder, for the state of the trainer.
    pub folder: &'a Path,
}

/// Checks a trainer against its [contract](Trainer). `start` makes a trainer with the same initial weights at each call.
///
/// Replicas and saved states are checked if the trainer supports them.
///
/// # Errors
/// Returns the first rule that does not hold.
///
/// # Panics
/// Panics if the world has fewer than two groups.
pub fn check_trainer<T: Trainer>(
    mut start: impl FnMut() -> T,
    world: &TrainerWorld<'_>,
) -> Result<(), Nonconformance> {
    assert!(world.groups.len() >= 2, "a trainer is checked with at least two groups");
    let expected = at_once(&mut start(), world)?;
    let reversed = group_by_group(&mut start(), world)?;
    check_same(ORDER, world, &expected, &reversed)?;
    check_nothing(&mut start(), world)?;
    check_state(&mut start, world)?;
    check_replicas(&mut start, world, &expected)
}

/// The policy that an update published, and its metrics.
type Update = (Policy, Metrics);

/// Accumulates all sequences in one call, and updates.
fn at_once(trainer: &mut impl Trainer, world: &TrainerWorld<'_>) -> Result<Update, Nonconformance> {
    publish_first(trainer)?;
    accumulate_all(trainer, world, Step(0))?;
    update(trainer, Step(0))
}

/// Accumulates the groups in the opposite order with one call each, and updates.
fn group_by_group(
    trainer: &mut impl Trainer,
    world: &TrainerWorld<'_>,
) -> Result<Update, Nonconformance> {
    publish_first(trainer)?;
    for group in world.groups.iter().rev() {
        trainer.accumulate(Step(0), group).map_err(Nonconformance::of(WORKS))?;
    }
    update(trainer, Step(0))
}

fn check_nothing(
    trainer: &mut impl Trainer,
    world: &TrainerWorld<'_>,
) -> Result<(), Nonconformance> {
    let before = publish_first(trainer)?;
    let (after, _) = update(trainer, Step(0))?;
    if world.has_digests && before.digest != after.digest {
        return Err(Nonconformance::new(NOTHING, "the digest of the weights changed"));
    }
    Ok(())
}

/// Saves the state after a step, restores it in a second trainer, and compares the next update of both.
fn check_state<T: Trainer>(
    start: &mut impl FnMut() -> T,
    world: &TrainerWorld<'_>,
) -> Result<(), Nonconformance> {
    let file = world.folder.join("state");
    let (mut saved, mut restored) = (start(), start());
    let (policy, _) = at_once(&mut saved, world)?;
    match saved.save_state(&file) {
        Err(TrainError::Unsupported { .. }) => return Ok(()),
        result => result.map_err(Nonconformance::of(STATE))?,
    }
    let policies = restored.load_state(&file).map_err(Nonconformance::of(STATE))?;
    let last = policies.last().map(|policy| (policy.version, policy.digest));
    if last != Some((policy.version, policy.digest)) {
        let found = format!("{last:?}: expected the policy that was published last, {policy:?}");
        return Err(Nonconformance::new(STATE, found));
    }
    let next = |trainer: &mut T| {
        accumulate_all(trainer, world, Step(1))?;
        update(trainer, Step(1))
    };
    let (expected, found) = (next(&mut saved)?, next(&mut restored)?);
    let tolerance = if world.is_reproducible { 0.0 } else { world.tolerance };
    check_same(STATE, &TrainerWorld { tolerance, ..world.clone() }, &expected, &found)
}

/// Splits the groups over two replicas, and compares their updates with the update of a single trainer.
fn check_replicas<T: Trainer>(
    start: &mut impl FnMut() -> T,
    world: &TrainerWorld<'_>,
    expected: &Update,
) -> Result<(), Nonconformance> {
    let (mut first, mut second) = (start(), start());
    publish_first(&mut first)?;
    publish_first(&mut second)?;
    let halves = world.groups.split_at(world.groups.len() / 2);
    for (trainer, groups) in [(&mut first, halves.0), (&mut second, halves.1)] {
        let sequences: Vec<_> = groups.concat();
        trainer.accumulate(Step(0), &sequences).map_err(Nonconformance::of(WORKS))?;
    }
    let mut sum = match first.take_partial(Step(0)) {
        Err(TrainError::Unsupported { .. }) => return Ok(()),
        result => result.map_err(Nonconformance::of(REPLICAS))?,
    };
    let other: Partial = second.take_partial(Step(0)).map_err(Nonconformance::of(REPLICAS))?;
    sum.add(other).map_err(Nonconformance::of(REPLICAS))?;
    for trainer in [&mut first, &mut second] {
        trainer.put_sum(Step(0), sum.clone()).map_err(Nonconformance::of(REPLICAS))?;
        check_same(REPLICAS, world, expected, &update(trainer, Step(0))?)?;
    }
    Ok(())
}

fn publish_first(trainer: &mut impl Trainer) -> Result<Policy, Nonconformance> {
    let policy = trainer.publish(PolicyVersion(0)).map_err(Nonconformance::of(PUBLISHES))?;
    check_version(policy, PolicyVersion(0))
}

fn accumulate_all(
    trainer: &mut impl Trainer,
    world: &TrainerWorld<'_>,
    step: Step,
) -> Result<(), Nonconformance> {
    trainer.accumulate(step, &world.groups.concat()).map_err(Nonconformance::of(WORKS))
}

fn update(trainer: &mut impl Trainer, step: Step) -> Result<Update, Nonconformance> {
    let (policy, metrics) = trainer.update(step).map_err(Nonconformance::of(WORKS))?;
    Ok((check_version(policy, PolicyVersion(step.next().0))?, metrics))
}

fn check_version(policy: Policy, expected: PolicyVersion) -> Result<Policy, Nonconformance> {
    if policy.version == expected {
        return Ok(policy);
    }
    let found = format!("expected version {expected}, found {}", policy.version);
    Err(Nonconformance::new(PUBLISHES, found))
}

/// Compares two updates by their metrics that do not depend on time, and by the digests of their weights if `tolerance` is 0 and the
/// policies have digests.
fn check_same(
    rule: &'static str,
    world: &TrainerWorld<'_>,
    expected: &Update,
    found: &Update,
) -> Result<(), Nonconformance> {
    if world.tolerance == 0.0 && world.has_digests && expected.0.digest != found.0.digest {
        return Err(Nonconformance::new(rule, "the weights differ"));
    }
    for (name, &value) in expected.1.iter().filter(|(name, _)| !depends_on_time(name)) {
        let other = found.1.get(name).copied().unwrap_or(f64::NAN);
        let is_near = (value - other).abs() <= world.tolerance * value.abs().max(1.0);
        if !is_near && value.to_bits() != other.to_bits() {
            let found = format!("metric `{name}`: expected {value}, found {other}");
            return Err(Nonconformance::new(rule, found));
        }
    }
    Ok(())
}
