use serde_json::json;

use super::*;

/// Reads the configuration of a small Llama, in which the keys of `with` replace the defaults.
fn read(with: Value) -> Result<ModelConfig, String> {
    let mut json = json!({
        "model_type": "llama", "vocab_size": 8, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 64,
    });
    json.as_object_mut().unwrap().extend(with.as_object().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), json.to_string()).unwrap();
    let prefix = format!("{}: ", folder.path().join("config.json").display());
    ModelConfig::from_folder(folder.path()).map_err(|error| error.to_string().replace(&prefix, ""))
}

fn check_refused(with: Value, expected: &str) {
    assert_eq!(read(with).unwrap_err(), expected);
}

#[test]
fn defaults_are_those_of_transformers() {
    let config = read(json!({})).unwrap();
    assert_eq!(
        (config.kv_heads, config.head_dim, config.rope),
        (4, 8, Rope::Default { theta: 10_000.0 })
    );
    assert!(!config.tie_word_embeddings && !config.attention_bias && !config.qk_norm());
    assert!(read(json!({ "model_type": "qwen2" })).unwrap().attention_bias);
    assert!(!read(json!({ "model_type": "qwen2" })).unwrap().output_bias());
    assert_eq!(read(json!({ "model_type": "qwen3" })).unwrap().head_dim, 128);
}

#[test]
fn settings_that_would_change_results_are_refused_by_name() {
    check_refused(
        json!({ "model_type": "gemma" }),
        "key `model_type`: expected qwen2, qwen3 or llama, found \"gemma\"",
    );
    check_refused(json!({ "hidden_act": "gelu" }), "hidden_act `gelu` is not supported");
    check_refused(json!({ "mlp_bias": true }), "`mlp_bias` is not supported");
    check_refused(
        json!({ "quantization_config": { "bits": 4 } }),
        "`quantization_config` is not supported",
    );
    check_refused(
        json!({ "partial_rotary_factor": 0.5 }),
        "`partial_rotary_factor` other than 1 is not supported",
    );
    check_refused(
        json!({ "rope_scaling": { "type": "yarn", "factor": 4.0 } }),
        "rope_type `yarn` is not supported",
    );
    check_refused(
        json!({ "rope_parameters": { "full_attention": { "rope_type": "default" } } }),
        "`rope_parameters` per layer type is not supported",
    );
    check_refused(
        json!({ "layer_types": ["full_attention", "sliding_attention"] }),
        "layer type \"sliding_attention\" is not supported",
    );
}

#[test]
fn a_sliding_window_is_refused_where_a_layer_uses_it() {
    let window = |first: i64, used: bool| {
        read(
            json!({ "use_sliding_window": used, "sliding_window": 16, "max_window_layers": first }),
        )
    };
    assert!(window(1, false).is_ok());
    assert!(window(2, true).is_ok());
    assert_eq!(
        window(1, true).unwrap_err(),
        "`sliding_window` in the layers from 1 on is not supported"
    );
    let without = json!({ "use_sliding_window": true, "max_window_layers": 1 });
    assert!(read(without).is_err(), "transformers has a default window");
    let null =
        json!({ "use_sliding_window": true, "sliding_window": null, "max_window_layers": 1 });
    assert!(read(null).is_ok());
}

#[test]
fn wrong_values_name_their_key() {
    check_refused(
        json!({ "hidden_size": null }),
        "key `hidden_size`: expected a whole number from 1 to 2147483647, found null",
    );
    check_refused(
        json!({ "vocab_size": "8" }),
        "key `vocab_size`: expected a whole number from 1 to 2147483647, found \"8\"",
    );
    check_refused(
        json!({ "num_attention_heads": 5 }),
        "key `num_attention_heads`: expected a divisor of the hidden size 32, found 5",
    );
    check_refused(
        json!({ "num_key_value_heads": 3 }),
        "key `num_key_value_heads`: expected a divisor of the 4 attention heads, found 3",
    );
    check_refused(json!({ "head_dim": 7 }), "key `head_dim`: expected an even number, found 7");
    check_refused(
        json!({ "eos_token_id": [1, "x"] }),
        "key `eos_token_id`: expected token ids, found [1,\"x\"]",
    );
    check_refused(
        json!({ "rope_scaling": { "rope_type": "linear" } }),
        "key `rope_scaling.factor`: expected a number above 0, found nothing",
    );
}

