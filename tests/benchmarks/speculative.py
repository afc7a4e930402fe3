"""Speculative decoding: SmolLM2-135M on one core, our engine with prompt lookup and without.

    copy      one request at a time: a text to be repeated, a summary, a change of code
    open      one request: a question whose answer repeats nothing
    crowd     32 at once, some of each

An engine of each kind lives through all of it, so what it learns from one kind of text it carries into the next. Rates
are by CPU time of this process (`harness/generation.py`), prompts included. Takes alternate; answers are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from harness import generation
from harness.generation import Request, Served, clock_s, sequence
from harness.report import Measured, Metrics, Options, Table, interleave, run
from transformers import AutoTokenizer

from samovar_instance.engines.generation.engine import Engine
from samovar_instance.engines.generation.engine import Options as EngineOptions
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.speculation import PromptLookup

TARGETS = {"copy_gain": (">=", 1.1), "worst_case": (">=", 0.97)}
CROWD = 32
SIDES = ("with", "without")

CODE = """\
def total(orders):
    result = 0
    for order in orders:
        if order.is_paid and not order.is_cancelled:
            result += order.price * order.quantity
    return result


def average(orders):
    paid = [order for order in orders if order.is_paid]
    return total(orders) / len(paid)
"""
STORY = (
    "The old kettle on the stove belongs to Marta, who keeps the small station at the end of the line. Every morning "
    "she fills it before the first train arrives, and the driver drinks his tea beside the window while the snow is "
    "swept from the rails. The railway has promised a new kettle for years, but nobody at the station wants one."
)
QUESTIONS = (
    "Why is the sky blue? Tell me in detail.",
    "Write a poem about the sea.",
    "What should I look for when I buy a used bicycle?",
    "Explain how bread is made.",
)


def prompts() -> dict[str, list[list[int]]]:
    """Return token ids by kind of text: "copy" and "open"."""
    tokenizer = AutoTokenizer.from_pretrained(generation.smol(), local_files_only=True)

    def chat(text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])

    return {
        "copy": [
            list(tokenizer(f"{CODE}\n{CODE}\ndef total(").input_ids),
            chat(f"Summarize in the words of the text:\n{STORY}"),
            chat(f"Rename orders to items in this code:\n{CODE}"),
        ],
        "open": [chat(question) for question in QUESTIONS],
    }


def workloads(options: Options) -> dict[str, list[list[Request]]]:
    """Return groups of requests by workload; those of a group are there at once."""
    ids = prompts()
    num_tokens = options.pick(64, 32)
    crowd = [(ids["copy"] + ids["open"])[k % (len(ids["copy"]) + len(ids["open"]))] for k in range(CROWD)]
    return {
        "copy": [[Request(prompt, num_tokens)] for prompt in ids["copy"]],
        "open": [[Request(ids["open"][0], num_tokens)]],
        "crowd": [[Request(prompt, options.pick(20, 6)) for prompt in crowd]],
    }


def engines() -> dict[str, Engine]:
    """Return an engine of each kind; prompts are computed anew each time."""
    settings = EngineOptions(shares_prefixes=False)
    return {
        "with": Engine(generation.load(), TokenSampler(), settings, PromptLookup()),
        "without": Engine(generation.load(), TokenSampler(), settings),
    }


def serve(engine: Engine, groups: Sequence[Sequence[Request]]) -> Served:
    """Serve one group after the other."""
    started_s = clock_s()
    tokens: list[list[int]] = []
    for group in groups:
        sequences = [sequence(request) for request in group]
        for each in sequences:
            engine.add(each)
        while engine.has_work:
            engine.step()
        tokens += [each.generated for each in sequences]
    return Served(tokens, clock_s() - started_s)


def measure(options: Options) -> Measured:
    """Measure the workloads, one after the other."""
    both = engines()
    rows: list[Sequence[object]] = []
    gains = {}
    for name, groups in workloads(options).items():
        before = both["with"].stats()
        takes = interleave(options.pick(4, 2), {side: partial(serve, both[side], groups) for side in SIDES})
        gains[name] = _gain(takes)
        rows.append(_row(name, takes, gains[name], before, both["with"].stats()))
    metrics: Metrics = {"copy_gain": gains["copy"], "worst_case": min(gains.values())}
    metrics |= {f"{name}_gain": gains[name] for name in ("open", "crowd")}
    return Measured(
        metrics,
        [
            Table(
                "Tokens a second",
                ("workload", "with", "without", "gain", "drafts", "right", "same answers"),
                rows,
            )
        ],
    )


def _gain(takes: Mapping[str, Sequence[Served]]) -> float:
    """Return the median of the takes' gains, each against the one beside it."""
    pairs = zip(takes["with"], takes["without"], strict=True)
    return statistics.median(with_drafts.rate / without.rate for with_drafts, without in pairs)


def _row(name: str, takes: Mapping[str, Sequence[Served]], gain: float, before: Any, after: Any) -> Sequence[object]:
    rates = [generation.median_rate(takes[side]) for side in SIDES]
    num_drafts = after.num_drafts - before.num_drafts
    num_right = after.num_right_drafts - before.num_right_drafts
    ours, theirs = takes["with"][-1].tokens, takes["without"][-1].tokens
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    return (name, *rates, gain, num_drafts, num_right, f"{same} of {len(ours)}")


if __name__ == "__main__":
    run("speculative", TARGETS, measure)
