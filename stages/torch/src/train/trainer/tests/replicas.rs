//! Tests of replicas: the update equals that of one trainer with the whole step, however groups are distributed over replicas and
//! whenever partials are taken. In deterministic mode it is identical to the bit.

use std::sync::mpsc;
use std::thread;

use super::*;

/// A step, and the way in which it is distributed over trainers.
#[derive(Clone, Debug)]
struct ReplicaSplit {
    groups: Vec<Vec<Response>>,
    /// The order in which the groups arrive.
    order: Vec<usize>,
    /// The replica of each group.
    group_replicas: Vec<usize>,
    replicas: usize,
    /// The number of groups per call.
    call: usize,
    /// The number of calls between two partials.
    taken_after: usize,
    /// `true` if the rows of a call are reversed.
    reversed: bool,
    micro_batch_tokens: usize,
    threads: usize,
}

fn groups() -> impl Strategy<Value = Vec<Vec<Response>>> {
    let group =
        (proptest::collection::vec(0..23i32, 1..5), proptest::collection::vec(response(), 1..5));
    proptest::collection::vec(group, 1..7).prop_map(|groups| {
        let named = |(at, (prompt, responses)): (u64, (Vec<i32>, Vec<Response>))| {
            let named = (0..).zip(responses).map(|(sample, response)| Response {
                id: (100 - at, sample),
                prompt: prompt.clone(),
                ..response
            });
            named.collect()
        };
        (0..).zip(groups).map(named).collect()
    })
}

fn replica_split() -> impl Strategy<Value = ReplicaSplit> {
    groups().prop_flat_map(|groups| {
        let count = groups.len();
        let order = Just((0..count).collect::<Vec<_>>()).prop_shuffle();
        let group_replicas = proptest::collection::vec(0..4usize, count);
        let numbers = (1..5usize, 1..4usize, 1..4usize, any::<bool>(), 1..60usize, 1..4usize);
        (order, group_replicas, numbers).prop_map(move |(order, group_replicas, numbers)| {
            let (replicas, call, taken_after, reversed, micro_batch_tokens, threads) = numbers;
            let (groups, group_replicas) =
                (groups.clone(), group_replicas.iter().map(|o| o % replicas).collect());
            ReplicaSplit {
                groups,
                order,
                group_replicas,
                replicas,
                call,
                taken_after,
                reversed,
                micro_batch_tokens,
                threads,
            }
        })
    })
}

impl ReplicaSplit {
    fn calls(&self, replica: usize) -> Vec<Vec<Sequence<'_>>> {
        let own: Vec<_> =
            self.order.iter().filter(|&&at| self.group_replicas[at] == replica).collect();
        let rows = |groups: &[&usize]| -> Vec<Sequence<'_>> {
            let mut rows: Vec<_> =
                groups.iter().flat_map(|&&at| &self.groups[at]).map(valued).collect();
            if self.reversed {
                rows.reverse();
            }
            rows
        };
        own.chunks(self.call).map(rows).collect()
    }

    fn partials(&self, replica: usize, trainer: &mut TorchTrainer, step: Step) -> Vec<Partial> {
        let calls = self.calls(replica);
        let mut partials = Vec::new();
        for calls in calls.chunks(self.taken_after) {
            calls.iter().for_each(|call| trainer.accumulate(step, call).unwrap());
            partials.push(trainer.take_partial(step).unwrap());
        }
        assert_eq!(
            trainer.take_partial(step).unwrap(),
            Partial::default(),
            "nothing is left to take"
        );
        partials
    }

    fn whole(&self) -> Vec<Sequence<'_>> {
        self.groups.iter().flatten().map(valued).collect()
    }
}

/// The way in which partials are combined before they are put into each trainer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reduction {
    /// The sum; the correct way.
    Sum,
    /// Wrong: the mean over replicas of the mean of each.
    MeanOfMeans,
    /// Wrong: only the denominator of the last replica.
    LastDenominator,
    /// Wrong: only the sums of the first replica.
    FirstOnly,
}

impl Reduction {
    fn reduce(self, partials: &[Vec<Partial>]) -> Partial {
        let one = |partials: &Vec<Partial>| {
            let mut sum = Partial::default();
            partials.iter().for_each(|partial| sum.add(partial.clone()).unwrap());
            sum
        };
        let mut replicas: Vec<_> = partials.iter().map(one).collect();
        match self {
            Self::Sum => {}
            Self::MeanOfMeans => replicas.iter_mut().for_each(divide),
            Self::LastDenominator => {
                let last = replicas.len() - 1;
                replicas[..last].iter_mut().for_each(|replica| replica.totals.clear());
            }
            Self::FirstOnly => replicas.truncate(1),
        }
        one(&replicas)
    }
}

