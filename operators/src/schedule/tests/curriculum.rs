//! Schedules behind a curriculum, on random runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use serde_json::json;

use super::laws::decisions;
use crate::curriculum::{Curriculum, CurriculumOptions};
use crate::schedule::prompt_gate::{GateOutput, PromptGate};
use crate::schedule::testkit::{World, mix};
use crate::schedule::{Builtin, Decision, Event, Offer, Reason, Schedule};

/// A schedule behind a curriculum, connected as the driver connects them. The score of a response follows from its id and dataset row.
struct Gated {
    schedule: Builtin,
    gate: PromptGate,
    rows: BTreeMap<PromptId, u64>,
    open: BTreeSet<Step>,
    round: Option<Step>,
    skipped: Vec<PromptId>,
    failed: bool,
}

impl Gated {
    fn new(schedule: Builtin, staleness: u64, exploration: f64) -> Self {
        let options = CurriculumOptions { exploration, ..CurriculumOptions::default() };
        let curriculum = Curriculum::new(options, 1).unwrap().with_staleness(staleness);
        Self {
            schedule,
            gate: PromptGate::new(curriculum),
            rows: BTreeMap::new(),
            open: BTreeSet::new(),
            round: None,
            skipped: Vec::new(),
            failed: false,
        }
    }

    /// Returns a reward that mostly depends on the dataset row.
    fn score(&self, id: SampleId) -> f64 {
        let row = self.rows[&id.prompt];
        let random = mix(id.step.0 ^ mix(u64::from(id.sample) ^ mix(id.prompt.0)));
        match mix(row) % 3 {
            0 => 0.0,
            1 => 1.0,
            _ => f64::from(u32::from(random.is_multiple_of(2))),
        }
    }

    fn draw(&mut self) -> bool {
        while let Some(&step) = self.open.first()
            && self.schedule.wants_prompts()
        {
            let event = match self.gate.next(step) {
                Ok(Some(GateOutput::Drawn(offer))) => Event::Prompt(offer),
                Ok(Some(GateOutput::End)) => Event::EndOfPrompts,
                Ok(Some(GateOutput::Skipped(offer))) => {
                    self.skipped.push(offer.prompt);
                    continue;
                }
                Ok(None) => return false,
                Err(_) => {
                    self.failed = true;
                    return false;
                }
            };
            self.schedule.on(Nanos(0), event);
            return true;
        }
        false
    }

    fn record(&mut self, decision: &Decision) {
        let curriculum = &mut self.gate.curriculum;
        match (decision, self.round) {
            (Decision::Open { step, .. }, _) => {
                self.round = Some(*step);
                curriculum.on_open(*step);
            }
            (Decision::Admit { prompt, samples, .. }, Some(step)) => {
                curriculum.on_admit(step, *prompt, self.rows[prompt], samples.clone());
            }
            (Decision::Reject { prompt, reason: Reason::ZeroVariance }, Some(step)) => {
                curriculum.on_reject(step, *prompt, self.rows[prompt]);
            }
            (Decision::Close { step, .. }, _) => {
                self.round = None;
                curriculum.on_close(*step);
                self.open.remove(step);
            }
            _ => {}
        }
    }
}

impl Schedule for Gated {
    fn on(&mut self, now: Nanos, event: Event) {
        let event = match event {
            Event::Prompt(offer) => {
                self.rows.insert(offer.prompt, offer.row);
                return self.gate.hold(offer);
            }
            Event::EndOfPrompts => return self.gate.end(),
            Event::Policy { step } => {
                self.open.insert(step);
                event
            }
            Event::Response { id, finish_reason, .. } => {
                if finish_reason.is_whole() && !self.schedule.wants_scores() {
                    self.gate.curriculum.on_score(id, self.score(id));
                }
                event
            }
            Event::Scored { id, .. } => {
                let score = self.score(id);
                self.gate.curriculum.on_score(id, score);
                Event::Scored { id, score }
            }
        };
        self.schedule.on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        loop {
            let decision = self.schedule.poll();
            if let Some(decision) = &decision {
                self.record(decision);
            }
            if decision.is_some() || !self.draw() {
                return decision;
            }
        }
    }

    fn wants_prompts(&self) -> bool {
        self.schedule.wants_prompts() && self.gate.is_empty() && !self.open.is_empty()
    }

