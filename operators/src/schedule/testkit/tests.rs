//! Tests that the check finds a schedule that breaks a rule, and accepts the built-in schedules.

use std::sync::Arc;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;

use super::*;
use crate::schedule::sync::Config;
use crate::schedule::{Reason, Synchronous};

fn world(seed: u64) -> World {
    let epoch: Vec<Arc<str>> = vec!["".into(); 10];
    World::new(&[epoch.clone(), epoch], seed)
}

fn synchronous() -> Synchronous {
    Synchronous::new(Config { prompts: 4, responses: 2, total_steps: None }).unwrap()
}

/// A synchronous schedule that breaks one rule.
struct Broken {
    rounds: Synchronous,
    breaks: Breaks,
    decided: Vec<Decision>,
    calls: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    /// Leaves out the last decision.
    End,
    /// Rejects every prompt instead of admitting it, in every second run.
    Determinism,
    /// Rejects each prompt that it did not request.
    Offers,
    /// Saves an empty state, so that the restored schedule has no prompts.
    Saving,
    /// Admits every prompt twice.
    Contract,
}

impl Broken {
    fn alter(&mut self, decision: Decision) -> Vec<Decision> {
        match (&decision, self.breaks) {
            (Decision::Finish, Breaks::End) => Vec::new(),
            (Decision::Admit { .. }, Breaks::Contract) => vec![decision.clone(), decision],
            (Decision::Admit { prompt, .. }, Breaks::Determinism) if self.calls % 2 == 1 => {
                vec![Decision::Reject { prompt: *prompt, reason: Reason::NoQuota }]
            }
            _ => vec![decision],
        }
    }
}

impl Schedule for Broken {
    fn on(&mut self, now: Nanos, event: Event) {
        let is_unrequested = matches!(event, Event::Prompt(_)) && !self.rounds.wants_prompts();
        if let (Event::Prompt(offer), true, Breaks::Offers) = (&event, is_unrequested, self.breaks)
        {
            let reason = Reason::NoQuota;
            return self.decided.push(Decision::Reject { prompt: offer.prompt, reason });
        }
        self.rounds.on(now, event);
        while let Some(decision) = self.rounds.poll() {
            let altered = self.alter(decision);
            self.decided.extend(altered);
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        (!self.decided.is_empty()).then(|| self.decided.remove(0))
    }

    fn wants_prompts(&self) -> bool {
        self.rounds.wants_prompts()
    }

    fn save(&self) -> Option<Vec<u8>> {
        (self.breaks == Breaks::Saving).then(Vec::new)
    }

    fn restore(&mut self, _: &[u8]) -> Result<(), BoxError> {
        Ok(())
    }
}

fn found(breaks: Breaks) -> String {
    let mut calls = 0;
    let start = || {
        calls += 1;
        Broken { rounds: synchronous(), breaks, decided: Vec::new(), calls }
    };
    check_schedule(start, &world(1)).unwrap_err().to_string()
}

#[test]
fn each_broken_rule_is_named() {
    let rules = [
        (Breaks::End, "a run without further events has finished: the last decision is close"),
        (Breaks::Contract, "a decision keeps the contract: the schedule violates its contract"),
        (Breaks::Determinism, "decisions depend only on the events: decision "),
        (Breaks::Offers, "offering more prompts than `wants_prompts` asks for changes no decision"),
        (Breaks::Saving, "a restored schedule decides as the one that was saved: decision "),
    ];
    for (breaks, rule) in rules {
        let found = found(breaks);
        assert!(found.starts_with(rule), "expected {rule}, found {found}");
    }
}

#[test]
fn a_schedule_that_keeps_its_contract_passes() {
    for seed in 0..20 {
        let world = World { staleness: seed % 3, lossy: seed % 2 == 0, ..world(seed) };
        check_schedule(synchronous, &world).unwrap();
    }
}
