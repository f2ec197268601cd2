//! Compares a live run with a simulation that uses the recorded lengths: rounds, admissions and deferrals must be the same.
#![cfg(feature = "torch")]

mod workspace;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker::prelude::*;
use rollpacker::recipe::Recipe;
use rollpacker::run_folder::RunFolder;
use rollpacker::session::Session;
use rollpacker::simulate::{Job, run::pipeline};
use rollpacker_dataflow::schema::column;
use rollpacker_operators::report::ids;
use workspace::{Sft, TestWorkspace};

/// Number of prompts of an epoch. Runs continue into a second epoch.
const ROWS: usize = 24;

/// The recipe of the live run. With one instance that has a slot for every response of a round, the admissions depend only on the lengths.
/// Prompts keep the order of the rows, so that the simulation can identify a prompt by its row.
const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
train_batch_size = 4
max_response_length = 48
shuffle = false

[model]
path = "warm"

[rollout]
n = 4
instances = 1

[actor]
lr = 1e-4

[trainer]
total_training_steps = 9
total_epochs = 2
device = "cpu"
"#;

const JOB: &str = r#"
[cluster]
gpus = 1

[model]
name = "Qwen3-1.7B"

[training]
tensor_parallel = 1

[rollout]
n = 4

[data]
prompts = 24
train_batch_size = 4
max_response_length = 48

[lengths]
source = "trace"

[tasks]
code = 0
judge = 0

[pipeline]
placement = "colocated"

[sim]
steps = 9
"#;

impl TestWorkspace {
    /// Trains, leaves the rollouts in the run folder, and returns the decisions of each step.
    fn train_live(&self, schedule: &[String]) -> Vec<StepDecisions> {
        let setting = |key: &str, name: &str| format!("{key}={}", self.path(name).display());
        let mut overrides = schedule.to_vec();
        overrides.extend([
            setting("data.train_files", "data/train.parquet"),
            setting("model.path", "warm"),
        ]);
        let recipe = Recipe::read(&self.path("recipe.toml"), &overrides).expect("a recipe");
        let folder = RunFolder::create(&self.path("run"), &recipe.to_toml(), true).expect("made");
        let recorder =
            Rc::new(RefCell::new(DecisionRecorder { folder: Some(folder), steps: Vec::new() }));
        let session = Session::open(recipe).expect("a session");
        let model = self.path("run/model");
        session.train(&Stop::default(), &model, recorder.clone(), |_| {}).expect("trained");
        std::mem::take(&mut recorder.borrow_mut().steps)
    }

    /// Simulates a job with the rollouts that [`train_live`](Self::train_live) wrote, and returns the decisions of each step.
    fn simulate(&self, schedule: &[String]) -> Vec<StepDecisions> {
        let mut overrides = schedule.to_vec();
        overrides.push(format!("lengths.file={}", self.path("run/rollouts").display()));
        let job = Job::read(&self.path("job.toml"), &overrides).expect("a job");
        let recorder = Rc::new(RefCell::new(DecisionRecorder::default()));
        pipeline(&job, 1).expect("a pipeline").run(recorder.clone()).expect("simulated");
        std::mem::take(&mut recorder.borrow_mut().steps)
    }
}

/// The decisions of a step.
#[derive(Debug, Default, PartialEq)]
struct StepDecisions {
    step: u64,
    round: String,
    /// The prompt and the sample of each response.
    launched: BTreeSet<(u64, u32)>,
    /// The prompt and the samples, in the order of decision.
    admitted: Vec<(u64, Vec<u32>)>,
    /// The prompts, in the order of decision.
    deferred: Vec<u64>,
}

/// An observer that records decisions, and writes rollouts if it has a folder.
#[derive(Default)]
struct DecisionRecorder {
    folder: Option<RunFolder>,
    steps: Vec<StepDecisions>,
}

impl Observer for DecisionRecorder {
    fn step(&mut self, report: StepReport) {
        if let Some(folder) = &mut self.folder {
            folder.step(&report, "", 0.0, &measure(&report)).expect("written");
        }
        self.steps.push(step_decisions(&report));
    }
}

fn step_decisions(report: &StepReport) -> StepDecisions {
    let mut all = StepDecisions { step: report.step.0 + 1, ..StepDecisions::default() };
    all.launched.extend(report.responses.iter().flat_map(ids));
    for batch in &report.decisions {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let samples = batch.lists::<UInt32Type>(column::ADMITTED);
        for (row, decision) in batch.text(column::DECISION).iter().flatten().enumerate() {
            match decision {
                "open" => batch.text(column::ROUND).value(row).clone_into(&mut all.round),
                "admit" => all.admitted.push((prompts.value(row), samples.get(row).to_vec())),
                "defer" => all.deferred.push(prompts.value(row)),
                _ => {}
            }
        }
    }
    all
}

/// Asserts that the lengths affect the run: it has rounds of both kinds, deferred prompts, and groups that do not consist of the first
/// samples.
fn check_that_lengths_decide(live: &[StepDecisions]) {
    let all = |holds: fn(&StepDecisions) -> bool| live.iter().filter(|step| holds(step)).count();
    assert_eq!(live.len(), 9);
    assert!(all(|step| step.round == "long") >= 2 && all(|step| step.round == "short") >= 4);
    assert!(all(|step| !step.deferred.is_empty()) >= 4);
    let first = |samples: &[u32]| samples.iter().copied().eq(0..samples.len() as u32);
    let groups = || live.iter().flat_map(|step| &step.admitted);
    assert!(groups().filter(|(_, samples)| !first(samples)).count() > groups().count() / 4);
}

#[test]
fn a_simulation_with_live_lengths_admits_and_defers_like_the_live_run() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, ROWS, 1);
    workspace.write("job.toml", JOB);
    for (eta_prompts, eta_responses) in [(1.5, 1.5), (1.25, 1.25)] {
        let schedule = [
            "schedule.name=tail_batching".to_owned(),
            format!("schedule.eta_prompts={eta_prompts}"),
            format!("schedule.eta_responses={eta_responses}"),
        ];
        let live = workspace.train_live(&schedule);
        let simulated = workspace.simulate(&schedule);
        check_that_lengths_decide(&live);
        assert_eq!(live.len(), simulated.len());
        for (live, simulated) in live.iter().zip(&simulated) {
            assert_eq!(live, simulated, "{schedule:?}");
        }
    }
}
