use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::chrome::ChromeTrace;
use super::*;

fn at(from: u64, to: u64) -> Interval {
    (Nanos(from * 1000), Nanos(to * 1000))
}

fn response(
    prompt: u64,
    sample: u32,
    instance: u32,
    rollout: Option<Interval>,
) -> TimelineResponse {
    TimelineResponse {
        prompt,
        sample,
        instance,
        rollout,
        finish_reason: "stop".to_owned(),
        ..TimelineResponse::default()
    }
}

/// Writes steps, and returns the slices by process and thread name.
fn slices(steps: &[TimelineStep]) -> BTreeMap<(String, String), Vec<Value>> {
    let mut trace = ChromeTrace::new(Vec::new(), &json!({"a": 1})).expect("memory");
    let mut run = trace.run("one");
    steps.iter().for_each(|step| trace.step(&mut run, step).expect("memory"));
    let text = trace.finish().expect("memory");
    let trace: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!(trace["otherData"], json!({"a": 1}));
    let events = trace["traceEvents"].as_array().expect("events");
    let named = |kind: &str, event: &Value| {
        let is_name = |other: &&Value| {
            let same_thread = kind == "process_name" || other["tid"] == event["tid"];
            other["name"] == kind && other["pid"] == event["pid"] && same_thread
        };
        let names: Vec<_> = events.iter().filter(is_name).collect();
        let [name] = &names[..] else { panic!("expected one {kind} of {event}, found {names:?}") };
        name["args"]["name"].as_str().expect("a name").to_owned()
    };
    let mut tracks = BTreeMap::<_, Vec<_>>::new();
    for event in events.iter().filter(|event| event["ph"] == "X") {
        let track = (named("process_name", event), named("thread_name", event));
        tracks.entry(track).or_default().push(event.clone());
    }
    tracks
}

fn times(slices: &[Value]) -> Vec<(&str, f64, f64)> {
    let of = |slice: &Value, key: &str| slice[key].as_f64().expect("a time");
    let slices = slices.iter();
    slices.map(|one| (one["name"].as_str().unwrap(), of(one, "ts"), of(one, "dur"))).collect()
}

#[test]
fn responses_that_overlap_have_slots_of_their_own() {
    let responses = vec![
        response(7, 1, 0, Some(at(10, 30))),
        TimelineResponse { scoring: Some(at(32, 35)), ..response(7, 0, 0, Some(at(5, 20))) },
        response(8, 0, 0, Some(at(20, 25))),
        response(9, 0, 1, None),
    ];
    let step = TimelineStep { step: 1, responses, ..TimelineStep::default() };
    let tracks = slices(&[step]);
    let track = |group: &str, name: &str| {
        let slices = tracks.get(&(format!("one: {group}"), name.to_owned()));
        times(slices.map_or(&[], Vec::as_slice))
    };
    let slot = [("prompt 7 sample 0", 5.0, 15.0), ("prompt 8 sample 0", 20.0, 5.0)];
    assert_eq!(track("instance 0", "slot 0"), slot);
    assert_eq!(track("instance 0", "slot 1"), [("prompt 7 sample 1", 10.0, 20.0)]);
    let sample = [("prompt 7 sample 0", 5.0, 30.0), ("rollout", 5.0, 15.0), ("reward", 32.0, 3.0)];
    assert_eq!(track("samples", "prompt 7 sample 0"), sample);
    assert!(track("instance 1", "slot 0").is_empty(), "an earlier step has generated it");
}

#[test]
fn a_sample_that_continues_in_a_later_step_stays_on_its_track() {
    let paused = TimelineResponse {
        finish_reason: "pause".to_owned(),
        ..response(3, 2, 0, Some(at(0, 10)))
    };
    let step = |step, one| TimelineStep { step, responses: vec![one], ..TimelineStep::default() };
    let tracks = slices(&[step(1, paused), step(2, response(3, 2, 1, Some(at(20, 24))))]);
    let track = &tracks[&("one: samples".to_owned(), "prompt 3 sample 2".to_owned())];
    let whole: Vec<_> = track.iter().filter(|slice| slice["cat"] == "sample").collect();
    let reasons: Vec<_> = whole.iter().map(|slice| &slice["args"]["finish_reason"]).collect();
    assert_eq!(reasons, ["pause", "stop"]);
}

#[test]
fn stages_fill_the_time_before_the_validation() {
    let metrics = BTreeMap::from([
        ("timing_s/weight_sync", 1.0),
        ("timing_s/rollout", 5.0),
        ("timing_s/training_exposed", 2.0),
        ("timing_s/testing", 3.0),
    ]);
    let step = TimelineStep { step: 4, round: "long".to_owned(), ..TimelineStep::default() };
    let closed = Nanos::from_secs_f64(20.0);
    let step = step.with_stages(closed, |name| metrics.get(name).copied());
    let tracks = slices(&[step]);
    let expected = [
        ("step 4 (long)", 9e6, 8e6),
        ("weight sync", 9e6, 1e6),
        ("rollout", 10e6, 5e6),
        ("training", 15e6, 2e6),
        ("validation", 17e6, 3e6),
    ];
    let track = &tracks[&("one: steps".to_owned(), "steps".to_owned())];
    assert_eq!(times(track), expected);
}

#[test]
fn scoring_follows_the_response() {
    assert_eq!(scoring(Nanos(10), Nanos(30), Nanos(5)), (Nanos(25), Nanos(30)));
    assert_eq!(scoring(Nanos(10), Nanos(30), Nanos(25)), (Nanos(10), Nanos(30)));
    assert_eq!(scoring(Nanos(40), Nanos(30), Nanos(5)), (Nanos(30), Nanos(30)));
}
