//! Tests of a trainer that is killed while it delivers weights.

use super::proxy::{Fault, Gate, LOAD};
use super::server_pair::{STEPS, ServerPair};

#[test]
fn a_run_that_is_killed_in_a_delivery_and_resumed_trains_each_prompt_once() {
    let servers = ServerPair::new();
    let gate = Gate::default();
    let [before, after] = &servers.proxies;
    // The delivery for the third step: one server never receives its load. The other has loaded, but not answered, and has the old label.
    before.inject(LOAD, 2, 1, Fault::HeldRequest(gate.clone()));
    after.inject(LOAD, 2, 1, Fault::HeldAnswer(gate.clone()));
    let saved = "trainer.save_freq=1";
    let mut run = servers.spawn(&[saved]);
    run.wait_until(|| gate.holds(2));
    drop(run);
    let outcome = servers.finish(servers.spawn(&[saved, "--resume"]));
    assert_eq!(
        outcome.0.keys().copied().collect::<Vec<_>>(),
        (1..=STEPS as u64).collect::<Vec<_>>()
    );
    outcome.assert_canary_passed();
    for (step, outcome) in &outcome.0 {
        let mut versions = outcome.responses.iter().flat_map(|row| &row.versions);
        assert!(
            versions.all(|version| version + 1 == *step),
            "each token has the version of its step"
        );
    }
    for proxy in &servers.proxies {
        assert_eq!(proxy.label(), (STEPS - 1).to_string());
    }
}
