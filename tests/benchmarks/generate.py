"""Text generation: SmolLM2-135M on one core, 1 to 64 requests of mixed lengths at once, ours beside three other ways.

Prompts and answers of 8 to 128 tokens, short ones as frequent as long ones by logarithm; then prompts of 200 to 600;
then a prompt of 1,000 tokens that arrives while 16 others are being answered. Rates and times are by CPU time of this
process (`harness/generation.py`). Ways alternate; every way's tokens are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from harness import generation
from harness.generation import Request, Samovar, Served, clock_s, heard, median_rate, mixed, sequence
from harness.report import Measured, Options, Table, interleave, percentile, run

TARGETS = {
    "over_sequential": (">=", 4.0),
    "over_static": (">=", 1.8),
    "over_transformers_cb": (">=", 1.3),
    "over_transformers_cb_long": (">=", 2.0),
    "kv_waste": ("<=", 0.04),
    "intertoken_p99_growth": ("<=", 3.0),
}
SHORT = (8, 128)
LONG_PROMPTS, LONG_ANSWERS = (200, 600), (16, 48)
SAMPLE = 4  # requests of a take one by one
LATE_PROMPT = 1000


def measure(options: Options) -> Measured:
    """Measure all of it."""
    models = {name: generation.load() for name in ("generate", "transformers", "samovar")}
    samovar = Samovar(models["samovar"])
    rows, rates, waste = _short(options, models, samovar)
    long_rates = _long(options, models, samovar)
    calm_s, crowded_s = _gaps(options, samovar)
    growth = percentile(crowded_s, 99) / percentile(calm_s, 99)
    columns = (
        "requests",
        "way",
        "tokens/s",
        "first token p50 ms",
        "p99",
        "between tokens p50 ms",
        "p99",
        "as generate",
    )
    crowd = Table(
        "A prompt of 1,000 tokens beside 16 answers, ms between tokens",
        ("", "p50", "p99"),
        [
            (name, percentile(gaps, 50) * 1000, percentile(gaps, 99) * 1000)
            for name, gaps in (("before", calm_s), ("until its first token", crowded_s))
        ],
    )
    long = Table("Prompts of 200 to 600 tokens", ("way", "tokens/s"), list(long_rates.items()))
    return Measured(
        {
            "over_sequential": rates["samovar"] / rates["one by one"],
            "over_static": rates["samovar"] / rates["static"],
            "over_transformers_cb": rates["samovar"] / rates["transformers"],
            "over_transformers_cb_long": long_rates["samovar"] / long_rates["transformers"],
            "kv_waste": waste,
            "intertoken_p99_growth": growth,
        },
        [Table("Requests of mixed lengths", columns, rows), long, crowd],
    )


def _short(
    options: Options, models: dict[str, Any], samovar: Samovar
) -> tuple[list[Sequence[object]], dict[str, float], float]:
    """Return rows of all concurrencies; rates and waste at 32."""
    rows: list[Sequence[object]] = []
    rates: dict[str, float] = {}
    waste = 0.0
    for num in options.pick((1, 8, 32, 64), (8, 32)):
        requests = mixed(num, SHORT, SHORT)
        ways: dict[str, Callable[[], Served]] = {
            "one by one": partial(generation.one_by_one, models["generate"], requests[:: -(-num // SAMPLE)]),
            "static": partial(generation.static, models["generate"], requests),
            "transformers": partial(generation.transformers, models["transformers"], requests),
            "samovar": partial(samovar.serve, requests),
        }
        takes = interleave(options.pick(2 if num == 32 else 1, 1), ways)
        rows += [_row(num, way, served, takes["static"][0]) for way, served in takes.items()]
        if num == 32:
            rates = {way: median_rate(served) for way, served in takes.items()}
            waste = samovar.wastes[-1]
    return rows, rates, waste


def _row(num: int, way: str, takes: list[Served], oracle: Served) -> Sequence[object]:
    last = takes[-1]
    times = [last.milliseconds(values, percent) for values in (last.first_s, last.gaps_s) for percent in (50, 99)]
    is_sample = len(last.tokens) != len(oracle.tokens)
    same = None if is_sample else sum(a == b for a, b in zip(last.tokens, oracle.tokens, strict=True))
    return (num, way, median_rate(takes), *times, "a sample" if same is None else f"{same} of {num}")


def _long(options: Options, models: dict[str, Any], samovar: Samovar) -> dict[str, float]:
    """Return rates with long prompts."""
    requests = mixed(options.pick(16, 8), LONG_PROMPTS, LONG_ANSWERS)
    takes = interleave(
        options.pick(7, 1),  # takes of half a minute differ by a third on a shared machine
        {
            "transformers": partial(generation.transformers, models["transformers"], requests),
            "samovar": partial(samovar.serve, requests),
        },
    )
    return {way: median_rate(served) for way, served in takes.items()}


def _gaps(options: Options, samovar: Samovar) -> tuple[list[float], list[float]]:
    """Return seconds between tokens of 16 answers: while nothing else is there, and while a long prompt comes in."""
    engine = samovar.engine()
    answers = [sequence(Request(request.prompt, 200)) for request in mixed(16, SHORT, SHORT, seed=2)]
    for each in answers:
        engine.add(each)
    while not all(each.generated for each in answers):
        engine.step()
    began_s = clock_s()
    for _ in range(options.pick(40, 20)):
        engine.step()
    late = sequence(Request(mixed(1, (LATE_PROMPT, LATE_PROMPT), (8, 8))[0].prompt, 8))
    arrived_s = clock_s()
    engine.add(late)
    while not late.generated:
        engine.step()
    return _between(answers, began_s, arrived_s), _between(answers, arrived_s, clock_s())


def _between(answers: Sequence[Any], start_s: float, end_s: float) -> list[float]:
    """Return the gaps that ended between two instants."""
    gaps = []
    for each in answers:
        times_s = heard(each).times_s
        gaps += [after - before for before, after in pairwise(times_s) if start_s < after <= end_s]
    return gaps


if __name__ == "__main__":
    run("generate", TARGETS, measure)
