//! The memory of the weights, activations and KV caches of models.

use std::path::Path;

use rollpacker_model::ModelConfig;
#[cfg(feature = "torch")]
use rollpacker_stages::device::DeviceChoice;
#[cfg(feature = "torch")]
use rollpacker_stages::train::config::Precision;
#[cfg(feature = "torch")]
use rollpacker_torch::model::resolve_device;
#[cfg(feature = "torch")]
use tch::Device;
use toml::{Table, Value};

use super::part::{MemoryPart, setting};
use crate::recipe::{Reward, RouteTarget};

/// Bytes of a float32, the type of all weights except packed weights of layers.
pub(super) const FLOAT_BYTES: u64 = size_of::<f32>() as u64;

/// Returns the size of a model's weights in float32, in bytes.
pub(super) fn weight_bytes(model: &ModelConfig) -> u64 {
    size(model.parameter_count()).saturating_mul(FLOAT_BYTES)
}

/// Returns the size in bytes of the weights that an engine packs for its matrix products: the matrices of the layers in `dtype`, and the
/// output head in float32.
#[cfg(feature = "torch")]
pub(super) fn packed_weight_bytes(model: &ModelConfig, dtype: Precision) -> u64 {
    let of_layers = match dtype {
        Precision::Float32 => FLOAT_BYTES,
        Precision::Bfloat16 => FLOAT_BYTES / 2,
    };
    let hidden = size(model.hidden_size);
    let [queries, keys] =
        [model.heads, model.kv_heads].map(|heads| size(heads).saturating_mul(size(model.head_dim)));
    // Queries and output, keys and values; gate, up and down.
    let columns = 2 * queries + 2 * keys + 3 * size(model.intermediate_size);
    let product = |factors: &[u64]| factors.iter().copied().fold(1, u64::saturating_mul);
    let layers = product(&[size(model.layers), hidden, columns, of_layers]);
    layers.saturating_add(product(&[size(model.vocab_size), hidden, FLOAT_BYTES]))
}

/// Returns the bytes of keys and values per token in a KV cache.
#[cfg(feature = "torch")]
pub(crate) fn kv_cache_bytes_per_token(model: &ModelConfig) -> u64 {
    [2 * FLOAT_BYTES, size(model.layers), size(model.kv_heads), size(model.head_dim)]
        .into_iter()
        .fold(1, u64::saturating_mul)
}

/// Returns the bytes of activations that the layers save per token for the backward pass.
#[cfg(all(feature = "torch", feature = "cli"))]
pub(super) fn activation_bytes_per_token(model: &ModelConfig) -> u64 {
    let heads = |heads: i64| size(heads).saturating_mul(size(model.head_dim));
    let (queries, keys) = (heads(model.heads), heads(model.kv_heads));
    // Both norms save their input, and the linear maps after them save the norms' output. The attention saves rotated queries, rotated
    // keys, values and its output. The feed-forward block saves the gate, its activation, the other factor and the product.
    let floats =
        4 * size(model.hidden_size) + 2 * (queries + keys) + 4 * size(model.intermediate_size);
    floats.saturating_mul(size(model.layers)).saturating_mul(FLOAT_BYTES)
}

/// Converts a size of a model. A negative size, which no valid model has, becomes 0.
pub(super) fn size(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(0)
}

/// Returns the memory of the weights of the in-process judges that routes of a recipe name, except judges on a GPU and judges that stream
/// their weights within a memory budget.
///
/// A model folder that cannot be read is skipped here; the judge reports the error when it is built.
pub(crate) fn judge_parts(section: &Reward) -> impl Iterator<Item = MemoryPart> {
    let names = section.routes.values().flat_map(|routed| match routed {
        RouteTarget::One(name) => vec![name],
        RouteTarget::Sum(terms) => terms.keys().collect(),
    });
    let names: std::collections::BTreeSet<&String> = names.collect();
    names.into_iter().filter_map(|name| judge(name, section.options.get(name)?))
}

/// Returns the memory of the weights of a served model, which its instances share.
#[cfg(all(feature = "servers", feature = "torch"))]
pub(crate) fn serving_part(folder: &Path, model: &ModelConfig) -> MemoryPart {
    let settings = [setting("--model", folder.display())];
    MemoryPart::new("the weights of the model", settings, [weight_bytes(model)])
}

/// Returns `true` if a judge on `device`, by default `auto`, takes memory of the host. An unknown device counts as the host; the judge
/// reports the error when it is built.
#[cfg(feature = "torch")]
fn is_on_host(device: Option<&str>) -> bool {
    let choice = device.map_or(Some(DeviceChoice::Auto), |device| device.parse().ok());
    let device = choice.and_then(|choice| resolve_device(choice).ok());
    !device.is_some_and(Device::is_cuda)
}

/// Returns `true`: without libtorch, no judge can be built.
#[cfg(not(feature = "torch"))]
fn is_on_host(_device: Option<&str>) -> bool {
    true
}

fn judge(name: &str, options: &Table) -> Option<MemoryPart> {
    let text = |key: &str| options.get(key).and_then(Value::as_str);
    let is_resident = text("kind").unwrap_or(name) == "judge"
        && text("engine") == Some("torch")
        && !options.contains_key("memory_budget")
        && is_on_host(text("device"));
    let folder = text("model_path").filter(|_| is_resident)?;
    let model = ModelConfig::from_folder(Path::new(folder)).ok()?;
    let key = format!("reward.options.{name}.model_path");
    Some(MemoryPart::new("the weights of a judge", [setting(&key, folder)], [weight_bytes(&model)]))
}
