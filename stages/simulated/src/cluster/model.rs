//! Shapes of models, which determine their arithmetic and memory.

use serde::{Deserialize, Serialize};

/// The dimensions of a dense decoder-only transformer that determine its cost. Weights and KV cache are in bf16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// The name of the model, such as `Qwen2.5-7B`.
    pub name: String,
    /// The number of parameters.
    pub parameters: f64,
    /// The number of layers.
    pub layers: u32,
    /// The width of the hidden state.
    pub hidden_size: u32,
    /// The number of key and value heads.
    pub kv_heads: u32,
    /// The width of a head.
    pub head_dim: u32,
    /// The number of parameters of the input embedding, of which a forward pass reads one row per token. They take memory and no arithmetic.
    /// 0 (the default) if the output layer shares them.
    #[serde(default)]
    pub input_embedding: f64,
}

/// Bytes per bf16 number.
pub(super) const BF16: f64 = 2.0;

/// Name, parameters, layers, hidden size, KV heads, head width, and the rows of an input embedding that is not shared with the output
/// layer; from the models' `config.json`.
const BUILT_IN: [(&str, f64, u32, u32, u32, u32, u32); 5] = [
    ("Qwen2.5-7B", 7.62e9, 28, 3584, 4, 128, 152_064),
    ("Qwen2.5-14B", 14.77e9, 48, 5120, 8, 128, 152_064),
    ("Qwen2.5-32B", 32.76e9, 64, 5120, 8, 128, 152_064),
    ("Qwen3-1.7B", 1.72e9, 28, 2048, 8, 128, 0),
    ("Qwen3-8B", 8.19e9, 36, 4096, 8, 128, 151_936),
];

impl ModelShape {
    /// Returns the model with this name, or `None` if it is not built in. Case is ignored.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        let &(name, parameters, layers, hidden_size, kv_heads, head_dim, rows) =
            BUILT_IN.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
        let (name, input_embedding) = (name.to_owned(), f64::from(rows) * f64::from(hidden_size));
        Some(Self { name, parameters, layers, hidden_size, kv_heads, head_dim, input_embedding })
    }

    /// Returns the names that [`built_in`](Self::built_in) accepts.
    #[must_use]
    pub fn names() -> [&'static str; 5] {
        BUILT_IN.map(|(name, ..)| name)
    }

    /// Returns the size of the weights, in bytes.
    #[must_use]
    pub fn weight_bytes(&self) -> f64 {
        BF16 * self.parameters
    }

    /// Returns the number of parameters that multiply each token: all but the input embedding.
    #[must_use]
    pub fn multiplied_parameters(&self) -> f64 {
        self.parameters - self.input_embedding
    }

    /// Returns the bytes per token in the KV cache: keys and values of all layers.
    #[must_use]
    pub fn kv_bytes_per_token(&self) -> f64 {
        2.0 * f64::from(self.layers) * f64::from(self.kv_heads) * f64::from(self.head_dim) * BF16
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_holds_keys_and_values_of_all_layers() {
        let bytes = |name: &str| ModelShape::built_in(name).unwrap().kv_bytes_per_token();
        assert_eq!(
            ["qwen2.5-7b", "Qwen2.5-14B", "Qwen2.5-32B"].map(bytes),
            [57_344.0, 196_608.0, 262_144.0]
        );
    }

    #[test]
    fn an_input_embedding_that_is_not_shared_multiplies_nothing() {
        let multiplied = |name: &str| ModelShape::built_in(name).unwrap().multiplied_parameters();
        let billions = |name| (multiplied(name) / 1e7).round() / 100.0;
        assert_eq!(
            ["Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B", "Qwen3-1.7B"].map(billions),
            [7.08, 13.99, 31.98, 1.72]
        );
    }
}
