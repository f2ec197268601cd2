//! Timelines in the Chrome trace format (JSON), which Perfetto and `chrome://tracing` read.
//!
//! A run has a track of steps, a track of the trainer, a track per sample, and a track per slot of each instance. A track is a thread of
//! the format, and a group of tracks is a process.

use std::collections::BTreeMap;
use std::io::{self, Write};

use rollpacker_dataflow::clock::Nanos;
use serde_json::{Value, json};

use super::slots::Slots;
use super::{Interval, TimelineResponse, TimelineStep};

/// The number of process ids that are reserved for a run. The ids below are relative to the first id of a run.
const PIDS: u64 = 1 << 20;
/// The process id of the tracks of steps and trainer.
const STEPS: u64 = 1;
/// The process id of the tracks of samples.
const SAMPLES: u64 = 2;
/// The process id of instance 0. The ids of the other instances follow.
const INSTANCES: u64 = 3;

/// A writer of timelines as one JSON file.
#[derive(Debug)]
pub struct ChromeTrace<W> {
    out: W,
    is_empty: bool,
    runs: u64,
    responses: u64,
}

/// The tracks of one run in a [`ChromeTrace`].
#[derive(Debug)]
pub struct RunTracks {
    /// The prefix of the names of the groups; empty for a single run.
    label: String,
    /// The process id to which the ids of the groups are added.
    first_pid: u64,
    slots: Slots,
    /// The number of the track of each sample, by prompt and sample.
    samples: BTreeMap<(u64, u32), u64>,
    /// The number of named tracks of each group. The tracks of a group are numbered from 1.
    named: BTreeMap<u64, u64>,
}

