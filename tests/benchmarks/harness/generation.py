"""SmolLM2 and four ways to serve requests with it, in this process, on one torch thread.

    one_by_one     `generate`, a request after the other (a sample of them: a rate)
    static         `generate` of all at once, padded on the left, until the longest is done
    transformers   its own continuous batching, over a cache with room for all
    samovar        our engine

All requests are there at once, greedy, and end by length alone. Every way has a model object of its own over the same
mapped weights. The clock is this process's CPU time: nobody else is in it, nothing waits, and what else runs on a
shared machine counts for little.
"""

from __future__ import annotations

import importlib.util
import math
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from harness.report import percentile
from harness.running import EXAMPLES
from samovar.torch import load_pretrained
from samovar_instance.engines.generation import contract
from samovar_instance.engines.generation.engine import Engine, Options
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.sampling_state import SamplingState

PAGE_TOKENS = 32  # of transformers' cache; its default, 256, would hold a prompt or two
STEP_TOKENS = 256  # of transformers' steps, as ours
clock_s = time.process_time


@dataclass(frozen=True)
class Request:
    """A prompt, and how many tokens are generated."""

    prompt: list[int]
    num_tokens: int


@dataclass
class Served:
    """What serving came to. tokens: of each request; seconds: of the whole; times_s: of each token of each request, if
    the way tells; num_cached: tokens of prompts that were found in the cache."""

    tokens: list[list[int]]
    seconds: float
    times_s: list[list[float]] = field(default_factory=list)
    num_cached: int = 0

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return sum(map(len, self.tokens)) / self.seconds

    @property
    def first_s(self) -> list[float]:
        """Seconds to each request's first token."""
        return [times[0] for times in self.times_s]

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between tokens of the same request."""
        return [after - before for times in self.times_s for before, after in pairwise(times)]

    def milliseconds(self, values_s: Sequence[float], percent: float) -> float | None:
        """Return a percentile of times, None without any."""
        return percentile(values_s, percent) * 1000 if values_s else None


def smol() -> Path:
    """Return the folder of SmolLM2-135M-Instruct; made once on a machine."""
    spec = importlib.util.spec_from_file_location("prepare_smol", EXAMPLES / "smol" / "prepare.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Path(module.smol())


def load() -> Any:
    """Return a model object; the weights are mapped."""
    torch.set_num_threads(1)
    model = load_pretrained(smol(), AutoModelForCausalLM)
    model.generation_config = GenerationConfig(pad_token_id=0, do_sample=False)
    return model


def mixed(num: int, prompts: tuple[int, int], answers: tuple[int, int], seed: int = 1) -> list[Request]:
    """Return requests of lengths between two each, as many short as long ones by logarithm, always the same."""
    chance = random.Random(seed)

    def length(bounds: tuple[int, int]) -> int:
        return round(math.exp(chance.uniform(math.log(bounds[0]), math.log(bounds[1]))))

    return [Request([chance.randrange(3, 49_000) for _ in range(length(prompts))], length(answers)) for _ in range(num)]


@torch.inference_mode()
def one_by_one(model: Any, requests: Sequence[Request]) -> Served:
    """Serve a request after the other."""
    started_s = clock_s()
    tokens = [_generate(model, [request.prompt], request.num_tokens)[0] for request in requests]
    return Served(tokens, clock_s() - started_s)


@torch.inference_mode()
def static(model: Any, requests: Sequence[Request]) -> Served:
    """Serve all as one batch; a request's tokens count up to its own number."""
    started_s = clock_s()
    rows = _generate(model, [request.prompt for request in requests], max(r.num_tokens for r in requests))
    tokens = [row[: request.num_tokens] for row, request in zip(rows, requests, strict=True)]
    return Served(tokens, clock_s() - started_s)


def transformers(model: Any, requests: Sequence[Request]) -> Served:
    """Serve all by transformers' continuous batching; starting and stopping it does not count."""
    num_pages = sum(-(-(len(r.prompt) + r.num_tokens) // PAGE_TOKENS) for r in requests) + 8
    config = ContinuousBatchingConfig(num_blocks=num_pages, max_batch_tokens=STEP_TOKENS, page_size=PAGE_TOKENS)
    manager = model.init_continuous_batching(
        generation_config=model.generation_config, continuous_batching_config=config
    )
    manager.start()
    try:
        _all_of(manager, [Request([5], 2)])
        started_s = clock_s()
        tokens = _all_of(manager, requests)
        return Served(tokens, clock_s() - started_s)
    finally:
        manager.stop(block=True)


def _all_of(manager: Any, requests: Sequence[Request]) -> list[list[int]]:
    ids = [manager.add_request(request.prompt, max_new_tokens=request.num_tokens) for request in requests]
    tokens: dict[str, list[int]] = {}
    while len(tokens) < len(ids):
        result = manager.get_result(timeout=600)  # on a busy machine, CPU seconds are many
        assert result is not None and result.error is None, result
        if result.is_finished():
            tokens[result.request_id] = list(result.generated_tokens)
    return [tokens[request_id] for request_id in ids]


@dataclass
class Heard:
    """A listener that notes when it hears."""

    times_s: list[float] = field(default_factory=list)
    is_over: bool = False

    def token(self, token: contract.Token) -> None:
        """Note the time."""
        self.times_s.append(clock_s())

    def ended(self, reason: contract.EndReason, error: Exception | None) -> None:
        """Note the end. Raises: whatever ended it."""
        self.is_over = True
        if error is not None:
            raise error


class Samovar:
    """Our engine, with the sampler that it has in an instance; nothing is kept between takes but the model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.wastes: list[float] = []

    def engine(self, **options: Any) -> Engine:
        """Return a new engine with an empty cache."""
        return Engine(self._model, TokenSampler(), Options(**options))

    def serve(self, requests: Sequence[Request], **options: Any) -> Served:
        """Serve all; each step's share of reserved slots of the cache that hold nothing is noted in `wastes`."""
        engine = self.engine(**options)
        started_s = clock_s()
        sequences = [sequence(request) for request in requests]
        for each in sequences:
            engine.add(each)
        used = held = 0
        while engine.has_work:
            engine.step()
            stats = engine.stats()
            used += stats.num_used_tokens
            held += stats.num_held_tokens
        seconds = clock_s() - started_s
        self.wastes.append(1 - used / held)
        times_s = [[at - started_s for at in heard(each).times_s] for each in sequences]
        num_cached = engine.stats().num_cached_tokens
        return Served([each.generated for each in sequences], seconds, times_s, num_cached)


def sequence(request: Request) -> contract.Sequence:
    """Return a greedy sequence of a request."""
    state = SamplingState(temperature=0.0)
    return contract.Sequence(request.prompt, request.num_tokens, state, Heard())


def heard(each: contract.Sequence) -> Heard:
    """Return a sequence's listener."""
    assert isinstance(each.listener, Heard)
    return each.listener


def median_rate(takes: Sequence[Served]) -> float:
    """Return the median of the takes' rates."""
    return statistics.median(take.rate for take in takes)


def _generate(model: Any, prompts: Sequence[list[int]], num_tokens: int) -> list[list[int]]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(ids, attention_mask=mask, max_new_tokens=num_tokens)
    rows: list[list[int]] = out[:, longest:].tolist()
    return rows
