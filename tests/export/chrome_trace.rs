//! A reader of traces in the Chrome trace format, which checks what all traces must have.
#![allow(dead_code, reason = "every test uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

/// A trace, with times in seconds.
pub(crate) struct Trace {
    pub(crate) facts: Value,
    slices: Vec<Slice>,
}

/// A complete event.
#[derive(Debug)]
pub(crate) struct Slice {
    category: String,
    pub(crate) name: String,
    /// The name of the process.
    pub(crate) group: String,
    /// The name of the thread.
    pub(crate) track: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    args: Value,
}

impl Slice {
    /// Returns the number of the step.
    pub(crate) fn step(&self) -> u64 {
        self.args["step"].as_u64().expect("a step")
    }

    /// Returns the score of a response that was trained on; `None` for any other response.
    pub(crate) fn score(&self) -> Option<f64> {
        let score = self.args["score"].as_f64();
        assert_eq!(self.args["trained"], score.is_some(), "{self:?}");
        score
    }
}

impl Trace {
    /// Reads a trace, and asserts that it is valid: tracks are named before they are used, and durations are not negative.
    pub(crate) fn read(path: &Path) -> Self {
        let text = fs::read_to_string(path).expect("written");
        let trace: Value = serde_json::from_str(&text).expect("JSON");
        let mut names = BTreeMap::new();
        let mut slices = Vec::new();
        for event in trace["traceEvents"].as_array().expect("events") {
            let text = |key: &str| event[key].as_str().expect(key).to_owned();
            let number = |key: &str| event[key].as_f64().expect(key);
            let (pid, tid) = (event["pid"].as_u64().expect("pid"), event["tid"].as_u64());
            let tid = tid.expect("tid");
            match text("ph").as_str() {
                "M" if event["name"] == "process_name" => {
                    assert!(names.insert((pid, None), event["args"]["name"].clone()).is_none());
                }
                "M" if event["name"] == "thread_name" => {
                    let name = event["args"]["name"].clone();
                    assert!(names.insert((pid, Some(tid)), name).is_none());
                }
                "M" => assert!(event["args"]["sort_index"].is_u64(), "{event}"),
                "X" => {
                    assert!(number("ts") >= 0.0 && number("dur") >= 0.0, "{event}");
                    let name = |tid| names[&(pid, tid)].as_str().expect("a name").to_owned();
                    slices.push(Slice {
                        category: text("cat"),
                        name: text("name"),
                        group: name(None),
                        track: name(Some(tid)),
                        from: number("ts") / 1e6,
                        to: (number("ts") + number("dur")) / 1e6,
                        args: event["args"].clone(),
                    });
                }
                other => panic!("no event of type {other} is expected"),
            }
        }
        Self { facts: trace["otherData"].clone(), slices }
    }

    /// Returns the slices of a category.
    pub(crate) fn slices(&self, category: &str) -> impl Iterator<Item = &Slice> {
        self.slices.iter().filter(move |slice| slice.category == category)
    }

    /// Asserts that the trace has `expected` slices of samples and as many of slots, one for each sample of a step. Each slot must be of
    /// the instance of its sample, and slices must be [nested](Self::assert_is_nested).
    pub(crate) fn assert_every_sample_once(&self, expected: usize) {
        for category in ["sample", "slot"] {
            let ids = self.slices(category).map(|one| {
                assert!(one.args["finish_reason"].is_string(), "{one:?}");
                let [prompt, sample] =
                    ["prompt", "sample"].map(|key| one.args[key].as_u64().expect(key));
                [one.step(), prompt, sample]
            });
            let ids: Vec<_> = ids.collect();
            assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "one occurs twice");
            assert_eq!(ids.len(), expected, "{category}");
        }
        for one in self.slices("slot") {
            assert_eq!(one.group, format!("instance {}", one.args["instance"]));
        }
        self.assert_is_nested();
    }

    /// Asserts that any two slices of a track are nested or disjoint, and that an outer slice comes before its inner slices.
    pub(crate) fn assert_is_nested(&self) {
        let mut tracks = BTreeMap::<_, Vec<&Slice>>::new();
        for slice in &self.slices {
            tracks.entry((&slice.group, &slice.track)).or_default().push(slice);
        }
        assert!(!tracks.is_empty());
        // Less than a nanosecond: times in microseconds are rounded.
        let tolerance = 1e-10;
        for (track, slices) in tracks {
            for (index, slice) in slices.iter().enumerate() {
                for later in &slices[index + 1..] {
                    let is_inside =
                        slice.from <= later.from + tolerance && later.to <= slice.to + tolerance;
                    let is_after = slice.to <= later.from + tolerance;
                    assert!(is_inside || is_after, "{track:?}: {slice:?} and {later:?}");
                }
            }
        }
    }
}
