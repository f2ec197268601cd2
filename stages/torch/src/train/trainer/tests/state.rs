//! Tests that a trainer restored from a state behaves like the trainer that saved it.

use std::path::PathBuf;

use rollpacker_stages::testkit::{TrainerWorld, check_trainer};

use super::*;
use crate::train::config::MiniBatches;

fn learner(config: TrainerConfig, keep: usize) -> TorchTrainer {
    let decoder = Decoder::init(model(), 7, Device::Cpu).unwrap();
    TorchTrainer::new(decoder, config, WeightStore::new(keep)).unwrap()
}

fn with_critic() -> TrainerConfig {
    let critic = CriticConfig { warmup_steps: 1, ..CriticConfig::default() };
    let rate =
        LearningRate { peak: 1e-2, warmup_steps: 4, decay: Decay::Linear { total_steps: 9 } };
    let base = config(Aggregation::TokenMean);
    TrainerConfig {
        optimizer: OptimizerConfig { learning_rate: rate, ..base.optimizer },
        reward_kl: Some(Choice::of("kl")),
        critic: Some(critic),
        ..base
    }
}

/// Trains on responses that depend on the step.
fn train(trainer: &mut TorchTrainer, step: u64) -> (Policy, Metrics) {
    let n = step as i32;
    let responses = [
        example(&[2, 3], &[4, 5, 1 + n], 0.5),
        Response { id: (0, 1), ..example(&[2, 3], &[6 + n, 7, 8, 1], -1.0) },
        Response { id: (1, 0), ..example(&[8 + n, 9], &[3, 3, 1], 2.0) },
    ];
    let sequences: Vec<_> = responses.iter().map(Response::sequence).collect();
    let inferred = trainer.infer(Step(step), &sequences).unwrap();
    let known = sequences.iter().zip(&inferred).map(|(sequence, one)| Sequence {
        values: &one.values,
        returns: if one.values.is_empty() { &[] } else { sequence.logprobs },
        ..*sequence
    });
    trainer.accumulate(Step(step), &known.collect::<Vec<_>>()).unwrap();
    trainer.update(Step(step)).unwrap()
}

fn file(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("state.safetensors")
}

#[test]
fn updates_after_a_resume_are_those_without_it_to_the_bit() {
    let mini_batches = Some(MiniBatches { prompts: 1, epochs: 2 });
    let several = TrainerConfig { mini_batches, ..with_critic() };
    for config in [config(Aggregation::SeqMeanTokenSum), with_critic(), several] {
        let folder = tempfile::tempdir().unwrap();
        let mut straight = learner(config.clone(), 2);
        let before: Vec<_> = (0..3).map(|step| train(&mut straight, step)).collect();
        straight.save_state(&file(&folder)).unwrap();
        let mut resumed = learner(config, 2);
        let policies = resumed.load_state(&file(&folder)).unwrap();
        assert_eq!(policies, [before[2].0.clone()]);
        for step in 3..6 {
            assert_eq!(train(&mut resumed, step), train(&mut straight, step), "step {step}");
        }
    }
}

#[test]
fn what_was_accumulated_since_the_update_is_not_in_the_state() {
    let folder = tempfile::tempdir().unwrap();
    let mut straight = learner(with_critic(), 2);
    train(&mut straight, 0);
    straight.save_state(&file(&folder)).unwrap();
    let early = example(&[2], &[3, 4], 1.0);
    straight.accumulate(Step(1), &[valued(&early)]).unwrap();
    let later = folder.path().join("later.safetensors");
    straight.save_state(&later).unwrap();
    assert_eq!(std::fs::read(file(&folder)).unwrap(), std::fs::read(later).unwrap());
}

#[test]
fn policies_within_the_staleness_are_available_after_a_resume() {
    let folder = tempfile::tempdir().unwrap();
    // Staleness 2.
    let mut first = learner(config(Aggregation::TokenMean), 4);
    let initial = first.publish(PolicyVersion(0)).unwrap();
    let published: Vec<_> =
        [initial].into_iter().chain((0..4).map(|step| train(&mut first, step).0)).collect();
    first.save_state(&file(&folder)).unwrap();
    let mut second = learner(config(Aggregation::TokenMean), 4);
    let policies = second.load_state(&file(&folder)).unwrap();
    assert_eq!(policies, published[2..]);
    for policy in &policies {
        let mut engine = Decoder::init(model(), 0, Device::Cpu).unwrap();
        second.store.apply(policy, &mut engine).unwrap();
        assert_eq!(engine.snapshot().unwrap().digest(), policy.digest);
    }
    train(&mut second, 4);
    let names: Vec<_> = second.store.needed().iter().map(|(version, _)| version.0).collect();
    assert_eq!(names, [3, 4, 5]);
}

