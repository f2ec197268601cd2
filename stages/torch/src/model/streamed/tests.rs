use std::fs::OpenOptions;
use std::path::Path;

use rollpacker_model::{Family, Rope};
use tch::{Device, Kind, Tensor};
use tempfile::TempDir;

use super::*;
use crate::model::Decoder;
use crate::model::checkpoint::PIECE_VALUES;

/// Returns the configuration of a model with about 31 kB per layer and an embedding that is read in two pieces.
pub(super) fn config(layers: i64) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab_size: 2100,
        hidden_size: 32,
        intermediate_size: 48,
        layers,
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: layers % 2 == 0,
        attention_bias: true,
        max_position_embeddings: 128,
        initializer_range: 0.3,
        eos_token_ids: vec![1],
        bos_token_id: None,
        pad_token_id: None,
    }
}

fn saved(layers: i64) -> (TempDir, Decoder) {
    let folder = tempfile::tempdir().unwrap();
    let decoder = Decoder::init(config(layers), 3, Device::Cpu).unwrap();
    decoder.save(folder.path()).unwrap();
    (folder, decoder)
}

/// Writes the weights of `decoder` in bfloat16 to a new folder, with five tensors per file. Copies the configuration from `folder`.
fn sharded(folder: &Path, decoder: &Decoder) -> TempDir {
    let shards = tempfile::tempdir().unwrap();
    std::fs::copy(folder.join("config.json"), shards.path().join("config.json")).unwrap();
    let mut map = serde_json::Map::new();
    for (number, parameters) in decoder.parameters().chunks(5).enumerate() {
        let name = format!("model-{number}.safetensors");
        let halved: Vec<_> = parameters
            .iter()
            .map(|(name, tensor)| (name, tensor.to_kind(Kind::BFloat16)))
            .collect();
        Tensor::write_safetensors(&halved, shards.path().join(&name)).unwrap();
        map.extend(parameters.iter().map(|(tensor, _)| (tensor.clone(), name.as_str().into())));
    }
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(shards.path().join("model.safetensors.index.json"), index).unwrap();
    shards
}

const DEMAND: Demand = Demand { cached: 40, pass: 20, rows: 4 };

/// Returns a budget with room for `layers` layers, resident or in a buffer.
fn budget(config: &ModelConfig, layers: usize, prefetch: bool, demand: Demand) -> MemoryBudget {
    let unlimited = MemoryBudget { bytes: u64::MAX, prefetch };
    MemoryBudget { bytes: MemoryNeed::of(config, unlimited, demand).with_layers(layers), prefetch }
}

fn open(folder: &Path, layers: usize, prefetch: bool) -> StreamedDecoder {
    let config = ModelConfig::from_folder(folder).unwrap();
    StreamedDecoder::open(folder, Device::Cpu, budget(&config, layers, prefetch, DEMAND), DEMAND)
        .unwrap()
}

fn ids() -> Tensor {
    Tensor::arange(15, (Kind::Int64, Device::Cpu)) * 3
}

fn check_equal(streamed: &mut StreamedDecoder, resident: &Decoder) {
    let hidden = streamed.forward_packed(&ids(), &[7, 8]).unwrap();
    let expected = resident.forward_packed(&ids(), &[7, 8]).unwrap();
    assert!(hidden.equal(&expected), "hidden states with {:?}", streamed.residency());
    assert!(streamed.logits(&hidden).unwrap().equal(&resident.logits(&expected).unwrap()));
}

#[test]
fn results_are_those_of_the_resident_decoder_bit_for_bit() {
    for layers in [1, 2, 6, 7] {
        let (whole, decoder) = saved(layers);
        let halved = sharded(whole.path(), &decoder);
        let loaded = Decoder::load(halved.path(), Device::Cpu).unwrap();
        for (folder, resident) in [(&whole, &decoder), (&halved, &loaded)] {
            for (held, prefetch) in [(2, true), (2, false), (1, false), (4, true), (7, true)] {
                if prefetch && held < 2.min(layers as usize) {
                    continue;
                }
                let mut streamed = open(folder.path(), held, prefetch);
                for _ in 0..3 {
                    check_equal(&mut streamed, resident);
                }
            }
        }
    }
}

