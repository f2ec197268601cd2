//! Tests of a session with a schedule, a placement, an engine and a trainer that a program passes by value.
#![cfg(feature = "torch")]

#[path = "../examples/uniform/mod.rs"]
mod uniform;
mod workspace;

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker::prelude::*;
use rollpacker::recipe::Recipe;
use rollpacker::session::Session;
use rollpacker::snapshots::{RunSnapshots, StartFrom};
use rollpacker::stages::catalog::CatalogError;
use serde::Deserialize;
use serde_json::json;
use uniform::{Uniform, UniformOptions};
use workspace::{RECIPE, TestWorkspace};

fn recipe(workspace: &TestWorkspace, settings: &[&str]) -> Recipe {
    let path = |name: &str| workspace.path(name).display().to_string();
    let here = [
        format!("data.train_files={}", path("data/train.parquet")),
        format!("model.path={}", path("model")),
        "trainer.total_training_steps=2".to_owned(),
    ];
    let all: Vec<String> = here.into_iter().chain(settings.iter().map(|&s| s.to_owned())).collect();
    Recipe::read(&workspace.path("recipe.toml"), &all).expect("a recipe")
}

fn session(workspace: &TestWorkspace, settings: &[&str]) -> Session {
    Session::open(recipe(workspace, settings)).expect("it opens")
}

#[derive(Clone, Default)]
struct Steps(Rc<RefCell<Vec<Metrics>>>);

impl Observer for Steps {
    fn step(&mut self, report: StepReport) {
        self.0.borrow_mut().push(measure(&report));
    }
}

fn train(workspace: &TestWorkspace, session: Session) -> anyhow::Result<Vec<Metrics>> {
    let steps = Steps::default();
    session.train(&Stop::default(), &workspace.path("end"), steps.clone(), |_| {})?;
    Ok(steps.0.take())
}

fn start(context: rollpacker::engines::EngineContext) -> Result<Uniform, CatalogError> {
    let options = UniformOptions::deserialize(json!({ "tokens": 5 }));
    Uniform::start(options.map_err(CatalogError::start)?, context)
}

#[test]
fn a_custom_engine_generates_all_responses() {
    let workspace = TestWorkspace::new(RECIPE);
    let steps = train(&workspace, session(&workspace, &[]).with_engine(start)).expect("it trains");
    assert_eq!(steps.len(), 2);
    assert!(steps.iter().all(|metrics| metrics["response_length/mean"] == 5.0), "{steps:?}");
    assert!(workspace.path("end/model.safetensors").exists());

    let deterministic = session(&workspace, &["trainer.deterministic=true"]).with_engine(start);
    let error = train(&workspace, deterministic).expect_err("refused").to_string();
    assert!(error.contains("Uniform`, which cannot race in lockstep, found true"), "{error}");
}

#[test]
fn a_custom_schedule_decides() {
    let workspace = TestWorkspace::new(RECIPE);
    let rounds = sync::Config { prompts: 2, responses: 3, total_steps: Some(2) };
    let schedule = Synchronous::new(rounds).expect("a schedule");
    let own = session(&workspace, &[]).with_schedule(schedule.clone()).expect("it fits");
    let steps = train(&workspace, own.with_engine(start)).expect("it trains");
    assert_eq!(steps.len(), 2);
    let of_recipe =
        train(&workspace, session(&workspace, &[]).with_engine(start)).expect("it trains");
    let responses = |steps: &[Metrics]| steps[0]["rollout/launched_responses"];
    assert_eq!(responses(&steps), 6.0, "2 prompts with 3 responses each");
    assert!(responses(&of_recipe) > 6.0);

    let decides_by_scores = dynamic();
    let refused = session(&workspace, &["pipeline.reward=after_rollout", "schedule.name=sync"])
        .with_schedule(decides_by_scores)
        .err()
        .expect("refused");
    assert!(refused.to_string().contains("key `pipeline.reward`"), "{refused}");
}

fn dynamic() -> impl Schedule + Clone + Send + Sync + 'static {
    use rollpacker::operators::schedule::{Dynamic, OnExhausted, dynamic};
    let config = dynamic::Config {
        prompts: 2,
        responses: 3,
        gen_prompts: None,
        max_generated_batches: 2,
        on_exhausted: OnExhausted::Fail,
        total_steps: None,
    };
    Dynamic::new(config).expect("a schedule")
}

