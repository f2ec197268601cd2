#!/usr/bin/env python3
"""Compares RollPacker with its peers on this machine in one run: decode throughput with transformers' `generate`, and a whole GRPO step
with TRL's.

    python3 benches/peers.py [--work FOLDER] [--runs 3] [--steps 4]

Needs torch, transformers, trl, datasets and tokenizers in this python, and `target/release/rollpacker` and the `decode` bench built
(`cargo build --release && cargo bench -p rollpacker-torch --bench decode --no-run`). Prints a Markdown table.

The model is Qwen2 with 3.3 million random weights and one token per byte. Decoding: 64 prompts of 32 tokens, 256 new tokens each, sampled
at temperature 1. A GRPO step: 16 prompts x 8 responses whose lengths are log-normal (median 40, sigma 1, at most 256); both systems are
forced to the same lengths, and both use all cores: TRL two threads in torch, RollPacker two engine instances and a concurrent trainer.
"""
import argparse
import glob
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
PROMPT, NEW, PROMPTS, RESPONSES, EOS, PAD = 32, 256, 16, 8, 258, 256
ROOT = Path(__file__).resolve().parent.parent


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rollpacker-peers")
    parser.add_argument("--runs", type=int, default=3, help="decode runs after a warm-up run; the median is reported")
    parser.add_argument("--steps", type=int, default=4, help="GRPO steps after a warm-up step; the median is reported")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    return parser.parse_args()


def questions(steps):
    """Yields prompts of exactly 32 bytes with their answers."""
    for index in range(PROMPTS * (steps + 2)):
        yield f"Q: {index % 97} + {index % 89} = ? Answer: ".rjust(PROMPT)[:PROMPT], str(index % 97 + index % 89)


def make_model(folder):
    import torch
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|pad|>", "<|bos|>", "<|eos|>")])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|eos|>", padding_side="left")
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=True, pad_token_id=PAD, bos_token_id=257, eos_token_id=EOS,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return model, fast


def write_prompts(folder, steps):
    path = folder / "prompts.jsonl"
    rows = ({"messages": [{"role": "user", "content": text}], "ground_truth": answer, "data_source": "peers"} for text, answer in questions(steps))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lengths(step):
    import torch

    drawn = 40 * torch.randn(PROMPTS * RESPONSES, generator=torch.Generator().manual_seed(step)).exp()
    return drawn.round().clamp(1, NEW).long()


def decode_transformers(model, runs):
    import torch

    ids = torch.randint(0, 256, (64, PROMPT), generator=torch.Generator().manual_seed(0))
    rates = []
    for _ in range(runs + 1):
        start = time.perf_counter()
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=0, pad_token_id=PAD
        )
        assert out.shape[1] == PROMPT + NEW
        rates.append(64 * NEW / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def decode_rollpacker(folder, runs):
    bench = max(glob.glob(str(ROOT / "target/release/deps/decode-*[!.d]")), key=os.path.getmtime)
    out = subprocess.run([bench, str(folder), f"runs={runs}", "running=32"], check=True, capture_output=True, text=True).stdout
    rates = [float(line.split()[5]) for line in out.splitlines() if line.startswith("run ")]
    return statistics.median(rates)


def step_trl(model, tokenizer, steps, threads):
    import torch
    from datasets import Dataset
    from transformers import LogitsProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Force(LogitsProcessor):
        """Ends response i with exactly wanted[i] tokens."""

        def __init__(self, wanted):
            self.wanted, self.done = wanted, 0

        def __call__(self, ids, scores):
            self.done += 1
            scores[:, [EOS, PAD]] = -float("inf")
            ends = self.wanted == self.done
            scores[ends] = -float("inf")
            scores[ends, EOS] = 0.0
            return scores

    class Watch(TrainerCallback):
        def __init__(self):
            self.times = []

        def on_step_begin(self, *_, **__):
            self.start = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.times.append(time.perf_counter() - self.start)

    generate, calls, watch = model.generate, iter(range(10**6)), Watch()
    model.generate = lambda *args, **kwargs: generate(*args, logits_processor=[Force(lengths(next(calls)))], **kwargs)
    rows = [{"prompt": text, "answer": answer} for text, answer in questions(steps)]
    batch = PROMPTS * RESPONSES
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(), use_cpu=True, bf16=False, per_device_train_batch_size=32, gradient_accumulation_steps=batch // 32,
        num_generations=RESPONSES, max_completion_length=NEW, temperature=1.0, top_p=1.0, top_k=0, max_steps=steps + 1, learning_rate=1e-5,
        lr_scheduler_type="constant", loss_type="dapo", beta=0.0, save_strategy="no", logging_strategy="no", report_to=[],
        gradient_checkpointing=False, disable_tqdm=True, weight_decay=0.0,
    )
    torch.set_num_threads(threads)
    reward = lambda completions, answer, **_: [float(right in text) for text, right in zip(completions, answer)]
    GRPOTrainer(
        model=model, args=config, reward_funcs=reward, train_dataset=Dataset.from_list(rows), processing_class=tokenizer, callbacks=[watch]
    ).train()
    return statistics.median(watch.times[1:])


def step_rollpacker(folder, prompts, steps):
    replayed = folder / "lengths.json"
    replayed.write_text(json.dumps([lengths(step).tolist() for step in range(steps + 1)]))
    settings = [
        f"model.path={folder}", f"data.train_files={prompts}", "data.val_files=[]", f"rollout.replay_lengths={replayed}",
        f"trainer.total_training_steps={steps + 1}", f"data.max_response_length={NEW}", f"data.max_prompt_length={PROMPT}",
        "data.shuffle=false", 'reward.routes={"*"="math_flexible"}', "actor.lr=1e-5", "actor.lr_warmup_steps=0", "actor.weight_decay=0",
        "actor.ppo_max_token_len=2048", "trainer.write_rollouts=false",
    ]
    out = folder / "run"
    program = ROOT / "target/release/rollpacker"
    subprocess.run(
        [program, "train", "--config", ROOT / "configs/chain_fused.toml", "--out", out, *settings], check=True, stdout=subprocess.DEVNULL
    )
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    data = [step["data"] for step in steps if step["round"] != "validation"][1:]
    median = lambda name: statistics.median(step[name] for step in data)
    return {name: median(f"timing_s/{name}") for name in ("step", "gen", "gradient", "update")}


def main():
    arguments = options()
    arguments.work.mkdir(parents=True, exist_ok=True)
    import torch

    torch.set_num_threads(arguments.threads)
    model, tokenizer = make_model(arguments.work)
    prompts = write_prompts(arguments.work, arguments.steps)
    ours = decode_rollpacker(arguments.work, arguments.runs)
    step = step_rollpacker(arguments.work, prompts, arguments.steps)
    theirs = decode_transformers(model, arguments.runs)
    trl = step_trl(model, tokenizer, arguments.steps, arguments.threads)
    again = decode_rollpacker(arguments.work, arguments.runs)
    print(f"| on {arguments.threads} cores | peer | RollPacker | ratio |\n|---|---|---|---|")
    print(f"| decode, tokens/s | {theirs:.0f} (transformers) | {ours:.0f}, again {again:.0f} | {min(ours, again) / theirs:.2f} |")
    print(f"| GRPO step, s | {trl:.2f} (TRL) | {step['step']:.2f} | {trl / step['step']:.2f} |")
    print(f"\nOf the step: rollout {step['gen']:.2f} s, concurrent gradients {step['gradient']:.2f} s, update {step['update']:.3f} s.", file=sys.stderr)


if __name__ == "__main__":
    main()
