//! Panics of the engine's tasks, each of which ends the run with an error. Without it, the caller would wait for ever.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_servers::engine::{Detokenize, ServersEngine};
use rollpacker_servers::weights::{PublishedWeights, WeightSource};
use rollpacker_stages::rollout::Policy;

use super::server::Server;
use super::toy::Trainer;
use super::world::{Caller, PACE, config};

/// Starts an engine, requests a response and returns the error of the engine.
fn failure(source: Box<dyn WeightSource>, detokenize: Detokenize, clock: Arc<dyn Clock>) -> String {
    let server = Server::start(PACE);
    let folder = tempfile::tempdir().unwrap();
    let config = config(&[&server], &folder);
    let engine = ServersEngine::start(config, source, detokenize, clock).unwrap();
    let mut caller = Caller::new(engine, folder);
    caller.request(0, 0, 1);
    caller.failure().to_string()
}

fn no_text() -> Detokenize {
    Arc::new(|_| String::new())
}

struct PanickingTrainer;

impl WeightSource for PanickingTrainer {
    fn find(&self, _: &Policy) -> Result<Box<dyn PublishedWeights>, String> {
        Ok(Box::new(Self))
    }
}

impl PublishedWeights for PanickingTrainer {
    fn write(&self, _: &Path) -> Result<(), String> {
        panic!("the weights are gone");
    }

    fn score(&self, _: &[i32]) -> Result<Vec<f32>, String> {
        Ok(Vec::new())
    }
}

/// A clock that panics at its third reading, which is the first one of a delivery.
struct PanickingClock(WallClock, AtomicU64);

impl Clock for PanickingClock {
    fn now(&self) -> Nanos {
        assert_ne!(self.1.fetch_add(1, Ordering::Relaxed), 2, "the clock is broken");
        self.0.now()
    }
}

#[test]
fn a_panic_of_the_preparation_ends_the_run() {
    let error = failure(Box::new(PanickingTrainer), no_text(), Arc::new(WallClock::start()));
    assert!(error.contains("the weights are gone"), "{error}");
}

#[test]
fn a_panic_of_a_delivery_ends_the_run() {
    let clock = PanickingClock(WallClock::start(), AtomicU64::new(0));
    let error = failure(Box::new(Trainer), no_text(), Arc::new(clock));
    assert!(error.contains("the clock is broken"), "{error}");
}

#[test]
fn a_panic_of_the_coordinator_ends_the_run() {
    let detokenize = Arc::new(|_: &[i32]| panic!("no such token"));
    let error = failure(Box::new(Trainer), detokenize, Arc::new(WallClock::start()));
    assert!(error.contains("no such token"), "{error}");
}