fn divide(replica: &mut Partial) {
    let Numbers::Float(gradient) = &mut replica.gradient else { panic!("not deterministic") };
    for total in &mut replica.totals {
        if total.name == "policy:part:denominator" {
            gradient.iter_mut().for_each(|number| *number /= total.value);
            total.value = 1.0;
        }
    }
}

/// Creates a trainer with a critic. The aggregation of the critic's loss differs from the aggregation of the policy loss.
fn of(config: &TrainerConfig) -> TorchTrainer {
    let other = MODES.iter().position(|&mode| mode == config.loss_agg_mode).unwrap() + 1;
    let loss_agg_mode = MODES[other % MODES.len()];
    let critic = Some(CriticConfig { loss_agg_mode, ..CriticConfig::default() });
    trainer(TrainerConfig { critic, ..config.clone() })
}

/// Returns the gradients of policy and critic.
fn gradients(trainer: &TorchTrainer) -> [Tensor; 2] {
    [gradient(trainer), trainer.critic.as_ref().unwrap().gradient()]
}

/// Returns the difference between the gradient of replicas and that of one trainer, relative to the norm of the latter.
fn difference_of(
    replica_split: &ReplicaSplit,
    config: &TrainerConfig,
    reduction: Reduction,
    prepare: impl Fn(&mut TorchTrainer),
) -> f64 {
    let mut whole = of(&TrainerConfig { micro_batch_tokens: usize::MAX, ..config.clone() });
    prepare(&mut whole);
    whole.accumulate(Step(0), &replica_split.whole()).unwrap();
    let ReplicaSplit { micro_batch_tokens, threads, .. } = *replica_split;
    let pieces = TrainerConfig { micro_batch_tokens, threads, ..config.clone() };
    let mut replicas: Vec<_> = (0..replica_split.replicas).map(|_| of(&pieces)).collect();
    replicas.iter_mut().for_each(&prepare);
    let partials: Vec<_> = replicas
        .iter_mut()
        .enumerate()
        .map(|(at, replica)| replica_split.partials(at, replica, Step(0)))
        .collect();
    let sum = reduction.reduce(&partials);
    replicas.iter_mut().for_each(|replica| replica.put_sum(Step(0), sum.clone()).unwrap());
    let found: Vec<_> = replicas.iter().map(gradients).collect();
    let same = |one: &[Tensor; 2]| one.iter().zip(&found[0]).all(|(one, first)| one.equal(first));
    assert!(found.iter().all(same), "replicas agree to the bit");
    let differences = gradients(&whole).into_iter().zip(&found[0]).map(|(expect, found)| {
        if expect.norm().double_value(&[]) == 0.0 {
            return found.norm().double_value(&[]);
        }
        relative_difference(&expect, found)
    });
    differences.fold(0.0, f64::max)
}

fn any_config(mode: usize, loss: usize) -> TrainerConfig {
    let name = policy_losses().names().nth(loss).map(str::to_owned).unwrap();
    TrainerConfig { policy_loss: Choice::of(&name), ..config(MODES[mode]) }
}

fn deterministic(mode: usize) -> TrainerConfig {
    TrainerConfig { deterministic: true, micro_batch_tokens: 24, ..config(MODES[mode]) }
}

/// The digests of the weights of policy and critic, and the metrics of the steps.
type Outcome = (Vec<u64>, Vec<Metrics>);

fn outcome(trainer: &TorchTrainer, metrics: Vec<Metrics>) -> Outcome {
    let critic = trainer.critic.as_ref().unwrap();
    let own = |(name, tensor): &(String, Tensor)| (name.clone(), tensor.shallow_clone());
    let critic =
        Weights::new(critic.model().parameters().iter().map(own).collect()).unwrap().digest();
    (vec![trainer.decoder.snapshot().unwrap().digest(), critic], metrics)
}

/// Runs one trainer that receives each step whole.
fn alone(steps: &[ReplicaSplit], config: &TrainerConfig) -> Outcome {
    let mut trainer = of(config);
    let metrics = (0..).zip(steps).map(|(at, replica_split)| {
        trainer.accumulate(Step(at), &replica_split.whole()).unwrap();
        trainer.update(Step(at)).unwrap().1
    });
    let metrics = metrics.collect();
    outcome(&trainer, metrics)
}

