//! Overrides of jobs, `section.key=value` each.

use std::path::Path;

use rollpacker_simulated::cluster::Hardware;
use toml::{Table, Value};

use super::raw::{Cluster, RawJob};
use crate::recipe::keys::is_known;
use crate::recipe::{self, RawRecipe, RecipeError};

/// Reads the TOML file of a job and applies `overrides`. Rejects a file with a key that only recipes have.
pub(super) fn read_table(path: &Path, overrides: &[String]) -> Result<Table, RecipeError> {
    let mut table = recipe::read_table(path)?;
    reject_recipe(&table)?;
    overlay_all(&mut table, overrides)?;
    Ok(table)
}

/// Rejects a file with a key that recipes have and jobs do not.
fn reject_recipe(table: &Table) -> Result<(), RecipeError> {
    let names = table.iter().flat_map(|(section, value)| {
        let keys = value.as_table().into_iter().flat_map(Table::keys);
        keys.map(move |key| format!("{section}.{key}"))
    });
    let mut names = names.filter(|name| is_known::<RawRecipe>(name));
    names.find(|name| !is_known::<RawJob>(name)).map_or(Ok(()), |key| {
        let reason = "a key of recipes, which `rollpacker train` runs; `rollpacker simulate` needs a job, as in configs/sim, whose keys `rollpacker keys --job` lists";
        Err(RecipeError::Type { key, reason: reason.to_owned() })
    })
}

/// Applies overrides to the table of a job, in order.
///
/// An override of a key below `cluster.hardware` changes one value of the device that the job names, or of the default device if it names
/// none.
pub(super) fn overlay_all(table: &mut Table, overrides: &[String]) -> Result<(), RecipeError> {
    overrides.iter().try_for_each(|text| {
        if text.trim_start().starts_with("cluster.hardware.") {
            expand_hardware(table);
        }
        recipe::override_key::<RawJob>(table, text)
    })
}

/// Replaces the name of a built-in device by the table of its data, so that an override can change one value. Adds the table of the default
/// device if the job names none. An unknown name stays as it is.
fn expand_hardware(table: &mut Table) {
    let cluster = table.entry("cluster").or_insert_with(|| Value::Table(Table::new()));
    let Some(cluster) = cluster.as_table_mut() else { return };
    let hardware = cluster.entry("hardware").or_insert_with(|| Cluster::default().hardware);
    if let Some(built_in) = hardware.as_str().and_then(Hardware::built_in) {
        *hardware = Value::try_from(built_in).expect("invariant: a text and numbers are TOML");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hardware(text: &str, overrides: &[&str]) -> Result<Value, RecipeError> {
        let mut table: Table = text.parse().expect("TOML");
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        overlay_all(&mut table, &overrides)?;
        Ok(table["cluster"]["hardware"].clone())
    }

    #[test]
    fn an_override_changes_one_value_of_a_built_in_device() {
        let with_memory = |name: &str, memory: f64| {
            let built_in = Hardware::built_in(name).expect("built in");
            Value::try_from(Hardware { memory, ..built_in }).expect("TOML")
        };
        let memory = "cluster.hardware.memory=160e9";
        let expected = with_memory("H800", 160e9);
        assert_eq!(hardware("", &[memory]).expect("the default device"), expected);
        let named = hardware("[cluster]\nhardware = \"a100\"", &[memory]).expect("a name");
        assert_eq!(named, with_memory("A100", 160e9));
        let overridden = hardware("", &["cluster.hardware=H200", memory]).expect("a name");
        assert_eq!(overridden, with_memory("H200", 160e9));
        let table = hardware("[cluster.hardware]\nmemory = 1.0", &[memory]).expect("a table");
        assert_eq!(table.to_string(), "{ memory = 160000000000.0 }");
    }

    #[test]
    fn an_override_replaces_the_value_under_another_name() {
        for (file, text) in [("n", "rollout.group_size=8"), ("group_size", "rollout.n=8")] {
            let mut table: Table = format!("[rollout]\n{file} = 4").parse().expect("TOML");
            overlay_all(&mut table, &[text.to_owned()]).expect("valid");
            let job: RawJob = recipe::from_table(table).expect("a job");
            assert_eq!(job.rollout.n, 8, "{text}");
        }
    }

    #[test]
    fn a_recipe_is_no_job() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/configs/chain.toml"));
        let error = read_table(path, &[]).expect_err("a recipe").to_string();
        assert!(error.contains("`: a key of recipes, which `rollpacker train` runs"), "{error}");
        let job: Table = "[schedule]\nname = \"sync\"\n[rollout]\nm = 2".parse().expect("TOML");
        reject_recipe(&job).expect("no key of recipes only");
        let job: Table = include_str!("../../configs/sim/7b.toml").parse().expect("TOML");
        reject_recipe(&job).expect("a job");
    }

    #[test]
    fn an_unknown_device_has_no_data_to_override() {
        let error = hardware("[cluster]\nhardware = \"X9\"", &["cluster.hardware.memory=1"]);
        let expected = "key `cluster.hardware`: expected a table, in which `cluster.hardware.memory=1` sets a key, found \"X9\"";
        assert_eq!(error.expect_err("refused").to_string(), expected);
    }
}
