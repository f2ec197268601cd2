//! The feedback edge bounds how far sampling runs ahead of training: by exactly the staleness.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, StringArray, UInt64Array};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::fault::{Fault, Origin, give_fault, raise};
use rollpacker_dataflow::feedback;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::runtime::run;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use timely::dataflow::channels::pact::Pipeline;

fn policy(version: u64) -> Batch {
    let version: ArrayRef = Arc::new(UInt64Array::from(vec![version]));
    Batch::from_columns(
        &schema::POLICIES,
        vec![version.clone(), Arc::new(StringArray::from(vec!["test"])), version],
    )
}

#[derive(Debug, PartialEq, Eq, Clone, Copy)]
enum Happened {
    Sampled { step: u64, version: u64 },
    Trained { step: u64 },
}

type Log = Rc<RefCell<Vec<Happened>>>;

/// Records the policy with which each of the first `steps` steps samples, and passes it on. Drops the policies of later steps.
fn sample<'scope>(policies: BatchStream<'scope>, steps: u64, log: Log) -> BatchStream<'scope> {
    let mut operator = Operator::new("sample", policies.scope());
    let mut input = operator.input(policies, Pipeline, &schema::POLICIES);
    let (mut output, sampled) = operator.output(&schema::POLICIES, &[0]);
    operator.build(move |_| {
        move |_| {
            input.for_each(|capability, batch| {
                let step = capability.time().0;
                let version = batch.values::<UInt64Type>(column::POLICY_VERSION).value(0);
                if step < steps {
                    log.borrow_mut().push(Happened::Sampled { step, version });
                    output.give(&capability.retain(0), batch);
                }
            });
        }
    });
    sampled
}

/// Produces version `t + 1` from the samples of step `t`, once the frontier has passed it.
fn train<'scope>(sampled: BatchStream<'scope>, log: Log) -> BatchStream<'scope> {
    let mut operator = Operator::new("train", sampled.scope());
    let mut input = operator.input(sampled, Pipeline, &schema::POLICIES);
    let (mut output, made) = operator.output(&schema::POLICIES, &[0]);
    operator.build(move |_| {
        let mut open = std::collections::BTreeMap::new();
        move |frontiers| {
            input.for_each(|capability, _| {
                open.entry(*capability.time()).or_insert_with(|| capability.retain(0));
            });
            while let Some(entry) =
                open.first_entry().filter(|entry| !frontiers[0].less_equal(entry.key()))
            {
                let (step, capability) = entry.remove_entry();
                log.borrow_mut().push(Happened::Trained { step: step.0 });
                output.give(&capability, policy(step.0 + 1));
            }
        }
    });
    made
}

fn log_of(staleness: u64, steps: u64) -> Vec<Happened> {
    let log = Log::default();
    run(|scope, _| {
        let (policies, edge) = feedback::policies(scope, staleness, policy(0));
        edge.connect(train(sample(policies, steps, log.clone()), log.clone()));
    })
    .expect("no fault");
    log.take()
}

#[test]
fn each_step_samples_with_the_policy_of_the_staleness_bound() {
    for staleness in 0..4 {
        let log = log_of(staleness, 12);
        let sampled: Vec<_> =
            log.iter().filter(|happened| matches!(happened, Happened::Sampled { .. })).collect();
        let expected: Vec<_> = (0..12)
            .map(|step| Happened::Sampled { step, version: step.saturating_sub(staleness) })
            .collect();
        assert_eq!(sampled, expected.iter().collect::<Vec<_>>(), "staleness {staleness}");
    }
}

#[test]
fn sampling_leads_training_by_no_more_than_the_staleness() {
    for staleness in 0..4 {
        let (mut lead, mut longest) = (0_i64, 0);
        for happened in log_of(staleness, 12) {
            lead += if matches!(happened, Happened::Sampled { .. }) { 1 } else { -1 };
            longest = longest.max(lead);
        }
        assert_eq!(longest, i64::try_from(staleness).expect("small") + 1, "staleness {staleness}");
    }
}

#[test]
fn a_fault_ends_the_run_and_names_step_and_operator() {
    let fault = run(|scope, faults| {
        let mut operator = Operator::new("reward", scope);
        let (mut errors, stream) = operator.output(&schema::ERRORS, &[]);
        operator.build(move |mut capabilities| {
            let mut capability = capabilities.pop();
            move |_| {
                // The capability is kept, so the step stays open.
                if let Some(capability) =
                    capability.as_mut().filter(|capability| *capability.time() < Step(3))
                {
                    capability.downgrade(&Step(3));
                    give_fault(
                        &mut errors,
                        capability,
                        Fault::new("reward", Origin::User, "no reward for data_source `x`"),
                    );
                }
            }
        });
        raise(stream, faults);
    })
    .expect_err("the fault is raised");
    assert_eq!(fault.to_string(), "reward, step 4: no reward for data_source `x`");
}
