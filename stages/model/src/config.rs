//! The model configuration: family, sizes and special tokens, read from and written to `config.json`.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::json::Object;
use super::{ModelError, Rope};

const GENERATION: &str = "generation_config.json";

/// A family of decoder-only transformers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// The Qwen2 family, which includes Qwen2.5. It has biases on the query, key and value projections.
    Qwen2,
    /// The Qwen3 family. It has an RMS norm on every query and key head.
    Qwen3,
    /// The Llama family. It has no norms on the heads and, by default, no biases.
    Llama,
}

/// Sizes, features and special tokens of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The model family.
    pub family: Family,
    /// Number of rows of the embedding; may exceed the tokenizer's vocabulary.
    pub vocab_size: i64,
    /// Width of the residual stream.
    pub hidden_size: i64,
    /// Inner width of the feed-forward blocks.
    pub intermediate_size: i64,
    /// Number of transformer blocks.
    pub layers: i64,
    /// Number of query heads.
    pub heads: i64,
    /// Number of key and value heads; a divisor of `heads`.
    pub kv_heads: i64,
    /// Width of a head; must be even.
    pub head_dim: i64,
    /// The constant that the RMS norms add under the square root.
    pub rms_norm_eps: f64,
    /// The variant of the rotary position embedding, with its parameters.
    pub rope: Rope,
    /// `true` if the embedding also serves as the output head.
    pub tie_word_embeddings: bool,
    /// `true` if the query, key and value projections have biases; in Qwen3 and Llama the output projection has one too.
    pub attention_bias: bool,
    /// Maximum context length of the model, in tokens.
    pub max_position_embeddings: i64,
    /// Standard deviation of newly initialized weights.
    pub initializer_range: f64,
    /// Tokens that end a response: those of `generation_config.json` first, then those of `config.json`, without duplicates.
    pub eos_token_ids: Vec<i32>,
    /// The token that begins a text; `None` if the configuration has none.
    pub bos_token_id: Option<i32>,
    /// The token that pads batches; `None` if the configuration has none. This project does not pad with it. As in transformers, lookups
    /// of this token do not train its embedding.
    pub pad_token_id: Option<i32>,
}

/// Upper bounds of the sizes in a configuration.
///
/// The bounds are far above the sizes of any published model, and small enough that the products from which tensor and memory sizes are
/// computed fit into 64 bits.
pub mod max {
    /// Maximum number of rows of the embedding.
    pub const VOCABULARY: i64 = 1 << 24;
    /// Maximum number of transformer blocks.
    pub const LAYERS: i64 = 1 << 12;
    /// Maximum width of the residual stream.
    pub const WIDTH: i64 = 1 << 20;
    /// Maximum inner width of the feed-forward blocks.
    pub const INNER_WIDTH: i64 = 1 << 24;
    /// Maximum number of heads of a block.
    pub const HEADS: i64 = 1 << 12;
    /// Maximum width of a head.
    pub const HEAD_DIM: i64 = 1 << 12;
}

impl Family {
    fn model_type(self) -> &'static str {
        match self {
            Self::Qwen2 => "qwen2",
            Self::Qwen3 => "qwen3",
            Self::Llama => "llama",
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Llama => "LlamaForCausalLM",
        }
    }
}

impl ModelConfig {
    /// Reads `config.json`, in the format of transformers 4 or 5, and the end-of-sequence ids of `generation_config.json` if that file
    /// exists.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read or is not a JSON object, a key is missing or invalid, or the model has a feature that is
    /// not implemented.
    pub fn from_folder(folder: &Path) -> Result<Self, ModelError> {
        let mut config = Self::from_object(&Object::read(&folder.join("config.json"))?)?;
        let generation = folder.join(GENERATION);
        if generation.exists() {
            let ids = Object::read(&generation)?.token_ids("eos_token_id", config.vocab_size)?;
            config.prefer_eos(ids);
        }
        Ok(config)
    }

    /// Returns `true` if every query and key head has an RMS norm before the rotary embedding.
    #[must_use]
    pub fn qk_norm(&self) -> bool {
        self.family == Family::Qwen3
    }

    /// Returns `true` if the output projection of the attention has a bias.
    #[must_use]
    pub fn output_bias(&self) -> bool {
        self.attention_bias && self.family != Family::Qwen2
    }

    /// Returns the number of parameters. A tied output head is not counted a second time.
    #[must_use]
    pub fn parameter_count(&self) -> i64 {
        super::layout::parameters(self).iter().map(|(_, shape)| shape.iter().product::<i64>()).sum()
    }

