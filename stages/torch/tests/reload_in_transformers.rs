//! Saved models load in transformers, with equal logits.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::print_stdout, reason = "a skipped test prints a message")]

use std::path::Path;
use std::process::Command;

use rollpacker_model::Tokenizer;
use rollpacker_torch::model::Decoder;
use tch::{Device, Tensor};

/// Saves `decoder`, with `tokenizer` if there is one, and checks that transformers computes the same logits for `ids`. Returns `false` if
/// Python, torch or transformers is not installed.
fn reloads(decoder: &Decoder, tokenizer: Option<&Tokenizer>, ids: &[i64]) -> bool {
    let folder = tempfile::tempdir().unwrap();
    decoder.save(folder.path()).unwrap();
    if let Some(tokenizer) = tokenizer {
        tokenizer.save(folder.path()).unwrap();
    }
    let hidden = decoder.forward_packed(&Tensor::from_slice(ids), &[ids.len() as i64]).unwrap();
    let logits: Vec<f32> = decoder.logits(&hidden).unwrap().flatten(0, -1).try_into().unwrap();
    let file = folder.path().join("logits.f32");
    std::fs::write(&file, logits.iter().flat_map(|logit| logit.to_le_bytes()).collect::<Vec<_>>())
        .unwrap();

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reload_in_transformers.py");
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let ids = ids.iter().map(ToString::to_string);
    let Ok(output) =
        Command::new(&python).arg(script).arg(folder.path()).arg(&file).args(ids).output()
    else {
        println!("skipped: no {python}");
        return false;
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    print!("{stdout}");
    !stdout.starts_with("skipped")
}

#[test]
fn transformers_loads_saved_models() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models");
    let ids: Vec<i64> = (0..24).map(|at| at * 37 % 256).collect();
    for model in ["qwen2_tied", "qwen3_tied", "llama_untied", "llama3_rope"] {
        if !reloads(&Decoder::load(&fixtures.join(model), Device::Cpu).unwrap(), None, &ids) {
            return;
        }
    }
    let tokenizer = Tokenizer::characters("0123456789+*=,: \n").unwrap();
    let mut config =
        Decoder::load(&fixtures.join("qwen2_tied"), Device::Cpu).unwrap().config().clone();
    config.vocab_size = tokenizer.vocab_size() as i64;
    (config.eos_token_ids, config.pad_token_id, config.bos_token_id) = (vec![1], Some(0), None);
    let ids: Vec<i64> =
        tokenizer.encode("3+4=7, 7*7\n=9<|eos|>").unwrap().into_iter().map(i64::from).collect();
    reloads(&Decoder::init(config, 3, Device::Cpu).unwrap(), Some(&tokenizer), &ids);
}
