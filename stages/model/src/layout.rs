//! The tensors of a model: their Hugging Face names and shapes.

use super::{ModelConfig, ModelError};

/// Returns the names and shapes of all parameters, in the order of the network. A tied output head is not listed.
pub fn parameters(config: &ModelConfig) -> Vec<(String, Vec<i64>)> {
    let embedding = vec![config.vocab_size, config.hidden_size];
    let mut all = vec![("model.embed_tokens.weight".to_owned(), embedding.clone())];
    for layer in 0..config.layers {
        let prefix = layer_prefix(layer);
        all.extend(
            layer_parameters(config)
                .into_iter()
                .map(|(name, shape)| (format!("{prefix}{name}"), shape)),
        );
    }
    all.push(("model.norm.weight".to_owned(), vec![config.hidden_size]));
    if !config.tie_word_embeddings {
        all.push(("lm_head.weight".to_owned(), embedding));
    }
    all
}

/// Returns the prefix of the tensor names of a layer.
pub fn layer_prefix(layer: i64) -> String {
    format!("model.layers.{layer}.")
}

/// Returns `true` if a file may contain the tensor although the model has no such parameter.
///
/// Such tensors are copies of the tied embedding, and tables of rotary frequencies in old checkpoints.
pub fn is_redundant(config: &ModelConfig, name: &str) -> bool {
    (config.tie_word_embeddings && name == "lm_head.weight")
        || name.ends_with(".rotary_emb.inv_freq")
}

/// Rejects tensors that are `missing`, which the model has but which were not found, or `extra`, which the model does not have. `origin`
/// names the source of the tensors in the error, such as a folder or file.
///
/// # Errors
/// Returns an error if `missing` or `extra` is not empty. If both have names, the error lists the missing tensors only.
pub fn refuse_unexpected(
    origin: &str,
    missing: Vec<String>,
    extra: Vec<String>,
) -> Result<(), ModelError> {
    if !missing.is_empty() {
        return Err(ModelError::MissingTensors { origin: origin.to_owned(), names: missing });
    }
    if !extra.is_empty() {
        return Err(ModelError::ExtraTensors { origin: origin.to_owned(), names: extra });
    }
    Ok(())
}

/// Checks the shape of the tensor `name`. `origin` names the source of the tensor in the error, such as a file.
///
/// # Errors
/// Returns an error if the shape `found` differs from the shape `expected`.
pub fn check_shape(
    origin: &str,
    name: &str,
    expected: &[i64],
    found: &[i64],
) -> Result<(), ModelError> {
    if expected == found {
        return Ok(());
    }
    Err(ModelError::Shape {
        origin: origin.to_owned(),
        tensor: name.to_owned(),
        expected: expected.to_vec(),
        found: found.to_vec(),
    })
}

/// Returns the names and shapes of the parameters of a layer. The names do not include [`layer_prefix`].
pub fn layer_parameters(config: &ModelConfig) -> Vec<(&'static str, Vec<i64>)> {
    let (hidden, inner, head) = (config.hidden_size, config.intermediate_size, config.head_dim);
    let (q, kv) = (config.heads * head, config.kv_heads * head);
    let tensor = |wanted: bool, name, shape: &[i64]| wanted.then(|| (name, shape.to_vec()));
    let (bias, output_bias, qk_norm) =
        (config.attention_bias, config.output_bias(), config.qk_norm());
    [
        tensor(true, "input_layernorm.weight", &[hidden]),
        tensor(true, "self_attn.q_proj.weight", &[q, hidden]),
        tensor(bias, "self_attn.q_proj.bias", &[q]),
        tensor(true, "self_attn.k_proj.weight", &[kv, hidden]),
        tensor(bias, "self_attn.k_proj.bias", &[kv]),
        tensor(true, "self_attn.v_proj.weight", &[kv, hidden]),
        tensor(bias, "self_attn.v_proj.bias", &[kv]),
        tensor(qk_norm, "self_attn.q_norm.weight", &[head]),
        tensor(qk_norm, "self_attn.k_norm.weight", &[head]),
        tensor(true, "self_attn.o_proj.weight", &[hidden, q]),
        tensor(output_bias, "self_attn.o_proj.bias", &[hidden]),
        tensor(true, "post_attention_layernorm.weight", &[hidden]),
        tensor(true, "mlp.gate_proj.weight", &[inner, hidden]),
        tensor(true, "mlp.up_proj.weight", &[inner, hidden]),
        tensor(true, "mlp.down_proj.weight", &[hidden, inner]),
    ]
    .into_iter()
    .flatten()
    .collect()
}
