//! Workers that run a graph together: on threads, on threads that encode batches, and in processes of this test program.

mod ports;

use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array, StringArray};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::cluster::{Cluster, ClusterError, Hosts, RunFacts, WorkerHandle};
use rollpacker_dataflow::fault::{Fault, Faults, Origin, give_fault, raise};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route::{broadcast, gather_at_first};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use timely::dataflow::Scope;
use timely::dataflow::channels::pact::Pipeline;

const STEPS: u64 = 4;
/// The environment variable that makes the program run a part: scenario, process, hostfile.
const PART: &str = "ROLLPACKER_TEST_CLUSTER";

fn number(value: f64) -> Batch {
    let name: ArrayRef = Arc::new(StringArray::from(vec!["n"]));
    let value: ArrayRef = Arc::new(Float64Array::from(vec![value]));
    Batch::from_columns(&schema::METRICS, vec![name, value])
}

/// Emits each worker's number at every step; `ends` is `false` if the last step never ends.
fn numbers(scope: Scope<'_, Step>, ends: bool) -> BatchStream<'_> {
    let mut operator = Operator::new("numbers", scope);
    let (mut output, stream) = operator.output(&schema::METRICS, &[]);
    let own = scope.index() as f64 + 1.0;
    operator.build(move |mut capabilities| {
        let mut held = capabilities.pop();
        let mut step = 0;
        move |_| {
            while let Some(capability) = held.as_mut().filter(|_| step < STEPS) {
                capability.downgrade(&Step(step));
                output.give(capability, number(own));
                step += 1;
            }
            if ends {
                held = None;
            }
        }
    });
    stream
}

/// Adds the numbers that arrive at this worker to `total`.
fn sum(stream: BatchStream<'_>, total: std::rc::Rc<std::cell::Cell<f64>>) {
    let mut operator = Operator::new("sum", stream.scope());
    let mut input = operator.input(stream, Pipeline, &schema::METRICS);
    operator.build(move |_| {
        move |_| {
            input.for_each(|_, batch| {
                total.set(
                    total.get()
                        + batch.values::<Float64Type>(column::VALUE).values().iter().sum::<f64>(),
                );
            });
        }
    });
}

/// Fails on the last worker when step 2 arrives, and holds that step open.
fn failing(stream: BatchStream<'_>, faults: &Faults) {
    let scope = stream.scope();
    let last = scope.index() + 1 == scope.peers();
    let mut operator = Operator::new("fragile", scope);
    let mut input = operator.input(stream, Pipeline, &schema::METRICS);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    operator.build(move |_| {
        let mut held = None;
        move |_| {
            input.for_each(|capability, _| {
                if last && *capability.time() == Step(2) && held.is_none() {
                    let capability = capability.retain(errors.index());
                    give_fault(
                        &mut errors,
                        &capability,
                        Fault::new("fragile", Origin::Program, "it broke"),
                    );
                    held = Some(capability);
                }
            });
        }
    });
    raise(error_stream, faults);
}

/// Sends the numbers of all workers to the first worker, and from there to all workers. Returns the sum that arrives at this worker.
fn summed_at_all(handle: WorkerHandle) -> Result<f64, Fault> {
    let total = std::rc::Rc::new(std::cell::Cell::new(0.0));
    let sink = total.clone();
    handle.run(None, move |scope, _| {
        let numbers = numbers(scope, true);
        let at_first = gather_at_first("numbers to the first", numbers, &schema::METRICS);
        sum(broadcast("numbers to all", at_first, &schema::METRICS), sink);
    })?;
    Ok(total.get())
}

fn broken(handle: WorkerHandle) -> Result<f64, Fault> {
    handle.run(None, |scope, faults| failing(numbers(scope, false), faults))?;
    Ok(0.0)
}

/// Fails on the first worker after the graph has ended on all workers.
fn fails_late(handle: WorkerHandle) -> Result<f64, Fault> {
    let is_first = handle.index() == 0;
    let total = summed_at_all(handle)?;
    if is_first {
        // The other process would end first if it did not wait for this one.
        let (_sender, never) = std::sync::mpsc::channel::<()>();
        let _timeout = never.recv_timeout(Duration::from_millis(200));
        return Err(Fault::new("session", Origin::Environment, "the model cannot be written"));
    }
    Ok(total)
}

fn endless(handle: WorkerHandle) -> Result<f64, Fault> {
    handle.run(None, |scope, _| {
        let total = std::rc::Rc::default();
        sum(
            gather_at_first("numbers to the first", numbers(scope, false), &schema::METRICS),
            total,
        );
    })?;
    Ok(0.0)
}

fn facts(recipe: &str) -> RunFacts {
    vec![("recipe".to_owned(), recipe.to_owned())]
}

fn in_one_process() -> [Cluster; 4] {
    [
        Cluster::with_threads(1),
        Cluster::with_threads(2),
        Cluster::with_serialized_batches(2),
        Cluster::with_serialized_batches(3),
    ]
}

#[test]
fn the_first_worker_broadcasts_the_data_of_all_workers() {
    for cluster in in_one_process() {
        let workers = cluster.workers();
        let sums = cluster.run(&facts("a"), "", summed_at_all).expect("no fault");
        let expected = STEPS as f64 * (1..=workers).sum::<usize>() as f64;
        assert_eq!(sums, vec![expected; workers], "{cluster:?}");
    }
}

#[test]
fn a_fault_of_one_worker_ends_all_with_its_message() {
    for cluster in in_one_process() {
        let error = cluster.run(&facts("a"), "", broken).expect_err("it broke").to_string();
        let expected = match cluster.workers() {
            1 => "fragile, step 3: it broke".to_owned(),
            workers => format!("fragile on worker {}, step 3: it broke", workers - 1),
        };
        assert_eq!(error, expected);
    }
}

#[test]
fn a_worker_that_fails_to_start_ends_the_others() {
    let error = Cluster::with_threads(3)
        .run(&facts("a"), "", |handle| match handle.index() {
            1 => Err(Fault::new("session", Origin::User, "no such folder")),
            _ => endless(handle),
        })
        .expect_err("one did not begin");
    assert_eq!(error.to_string(), "session: no such folder");
}

#[test]
fn a_process_that_does_not_connect_is_named() {
    let place = ProcessSetup::of(2);
    let cluster = place.cluster(0).with_connect_timeout(Duration::from_millis(50));
    let error = cluster
        .run(&facts("a"), "", summed_at_all)
        .expect_err("no other process connects")
        .to_string();
    assert!(error.starts_with(&format!("process 1 ({}", place.address(1))), "{error}");
    let cluster = place.cluster(1).with_connect_timeout(Duration::from_millis(50));
    let error = cluster
        .run(&facts("a"), "", summed_at_all)
        .expect_err("no other process connects")
        .to_string();
    assert!(error.contains(&format!("process 0 ({}", place.address(0))), "{error}");
}

#[test]
fn a_process_must_be_listed_in_the_hostfile() {
    let hosts = Hosts::parse("a:1", Path::new("hosts")).expect("valid");
    let error = Cluster::with_processes(1, hosts, 1).expect_err("there is one").to_string();
    assert_eq!(error, "process 1 does not exist: the hostfile lists 1, counted from 0");
}

struct ProcessSetup {
    folder: tempfile::TempDir,
    ports: Vec<u16>,
}

impl ProcessSetup {
    fn of(processes: usize) -> Self {
        let ports: Vec<u16> = (0..processes).map(|_| ports::reserved()).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let hosts: String = ports.iter().map(|port| format!("127.0.0.1:{port}\n")).collect();
        std::fs::write(folder.path().join("hosts"), hosts).expect("written");
        Self { folder, ports }
    }

    fn address(&self, process: usize) -> String {
        format!("127.0.0.1:{}", self.ports[process])
    }

    fn cluster(&self, process: usize) -> Cluster {
        let hosts = Hosts::read(&self.folder.path().join("hosts")).expect("valid");
        Cluster::with_processes(2, hosts, process).expect("in it")
    }

    /// Starts this program again as a part of `scenario`.
    fn start(&self, scenario: &str, process: usize) -> Child {
        let hosts = self.folder.path().join("hosts");
        Command::new(std::env::current_exe().expect("a program"))
            .args(["part", "--exact", "--nocapture"])
            .env(PART, format!("{scenario} {process} {}", hosts.display()))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts")
    }
}

fn ended(child: Child) -> (ExitStatus, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `scenario` in two processes of two workers each. Both must succeed, and each must print its line of `expected`.
fn check(scenario: &str, expected: impl Fn(&ProcessSetup) -> [String; 2]) {
    let place = ProcessSetup::of(2);
    let children = [1, 0].map(|process| place.start(scenario, process));
    let [second, first] = children.map(ended);
    for ((status, output), expected) in [first, second].into_iter().zip(expected(&place)) {
        assert!(status.success(), "{output}");
        assert!(output.contains(&format!("{expected}\n")), "expected {expected}, found {output}");
    }
}

#[test]
fn two_processes_run_one_graph() {
    check("summed_at_all", |_| ["[40.0, 40.0]", "[40.0, 40.0]"].map(str::to_owned));
}

#[test]
fn a_fault_in_one_process_ends_the_other_with_the_same_message() {
    check("broken", |place| {
        let message =
            format!("fragile on worker 3 of process 1 ({}), step 3: it broke", place.address(1));
        [message.clone(), message]
    });
}

#[test]
fn a_fault_after_the_graph_ends_the_other_process_with_the_same_message() {
    check("fails_late", |_| {
        ["session: the model cannot be written", "session: the model cannot be written"]
            .map(str::to_owned)
    });
}

#[test]
fn processes_that_run_different_recipes_refuse_each_other() {
    check("different", |place| {
        let differs = |other: usize, here: &str, there: &str| {
            format!(
                "process {other} ({}) has a different recipe: `{there}`; this process has `{here}`",
                place.address(other)
            )
        };
        [differs(1, "recipe 0", "recipe 1"), differs(0, "recipe 1", "recipe 0")]
    });
}

#[test]
fn a_killed_process_is_reported_by_the_other() {
    let place = ProcessSetup::of(2);
    let mut second = place.start("endless", 1);
    let mut first = place.start("endless", 0);
    // The process prints a line when it runs.
    let mut running = [0; 1024];
    let stdout = second.stdout.as_mut().expect("piped");
    let mut output = String::new();
    while !output.contains("the step continues") {
        let read = std::io::Read::read(stdout, &mut running).expect("readable");
        assert!(read > 0, "{output}");
        output.push_str(&String::from_utf8_lossy(&running[..read]));
    }
    second.kill().expect("killed");
    second.wait().expect("gone");
    let output = {
        let mut stdout = first.stdout.take().expect("piped");
        let mut output = String::new();
        std::io::Read::read_to_string(&mut stdout, &mut output).expect("readable");
        output
    };
    assert!(first.wait().expect("it ends").success(), "{output}");
    let lost = format!("cluster: process 1 ({}) was lost at step ", place.address(1));
    assert!(
        output.contains(&lost) && output.contains(": it exited without reporting an error\n"),
        "{output}"
    );
}

/// Runs one process of a cluster if the environment requests it. Does nothing when it runs as a test.
#[test]
fn part() {
    let Ok(part) = std::env::var(PART) else { return };
    let mut words = part.splitn(3, ' ');
    let (scenario, process, hosts) = (words.next(), words.next(), words.next());
    let process = process.and_then(|process| process.parse().ok()).expect("a process");
    let hosts = Hosts::read(Path::new(hosts.expect("a hostfile"))).expect("valid");
    let cluster = Cluster::with_processes(2, hosts, process).expect("in it");
    let result = match scenario {
        Some("summed_at_all") => cluster.run(&facts("a"), "", summed_at_all),
        Some("fails_late") => cluster.run(&facts("a"), "", fails_late),
        Some("broken") => cluster.run(&facts("a"), "", broken),
        Some("different") => cluster.run(&facts(&format!("recipe {process}")), "", summed_at_all),
        _ => cluster.run(&facts("a"), "", |handle| {
            if handle.index() == 3 {
                print_line("the step continues");
            }
            endless(handle)
        }),
    };
    print_line(&end(result));
}

fn end(result: Result<Vec<f64>, ClusterError>) -> String {
    result.map_or_else(|error| error.to_string(), |sums| format!("{sums:?}"))
}

fn print_line(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{line}").and_then(|()| stdout.flush()).expect("read");
}
