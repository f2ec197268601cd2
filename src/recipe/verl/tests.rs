mod rewards;
mod syntax;

use super::entries::all;
use super::*;
use crate::placements::Placements;
use crate::recipe::error::reject;
use crate::recipe::schedule::Schedules;
use crate::recipe::table::override_key;
use crate::recipe::{KnownNames, Recipe};

const REWARDS: [&str; 3] = ["math", "python", "soft_overlong"];

fn translated(file: &str, overrides: &[&str]) -> Result<Translation, RecipeError> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let mut translation = translate(&file.parse().expect("TOML"), &overrides, &REWARDS);
    reject(std::mem::take(&mut translation.errors)).map(|()| translation)
}

fn overrides(file: &str, overrides: &[&str]) -> Vec<String> {
    translated(file, overrides).expect("accepted").overrides
}

/// Returns the error of a recipe that cannot be read with the overrides.
fn refused(file: &str, overrides: &[&str]) -> String {
    let mut settings: Table = file.parse().expect("TOML");
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    let translation = translate(&settings, &overrides, &REWARDS);
    let mut errors = translation.errors;
    let texts = translation.overrides.iter();
    errors.extend(texts.filter_map(|text| override_key::<RawRecipe>(&mut settings, text).err()));
    let (schedules, placements) = (&Schedules::default(), &Placements::default());
    let names = KnownNames { schedules, placements, others: &|_, _| Vec::new() };
    let read = Recipe::from_settings(settings, errors, names, |_| {});
    read.expect_err("refused").to_string()
}

/// An override whose key only verl has.
const VERL: &str = "actor_rollout_ref.rollout.n=8";

#[test]
fn keys_without_effect_are_left_out_as_in_verl() {
    let off = [
        VERL,
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.kl_loss_coef=0.1",
        "algorithm.lam=1.0",
    ];
    assert_eq!(overrides("", &off), ["rollout.n=8", "actor.use_kl_loss=False"]);
    let on = [
        VERL,
        "actor_rollout_ref.actor.kl_loss_coef=0.1",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "algorithm.adv_estimator=gae",
        "algorithm.lam=1.0",
    ];
    let found = overrides("", &on);
    assert!(found.contains(&"actor.kl_loss_coef=0.1".to_owned()), "{found:?}");
    assert!(found.contains(&"algorithm.lam=1.0".to_owned()), "{found:?}");
    let by_file = overrides(
        "[actor]\nuse_kl_loss = true",
        &[VERL, "actor_rollout_ref.actor.kl_loss_coef=0.1"],
    );
    assert_eq!(by_file[1], "actor.kl_loss_coef=0.1");
}

#[test]
fn ranges_that_a_loss_does_not_have_are_left_out() {
    const ACTOR: &str = "actor_rollout_ref.actor";
    let loss = format!("{ACTOR}.policy_loss.loss_mode=gspo");
    let low = format!("{ACTOR}.clip_ratio_low=3e-4");
    let dual = format!("{ACTOR}.clip_ratio_c=10.0");
    let gspo = translated("", &[&dual, &low, &loss]).expect("accepted");
    assert_eq!(gspo.overrides, ["actor.clip_ratio_low=3e-4", "actor.policy_loss.loss_mode=gspo"]);
    assert!(gspo.unused[0].starts_with(&format!("{ACTOR}.clip_ratio_c (needs")), "{gspo:?}");
    assert_eq!(overrides("", &[&dual]), ["actor.clip_ratio_c=10.0"]);
    assert!(overrides("", &[&format!("{ACTOR}.tau_neg=1.1")]).is_empty());
    let scale = format!("{ACTOR}.loss_scale_factor=100.0");
    assert!(overrides("", &[&scale]).is_empty());
    let norm = format!("{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm");
    assert_eq!(overrides("", &[&scale, &norm])[0], "actor.loss_scale_factor=100.0");
    let sapo = format!("{ACTOR}.policy_loss.loss_mode=sapo");
    assert_eq!(overrides("", &[&scale, &norm, &sapo]), ["actor.policy_loss.loss_mode=sapo"]);
    let aggregation = format!("{ACTOR}.loss_agg_mode=token-mean");
    let sapo = format!("{ACTOR}.policy_loss.loss_mode=sapo");
    assert_eq!(overrides("", &[&aggregation, &sapo]), ["actor.policy_loss.loss_mode=sapo"]);
    assert_eq!(overrides("", &[&aggregation]), ["actor.loss_agg_mode=token-mean"]);
}

