//! Tests of overrides in Hydra's syntax.

use super::{VERL, overrides, refused};

#[test]
fn names_are_replaced_and_values_stay() {
    let found = overrides(
        "",
        &[
            VERL,
            "+actor_rollout_ref.actor.optim.lr=1e-6",
            "data.train_files=['a','b']",
            "++trainer.total_epochs=2",
        ],
    );
    let expected =
        ["rollout.n=8", "actor.lr=1e-6", "data.train_files=['a','b']", "trainer.total_epochs=2"];
    assert_eq!(found, expected);
}

#[test]
fn entries_of_dictionaries_are_overrides() {
    let found = overrides(
        "",
        &[
            VERL,
            "actor_rollout_ref.actor.policy_loss={loss_mode: gspo}",
            "+actor_rollout_ref.actor.optim={'lr':1e-6, betas: [0.9, 0.95],}",
            "actor_rollout_ref.model={path: \"a,b\", custom_chat_template: null}",
            "critic.optim={lr: 1e-5}",
            "algorithm.adv_estimator=gae",
            "custom_reward_function.reward_kwargs={a: 1, b: [2, {c: 3}]}",
            "custom_reward_function.reward_kwargs=null",
            "actor_rollout_ref.actor.entropy_coeff={}",
            "reward.options.judge.prompt={{ prompt }} Score: {{ response }}",
            "actor_rollout_ref.rollout={temperature = 0.5, top_p = 0.9}",
            "actor_rollout_ref.rollout.top_p=0.8",
            "data.curriculum={min_pass_rate = 0.1}",
        ],
    );
    let expected = [
        "rollout.n=8",
        "actor.policy_loss.loss_mode=gspo",
        "actor.lr=1e-6",
        "actor.betas=[0.9, 0.95]",
        "model.path=\"a,b\"",
        "critic.lr=1e-5",
        "algorithm.adv_estimator=gae",
        "actor.entropy_coeff={}",
        "reward.options.judge.prompt={{ prompt }} Score: {{ response }}",
        "rollout.temperature=0.5",
        "rollout.top_p=0.8",
        "data.curriculum={min_pass_rate = 0.1}",
    ];
    assert_eq!(found, expected);
}

#[test]
fn own_keys_are_not_changed() {
    let own = ["algorithm.lam=0.9", "data.seed=null", "rolout.n=3", r#"reward.routes."a=b"=math"#];
    assert_eq!(overrides("", &own), own);
}

#[test]
fn the_last_override_of_a_key_counts() {
    const RATIO: &str = "actor_rollout_ref.actor.optim.lr_warmup_steps_ratio";
    let keys = [
        "data.truncation=left",
        "trainer.logger=['console','tensorboard']",
        &format!("{RATIO}=0.1"),
        VERL,
        "data.truncation=error",
        "trainer.logger=console",
        &format!("{RATIO}=0.0"),
        "actor_rollout_ref.rollout.n=4",
    ];
    assert_eq!(overrides("", &keys), ["data.truncation=error", "rollout.n=4"]);
}

#[test]
fn references_have_the_value_of_their_key() {
    let keys = [
        "data.max_prompt_length=256",
        "trainer.experiment_name=e",
        "actor_rollout_ref.rollout.prompt_length=${data.max_prompt_length}",
        "trainer.default_local_dir=ckpts/${trainer.experiment_name}",
    ];
    let expected = ["data.max_prompt_length=256", "trainer.default_local_dir=ckpts/e"];
    assert_eq!(overrides("", &keys), expected);
    let text = refused("", &[VERL, "trainer.default_local_dir=ckpts/${trainer.project_name}"]);
    assert!(text.contains("a key in `${...}` is not set here"), "{text}");
    let from_file = "[data]\nmax_prompt_length = 77";
    let keys = [VERL, "actor_rollout_ref.rollout.prompt_length=${data.max_prompt_length}"];
    assert_eq!(overrides(from_file, &keys), overrides(from_file, &[VERL]), "the value of the file");
    let circle = ["data.seed=${rollout.seed}", "rollout.seed=${data.seed}", VERL];
    assert!(refused("", &circle).contains("`${...}`"));
}

#[test]
fn references_between_keys_of_ours_have_their_values_too() {
    let keys = ["data.train_files=a.parquet", "data.val_files=${data.train_files}"];
    assert_eq!(overrides("", &keys), ["data.train_files=a.parquet", "data.val_files=a.parquet"]);
    let keys = ["trainer.default_local_dir=runs/${rollout.n}-${HOME}"];
    assert_eq!(overrides("", &keys), ["trainer.default_local_dir=runs/8-${HOME}"]);
    let text = refused("", &["trainer.default_local_dir=ckpts/${trainer.project_name}"]);
    assert!(text.contains("a key in `${...}` is not set here"), "{text}");
}