/// A trainer that learns nothing and counts the sequences that it receives.
struct Counting(Arc<AtomicU64>, u64);

impl Counting {
    fn policy(&self) -> Policy {
        let version = PolicyVersion(self.1);
        Policy { version, location: "nowhere".to_owned(), digest: self.1 }
    }
}

impl Trainer for Counting {
    fn publish(&mut self, _version: PolicyVersion) -> Result<Policy, TrainError> {
        Ok(self.policy())
    }

    fn accumulate(&mut self, _step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        self.0.fetch_add(sequences.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn update(&mut self, _step: Step) -> Result<(Policy, Metrics), TrainError> {
        self.1 += 1;
        Ok((self.policy(), Metrics::from([("own/updates".to_owned(), self.1 as f64)])))
    }

    fn save(&mut self, folder: &Path) -> Result<(), TrainError> {
        std::fs::create_dir_all(folder).expect("made");
        std::fs::write(folder.join("own.txt"), "saved").expect("written");
        Ok(())
    }
}

#[test]
fn a_custom_trainer_is_given_the_groups_and_writes_the_model() {
    let workspace = TestWorkspace::new(RECIPE);
    let counted = Arc::new(AtomicU64::new(0));
    let count = counted.clone();
    let own =
        session(&workspace, &["actor.lr=0.5"]).with_engine(start).with_trainer(move |context| {
            assert_eq!(context.config.optimizer.learning_rate.peak, 0.5);
            Ok(Counting(count.clone(), 0))
        });
    let steps = train(&workspace, own).expect("it trains");
    assert_eq!(steps[1]["own/updates"], 2.0);
    assert_eq!(counted.load(Ordering::Relaxed), 2 * 16, "4 prompts with 4 responses each");
    assert!(workspace.path("end/own.txt").exists());

    let broken = session(&workspace, &[])
        .with_trainer(|_| Err::<Counting, _>(CatalogError::start("no such cluster")));
    let error = format!("{:#}", train(&workspace, broken).expect_err("refused"));
    assert!(error.contains("no such cluster"), "{error}");
}

#[test]
fn a_trainer_without_a_state_is_refused_when_snapshots_are_taken() {
    let workspace = TestWorkspace::new(RECIPE);
    let out = format!("trainer.default_local_dir={}", workspace.path("run").display());
    let recipe = recipe(&workspace, &["trainer.save_freq=1", &out]);
    let session = Session::open(recipe.clone()).expect("it opens");
    let data = session.data_fingerprint().expect("readable");
    let snapshots = RunSnapshots::open(&recipe, data, StartFrom::Empty).expect("a new folder");
    let own = session
        .with_engine(start)
        .with_snapshots(snapshots)
        .with_trainer(|_| Ok(Counting(Arc::default(), 0)));
    let error = format!("{:#}", train(&workspace, own).expect_err("refused"));
    let expected = "Counting`, which cannot load a state, found 1";
    assert!(error.starts_with("key `trainer.save_freq`") && error.contains(expected), "{error}");
}

#[test]
fn a_custom_placement_lends_all_instances_after_the_rollout() {
    use rollpacker::stages::rollout::Placement;
    let workspace = TestWorkspace::new(RECIPE);
    let of = |instances| Placement { instances, tensor_parallel: 1 };
    let own = session(&workspace, &[])
        .with_placement(move |context| Ok(Colocated::new(of(context.devices))))
        .expect("two instances on a CPU");
    let steps = train(&workspace, own).expect("it trains");
    let metric = |name: &str| steps.iter().map(|step| step[name]).collect::<Vec<_>>();
    assert_eq!(metric("placement/rollout_instances"), [2.0; 2]);
    assert_eq!(metric("placement/lent_instances"), [2.0; 2]);
    assert_eq!(metric("trainer/threads"), [2.0; 2], "a thread of each instance");

    let too_many = session(&workspace, &[])
        .with_placement(move |context| Ok(Separate::new(of(context.devices), 1)))
        .expect("counted when it decides");
    let error = train(&workspace, too_many).expect_err("refused").to_string();
    assert!(error.contains("expected at most 2 devices in all, found rollout 2 x tp1"), "{error}");
    let refused = session(&workspace, &[])
        .with_placement(|_| Err::<Colocated, _>(CatalogError::start("no")))
        .err()
        .expect("refused");
    assert_eq!(refused.to_string(), "key `placement.kind`: no");
}
