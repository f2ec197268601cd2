use expect_test::{Expect, expect};
use rollpacker_rewards::{Exact, F1, Format, Length, Pattern};
use rollpacker_stages::reward::{Context, Sample};

use super::*;

/// A registry with a few of the built-in rewards. Error messages list every name of the registry.
fn registry() -> Registry {
    Registry::default()
        .with("exact", |exact: Exact| Ok(exact))
        .with("f1", |f1: F1| Ok(f1))
        .with("format", |format: Format| Ok(format))
        .with("regex", Pattern::new)
        .with_group("length", |length: Length| Ok(length))
}

fn made(text: &str) -> Result<Router, RecipeError> {
    let section: Reward = toml::from_str(text).expect("a section");
    rewards(&section, &registry())
}

fn check_error(text: &str, expected: Expect) {
    let error = made(text).map(drop).expect_err("refused");
    expected.assert_eq(&error.to_string());
}

fn score(router: &Router, data_source: &str, response: &str) -> f64 {
    let sample = Sample::of(data_source, response, Some("B"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let context = Context::detached();
    let score = router.score(&sample, &context);
    runtime.expect("a runtime").block_on(score).expect("scored").value
}

#[test]
fn routes_lead_to_rewards_and_weighted_sums_with_their_options() {
    let router = made(
        r#"
        routes = { "a" = "plain", "b*" = { plain = 0.5, format = 2.0, length = 0.1 } }
        on_error = "zero"
        [options.plain]
        kind = "exact"
        ignore_case = true
        timeout_s = 1.5
        attempts = 2
        [options.format]
        style = "think"
        on_error = "drop_group"
        "#,
    )
    .expect("made");
    assert_eq!(score(&router, "a", "b"), 1.0);
    assert_eq!(score(&router, "b/x", "<think></think>b"), 2.5);
    assert!(router.check("c").is_err() && router.scores_groups());
    let on_error = ["a", "b", "c"].map(|source| router.on_error_of(source));
    assert_eq!(on_error, [OnError::Zero, OnError::DropGroup, OnError::Fail]);
}

#[test]
fn a_custom_reward_is_routed_like_a_built_in_one() {
    let registry = Registry::builtin()
        .with("yes", |_: Options| Ok(Format { think_in_prompt: true, ..Default::default() }));
    let section =
        toml::from_str("routes = { \"*\" = \"yes\" }\noptions.yes.any = 1").expect("a section");
    let router = rewards(&section, &registry).expect("made");
    assert_eq!(score(&router, "x", "a</think><answer>b</answer>"), 1.0);
}

#[test]
fn a_reward_that_cannot_be_created_is_named_by_its_key() {
    check_error(
        "routes = { \"*\" = \"exakt\" }",
        expect![
            "key `reward.routes.*`: expected one of exact, f1, format, length, regex (did you mean `exact`?), found `exakt`"
        ],
    );
    check_error(
        "routes.\"*\" = \"f1\"\n[options.x]\nkind = \"exat\"",
        expect![
            "key `reward.options.x.kind`: expected one of exact, f1, format, length, regex (did you mean `exact`?), found `exat`"
        ],
    );
    check_error(
        "routes.\"*\" = \"f1\"\n[options.exakt]\nignore_case = true",
        expect![
            "key `reward.options.exakt`: expected one of exact, f1, format, length, regex (did you mean `exact`?), found `exakt`"
        ],
    );
    check_error(
        "routes.\"*\" = \"exact\"\n[options.exact]\nignore_cases = true",
        expect![
            "unknown key `reward.options.exact.ignore_cases`; did you mean `reward.options.exact.ignore_case`?"
        ],
    );
    check_error(
        "routes.\"*\" = \"exact\"\n[options.exact]\ntimeouts = 3",
        expect![
            "unknown key `reward.options.exact.timeouts`; did you mean `reward.options.exact.timeout_s`?"
        ],
    );
    check_error(
        "routes.\"*\" = \"exact\"\n[options.exact]\nignore_case = 3",
        expect!["key `reward.options.exact.ignore_case`: expected true or false, found 3"],
    );
    check_error(
        "routes.\"*\" = \"exact\"\n[options.exact]\ntimeout_s = 0",
        expect!["key `reward.options.exact.timeout_s`: expected a number above 0, found 0"],
    );
    check_error(
        "routes.\"*\" = \"exact\"\n[options.exact]\non_error = \"ignore\"",
        expect![
            "key `reward.options.exact.on_error`: expected one of tolerate, fail, zero, drop_group, found `ignore`"
        ],
    );
    check_error(
        "routes.\"*\" = \"regex\"",
        expect!["key `reward.options.regex.pattern`: expected a value, found nothing"],
    );
    check_error(
        "routes.\"*\" = \"length\"\n[options.length]\nattempts = 3",
        expect![
            "key `reward.options.length`: expected no guard options: the reward scores whole groups"
        ],
    );
    check_error(
        "routes.\"*\" = { length = 0.5 }",
        expect![
            "key `reward.routes.*`: `length` depends on the scores of a per-sample reward: expected one on this route"
        ],
    );
    check_error(
        "routes.\"*\" = { exact = inf }",
        expect!["key `reward.routes.*.exact`: expected a finite weight, found inf"],
    );
    check_error(
        "routes.\"*\" = {}",
        expect!["key `reward.routes.*`: expected at least one reward and its weight, found none"],
    );
    check_error(
        "routes.\"*\" = { exact = 1.0, f1 = 1.0 }\noptions.f1.on_error = \"zero\"\noptions.exact.on_error = \"fail\"",
        expect!["key `reward.routes.*`: its rewards set different values of `on_error`"],
    );
}