#[test]
fn the_state_of_another_trainer_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder);
    let check = |saved: TrainerConfig, mut trainer: TorchTrainer, expect: &str| {
        let mut other = learner(saved, 2);
        train(&mut other, 0);
        other.save_state(&path).unwrap();
        let before = trainer.decoder.snapshot().unwrap().digest();
        let message = trainer.load_state(&path).unwrap_err().to_string();
        assert_eq!(message, format!("{}: {expect}", path.display()));
        assert_eq!(trainer.decoder.snapshot().unwrap().digest(), before);
    };
    let plain = || config(Aggregation::TokenMean);
    let wide = ModelConfig { intermediate_size: 25, ..model() };
    let wide = Decoder::init(wide, 7, Device::Cpu).unwrap();
    let wide = TorchTrainer::new(wide, plain(), WeightStore::new(1)).unwrap();
    check(
        plain(),
        learner(with_critic(), 2),
        "29 tensor(s) missing: `critic.model.embed_tokens.weight`, \
        `critic.model.layers.0.input_layernorm.weight`, `critic.model.layers.0.mlp.down_proj.weight`, \
        `critic.model.layers.0.mlp.gate_proj.weight`, `critic.model.layers.0.mlp.up_proj.weight`, \
        `critic.model.layers.0.post_attention_layernorm.weight`, `critic.model.layers.0.self_attn.k_norm.weight`, \
        `critic.model.layers.0.self_attn.k_proj.weight`, ...",
    );
    check(
        plain(),
        wide,
        "tensor `policy.model.layers.0.mlp.down_proj.weight`: expected shape [16, 25], found [16, 24]",
    );
    let missing = learner(plain(), 1).load_state(&folder.path().join("none")).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read "), "{missing}");
}

#[test]
fn a_state_with_a_number_of_another_type_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (path, own) = (file(&folder), folder.path().join("own.safetensors"));
    let mut other = learner(with_critic(), 2);
    train(&mut other, 0);
    other.save_state(&path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let find = |text: &[u8], word: &str| {
        text.windows(word.len()).position(|part| part == word.as_bytes()).unwrap()
    };
    for number in ["version", "critic.optimizer.updates"] {
        let mut damaged = whole.clone();
        let entry = find(&damaged, &format!("\"{number}\":{{"));
        let dtype = entry + find(&damaged[entry..], "I64");
        damaged[dtype..][..3].copy_from_slice(b"F64");
        std::fs::write(&path, damaged).unwrap();
        let mut trainer = learner(with_critic(), 2);
        trainer.save_state(&own).unwrap();
        let before = std::fs::read(&own).unwrap();
        let error = trainer.load_state(&path).unwrap_err().to_string();
        let expected = format!("{}: tensor `{number}`: expected I64, found F64", path.display());
        assert_eq!(error, expected);
        trainer.save_state(&own).unwrap();
        assert_eq!(std::fs::read(&own).unwrap(), before, "{number}");
    }
}

#[test]
fn a_trainer_passes_the_testkit() {
    let responses = [
        example(&[2, 3], &[4, 5, 1], 0.5),
        example(&[2, 3], &[6, 7, 8, 1], -1.0),
        example(&[8, 9], &[3, 3, 1], 2.0),
        example(&[8, 9], &[5, 1], 0.25),
    ];
    fn group(prompt: u64, members: &[Response]) -> Vec<Sequence<'_>> {
        let sequences = (0..).zip(members).map(|(sample, response)| Sequence {
            prompt: PromptId(prompt),
            sample,
            ..response.sequence()
        });
        sequences.collect()
    }
    let (first, second) = responses.split_at(2);
    let groups = [group(0, first), group(1, second)];
    for deterministic in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let world = TrainerWorld {
            groups: &groups,
            tolerance: if deterministic { 0.0 } else { 1e-4 },
            has_digests: true,
            is_reproducible: true,
            folder: folder.path(),
        };
        let config = TrainerConfig { deterministic, ..config(Aggregation::TokenMean) };
        check_trainer(|| learner(config.clone(), 2), &world).unwrap();
    }
}
