//! Bridges: tasks and threads reply exactly once, even when they panic, and producers respect their budget.

use std::cell::RefCell;
use std::hash::Hash;
use std::num::ParseIntError;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, StringArray, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::{CallError, Executor, Panicked, ServiceThread, Tasks, produce};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::fault::{HasOrigin, Origin, raise};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::runtime::run;
use rollpacker_dataflow::schema::{self, column};
use timely::dataflow::channels::pact::Pipeline;
use tokio::runtime::{Builder, Runtime};

fn rows(range: std::ops::Range<u64>) -> Batch {
    let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(range.clone()));
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(range.map(|_| "row")));
    Batch::from_columns(&schema::POLICIES, vec![ids.clone(), text, ids])
}

fn threads(threads: usize) -> Runtime {
    Builder::new_multi_thread().worker_threads(threads).build().expect("a runtime")
}

/// Runs an operator that `start`s tasks. `step` takes results whenever the operator runs, and returns `true` once the operator may end.
fn run_with_tasks<K: Eq + Hash + Clone + Send + 'static, R: Send + 'static>(
    executor: Executor,
    start: impl FnOnce(&mut Tasks<K, R>) + 'static,
    mut step: impl FnMut(&mut Tasks<K, R>) -> bool + 'static,
) {
    run(|scope, _| {
        let mut operator = Operator::new("tasks", scope);
        let (_output, _stream) = operator.output(&schema::POLICIES, &[]);
        let mut tasks = Tasks::new(executor, operator.activator());
        operator.build(move |capabilities| {
            let mut capability = Some(capabilities);
            start(&mut tasks);
            move |_| {
                if step(&mut tasks) {
                    capability = None;
                }
                let _held = &capability;
            }
        });
    })
    .expect("no fault");
}

#[test]
fn a_service_thread_answers_in_order_and_ends() {
    let service = ServiceThread::spawn("service", || Ok::<_, ()>(0_u64)).expect("made");
    let replies: Vec<_> = (1..=10)
        .map(|n| {
            service.call(
                || {},
                move |sum| {
                    *sum += n;
                    *sum
                },
            )
        })
        .collect();
    drop(service);
    let sums: Vec<_> = replies.into_iter().map(|reply| reply.wait().expect("answered")).collect();
    assert_eq!(sums, [1, 3, 6, 10, 15, 21, 28, 36, 45, 55]);
}

#[test]
fn a_failed_construction_of_a_service_returns_its_error() {
    let made = ServiceThread::<u64>::spawn("service", || Err("no device"));
    assert_eq!(made.err(), Some("no device"));
}

#[test]
fn a_request_keeps_the_type_of_its_error() {
    let service = ServiceThread::spawn("service", || Ok::<_, ()>(7_u8)).expect("made");
    let parse = |text: &'static str| {
        let add = move |seven: &mut u8| Ok::<_, ParseIntError>(text.parse::<u8>()? + *seven);
        service.call(|| {}, add).wait_outcome()
    };
    assert_eq!(parse("1"), Ok(8));
    let failed = parse("one").expect_err("not a number");
    assert!(matches!(failed, CallError::Failed(ParseIntError { .. })), "{failed:?}");
    assert_eq!(failed.to_string(), "invalid digit found in string");
    let lost = service.call(|| {}, |_| -> Result<(), ParseIntError> { panic!("on purpose") });
    assert_eq!(lost.wait_outcome(), Err(CallError::Panicked(Panicked)));
}

#[test]
fn a_panicked_service_thread_is_reported_and_wakes_the_caller() {
    let service = ServiceThread::spawn("service", || Ok::<_, ()>(())).expect("made");
    let (woken, wakes) = channel();
    let later = woken.clone();
    let first = service.call(move || woken.send("first").expect("read"), |()| panic!("on purpose"));
    let second = service.call(move || later.send("second").expect("read"), |()| ());
    assert_eq!((first.wait(), second.wait()), (Err::<(), _>(Panicked), Err(Panicked)));
    let mut seen: Vec<_> = wakes.into_iter().collect();
    seen.sort_unstable();
    assert_eq!(seen, ["first", "second"]);
}

#[test]
fn a_task_that_panics_returns_an_answer() {
    let runtime = threads(1);
    let answers = Rc::new(RefCell::new(Vec::new()));
    let seen = answers.clone();
    let start = |tasks: &mut Tasks<_, _>| {
        tasks.spawn("good", async { 7 });
        tasks.spawn("bad", async { panic!("on purpose") });
    };
    run_with_tasks(Executor::Tokio(runtime.handle().clone()), start, move |tasks| {
        while let Some(answer) = tasks.try_next() {
            seen.borrow_mut().push(answer);
        }
        seen.borrow().len() == 2
    });
    answers.borrow_mut().sort_unstable_by_key(|(key, _)| *key);
    assert_eq!(*answers.borrow(), [("bad", Err(Panicked)), ("good", Ok(7))]);
}

