//! Small models with known answers.

use std::path::Path;

use rollpacker_model::{ModelConfig, Tokenizer};
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::reward::chat::Message;
use tch::{Device, Tensor};

use super::super::TorchChatOptions;
use crate::model::Decoder;

/// The vocabulary: 85 characters, after the tokenizer's own three tokens.
pub(super) const ALPHABET: &str =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 \n.,:;?!+-*/=()<>[]{}'`";

/// A long text without repeated characters.
pub(super) const CHAIN: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// A temporary folder with a model.
pub(super) struct Folder(tempfile::TempDir);

impl Folder {
    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

pub(super) fn message(content: &str) -> Message {
    Message { role: "user".to_owned(), content: content.to_owned() }
}

pub(super) fn options(folder: &Folder) -> TorchChatOptions {
    TorchChatOptions {
        model_path: folder.path().to_owned(),
        device: DeviceChoice::Cpu,
        ..TorchChatOptions::default()
    }
}

/// Creates a model that answers `text` to every prompt. `text` must contain no character twice and no `>`.
pub(super) fn speaker(text: &str) -> Folder {
    let tokenizer = Tokenizer::characters(ALPHABET).unwrap();
    let decoder = Decoder::init(config(vec![1], 96), 0, Device::Cpu).unwrap();
    let token_ids = tokenizer.encode(&format!(">{text}<|eos|>")).unwrap();
    // Each token is a direction in the hidden space, the layers change nothing, and the head maps each token to the next one.
    let set = |name: &str, values: Tensor| {
        let (_, parameter) = decoder.parameters().iter().find(|(other, _)| other == name).unwrap();
        tch::no_grad(|| parameter.shallow_clone().copy_(&values));
    };
    let (vocab, hidden) = (decoder.config().vocab_size, decoder.config().hidden_size);
    let table = |ones: &[(i64, i64)]| {
        let table = Tensor::zeros([vocab, hidden], (tch::Kind::Float, Device::Cpu));
        ones.iter().for_each(|(row, column)| _ = table.get(*row).get(*column).fill_(1.0));
        table
    };
    let own: Vec<(i64, i64)> = (0..vocab).map(|token| (token, token)).collect();
    let next = token_ids.windows(2).map(|pair| (i64::from(pair[1]), i64::from(pair[0])));
    set("model.embed_tokens.weight", table(&own));
    set("lm_head.weight", table(&next.collect::<Vec<_>>()));
    for name in ["self_attn.o_proj", "mlp.down_proj"] {
        let name = format!("model.layers.0.{name}.weight");
        let (_, found) = decoder.parameters().iter().find(|(other, _)| *other == name).unwrap();
        set(&name, found.zeros_like());
    }
    saved(&decoder, &tokenizer)
}

/// Creates a model with random weights and many end tokens.
pub(super) fn endless_speaker() -> Folder {
    let ends = (3..88).step_by(6).collect();
    let config = ModelConfig { initializer_range: 0.3, layers: 4, ..config(ends, 32) };
    saved(
        &Decoder::init(config, 5, Device::Cpu).unwrap(),
        &Tokenizer::characters(ALPHABET).unwrap(),
    )
}

fn config(eos_token_ids: Vec<i32>, hidden_size: i64) -> ModelConfig {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/llama_untied");
    let config = ModelConfig::from_folder(folder.as_ref()).unwrap();
    let vocab_size = Tokenizer::characters(ALPHABET).unwrap().vocab_size() as i64;
    ModelConfig {
        vocab_size,
        hidden_size,
        layers: 1,
        eos_token_ids,
        max_position_embeddings: 1024,
        bos_token_id: None,
        pad_token_id: Some(0),
        ..config
    }
}

fn saved(decoder: &Decoder, tokenizer: &Tokenizer) -> Folder {
    let folder = Folder(tempfile::tempdir().unwrap());
    decoder.save(folder.path()).unwrap();
    tokenizer.save(folder.path()).unwrap();
    let template = "{% for message in messages %}{{ message.content }}\n\n{% endfor %}>";
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}
