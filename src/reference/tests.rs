use super::*;
use crate::App;
use crate::cli::keys::{job_sections, sections};
#[cfg(all(feature = "servers", feature = "code", feature = "http"))]
use crate::generated_page::assert_tables;
use crate::recipe::range::range_text;
use crate::recipe::ranges::RANGES;
use crate::recipe::{RawRecipe, Recipe};
use crate::simulate::raw::RawJob;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md");

fn keys() -> Vec<Key> {
    sections(&App::new()).into_iter().flat_map(|section| section.keys).collect()
}

fn key(name: &str) -> Key {
    keys().into_iter().find(|key| key.name == name).unwrap_or_else(|| panic!("no key `{name}`"))
}

/// The catalogs have all their entries only with the default features.
#[cfg(all(feature = "servers", feature = "code", feature = "http"))]
#[test]
fn the_page_of_recipes_is_up_to_date() {
    let tables = format!("\n{}", markdown(&sections(&App::new())));
    assert_tables(PAGE, &tables, "cargo test -p rollpacker --lib page_of_recipes");
}

#[cfg(all(feature = "servers", feature = "code", feature = "http"))]
#[test]
fn the_page_of_job_keys_is_up_to_date() {
    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/simulator-keys.md");
    let tables = format!("\n{}", markdown(&job_sections(&App::new())));
    assert_tables(PAGE, &tables, "cargo test -p rollpacker --lib page_of_job_keys");
}

#[test]
fn every_key_of_a_job_is_listed_with_type_and_meaning() {
    let sections = job_sections(&App::new());
    let listed: Vec<&Key> = sections.iter().flat_map(|section| &section.keys).collect();
    for name in RawJob::keys() {
        let name = if name == "schedule" { "schedule.name" } else { &name };
        let key = listed.iter().find(|key| key.name == name);
        let key = key.unwrap_or_else(|| panic!("no key `{name}`"));
        assert!(!key.meaning.is_empty(), "{name} has no meaning");
        assert!(!["", "value"].contains(&key.kind.as_str()), "{name}: {}", key.kind);
        assert!(!key.meaning.contains("](") && !key.meaning.contains("(verl"), "{name}");
    }
    let key = |name: &str| listed.iter().find(|key| key.name == name).expect("a key");
    let (gpus, n) = (key("cluster.gpus"), key("rollout.n"));
    assert_eq!((gpus.default.as_deref(), gpus.is_resumable), (Some("32"), false));
    assert_eq!(key("cluster.hardware").kind, "any valid TOML value");
    assert_eq!(key("calibration.kv_bandwidth").range.as_deref(), Some("from 0.001 to 1"));
    assert!(n.aliases.iter().any(|(alias, _)| alias == "rollout.group_size"), "{n:?}");
}

#[test]
fn every_key_is_listed_with_type_and_meaning() {
    let listed = keys();
    for name in Recipe::keys() {
        let name = match name.as_str() {
            "schedule" => "schedule.name",
            "placement" => "placement.kind",
            "actor.policy_loss" => "actor.policy_loss.loss_mode",
            name => name,
        };
        let key = key(name);
        assert!(!key.meaning.is_empty(), "{name} has no meaning");
        assert!(!["", "value"].contains(&key.kind.as_str()), "{name}: {}", key.kind);
        assert!(!key.meaning.contains("](") && !key.meaning.contains("(verl"), "{name}");
    }
    assert!(listed.iter().any(|key| key.belongs_to.as_deref() == Some("schedule `sorted`")));
    let rules = listed.iter().filter(|key| key.name == "placement.rule");
    let rules =
        rules.map(|key| (key.belongs_to.as_deref(), key.default.as_deref(), key.is_resumable));
    let expected = [("planner", "\"paper\""), ("stream_trainer", "\"fixed\"")];
    let expected = expected.map(|(name, rule)| (format!("placement `{name}`"), rule));
    let expected = expected.each_ref().map(|(of, rule)| (Some(of.as_str()), Some(*rule), true));
    assert_eq!(rules.collect::<Vec<_>>(), expected);
}

/// The documentation of a key and the table of verl's keys agree.
#[test]
fn the_table_of_verl_keys_matches_their_meaning() {
    use crate::recipe::verl::entries::{KeyMapping, find};
    for key in keys().iter().filter(|key| key.belongs_to.is_none()) {
        for verl in &key.verl {
            match find(verl, true) {
                Some(
                    KeyMapping::Key(ours)
                    | KeyMapping::If(_, &KeyMapping::Key(ours))
                    | KeyMapping::NotNegative(ours),
                ) => {
                    assert_eq!(ours, key.name, "{verl}");
                }
                // The value of the key determines the translation; see `docs/verl.md`.
                Some(KeyMapping::Engine | KeyMapping::Ignored | KeyMapping::Refused(_)) => {}
                found => assert!(find(verl, false).is_some(), "{verl}: {found:?}"),
            }
        }
    }
}

