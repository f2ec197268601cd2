//! Shapes of models: what their arithmetic and their memory follow from.

use serde::{Deserialize, Serialize};

/// The numbers of a dense decoder-only transformer that its cost follows from; weights and KV cache are in bf16.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelShape {
    /// What it is called.
    pub name: String,
    /// Parameters.
    pub parameters: f64,
    /// Layers.
    pub layers: u32,
    /// Width of the hidden state.
    pub hidden_size: u32,
    /// Heads of keys and values.
    pub kv_heads: u32,
    /// Width of a head.
    pub head_dim: u32,
}

/// Bytes of a bf16 number.
const BF16: f64 = 2.0;

/// Name, parameters, layers, hidden size, KV heads, head width; from the models' `config.json`.
const BUILT_IN: [(&str, f64, u32, u32, u32, u32); 5] = [
    ("Qwen2.5-7B", 7.62e9, 28, 3584, 4, 128),
    ("Qwen2.5-14B", 14.77e9, 48, 5120, 8, 128),
    ("Qwen2.5-32B", 32.76e9, 64, 5120, 8, 128),
    ("Qwen3-1.7B", 1.72e9, 28, 2048, 8, 128),
    ("Qwen3-8B", 8.19e9, 36, 4096, 8, 128),
];

impl ModelShape {
    /// The model of that name. `None` if it is not built in.
    #[must_use]
    pub fn built_in(name: &str) -> Option<Self> {
        let &(name, parameters, layers, hidden_size, kv_heads, head_dim) =
            BUILT_IN.iter().find(|(known, ..)| known.eq_ignore_ascii_case(name))?;
        Some(Self { name: name.to_owned(), parameters, layers, hidden_size, kv_heads, head_dim })
    }

    /// Names that [`built_in`](Self::built_in) knows.
    #[must_use]
    pub fn names() -> [&'static str; 5] {
        BUILT_IN.map(|(name, ..)| name)
    }

    /// Bytes of the weights.
    #[must_use]
    pub fn weight_bytes(&self) -> f64 {
        BF16 * self.parameters
    }

    /// Bytes that a token holds in the KV cache: keys and values of all layers.
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
}