impl<W: Write> ChromeTrace<W> {
    /// Begins a file. `facts` are shown as the metadata of the trace.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn new(mut out: W, facts: &Value) -> io::Result<Self> {
        write!(out, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{facts},\"traceEvents\":[")?;
        Ok(Self { out, is_empty: true, runs: 0, responses: 0 })
    }

    /// Adds the tracks of a run. `label` precedes the names of its groups; an empty label adds nothing to them.
    #[must_use]
    pub fn run(&mut self, label: &str) -> RunTracks {
        let label = if label.is_empty() { String::new() } else { format!("{label}: ") };
        let first_pid = self.runs * PIDS;
        self.runs += 1;
        RunTracks {
            label,
            first_pid,
            slots: Slots::default(),
            samples: BTreeMap::new(),
            named: BTreeMap::new(),
        }
    }

    /// Returns the number of responses that were written so far.
    #[must_use]
    pub fn responses(&self) -> u64 {
        self.responses
    }

    /// Writes a step of a run. The steps of a run must be written in order.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn step(&mut self, tracks: &mut RunTracks, step: &TimelineStep) -> io::Result<()> {
        self.stages(tracks, step)?;
        let mut responses: Vec<_> = step.responses.iter().collect();
        responses.sort_by_key(|one| (one.rollout.map(|(from, _)| from), one.prompt, one.sample));
        for response in responses {
            self.sample(tracks, step.step, response)?;
            self.slot(tracks, step.step, response)?;
        }
        self.responses += step.responses.len() as u64;
        Ok(())
    }

    /// Ends the file and returns the writer.
    ///
    /// # Errors
    /// If the writer fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn stages(&mut self, tracks: &mut RunTracks, step: &TimelineStep) -> io::Result<()> {
        let number = step.step;
        let track = self.track(tracks, STEPS, 1, "steps", || "steps".to_owned())?;
        if let (Some((_, first)), Some((_, last))) = (step.stages.first(), step.stages.last()) {
            let args = json!({"step": number, "round": step.round});
            let name = format!("step {number} ({})", step.round);
            self.slice(track, ("step", &name), (first.0, last.1), args)?;
        }
        for (stage, interval) in &step.stages {
            self.slice(track, ("stage", stage), *interval, json!({"step": number}))?;
        }
        if let Some(interval) = step.validation {
            self.slice(track, ("step", "validation"), interval, json!({"step": number}))?;
        }
        for interval in &step.training {
            let trainer = self.track(tracks, STEPS, 2, "steps", || "trainer".to_owned())?;
            self.slice(trainer, ("trainer", "training"), *interval, json!({"step": number}))?;
        }
        Ok(())
    }

    /// Writes the slices of a response on the track of its sample: one for the whole response, and within it one for the rollout and one
    /// for the scoring.
    fn sample(
        &mut self,
        tracks: &mut RunTracks,
        step: u64,
        response: &TimelineResponse,
    ) -> io::Result<()> {
        let next = tracks.samples.len() as u64 + 1;
        let tid = *tracks.samples.entry((response.prompt, response.sample)).or_insert(next);
        let title = || title(response);
        let track = self.track(tracks, SAMPLES, tid, "samples", title)?;
        let (first, last) = (response.rollout.or(response.scoring), response.scoring);
        let Some(first) = first else { return Ok(()) };
        let whole = (first.0, last.map_or(first.1, |last| last.1.max(first.1)));
        self.slice(track, ("sample", &title()), whole, args(step, response))?;
        let parts = [("rollout", response.rollout), ("reward", response.scoring)];
        for (name, interval) in parts {
            if let Some(interval) = interval {
                self.slice(track, (name, name), interval, json!({"step": step}))?;
            }
        }
        Ok(())
    }

    /// Writes the slice of a response on a track of its instance.
    fn slot(
        &mut self,
        tracks: &mut RunTracks,
        step: u64,
        response: &TimelineResponse,
    ) -> io::Result<()> {
        let Some(interval) = response.rollout else { return Ok(()) };
        let slot = tracks.slots.take(response.instance, interval);
        let pid = INSTANCES + u64::from(response.instance);
        let group = format!("instance {}", response.instance);
        let track = self.track(tracks, pid, slot as u64 + 1, &group, || format!("slot {slot}"))?;
        self.slice(track, ("slot", &title(response)), interval, args(step, response))
    }

    /// Returns a track, after naming it and its group if it is new.
    fn track(
        &mut self,
        tracks: &mut RunTracks,
        pid: u64,
        tid: u64,
        group: &str,
        name: impl FnOnce() -> String,
    ) -> io::Result<(u64, u64)> {
        let named = tracks.named.entry(pid).or_insert(0);
        let pid = tracks.first_pid + pid;
        if *named == 0 {
            let group = format!("{}{group}", tracks.label);
            self.meta("process_name", (pid, 0), json!({"name": group}))?;
            self.meta("process_sort_index", (pid, 0), json!({"sort_index": pid}))?;
        }
        // Tracks of a group are numbered in the order of their first use.
        if tid > *named {
            *named = tid;
            self.meta("thread_name", (pid, tid), json!({"name": name()}))?;
            self.meta("thread_sort_index", (pid, tid), json!({"sort_index": tid}))?;
        }
        Ok((pid, tid))
    }

    fn meta(&mut self, name: &str, (pid, tid): (u64, u64), args: Value) -> io::Result<()> {
        self.event(&json!({"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}))
    }

    fn slice(
        &mut self,
        (pid, tid): (u64, u64),
        (category, name): (&str, &str),
        (from, to): Interval,
        args: Value,
    ) -> io::Result<()> {
        self.event(&json!({
            "name": name,
            "cat": category,
            "ph": "X",
            "ts": microseconds(from),
            "dur": microseconds(to.since(from)),
            "pid": pid,
            "tid": tid,
            "args": args,
        }))
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        let comma = if std::mem::take(&mut self.is_empty) { "" } else { "," };
        write!(self.out, "{comma}\n{event}")
    }
}

/// Returns the name of the slices of a response.
fn title(response: &TimelineResponse) -> String {
    format!("prompt {} sample {}", response.prompt, response.sample)
}

fn args(step: u64, response: &TimelineResponse) -> Value {
    json!({
        "step": step,
        "prompt": response.prompt,
        "sample": response.sample,
        "instance": response.instance,
        "tokens": response.tokens,
        "finish_reason": response.finish_reason,
        "trained": response.trained,
        "score": response.score,
    })
}

/// Returns a time in microseconds, the unit of the format. Up to 104 days, no nanosecond is lost.
fn microseconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}
