"""Loads a saved model folder in transformers and compares its logits with those of this project.

usage: reload_in_transformers.py FOLDER LOGITS IDS...

LOGITS holds float32 values, little-endian, [tokens, vocab]. If the folder has a tokenizer, encoding the
decoded IDS must also return them. Prints `skipped: ...` if torch or transformers is not installed.
"""

import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
except ImportError as absent:
    print(f"skipped: {absent}")
    sys.exit(0)

TOLERANCE = 2e-5


def main(folder, logits_path, *ids):
    ids = [int(id) for id in ids]
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        assert not report[kind], f"{kind}: {report[kind]}"
    with torch.no_grad():
        found = model(torch.tensor([ids])).logits[0]
    with open(logits_path, "rb") as file:
        expected = torch.frombuffer(bytearray(file.read()), dtype=torch.float32).view(found.shape)
    difference = (found - expected).abs().max().item()
    assert difference <= TOLERANCE, f"logits differ by {difference}"
    check_tokenizer(folder, ids)
    print(f"{type(model).__name__}: logits within {difference:.1e}")


def check_tokenizer(folder, ids):
    if not os.path.exists(os.path.join(folder, "tokenizer.json")):
        return
    # AutoTokenizer would replace our pre-tokenizer by that of the model's family.
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    text = tokenizer.decode(ids)
    assert tokenizer(text)["input_ids"] == ids, f"{text!r} became {tokenizer(text)['input_ids']}"
    assert tokenizer.eos_token_id is not None and tokenizer.pad_token_id is not None


if __name__ == "__main__":
    main(*sys.argv[1:])