    fn wants_scores(&self) -> bool {
        self.schedule.wants_scores()
    }

    fn pauses(&self) -> bool {
        self.schedule.pauses()
    }
}

/// Returns schedules of rounds with `prompts` prompts of 2 responses.
fn schedules(prompts: usize) -> Vec<Builtin> {
    let filter = json!({ "max_generated_batches": 100, "on_exhausted": "smaller_step" });
    let config = |rest: serde_json::Value| {
        let mut config = json!({ "prompts": prompts, "responses": 2 });
        config.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        config
    };
    let tail = json!({ "eta_prompts": 1.5, "eta_responses": 1.5 });
    let filtered =
        json!({ "eta_prompts": 1.5, "eta_responses": 1.0, "filter_zero_variance": filter });
    let partial = json!({ "oversubscription": 1.5, "max_versions": 3 });
    macro_rules! of {
        ($name:ident, $rest:expr) => {
            crate::schedule::$name::new(serde_json::from_value(config($rest)).unwrap())
                .unwrap()
                .into()
        };
    }
    vec![
        of!(Synchronous, json!({})),
        of!(HistorySorted, json!({ "window": 2 })),
        of!(TailBatching, tail),
        of!(TailBatching, filtered),
        of!(Dynamic, filter),
        of!(Partial, partial),
        of!(FrontierGroup, json!({ "slots": 5, "order": "group_major" })),
    ]
}

/// Returns `epochs` epochs of the same `rows` rows.
fn offers(epochs: u32, rows: u64) -> Vec<Offer> {
    let all = (0..epochs).flat_map(|epoch| (0..rows).map(move |row| (epoch, row)));
    let offer =
        |(id, (epoch, row))| Offer { prompt: PromptId(id), epoch, row, domain: Arc::from("") };
    (0..).zip(all).map(offer).collect()
}

/// Returns the decisions of a run, and the skipped prompts; `None` if the curriculum skipped too many whole epochs.
fn run(
    world: &World,
    schedule: &Builtin,
    exploration: f64,
) -> Option<(Vec<Decision>, Vec<PromptId>)> {
    let mut gated = Gated::new(schedule.clone(), world.staleness, exploration);
    let log = world.run(&mut gated).unwrap();
    (!gated.failed).then(|| (decisions(log), gated.skipped))
}

impl Schedule for &mut Gated {
    fn on(&mut self, now: Nanos, event: Event) {
        (**self).on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        (**self).poll()
    }

    fn wants_prompts(&self) -> bool {
        (**self).wants_prompts()
    }

    fn wants_scores(&self) -> bool {
        (**self).wants_scores()
    }

    fn pauses(&self) -> bool {
        (**self).pauses()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn every_prompt_is_admitted_rejected_or_skipped_once(
        rows in 1..40_u64, epochs in 1..5_u32, prompts in 1..5_usize, staleness in 0..3_u64,
        read_ahead in 0..50_usize, seed: u64, lossy: bool, exploration in 0.0..0.5_f64,
    ) {
        let world = World { prompts: offers(epochs, rows), staleness, lossy, ..World::new(&[], seed) };
        for (at, schedule) in schedules(prompts).iter().enumerate() {
            let Some((decided, skipped)) = run(&world, schedule, exploration) else { continue };
            prop_assert!(matches!(decided.last(), Some(Decision::Finish)), "schedule {}", at);
            let mut seen: BTreeMap<PromptId, u32> = BTreeMap::new();
            let ended = decided.iter().filter_map(|decision| match decision {
                Decision::Admit { prompt, .. } | Decision::Reject { prompt, .. } => Some(*prompt),
                _ => None,
            });
            ended.chain(skipped.iter().copied()).for_each(|prompt| *seen.entry(prompt).or_default() += 1);
            prop_assert!(seen.values().all(|count| *count == 1), "schedule {}: {:?}", at, seen);
            prop_assert_eq!(seen.len(), world.prompts.len(), "schedule {}", at);
            prop_assert!(skipped.iter().all(|prompt| prompt.0 >= rows), "nothing is known in the first epoch");
            let ahead = run(&World { read_ahead, ..world.clone() }, schedule, exploration);
            prop_assert_eq!(ahead, Some((decided, skipped)), "schedule {}", at);
        }
    }
}
