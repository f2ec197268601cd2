//! Tests that every algorithm that a recipe can name trains live and that misspelt names are rejected.
#![cfg(feature = "torch")]

mod workspace;

use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker::algorithms::Algorithms;
use rollpacker::prelude::*;
use rollpacker::recipe::Recipe;
use rollpacker::session::{Catalogs, Session};
use rollpacker::stages::catalog::{CatalogError, NoOptions};
use rollpacker::stages::reward::GroupReward;
use rollpacker::stages::torch::train::loss::{PolicyLoss, SharedPolicyLoss, TokenLoss, Tokens};
use rollpacker::stages::torch::train::{TorchTrainer, ValueModel};
use rollpacker::trainers::TrainerContext;
use rollpacker_dataflow::cluster::{Cluster, RunFacts};
use rollpacker_dataflow::fault::{Fault, Origin};
use tch::TchError;
use workspace::{Sft, TestWorkspace};

const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
train_batch_size = 3
max_prompt_length = 64
max_response_length = 12

[model]
path = "warm"

[rollout]
n = 3
instances = 1

[actor]
lr = 1e-3

[trainer]
total_training_steps = 2
device = "cpu"
"#;

const SFT: Sft = Sft { steps: 1, batch_size: 2, ..Sft::TINY };

impl TestWorkspace {
    fn recipe(&self, overrides: &[String]) -> Recipe {
        let here = [
            format!("data.train_files={}", self.path("data/train.parquet").display()),
            format!("model.path={}", self.path("warm").display()),
        ];
        let all: Vec<String> = here.iter().chain(overrides).cloned().collect();
        Recipe::read(&self.path("recipe.toml"), &all).expect("a valid recipe")
    }

    /// Trains, and returns the metrics of the two steps and the folder of the model.
    fn train(&self, name: &str, overrides: &[String]) -> (Vec<Metrics>, PathBuf) {
        let session = Session::open(self.recipe(overrides)).expect("it opens");
        self.train_session(name, session, overrides)
    }

    fn train_session(
        &self,
        name: &str,
        session: Session,
        overrides: &[String],
    ) -> (Vec<Metrics>, PathBuf) {
        let session = session.with_reward("*", Spread);
        let (steps, folder) = (Steps::default(), self.path(name));
        session
            .train(&Stop::default(), &folder, steps.clone(), |_| {})
            .unwrap_or_else(|error| panic!("{overrides:?}: {error:#}"));
        let steps = steps.0.take();
        assert_eq!(steps.len(), 2, "{overrides:?}");
        for metrics in &steps {
            let odd = metrics.iter().find(|(_, value)| !value.is_finite());
            assert!(odd.is_none(), "{overrides:?}: {odd:?}");
        }
        (steps, folder)
    }
}

/// A reward whose scores differ between responses, even for an untrained model with 16 channels.
struct Spread;

impl Reward for Spread {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let ids = sample.response_ids.iter().zip(1..).map(|(&id, at)| i64::from(id) * at);
        Ok(((ids.sum::<i64>() % 17) as f64 / 17.0).into())
    }
}

#[derive(Clone, Default)]
struct Steps(Rc<RefCell<Vec<Metrics>>>);

impl Observer for Steps {
    fn step(&mut self, report: StepReport) {
        self.0.borrow_mut().push(measure(&report));
    }
}

fn owned(overrides: &[&str]) -> Vec<String> {
    overrides.iter().map(|&text| text.to_owned()).collect()
}

fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    names.map(str::to_owned).collect()
}

