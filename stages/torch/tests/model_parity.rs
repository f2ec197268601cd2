//! The model matches transformers on the fixtures: logits, log-probs, entropies, gradients and greedy continuations.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use rollpacker_model::{ModelConfig, ModelError};
use rollpacker_torch::model::{Decoder, TorchError};
use serde_json::Value;
use tch::{Device, Kind, Tensor};

const MODELS: [&str; 4] = ["qwen2_tied", "qwen3_tied", "llama_untied", "llama3_rope"];
/// Tolerance of logits and log-probs. The rounding noise of float32 against float64 is 2e-6 to 4e-6 here.
const TOLERANCE: f64 = 2e-5;
/// Tolerance of gradients, relative to their norm.
const GRADIENT_TOLERANCE: f64 = 1e-4;

struct Fixture {
    folder: PathBuf,
    tensors: Vec<(String, Tensor)>,
    facts: Value,
}

impl Fixture {
    fn open(model: &str) -> Self {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(model);
        let tensors = Tensor::read_safetensors(folder.join("fixture.safetensors")).unwrap();
        let facts =
            serde_json::from_str(&std::fs::read_to_string(folder.join("fixture.json")).unwrap())
                .unwrap();
        Self { folder, tensors, facts }
    }

    fn decoder(&self) -> Decoder {
        Decoder::load(&self.folder, Device::Cpu).unwrap()
    }

    fn tensor(&self, name: &str) -> &Tensor {
        &self.tensors.iter().find(|(other, _)| other == name).unwrap().1
    }

    fn lengths(&self) -> Vec<i64> {
        self.facts["lens"]
            .as_array()
            .unwrap()
            .iter()
            .map(|length| length.as_i64().unwrap())
            .collect()
    }

    /// Returns the rows of the right-padded tensor `name`, `[3, ..]`, concatenated. Each row is without its padding and without the last
    /// `less` columns before the padding.
    fn packed(&self, name: &str, less: i64) -> Tensor {
        let rows = self.tensor(name);
        let lengths = self.lengths();
        let row = |(row, length): (usize, &i64)| rows.get(row as i64).narrow(0, 0, length - less);
        Tensor::cat(&lengths.iter().enumerate().map(row).collect::<Vec<_>>(), 0)
    }
}

/// Returns `log p(next | before)` and the entropies of the packed rows, without the last token of each row.
fn log_probs(decoder: &Decoder, fixture: &Fixture) -> (Tensor, Tensor) {
    let ids = fixture.packed("input_ids", 0);
    let lengths = fixture.lengths();
    let all = decoder
        .logits(&decoder.forward_packed(&ids, &lengths).unwrap())
        .unwrap()
        .log_softmax(-1, Kind::Float);
    let sizes = lengths.as_slice();
    let (mut chosen, mut entropies) = (Vec::new(), Vec::new());
    for (log_probs, ids) in
        all.split_with_sizes(sizes, 0).iter().zip(ids.split_with_sizes(sizes, 0))
    {
        let last = ids.size()[0] - 1;
        let log_probs = log_probs.narrow(0, 0, last);
        let next = ids.narrow(0, 1, last).unsqueeze(-1);
        chosen.push(log_probs.gather(-1, &next, false).squeeze_dim(-1));
        entropies.push(-(log_probs.exp() * log_probs).sum_dim_intlist(-1, false, Kind::Float));
    }
    (Tensor::cat(&chosen, 0), Tensor::cat(&entropies, 0))
}

fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.size(), b.size());
    (a - b).abs().max().double_value(&[])
}

fn check_close(what: &str, model: &str, found: &Tensor, expected: &Tensor) {
    let distance = distance(found, expected);
    assert!(distance <= TOLERANCE, "{model}: {what} differ by {distance:e}");
}

