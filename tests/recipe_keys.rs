//! Tests of `rollpacker keys`, and of verl's keys as overrides of `rollpacker train`.
//!
//! The command lines of verl are written as they usually are for GRPO, and run with `--dry-run` on small data.
#![cfg(feature = "torch")]

mod workspace;

use serde_json::Value;
use workspace::{ProcessEnd, RECIPE, TestWorkspace};

#[test]
fn keys_are_listed_by_their_beginning() {
    let workspace = TestWorkspace::new(RECIPE);
    let text = workspace.ok(&["keys", "actor.lr"]);
    assert!(text.starts_with("[actor] "), "{text}");
    assert!(text.contains("\n  actor.lr = 1e-6 (number)\n"), "{text}");
    assert!(text.contains("      verl: actor_rollout_ref.actor.optim.lr\n"), "{text}");
    assert!(!text.contains("actor.betas"), "{text}");
    let all = workspace.ok(&["keys"]);
    assert!(all.contains("schedule.mode") && all.contains("reward.options.math.targets"), "{all}");
}

#[test]
fn keys_are_printed_for_programs() {
    let workspace = TestWorkspace::new(RECIPE);
    let text = workspace.ok(&["keys", "rollout.n", "--json"]);
    let json: Value = serde_json::from_str(&text).expect("JSON");
    let [key] = json.as_array().expect("a list").as_slice() else { panic!("one key: {json}") };
    for (field, value) in [
        ("key", "rollout.n"),
        ("type", "integer"),
        ("unit", "responses"),
        ("default", "8"),
        ("range", "from 1 to 1048576"),
    ] {
        assert_eq!(key[field], value, "{field}");
    }
    assert_eq!(key["verl"][0], "actor_rollout_ref.rollout.n");
    assert_eq!(key["trl"][0], "num_generations");
}

#[test]
fn an_unknown_beginning_gets_suggestions_and_exit_status_2() {
    let workspace = TestWorkspace::new(RECIPE);
    let error = workspace.run_refused(&["keys", "actr.lr"]);
    assert!(
        error.starts_with("error: no key begins with `actr.lr`; did you mean `actor.lr`"),
        "{error}"
    );
    let error = workspace.run_refused(&["keys", "num_generations"]);
    assert!(error.contains("did you mean `rollout.n`?"), "{error}");
}

#[test]
fn keys_of_simulated_jobs_are_listed() {
    let workspace = TestWorkspace::new(RECIPE);
    let text = workspace.ok(&["keys", "--job", "cluster"]);
    assert!(text.starts_with("[cluster] "), "{text}");
    assert!(text.contains("\n  cluster.gpus = 32 (integer)\n"), "{text}");
    let error = workspace.run_refused(&["keys", "cluster"]);
    assert!(error.contains("`rollpacker keys --job cluster`"), "{error}");
    let error = workspace.run_refused(&["keys", "--job", "clustr.gpus"]);
    assert!(error.contains("did you mean `cluster.gpus`"), "{error}");
    let error = workspace.run_refused(&["simulate", "--config", "recipe.toml"]);
    assert!(error.contains("`rollpacker simulate` needs a job, as in configs/sim"), "{error}");
}

fn dry_run(workspace: &TestWorkspace, args: &[&str]) -> ProcessEnd {
    let mut command = workspace.command(&["train", "--dry-run"]);
    ProcessEnd::of(command.args(args).spawn().expect("the program starts"))
}

/// Runs a command line that must be accepted, and returns the resolved recipe and the notes.
fn accepted(args: &[&str]) -> (String, String) {
    let workspace = TestWorkspace::new(RECIPE);
    let end = dry_run(&workspace, args).success();
    (end.out, end.err)
}

fn assert_settings(recipe: &str, settings: &[&str]) {
    for setting in settings {
        assert!(
            recipe.lines().any(|line| line == *setting),
            "`{setting}` is expected in:\n{recipe}"
        );
    }
}

