//! Tests of the watchdog: a stalled graph is reported and ends.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Nanos, VirtualClock, WallClock};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::runtime::{run_virtual, run_watched};
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_dataflow::watchdog::{Stall, Watchdog};
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;

const AFTER: Nanos = Nanos(20_000_000);

/// Builds an operator that holds a step open forever, and one that waits for it. The first reports a wait if `reports_wait` is `true`.
fn build(scope: Scope<'_, Step>, reports_wait: bool) {
    let mut operator = Operator::new("reward", scope);
    let (_, stream) = operator.output(&schema::METRICS, &[]);
    let waiting = operator.wait_handle();
    operator.build(move |capabilities| {
        move |_| {
            let [open] = &capabilities[..] else { return };
            let id = SampleId { step: *open.time(), prompt: PromptId(3), sample: 1 };
            if reports_wait {
                waiting.begin(id, "a verdict");
            }
        }
    });
    let mut operator = Operator::new("update", scope);
    let mut input = operator.input(stream, Pipeline, &schema::METRICS);
    operator.notify_always();
    operator.build(move |_| move |_| input.for_each(|_, _| {}));
}

fn fault(reports_wait: bool) -> (String, Vec<Stall>) {
    let stalls = Rc::<RefCell<Vec<Stall>>>::default();
    let sink = stalls.clone();
    let watchdog = Watchdog::new(Arc::new(WallClock::start()), AFTER, move |stall| {
        sink.borrow_mut().push(stall.clone());
    });
    let fault = run_watched(Some(watchdog.fail_on_stall()), |scope, _| build(scope, reports_wait));
    (fault.expect_err("it is stuck").to_string(), stalls.take())
}

#[test]
fn the_fault_names_what_an_operator_awaits() {
    let (fault, stalls) = fault(true);
    assert!(fault.starts_with("watchdog, step 1: no progress for 0.0"), "{fault}");
    assert!(
        fault.contains("reward, step 1, has waited 0.0")
            && fault.ends_with(" s for a verdict: p3.1"),
        "{fault}"
    );
    assert_eq!(stalls.len(), 1);
    assert!(stalls[0].idle_time >= AFTER);
}

#[test]
fn the_fault_lists_the_frontiers_if_no_operator_reports_a_wait() {
    let (fault, _) = fault(false);
    assert!(fault.ends_with("the input frontiers are reward [] update [1]"), "{fault}");
}

#[test]
fn a_stall_in_virtual_time_is_passed_to_the_callback() {
    let received = Rc::<RefCell<Vec<String>>>::default();
    let sink = received.clone();
    let fault = run_virtual(&VirtualClock::default(), |scope, faults| {
        faults.on_fault(move |fault| sink.borrow_mut().push(fault.to_string()));
        build(scope, true);
    });
    let fault = fault.expect_err("it is stuck").to_string();
    assert!(fault.contains("the run is stalled"), "{fault}");
    assert_eq!(*received.borrow(), [fault]);
}
