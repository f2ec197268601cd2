//! Memory of models.

use std::path::Path;

use rollpacker_stages::model::ModelConfig;
use toml::{Table, Value};

use super::{Part, setting};
use crate::recipe::raw;

/// Bytes of a float32, in which every model is held.
pub(super) const FLOAT: u64 = size_of::<f32>() as u64;

/// Returns the bytes of the weights of a model.
pub(super) fn weights(model: &ModelConfig) -> u64 {
    size(model.parameter_count()).saturating_mul(FLOAT)
}

/// Bytes of keys and values of a token.
#[cfg(feature = "torch")]
pub(super) fn cache_of_token(model: &ModelConfig) -> u64 {
    [2 * FLOAT, size(model.layers), size(model.kv_heads), size(model.head_dim)]
        .into_iter()
        .fold(1, u64::saturating_mul)
}

/// Bytes that the layers keep of a token for the backward pass: what each saves of its norms, its attention and its feed-forward block.
#[cfg(feature = "torch")]
pub(super) fn activations_of_token(model: &ModelConfig) -> u64 {
    let heads = |heads: i64| size(heads).saturating_mul(size(model.head_dim));
    let (queries, keys) = (heads(model.heads), heads(model.kv_heads));
    // Both norms save their input and the maps behind them their output; then come rotated queries and keys, values, the attended values,
    // and of the feed-forward block the gate, its activation, the other factor and the product.
    let floats =
        4 * size(model.hidden_size) + 2 * (queries + keys) + 4 * size(model.intermediate_size);
    floats.saturating_mul(size(model.layers)).saturating_mul(FLOAT)
}

/// A size of a model, which is never negative.
pub(super) fn size(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(0)
}

/// The weights of the judges in process that the routes of a recipe lead to, unless they are streamed within a budget. A folder that cannot
/// be read is left to the judge, which says what is wrong with it.
pub(crate) fn judges(section: &raw::Reward) -> impl Iterator<Item = Part> {
    let names = section.routes.values().flat_map(|routed| match routed {
        raw::Routed::One(name) => vec![name],
        raw::Routed::Sum(terms) => terms.keys().collect(),
    });
    let names: std::collections::BTreeSet<&String> = names.collect();
    names.into_iter().filter_map(|name| judge(name, section.options.get(name)?))
}

fn judge(name: &str, options: &Table) -> Option<Part> {
    let text = |key: &str| options.get(key).and_then(Value::as_str);
    let is_resident = text("kind").unwrap_or(name) == "judge"
        && text("engine") == Some("torch")
        && !options.contains_key("memory_budget");
    let folder = text("model_path").filter(|_| is_resident)?;
    let model = ModelConfig::from_folder(Path::new(folder)).ok()?;
    let key = format!("reward.options.{name}.model_path");
    Some(Part::new("the weights of a judge", [setting(&key, folder)], [weights(&model)]))
}