/// One run per advantage estimator. The losses and the KL estimators take turns over these runs.
#[test]
fn every_name_trains_two_live_steps() {
    let (workspace, algorithms) = (TestWorkspace::warm(RECIPE, SFT, 16, 2), Algorithms::default());
    let losses = names(algorithms.policy_losses.names());
    let kls = names(algorithms.kl_estimators.names());
    let estimators = names(algorithms.advantages.names());
    assert!(
        estimators.len() >= losses.len().max(kls.len()),
        "each loss and KL estimator is used in a run"
    );
    for (at, estimator) in estimators.iter().enumerate() {
        let overrides = [
            format!("algorithm.adv_estimator={estimator}"),
            format!("actor.policy_loss.loss_mode={}", losses[at % losses.len()]),
            "actor.use_kl_loss=true".to_owned(),
            format!("actor.kl_loss_type={}", kls[at % kls.len()]),
            "actor.entropy_coeff=0.001".to_owned(),
        ];
        let (steps, folder) = workspace.train(estimator, &overrides);
        for metrics in &steps {
            assert!(metrics["actor/grad_norm"] > 0.0, "{overrides:?}");
            assert!(metrics["critic/advantages/max"] > 0.0, "{overrides:?}");
            assert_eq!(
                metrics["actor/ppo_kl"], 0.0,
                "ratios are against the trainer's own numbers"
            );
        }
        assert!(steps[1]["actor/kl_loss"].abs() > 0.0, "{overrides:?}");
        let critic_folder = folder.join(ValueModel::FOLDER);
        let critic = ValueModel::FILES.iter().all(|file| critic_folder.join(file).exists());
        assert_eq!(critic, estimator == "gae");
        assert_eq!(critic, steps[0].contains_key("critic/vf_loss"));
    }
}

/// An estimator whose advantages are the number of responses that it receives at once; NaN if they are not in the order of their groups.
struct Seen;

impl TokenAdvantage for Seen {
    fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
        let ordered = trajectories.windows(2).all(|pair| pair[0].group <= pair[1].group);
        let seen = if ordered { trajectories.len() as f64 } else { f64::NAN };
        let of = |one: &Trajectory| vec![seen; one.rewards.len()];
        let bare = |advantages| Estimate { advantages, returns: Vec::new() };
        trajectories.iter().map(of).map(bare).collect()
    }
}

/// A policy loss that does not depend on the policy.
#[derive(Debug)]
struct Constant(f64);

impl PolicyLoss for Constant {
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
        let loss = tokens.logprobs.f_mul_scalar(0.0)?.f_add_scalar(self.0)?;
        Ok(TokenLoss { loss, metrics: Vec::new() })
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Height {
    height: f64,
}

#[test]
fn custom_algorithms_work_by_value_and_by_name_on_whole_steps_in_order() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let session = Session::open(workspace.recipe(&[])).expect("it opens");
    let session =
        session.with_advantage(Estimator::of_tokens(Seen)).with_policy_loss(Constant(2.5));
    let (by_value, _) = workspace.train_session("value", session, &[]);

    let mut algorithms = Algorithms::default();
    algorithms.advantages =
        algorithms.advantages.with("seen", |_: NoOptions| Ok(Estimator::of_tokens(Seen)));
    algorithms.policy_losses = algorithms.policy_losses.with("constant", |options: Height| {
        Ok(Arc::new(Constant(options.height)) as SharedPolicyLoss)
    });
    let named = owned(&[
        "algorithm.adv_estimator=seen",
        "actor.policy_loss.loss_mode=constant",
        "actor.policy_loss.height=2.5",
    ]);
    let recipe = workspace.recipe(&named);
    let catalogs = Catalogs { algorithms, ..Catalogs::default() };
    let session = Session::open_with_catalogs(recipe, &catalogs).expect("it opens");
    let inputs = session.shared_inputs();
    let (by_name, _) = workspace.train_session("name", session, &named);
    let folder = workspace.path("workers");
    let on_workers = Cluster::with_threads(2).run(&RunFacts::default(), "", move |handle| {
        let steps = Steps::default();
        let session = inputs.session(&handle).expect("it opens").with_reward("*", Spread);
        session
            .train_worker(Some(handle), &Stop::default(), &folder, steps.clone(), |_| {})
            .map_err(|error| Fault::new("test", Origin::Program, format!("{error:#}")))?;
        Ok(steps.0.take())
    });
    let on_workers = on_workers.expect("both train").remove(0);
    assert_eq!(on_workers.len(), 2);
    for metrics in by_value.iter().chain(&by_name).chain(&on_workers) {
        let advantages = ["min", "max"].map(|part| metrics[&format!("critic/advantages/{part}")]);
        assert_eq!(advantages, [9.0, 9.0], "the estimator received all three groups at once");
        assert!((metrics["actor/pg_loss"] - 2.5).abs() < 1e-6);
    }
}

