"""The engine for models that ours cannot run over pages: each sequence by itself, with the cache that its model makes.

State-space layers, linear attention, ALiBi, code of the model's own: whatever transformers can continue token by token.
Sequences take turns, a token each per step; there is no batch, no shared prefix and no limit of memory but that of
`max_running`. Everything else is as with the other engine: sampling, stops, cancelling, deadlines.
transformers' own continuous batching does not run these layers either, and knows no sampling per sequence.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import Tensor

from samovar_instance.engines.generation.contract import GenerationEngine, Sampler, Sequence, Token
from samovar_instance.engines.generation.engine import Engine, Options, Stats, context_of
from samovar_instance.engines.generation.model import Unsupported
from samovar_instance.engines.generation.register import Register
from samovar_instance.engines.generation.scheduler import Run
from samovar_instance.engines.generation.speculation import Proposer

log = logging.getLogger(__name__)

KEPT = ("cache", "past_key_values", "cache_params", "state")  # what models call what they want back, newest first


def engine_for(
    model: Any, sampler: Sampler, options: Options | None = None, proposer: Proposer | None = None
) -> GenerationEngine:
    """Return our engine for a causal language model, or the plain one where ours cannot run it; the log says why."""
    try:
        return Engine(model, sampler, options, proposer)
    except Unsupported as reason:
        log.warning("%s runs without continuous batching: %s", type(model).__name__, reason)
        return PlainEngine(model, sampler, options)


class PlainEngine:
    """One sequence after the other, a token each per step; see `contract.GenerationEngine`."""

    def __init__(self, model: Any, sampler: Sampler, options: Options | None = None) -> None:
        self._model = model
        self._sampler = sampler
        self._max_running = (options or Options()).limits.max_running
        num_vocabulary = model.get_input_embeddings().num_embeddings
        self._register = Register(num_vocabulary, context_of(model), self._leave)
        self._waiting: list[Run] = []
        self._kept: dict[Run, dict[str, Any]] = {}  # of those that run

    @property
    def max_context_tokens(self) -> int:
        """Prompt and generated tokens of one sequence together, by the model."""
        return self._register.max_context_tokens

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return len(self._register) > 0

    def stats(self) -> Stats:
        """Return what the engine is doing now; it has no blocks."""
        return Stats(len(self._kept), len(self._waiting), 0, 0, 0, 0, 0, 0, 0, 0)

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in. Raises: RequestError if it can never fit or has a token the model does not know."""
        self._waiting.append(self._register.add(sequence))

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before the next step. Idempotent; of one that ended, nothing."""
        self._register.cancel(sequence)

    def step(self) -> None:
        """Give each sequence that runs its next token. What goes wrong with one sequence ends that one."""
        self._register.end_unwanted(time.monotonic())
        while self._waiting and len(self._kept) < self._max_running:
            self._kept[self._waiting.pop(0)] = {}
        for run in [*self._kept]:
            if run in self._register:
                self._register.tell(run, self._next(run))

    def _next(self, run: Run) -> Token | Exception:
        try:
            (token,) = self._sampler(self._forward(run), [run.sequence.sampling])
        except Exception as error:  # noqa: BLE001 (whatever goes wrong is this sequence's)
            return error
        return token

    @torch.inference_mode()
    def _forward(self, run: Run) -> Tensor:
        """Return the logits after the run's tokens, float32 [1, vocabulary]."""
        kept = self._kept[run]
        ids = torch.tensor([run.tokens[-1:] if kept else run.tokens], device=self._model.device)
        out = self._model(input_ids=ids, use_cache=True, **kept)
        name = next((name for name in KEPT if out.get(name) is not None), None)
        self._kept[run] = {name: out[name]} if name else {}
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def _leave(self, run: Run) -> None:
        if self._kept.pop(run, None) is None:
            self._waiting.remove(run)