/// The form of the GRPO examples: KL in the loss, FSDP, vLLM, and the lists and literals of Hydra.
#[test]
fn grpo_with_a_kl_loss_is_accepted() {
    let (recipe, notes) = accepted(&[
        "algorithm.adv_estimator=grpo",
        "data.train_files=data/train.parquet",
        "data.val_files=data/validation.parquet",
        "data.train_batch_size=8",
        "data.max_prompt_length=64",
        "data.max_response_length=24",
        "data.filter_overlong_prompts=True",
        "data.truncation=error",
        "actor_rollout_ref.model.path=model",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.actor.ppo_mini_batch_size=8",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.actor.kl_loss_coef=0.002",
        "actor_rollout_ref.actor.kl_loss_type=low_var_kl",
        "actor_rollout_ref.actor.entropy_coeff=0",
        "actor_rollout_ref.model.enable_gradient_checkpointing=True",
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
        "actor_rollout_ref.actor.fsdp_config.optimizer_offload=False",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
        "actor_rollout_ref.rollout.n=5",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.ref.fsdp_config.param_offload=True",
        "algorithm.use_kl_in_reward=False",
        "trainer.critic_warmup=0",
        "trainer.logger=[\"console\",\"wandb\"]",
        "trainer.project_name=verl_grpo_example_gsm8k",
        "trainer.experiment_name=qwen2_7b_function_rm",
        "trainer.n_gpus_per_node=8",
        "trainer.nnodes=1",
        "trainer.save_freq=20",
        "trainer.test_freq=5",
        "trainer.total_epochs=15",
    ]);
    assert_settings(
        &recipe,
        &["n = 5", "train_batch_size = 8", "use_kl_loss = true", "kl_loss_coef = 0.002"],
    );
    assert_settings(
        &recipe,
        &["test_freq = 5", "save_freq = 20", "total_epochs = 15", "engine = \"torch\""],
    );
    assert!(notes.contains("`actor_rollout_ref.rollout.n` sets `rollout.n`"), "{notes}");
    assert!(notes.contains("`actor_rollout_ref.rollout.name=vllm` is left out"), "{notes}");
    assert_eq!(notes.matches("note: without effect here").count(), 1, "{notes}");
}

/// The form of the DAPO recipes: asymmetric clipping, no KL, token-mean loss, Hydra's `+`, and coefficients of terms that are off.
#[test]
fn grpo_with_asymmetric_clipping_is_accepted() {
    let (recipe, notes) = accepted(&[
        "data.train_files=[data/train.parquet]",
        "data.prompt_key=prompt",
        "data.truncation='error'",
        "data.max_prompt_length=64",
        "data.max_response_length=24",
        "data.train_batch_size=4",
        "data.gen_batch_size=4",
        "actor_rollout_ref.rollout.n=4",
        "algorithm.adv_estimator=grpo",
        "algorithm.use_kl_in_reward=False",
        "algorithm.kl_ctrl.kl_coef=0.0",
        "algorithm.gamma=1.0",
        "algorithm.lam=1.0",
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.kl_loss_coef=0.0",
        "actor_rollout_ref.actor.clip_ratio_low=0.2",
        "actor_rollout_ref.actor.clip_ratio_high=0.28",
        "actor_rollout_ref.actor.clip_ratio_c=10.0",
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
        "actor_rollout_ref.model.path=model",
        "+actor_rollout_ref.model.override_config=null",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "actor_rollout_ref.actor.optim.lr_warmup_steps=10",
        "actor_rollout_ref.actor.optim.weight_decay=0.1",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
        "actor_rollout_ref.actor.grad_clip=1.0",
        "actor_rollout_ref.actor.loss_agg_mode=token-mean",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4",
        "actor_rollout_ref.rollout.temperature=1.0",
        "actor_rollout_ref.rollout.top_p=1.0",
        "actor_rollout_ref.rollout.top_k=-1",
        "reward_model.reward_manager=naive",
        "trainer.val_before_train=True",
        "trainer.resume_mode=auto",
    ]);
    assert_settings(
        &recipe,
        &["clip_ratio_high = 0.28", "clip_ratio_c = 10.0", "lr_warmup_steps = 10"],
    );
    assert_settings(
        &recipe,
        &["ppo_max_token_len = 2048", "weight_decay = 0.1", "use_kl_loss = false"],
    );
    assert!(notes.contains("without effect with the other settings"), "{notes}");
    assert!(notes.contains("algorithm.lam (needs algorithm.adv_estimator = \"gae\")"), "{notes}");
}

/// Overrides of a recipe file: only what differs, with keys of both spellings.
#[test]
fn both_spellings_override_a_recipe() {
    let (recipe, _) = accepted(&[
        "--config",
        "recipe.toml",
        "actor_rollout_ref.rollout.n=6",
        "rollout.temperature=0.9",
        "schedule.name=sync",
        "actor_rollout_ref.actor.policy_loss.loss_mode=gspo",
        "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean",
        "algorithm.norm_adv_by_std_in_grpo=False",
        "actor_rollout_ref.rollout.seed=7",
        "trainer.total_training_steps=null",
        "trainer.default_local_dir=elsewhere",
        "trainer.device=cpu",
    ]);
    assert_settings(&recipe, &["n = 6", "temperature = 0.9", "seed = 7", "loss_mode = \"gspo\""]);
    assert_settings(
        &recipe,
        &["norm_adv_by_std_in_grpo = false", "default_local_dir = \"elsewhere\""],
    );
    assert!(!recipe.contains("total_training_steps"), "{recipe}");
}