/// A value that counts its drops.
struct Gone(Arc<AtomicUsize>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_cancelled_task_is_dropped_without_an_answer() {
    let runtime = threads(1);
    for executor in [Executor::Tokio(runtime.handle().clone()), Executor::Inline] {
        let gone = Arc::new(AtomicUsize::new(0));
        let (answers, dropped) = (Rc::new(RefCell::new(Vec::new())), gone.clone());
        let seen = answers.clone();
        let start = move |tasks: &mut Tasks<_, _>| {
            for key in ["pending", "ready"] {
                let gone = Gone(dropped.clone());
                tasks.spawn(key, async move {
                    let _gone = gone;
                    if key == "pending" {
                        std::future::pending::<()>().await;
                    }
                });
            }
            tasks.cancel(&"pending");
            assert_ne!(dropped.load(Ordering::SeqCst), 0, "it was dropped immediately");
            // The task may have replied already.
            tasks.cancel(&"ready");
            tasks.cancel(&"ready");
            tasks.spawn("last", async {});
        };
        run_with_tasks(executor, start, move |tasks| {
            while let Some((key, _)) = tasks.try_next() {
                seen.borrow_mut().push(key);
            }
            !seen.borrow().is_empty()
        });
        assert_eq!(*answers.borrow(), ["last"]);
        assert_eq!(gone.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_result_wakes_the_operator_after_it_took_all_earlier_ones() {
    const WAVES: usize = 100;
    let runtime = threads(2);
    let answers = Rc::new(RefCell::new(Vec::new()));
    let seen = answers.clone();
    let executor = Executor::Tokio(runtime.handle().clone());
    let start = |tasks: &mut Tasks<_, _>| tasks.spawn(0, async {});
    run_with_tasks(executor, start, move |tasks| {
        let mut taken = Vec::new();
        while let Some((wave, result)) = tasks.try_next() {
            assert_eq!(result, Ok(()));
            taken.push(wave);
        }
        // Nothing but the results of these tasks wakes the operator again.
        for wave in &taken {
            seen.borrow_mut().push(*wave);
            if wave + 1 < WAVES {
                tasks.spawn(wave + 1, async {});
            }
        }
        taken.contains(&(WAVES - 1))
    });
    assert!(answers.borrow().iter().copied().eq(0..WAVES));
}

#[test]
fn pending_tasks_are_dropped_with_their_operator() {
    let runtime = threads(1);
    for executor in [Executor::Tokio(runtime.handle().clone()), Executor::Inline] {
        let gone = Arc::new(AtomicUsize::new(0));
        run(|scope, _| {
            let operator = Operator::new("tasks", scope);
            let mut tasks = Tasks::new(executor, operator.activator());
            let guard = Gone(gone.clone());
            tasks.spawn("pending", async move {
                let _guard = guard;
                std::future::pending::<()>().await;
            });
            // A thread that is polling the task at this moment drops it shortly afterwards.
            let (begun, answered) = channel();
            tasks.spawn("asked", async move { begun.send(()).expect("is read") });
            while answered.try_recv().is_err() {
                tasks.try_next();
            }
            drop(tasks);
            assert_eq!(gone.load(Ordering::SeqCst), 1);
            operator.build(|_| |_| ());
        })
        .expect("no fault");
    }
}

#[test]
fn a_producer_runs_ahead_within_its_budget() {
    let budget = Budget::new(10);
    let (max, total) = (Arc::new(AtomicUsize::new(0)), Rc::new(RefCell::new(0)));
    let (in_flight, counted, released) = (max.clone(), total.clone(), budget.clone());
    run(|scope, faults| {
        let (stream, errors) =
            produce(scope, "reader", &schema::POLICIES, budget.clone(), |emitter| {
                for chunk in 0..20 {
                    assert!(
                        emitter.send(rows(chunk * 7..(chunk + 1) * 7)),
                        "the budget stays open"
                    );
                }
                Ok::<_, Truncated>(())
            });
        raise(errors, faults);
        let mut operator = Operator::new("consumer", scope);
        let mut input = operator.input(stream, Pipeline, &schema::POLICIES);
        operator.build(move |_| {
            move |_| {
                let mut taken = 0;
                input.for_each(|_, batch| {
                    let ids = batch.values::<UInt64Type>(column::POLICY_VERSION);
                    assert_eq!(ids.value(0), *counted.borrow() as u64, "in order");
                    taken += batch.num_rows();
                    *counted.borrow_mut() += batch.num_rows();
                });
                in_flight.fetch_max(taken, Ordering::Relaxed);
                released.release(taken);
            }
        });
    })
    .expect("no fault");
    assert_eq!(*total.borrow(), 140);
    assert!(max.load(Ordering::Relaxed) <= 10, "never more than the budget is in flight");
}

#[derive(Debug, thiserror::Error)]
#[error("train.parquet is truncated")]
struct Truncated;

impl HasOrigin for Truncated {
    fn origin(&self) -> Origin {
        Origin::Environment
    }
}

#[test]
fn a_producer_that_fails_ends_the_run_with_its_message() {
    let fault = run(|scope, faults| {
        let (_rows, errors) =
            produce(scope, "reader", &schema::POLICIES, Budget::new(1), |_| Err(Truncated));
        raise(errors, faults);
    })
    .expect_err("raised");
    assert_eq!(fault.to_string(), "reader: train.parquet is truncated");
    assert_eq!(fault.origin, Origin::Environment);
}

#[test]
fn a_producer_that_panics_ends_the_run() {
    let fault = run(|scope, faults| {
        let body = |_: &_| -> Result<(), Truncated> { panic!("on purpose") };
        let (_rows, errors) = produce(scope, "reader", &schema::POLICIES, Budget::new(1), body);
        raise(errors, faults);
    })
    .expect_err("raised");
    assert_eq!(fault.message, Panicked.to_string());
}