#[test]
fn logits_are_those_of_transformers() {
    for model in MODELS {
        let fixture = Fixture::open(model);
        let decoder = fixture.decoder();
        let lengths = fixture.lengths();
        let logits = decoder
            .logits(&decoder.forward_packed(&fixture.packed("input_ids", 0), &lengths).unwrap())
            .unwrap();
        let rows = logits.split_with_sizes(lengths.as_slice(), 0);
        check_close("logits of row 0", model, &rows[0], fixture.tensor("logits_row0"));
        let last: Vec<_> = rows.iter().map(|row| row.get(-1)).collect();
        check_close(
            "logits of the last tokens",
            model,
            &Tensor::stack(&last, 0),
            fixture.tensor("logits_last"),
        );
    }
}

#[test]
fn log_probs_and_entropies_are_those_of_transformers() {
    for model in MODELS {
        let fixture = Fixture::open(model);
        let (log_probs, entropies) = log_probs(&fixture.decoder(), &fixture);
        check_close("log-probs", model, &log_probs, &fixture.packed("token_logprobs", 1));
        check_close("entropies", model, &entropies, &fixture.packed("entropy", 1));
    }
}

#[test]
fn loss_and_gradients_are_those_of_transformers() {
    for model in MODELS {
        let fixture = Fixture::open(model);
        let mut decoder = fixture.decoder();
        decoder.set_requires_grad(true);
        let loss = -log_probs(&decoder, &fixture).0.mean(Kind::Float);
        check_close("losses", model, &loss, &fixture.tensor("loss").squeeze());
        loss.backward();
        check_gradients(model, &fixture, &decoder);
    }
}

fn check_gradients(model: &str, fixture: &Fixture, decoder: &Decoder) {
    let norms = fixture.facts["grad_norms"].as_object().unwrap();
    assert_eq!(norms.len(), decoder.parameters().len(), "{model}: parameters");
    let mut squares = 0.0;
    for (name, parameter) in decoder.parameters() {
        let norm = parameter.grad().norm().double_value(&[]);
        let expected = norms[name].as_f64().unwrap();
        squares += norm * norm;
        assert!(
            (norm - expected).abs() <= GRADIENT_TOLERANCE * expected,
            "{model}: |grad {name}| {norm} for {expected}"
        );
        if let Some((_, whole)) =
            fixture.tensors.iter().find(|(other, _)| *other == format!("grad.{name}"))
        {
            let distance = distance(&parameter.grad(), whole);
            assert!(
                distance <= GRADIENT_TOLERANCE * expected,
                "{model}: grad {name} differs by {distance:e}"
            );
        }
    }
    let expected = fixture.facts["grad_norm"].as_f64().unwrap();
    assert!(
        (squares.sqrt() - expected).abs() <= GRADIENT_TOLERANCE * expected,
        "{model}: norm of all gradients"
    );
}

#[test]
fn greedy_continuation_is_that_of_transformers() {
    for model in MODELS {
        let fixture = Fixture::open(model);
        let decoder = fixture.decoder();
        let expected: Vec<i64> = fixture.tensor("greedy_ids").flatten(0, -1).try_into().unwrap();
        let mut ids = expected[..8].to_vec();
        while ids.len() < expected.len() {
            let hidden =
                decoder.forward_packed(&Tensor::from_slice(&ids), &[ids.len() as i64]).unwrap();
            ids.push(
                decoder
                    .logits(&hidden.narrow(0, -1, 1))
                    .unwrap()
                    .argmax(-1, false)
                    .int64_value(&[0]),
            );
        }
        assert_eq!(ids, expected, "{model}");
    }
}

/// With rotary embeddings, attention depends only on the distances between positions, so adding the same number to all positions leaves the
/// logits unchanged.
#[test]
fn only_distances_between_positions_matter() {
    for model in MODELS {
        let fixture = Fixture::open(model);
        let decoder = fixture.decoder();
        let ids = fixture.tensor("input_ids").get(0);
        let run = |start: i64| {
            let positions =
                Tensor::arange_start(start, start + ids.size()[0], (Kind::Int64, Device::Cpu));
            let hidden =
                decoder.forward(&ids, &positions, &mut |_, q, k, v| causal(q, k, v)).unwrap();
            decoder.logits(&hidden).unwrap()
        };
        check_close("logits of row 0", model, &run(0), fixture.tensor("logits_row0"));
        assert!(
            distance(&run(40), fixture.tensor("logits_row0")) < 1e-4,
            "{model}: shifted positions"
        );
    }
}