#[test]
fn a_step_of_several_updates_leaves_its_first_policy() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let one = owned(&["actor.ppo_mini_batch_size=3", "actor.ppo_epochs=1"]);
    let (steps, _) = workspace.train("one", &one);
    assert!(!steps[0].contains_key("actor/updates") && steps[0]["actor/ppo_kl"] == 0.0);
    for (name, more) in [("grpo", &[][..]), ("gae", &["algorithm.adv_estimator=gae"])] {
        let several = ["actor.ppo_mini_batch_size=2", "actor.ppo_epochs=2", "actor.lr=1e-2"];
        let (steps, _) = workspace.train(name, &owned(&[&several[..], more].concat()));
        for metrics in &steps {
            // Two mini-batches, of two prompts and of one, in each of two passes.
            assert_eq!(metrics["actor/updates"], 4.0, "{name}");
            assert!(metrics["actor/ppo_kl"].abs() > 0.0, "{name}");
            assert!(
                metrics["rollout_corr/kl"].abs() < 1e-3,
                "{name}: relative to the first policy"
            );
        }
    }
}

#[test]
fn a_critic_learns_and_continues_from_its_folder() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let gae = ["algorithm.adv_estimator=gae", "critic.lr=1e-2", "algorithm.lam=0.95"];
    let (steps, folder) = workspace.train("first", &owned(&gae));
    assert_eq!(steps[0]["critic/vpred_mean"], 0.0, "a fresh critic expects nothing");
    assert!(steps[1]["critic/vpred_mean"] > 0.0, "scores are positive");
    for name in ["critic/vf_clipfrac", "critic/values/mean", "critic/returns/mean"] {
        assert!(steps[1].contains_key(name), "{name}");
    }
    let path = format!("critic.path={}", folder.join("critic").display());
    let warm = [owned(&gae), vec![path, "trainer.critic_warmup=1".to_owned()]].concat();
    let (steps, _) = workspace.train("second", &warm);
    assert!(steps[0]["critic/vpred_mean"] > 0.0, "the critic was loaded with learnt weights");
    assert!(!steps[0].contains_key("actor/grad_norm"), "the policy waits for the critic");
    assert!(steps[1]["actor/grad_norm"] > 0.0);
}

#[test]
fn a_replaced_estimator_leaves_neither_its_critic_nor_its_warning() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let critic = format!("critic.path={}", workspace.path("warm").display());
    let gae = owned(&["algorithm.adv_estimator=gae", &critic]);
    let (sender, given) = std::sync::mpsc::channel();
    let session = Session::open(workspace.recipe(&gae))
        .expect("it opens")
        .with_advantage(Estimator::of_tokens(Seen))
        .with_trainer(move |context: TrainerContext| {
            let critic = (context.critic, context.config.critic);
            sender.send(critic).expect("the test waits");
            Err::<TorchTrainer, _>(CatalogError::start("seen"))
        });
    let run = session.train(&Stop::default(), &workspace.path("run"), Steps::default(), |_| {});
    assert!(format!("{:#}", run.expect_err("no trainer")).contains("seen"));
    assert_eq!(given.recv().expect("started"), (None, None));

    let one = Session::open(workspace.recipe(&owned(&["rollout.n=1"]))).expect("it opens");
    let warnings = |session: &Session| session.warnings().expect("readable").join("\n");
    assert!(warnings(&one).contains("`rollout.n = 1`"));
    let replaced = warnings(&one.with_advantage(Estimator::of_tokens(Seen)));
    assert!(!replaced.contains("`rollout.n = 1`"), "{replaced}");
}

/// A reward of whole groups that must not be used.
struct Unused;

impl GroupReward for Unused {
    async fn score(&self, _: &[Sample], _: &Context) -> Result<Vec<Score>, RewardError> {
        Err(RewardError::fatal("the reward was replaced"))
    }
}

