#!/usr/bin/env python3
"""Compares RollPacker with its peers on this machine in one run: decoding with `generate` of transformers and with vLLM for the CPU, and a
whole GRPO step with TRL.

    python3 benches/peers.py [--work FOLDER] [--models tiny small] [--batches 1 8 64 128] [--parts decode step] [--runs 3] [--steps 4]

Needs torch, transformers, trl, datasets and tokenizers in this python, `target/release/rollpacker` and the `decode` bench built
(`cargo build --release && cargo bench -p rollpacker-torch --bench decode --no-run`), and vLLM in `.vllm` (`make vllm`) or in the python
that `--vllm` names; `--vllm none` leaves it out. Prints Markdown tables of medians with the range over the runs.

The models are Qwen2 with random weights and one token per byte: tiny has 3.3 million parameters, small 25 million. Decoding: prompts of 32
tokens, 256 new tokens each, sampled at temperature 1. Each program runs in its best layout: transformers in one process with all threads
or in one process per core, vLLM compiled with all threads, RollPacker in two instances with one thread each. A GRPO step: 16 prompts x 8
responses whose lengths are log-normal (median 40, sigma 1, at most 256). Both systems are forced to the same lengths and use all cores.

A run during which other processes took more than 0.15 of a core is repeated, and after five such runs the program ends without a table.
"""
import argparse
import glob
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
PROMPT, NEW, PROMPTS, RESPONSES, EOS, PAD = 32, 256, 16, 8, 258, 256
MODELS = {
    "tiny": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    "small": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 4},
}
ROOT = Path(__file__).resolve().parent.parent
FOREIGN, ATTEMPTS, LIMIT = 0.15, 5, 1800


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "rollpacker-peers")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 64, 128])
    parser.add_argument("--parts", nargs="+", choices=["decode", "step"], default=["decode", "step"])
    parser.add_argument("--runs", type=int, default=3, help="decode runs after a warm-up run")
    parser.add_argument("--steps", type=int, default=4, help="GRPO steps after a warm-up step")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--vllm", default=str(ROOT / ".vllm" / "bin" / "python"), help="the python that has vLLM, or none")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings of RollPacker's recipe in the step")
    parser.add_argument("--measure", help=argparse.SUPPRESS)  # one measurement in a process of its own, as JSON
    return parser.parse_args()


def processor_seconds(session):
    """Returns the processor seconds of all processes except this one and those of a session. Finished children count for their parents."""
    total = 0
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = Path(path).read_text().rpartition(")")[2].split()
        except OSError:  # the process has ended
            continue
        if int(fields[3]) != session and path.split("/")[2] != str(os.getpid()):
            total += sum(int(field) for field in fields[11:15])
    return total / os.sysconf("SC_CLK_TCK")


def questions(steps):
    """Yields prompts of exactly 32 bytes with their answers."""
    for index in range(PROMPTS * (steps + 2)):
        yield f"Q: {index % 97} + {index % 89} = ? Answer: ".rjust(PROMPT)[:PROMPT], str(index % 97 + index % 89)


def make_model(folder, sizes):
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
    Qwen2ForCausalLM(Qwen2Config(
        vocab_size=512, max_position_embeddings=2048, tie_word_embeddings=True, pad_token_id=PAD, bos_token_id=257, eos_token_id=EOS, **sizes
    )).save_pretrained(folder)
    fast.save_pretrained(folder)


def load(folder):
    from transformers import AutoTokenizer, Qwen2ForCausalLM

    return Qwen2ForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def lengths(step):
    import torch

    drawn = 40 * torch.randn(PROMPTS * RESPONSES, generator=torch.Generator().manual_seed(step)).exp()
    return drawn.round().clamp(1, NEW).long()


def decode_transformers(folder, batch, runs, threads, barrier=None):
    """Returns the seconds of each run after the warm-up. With a barrier, all processes start and end a run together."""
    import torch

    torch.set_num_threads(threads)
    model, _ = load(folder)
    ids = torch.randint(0, 256, (batch, PROMPT), generator=torch.Generator().manual_seed(0))
    seconds = []
    for _ in range(runs + 1):
        if barrier is not None:
            barrier.wait(LIMIT)
        start = time.perf_counter()
        out = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, min_new_tokens=NEW, do_sample=True, top_k=0, pad_token_id=PAD
        )
        if barrier is not None:
            barrier.wait(LIMIT)
        seconds.append(time.perf_counter() - start)
        assert out.shape[1] == PROMPT + NEW
    return seconds[1:]