/// Computes causal attention without fused kernels, as a reference for the kernels.
fn causal(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor, tch::TchError> {
    let (tokens, heads, dim) = q.size3()?;
    let repeats = heads / k.size()[1];
    let by_head = |x: &Tensor| x.repeat_interleave_self_int(repeats, 1, None).transpose(0, 1);
    let scores = q.transpose(0, 1).matmul(&by_head(k).transpose(1, 2)) / (dim as f64).sqrt();
    let hidden = Tensor::ones([tokens, tokens], (Kind::Bool, Device::Cpu)).triu(1);
    let weights = scores.masked_fill(&hidden, f64::NEG_INFINITY).softmax(-1, Kind::Float);
    Ok(weights.matmul(&by_head(v)).transpose(0, 1).reshape([tokens, -1]))
}

/// Training uses separate projections, inference stacked ones.
#[test]
fn the_trainable_model_computes_what_the_frozen_one_does() {
    for model in MODELS {
        let fixture = Fixture::open(model);
        let mut decoder = fixture.decoder();
        let frozen = log_probs(&decoder, &fixture).0;
        decoder.set_requires_grad(true);
        check_close("log-probs", model, &log_probs(&decoder, &fixture).0, &frozen);
        assert!(
            decoder
                .parameters()
                .iter()
                .all(|(_, parameter)| parameter.requires_grad() && parameter.is_contiguous())
        );
    }
}

/// Neighbours of equal length share a kernel launch; a sequence of another length has its own.
#[test]
fn packing_does_not_change_a_sequence() {
    for model in MODELS {
        let fixture = Fixture::open(model);
        let decoder = fixture.decoder();
        let ids = fixture.tensor("input_ids").get(0);
        let parts = [5, 5, 1, 1, 1, 7, 4];
        let packed = decoder.forward_packed(&ids, &parts).unwrap();
        let mut start = 0;
        for length in parts {
            let alone = decoder.forward_packed(&ids.narrow(0, start, length), &[length]).unwrap();
            check_close("hidden states", model, &packed.narrow(0, start, length), &alone);
            start += length;
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let decoder = Fixture::open("qwen2_tied").decoder();
    let ids = Tensor::from_slice(&[1_i64, 2, 3]);
    for (lengths, expected) in [
        (vec![2, 2], "invalid shape: sequences of 4 tokens in a pack of 3"),
        (vec![3, 0], "invalid shape: a sequence of 0 tokens in a pack"),
        (vec![], "invalid shape: sequences of 0 tokens in a pack of 3"),
    ] {
        assert_eq!(decoder.forward_packed(&ids, &lengths).unwrap_err().to_string(), expected);
    }
}

#[test]
fn both_spellings_of_a_configuration_mean_the_same() {
    for model in MODELS {
        let folder = Fixture::open(model).folder;
        let older = tempfile::tempdir().unwrap();
        let text = std::fs::read_to_string(folder.join("config_v4.json")).unwrap();
        let mut json: Value = serde_json::from_str(&text).unwrap();
        json.as_object_mut().unwrap().remove("rope_parameters");
        std::fs::write(older.path().join("config.json"), json.to_string()).unwrap();
        std::fs::copy(
            folder.join("generation_config.json"),
            older.path().join("generation_config.json"),
        )
        .unwrap();
        let config = ModelConfig::from_folder(&folder).unwrap();
        assert_eq!(ModelConfig::from_folder(older.path()).unwrap(), config, "{model}");
    }
}

fn same_weights(a: &Decoder, b: &Decoder) -> bool {
    a.parameters().iter().zip(b.parameters()).all(|((_, a), (_, b))| a.equal(b))
        && a.snapshot().unwrap().digest() == b.snapshot().unwrap().digest()
}

#[test]
fn a_saved_model_loads_bit_for_bit() {
    for model in MODELS {
        let decoder = Fixture::open(model).decoder();
        let folder = tempfile::tempdir().unwrap();
        decoder.save(folder.path()).unwrap();
        let again = Decoder::load(folder.path(), Device::Cpu).unwrap();
        assert_eq!(again.config(), decoder.config());
        assert!(same_weights(&again, &decoder), "{model}");
    }
}

/// Copies a fixture's folder with the weights that `change` returns, one file per list.
fn rewritten(
    model: &str,
    change: impl FnOnce(Vec<(String, Tensor)>) -> Vec<Vec<(String, Tensor)>>,
) -> tempfile::TempDir {
    let fixture = Fixture::open(model);
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "generation_config.json"] {
        std::fs::copy(fixture.folder.join(file), folder.path().join(file)).unwrap();
    }
    let shards =
        change(Tensor::read_safetensors(fixture.folder.join("model.safetensors")).unwrap());
    let mut map = serde_json::Map::new();
    for (index, shard) in shards.iter().enumerate() {
        let name = format!("model-{index}.safetensors");
        Tensor::write_safetensors(shard, folder.path().join(&name)).unwrap();
        map.extend(shard.iter().map(|(tensor, _)| (tensor.clone(), Value::from(name.as_str()))));
    }
    let index = serde_json::json!({ "metadata": {}, "weight_map": map });
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    folder
}

#[test]
fn sharded_weights_load_as_single_ones_do() {
    let folder = rewritten("qwen3_tied", |tensors| {
        let (even, odd): (Vec<_>, Vec<_>) =
            tensors.into_iter().enumerate().partition(|(index, _)| index % 2 == 0);
        [even, odd].map(|shard| shard.into_iter().map(|(_, tensor)| tensor).collect()).into()
    });
    let sharded = Decoder::load(folder.path(), Device::Cpu).unwrap();
    assert!(same_weights(&sharded, &Fixture::open("qwen3_tied").decoder()));
}

#[test]
fn half_precision_weights_become_float32() {
    for kind in [Kind::BFloat16, Kind::Half] {
        let folder = rewritten("llama_untied", |tensors| {
            vec![tensors.into_iter().map(|(name, tensor)| (name, tensor.to_kind(kind))).collect()]
        });
        let halved = Decoder::load(folder.path(), Device::Cpu).unwrap();
        for ((name, half), (_, whole)) in
            halved.parameters().iter().zip(Fixture::open("llama_untied").decoder().parameters())
        {
            assert_eq!(half.kind(), Kind::Float);
            assert!(half.equal(&whole.to_kind(kind).to_kind(Kind::Float)), "{name} of {kind:?}");
        }
    }
}

/// Returns the error of loading, with the folder replaced by `.`.
fn refusal(folder: &tempfile::TempDir) -> String {
    let error = Decoder::load(folder.path(), Device::Cpu).unwrap_err();
    error.to_string().replace(&folder.path().display().to_string(), ".")
}

#[test]
fn weights_of_another_model_are_refused_by_name() {
    let missing = rewritten("qwen2_tied", |mut tensors| {
        tensors.retain(|(name, _)| name != "model.layers.1.self_attn.k_proj.bias");
        vec![tensors]
    });
    assert_eq!(refusal(&missing), ".: 1 tensor(s) missing: `model.layers.1.self_attn.k_proj.bias`");
    let extra = rewritten("qwen2_tied", |mut tensors| {
        tensors.push(("model.layers.2.mlp.up_proj.weight".to_owned(), Tensor::from(1_f32)));
        vec![tensors]
    });
    assert_eq!(
        refusal(&extra),
        ".: 1 tensor(s) not of this model: `model.layers.2.mlp.up_proj.weight`"
    );
    let shape = rewritten("qwen2_tied", |tensors| {
        let transposed = |(name, tensor): (String, Tensor)| match name.as_str() {
            "model.layers.0.mlp.up_proj.weight" => (name, tensor.transpose(0, 1).contiguous()),
            _ => (name, tensor),
        };
        vec![tensors.into_iter().map(transposed).collect()]
    });
    let expected = "./model-0.safetensors: tensor `model.layers.0.mlp.up_proj.weight`: expected shape [64, 32], found [32, 64]";
    assert_eq!(refusal(&shape), expected);
    let integers = rewritten("qwen2_tied", |tensors| {
        vec![
            tensors.into_iter().map(|(name, tensor)| (name, tensor.to_kind(Kind::Int64))).collect(),
        ]
    });
    assert!(
        refusal(&integers).ends_with("expected F32, F16 or BF16, found I64"),
        "{}",
        refusal(&integers)
    );
}

#[test]
fn a_copy_of_the_tied_head_is_accepted() {
    let folder = rewritten("qwen2_tied", |mut tensors| {
        let embedding =
            tensors.iter().find(|(name, _)| name == "model.embed_tokens.weight").unwrap().1.copy();
        tensors.push(("lm_head.weight".to_owned(), embedding));
        vec![tensors]
    });
    assert!(same_weights(
        &Decoder::load(folder.path(), Device::Cpu).unwrap(),
        &Fixture::open("qwen2_tied").decoder()
    ));
}

#[test]
fn damaged_files_are_refused() {
    let fixture = Fixture::open("qwen2_tied");
    let check = |bytes: &[u8], expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(fixture.folder.join("config.json"), folder.path().join("config.json"))
            .unwrap();
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        assert_eq!(
            refusal(&folder),
            format!("./model.safetensors is not a safetensors file: {expected}")
        );
    };
    let whole = std::fs::read(fixture.folder.join("model.safetensors")).unwrap();
    check(
        &whole[..whole.len() - 1],
        &format!("expected {} bytes, found {}", whole.len(), whole.len() - 1),
    );
    check(&whole[..5], "5 bytes are too few for a header");
    let length = u64::from_le_bytes(*b"no weigh");
    check(
        b"no weights at all",
        &format!("the header length {length} exceeds the file size of 17 bytes"),
    );
}

#[test]
fn initialisation_follows_the_seed() {
    let config = || ModelConfig::from_folder(&Fixture::open("qwen2_tied").folder).unwrap();
    let make = |seed| Decoder::init(config(), seed, Device::Cpu).unwrap();
    assert!(same_weights(&make(7), &make(7)));
    assert!(!same_weights(&make(7), &make(8)));
    let model = make(7);
    let parameter =
        |name: &str| &model.parameters().iter().find(|(other, _)| other == name).unwrap().1;
    let deviation = parameter("model.embed_tokens.weight").std(true).double_value(&[]);
    assert!((deviation / config().initializer_range - 1.0).abs() < 0.03, "{deviation}");
    assert!(
        parameter("model.layers.0.input_layernorm.weight")
            .equal(&Tensor::ones([32], (Kind::Float, Device::Cpu)))
    );
    assert!(
        parameter("model.layers.0.self_attn.q_proj.bias")
            .equal(&Tensor::zeros([32], (Kind::Float, Device::Cpu)))
    );
    let count: usize = model.parameters().iter().map(|(_, parameter)| parameter.numel()).sum();
    assert_eq!(count as i64, config().parameter_count());
}

#[test]
fn weights_copy_between_equal_models_only() {
    let source = Fixture::open("qwen2_tied").decoder();
    let mut other = Decoder::init(source.config().clone(), 1, Device::Cpu).unwrap();
    other.set_requires_grad(true);
    let weights = source.snapshot().unwrap();
    other.copy_from(&weights).unwrap();
    assert!(same_weights(&source, &other));
    let error = Fixture::open("llama_untied").decoder().copy_from(&weights).unwrap_err();
    assert!(
        matches!(&error, TorchError::Model(ModelError::MissingTensors { names, .. }) if names == &["lm_head.weight"]),
        "{error}"
    );
}
