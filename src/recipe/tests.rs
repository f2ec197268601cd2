mod placement;
mod rollout_correction;
mod schedule;

use expect_test::{Expect, expect};

use super::*;

fn read(text: &str, overrides: &[&str]) -> Result<Recipe, RecipeError> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("recipe.toml");
    std::fs::write(&path, text).expect("written");
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    Recipe::read(&path, &overrides)
}

fn check_error(text: &str, overrides: &[&str], expected: Expect) {
    expected.assert_eq(&read(text, overrides).expect_err("refused").to_string());
}

#[test]
fn keys_declare_whether_a_run_may_be_resumed_with_another_value() {
    for key in
        ["trainer.workers", "rollout.instances", "rollout.serve.count", "placement.kind", "sft.lr"]
    {
        assert!(Recipe::is_resumable(key), "{key}");
    }
    for key in ["actor.lr", "rollout.n", "trainer.seed", "reward.timeout.seconds", "schedule.name"]
    {
        assert!(!Recipe::is_resumable(key), "{key}");
    }
}

#[test]
fn overrides_win_over_the_file_and_the_file_over_defaults() {
    let recipe =
        read("[rollout]\nn = 4\ntop_p = 0.9", &["rollout.n=6", "data.train_files=a.parquet"])
            .expect("valid");
    let Recipe { rollout, sampling, train_data, .. } = &recipe;
    assert_eq!((rollout.n, sampling.top_p, sampling.temperature), (6, 0.9, 1.0));
    assert_eq!(train_data.files, ["a.parquet"]);
    // The last override applies, whichever names of a key the file and the overrides use.
    let n = |file: &str, overrides: &[&str]| read(file, overrides).expect("valid").rollout.n;
    for file in ["[rollout]\nn = 4", "[rollout]\nnum_generations = 4"] {
        assert_eq!(n(file, &["rollout.num_generations=6"]), 6, "{file}");
        assert_eq!(n(file, &["rollout.num_generations=5", "rollout.n=6"]), 6, "{file}");
        assert_eq!(n(file, &["rollout.n=5", "rollout.num_generations=6"]), 6, "{file}");
        assert_eq!(n(file, &["rollout.num_generations=null"]), n("", &[]), "{file}");
    }
}

#[test]
fn a_long_line_that_is_not_toml_is_named_by_its_number() {
    let text = format!("[data]\nseed = {}", "x".repeat(2000));
    let error = read(&text, &[]).expect_err("refused").to_string();
    assert!(error.contains(" is not valid TOML: line 2: ") && error.len() < 1000, "{error}");
    let error = read("[data]\nseed = x", &[]).expect_err("refused").to_string();
    assert!(error.contains("2 | seed = x"), "{error}");
}