def decode_transformers_shared(folder, batch, runs, threads):
    """Returns the seconds of each run with one process per thread, each with a part of the batch. A run ends when the last process ends."""
    context = multiprocessing.get_context("spawn")
    queue, barrier = context.Queue(), context.Barrier(threads)
    parts = [batch // threads + (index < batch % threads) for index in range(threads)]
    workers = [context.Process(target=_shared, args=(folder, part, runs, barrier, queue)) for part in parts]
    for worker in workers:
        worker.start()
    results = [queue.get(timeout=LIMIT) for _ in workers]
    for worker in workers:
        worker.join()
    return results[0]


def _shared(folder, batch, runs, barrier, queue):
    queue.put(decode_transformers(folder, batch, runs, 1, barrier))


def decode_vllm(folder, batch, runs, threads):
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
    }
    from vllm import LLM, SamplingParams

    llm = LLM(model=folder, dtype="float32", max_model_len=2048, max_num_seqs=batch, enforce_eager=False, enable_prefix_caching=False)
    sampling = SamplingParams(temperature=1.0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    seconds = []
    for run in range(runs + 1):
        prompts = [{"prompt_token_ids": [(7 * at + 13 * row + run) % 256 for at in range(PROMPT)]} for row in range(batch)]
        start = time.perf_counter()
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        seconds.append(time.perf_counter() - start)
        assert all(len(output.outputs[0].token_ids) == NEW for output in outputs)
    return seconds[1:]


def decode_rollpacker(folder, batch, runs, instances, threads):
    bench = max(glob.glob(str(ROOT / "target/release/deps/decode-*[!.d]")), key=os.path.getmtime)
    layout = [f"instances={instances}", f"threads={threads}"]
    out = subprocess.run([bench, folder, f"runs={runs}", f"batch={batch}", *layout], check=True, capture_output=True, text=True).stdout
    rates = [float(line.split()[5]) for line in out.splitlines() if line.startswith("run ")]
    return [batch * NEW / rate for rate in rates]


def step_trl(folder, steps, threads):
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
            self.seconds = []

        def on_step_begin(self, *_, **__):
            self.start = time.perf_counter()

        def on_step_end(self, *_, **__):
            self.seconds.append(time.perf_counter() - self.start)

    model, tokenizer = load(folder)
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
    return watch.seconds[1:]


def step_rollpacker(folder, steps, threads, more):
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        prompts, replayed, out = work / "prompts.jsonl", work / "lengths.json", work / "run"
        rows = ({"messages": [{"role": "user", "content": text}], "ground_truth": answer, "data_source": "peers"} for text, answer in questions(steps))
        prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
        replayed.write_text(json.dumps([lengths(step).tolist() for step in range(steps + 1)]))
        settings = [
            f"model.path={folder}", f"data.train_files={prompts}", "data.val_files=[]", f"rollout.replay_lengths={replayed}",
            f"rollout.instances={threads}", f"actor.threads={threads}", f"trainer.total_training_steps={steps + 1}",
            f"data.max_response_length={NEW}", f"data.max_prompt_length={PROMPT}", "data.shuffle=false",
            'reward.routes={"*"="math_flexible"}', "actor.lr=1e-5", "actor.lr_warmup_steps=0", "actor.weight_decay=0",
            "actor.ppo_max_token_len=2048", "trainer.write_rollouts=false", *more,
        ]
        program = ROOT / "target/release/rollpacker"
        subprocess.run([program, "train", "--config", ROOT / "configs/chain_fused.toml", "--out", out, *settings], check=True, stdout=sys.stderr)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return [line["data"]["timing_s/step"] for line in lines if line["round"] != "validation"][1:]


MEASURES = {
    f.__name__: f for f in (decode_transformers, decode_transformers_shared, decode_vllm, decode_rollpacker, step_trl, step_rollpacker)
}


def measure(what, *args, python=sys.executable, environment=None):
    """Runs a measurement in a session of its own, again if other processes took much of a core. Returns the seconds of its runs."""
    for attempt in range(ATTEMPTS):
        child = subprocess.Popen(
            [python, __file__, "--measure", json.dumps([what, *args])], stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {}),
            stderr=None if os.environ.get("VERBOSE") else subprocess.DEVNULL, start_new_session=True,
        )
        start, before = time.perf_counter(), processor_seconds(child.pid)
        try:
            out, _ = child.communicate(timeout=LIMIT)
        finally:
            child.kill()
        if child.returncode != 0:
            raise SystemExit(f"{what}{args} failed; run again with VERBOSE=1 to see its messages")
        foreign = (processor_seconds(child.pid) - before) / (time.perf_counter() - start)
        seconds = json.loads(out.splitlines()[-1])
        print(f"{what}{args}: {[round(one, 3) for one in seconds]} s, other processes {foreign:.2f} cores", file=sys.stderr)
        if foreign <= FOREIGN:
            return seconds
        time.sleep(10 * attempt)
    raise SystemExit(f"other processes took more than {FOREIGN} of a core during {ATTEMPTS} runs of {what}{args}: no table is reported")


