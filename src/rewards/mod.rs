//! Builds and routes the rewards that a recipe defines in its section `[reward]`.
//!
//! Training, validation and `rollpacker score` all use these rewards.

use std::collections::{BTreeMap, BTreeSet};

use rollpacker_rewards::{AnyReward, Guard, Registry, WeightedGroupSum, WeightedSum};
use rollpacker_stages::catalog::type_errors;
use rollpacker_stages::documented;
use rollpacker_stages::documented::{Documented, Field};
use rollpacker_stages::reward::{CatalogError, GroupReward, OnError, Options, Router};
use rollpacker_stages::wrong_value::reason;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::recipe::choice::{choice, option_error};
use crate::recipe::error::{one_of, out_of_bounds, reject, unknown_in};
use crate::recipe::limits::check_finite;
use crate::recipe::{RecipeError, Reward, RouteTarget};

documented! {
    /// Options that every reward accepts, in addition to its own options and the options of its guard.
    #[derive(Default, Serialize, Deserialize)]
    #[serde(default)]
    pub(crate) struct CommonOptions {
        /// The name of the reward, built-in or added by the program, if it differs from the name of the table.
        kind: Option<String>,
        /// The effect of an error. Rewards of one route must not set different values. Default: `reward.on_error`.
        on_error: Option<OnError>,
    }
}

/// Maximum number of concurrent code executions of one sandbox. Each execution has its own processes.
const MAX_SLOTS: u64 = 1024;

/// Builds the rewards of a recipe with the constructors of `registry` and routes data sources to them.
///
/// A reward that several routes name is built once; its limits apply across all of these routes.
///
/// # Errors
/// If a route names an unknown reward, its rewards cannot be combined, or a weight is not finite; if an option is unknown, has the wrong
/// type or is out of its bounds; or if a reward cannot be built. The message names the key.
pub fn rewards(section: &Reward, registry: &Registry) -> Result<Router, RecipeError> {
    reject(errors(section, registry))?;
    let named = section.make_all(registry)?;
    let mut router = Router::default();
    for (pattern, routed) in &section.routes {
        router = match routed {
            RouteTarget::One(name) => named[name].route(router, pattern, name),
            RouteTarget::Sum(terms) => route_sum(router, pattern, terms, &named)?,
        };
        let names = routed.names();
        check_group_only_route(pattern, &names, &named)?;
        let settings = names.iter().filter_map(|name| named[*name].on_error);
        let settings: BTreeSet<OnError> = settings.collect();
        if settings.len() > 1 {
            return Err(key_error(
                route_key(pattern),
                "its rewards set different values of `on_error`",
            ));
        }
        let on_error = settings.first().copied().unwrap_or(section.on_error);
        router = router.on_error(pattern, on_error);
    }
    Ok(router)
}

/// Returns the errors in the names and the options of rewards. The values of a reward's own options are only checked if a route names the
/// reward.
pub(crate) fn errors(section: &Reward, registry: &Registry) -> Vec<RecipeError> {
    let all = names(registry, section);
    let routed = section.routes.iter().flat_map(|(pattern, routed)| {
        let unknown = |name: &String| one_of(route_key(pattern), name, &all).err();
        routed.names().into_iter().filter_map(unknown)
    });
    let routed_names: BTreeSet<_> = section.routes.values().flat_map(RouteTarget::names).collect();
    let check = |name: &String| {
        let mut written = RewardOptions::of(section, name)?;
        written.check(name, registry, routed_names.contains(name)).map(drop)
    };
    let options = section.options.keys().filter_map(|name| check(name).err());
    routed.chain(options).collect()
}

/// A reward of the recipe, with the value of `on_error` in its options, if they set it.
struct NamedReward {
    made: AnyReward,
    on_error: Option<OnError>,
}

impl RouteTarget {
    fn names(&self) -> Vec<&String> {
        match self {
            Self::One(name) => vec![name],
            Self::Sum(terms) => terms.keys().collect(),
        }
    }
}

impl Reward {
    fn make_all(&self, registry: &Registry) -> Result<BTreeMap<String, NamedReward>, RecipeError> {
        let mut all = BTreeMap::new();
        for name in self.routes.values().flat_map(RouteTarget::names) {
            if !all.contains_key(name) {
                all.insert(name.clone(), self.make(name, registry)?);
            }
        }
        Ok(all)
    }

