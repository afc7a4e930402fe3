"""Prefix sharing: 32 requests to SmolLM2-135M whose prompts have their first 512 tokens in common, on one core.

All come at once, from one key (docs/generation.md says among whom prefixes are shared), to our engine with and without
sharing; a request's own part is 8 to 32 tokens, its answer 8.
Times are by CPU time of this process (`harness/generation.py`), takes alternate, every take has an empty cache.
"""

from __future__ import annotations

import statistics
from functools import partial

from harness import generation
from harness.generation import Request, Samovar, Served, mixed
from harness.report import Measured, Options, Table, interleave, percentile, run

TARGETS = {"prefill_saved_share": (">=", 0.9)}
SHARED_TOKENS = 512
OWN = (8, 32)
NUM_TOKENS = 8


def measure(options: Options) -> Measured:
    """Measure both ways."""
    samovar = Samovar(generation.load())
    shared = mixed(1, (SHARED_TOKENS, SHARED_TOKENS), OWN, seed=3)[0].prompt
    own = mixed(options.pick(32, 8), OWN, OWN, seed=4)
    requests = [Request(shared + request.prompt, NUM_TOKENS) for request in own]
    takes = interleave(
        1,
        {
            "shared": partial(samovar.serve, requests),
            "not shared": partial(samovar.serve, requests, shares_prefixes=False),
        },
    )
    firsts = {name: statistics.median(served[0].first_s) for name, served in takes.items()}
    num_prompt = sum(len(request.prompt) for request in requests)
    same = takes["shared"][0].tokens == takes["not shared"][0].tokens
    return Measured(
        {
            "prefill_saved_share": takes["shared"][0].num_cached / num_prompt,
            "first_token_ratio": firsts["not shared"] / firsts["shared"],
        },
        [
            Table(
                f"{len(requests)} prompts with {SHARED_TOKENS} tokens in common",
                ("prefixes", "first token p50 ms", "p99 ms", "of all, s", "prompt tokens computed"),
                [_row(name, served[0], num_prompt) for name, served in takes.items()],
            )
        ],
        [f"the answers are {'the same' if same else 'NOT the same'}"],
    )


def _row(name: str, served: Served, num_prompt: int) -> tuple[object, ...]:
    times = [percentile(served.first_s, percent) * 1000 for percent in (50, 99)]
    return name, *times, served.seconds, num_prompt - served.num_cached


if __name__ == "__main__":
    run("prefix", TARGETS, measure)