#[test]
fn refusals_and_unknown_keys_are_reported_together() {
    let workspace = TestWorkspace::new(RECIPE);
    let refused = |args: &[&str]| {
        let end = dry_run(&workspace, &[&["--config", "recipe.toml"], args].concat());
        assert_eq!(end.code, Some(2), "{end:?}");
        end.err
    };
    let error = refused(&[
        "critic.ppo_epochs=2",
        "actor_rollout_ref.ref.sync_ref_model=True",
        "algorithm.filter_groups.enable=True",
        "actor_rollout_ref.model.lora_rank=32",
    ]);
    for part in ["critic.ppo_epochs=2", "sync_ref_model", "schedule.name=dynamic", "lora_rank=32"] {
        assert!(error.contains(part), "`{part}` is expected in: {error}");
    }
    let wrong = ["actor.lr=abc", "rollout.n=0", "trainer.device=npu", "actor.betas=[0.9, \"x\"]"];
    let others = ["pipeline.gradient=3", "actor.weight_decay=1e-40", "sft=1", "data.train_files=3"];
    let error = refused(
        &[&["actor_rollout_ref.ref.sync_ref_model=True", "foo.bar=1"], &wrong[..], &others]
            .concat(),
    );
    let expected = [
        "error: verl's `actor_rollout_ref.ref.sync_ref_model=True` has no equivalent: the reference stays the initial model",
        "unknown key `foo.bar`",
        "key `sft`: expected a section, found integer",
        "key `actor.weight_decay`: expected from 0 to 1000, and 0, or a number from 1e-30 to 1e30 in size, found 1e-40",
        "key `actor.betas[1]`: expected a number, found \"x\"",
        "key `actor.lr`: expected a number, found \"abc\"",
        "key `data.train_files`: expected a text or a list of texts, found 3",
        "key `pipeline.gradient`: expected one of streamed, once, whole_step, found 3",
        "key `trainer.device`: expected auto, cpu, cuda or cuda:INDEX, found `npu`",
        "key `rollout.n`: expected at least 1, found 0",
    ];
    assert_eq!(error.lines().collect::<Vec<_>>(), expected);
    let error = refused(&[
        "actor_rollout_ref.rollout.nn=8",
        "rollout.lr=1",
        "trainer.loger=x",
        "actor_rollout_ref.actor.kl_los_coef=1",
    ]);
    for part in [
        "`actor_rollout_ref.rollout.nn` (did you mean `actor_rollout_ref.rollout.n`?)",
        "`rollout.lr` (did you mean `actor.lr`?)",
        "`trainer.loger` (did you mean `trainer.logger`?)",
        "`actor_rollout_ref.actor.kl_los_coef` (did you mean `actor_rollout_ref.actor.kl_loss_coef`?)",
    ] {
        assert!(error.contains(part), "`{part}` is expected in: {error}");
    }
}

fn assert_beginnings(lines: &[String], beginnings: &[&str]) {
    assert_eq!(lines.len(), beginnings.len(), "{lines:#?}");
    for (line, beginning) in lines.iter().zip(beginnings) {
        assert!(line.starts_with(beginning), "`{beginning}` is expected in: {line}");
    }
}