    fn make(&self, name: &str, registry: &Registry) -> Result<NamedReward, RecipeError> {
        let mut written = RewardOptions::of(self, name)?;
        let (guard, on_error) = written.check(name, registry, true)?;
        let refuse = |error| section_error(&format!("reward.options.{name}"), error);
        let made = registry.make(&written.kind, written.options).map_err(refuse)?;
        let made = match made {
            AnyReward::Sample(reward) => AnyReward::Sample(guard.wrap(reward).map_err(refuse)?),
            AnyReward::Group(_) if guard != Guard::default() => {
                let key = format!("reward.options.{name}");
                return Err(key_error(
                    key,
                    "expected no guard options: the reward scores whole groups",
                ));
            }
            group => group,
        };
        Ok(NamedReward { made, on_error })
    }
}

/// The options of a reward, as written in the recipe.
struct RewardOptions {
    kind: String,
    options: Options,
}

impl RewardOptions {
    fn of(section: &Reward, name: &str) -> Result<Self, RecipeError> {
        let key = |key: &str| format!("reward.options.{name}.{key}");
        let table = section.options.get(name).cloned().unwrap_or_default();
        check_finite(&format!("reward.options.{name}"), &table)?;
        let mut options = choice(name, &table).options;
        let kind = match options.remove("kind") {
            None => name.to_owned(),
            Some(Value::String(kind)) => kind,
            Some(other) => {
                return Err(key_error(key("kind"), &format!("expected a name, found {other}")));
            }
        };
        Ok(Self { kind, options })
    }

    /// Checks the kind, the keys and the types of the options. The types of the reward's own options are only checked if `has_route`.
    /// Removes and returns the options of the guard and `on_error`, so that only the options of the reward itself are left.
    fn check(
        &mut self,
        name: &str,
        registry: &Registry,
        has_route: bool,
    ) -> Result<(Guard, Option<OnError>), RecipeError> {
        let section = format!("reward.options.{name}");
        let key = if self.kind == name { section.clone() } else { format!("{section}.kind") };
        let mut errors = Vec::new();
        errors.extend(one_of(key, &self.kind, &registry.names().collect::<Vec<_>>()).err());
        let on_error = self.options.remove("on_error").map(serde_json::from_value).transpose();
        let on_error = on_error.unwrap_or_else(|error| {
            errors.push(key_error(format!("{section}.on_error"), &reason(&error.to_string())));
            None
        });
        // Without a kind, nothing is known about the options of the reward itself.
        let own = registry.options(&self.kind).unwrap_or_default();
        // A reward may have an option with the same name as a guard option. The option then belongs to the reward.
        let of_guard = |key: &str| Guard::KEYS.contains(&key) && !own.contains(&key);
        let (mut guard, options): (Options, Options) =
            std::mem::take(&mut self.options).into_iter().partition(|(key, _)| of_guard(key));
        self.options = options;
        errors.extend(self.unknown(&section, own));
        errors.extend(self.check_slots(&section).err());
        // A reward without a route is not made, so that options may be missing.
        if has_route && registry.options(&self.kind).is_some() {
            let wrong = registry.type_errors(&self.kind, self.options.clone());
            errors.extend(wrong.into_iter().map(|error| section_error(&section, error)));
        }
        let wrong = type_errors::<Guard>(guard.clone());
        errors.extend(wrong.into_iter().map(|error| section_error(&section, error)));
        reject(errors)?;
        let guard = Guard::take(&mut guard).map_err(|error| section_error(&section, error))?;
        Ok((guard, on_error))
    }

