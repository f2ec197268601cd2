//! The same graph on every transport: one thread, threads, threads that encode batches, two processes over TCP.

mod ports;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};

use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, StringArray, UInt64Array};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route::{by_key, to_first};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;
use timely::{CommunicationConfig, Config, WorkerConfig};

const STEPS: u64 = 5;
const ROWS: u64 = 300;
const MEMBER: &str = "ROLLPACKER_TEST_CLUSTER_MEMBER";

fn policies(versions: impl Iterator<Item = u64> + Clone, location: &str) -> Batch {
    let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(versions.clone()));
    let text: ArrayRef =
        Arc::new(StringArray::from_iter_values(versions.clone().map(|_| location)));
    Batch::from_columns(&schema::POLICIES, vec![ids.clone(), text, ids])
}

/// Emits rows of every step on every worker.
fn source(scope: Scope<'_, Step>) -> BatchStream<'_> {
    let mut operator = Operator::new("source", scope);
    let (mut output, stream) = operator.output(&schema::POLICIES, &[]);
    let worker = scope.index() as u64;
    operator.build(move |mut capabilities| {
        let mut capability = capabilities.pop();
        move |_| {
            let Some(mut capability) = capability.take() else { return };
            for step in 0..STEPS {
                capability.downgrade(&Step(step));
                output.give(
                    &capability,
                    policies((0..ROWS).map(move |row| row * 7 + worker + step), "source"),
                );
            }
        }
    });
    stream
}

/// Replaces the location of rows with the worker that they were routed to.
fn mark<'scope>(stream: BatchStream<'scope>) -> BatchStream<'scope> {
    let mut operator = Operator::new("mark", stream.scope());
    let (index, peers) = (stream.scope().index() as u64, stream.scope().peers() as u64);
    let mut input = operator.input(stream, by_key(column::POLICY_VERSION), &schema::POLICIES);
    let (mut output, marked) = operator.output(&schema::POLICIES, &[0]);
    operator.build(move |_| {
        move |_| {
            input.for_each(|capability, batch| {
                let versions = batch.values::<UInt64Type>(column::POLICY_VERSION);
                assert!(
                    versions.values().iter().all(|version| version % peers == index),
                    "routed by the key"
                );
                output.give(
                    &capability.retain(0),
                    policies(versions.values().iter().copied(), &index.to_string()),
                );
            });
        }
    });
    marked
}

type Seen = BTreeMap<(u64, u64), u64>;

/// Counts on worker 0 how often each version arrived at each step.
fn collect(stream: BatchStream<'_>, seen: Arc<Mutex<Seen>>) {
    let mut operator = Operator::new("collect", stream.scope());
    let mut input = operator.input(stream, to_first(), &schema::POLICIES);
    operator.build(move |_| {
        move |_| {
            input.for_each(|capability, batch| {
                for version in batch.values::<UInt64Type>(column::POLICY_VERSION).values() {
                    *seen
                        .lock()
                        .expect("unpoisoned")
                        .entry((capability.time().0, *version))
                        .or_default() += 1;
                }
            });
        }
    });
}

fn run(communication: CommunicationConfig) -> Seen {
    let seen = Arc::new(Mutex::new(Seen::new()));
    let collected = seen.clone();
    let config = Config { communication, worker: WorkerConfig::default() };
    let workers = timely::execute(config, move |worker| {
        worker.dataflow::<Step, _, _>(|scope| collect(mark(source(scope)), collected.clone()));
    });
    for result in workers.expect("the workers start").join() {
        result.expect("no worker panics");
    }
    std::mem::take(&mut seen.lock().expect("unpoisoned"))
}

fn expected(workers: u64) -> Seen {
    let mut seen = Seen::new();
    for (step, row, worker) in
        (0..STEPS).flat_map(|s| (0..ROWS).flat_map(move |r| (0..workers).map(move |w| (s, r, w))))
    {
        *seen.entry((step, row * 7 + worker + step)).or_default() += 1;
    }
    seen
}

#[test]
fn on_one_thread() {
    assert_eq!(run(CommunicationConfig::Thread), expected(1));
}

#[test]
fn on_two_threads() {
    assert_eq!(run(CommunicationConfig::Process(2)), expected(2));
}

#[test]
fn on_two_threads_that_serialise() {
    assert_eq!(run(CommunicationConfig::ProcessBinary(2)), expected(2));
}

#[test]
fn on_two_processes() {
    let addresses = [free_address(), free_address()].join(",");
    let mut peer = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "cluster_member", "--nocapture"])
        .env(MEMBER, &addresses)
        .stdout(Stdio::null())
        .spawn()
        .expect("the second process starts");
    let seen = run(cluster(&addresses, 0));
    assert!(peer.wait().expect("the second process ends").success());
    assert_eq!(seen, expected(2));
}

/// The second process of [`on_two_processes`]. Does nothing when it runs as a test.
#[test]
fn cluster_member() {
    if let Ok(addresses) = std::env::var(MEMBER) {
        assert!(run(cluster(&addresses, 1)).is_empty(), "every row went to the first worker");
    }
}

fn cluster(addresses: &str, process: usize) -> CommunicationConfig {
    CommunicationConfig::Cluster {
        threads: 1,
        process,
        addresses: addresses.split(',').map(str::to_owned).collect(),
        report: false,
        zerocopy: true,
    }
}

fn free_address() -> String {
    format!("127.0.0.1:{}", ports::reserved())
}

#[test]
fn within_a_process_a_batch_is_shared() {
    let sent = policies(0..10, "here");
    let pointer = |batch: &Batch| {
        batch.rows().expect("has rows").column(0).to_data().buffers()[0].as_ptr() as usize
    };
    let (sender, received) = channel();
    let (sender, given) = (Mutex::new(sender), pointer(&sent));
    rollpacker_dataflow::runtime::run(|scope, _| {
        let mut operator = Operator::new("source", scope);
        let (mut output, stream) = operator.output(&schema::POLICIES, &[]);
        operator.build(move |mut capabilities| {
            let mut capability = capabilities.pop();
            move |_| {
                if let Some(capability) = capability.take() {
                    output.give(&capability, sent.clone());
                }
            }
        });
        let mut operator = Operator::new("sink", scope);
        let mut input = operator.input(stream, Pipeline, &schema::POLICIES);
        operator.build(move |_| {
            move |_| {
                input.for_each(|_, batch| {
                    sender.lock().expect("unpoisoned").send(pointer(&batch)).expect("read")
                })
            }
        });
    })
    .expect("no fault");
    assert_eq!(received.recv().expect("one batch"), given);
}