#[test]
fn names_and_options_of_entries_are_reported_together_and_conflicts_after_them() {
    let workspace = TestWorkspace::new(RECIPE);
    let refused = |args: &[&str]| {
        let end = dry_run(&workspace, &[&["--config", "recipe.toml"], args].concat());
        assert_eq!(end.code, Some(2), "{end:?}");
        end.err.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let names = [
        "rollout.n=0",
        "schedule.mod=x",
        "schedule.etta=1",
        "placement.kind=planer",
        "placement.keeep=1",
        "rollout.engine=vlm",
        "actor.strategy=fsdq",
        "algorithm.adv_estimator=grpp",
        "actor.policy_loss.clip_covv=1",
        "actor.policy_loss.foo=1",
        "actor.kl_loss_type=kl9",
        "reward.routes.gsm8k=mathh",
        "reward.options.math.target=3",
        "reward.routes.long=soft_overlong",
        "reward.options.soft_overlong.cache=x",
    ];
    let beginnings = [
        "error: key `rollout.n`: expected at least 1, found 0",
        "unknown keys `schedule.etta`, `schedule.mod`",
        "unknown key `placement.keeep`; did you mean `placement.keep`?",
        "key `placement.kind`: expected one of ",
        "key `rollout.engine`: expected one of ",
        "key `actor.strategy`: expected one of ",
        "key `algorithm.adv_estimator`: expected one of ",
        "unknown keys `actor.policy_loss.clip_covv`, `actor.policy_loss.foo`",
        "key `actor.kl_loss_type`: expected one of ",
        "key `reward.routes.gsm8k`: expected one of ",
        "unknown key `reward.options.math.target`; did you mean `reward.options.math.targets`?",
        "key `reward.options.soft_overlong.cache`: expected ",
    ];
    let lines = refused(&names);
    assert_beginnings(&lines, &beginnings);
    // A reward without a route is not made, so that its options may be missing.
    let workspace = TestWorkspace::new(RECIPE);
    assert_eq!(
        dry_run(&workspace, &["--config", "recipe.toml", "custom_reward_function.name=f"]).code,
        Some(0)
    );
    let lines = refused(&["rollout.n=0", "placement.trigger=fixed"]);
    assert_eq!(lines.len(), 2, "{lines:#?}");
    assert!(
        lines[1].starts_with("key `placement.trigger`: expected no value unless"),
        "{lines:#?}"
    );
    // All options of an entry are read, whatever is wrong with the others.
    let lines = refused(&[
        "schedule.etta=1",
        "schedule.eta_prompts=x",
        "schedule.eta_responses=y",
        "placement.kind=stream_trainer",
        "placement.keeep=1",
        "placement.keep=x",
        "reward.routes.gsm8k=math",
        "reward.options.math.target=3",
        "reward.options.math.targets=4",
        "reward.options.math.attempts=x",
        "reward.options.math.cache=y",
        "algorithm.adv_estimator=rloo",
        "algorithm.lam=0.9",
        "schedule.max_queue_age=2000000",
    ]);
    let beginnings = [
        "error: unknown key `schedule.etta`",
        "key `schedule.max_queue_age`: expected at most ",
        "key `schedule.eta_prompts`: expected a number, found \"x\"",
        "key `schedule.eta_responses`: expected a number, found \"y\"",
        "unknown key `placement.keeep`; did you mean `placement.keep`?",
        "key `placement.keep`: expected ",
        "key `algorithm.adv_estimator`: expected one of ",
        "unknown key `reward.options.math.target`; did you mean `reward.options.math.targets`?",
        "key `reward.options.math.targets`: expected ",
        "key `reward.options.math.attempts`: expected ",
        "key `reward.options.math.cache`: expected ",
    ];
    assert_beginnings(&lines, &beginnings);
    // The values of a nested table are read, too, as is everything that does not depend on a wrong `kind` or `on_error`.
    let lines = refused(&[
        "reward.routes.gsm8k=code",
        "reward.options.code.on_error=skipp",
        "reward.options.code.sandbox.slots=x",
        "reward.options.code.sandbox.memory_bytes=y",
        "reward.options.code.cache=z",
        "reward.options.third={ kind = \"math\", targets = nan }",
        "reward.options.other.kind=mathh",
        "reward.options.other.on_error=zeroo",
        "reward.options.other.cache=x",
    ]);
    let beginnings = [
        "error: key `reward.options.code.on_error`: expected one of ",
        "key `reward.options.code.sandbox.memory_bytes`: expected an integer, found \"y\"",
        "key `reward.options.code.sandbox.slots`: expected an integer, found \"x\"",
        "key `reward.options.code.cache`: expected ",
        "key `reward.options.other.kind`: expected one of ",
        "key `reward.options.other.on_error`: expected one of ",
        "key `reward.options.other.cache`: expected ",
        "key `reward.options.third.targets`: expected a finite number, found NaN",
    ];
    assert_beginnings(&lines, &beginnings);
    // Entries of a section with a wrong key are not checked: what they need may have been written under that key.
    let lines = refused(&["algorithm.adv_estimater=gae", "algorithm.lam=0.95"]);
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("did you mean `algorithm.adv_estimator`?"), "{lines:#?}");
    let lines = refused(&[
        "rollout.min_response_length=100000",
        "actor.kl_loss_coef=0.5",
        "sft.num_key_value_heads=3",
        "placement.kind=time_sharing",
        "algorithm.staleness=1",
        "schedule.eta_responses=0.5",
        "actor.ppo_mini_batch_size=100000",
        "algorithm.rollout_correction.rollout_rs_threshold=2",
        "pipeline.gradient=once",
        "pipeline.max_groups=2",
    ]);
    let keys = [
        "rollout.min_response_length",
        "actor.kl_loss_coef",
        "sft.num_key_value_heads",
        "algorithm.staleness",
        "schedule.eta_responses",
        "algorithm.rollout_correction.rollout_rs",
        "actor.ppo_mini_batch_size",
        "pipeline.max_groups",
    ];
    assert_eq!(lines.len(), keys.len(), "{lines:#?}");
    for (line, key) in lines.iter().zip(keys) {
        assert!(line.contains(&format!("key `{key}`")), "{key} is expected in: {line}");
    }
}