#[test]
fn values_that_would_mislead_are_refused_together() {
    let text = refused(
        "",
        &[
            "actor_rollout_ref.ref.sync_ref_model=True",
            "algorithm.adv_estimator=gae",
            "critic.ppo_epochs=2",
            "algorithm.filter_groups.enable=True",
            "actor_rollout_ref.model.lora_rank=0",
        ],
    );
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(
        text.contains(
            "`critic.ppo_epochs=2` has no equivalent: it must be that of actor.ppo_epochs, 1"
        ),
        "{text}"
    );
    let gae = "algorithm.adv_estimator=gae";
    let equal = ["actor_rollout_ref.actor.ppo_epochs=2", "critic.ppo_epochs=2", gae];
    assert_eq!(overrides("", &equal), ["actor.ppo_epochs=2", gae]);
    let batch = ["data.train_batch_size=256", "critic.ppo_mini_batch_size=256", gae];
    assert_eq!(overrides("", &batch), [batch[0], gae]);
}

#[test]
fn the_sampling_of_validations_counts_if_they_sample() {
    const KEYS: [&str; 4] = ["n=4", "temperature=0.6", "top_p=0.7", "top_k=-1"];
    let theirs = KEYS.map(|key| format!("actor_rollout_ref.rollout.val_kwargs.{key}"));
    let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
    let sampled = [&theirs[..], &["actor_rollout_ref.rollout.val_kwargs.do_sample=True"]].concat();
    assert_eq!(overrides("", &sampled), KEYS.map(|key| format!("rollout.val_kwargs.{key}")));
    // Without `do_sample`, verl ignores the sampling settings of validations.
    let greedy = translated("", &theirs).expect("accepted");
    assert_eq!((greedy.overrides.len(), greedy.unused.len()), (0, 3), "{greedy:?}");
    assert!(greedy.remarks[0].contains("greedy responses to a prompt"), "{greedy:?}");
}

#[test]
fn options_of_megatrons_optimizer_are_those_of_the_actor() {
    const OPTIM: &str = "actor_rollout_ref.actor.optim";
    let found = overrides(
        "",
        &[
            &format!("{OPTIM}.clip_grad=0.5"),
            &format!("{OPTIM}.lr_decay_style=cosine"),
            &format!("{OPTIM}.optimizer=adam"),
            &format!("{OPTIM}.min_lr=0.0"),
            &format!("{OPTIM}.lr_decay_steps=null"),
        ],
    );
    assert_eq!(found, ["actor.grad_clip=0.5", "actor.lr_scheduler_type=cosine"]);
    let text = refused("", &[&format!("{OPTIM}.optimizer=sgd"), &format!("{OPTIM}.min_lr=1e-7")]);
    assert!(text.contains("AdamW") && text.contains("decays to 0"), "{text}");
}

#[test]
fn unknown_keys_are_reported_with_refused_ones() {
    let text = refused(
        "",
        &[
            "actor_rollout_ref.model.lora_rank=8",
            "actor_rollout_ref.actor.kl_loss.coef=0.1",
            "trainer.total_epoch=2",
            "rollout.num_generations=4",
        ],
    );
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].contains("`actor_rollout_ref.model.lora_rank=8` has no equivalent"), "{text}");
    assert!(lines[1].contains("`actor_rollout_ref.actor.kl_loss.coef` (did you mean"), "{text}");
    assert!(lines[1].contains("did you mean `trainer.total_epochs`"), "{text}");
    assert!(!text.contains("num_generations"), "{text}");
}

#[test]
fn values_without_effect_are_left_out_with_a_note() {
    let kept = translated("", &[VERL, "data.filter_overlong_prompts=True"]).expect("accepted");
    assert!(kept.remarks.is_empty());
    let keys = [
        VERL,
        "data.filter_overlong_prompts=False",
        "+actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3",
    ];
    let left_out = translated("", &keys).expect("accepted");
    assert_eq!(left_out.overrides, ["rollout.n=8"]);
    let notes = left_out.notes().join("\n");
    assert!(notes.contains("`data.filter_overlong_prompts=False` is left out: prompts"), "{notes}");
    assert!(notes.contains("attention_backend=fa3` is left out: options of vLLM"), "{notes}");
}

