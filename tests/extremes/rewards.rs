//! Tests of the options of rewards.

use std::panic::catch_unwind;

use rollpacker::recipe::Recipe;
use rollpacker::rewards::rewards;
use rollpacker::stages::catalog::CatalogError;
use rollpacker::stages::fields::fields;
use rollpacker::stages::rewards::judge::Judgement;
use rollpacker::stages::rewards::{CodeConfig, Exact, Guard, Registry};
use rollpacker::stages::torch::judge::TorchChatOptions;

use crate::program::{self, Case, owned};
use crate::workspace::TestWorkspace;
use crate::{EXTREMES, is_of_another_type, names, numbers};

/// A reward with the names of all its options, and the options that it requires.
struct RewardCase {
    name: &'static str,
    needs: &'static [&'static str],
    options: Vec<String>,
}

/// Returns every reward of the registry except the group reward, for which `score` needs several rows. The judge is returned a second time,
/// with the options of its in-process engine.
fn all() -> Vec<RewardCase> {
    let registry = Registry::builtin();
    let leaked = |name: &str| -> &'static str { name.to_owned().leak() };
    let names: Vec<_> = registry.names().filter(|name| *name != "length").map(leaked).collect();
    let own = |name: &str| owned(registry.options(name).expect("it is known"));
    let plain = |name: &'static str| {
        let (needs, more): (&[&str], Vec<String>) = match name {
            "http" => (&["url=\"http://localhost:1\"", "form=batch"], vec![]),
            "process" => (&["command=[\"true\"]"], vec![]),
            "python" => (&["file=reward.py"], vec![]),
            "judge" => (&JUDGE, owned(fields::<Judgement>())),
            "regex" => (&["pattern=\"1\""], vec![]),
            "soft_overlong" => (&["max_length=64", "cache=16"], vec![]),
            "code" => {
                (&[], numbers(&CodeConfig::default()).into_iter().map(|(at, _)| at).collect())
            }
            _ => (&[], vec![]),
        };
        RewardCase { name, needs, options: [own(name), more, owned(&Guard::KEYS)].concat() }
    };
    let torch = owned(fields::<TorchChatOptions>());
    let torch = RewardCase { name: "judge", needs: &TORCH, options: torch };
    names.into_iter().map(plain).chain([torch]).collect()
}

/// The options of a judge behind a server that is never called.
const JUDGE: [&str; 3] = ["base_url=\"http://localhost:1/v1\"", "model=judge", "temperature=1"];

/// The options of an in-process judge.
const TORCH: [&str; 6] = [
    "engine=torch",
    "model_path=model",
    "device=cpu",
    "max_tokens=8",
    "kv_cache_tokens=256",
    "colocated=true",
];

#[test]
fn every_numeric_option_is_accepted_or_named() {
    let workspace = TestWorkspace::new("");
    let row = concat!(
        r#"{"data_source": "x", "response": "```python\ndef f(x):\n    return x\n```", "#,
        r#""ground_truth": "assert f(1) == 1", "response_length": 9, "response_ids": [1, 2, 1]}"#
    );
    workspace.write("rows.jsonl", &format!("{row}\n"));
    workspace.write("reward.py", "def compute_score(solution_str, **_):\n    return 1.0\n");
    let (mut cases, mut numeric) = (Vec::new(), 0);
    for case in all() {
        for option in &case.options {
            let Some(values) = accepted(&workspace, &case, option) else { continue };
            numeric += 1;
            // These rewards would need a server or a program that responds. Guards are the same for every reward.
            let answers = !["http", "process", "judge"].contains(&case.name);
            let is_guard = Guard::KEYS.contains(&option.as_str());
            if !answers || (is_guard && case.name != "exact") {
                continue;
            }
            let last = option.rsplit('.').next().unwrap_or_default();
            cases.extend(values.into_iter().map(|value| {
                let line = ["score", "--allow-errors", "--input", "rows.jsonl", "--reward"];
                let settings = owned(case.needs).into_iter().chain([format!("{option}={value}")]);
                let options = settings.map(|setting| format!("--option={setting}"));
                let line = owned(&line).into_iter().chain([case.name.to_owned()]);
                Case {
                    args: line.chain(options).collect(),
                    keys: vec![option.clone(), format!("`{last}`")],
                }
            }));
        }
    }
    assert!(numeric > 100, "{numeric} numeric options are found");
    program::check(&workspace, &cases);
}

/// Returns the values of an option that its bounds allow, or `None` if the option is not numeric.
fn accepted(
    workspace: &TestWorkspace,
    case: &RewardCase,
    option: &str,
) -> Option<Vec<&'static str>> {
    let RewardCase { name, needs, .. } = case;
    let key = format!("reward.options.{name}.{option}");
    let model = workspace.path("model").display().to_string();
    let file = workspace.path("reward.py").display().to_string();
    let made = |value: &str| {
        let absolute = |need: &&str| {
            need.replace("=model", &format!("={model}")).replace("=reward.py", &format!("={file}"))
        };
        let needs = needs.iter().map(absolute);
        let needs = needs.map(|need| format!("reward.options.{name}.{need}"));
        let own = [format!("reward.routes={{\"*\" = \"{name}\"}}"), format!("{key}={value}")];
        let settings: Vec<String> = needs.chain(own).collect();
        let made = catch_unwind(|| {
            let recipe = Recipe::read(&workspace.path("recipe.toml"), &settings)?;
            // In the real program the registry starts a sandbox.
            let registry = Registry::builtin().with("code", |options: Sandboxed| options.reward());
            rewards(&recipe.reward, &registry).map(drop)
        });
        made.unwrap_or_else(|_| panic!("{settings:?} panics")).map_err(|error| error.to_string())
    };
    let is_numeric = ["1", "0.5", "2"]
        .iter()
        .any(|value| made(value).err().is_none_or(|error| !is_of_another_type(&error)));
    let is_accepted = |value: &&'static str| match made(value) {
        Ok(()) => true,
        Err(error) => {
            // Errors name an option with several names by its documented name.
            let documented = format!("`reward.options.{name}.");
            assert!(names(&error, &[option, &documented]), "{key} = {value}: {error}");
            false
        }
    };
    is_numeric.then(|| EXTREMES.into_iter().filter(is_accepted).collect())
}

/// A reward that has the options of `code` and starts no sandbox.
#[derive(serde::Deserialize)]
struct Sandboxed(CodeConfig);

impl Sandboxed {
    fn reward(self) -> Result<Exact, CatalogError> {
        let Self(_config) = self;
        Ok(Exact::default())
    }
}
