"""Encoders: MiniLM on texts of 4 to 256 tokens, batched by arrival or by length, and in several runtimes.

Through the platform at 64 connections, one instance of one torch thread each: the example, whose batches are of
similar lengths (`ragged`), and the same with a plain `sv.Batch` (`plain`), in turn. Then the runtimes against each
other in this process, on the batches that `ragged` would make, one thread. Nothing is pinned.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from harness import encoders, minilm
from harness.encoders import Batch, Built
from harness.load import call_at_once, run_wrk
from harness.report import Measured, Metrics, Options, Table, interleave, median_of, run
from harness.running import Platform

TARGETS = {"ragged_over_plain": (">=", 1.3)}
CONNECTIONS = 64
MIN_TOKENS, MAX_TOKENS = 4, 256
NUM_TEXTS = 1024  # more than the example remembers the tokens of
PLAIN = "batch=sv.Batch(max_size=16, max_wait_ms=5),"


def lengths(count: int) -> list[int]:
    """Return `count` numbers of tokens, spread evenly, in an order that is always the same."""
    step = (MAX_TOKENS - MIN_TOKENS) / (count - 1)
    mixed = [round(MIN_TOKENS + step * k) for k in range(count)]
    random.Random(5).shuffle(mixed)
    return mixed


def text(num_tokens: int, start: int) -> str:
    """Return a text of as many tokens, begin and end marks included: each of these words is one."""
    words = minilm.WORDS
    return " ".join(words[(start + k) % len(words)] for k in range(num_tokens - 2))


@contextmanager
def plain_app() -> Iterator[Path]:
    """Make the example with a plain batch instead of one by lengths."""
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        app = Path(folder) / "app.py"
        source, num_found = re.subn(r"batch=sv\.Batch\(.*\),", PLAIN, minilm.APP.read_text())
        assert num_found == 1
        app.write_text(source.replace('name="minilm"', 'name="minilm-plain"'))
        yield app


def through_the_platform(options: Options) -> tuple[Metrics, Table]:
    """Measure both ways to batch in turn."""
    seconds = options.pick(12, 4)
    bodies = [json.dumps({"text": text(n, k)}).encode() for k, n in enumerate(lengths(NUM_TEXTS))]
    with plain_app() as plain, Platform() as platform:
        targets = {}
        for side, app in (("ragged", minilm.APP), ("plain", plain)):
            name = platform.deploy(app)
            platform.scale(name, min_instances=1, max_instances=1)
            platform.wait_ready(name, 1)
            targets[side] = platform.target(name, *bodies)
            asyncio.run(call_at_once(replace(targets[side], bodies=bodies[:CONNECTIONS])))
        takes = {side: partial(run_wrk, target, CONNECTIONS, seconds) for side, target in targets.items()}
        loads = interleave(options.pick(4, 2), takes)
    rates = {side: median_of(taken, lambda load: load.rps) for side, taken in loads.items()}
    rows = [
        (side, rates[side], median_of(taken, lambda load: load.p50_ms), median_of(taken, lambda load: load.p99_ms))
        for side, taken in loads.items()
    ]
    metrics: Metrics = {
        "ragged_over_plain": rates["ragged"] / rates["plain"],
        "ragged_rps": rates["ragged"],
        "plain_rps": rates["plain"],
    }
    return metrics, Table(f"{CONNECTIONS} connections", ("batches", "texts a second", "p50 ms", "p99 ms"), rows)


def ragged_batches(num_batches: int) -> list[Batch]:
    """Return batches of similar lengths from 4 to 256 tokens, padded, about 1,024 tokens each."""
    tokenizer = encoders.load_tokens()
    batches = []
    for k in range(num_batches):
        longest = round(MIN_TOKENS + (MAX_TOKENS - MIN_TOKENS) * (k + 1) / num_batches)
        count = max(1, min(32, 1024 // longest))
        texts = [text(longest - min(row, longest // 8), k + row) for row in range(count)]
        batches.append(encoders.padded([tokenizer.encode(one).ids for one in texts]))
    return batches


def single_texts(num_texts: int) -> list[Batch]:
    """Return as many texts from 4 to 256 tokens, each alone."""
    return [(ids[:1], mask[:1]) for ids, mask in ragged_batches(num_texts)]


def of_runtimes(options: Options) -> tuple[Metrics, Table, list[str]]:
    """Measure the runtimes in turn, on batches and on single texts."""
    torch.set_num_threads(1)
    model = encoders.load_model()
    work = {"batches": ragged_batches(options.pick(16, 6)), "single": single_texts(options.pick(16, 6))}
    every = [batch for batches in work.values() for batch in batches]
    built = {name: encoders.build(name, model, every) for name in encoders.RUNTIMES}
    works = {name: found for name, found in built.items() if isinstance(found, Built)}
    took_s = {}
    for kind, batches in work.items():
        takes = {name: partial(_seconds, found, batches) for name, found in works.items()}
        took_s[kind] = interleave(options.pick(4, 2), takes)
    outputs = {name: encoders.outputs(found, every) for name, found in works.items()}
    metrics: Metrics = {}
    rows: list[tuple[object, ...]] = []
    for name, found in works.items():
        cosine = encoders.min_cosine(outputs[name], outputs["eager"])
        gains = [
            median_of(took_s[kind]["eager"], float) / median_of(took_s[kind][name], float)
            for kind in ("batches", "single")
        ]
        rows.append((name, *gains, cosine, found.build_s))
        if name != "eager":
            metrics |= {f"{name}_over_eager": gains[0], f"{name}_over_eager_single": gains[1]}
            metrics[f"{name}_min_cosine"] = cosine
    notes = [f"{name}: not measured, {found}" for name, found in built.items() if isinstance(found, str)]
    columns = ("runtime", "speed on batches", "on single texts", "least cosine", "made in s")
    return metrics, Table("Runtimes, eager float32 = 1", columns, rows), [*notes, _best(rows)]


def _seconds(found: Built, batches: Sequence[Batch]) -> float:
    started_s = time.process_time()  # nobody else is in this process
    encoders.outputs(found, batches)
    return time.process_time() - started_s


def _best(rows: Sequence[tuple[object, ...]], least_cosine: float = 0.999) -> str:
    exact = [row for row in rows if isinstance(row[3], float) and row[3] >= least_cosine]
    fastest = max(exact, key=lambda row: float(str(row[1])))
    return f"the fastest with cosines of at least {least_cosine}: {fastest[0]}"


def measure(options: Options) -> Measured:
    """Measure the ways to batch, then the runtimes."""
    metrics, batching = through_the_platform(options)
    more, runtimes, notes = of_runtimes(options)
    return Measured(metrics | more, [batching, runtimes], notes)


if __name__ == "__main__":
    run("encoder", TARGETS, measure)