#[test]
fn the_engine_is_servers_only_if_servers_are_given() {
    let name = "actor_rollout_ref.rollout.name=vllm";
    let alone = translated("", &[name]).expect("accepted");
    assert!(alone.overrides.is_empty() && alone.remarks[0].contains("rollout.engine = \"torch\""));
    let servers = "[rollout]\nservers = [\"http://localhost:1\"]";
    assert_eq!(overrides(servers, &[name]), ["rollout.engine=vllm"]);
}

#[test]
fn settings_without_meaning_are_one_note() {
    let keys = [
        VERL,
        "trainer.logger=['console','wandb']",
        "trainer.nnodes=1",
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
    ];
    let translation = translated("", &keys).expect("accepted");
    let notes = translation.notes();
    assert_eq!(notes.len(), 3, "{notes:?}");
    assert!(notes[0].contains("`actor_rollout_ref.rollout.n` sets `rollout.n`"), "{notes:?}");
    for key in [
        "`trainer.logger`",
        "`trainer.nnodes`",
        "`actor_rollout_ref.actor.fsdp_config.param_offload`",
    ] {
        assert!(notes[1].contains(key), "{key}: {notes:?}");
    }
}

#[test]
fn only_the_event_file_logger_is_kept() {
    let kept = translated("", &[VERL, "trainer.logger=[console,tensorboard]"]).expect("accepted");
    assert_eq!(kept.overrides, ["rollout.n=8", "trainer.logger=[\"tensorboard\"]"]);
    assert!(kept.ignored.is_empty() && kept.remarks[0].contains("only `tensorboard`"), "{kept:?}");
    let alone = translated("", &[VERL, "trainer.logger=tensorboard"]).expect("accepted");
    assert_eq!((alone.overrides.len(), alone.ignored.len()), (2, 0));
}

#[test]
fn each_key_is_listed_once_and_names_keys_that_exist() {
    for (at, entry) in all().enumerate() {
        assert!(all().take(at).all(|other| other.verl != entry.verl), "{}", entry.verl);
        let ours = match entry.meaning {
            KeyMapping::Key(ours)
            | KeyMapping::If(_, &KeyMapping::Key(ours))
            | KeyMapping::SameAs(ours, _)
            | KeyMapping::NotNull(ours, _)
            | KeyMapping::NotNegative(ours) => ours,
            _ => continue,
        };
        assert!(is_known::<RawRecipe>(ours), "{}: {ours}", entry.verl);
    }
}

#[test]
fn defaults_that_differ_from_those_of_verl_are_noted() {
    let found = translated("[rollout]\nn = 4", &["trainer.nnodes=1"]).expect("accepted");
    let notes = found.notes().join("\n");
    assert!(notes.contains("`algorithm.adv_estimator` is \"grpo\" (verl: \"gae\")"), "{notes}");
    assert!(notes.contains("`actor.ppo_mini_batch_size` is 16 (verl: 256)"), "{notes}");
    assert!(notes.contains("`trainer.total_epochs` is 1 (verl: 30)"), "{notes}");
    assert!(!notes.contains("`rollout.n`"), "{notes}");
    let equal = ["trainer.nnodes=1", "data.train_batch_size=256"];
    let notes = translated("", &equal).expect("accepted").notes().join("\n");
    assert!(!notes.contains("ppo_mini_batch_size"), "{notes}");
    let text = refused("", &["critic.optim.lr=1e-5"]);
    assert!(text.contains("set algorithm.adv_estimator"), "{text}");
    let grpo = ["algorithm.adv_estimator=grpo", "critic.optim.lr=1e-5"];
    assert_eq!(overrides("", &grpo), grpo[..1]);
}

#[test]
fn dynamic_sampling_is_the_schedule_of_dapo() {
    let filter = [
        "algorithm.filter_groups.enable=True",
        "algorithm.filter_groups.max_num_gen_batches=10",
        "algorithm.filter_groups.metric=acc",
        "data.gen_batch_size=48",
    ];
    assert!(refused("", &filter).contains("schedule.name=dynamic"));
    let found = translated("", &[&["schedule.name=dynamic"], &filter[..]].concat());
    let found = found.expect("accepted");
    let expected = [
        "schedule.name=dynamic",
        "schedule.max_generated_batches=10",
        "schedule.gen_prompts=48",
        "schedule.on_exhausted=fail",
    ];
    assert_eq!(found.overrides, expected);
    assert!(found.remarks[0].contains("variance of their scores"), "{found:?}");
}