#[test]
fn sizes_and_factors_have_upper_bounds() {
    check_refused(
        json!({ "num_hidden_layers": i32::MAX }),
        "key `num_hidden_layers`: expected a whole number from 1 to 4096, found 2147483647",
    );
    check_refused(
        json!({ "vocab_size": 1 << 25 }),
        "key `vocab_size`: expected a whole number from 1 to 16777216, found 33554432",
    );
    check_refused(
        json!({ "hidden_size": 1 << 20, "num_attention_heads": 1 }),
        "key `num_attention_heads`: expected heads of at most 4096 numbers each, found 1",
    );
    check_refused(
        json!({ "rope_theta": 1e-30 }),
        "key `rope_theta`: expected a number from 1.0 to 1e16, found 1e-30",
    );
    check_refused(
        json!({ "rope_scaling": { "rope_type": "linear", "factor": 1e300 } }),
        "key `rope_scaling.factor`: expected a number from 1e-6 to 1000000.0, found 1e+300",
    );
}

#[test]
fn special_tokens_are_within_the_vocabulary() {
    for key in ["eos_token_id", "bos_token_id", "pad_token_id"] {
        let expected = "expected token ids from 0 to 7, within vocab_size";
        check_refused(json!({ key: 8 }), &format!("key `{key}`: {expected}, found 8"));
        check_refused(
            json!({ key: i64::MAX }),
            &format!("key `{key}`: {expected}, found {}", i64::MAX),
        );
    }
    check_refused(
        json!({ "eos_token_id": [7, -2] }),
        "key `eos_token_id`: expected token ids from 0 to 7, within vocab_size, found [7,-2]",
    );
    let folder = tempfile::tempdir().unwrap();
    read(json!({})).unwrap().write(folder.path()).unwrap();
    let generation = folder.path().join("generation_config.json");
    std::fs::write(&generation, r#"{"eos_token_id": 8}"#).unwrap();
    let error = ModelConfig::from_folder(folder.path()).unwrap_err().to_string();
    let origin = format!("{}: key `eos_token_id`: expected token ids", generation.display());
    assert!(error.starts_with(&origin), "{error}");
}

#[test]
fn ends_of_sequence_are_those_of_both_files() {
    let folder = tempfile::tempdir().unwrap();
    let config = read(json!({ "eos_token_id": [3, 2], "pad_token_id": -1 })).unwrap();
    assert_eq!((config.eos_token_ids.as_slice(), config.pad_token_id), ([3, 2].as_slice(), None));
    config.write(folder.path()).unwrap();
    std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [5, 2]}"#)
        .unwrap();
    assert_eq!(ModelConfig::from_folder(folder.path()).unwrap().eos_token_ids, [5, 2, 3]);
}

#[test]
fn settings_of_generation_are_added_to_those_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert_eq!(generation_settings(folder).unwrap(), Map::new());
    let settings = json!({ "do_sample": true, "temperature": 0.6, "eos_token_id": 3 });
    std::fs::write(folder.join("generation_config.json"), settings.to_string()).unwrap();
    let settings = generation_settings(folder).unwrap();
    read(json!({ "eos_token_id": [3, 2] })).unwrap().write(folder).unwrap();
    add_generation_settings(folder, settings).unwrap();
    let expected = json!({ "do_sample": true, "temperature": 0.6, "eos_token_id": [3, 2] });
    assert_eq!(Value::Object(generation_settings(folder).unwrap()), expected);
}

#[test]
fn a_configuration_round_trips() {
    let llama3 = json!({ "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32 });
    for with in [
        json!({}),
        json!({ "model_type": "qwen2", "eos_token_id": 3, "bos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": true }),
        json!({ "model_type": "qwen3", "num_key_value_heads": 2, "attention_bias": true, "rms_norm_eps": 1e-5 }),
        json!({ "rope_parameters": llama3 }),
        json!({ "rope_theta": 5e5, "rope_scaling": { "type": "linear", "factor": 2.5 } }),
    ] {
        let config = read(with).unwrap();
        let folder = tempfile::tempdir().unwrap();
        config.write(folder.path()).unwrap();
        assert_eq!(ModelConfig::from_folder(folder.path()).unwrap(), config);
    }
}

#[test]
fn linear_scaling_divides_every_frequency() {
    let (plain, linear) =
        (Rope::Default { theta: 100.0 }, Rope::Linear { theta: 100.0, factor: 4.0 });
    assert_eq!(plain.frequencies(4), [1.0, 0.1]);
    assert_eq!(linear.frequencies(4), [0.25, 0.025]);
}