#[test]
fn a_replaced_reward_leaves_no_group_reward() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let overrides = owned(&["reward.routes={\"*\" = \"unused\"}", "reward.on_error=fail"]);
    let rewards = Registry::builtin().with_group("unused", |_: NoOptions| Ok(Unused));
    let session = Session::open_with(workspace.recipe(&overrides), &rewards).expect("it opens");
    // It scores all responses by `Spread`.
    workspace.train_session("replaced", session, &overrides);
}

#[test]
fn rewards_are_reduced_by_the_divergence_and_the_factor_adapts() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let overrides = owned(&[
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_penalty=low_var_kl",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.kl_coef=0.5",
        "algorithm.kl_ctrl.target_kl=1000",
        "algorithm.kl_ctrl.horizon=18",
        "actor.lr=0.05",
    ]);
    let (steps, _) = workspace.train("penalised", &overrides);
    let near = |name: &str, step: usize, expect: f64| {
        let found = steps[step][name];
        assert!((found - expect).abs() < 1e-6, "{name}: {found}, expected {expect}");
    };
    near("actor/reward_kl_penalty", 0, 0.0);
    near("critic/rewards/mean", 0, steps[0]["critic/score/mean"]);
    // The divergence of nine responses is far below the target, which gives the clipped error of -0.2.
    near("actor/reward_kl_penalty_coeff", 1, 0.5 * (1.0 - 0.2 * 9.0 / 18.0));
    assert!(steps[1]["actor/reward_kl_penalty"] > 0.0, "the policy has moved");
    assert!(steps[1]["critic/rewards/mean"] < steps[1]["critic/score/mean"]);
}

/// With staleness, groups of the next step arrive before the update. Inference and the penalty's coefficient must wait for the update,
/// without a deadlock.
#[test]
fn with_a_staleness_models_and_factors_are_those_of_the_step() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let common = [
        "algorithm.staleness=1",
        "algorithm.use_kl_in_reward=true",
        "algorithm.kl_ctrl.type=adaptive",
        "algorithm.kl_ctrl.kl_coef=0.5",
        "algorithm.kl_ctrl.target_kl=1000",
        "algorithm.kl_ctrl.horizon=18",
        "algorithm.rollout_correction.rollout_is=token",
    ];
    for estimator in ["gae", "grpo"] {
        let overrides =
            [owned(&common), vec![format!("algorithm.adv_estimator={estimator}")]].concat();
        let (steps, _) = workspace.train(&format!("stale-{estimator}"), &overrides);
        let factors = [0, 1].map(|step| steps[step]["actor/reward_kl_penalty_coeff"]);
        assert!((factors[0] - 0.5).abs() < 1e-9 && (factors[1] - 0.45).abs() < 1e-9, "{factors:?}");
        assert!(steps[1]["actor/reward_kl_penalty"] != steps[0]["actor/reward_kl_penalty"]);
    }
}

#[test]
fn importance_weights_of_tokens_and_sequences_are_near_one_on_policy() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    for (level, threshold) in [("token", "2.0"), ("sequence", "0.5_2.0")] {
        let correction = "algorithm.rollout_correction";
        let overrides = [
            format!("{correction}.rollout_is={level}"),
            format!("{correction}.rollout_is_threshold={threshold}"),
        ];
        let (steps, _) = workspace.train(level, &overrides);
        let mean = steps[1]["rollout_corr/rollout_is_mean"];
        assert!((mean - 1.0).abs() < 1e-3, "{level}: {mean}");
    }
}