#[test]
fn a_tensor_of_several_pieces_is_read_whole() {
    let (whole, decoder) = saved(6);
    let embedding = &decoder.parameters()[0].1;
    assert!(embedding.numel() > PIECE_VALUES && embedding.numel() % PIECE_VALUES != 0);
    let halved = sharded(whole.path(), &decoder);
    for (folder, expected) in [
        (&whole, embedding.shallow_clone()),
        (&halved, embedding.to_kind(Kind::BFloat16).to_kind(Kind::Float)),
    ] {
        let loaded = Decoder::load(folder.path(), Device::Cpu).unwrap();
        assert!(loaded.parameters()[0].1.equal(&expected));
    }
}

/// Between two passes the first layers of the second pass are already being read.
#[test]
fn prefetching_wraps_around_to_the_first_layers() {
    let (folder, _) = saved(6);
    let mut streamed = open(folder.path(), 4, true);
    for _ in 0..3 {
        let Buffers::Prefetch(prefetch) = &streamed.buffers else { panic!("no prefetch") };
        assert!(prefetch.requested().eq([0, 1]), "{prefetch:?}");
        let _hidden = streamed.forward_packed(&ids(), &[15]).unwrap();
    }
}

#[test]
fn resident_layers_fill_the_budget() {
    let (folder, decoder) = saved(6);
    let resident: u64 =
        decoder.parameters().iter().map(|(_, tensor)| 4 * tensor.numel() as u64).sum();
    for (held, prefetch, expected) in
        [(2, true, 0), (3, true, 1), (5, true, 3), (6, true, 6), (3, false, 2), (1, false, 0)]
    {
        let mut streamed = open(folder.path(), held, prefetch);
        assert_eq!(streamed.residency().resident(), expected);
        check_equal(&mut streamed, &decoder);
        let layer = streamed.residency().need().layer;
        assert_eq!(streamed.held_bytes(), resident - (6 - held as u64) * layer);
        assert!(streamed.within_budget());
    }
}

#[test]
fn residency_follows_the_tokens() {
    let (folder, decoder) = saved(6);
    let long = Demand { cached: 400, ..DEMAND };
    let config = config(6);
    let budget = budget(&config, 3, true, long);
    let mut streamed = StreamedDecoder::open(folder.path(), Device::Cpu, budget, DEMAND).unwrap();
    let room = streamed.residency().resident();
    assert!(room > 1, "{room}");
    for (demand, expected) in [(long, 1), (long, 1), (DEMAND, room), (long, 1)] {
        streamed.plan(demand).unwrap();
        assert_eq!(streamed.residency().resident(), expected);
        check_equal(&mut streamed, &decoder);
        assert!(streamed.within_budget());
    }
    let huge = Demand { cached: 1 << 40, ..DEMAND };
    assert!(matches!(streamed.plan(huge).unwrap_err(), TorchError::MemoryBudget { .. }));
    check_equal(&mut streamed, &decoder);
}

#[test]
fn a_budget_that_is_too_small_is_refused_with_the_minimum() {
    let (folder, decoder) = saved(6);
    let refusal = |bytes| {
        StreamedDecoder::open(folder.path(), Device::Cpu, MemoryBudget::of_bytes(bytes), DEMAND)
            .unwrap_err()
    };
    let TorchError::MemoryBudget { min, outer, layers, demand, .. } = refusal(1000) else {
        panic!("{}", refusal(1000));
    };
    assert_eq!(outer + layers + demand, min);
    assert_eq!(
        refusal(1000).to_string(),
        format!(
            "{}: a memory budget of 1000 bytes is too small: at least {min} are needed, {outer} for embedding, norm and head, \
             {layers} to stream layers, {demand} for the tokens",
            folder.path().display()
        )
    );
    let budget = MemoryBudget::of_bytes(min);
    let mut streamed = StreamedDecoder::open(folder.path(), Device::Cpu, budget, DEMAND).unwrap();
    check_equal(&mut streamed, &decoder);
    assert!(matches!(refusal(min - 1), TorchError::MemoryBudget { .. }));
}

#[test]
fn an_aborted_pass_does_not_affect_the_next() {
    let (folder, decoder) = saved(7);
    for (held, prefetch) in [(2, true), (4, true), (1, false)] {
        let mut streamed = open(folder.path(), held, prefetch);
        for fails_at in 0..7 {
            let positions = Tensor::arange(15, (Kind::Int64, Device::Cpu));
            let given_up = streamed.forward(&ids(), &positions, &mut |layer, q, _, _| {
                if layer == fails_at {
                    Err(TchError::Shape("given up".to_owned()))
                } else {
                    q.f_flatten(1, -1)
                }
            });
            assert_eq!(given_up.unwrap_err().to_string(), "invalid shape: given up");
            check_equal(&mut streamed, &decoder);
        }
    }
}