    /// Returns an error for unknown option keys. `own` are the keys of the reward. If it is empty, the reward does not list its keys and
    /// checks them itself.
    fn unknown(&self, section: &str, own: &[&'static str]) -> Option<RecipeError> {
        let known: Vec<_> = own
            .iter()
            .copied()
            .chain(Guard::KEYS)
            .chain(CommonOptions::FIELDS.iter().map(Field::key))
            .collect();
        if own.is_empty() { None } else { unknown_in(section, self.options.keys(), &known) }
    }

    /// Rejects a sandbox with more than [`MAX_SLOTS`] concurrent executions.
    fn check_slots(&self, section: &str) -> Result<(), RecipeError> {
        let slots = self.options.get("sandbox").and_then(|sandbox| sandbox.get("slots"));
        match slots.and_then(Value::as_u64).filter(|slots| *slots > MAX_SLOTS) {
            Some(found) => Err(out_of_bounds(
                format!("{section}.sandbox.slots"),
                format!("at most {MAX_SLOTS}"),
                found,
            )),
            None => Ok(()),
        }
    }
}

impl NamedReward {
    fn route(&self, router: Router, pattern: &str, name: &str) -> Router {
        match self.made.clone() {
            AnyReward::Sample(reward) => router.route_named(pattern, name, reward),
            AnyReward::Group(reward) => router.route_groups(pattern, name, reward),
        }
    }
}

/// Rejects a route that has no per-sample reward although one of its group rewards depends on per-sample scores.
fn check_group_only_route(
    pattern: &str,
    names: &[&String],
    named: &BTreeMap<String, NamedReward>,
) -> Result<(), RecipeError> {
    let of_groups = |name: &&&String| match &named[**name].made {
        AnyReward::Sample(_) => None,
        AnyReward::Group(reward) => Some(reward.needs_own_scores()),
    };
    let mut all = names.iter().map(|name| (name, of_groups(&name)));
    if all.clone().any(|(_, needs)| needs.is_none()) {
        return Ok(());
    }
    let needy = all.find(|(_, needs)| *needs == Some(true));
    needy.map_or(Ok(()), |(name, _)| {
        let reason = format!(
            "`{name}` depends on the scores of a per-sample reward: expected one on this route"
        );
        Err(key_error(route_key(pattern), &reason))
    })
}

fn route_sum(
    mut router: Router,
    pattern: &str,
    terms: &BTreeMap<String, f64>,
    named: &BTreeMap<String, NamedReward>,
) -> Result<Router, RecipeError> {
    if terms.is_empty() {
        return Err(key_error(
            route_key(pattern),
            "expected at least one reward and its weight, found none",
        ));
    }
    let mut samples: Option<WeightedSum> = None;
    let mut groups: Option<WeightedGroupSum> = None;
    let mut of_groups = BTreeMap::new();
    for (name, weight) in terms {
        if !weight.is_finite() {
            let key = format!("{}.{name}", route_key(pattern));
            return Err(key_error(key, &format!("expected a finite weight, found {weight}")));
        }
        match named[name].made.clone() {
            AnyReward::Sample(reward) => {
                samples = Some(samples.unwrap_or_default().with(name, *weight, reward));
            }
            AnyReward::Group(reward) => {
                groups = Some(groups.unwrap_or_default().with(name, *weight, reward));
                of_groups.insert(name.clone(), *weight);
            }
        }
    }
    if let Some(sum) = samples {
        router = router.route_named(pattern, &RouteTarget::Sum(terms.clone()).to_string(), sum);
    }
    if let Some(sum) = groups {
        router = router.route_groups(pattern, &RouteTarget::Sum(of_groups).to_string(), sum);
    }
    Ok(router)
}

fn route_key(pattern: &str) -> String {
    format!("reward.routes.{pattern}")
}

fn key_error(key: String, reason: &str) -> RecipeError {
    RecipeError::Type { key, reason: reason.to_owned() }
}

/// Converts an error of the registry into a recipe error whose key starts with `section`.
fn section_error(section: &str, error: CatalogError) -> RecipeError {
    match error {
        CatalogError::Option { key, reason } => option_error(section, &key, reason),
        other => key_error(section.to_owned(), &other.to_string()),
    }
}

/// Returns the reward names that a route may use: the names in the registry, and the names of the tables in `reward.options`.
fn names<'a>(registry: &'a Registry, section: &'a Reward) -> Vec<&'a str> {
    let names = registry.names().chain(section.options.keys().map(String::as_str));
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

/// The documentation page on rewards. Its code samples run as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/rewards.md")]
pub mod page {}

#[cfg(test)]
mod tests;