def cell(values, digits=0):
    ordered = sorted(values)
    return f"{statistics.median(values):.{digits}f} ({ordered[0]:.{digits}f} to {ordered[-1]:.{digits}f})"


def best(layouts):
    return min(layouts, key=statistics.median)


def decode_rows(arguments, folder, name):
    runs, threads = arguments.runs, arguments.threads
    yield f"\n| decode {name}, tokens/s | transformers | vLLM | RollPacker | over transformers | over vLLM |\n|---|---|---|---|---|---|"
    for batch in arguments.batches:
        rates = lambda seconds: [batch * NEW / one for one in seconds]
        shared = batch >= threads > 1
        theirs = [measure("decode_transformers", folder, batch, runs, threads)]
        ours = [measure("decode_rollpacker", folder, batch, runs, 1, threads)]
        if shared:
            theirs.append(measure("decode_transformers_shared", folder, batch, runs, threads))
            ours.append(measure("decode_rollpacker", folder, batch, runs, threads, 1))
        elif threads > 1:
            ours.append(measure("decode_rollpacker", folder, batch, runs, 1, 1))
        theirs, ours, vllm = rates(best(theirs)), rates(best(ours)), None
        if arguments.vllm != "none":
            library = Path(arguments.vllm).parent.parent / "lib" / "libiomp5.so"
            environment = {"LD_PRELOAD": str(library)} if library.exists() else {}
            vllm = rates(measure("decode_vllm", folder, batch, runs, threads, python=arguments.vllm, environment=environment))
        ratio = lambda peer: f"{statistics.median(ours) / statistics.median(peer):.2f}" if peer else ""
        yield f"| batch {batch} | {cell(theirs)} | {cell(vllm) if vllm else ''} | {cell(ours)} | {ratio(theirs)} | {ratio(vllm)} |"


def step_row(arguments, folder, name):
    trl = measure("step_trl", folder, arguments.steps, arguments.threads)
    ours = measure("step_rollpacker", folder, arguments.steps, arguments.threads, arguments.set)
    return f"| {name} | {cell(trl, 2)} | {cell(ours, 2)} | {statistics.median(trl) / statistics.median(ours):.2f} |"


def main():
    arguments = options()
    if arguments.measure:
        what, *args = json.loads(arguments.measure)
        print(json.dumps(MEASURES[what](*args)))
        return
    folders = {name: str(arguments.work / name) for name in arguments.models}
    for name, folder in folders.items():
        make_model(folder, MODELS[name])
    rows = []
    if "decode" in arguments.parts:
        for name, folder in folders.items():
            rows.extend(decode_rows(arguments, folder, name))
    if "step" in arguments.parts:
        rows.append("\n| GRPO step, s | TRL | RollPacker | ratio |\n|---|---|---|---|")
        rows.extend(step_row(arguments, folder, name) for name, folder in folders.items())
    print("\n".join(rows))


if __name__ == "__main__":
    main()