#[test]
fn settings_that_verl_does_not_use_are_left_out() {
    const CORRECTION: &str = "algorithm.rollout_correction";
    let unused = [
        format!("{CORRECTION}.bypass_mode=False"),
        format!("{CORRECTION}.loss_type=ppo_clip"),
        format!("{CORRECTION}.rollout_is_threshold=5.0"),
        format!("{CORRECTION}.rollout_rs_threshold=2.0"),
        VERL.to_owned(),
    ];
    let found = overrides("", &unused.each_ref().map(String::as_str));
    assert_eq!(found, [&unused[0], "rollout.n=8"]);
    let used = [&format!("{CORRECTION}.rollout_is=token"), &unused[2], VERL];
    assert_eq!(overrides("", &used)[1], unused[2]);
    let bypass = [used[0], used[1], &format!("{CORRECTION}.bypass_mode=True"), VERL];
    assert_eq!(overrides("", &bypass), [bypass[2], "rollout.n=8"]);
    let unset = format!("{CORRECTION}.rollout_is=null");
    assert_eq!(overrides("", &[&unset, bypass[2], VERL])[0], unset);
    let loss_type = format!("{CORRECTION}.loss_type=reinforce");
    let reinforce = [bypass[0], bypass[1], bypass[2], &loss_type, VERL];
    assert_eq!(overrides("", &reinforce)[..4], reinforce[..4]);

    const OPTIM: &str = "actor_rollout_ref.actor.optim";
    let warm_up =
        [&format!("{OPTIM}.lr_warmup_steps=10"), &format!("{OPTIM}.lr_warmup_steps_ratio=0.1")];
    assert_eq!(overrides("", &warm_up.map(String::as_str)), ["actor.lr_warmup_steps=10"]);
    let ratio = [&format!("{OPTIM}.lr_warmup_steps=-1"), warm_up[1]];
    assert!(refused("", &ratio.map(String::as_str)).contains("number of steps"));

    let horizon = ["algorithm.kl_ctrl.type=adaptive", "algorithm.kl_ctrl.horizon=100", VERL];
    let found = translated("", &horizon).expect("accepted");
    assert!(found.unused[1].contains("needs algorithm.use_kl_in_reward = true"), "{found:?}");
    let filtered = ["data.filter_overlong_prompts=True", "data.truncation=left"];
    assert!(overrides("", &filtered).is_empty());
    let cut = ["data.filter_overlong_prompts=False", "data.truncation=left"];
    assert_eq!(overrides("", &cut), ["data.truncation=left"]);
}

#[test]
fn keys_that_would_change_the_training_are_refused() {
    for key in [
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=tools.yaml",
        "actor_rollout_ref.rollout.multi_turn.interaction_config_path=user.yaml",
        "actor_rollout_ref.ref.sync_ref_model=True",
        "actor_rollout_ref.actor.fsdp_config.full_determinism=True",
        "reward_model.sandbox_fusion_url=http://localhost",
        "reward_model.reward_loop_module_path=my.py",
        "actor_rollout_ref.actor.tis_imp_ratio_cap=2.0",
        "async_training.staleness_threshold=0.5",
        "actor_rollout_ref.rollout.max_model_len=100",
    ] {
        assert!(refused("", &[key]).contains("has no equivalent"), "{key}");
    }
    for key in [
        "actor_rollout_ref.rollout.max_model_len=1024000",
        "actor_rollout_ref.model.override_config={}",
        "actor_rollout_ref.rollout.multi_turn.tool_config_path=null",
        "trainer.v1.trainer_mode=sync",
        "skip.rollout.enable=False",
    ] {
        assert!(overrides("", &[key]).is_empty(), "{key}");
    }
    let keep = translated("", &["trainer.max_actor_ckpt_to_keep=null", VERL]).expect("accepted");
    assert!(keep.remarks[0].contains("trainer.max_ckpt_to_keep"), "{keep:?}");
    let text = refused("", &["actor_rollout_ref.foo=null", VERL]);
    assert!(text.contains("there is no such key"), "{text}");
    let text = refused("", &["~trainer.logger", VERL]);
    assert!(text.contains("expected `trainer.logger=null`"), "{text}");
}

#[test]
fn suggestions_compare_the_part_of_a_key_that_differs() {
    let text = refused("", &["actor_rollout_ref.actor.bogus=1", "critic.ppo_epochs=2"]);
    assert!(text.contains("`actor_rollout_ref.actor.bogus`"), "{text}");
    assert!(!text.contains("did you mean"), "{text}");
}