#[test]
fn a_part_of_a_key_in_quotes_may_contain_dots() {
    let routes = |text: &str| read("", &[text]).expect("valid").reward.routes;
    for text in [r#"reward.routes."a.b=c"=math"#, r#" reward.routes.'a.b=c' = "math""#] {
        assert!(routes(text).contains_key("a.b=c"), "{text}");
    }
    assert!(routes(r#"reward.routes."*"=math"#).contains_key("*"));
    for text in [
        r#"reward.routes."a=math"#,
        "reward..routes=1",
        r#"reward."routes"x=1"#,
        r#""rollout".n=8"#,
        "=1",
    ] {
        let error = read("", &[text]).expect_err("refused").to_string();
        assert_eq!(error, format!("override `{text}`: expected key=value"));
    }
}

#[test]
fn a_key_of_a_value_that_is_no_table_names_the_value() {
    let error = read("[rollout]\nn = 4", &["rollout.n.x=3"]).expect_err("refused");
    let expected =
        "key `rollout.n`: expected a table, in which `rollout.n.x=3` sets a key, found 4";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn beta_switches_the_kl_loss() {
    let kl = |file: &str, overrides: &[&str]| {
        let actor = read(file, overrides).expect("valid").raw.actor;
        (actor.use_kl_loss, actor.kl_loss_coef)
    };
    for (written, expected) in [("0.001", (true, 0.001)), ("0.1", (true, 0.1)), ("0", (false, 0.0))]
    {
        assert_eq!(kl("", &[&format!("actor.beta={written}")]), expected);
        assert_eq!(kl(&format!("[actor]\nbeta = {written}"), &[]), expected);
    }
    let on = "[actor]\nbeta = 0.1";
    assert_eq!(kl(on, &["actor.beta=0.0"]), (false, 0.0));
    assert_eq!(kl("[actor]\nbeta = 0.0\nuse_kl_loss = true", &[]), (true, 0.0));
    assert_eq!(kl("", &["actor.beta=0.1", "actor.beta=null"]), kl("", &[]));
    let kind = "[actor]\nbeta = 0.1\nuse_kl_loss = true\nkl_loss_type = \"kl\"";
    assert_eq!(kl(kind, &["actor.beta=0"]), (true, 0.0));
    assert!(kl(kind, &["actor.beta=null"]).0);
    for overrides in [
        ["actor.use_kl_loss=false", "actor.beta=0.1"],
        ["actor.beta=0.1", "actor.use_kl_loss=false"],
    ] {
        let error = read("", &overrides).expect_err("refused").to_string();
        assert!(error.contains("expected actor.use_kl_loss = true"), "{error}");
    }
}

#[test]
fn validations_sample_as_training_unless_they_have_settings_of_their_own() {
    let sampling = |overrides: &[&str]| {
        let recipe = read("[rollout]\ntop_p = 0.9\ntop_k = 5", overrides).expect("valid");
        let Recipe { sampling, val_sampling, val_samples, .. } = recipe;
        (sampling, val_sampling, val_samples)
    };
    let (training, validation, samples) = sampling(&[]);
    assert_eq!((validation, samples), (training, 1));
    let keys = ["n=4", "temperature=0.6", "top_p=0.7", "top_k=-1"];
    let keys = keys.map(|key| format!("rollout.val_kwargs.{key}"));
    let own = Sampling { temperature: 0.6, top_p: 0.7, top_k: 0, ..training };
    assert_eq!(sampling(&keys.each_ref().map(String::as_str)), (training, own, 4));
}

#[test]
fn a_recorded_recipe_has_no_credentials() {
    let text = r#"
        [reward]
        routes = { "*" = "http", "b" = "own" }
        [reward.options.http]
        url = "https://user:pass-word@host/v1?key=query-key"
        api_key_env = "SCORER_KEY"
        [reward.options.own]
        kind = "judge"
        prompt = "see http://host/page?x=1 first"
        extra_body = { api_key = "body-key", servers = ["http://other:pass-word@host"] }
        [reward.options.third]
        kind = "process"
        command = ["python3", "score.py", "--api-key", "process-key"]
        [rollout.engine_options]
        url = "http://engine:pass-word@host"
        note = "first http://me:pass-word@host"
        urls = "http://a,http://me:pass-word@b"
        [rollout.serve]
        command = ["serve", "--api-key", "flag-key", "--port={port}"]
        env = { HF_TOKEN = "hub-key", CUDA_VISIBLE_DEVICES = "{index}", HEADERS = "a=1,api-key=header-key", CURL = "-H Authorization: Bearer bearer-key" }
    "#;
    let recipe = read(text, &[]).expect("valid");
    let settings = format!("{:?}", recipe.settings());
    for recorded in [recipe.to_toml(), settings] {
        for secret in [
            "pass-word",
            "query-key",
            "body-key",
            "user:",
            "flag-key",
            "hub-key",
            "process-key",
            "header-key",
            "bearer-key",
        ] {
            assert!(!recorded.contains(secret), "{recorded}");
        }
        let url = "https://[redacted]@host/v1?key=[redacted]";
        for kept in ["SCORER_KEY", "see http://host/page?x=1 first", url] {
            assert!(recorded.contains(kept), "{kept}: {recorded}");
        }
    }
    assert!(recipe.has_credentials());
    assert!(recipe.reward.options["http"]["url"].as_str().expect("text").contains("pass-word"));
    let again = read(&recipe.to_toml(), &[]).expect("valid");
    assert!(!again.has_credentials());
}

#[test]
fn names_of_other_frameworks_are_understood() {
    let recipe =
        read("[rollout]\nnum_generations = 4\n[actor]\nbeta = 0.1\nuse_kl_loss = true", &[])
            .expect("valid");
    assert_eq!((recipe.rollout.n, recipe.trainer.kl_loss_coef), (4, 0.1));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest() {
    check_error(
        "[actor]\nclip_ration_low = 0.1",
        &[],
        expect!["unknown key `actor.clip_ration_low`; did you mean `actor.clip_ratio_low`?"],
    );
    check_error("", &["rolout.n=3"], expect!["unknown key `rolout`; did you mean `rollout`?"]);
    check_error("", &["rollout.zzzzzzzz=3"], expect!["unknown key `rollout.zzzzzzzz`"]);
}

#[test]
fn wrong_types_and_bounds_name_the_key() {
    check_error(
        "",
        &["rollout.n=many"],
        expect![[r#"key `rollout.n`: expected an integer, found "many""#]],
    );
    check_error("", &["rollout.n=0"], expect!["key `rollout.n`: expected at least 1, found 0"]);
    check_error(
        "",
        &["rollout.temperature=nan"],
        expect!["key `rollout.temperature`: expected from 0.001 to 1000, found NaN"],
    );
    check_error(
        "",
        &["schedule.name=tail_batchin"],
        expect![
            "key `schedule.name`: expected one of dynamic, frontier_group, fused, history_sorted, longest_first, partial, sorted, sync, tail_batching (did you mean `tail_batching`?), found `tail_batchin`"
        ],
    );
    check_error(
        "",
        &["actor.ppo_mini_batch_size=17"],
        expect![
            "key `actor.ppo_mini_batch_size`: expected at most 16, data.train_batch_size, found 17"
        ],
    );
    check_error(
        "",
        &["actor.ppo_mini_batch_size=8", "trainer.workers=2"],
        expect![
            "key `actor.ppo_mini_batch_size`: expected data.train_batch_size with 2 workers, found 8"
        ],
    );
    check_error(
        "",
        &["actor.ppo_epochs=2", "trainer.workers=2"],
        expect!["key `actor.ppo_epochs`: expected 1 with 2 workers, found 2"],
    );
    check_error(
        "",
        &[
            "actor.ppo_epochs=2",
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.rollout_is_batch_normalize=true",
        ],
        expect![
            "key `algorithm.rollout_correction.rollout_is_batch_normalize`: expected false with several updates per step (actor.ppo_mini_batch_size, actor.ppo_epochs), found true"
        ],
    );
    check_error(
        "",
        &["actor.lr_scheduler_type=cosine"],
        expect![
            "key `actor.lr_scheduler_type`: expected `constant`, unless trainer.total_training_steps is set, found `cosine`"
        ],
    );
    check_error(
        "[actor]\nbeta = 0.1\nkl_loss_coef = 0.2",
        &[],
        expect!["key `actor.kl_loss_coef`: written twice, also as `actor.beta`"],
    );
    check_error(
        "",
        &["algorithm.rollout_correction.rollout_is=tokens"],
        expect![
            "key `algorithm.rollout_correction.rollout_is`: expected one of token, sequence (did you mean `token`?), found `tokens`"
        ],
    );
    check_error(
        "",
        &["actor.kl_loss_coef=0.1"],
        expect![
            "key `actor.kl_loss_coef`: expected actor.use_kl_loss = true when it is set, found 0.1"
        ],
    );
    check_error(
        "",
        &["actor.loss_scale_factor=100.0"],
        expect![
            "key `actor.loss_scale_factor`: expected actor.loss_agg_mode = seq-mean-token-sum-norm when it is set, found 100"
        ],
    );
    check_error(
        "",
        &["schedule.name=sync", "schedule.max_queue_age=3"],
        expect![
            "unknown key `schedule.max_queue_age`; did you mean `schedule.name = tail_batching`?"
        ],
    );
    check_error("", &["rollout.n"], expect!["override `rollout.n`: expected key=value"]);
}

#[test]
fn integers_of_more_than_64_bits_are_out_of_range() {
    check_error(
        "",
        &["rollout.n=99999999999999999999"],
        expect!["key `rollout.n`: expected from 1 to 1048576, found 99999999999999999999"],
    );
    check_error(
        "",
        &["trainer.seed=-99_999_999_999_999_999_999"],
        expect![
            "key `trainer.seed`: expected an integer of at least -9223372036854775808, found -99_999_999_999_999_999_999"
        ],
    );
    let number = "expected a number with a point, or an integer of at most 9223372036854775807, found 99999999999999999999";
    for (written, key) in [
        ("actor.betas=[99999999999999999999, 0.9]", "actor.betas[0]"),
        ("schedule.eta_prompts=99999999999999999999", "schedule.eta_prompts"),
    ] {
        let error = read("", &[written]).expect_err("refused").to_string();
        assert_eq!(error, format!("key `{key}`: {number}"));
    }
}

#[test]
fn a_list_of_a_wrong_length_is_refused_with_the_expected_length() {
    for (list, found) in [("[0.9]", 1), ("[1, 2, 3]", 3)] {
        let error = read("", &[&format!("actor.betas={list}")]).expect_err("refused").to_string();
        let expected = format!("key `actor.betas`: expected a list of 2 values, found {found}");
        assert_eq!(error, expected);
    }
}

#[test]
fn all_conflicts_are_reported_at_once() {
    let overrides = [
        "trainer.max_wall_time=soon",
        "trainer.stall_timeout=later",
        "actor.lr_scheduler_type=linear",
        "schedule.name=dynamic",
        "schedule.max_generated_batches=2",
        "schedule.on_exhausted=fail",
        "pipeline.reward=after_rollout",
        "placement.kind=separate_pools",
        "rollout.instances=1",
    ];
    let error = read("", &overrides).expect_err("refused").to_string();
    for key in [
        "trainer.max_wall_time",
        "trainer.stall_timeout",
        "actor.lr_scheduler_type",
        "pipeline.reward",
        "rollout.instances",
    ] {
        assert!(error.contains(&format!("key `{key}")), "{key}: {error}");
    }
}

#[test]
fn sizes_of_a_model_made_from_scratch_that_do_not_fit_name_the_key() {
    check_error(
        "",
        &["sft.num_attention_heads=0"],
        expect!["key `sft.num_attention_heads`: expected at least 1, found 0"],
    );
    check_error(
        "",
        &["sft.hidden_size=100", "sft.num_attention_heads=4"],
        expect![
            "key `sft.hidden_size`: expected an even multiple of sft.num_attention_heads, found 100"
        ],
    );
    check_error(
        "",
        &["sft.num_key_value_heads=3"],
        expect![
            "key `sft.num_key_value_heads`: expected a divisor of sft.num_attention_heads, found 3"
        ],
    );
}

#[test]
fn limits_of_test_cases_are_checked_by_their_keys() {
    let recipe = read("[reward.timeout]\nmax_s = 10", &["reward.timeout.slack=2"]);
    let limits = recipe.expect("valid").reward.timeout;
    assert_eq!((limits.min_s, limits.max_s, limits.slack), (2.0, 10.0, 2.0));
    let check = |overrides: &[&str], expected: Expect| check_error("", overrides, expected);
    check(
        &["reward.timeout.min_s=40"],
        expect!["key `reward.timeout.min_s`: expected seconds above 0, at most `max_s`, found 40"],
    );
    check(
        &["reward.timeout.audit_share=1.5"],
        expect!["key `reward.timeout.audit_share`: expected a number in [0, 1], found 1.5"],
    );
    check(
        &["reward.timeout.mode=fixed", "reward.timeout.slack=2"],
        expect![[
            r#"key `reward.timeout.slack`: expected `reward.timeout.mode = "adaptive"` when it is set, found 2"#
        ]],
    );
    check(
        &["reward.timeout.mode=adaptiv"],
        expect![
            "key `reward.timeout.mode`: expected one of fixed, adaptive (did you mean `adaptive`?), found `adaptiv`"
        ],
    );
    check(
        &["reward.timeout.max=3"],
        expect!["unknown key `reward.timeout.max`; did you mean `reward.timeout.max_s`?"],
    );
    check(
        &["reward.timeout=3"],
        expect![
            "key `reward.timeout`: expected a table of `mode`, `min_s`, `max_s`, `slack` and `audit_share`, found 3"
        ],
    );
}

#[test]
fn unsetting_the_name_of_an_entry_drops_its_options() {
    let default = read("", &[]).expect("valid").raw;
    for (file, key) in [
        ("[schedule]\nname = \"sorted\"\ngroup_size = 2", "schedule.name"),
        ("[placement]\nkind = \"planner\"\nrule = \"predictive\"", "placement.kind"),
        ("[placement]\nkind = \"own\"\noptions = { devices = 1 }", "placement.kind"),
        ("[actor.policy_loss]\nloss_mode = \"own\"\nwidth = 2", "actor.policy_loss.loss_mode"),
        ("[actor]\nstrategy = \"own\"\nstrategy_options = { a = 1 }", "actor.strategy"),
        ("[rollout]\nengine = \"vllm\"\nservers = [\"http://a\"]", "rollout.engine"),
    ] {
        let recipe = read(file, &[&format!("{key}=null")]).unwrap_or_else(|e| panic!("{key}: {e}"));
        assert_eq!(recipe.raw, default, "{key}");
    }
    let file = "[schedule]\nname = \"tail_batching\"\neta_prompts = 1.5";
    let same = read(file, &["schedule.name=null"]).expect("valid");
    assert_eq!(same.raw.schedule.options.len(), 1, "the default is the same schedule");
    let file = "[actor.policy_loss]\nloss_mode = \"vanilla\"\nwidth = 2";
    let same = read(file, &["actor.policy_loss.loss_mode=null"]).expect("valid");
    assert_eq!(same.raw.actor.policy_loss.options.len(), 1);
}

#[test]
fn a_resolved_recipe_round_trips() {
    let recipe = read("[schedule]\nname = \"sync\"", &["trainer.seed=7"]).expect("valid");
    assert_eq!(read(&recipe.to_toml(), &[]).expect("valid").raw, recipe.raw);
}
