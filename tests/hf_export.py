#!/usr/bin/env python3
"""Checks that transformers can use the model folder that a run exports: the same prompt tokens, greedy answers and texts.

    python3 tests/hf_export.py --model runs/chain/model [--config configs/chain.toml] [--prompts 64] [--binary target/release/rollpacker]

Needs torch, transformers and pyarrow in this python. One step of the recipe is run on the exported model, drawing the likeliest token
(`rollout.top_k = 1`), and its rollouts are compared with what transformers makes of the same messages. Exits with 1 if anything differs.
"""
import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parent.parent


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder that a run wrote")
    parser.add_argument("--config", type=Path, default=ROOT / "configs/chain.toml", help="the recipe of the run")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--binary", type=Path, default=ROOT / "target/release/rollpacker")
    return parser.parse_args()


def rollouts(args, folder):
    """Returns the responses of one greedy step, as rows."""
    import pyarrow.parquet

    settings = {
        "model.path": args.model.resolve(), "rollout.top_k": 1, "rollout.n": 2, "schedule.name": "sync",
        "data.train_batch_size": args.prompts, "data.val_max_samples": 1, "trainer.total_training_steps": 1,
        "trainer.write_rollouts": "true", "trainer.device": "cpu",
    }
    command = [args.binary, "train", "--config", args.config, "--out", folder / "run"]
    command += [f"{key}={value}" for key, value in settings.items()]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    rows = pyarrow.parquet.read_table(folder / "run/rollouts/step_00001.parquet").to_pylist()
    return [row for row in rows if row["sample"] == 0]


def prompt_ids(tokenizer, messages):
    """Returns the token ids of a prompt: with the chat template, or of the plain contents if there is none."""
    if tokenizer.chat_template:
        return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
    return tokenizer("".join(message["content"] for message in messages)).input_ids


def differences(rows, model, tokenizer):
    """Yields the differences from transformers, by prompt."""
    import json

    import torch

    for row in rows:
        prompt = prompt_ids(tokenizer, json.loads(row["messages"]))
        if prompt != row["prompt_ids"]:
            yield row["row"], "prompt", row["prompt_ids"], prompt
            continue
        found = row["response_ids"]
        with torch.no_grad():
            out = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=len(found))
        answer = out[0, len(prompt):].tolist()
        if answer != found:
            yield row["row"], "answer", found, answer
        text = tokenizer.decode(answer, skip_special_tokens=True)
        if text != row["response_text"]:
            yield row["row"], "text", row["response_text"], text


def main():
    from transformers import AutoModelForCausalLM, AutoTokenizer

    args = options()
    with tempfile.TemporaryDirectory() as folder:
        rows = rollouts(args, Path(folder))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="float32").eval()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    found = list(differences(rows, model, tokenizer))
    for row, what, ours, theirs in found:
        print(f"row {row}: {what}\n  rollpacker   {ours}\n  transformers {theirs}")
    tokens = sum(len(row["response_ids"]) for row in rows)
    print(f"{len(rows)} prompts, {tokens} tokens: {len(found)} differences")
    sys.exit(bool(found) or not rows)


if __name__ == "__main__":
    main()
