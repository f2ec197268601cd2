//! Tests of servers that report success for a load but keep their old weights.

use super::proxy::{Fault, Gate, LOAD, SCORE};
use super::server_pair::ServerPair;

const INEFFECTIVE_LOAD: Fault = Fault::Answer {
    status: "200 OK",
    header: "content-type: application/json\r\n",
    body: r#"{"results": [null]}"#,
};

/// A number of faults that no test uses up.
const ALWAYS: usize = 1000;

#[test]
fn a_server_with_wrong_weights_is_detected_before_training() {
    let servers = ServerPair::new();
    let [faulty, correct] = &servers.proxies;
    let gate = Gate::default();
    // The first load has no fault, because it is of the weights that the server already has.
    faulty.inject(LOAD, 1, ALWAYS, INEFFECTIVE_LOAD);
    // The second step continues only after the faulty server had both of its attempts, so that its figures are in the metrics of this step.
    correct.inject(LOAD, 1, 1, Fault::HeldRequest(gate.clone()));
    let mut run = servers.spawn(&[]);
    run.wait_until(|| gate.holds(1));
    // The check at the start whether the server can generate counts as a score, too.
    run.wait_until(|| faulty.count(LOAD) >= 3 && faulty.count(SCORE) >= 4);
    gate.open();
    let outcome = servers.finish(run);
    for (metric, expected) in [("canary_reloads", 1.0), ("servers_lost", 1.0)] {
        let metric = format!("rollout/{metric}");
        assert_eq!(outcome.of(1, &metric), 0.0, "{metric}");
        assert_eq!(outcome.of(2, &metric), expected, "{metric}");
    }
    assert!(outcome.of(2, "rollout/canary_max") > 1e-4);
    assert_eq!(outcome.of(2, "rollout/servers_ready"), 1.0);
    let later = outcome.0.range(2..).flat_map(|(_, step)| &step.responses);
    assert!(later.clone().all(|row| row.instance == 1), "the liar takes no responses");
    assert!(outcome.0.range(2..).all(|(step, outcome)| {
        outcome.responses.iter().flat_map(|row| &row.versions).all(|version| version + 1 == *step)
    }));
}

#[test]
fn a_run_fails_in_the_step_in_which_all_servers_have_wrong_weights() {
    let servers = ServerPair::new();
    servers.proxies.iter().for_each(|proxy| proxy.inject(LOAD, 1, ALWAYS, INEFFECTIVE_LOAD));
    let end = servers.spawn(&[]).end();
    let urls = servers.proxies.each_ref().map(|proxy| proxy.url());
    let parts =
        ["cannot load policy v1", "does not use the weights of v1", "canary_kl", "canary_max"];
    end.assert_failed(&[&parts[..], &urls.each_ref().map(String::as_str)].concat());
    let metrics = std::fs::read_to_string(servers.workspace.path("run/metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 1, "no step was trained with old weights: {metrics}");
}
