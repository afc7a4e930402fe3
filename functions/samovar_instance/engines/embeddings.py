"""`Embedder`: texts to vectors, with an encoder in a folder as transformers or sentence-transformers save it.

    texts ─► tokens, no more than the model reads ─► encoder ─► pooling ─► dense layers ─► length 1

How it is pooled and whether vectors have length 1 is read from the files of sentence-transformers: modules.json,
sentence_bert_config.json, 1_Pooling/config.json, 2_Dense/. Without them: the mean over the tokens, of length 1. The
result equals theirs. Tokens are counted before a batch is made, so that texts of similar lengths share one.
This module does not know OpenAI's API or how batches are filled. It imports torch when a model is loaded.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samovar.errors import DeployRefused
from samovar.tasks.embedding import Embedding
from samovar.tasks.generation import CONTEXT_EXCEEDED, refusal
from samovar_instance.engines.pooling import POOLINGS, Pooling, pool

if TYPE_CHECKING:
    import torch

MAX_CHARS_PER_TOKEN = 64  # a text of more than this for each token that is read would only hold up its batch mates
MAX_WAITING = 1024  # texts whose tokens are kept from when they are counted to when they are embedded
DEFAULT_MAX_TOKENS = 512
_UNSAID_MAX_TOKENS = 1_000_000  # tokenizers without a limit say a number of thirty digits


class Embedder:
    """One vector per text; `@sv.function(task="embeddings", batch=…)` on a subclass makes it an endpoint.

    max_tokens: longest text, in tokens. None = what the model's files say. truncates: a longer one is cut off there;
    else it is refused, as is always one of more than MAX_CHARS_PER_TOKEN times as many characters.
    pooling, normalize: None = what the files say, else the mean, of length 1. prefix: put before each text.
    """

    max_tokens: int | None = None
    truncates: bool = False
    pooling: Pooling | None = None
    normalize: bool | None = None
    prefix: str = ""

    def load(self, weights: Path, device: str) -> None:
        """Load encoder, tokenizer and what comes after them from `weights`."""
        from samovar.tokenizer import load_tokenizer
        from samovar.torch import load_pretrained

        self.device = device
        recipe = read_recipe(weights)
        encoder = weights / recipe.encoder
        self.net = load_pretrained(encoder, device=device, may_lack=("pooler.",))  # the tokens are pooled, not by it
        self.tokenizer = load_tokenizer(encoder)
        self.tokenizer.no_padding()
        self._max_tokens = self.max_tokens or recipe.max_tokens
        if self.truncates:
            self.tokenizer.enable_truncation(self._max_tokens)
        else:
            self.tokenizer.no_truncation()
        self._pooling = self.pooling or recipe.pooling
        self._normalize = recipe.normalize if self.normalize is None else self.normalize
        self._lower = recipe.lower
        self._dense = [_Dense(weights / place, device) for place in recipe.dense]
        self._ids = lru_cache(MAX_WAITING)(self._tokenize)

    def num_tokens(self, text: str) -> int:
        """Return how many tokens a text comes to, special ones included.

        Raises: RequestError if it is longer than what the model reads; where that is cut off, if it is far longer.
        """
        return len(self._tokens(text))

    def __call__(self, text: list[str]) -> list[Embedding]:
        """Embed a batch in one forward. A text that comes to no token at all is a vector of zeros.

        Raises: RequestError for a text that `num_tokens` refuses.
        """
        import torch

        rows = [self._tokens(one) for one in text]
        with torch.inference_mode():
            vectors = self._embed(rows)
        return [
            {"embedding": vector, "num_tokens": len(row)} for vector, row in zip(vectors.tolist(), rows, strict=True)
        ]

    def _tokens(self, text: str) -> list[int]:
        most = MAX_CHARS_PER_TOKEN * self._max_tokens
        if len(text) > most:
            detail = (
                f"text has {len(text)} characters, at most {most} are taken: the model reads {self._max_tokens} tokens"
            )
            raise refusal("text", detail, reason=CONTEXT_EXCEEDED)
        return self._ids(text)

    def _tokenize(self, text: str) -> list[int]:
        text = self.prefix + text
        ids: list[int] = self.tokenizer.encode(text.lower() if self._lower else text).ids
        if len(ids) > self._max_tokens:
            detail = f"text has {len(ids)} tokens, the model reads {self._max_tokens}: send it in pieces"
            raise refusal("text", detail, reason=CONTEXT_EXCEEDED)
        return ids

    def _embed(self, rows: list[list[int]]) -> torch.Tensor:
        """Return float32 [texts, dimensions]."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        padded = pad_sequence([torch.tensor(row or [0]) for row in rows], batch_first=True)
        mask = pad_sequence([torch.ones(max(1, len(row)), dtype=torch.long) for row in rows], batch_first=True)
        ids, mask = padded.to(self.device), mask.to(self.device)
        hidden = self.net(input_ids=ids, attention_mask=mask).last_hidden_state
        vectors = pool(hidden, mask, self._pooling)
        for dense in self._dense:
            vectors = dense(vectors)
        if self._normalize:
            vectors = torch.nn.functional.normalize(vectors, dim=1)
        return vectors.float() * torch.tensor([[float(bool(row))] for row in rows], device=self.device)