    /// Writes `config.json`, readable by transformers 4 and 5, and `generation_config.json` with the special tokens. Existing files are
    /// replaced, so the other settings of an existing `generation_config.json` are lost.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub fn write(&self, folder: &Path) -> Result<(), ModelError> {
        write_json(&folder.join("config.json"), &Value::Object(self.to_json()))?;
        write_json(&folder.join(GENERATION), &Value::Object(self.token_json()))
    }

    fn from_object(json: &Object) -> Result<Self, ModelError> {
        let family = family(json)?;
        let layers = json.required_size_up_to("num_hidden_layers", max::LAYERS)?;
        refuse_unknown(json, layers)?;
        let heads = json.required_size_up_to("num_attention_heads", max::HEADS)?;
        let hidden_size = json.required_size_up_to("hidden_size", max::WIDTH)?;
        let vocab_size = json.required_size_up_to("vocab_size", max::VOCABULARY)?;
        let config = Self {
            family,
            vocab_size,
            hidden_size,
            intermediate_size: json.required_size_up_to("intermediate_size", max::INNER_WIDTH)?,
            layers,
            heads,
            kv_heads: json.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim: head_dim(json, family, hidden_size, heads)?,
            rms_norm_eps: json.number_in("rms_norm_eps", 1e-30..=1.0)?.unwrap_or(1e-6),
            rope: Rope::from_json(json)?,
            tie_word_embeddings: json.bool("tie_word_embeddings")?.unwrap_or(false),
            attention_bias: family == Family::Qwen2
                || json.bool("attention_bias")?.unwrap_or(false),
            max_position_embeddings: json.required_size("max_position_embeddings")?,
            initializer_range: json.number_in("initializer_range", 1e-30..=1e3)?.unwrap_or(0.02),
            eos_token_ids: json.token_ids("eos_token_id", vocab_size)?,
            bos_token_id: json.token_ids("bos_token_id", vocab_size)?.first().copied(),
            pad_token_id: pad_token(json, vocab_size)?,
        };
        config.check(json)?;
        Ok(config)
    }

    fn check(&self, json: &Object) -> Result<(), ModelError> {
        if self.heads % self.kv_heads != 0 {
            return Err(json.wrong(
                "num_key_value_heads",
                &format!("a divisor of the {} attention heads", self.heads),
            ));
        }
        if self.head_dim % 2 != 0 {
            return Err(json.wrong("head_dim", "an even number"));
        }
        Ok(())
    }

    fn prefer_eos(&mut self, mut ids: Vec<i32>) {
        ids.append(&mut self.eos_token_ids);
        for id in ids {
            if !self.eos_token_ids.contains(&id) {
                self.eos_token_ids.push(id);
            }
        }
    }

    fn to_json(&self) -> Map<String, Value> {
        let mut json = self.token_json();
        let fields = json!({
            "architectures": [self.family.architecture()],
            "model_type": self.family.model_type(),
            "torch_dtype": "float32",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "tie_word_embeddings": self.tie_word_embeddings,
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "max_position_embeddings": self.max_position_embeddings,
            "initializer_range": self.initializer_range,
            "use_cache": true,
        });
        json.extend(fields.as_object().cloned().unwrap_or_default());
        json.extend(self.rope_json());
        json
    }

    /// Returns the RoPE keys in the formats of transformers 4 and 5, so that both can read the file.
    fn rope_json(&self) -> Map<String, Value> {
        let parameters = self.rope.to_json();
        let mut json = Map::new();
        json.insert("rope_theta".to_owned(), parameters["rope_theta"].clone());
        if !matches!(self.rope, Rope::Default { .. }) {
            let mut scaling = parameters.clone();
            scaling.as_object_mut().and_then(|scaling| scaling.remove("rope_theta"));
            json.insert("rope_scaling".to_owned(), scaling);
        }
        json.insert("rope_parameters".to_owned(), parameters);
        json
    }

    fn token_json(&self) -> Map<String, Value> {
        let eos = match self.eos_token_ids.as_slice() {
            [] => None,
            [one] => Some(json!(one)),
            several => Some(json!(several)),
        };
        [
            ("bos_token_id", self.bos_token_id.map(Value::from)),
            ("eos_token_id", eos),
            ("pad_token_id", self.pad_token_id.map(Value::from)),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
    }
}