/// Runs as many trainers as the first step has replicas. All partials of a step are taken first; then the sum of each round is put into
/// every trainer.
fn together(steps: &[ReplicaSplit], config: &TrainerConfig) -> Vec<Outcome> {
    let config = TrainerConfig { threads: steps[0].threads, ..config.clone() };
    let mut replicas: Vec<_> = (0..steps[0].replicas).map(|_| (of(&config), Vec::new())).collect();
    for (at, replica_split) in (0..).zip(steps) {
        let group_replicas =
            replica_split.group_replicas.iter().map(|owner| owner % steps[0].replicas).collect();
        let replica_split = ReplicaSplit { group_replicas, ..replica_split.clone() };
        let partials: Vec<_> = replicas
            .iter_mut()
            .enumerate()
            .map(|(replica, (trainer, _))| replica_split.partials(replica, trainer, Step(at)))
            .collect();
        for round in 0..partials.iter().map(Vec::len).max().unwrap_or(0) {
            let mut sum = Partial::default();
            for one in partials.iter().rev().filter_map(|partials| partials.get(round)) {
                sum.add(one.clone()).unwrap();
            }
            replicas
                .iter_mut()
                .for_each(|(trainer, _)| trainer.put_sum(Step(at), sum.clone()).unwrap());
        }
        for (trainer, metrics) in &mut replicas {
            metrics.push(trainer.update(Step(at)).unwrap().1);
        }
    }
    replicas.into_iter().map(|(trainer, metrics)| outcome(&trainer, metrics)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn replicas_have_the_gradient_of_one(
        replica_split in replica_split(),
        mode in 0..4usize,
        loss in 0..policy_losses().names().count(),
    ) {
        let found = difference_of(&replica_split, &any_config(mode, loss), Reduction::Sum, widen);
        prop_assert!(found <= FLOAT64, "{found}");
    }

    #[test]
    fn deterministic_updates_are_equal_to_the_bit(
        steps in proptest::collection::vec(replica_split(), 3),
        mode in 0..4usize,
    ) {
        let config = deterministic(mode);
        let expect = alone(&steps, &config);
        for found in together(&steps, &config) {
            prop_assert_eq!(&found, &expect);
        }
    }
}

/// Returns a step of two replicas with uneven shards and weights.
fn uneven() -> ReplicaSplit {
    let response = |id, prompt: &[i32], response: &[i32], advantage, weight| Response {
        id,
        weight,
        ..example(prompt, response, advantage)
    };
    let groups = vec![
        vec![
            response((1, 0), &[2, 3], &[4, 5, 1], 0.5, 1.0),
            response((1, 1), &[2, 3], &[6], -1.0, 0.5),
        ],
        vec![response((2, 0), &[8, 9], &[3, 3, 3, 3, 3, 1], 2.0, 1.5)],
        vec![response((3, 0), &[7], &[5, 1], 1.0, 0.25)],
    ];
    ReplicaSplit {
        groups,
        order: vec![2, 0, 1],
        group_replicas: vec![0, 1, 0],
        replicas: 2,
        call: 1,
        taken_after: 1,
        reversed: false,
        micro_batch_tokens: 64,
        threads: 2,
    }
}

#[test]
fn wrong_reductions_are_detected() {
    for mode in MODES {
        let replica_split = uneven();
        let found = |reduction| difference_of(&replica_split, &config(mode), reduction, widen);
        assert!(found(Reduction::Sum) <= FLOAT64);
        for wrong in [Reduction::MeanOfMeans, Reduction::LastDenominator, Reduction::FirstOnly] {
            assert!(found(wrong) > 1e-3, "{mode:?} {wrong:?}: {}", found(wrong));
        }
    }
}

#[test]
fn a_dropped_weight_is_detected() {
    let mut whole = of(&config(Aggregation::SeqMeanTokenMean));
    let mut dropped = of(&config(Aggregation::SeqMeanTokenMean));
    let replica_split = uneven();
    whole.accumulate(Step(0), &replica_split.whole()).unwrap();
    let unweighted: Vec<_> = replica_split
        .whole()
        .into_iter()
        .map(|sequence| Sequence { weight: 1.0, ..sequence })
        .collect();
    dropped.accumulate(Step(0), &unweighted).unwrap();
    assert!(relative_difference(&gradient(&whole), &gradient(&dropped)) > 1e-3);
}

#[test]
fn fixed_point_is_the_gradient_up_to_float32() {
    let mut runner = TestRunner::deterministic();
    for mode in MODES.into_iter().cycle().take(24) {
        let replica_split = replica_split().new_tree(&mut runner).unwrap().current();
        let float = config(mode);
        let fixed = TrainerConfig { deterministic: true, ..float.clone() };
        let [mut float, mut fixed] = [float, fixed].map(|config| of(&config));
        for trainer in [&mut float, &mut fixed] {
            trainer.accumulate(Step(0), &replica_split.whole()).unwrap();
        }
        if denominator_of(&float) > 0.0 {
            let [float, fixed] = [float, fixed].map(|trainer| gradient(&trainer));
            let found = relative_difference(&float, &fixed);
            assert!(found <= FLOAT32, "{mode:?}: {found} for {replica_split:?}");
        }
    }
}

#[test]
fn without_determinism_float32_replicas_differ_by_rounding() {
    let mut runner = TestRunner::deterministic();
    for mode in MODES.into_iter().cycle().take(24) {
        let replica_split = replica_split().new_tree(&mut runner).unwrap().current();
        let found = difference_of(&replica_split, &config(mode), Reduction::Sum, |_| {});
        assert!(found <= FLOAT32, "{mode:?}: {found} for {replica_split:?}");
    }
}

#[test]
fn two_threads_that_exchange_partials_are_one_trainer() {
    let replica_split = uneven();
    let config = deterministic(0);
    let expect = alone(&vec![replica_split.clone(); 3], &config);
    let (to_first, first) = mpsc::channel();
    let (to_second, second) = mpsc::channel();
    let ends = [(to_second, first), (to_first, second)];
    let replica = |at: usize, to: mpsc::Sender<Partial>, from: mpsc::Receiver<Partial>| {
        let (replica_split, config) = (replica_split.clone(), config.clone());
        thread::spawn(move || {
            let mut trainer = of(&config);
            let mut metrics = Vec::new();
            for step in (0..3).map(Step) {
                replica_split
                    .calls(at)
                    .iter()
                    .for_each(|call| trainer.accumulate(step, call).unwrap());
                let mut sum = trainer.take_partial(step).unwrap();
                to.send(sum.clone()).unwrap();
                sum.add(from.recv().unwrap()).unwrap();
                trainer.put_sum(step, sum).unwrap();
                metrics.push(trainer.update(step).unwrap().1);
            }
            outcome(&trainer, metrics)
        })
    };
    let threads: Vec<_> =
        ends.into_iter().enumerate().map(|(at, (to, from))| replica(at, to, from)).collect();
    for thread in threads {
        assert_eq!(thread.join().unwrap(), expect);
    }
}

#[test]
fn inference_does_not_depend_on_the_rest_of_the_batch() {
    let config = TrainerConfig { reward_kl: Some(Choice::of("kl")), ..deterministic(0) };
    let mut trainer = of(&config);
    let mut runner = TestRunner::deterministic();
    for _ in 0..8 {
        let replica_split = replica_split().new_tree(&mut runner).unwrap().current();
        let whole = trainer.infer(Step(0), &replica_split.whole()).unwrap();
        let groups = replica_split.groups.iter().flat_map(|group| {
            let sequences: Vec<_> = group.iter().map(Response::sequence).collect();
            trainer.infer(Step(0), &sequences).unwrap()
        });
        assert_eq!(groups.collect::<Vec<_>>(), whole);
    }
}

#[test]
fn foreign_and_repeated_partials_are_refused() {
    let mut trainer = of(&deterministic(0));
    let replica_split = uneven();
    trainer.accumulate(Step(0), &replica_split.whole()).unwrap();
    let again = trainer.accumulate(Step(0), &replica_split.calls(1)[0]).unwrap_err().to_string();
    assert_eq!(again, "received the responses of p2, beginning with sample 0, twice");
    let mut refused = |numbers| {
        let partial = Partial { gradient: numbers, totals: Vec::new() };
        trainer.put_sum(Step(0), partial).unwrap_err().to_string()
    };
    assert_eq!(
        refused(Numbers::Float(vec![0.0; 3])),
        "a gradient of floating-point numbers, expected fixed-point numbers"
    );
    let expect = refused(Numbers::Fixed(vec![0; 3]));
    assert!(expect.starts_with("a gradient of 3 numbers, expected "), "{expect}");
    trainer.put_sum(Step(0), Partial::default()).unwrap();
    assert_eq!(
        trainer.update(Step(0)).unwrap_err().to_string(),
        "responses were accumulated after the last partial of the step was taken"
    );
}

#[test]
fn a_gradient_beyond_fixed_point_is_an_error() {
    let mut trainer = of(&deterministic(0));
    let huge = Response { weight: 1e9, ..example(&[2], &[3, 4], 1e3) };
    let error = trainer.accumulate(Step(0), &[valued(&huge)]).unwrap_err().to_string();
    assert_eq!(
        error,
        "a gradient leaves the range of deterministic sums, 2^23 on either side of 0"
    );
}
