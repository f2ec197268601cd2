//! Tests of the translation of verl's reward functions and of its penalty for overlong responses.

use toml::Table;

use super::{VERL, override_key, overrides, refused, translate, translated};

#[test]
fn a_function_is_the_python_reward_of_all_data() {
    let found = overrides("", &["custom_reward_function.path=my/reward.py"]);
    let expected = [
        "reward.options.python.file=my/reward.py",
        "reward.options.python.function=compute_score",
        "reward.routes={\"*\" = \"python\"}",
    ];
    assert_eq!(found, expected);
    let named = ["reward.custom_reward_function.name=f", "reward.custom_reward_function.path=r.py"];
    assert_eq!(overrides("", &named)[0], "reward.options.python.function=f");
    assert!(overrides("", &["custom_reward_function.path=null", VERL]).len() == 1);
    let path = ["custom_reward_function.path=r.py".to_owned()];
    let error = translate(&Table::new(), &path, &["math"]).errors[0].to_string();
    assert!(error.contains("no reward `python`"), "{error}");
}

#[test]
fn routes_of_the_command_line_are_kept() {
    let path = "custom_reward_function.path=r.py";
    for routes in
        ["reward.routes={\"*\" = \"python\"}", "reward.routes.a={ python = 1.0, format = 0.5 }"]
    {
        let found = overrides("", &[routes, path]);
        assert_eq!(
            found.iter().filter(|text| text.starts_with("reward.routes")).count(),
            1,
            "{found:?}"
        );
        assert_eq!(found[0], routes);
        assert!(overrides("", &[path, routes]).contains(&routes.to_owned()));
    }
    let text = refused("", &[path, "reward.routes.a=exact"]);
    assert!(text.contains("names no reward `python`"), "{text}");
    let unset = overrides("", &[path, "reward.routes=null"]);
    assert!(unset.contains(&"reward.routes={\"*\" = \"python\"}".to_owned()), "{unset:?}");
    // The routes of the file are replaced, as verl has none.
    let found = overrides("[reward]\nroutes = { \"*\" = \"exact\" }", &[path]);
    assert!(found.contains(&"reward.routes={\"*\" = \"python\"}".to_owned()), "{found:?}");
}

#[test]
fn further_arguments_of_a_function_are_passed_on() {
    let found = overrides(
        "",
        &[
            "custom_reward_function.path=r.py",
            "+custom_reward_function.reward_kwargs.method=strict",
            "+reward.custom_reward_function.reward_kwargs.weights=[1,2]",
        ],
    );
    assert_eq!(found[1], "reward.options.python.kwargs.method=strict");
    assert_eq!(found[2], "reward.options.python.kwargs.weights=[1,2]");
}

const DAPO: [&str; 4] = [
    "reward_model.reward_manager=dapo",
    "+reward_model.reward_kwargs.overlong_buffer_cfg.enable=True",
    "+reward_model.reward_kwargs.overlong_buffer_cfg.len=4096",
    "+reward_model.reward_kwargs.overlong_buffer_cfg.penalty_factor=0.5",
];

#[test]
fn the_penalty_of_dapo_is_a_reward() {
    let longest = "data.max_response_length=8192";
    let found = overrides("", &[&DAPO[..], &[longest]].concat());
    let expected = [
        longest,
        "reward.routes={\"*\" = { math = 1.0, soft_overlong = 0.5 }}",
        "reward.options.soft_overlong.max_length=8192",
        "reward.options.soft_overlong.cache=4096",
    ];
    assert_eq!(found, expected);
    let mut table = Table::new();
    found
        .iter()
        .for_each(|text| override_key::<crate::recipe::RawRecipe>(&mut table, text).expect("read"));
    assert_eq!(table["reward"]["routes"]["*"]["soft_overlong"].as_float(), Some(0.5));

    let own = ["reward_model.reward_kwargs.max_resp_len=10000", "custom_reward_function.path=r.py"];
    let found = overrides("", &[&DAPO[..], &own].concat());
    let routes = "reward.routes={\"*\" = { python = 1.0, soft_overlong = 0.5 }}".to_owned();
    assert!(found.contains(&routes), "{found:?}");
    assert!(found.contains(&"reward.options.soft_overlong.max_length=10000".to_owned()));
}

#[test]
fn the_penalty_of_dapo_needs_a_length_and_free_routes() {
    let off = "reward_model.overlong_buffer.enable=False";
    let found = translated("", &[off, "reward_model.overlong_buffer.len=9"]).expect("accepted");
    assert!(found.overrides.is_empty() && found.ignored.len() == 2, "{found:?}");
    let text = refused("", &["reward_model.overlong_buffer.enable=True"]);
    assert!(text.contains("set `len` beside it"), "{text}");
    let text = refused("[reward]\nroutes = { \"*\" = \"exact\" }", &DAPO);
    assert!(text.contains("reward.routes is set"), "{text}");
    let dapo = DAPO.map(str::to_owned);
    let error = translate(&Table::new(), &dapo, &["math"]).errors[0].to_string();
    assert!(error.contains("no reward `soft_overlong`"), "{error}");
}