/// Returns the settings of `generation_config.json` in a folder, such as the recommended temperature; empty if there is no such file.
///
/// # Errors
/// Returns an error if the file cannot be read or is not a JSON object.
pub fn generation_settings(folder: &Path) -> Result<Map<String, Value>, ModelError> {
    let path = folder.join(GENERATION);
    if path.exists() { Object::read(&path).map(Object::into_map) } else { Ok(Map::new()) }
}

/// Adds the `settings` to `generation_config.json` in a folder, except those that the file already has. Creates the file if it is missing.
/// Without settings, nothing is written.
///
/// # Errors
/// Returns an error if the file cannot be read or written, or is not a JSON object.
pub fn add_generation_settings(
    folder: &Path,
    mut settings: Map<String, Value>,
) -> Result<(), ModelError> {
    if settings.is_empty() {
        return Ok(());
    }
    settings.extend(generation_settings(folder)?);
    write_json(&folder.join(GENERATION), &Value::Object(settings))
}

fn family(json: &Object) -> Result<Family, ModelError> {
    match json.string("model_type")? {
        Some("qwen2") => Ok(Family::Qwen2),
        Some("qwen3") => Ok(Family::Qwen3),
        Some("llama") => Ok(Family::Llama),
        _ => Err(json.wrong("model_type", "qwen2, qwen3 or llama")),
    }
}

fn head_dim(
    json: &Object,
    family: Family,
    hidden_size: i64,
    heads: i64,
) -> Result<i64, ModelError> {
    match json.size_up_to("head_dim", max::HEAD_DIM)? {
        Some(dim) => Ok(dim),
        // The default of transformers for Qwen3.
        None if family == Family::Qwen3 => Ok(128),
        None if hidden_size % heads == 0 && hidden_size / heads <= max::HEAD_DIM => {
            Ok(hidden_size / heads)
        }
        None if hidden_size % heads == 0 => {
            let expected = format!("heads of at most {} numbers each", max::HEAD_DIM);
            Err(json.wrong("num_attention_heads", &expected))
        }
        None => Err(json
            .wrong("num_attention_heads", &format!("a divisor of the hidden size {hidden_size}"))),
    }
}

/// Reads the padding token; `None` if the configuration has none. Some configurations write -1 for none.
fn pad_token(json: &Object, vocab_size: i64) -> Result<Option<i32>, ModelError> {
    if json.get("pad_token_id").and_then(Value::as_i64) == Some(-1) {
        return Ok(None);
    }
    Ok(json.token_ids("pad_token_id", vocab_size)?.first().copied())
}

/// Rejects features that would change the results and are not implemented.
fn refuse_unknown(json: &Object, layers: i64) -> Result<(), ModelError> {
    match json.string("hidden_act")? {
        None | Some("silu") => {}
        Some(other) => return Err(json.unsupported(format!("hidden_act `{other}`"))),
    }
    if json.get("quantization_config").is_some() {
        return Err(json.unsupported("`quantization_config`"));
    }
    if json.bool("mlp_bias")?.unwrap_or(false) {
        return Err(json.unsupported("`mlp_bias`"));
    }
    if json.number("partial_rotary_factor")?.is_some_and(|part| part != 1.0) {
        return Err(json.unsupported("`partial_rotary_factor` other than 1"));
    }
    refuse_sliding_windows(json, layers)
}

fn refuse_sliding_windows(json: &Object, layers: i64) -> Result<(), ModelError> {
    if let Some(kinds) = json.get("layer_types") {
        let kinds = kinds.as_array().ok_or_else(|| json.wrong("layer_types", "a list"))?;
        if let Some(other) = kinds.iter().find(|kind| kind.as_str() != Some("full_attention")) {
            return Err(json.unsupported(format!("layer type {other}")));
        }
        return Ok(());
    }
    // Without `layer_types`, the layers from `max_window_layers` on use a sliding window if `use_sliding_window` is set. transformers has a
    // default window; only null means none.
    let slides =
        json.bool("use_sliding_window")?.unwrap_or(false) && !json.is_null("sliding_window");
    let first = json.get("max_window_layers").and_then(Value::as_i64).unwrap_or(28);
    if slides && first < layers {
        return Err(json.unsupported(format!("`sliding_window` in the layers from {first} on")));
    }
    Ok(())
}

fn write_json(path: &Path, value: &Value) -> Result<(), ModelError> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| ModelError::Json { path: path.to_owned(), error })?;
    Ok(rollpacker_files::write(path, (text + "\n").as_bytes())?)
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