class Recipe:
    """What the files of sentence-transformers say. encoder, dense: folders. max_tokens: of one text, >= 1."""

    def __init__(self) -> None:
        self.encoder = ""
        self.dense: list[str] = []
        self.pooling: Pooling = "mean"
        self.normalize = True
        self.lower = False
        self.max_tokens = DEFAULT_MAX_TOKENS


def read_recipe(weights: Path) -> Recipe:
    """Return how the model in `weights` makes vectors. Raises: DeployRefused for what this engine cannot do."""
    recipe = Recipe()
    modules = _read(weights / "modules.json") or []
    if modules:
        recipe.normalize = False
    for module in modules:
        kind, place = str(module["type"]).rpartition(".")[2], str(module["path"]).strip("/")
        if kind == "Transformer":
            recipe.encoder = place
        elif kind == "Pooling":
            recipe.pooling = _pooling(_read(weights / place / "config.json") or {})
        elif kind == "Dense":
            recipe.dense.append(place)
        elif kind == "Normalize":
            recipe.normalize = True
        else:
            raise DeployRefused(f"modules.json has a module {kind}, which this engine does not know")
    encoder = weights / recipe.encoder
    of_sentences = _read(encoder / "sentence_bert_config.json") or {}
    recipe.lower = bool(of_sentences.get("do_lower_case"))
    recipe.max_tokens = _max_tokens(of_sentences, _read(encoder / "tokenizer_config.json") or {}, encoder)
    return recipe


def _pooling(config: dict[str, Any]) -> Pooling:
    """Return the one way of pooling that is on. Raises: DeployRefused if it is several, or another one."""
    said = config.get("pooling_mode")
    on = (
        [said] if isinstance(said, str) else [key for key, value in config.items() if key in POOLINGS and value is True]
    )
    known: list[Pooling] = [POOLINGS[key] for key in on if key in POOLINGS]
    if len(on) != 1 or len(known) != 1:
        raise DeployRefused(f"this engine pools in one of the ways {', '.join(sorted(set(POOLINGS.values())))}")
    return known[0]


def _max_tokens(of_sentences: dict[str, Any], of_tokenizer: dict[str, Any], encoder: Path) -> int:
    """Return the first limit that the files name, within the positions that the model has."""
    positions = (_read(encoder / "config.json") or {}).get("max_position_embeddings")
    for said in (of_sentences.get("max_seq_length"), of_tokenizer.get("model_max_length"), positions):
        if isinstance(said, int | float) and 1 <= said < _UNSAID_MAX_TOKENS:
            return int(min(said, positions)) if isinstance(positions, int) and positions > 0 else int(said)
    return DEFAULT_MAX_TOKENS


def _read(file: Path) -> Any:
    return json.loads(file.read_bytes()) if file.is_file() else None


class _Dense:
    """A layer after the pooling, of a folder like 2_Dense."""

    def __init__(self, folder: Path, device: str) -> None:
        import torch
        from safetensors.torch import load_file

        config = _read(folder / "config.json") or {}
        name = str(config.get("activation_function", "")).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            raise DeployRefused(
                f"{folder.name} has the activation {name!r}; this engine knows {', '.join(_ACTIVATIONS)}"
            )
        weights = load_file(folder / "model.safetensors", device)
        self._activation = getattr(torch.nn, name)()
        self._weight, self._bias = weights["linear.weight"], weights.get("linear.bias")

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        import torch

        made: torch.Tensor = self._activation(torch.nn.functional.linear(vectors, self._weight, self._bias))
        return made


_ACTIVATIONS: tuple[Literal["Tanh", "Identity", "ReLU", "GELU"], ...] = ("Tanh", "Identity", "ReLU", "GELU")