#[test]
fn ranges_and_choices_belong_to_keys() {
    for (range, choices) in [("rollout.n", ""), ("actor.grad_clip", ""), ("", "placement.kind")] {
        assert!(range.is_empty() || key(range).range == range_text(RANGES, range));
        assert!(choices.is_empty() || key(choices).range.expect("choices").contains("`fixed`"));
    }
    let numbers = |key: &&Key| ["integer", "number"].contains(&key.kind.as_str());
    // Every value of these keys is valid, so they have no range.
    let free = [
        "data.seed",
        "rollout.seed",
        "trainer.seed",
        "data.curriculum.pass_score",
        "sim.seed",
        "reward.options.math.boxed_priority",
    ];
    // The selected policy loss checks the ranges of these options.
    let of_loss =
        ["clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg"];
    let of_loss = of_loss.map(|key| format!("actor.{key}"));
    let jobs = job_sections(&App::new());
    let (keys, job_keys) = (keys(), jobs.iter().flat_map(|section| &section.keys));
    for key in keys.iter().chain(job_keys).filter(numbers) {
        assert!(
            key.range.is_some() || free.contains(&&*key.name) || of_loss.contains(&key.name),
            "{} of {:?} has no range",
            key.name,
            key.belongs_to
        );
    }
}

#[test]
fn every_option_of_a_name_has_a_type_and_a_meaning() {
    let keys = keys();
    for key in keys.iter().filter(|key| key.belongs_to.is_some()) {
        assert!(!["", "value"].contains(&key.kind.as_str()), "{}: {}", key.name, key.kind);
        assert!(!key.meaning.is_empty(), "{} of {:?} has no meaning", key.name, key.belongs_to);
    }
}

#[test]
fn a_key_has_all_its_parts() {
    let n = key("rollout.n");
    assert_eq!(
        (n.kind.as_str(), n.unit, n.default.as_deref()),
        ("integer", "responses", Some("8"))
    );
    assert_eq!(n.range.as_deref(), Some("from 1 to 1048576"));
    assert_eq!(n.meaning, "Number of responses of a group, called R0 in the RollPacker paper.");
    assert_eq!(
        (n.verl, n.trl),
        (vec!["actor_rollout_ref.rollout.n".into()], vec!["num_generations".into()])
    );
    assert_eq!(key("data.seed").default.as_deref(), Some("`trainer.seed`"));
    assert_eq!(key("trainer.on_stall").range.as_deref(), Some("`warn`, `fail`"));
    assert!(key("trainer.on_stall").is_resumable && !n.is_resumable);
}

#[test]
fn a_wrong_prefix_gets_suggestions() {
    let suggestions = |prefix| matching(sections(&App::new()), prefix).expect_err("unknown");
    assert_eq!(suggestions("rolout")[0], "rollout");
    assert_eq!(suggestions("actor_rollout_ref.rollout.n")[0], "rollout.n");
    assert_eq!(suggestions("num_generations"), ["rollout.n"]);
    assert!(suggestions("rollout.lr").contains(&"actor.lr".to_owned()));
    assert!(suggestions("zzzzzzzzzzzzzzzz").is_empty());
    let found = matching(sections(&App::new()), "actor.lr").expect("known");
    let names: Vec<_> = found[0].keys.iter().map(|key| key.name.as_str()).collect();
    assert_eq!(names, ["actor.lr", "actor.lr_warmup_steps", "actor.lr_scheduler_type"]);
}

#[test]
fn lines_fit_into_the_terminal() {
    let sections = sections(&App::new());
    for line in text(&sections, Some(80)).lines() {
        assert!(line.chars().count() <= 80 || !line.trim().contains(' '), "{line}");
    }
    let plain = text(&sections, None);
    assert!(
        plain.lines().any(|line| line.starts_with("  rollout.n = 8 (integer, responses)")),
        "{plain}"
    );
}

const PAGE_OF_TRL: &str = include_str!("../../docs/trl.md");

/// Returns the texts in backticks.
fn codes(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the rows of the table of settings on the page of TRL: TRL's names, and the keys and options of this project with the same
/// meaning.
fn rows_of_trl() -> impl Iterator<Item = (&'static str, &'static str)> {
    let rows = PAGE_OF_TRL.lines().filter(|line| line.starts_with("| `"));
    rows.filter_map(|line| line.trim_matches('|').split_once(" | "))
}

#[test]
fn the_page_of_trl_names_keys_that_exist() {
    let keys = keys();
    let named: Vec<_> = rows_of_trl().flat_map(|(_, here)| codes(here)).collect();
    let dotted = named.iter().filter(|code| code.contains('.'));
    let names: Vec<_> = dotted.filter_map(|code| code.split('=').next()).collect();
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        assert!(keys.iter().any(|key| key.name == name), "docs/trl.md names `{name}`");
    }
}

#[test]
fn the_page_of_trl_has_all_settings_that_mean_the_same() {
    for key in keys().iter().filter(|key| key.belongs_to.is_none()) {
        for trl in &key.trl {
            let is_row = |(trl_column, here): (&str, &str)| {
                codes(trl_column).any(|code| code == trl)
                    && codes(here).any(|code| code.split('=').next() == Some(key.name.as_str()))
            };
            assert!(rows_of_trl().any(is_row), "docs/trl.md has no `{trl}` for `{}`", key.name);
        }
    }
}

#[test]
fn the_recipe_on_the_page_of_trl_is_valid() {
    let (_, after) = PAGE_OF_TRL.split_once("```toml\n").expect("a recipe");
    let (recipe, _) = after.split_once("```").expect("an end");
    let table: Table = recipe.parse().expect("TOML");
    for (section, keys) in &table {
        for key in keys.as_table().expect("a section").keys() {
            let key = format!("{section}.{key}");
            assert!(crate::recipe::keys::is_known::<RawRecipe>(&key), "{key}");
        }
    }
    let raw: RawRecipe = table.try_into().expect("a recipe");
    // `generation_batch_size` and `num_generations` of the page.
    assert_eq!((raw.data.train_batch_size, raw.rollout.n), (128 / 8, 8));
}