#[test]
fn a_fence_that_cannot_be_recorded_fails_the_pass_and_not_the_decoder() {
    let (folder, decoder) = saved(6);
    let mut streamed = open(folder.path(), 2, true);
    let Buffers::Prefetch(prefetch) = &mut streamed.buffers else { panic!("no prefetch") };
    let (buffers, first) = (prefetch.buffers(), prefetch.requested().next().unwrap());
    for _ in 0..=buffers {
        let lost = || TorchError::Torch { reason: "no event".to_owned() };
        let failed = prefetch.run(first, |_| ((), Err(lost())));
        assert_eq!(failed.unwrap_err().to_string(), lost().to_string());
        assert_eq!(prefetch.buffers(), buffers);
    }
    check_equal(&mut streamed, &decoder);
}

#[test]
fn a_truncated_file_fails_the_pass_and_not_the_decoder() {
    for (held, prefetch) in [(2, true), (4, true), (1, false)] {
        let (folder, decoder) = saved(7);
        let mut streamed = open(folder.path(), held, prefetch);
        check_equal(&mut streamed, &decoder);
        let path = folder.path().join("model.safetensors");
        let whole = std::fs::read(&path).unwrap();
        OpenOptions::new()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(whole.len() as u64 / 2)
            .unwrap();
        // Layers that were read ahead may carry the first pass past its first layers, but not to its end.
        for _ in 0..3 {
            let error = streamed.forward_packed(&ids(), &[7, 8]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot read {}: ", path.display())), "{error}");
        }
        // The file is restored in place, because the decoder reads the file that it has opened.
        std::fs::write(&path, whole).unwrap();
        check_equal(&mut streamed, &decoder);
    }
}

#[test]
fn a_plan_that_cannot_be_read_is_executed_later() {
    let (folder, decoder) = saved(6);
    let long = Demand { cached: 400, ..DEMAND };
    let budget = budget(&config(6), 3, true, long);
    let mut streamed = StreamedDecoder::open(folder.path(), Device::Cpu, budget, long).unwrap();
    let path = folder.path().join("model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(4000).unwrap();
    assert!(matches!(
        streamed.plan(DEMAND).unwrap_err(),
        TorchError::Model(ModelError::Read { .. })
    ));
    assert!(streamed.within_budget());
    assert!(streamed.forward_packed(&ids(), &[7, 8]).is_err());
    std::fs::write(&path, whole).unwrap();
    check_equal(&mut streamed, &decoder);
    assert!(streamed.residency().resident() > 1);
}

#[test]
fn a_decoder_may_be_dropped_while_it_reads() {
    let (folder, _) = saved(6);
    for _ in 0..20 {
        drop(open(folder.path(), 2, true));
    }
}

#[test]
fn weights_of_another_model_are_refused_as_the_resident_decoder_does() {
    let (folder, decoder) = saved(6);
    let path = folder.path().join("model.safetensors");
    let check = |tensors: &[(String, Tensor)]| {
        Tensor::write_safetensors(tensors, &path).unwrap();
        let whole = Decoder::load(folder.path(), Device::Cpu).unwrap_err().to_string();
        let budget = MemoryBudget::of_bytes(u64::MAX);
        let streamed = StreamedDecoder::open(folder.path(), Device::Cpu, budget, DEMAND);
        assert_eq!(streamed.unwrap_err().to_string(), whole);
        whole
    };
    let tensors = || -> Vec<(String, Tensor)> {
        decoder.parameters().iter().map(|(name, tensor)| (name.clone(), tensor.copy())).collect()
    };
    let missing = check(&tensors()[1..]);
    assert!(missing.ends_with("1 tensor(s) missing: `model.embed_tokens.weight`"), "{missing}");
    let mut extra = tensors();
    extra.push(("model.layers.6.mlp.up_proj.weight".to_owned(), Tensor::from(1_f32)));
    assert!(check(&extra).ends_with("not of this model: `model.layers.6.mlp.up_proj.weight`"));
    let mut kinds = tensors();
    kinds[3].1 = kinds[3].1.to_kind(Kind::Double);
    assert!(check(&kinds).ends_with("expected F32, F16 or BF16, found F64"));
    let mut shapes = tensors();
    shapes[0].1 = shapes[0].1.transpose(0, 1).contiguous();
    assert!(check(&shapes).ends_with("expected shape [2100, 32], found [32, 2100]"));
}
