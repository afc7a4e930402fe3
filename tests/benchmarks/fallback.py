"""Models that cannot attend over pages: 32 requests in batches over their own caches, beside the same one by one.

Random weights of 40 to 90 million parameters, one core: a state-space model, a hybrid with convolutions, one with
ALiBi, and differential attention, the only one of these that transformers' own continuous batching runs (docs/
generation.md has the table). Prompts of 8 to 64 tokens, answers of 16 to 32, all at once. Times are CPU times of this
process; takes alternate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from harness import generation
from harness.generation import Request, Served, median_rate, mixed
from harness.report import Measured, Options, Table, interleave, run
from transformers import AutoModelForCausalLM, BloomConfig, DiffLlamaConfig, GenerationConfig, Lfm2Config, Mamba2Config

from samovar_instance.engines.generation import engine
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.stacked import StackedRunner

TARGETS = {
    "over_one_by_one": (">=", 1.5),
    "over_transformers_cb_fallback": (">=", 1.0),
}  # the first: least of all models
NO_TOKEN = -1
_SHAPE = {"hidden_size": 640, "vocab_size": 16_384, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
_LAYERS = {"num_hidden_layers": 10, "intermediate_size": 1728, "max_position_embeddings": 2048}
CONFIGS = {
    "Mamba2": Mamba2Config(**_SHAPE, num_hidden_layers=10, num_heads=20, head_dim=64, state_size=32, n_groups=1),
    "LFM2": Lfm2Config(
        **_SHAPE, **_LAYERS, num_attention_heads=10, num_key_value_heads=5, layer_types=["conv", "full_attention"] * 5
    ),
    "Bloom": BloomConfig(**_SHAPE, n_layer=10, n_head=10),
    "DiffLlama": DiffLlamaConfig(**_SHAPE, **_LAYERS, num_attention_heads=10, num_key_value_heads=10),
}


def measure(options: Options) -> Measured:
    """Measure each model."""
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    requests = [
        Request([token % 16_384 for token in request.prompt], request.num_tokens)
        for request in mixed(options.pick(32, 8), (8, 64), (16, 32))
    ]
    rates = {name: _rates(name, requests, options.pick(3, 1)) for name in CONFIGS}
    gains = {name: each["in batches"] / each["one by one"] for name, each in rates.items()}
    theirs = rates["DiffLlama"]["transformers' continuous batching"]
    return Measured(
        {
            "over_one_by_one": min(gains.values()),
            "over_transformers_cb_fallback": rates["DiffLlama"]["in batches"] / theirs,
        },
        [
            Table(
                f"{len(requests)} requests, tokens per second of CPU time",
                ("model", *rates["DiffLlama"]),
                [(name, *each.values(), *[None] * (3 - len(each))) for name, each in rates.items()],
            )
        ],
        [f"{name}: {gain:.1f} times as fast in batches" for name, gain in gains.items()],
    )


def _rates(name: str, requests: Sequence[Request], num_takes: int) -> dict[str, float]:
    """Return tokens a second by way of serving; the answers are the same."""
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(CONFIGS[name]).eval()
    model.generation_config = GenerationConfig(pad_token_id=0, eos_token_id=NO_TOKEN, do_sample=False)
    sides: dict[str, Callable[[], Served]] = {}
    if name == "DiffLlama":  # of a model of its own: ours lets the weights lie otherwise
        sides["transformers' continuous batching"] = partial(generation.transformers, deepcopy(model), requests)
    ways = {"in batches": True, "one by one": False}
    sides = {way: partial(_serve, model, requests, joins) for way, joins in ways.items()} | sides
    return {side: median_rate(takes) for side, takes in interleave(num_takes, sides).items()}


def _serve(model: Any, requests: Sequence[Request], joins: bool) -> Served:
    options = engine.Options()
    runner = StackedRunner(model, options.max_tiled_bytes)
    runner.joins = joins
    serving = engine.Engine(model, TokenSampler(), runner.fitted(options), runner=runner)
    sequences = [generation.sequence(request) for request in requests]
    started_s = generation.clock_s()
    for each in sequences:
        serving.add(each)
    while serving.has_work:
        serving.step()
    return Served([each.generated for each in sequences], generation.clock_s() - started_s)


if __name__ == "__main__":
    run("fallback", TARGETS, measure)
