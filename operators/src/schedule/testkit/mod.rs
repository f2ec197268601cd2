//! Conformance checks of schedules: the contract of [`Schedule`], in a simulated environment.
//!
//! ```
//! use rollpacker_operators::schedule::testkit::{World, check_schedule};
//! use rollpacker_operators::schedule::{Synchronous, sync::Config};
//!
//! // Two epochs of ten prompts of one domain.
//! let world = World::new(&[vec!["math".into(); 10], vec!["math".into(); 10]], 1);
//! let config = Config { prompts: 4, responses: 2, total_steps: None };
//! check_schedule(|| Synchronous::new(config.clone()).expect("valid"), &world).expect("conforms");
//! ```

mod restoring;
mod world;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use rollpacker_dataflow::step::PromptId;
use rollpacker_stages::testkit::Nonconformance;

use self::restoring::Restoring;
use super::{Checked, Decision, Event, Schedule};

#[cfg(test)]
pub(crate) use world::mix;
pub use world::{Entry, World};

const CONTRACT: &str = "a decision keeps the contract";
const ENDS: &str = "a run without further events has finished";
const EPOCHS: &str =
    "all prompts of an epoch are admitted or rejected before any of the next is launched";
const DETERMINISTIC: &str = "decisions depend only on the events";
const OFFERS: &str = "offering more prompts than `wants_prompts` asks for changes no decision";
const SAVES: &str = "a restored schedule decides as the one that was saved";

/// Checks a schedule against its [contract](Schedule) in a simulated environment. Each call of `start` makes a schedule in its initial
/// state.
///
/// The schedule runs four times: with every decision [checked](Checked), a second time for comparison, with more prompts than it asks
/// for, and restored from its saved state between rounds. A schedule that cannot be saved is not restored.
///
/// # Errors
/// If a rule of the contract does not hold. The error has the first such rule, with what was found instead.
///
/// # Panics
/// If the schedule keeps the contract in the first run, and violates it in a later run in a way in which [`World::run`] panics.
pub fn check_schedule<S: Schedule + 'static>(
    mut start: impl FnMut() -> S,
    world: &World,
) -> Result<(), Nonconformance> {
    let log = world.run(Checked::new(Box::new(start())))?;
    check_end(&log)?;
    check_epochs(&log)?;
    let expected = decisions(&log);
    check_same(DETERMINISTIC, &expected, &world.run(start())?)?;
    let generous = World { read_ahead: world.read_ahead + 3, ..world.clone() };
    check_same(OFFERS, &expected, &generous.run(start())?)?;
    let mut restoring = Restoring::new(&mut start);
    let restored = world.run(&mut restoring)?;
    restoring.error.map_or(Ok(()), Err)?;
    check_same(SAVES, &expected, &restored)
}

fn decisions(log: &[Entry]) -> Vec<&Decision> {
    log.iter()
        .filter_map(|entry| match entry {
            Entry::Decision(decision) => Some(decision),
            Entry::Event(_) => None,
        })
        .collect()
}

fn check_end(log: &[Entry]) -> Result<(), Nonconformance> {
    match decisions(log).last() {
        Some(Decision::Finish) => Ok(()),
        Some(Decision::Fail { message, .. }) => Err(Nonconformance::new(CONTRACT, message)),
        last => {
            let last = last.map_or("none".to_owned(), ToString::to_string);
            Err(Nonconformance::new(ENDS, format!("the last decision is {last}")))
        }
    }
}

fn check_epochs(log: &[Entry]) -> Result<(), Nonconformance> {
    let mut epochs: BTreeMap<PromptId, u32> = BTreeMap::new();
    let mut undecided: BTreeSet<(u32, PromptId)> = BTreeSet::new();
    for entry in log {
        match entry {
            Entry::Event(Event::Prompt(offer)) => {
                epochs.insert(offer.prompt, offer.epoch);
                undecided.insert((offer.epoch, offer.prompt));
            }
            Entry::Decision(Decision::Launch { prompt, .. }) => {
                let first = undecided.first().filter(|(epoch, _)| *epoch < epochs[prompt]);
                if let Some((epoch, left)) = first {
                    let found = format!("{prompt} is launched before {left} of epoch {epoch}");
                    return Err(Nonconformance::new(EPOCHS, found));
                }
            }
            Entry::Decision(Decision::Admit { prompt, .. } | Decision::Reject { prompt, .. }) => {
                undecided.remove(&(epochs[prompt], *prompt));
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_same(
    rule: &'static str,
    expected: &[&Decision],
    log: &[Entry],
) -> Result<(), Nonconformance> {
    let found = decisions(log);
    let Some(at) =
        (0..expected.len().max(found.len())).find(|&at| expected.get(at) != found.get(at))
    else {
        return Ok(());
    };
    let text =
        |decision: Option<&&Decision>| decision.map_or("none".to_owned(), ToString::to_string);
    let (expected, found) = (text(expected.get(at)), text(found.get(at)));
    Err(Nonconformance::new(rule, format!("decision {at}: expected {expected}, found {found}")))
}
