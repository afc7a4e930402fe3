"""A benchmark's frame: options in, figures beside their targets out.

Everything but `run` is pure. This module does not know what is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

Metrics = dict[str, float | None]
Targets = Mapping[str, tuple[str, float]]
T = TypeVar("T")

OPERATORS: dict[str, Callable[[float, float], bool]] = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True)
class Options:
    """quick: fewer and shorter takes, for trying the script out rather than for figures to keep."""

    quick: bool = False

    def pick(self, full: T, quick: T) -> T:
        """Return `quick` in a quick run, else `full`."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Table:
    """Rows for people, printed as markdown."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Measured:
    """What a benchmark found. A metric that could not be taken is None, and a note says why."""

    metrics: Metrics
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` (0-100) of `values` do not exceed; they must not be empty."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def interleave(num_takes: int, sides: Mapping[str, Callable[[], T]]) -> dict[str, list[T]]:
    """Return `num_takes` results of each side, taken in turn and in reversed order every other time (A B, B A, …),
    so that a drift of the machine falls on all sides alike."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    for take in range(num_takes):
        names = list(sides) if take % 2 == 0 else list(sides)[::-1]
        for name in names:
            results[name].append(sides[name]())
    return results


def median_of(results: Sequence[T], value: Callable[[T], float]) -> float:
    """Return the median of `value` over `results`."""
    return statistics.median(value(result) for result in results)


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """Return numerator / denominator, or None if either is missing or the denominator is 0."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def is_met(value: float | None, target: tuple[str, float]) -> bool:
    """Return whether `value` satisfies `target`; a missing value satisfies nothing."""
    symbol, bound = target
    return value is not None and OPERATORS[symbol](value, bound)


def all_met(metrics: Metrics, targets: Targets) -> bool:
    """Return whether every target is met."""
    return all(is_met(metrics.get(key), target) for key, target in targets.items())


def format_number(value: object) -> str:
    """Return `value` with three significant digits or, from 100 up, as a whole number; a dash for None."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int) or value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1 else f"{value:.{2 if abs(value) < 10 else 1}f}"


def markdown_table(table: Table) -> str:
    """Return `table` as markdown with aligned columns, title first."""
    rows = [[format_number(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    head = "| " + " | ".join(name.ljust(width) for name, width in zip(table.columns, widths, strict=True)) + " |"
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([f"**{table.title}**", "", head, rule, *lines])


def figures_table(metrics: Metrics, targets: Targets) -> Table:
    """Return every metric beside its target and the verdict; metrics without a target come last."""
    rows: list[tuple[object, ...]] = []
    for key, target in targets.items():
        value = metrics.get(key)
        rows.append((f"`{key}`", value, " ".join((target[0], format_number(target[1]))), verdict(value, target)))
    rows += [(f"`{key}`", value, "", "") for key, value in metrics.items() if key not in targets]
    return Table("Figures", ("figure", "measured", "target", "met"), rows)


def verdict(value: float | None, target: tuple[str, float]) -> str:
    """Return "yes", "NO" or "not measured"."""
    return "not measured" if value is None else "yes" if is_met(value, target) else "NO"


def json_line(name: str, metrics: Metrics, targets: Targets) -> str:
    """Return the machine-readable last line of a benchmark."""
    rounded = {key: None if value is None else float(f"{value:.5g}") for key, value in metrics.items()}
    body = {
        "benchmark": name,
        "metrics": rounded,
        "targets": {key: list(target) for key, target in targets.items()},
        "met": all_met(metrics, targets),
    }
    return json.dumps(body, ensure_ascii=False)


def parse_options(description: str, arguments: Sequence[str] | None = None) -> Options:
    """Return the options given on the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter takes: to try it out, not to keep")
    return Options(quick=parser.parse_args(arguments).quick)


def run(name: str, targets: Targets, measure: Callable[[Options], Measured]) -> None:
    """Measure and print: tables, notes, the figures, and last the JSON line."""
    options = parse_options(f"benchmark {name}")
    measured = measure(options)
    for table in [*measured.tables, figures_table(measured.metrics, targets)]:
        print(markdown_table(table), end="\n\n")
    for note in measured.notes:
        print(f"- {note}")
    print(json_line(name, measured.metrics, targets), flush=True)
