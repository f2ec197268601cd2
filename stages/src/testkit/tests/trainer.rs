use std::collections::BTreeMap;
use std::path::Path;

use rollpacker_dataflow::step::{PolicyVersion, PromptId, Step};

use crate::rollout::Policy;
use crate::testkit::{TrainerWorld, check_trainer};
use crate::train::{Metrics, Sequence, TrainError, Trainer};

#[derive(Clone, Copy, PartialEq)]
enum Breaks {
    Nothing,
    Order,
    Nothingness,
    State,
    Versions,
}

/// A trainer of one integer weight, which each token moves by its id.
struct Adding {
    breaks: Breaks,
    weight: i64,
    gradient: i64,
    calls: i64,
}

impl Trainer for Adding {
    fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
        let version = match self.breaks {
            Breaks::Versions => PolicyVersion(version.0 + 1),
            _ => version,
        };
        Ok(Policy { version, location: String::new(), digest: self.weight.unsigned_abs() })
    }

    fn accumulate(&mut self, _: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        let tokens = sequences.iter().flat_map(|sequence| sequence.response_ids);
        self.gradient += tokens.map(|&token| i64::from(token)).sum::<i64>();
        self.calls += 1;
        Ok(())
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        self.weight += self.gradient;
        self.weight += if self.breaks == Breaks::Order { self.calls } else { 0 };
        self.weight += i64::from(self.breaks == Breaks::Nothingness);
        let metrics = BTreeMap::from([("actor/grad_norm".to_owned(), self.gradient as f64)]);
        self.gradient = 0;
        Ok((self.publish(PolicyVersion(step.next().0))?, metrics))
    }

    fn save(&mut self, _: &Path) -> Result<(), TrainError> {
        Ok(())
    }

    fn save_state(&mut self, file: &Path) -> Result<(), TrainError> {
        std::fs::write(file, self.weight.to_string()).map_err(TrainError::state)
    }

    fn load_state(&mut self, file: &Path) -> Result<Vec<Policy>, TrainError> {
        let text = std::fs::read_to_string(file).map_err(TrainError::state)?;
        self.weight = text.parse().map_err(TrainError::state)?;
        let policy = self.publish(PolicyVersion(1))?;
        self.weight += i64::from(self.breaks == Breaks::State);
        Ok(vec![policy])
    }
}

fn check(breaks: Breaks) -> String {
    let folder = tempfile::tempdir().unwrap();
    let sequence = |prompt, response_ids| Sequence {
        prompt: PromptId(prompt),
        response_ids,
        ..Sequence::default()
    };
    let groups = [vec![sequence(0, &[1, 2][..]), sequence(0, &[3])], vec![sequence(1, &[4])]];
    let world = TrainerWorld {
        groups: &groups,
        tolerance: 0.0,
        has_digests: true,
        is_reproducible: true,
        folder: folder.path(),
    };
    let start = || Adding { breaks, weight: 10, gradient: 0, calls: 0 };
    check_trainer(start, &world).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn a_trainer_that_keeps_its_contract_passes() {
    assert_eq!(check(Breaks::Nothing), "");
}

#[test]
fn each_broken_rule_is_named() {
    let found = [Breaks::Order, Breaks::Nothingness, Breaks::State, Breaks::Versions].map(check);
    assert!(found[0].starts_with("an update does not depend on the order"), "{}", found[0]);
    assert!(found[1].starts_with("an update without sequences changes no weight"), "{}", found[1]);
    assert!(
        found[2].starts_with("a restored trainer updates as the one that saved"),
        "{}",
        found[2]
    );
    assert!(found[3].starts_with("the update of step s publishes version s + 1"), "{}", found[3]);
}
