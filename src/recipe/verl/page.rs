//! The checks of `docs/verl.md`, whose tables are generated.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::entries::all;
use super::overlong::target_key;
use super::*;
use crate::code_list::code_list;
use crate::generated_page::assert_tables;
use crate::recipe::from_table;
use crate::recipe::table::override_key;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/verl.md");

/// Checks that the two command lines of the page set the same values, except for the keys that the page explains.
#[test]
fn the_command_lines_of_the_page_mean_the_same() {
    let page = std::fs::read_to_string(PAGE).expect("the page is there");
    let verl = read(&command(&page, "python3 -m verl.trainer.main_ppo"));
    let mut ours = read(&command(&page, "rollpacker train"));
    for explained in ["model.path", "schedule.name"] {
        assert!(ours.get(explained) != verl.get(explained), "{explained}");
        ours.remove(explained);
    }
    for (key, value) in &ours {
        assert_eq!(verl.get(key), Some(value), "{key}");
    }
}

/// Returns the arguments of the command in the first block of the page that begins with `start`.
fn command(page: &str, start: &str) -> Vec<String> {
    let (_, block) = page.split_once(&format!("```sh\n{start}")).expect("a command");
    let (command, _) = block.split_once("```").expect("an end");
    let words = command.split_whitespace().filter(|word| *word != "\\");
    words.map(|word| word.replace('\'', "")).collect()
}

/// Returns the settings that a command line writes. Rewards are not compared.
fn read(command: &[String]) -> BTreeMap<String, String> {
    let translation = translate(&Table::new(), command, &["math"]);
    assert!(translation.errors.is_empty(), "{:?}", translation.errors);
    let mut table = Table::new();
    translation
        .overrides
        .iter()
        .for_each(|text| override_key::<RawRecipe>(&mut table, text).expect("an override"));
    from_table::<RawRecipe>(table.clone()).expect("valid");
    table.remove("reward");
    let sections = table.iter().filter_map(|(name, keys)| Some((name, keys.as_table()?)));
    let keys = sections.flat_map(|(name, keys)| {
        keys.iter().map(move |(key, value)| (format!("{name}.{key}"), value.to_string()))
    });
    keys.collect()
}

#[test]
fn the_page_of_verl_is_up_to_date() {
    let tables = format!("\n{}\n", tables());
    assert_tables(PAGE, &tables, "cargo test -p rollpacker --lib page_of_verl");
}

fn tables() -> String {
    [
        table("Keys that mean the same", ["verl", "here"], mapped),
        table("Keys with one value", ["verl", "accepted; otherwise refused"], limited),
        table("Keys that are left out with a note", ["verl", "note"], noted),
        table("Refused keys", ["verl", "why"], refusal),
        table("Ignored keys", ["verl", ""], |meaning| {
            (meaning == KeyMapping::Ignored).then(String::new)
        }),
    ]
    .join("\n")
}

fn table(title: &str, head: [&str; 2], cell: impl Fn(KeyMapping) -> Option<String>) -> String {
    let rows = all().filter_map(|entry| Some((entry.verl, conditional(entry.meaning, &cell)?)));
    let mut text = format!("### {title}\n\n");
    if head[1].is_empty() {
        // A list without further information needs no table.
        let _ = writeln!(text, "{}.", code_list(rows.map(|(verl, _)| verl)));
    } else {
        let _ = writeln!(text, "| {} | {} |\n|---|---|", head[0], head[1]);
        for (verl, cell) in rows {
            let _ = writeln!(text, "| `{verl}` | {cell} |");
        }
    }
    text
}

/// Returns the cell of a meaning, and `None` if the table does not list it. The cell of a meaning with a condition also names the
/// condition.
fn conditional(
    meaning: KeyMapping,
    cell: &impl Fn(KeyMapping) -> Option<String>,
) -> Option<String> {
    match meaning {
        KeyMapping::If(condition, inner) => {
            let inner = conditional(*inner, cell)?;
            Some(format!("{inner}, with {}; otherwise without effect, as in verl", text(condition)))
        }
        KeyMapping::Switch(condition, first, second) => {
            let [first, second] = [first, second].map(|meaning| conditional(*meaning, cell));
            let condition = text(condition);
            match (first, second) {
                (None, None) => None,
                (Some(first), None) => Some(format!("{first}; with {condition}")),
                (None, Some(second)) => Some(format!("{second}; not with {condition}")),
                (Some(first), Some(second)) => Some(format!("{second}; with {condition}, {first}")),
            }
        }
        other => cell(other),
    }
}

fn text(Condition { key, values }: Condition) -> String {
    match values {
        [] => format!("`{key}`"),
        [value] => format!("`{key} = {value}`"),
        values => format!("`{key}` one of {}", code_list(values)),
    }
}

fn mapped(meaning: KeyMapping) -> Option<String> {
    Some(match meaning {
        KeyMapping::Key(ours) => format!("`{ours}`"),
        KeyMapping::NotNull(ours, reason) => format!("`{ours}`; `null` is left out with a note: {reason}"),
        KeyMapping::NotNegative(ours) => format!("`{ours}`; a negative value is left out"),
        KeyMapping::RewardFile => format!("`{PYTHON}.file`, with `reward.routes = {{ \"*\" = \"python\" }}`"),
        KeyMapping::RewardArguments => format!("`{PYTHON}.kwargs`"),
        KeyMapping::Overlong(part) => {
            let values = "`{ \"*\" = { math = 1.0, soft_overlong = penalty_factor } }`";
            match target_key(part) {
                routes if routes.ends_with("routes") => format!("`{routes}`: {values}, if `enable` is true"),
                option => format!("`{option}`"),
            }
        }
        KeyMapping::RewardFunction => format!("`{PYTHON}.function`; default `compute_score`"),
        KeyMapping::Loggers => "`trainer.logger` if it has `tensorboard`; other loggers are left out with a note".to_owned(),
        KeyMapping::Engine => "`rollout.engine`, if `rollout.servers` or `rollout.serve` is set; otherwise left out with a note".to_owned(),
        _ => return None,
    })
}

fn limited(meaning: KeyMapping) -> Option<String> {
    match meaning {
        KeyMapping::Only([], reason) => Some(format!("`null`: {reason}")),
        KeyMapping::Only(values, reason) => Some(format!("{}: {reason}", code_list(values))),
        KeyMapping::SameAs(ours, reason) => Some(format!("the value of `{ours}`: {reason}")),
        KeyMapping::Context => Some(
            "at least `data.max_prompt_length + data.max_response_length`, which are the limits here"
                .to_owned(),
        ),
        _ => None,
    }
}

fn noted(meaning: KeyMapping) -> Option<String> {
    match meaning {
        KeyMapping::Noted([], reason) => Some(reason.to_owned()),
        KeyMapping::Noted(values, reason) => {
            Some(format!("unless {}: {reason}", code_list(values)))
        }
        _ => None,
    }
}

fn refusal(meaning: KeyMapping) -> Option<String> {
    match meaning {
        KeyMapping::Refused(reason) => Some(reason.to_owned()),
        _ => None,
    }
}