/// Engine and trainer compute the same policy on one machine, so the mismatch is rounding, with and without correction.
#[test]
fn the_mismatch_is_reported_and_corrected_with_any_keys() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let runs: [(&str, &[&str]); 5] = [
        ("plain", &[]),
        ("rejected", &["rollout_rs=token_k1,seq_mean_k3", "rollout_rs_threshold='0.9_1.1,0.01'"]),
        ("normalized", &["rollout_is=token", "rollout_is_batch_normalize=true"]),
        ("reinforce", &["bypass_mode=true", "loss_type=reinforce", "rollout_is=sequence"]),
        ("bypassed", &["bypass_mode=true", "rollout_rs=token_k2", "rollout_rs_threshold=0.1"]),
    ];
    for (name, keys) in runs {
        let overrides: Vec<_> =
            keys.iter().map(|key| format!("algorithm.rollout_correction.{key}")).collect();
        let (steps, _) = workspace.train(name, &overrides);
        for step in &steps {
            let near = |metric: &str, expect: f64| {
                let found = step[metric];
                assert!((found - expect).abs() < 1e-3, "{name}, {metric}: {found}");
            };
            near("rollout_corr/kl", 0.0);
            near("rollout_corr/k3_kl", 0.0);
            near("rollout_corr/ppl_ratio", 1.0);
            near("rollout_corr/rollout_is_ratio_fraction_high", 0.0);
            near("training/rollout_actor_probs_pearson_corr", 1.0);
            assert!(step["rollout_corr/training_ppl"] > 1.0);
            let rejects = matches!(name, "rejected" | "bypassed");
            let masked = step.contains_key("rollout_corr/rollout_rs_masked_fraction");
            assert_eq!(masked, rejects, "{name}");
            if name == "normalized" {
                near("rollout_corr/rollout_is_batch_norm_factor", 1.0);
            }
        }
    }
}

/// The ratios of engine and trainer are 1 up to rounding, so a band from 1.5 to 2 rejects every token, and the loss has no token.
#[test]
fn a_step_that_rejects_every_token_trains_nothing() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let correction = "algorithm.rollout_correction";
    let overrides = [
        format!("{correction}.rollout_rs=token_k1"),
        format!("{correction}.rollout_rs_threshold='1.5_2.0'"),
    ];
    let (steps, _) = workspace.train("rejects-all", &overrides);
    for step in &steps {
        assert_eq!(step["rollout_corr/rollout_rs_masked_fraction"], 1.0);
        assert_eq!(step["rollout_corr/rollout_rs_seq_masked_fraction"], 1.0);
        assert!(!step.contains_key("actor/grad_norm"));
    }
}

#[test]
fn incompatible_settings_are_refused_by_key() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 16, 2);
    let cases: [(&[&str], &str); 8] = [
        (
            &["algorithm.adv_estimator=grop"],
            "key `algorithm.adv_estimator`: expected one of dr_grpo, gae, gpg, grpo, grpo_passk, opo, reinforce_plus_plus, reinforce_plus_plus_baseline, rloo (did you mean `grpo`?), found `grop`",
        ),
        (&["actor.policy_loss.loss_mode=cisp"], "(did you mean `cispo`?), found `cisp`"),
        (
            &["actor.use_kl_loss=true", "actor.kl_loss_type=k4"],
            "key `actor.kl_loss_type`: expected one of abs, abs+, kl, ",
        ),
        (
            &["algorithm.lam=0.9"],
            "key `algorithm.adv_estimator`: expected one of gae when `algorithm.lam` is set, found `grpo`",
        ),
        (
            &["actor.policy_loss.loss_mode=gpg", "actor.clip_ratio=0.1"],
            "when `actor.clip_ratio` is set, found `gpg`",
        ),
        (&["actor.epsilon=1.5"], "key `actor.clip_ratio_low`: expected in [0, 1], found 1.5"),
        (
            &["actor.policy_loss.clip_ratio_lo=1.5"],
            "unknown key `actor.policy_loss.clip_ratio_lo`; did you mean `actor.policy_loss.clip_ratio_low`?",
        ),
        (
            &["actor.policy_loss.loss_mode=sapo", "actor.loss_agg_mode=token-mean"],
            "key `actor.loss_agg_mode`: expected seq-mean-token-mean, which `sapo` requires, found token-mean",
        ),
    ];
    for (overrides, expected) in cases {
        let refused = Session::open(workspace.recipe(&owned(overrides)));
        let error = format!("{:#}", refused.err().expect("refused"));
        assert!(error.contains(expected), "{overrides:?}: {error}");
    }
    let idle = Session::open(workspace.recipe(&owned(&["critic.lr=1e-4"]))).err().expect("refused");
    assert!(idle.to_string().contains("an estimator with a critic when `[critic]`"), "{idle:#}");
}
