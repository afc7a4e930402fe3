"""Run the benchmarks and write docs/benchmarks.md: `make bench`, or `python tests/benchmarks/run_all.py [NAME …]`.

The last run of each benchmark is kept in build/benchmarks, so that one can be repeated alone and the page stays whole.
A quick run is printed and not kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from harness.processes import machine_facts
from harness.report import Table, format_number, markdown_table, verdict

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "build" / "benchmarks"
PAGE = ROOT / "docs" / "benchmarks.md"
NAMES = (
    "cold_start",
    "overhead",
    "streaming",
    "protocols",
    "peers",
    "batching",
    "encoder",
    "generate",
    "generation_cold_start",
    "prefix",
    "speculative",
    "fallback",
    "memory",
    "burst",
    "routes",
    "weights",
    "overload",
    "breaker",
    "request_log",
    "rate_limit",
    "rollout",
    "sandbox_cost",
    "jobs_throughput",
    "jobs_latency",
    "jobs_backlog",
    "jobs_fairness",
    "jobs_chaos",
)
# SIGINT lets a benchmark that hangs stop its platform before it is killed
_BOUNDED = ("timeout", "--signal=INT", "--kill-after=90", "1800")
_PACKAGES = ("torch", "transformers", "litestar", "uvicorn")

_HEAD = """# Benchmarks

Written by `make bench`; each script in `tests/benchmarks/` runs alone too (`--quick` to try it out). Ratios are taken
against a floor or a peer in the same run, interleaved, medians of repeats; the machine is small and often shared, so
absolute times say less than ratios. A figure that misses its target says NO.
"""


@dataclass(frozen=True)
class Result:
    """One benchmark's run. result: its JSON line, None if it failed. text: the tables and notes above that line."""

    name: str
    date: str
    result: dict[str, Any] | None
    text: str


def main() -> int:
    """Run what is asked for, write the page; return 1 if a benchmark could not run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}; all if none is given")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter takes; the page is left alone")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    results = [run(name, options.quick) for name in options.names or NAMES]
    if not options.quick:
        for result in results:
            save(result)
        PAGE.write_text(page(load_all(), facts()))
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return int(any(result.result is None for result in results))


def run(name: str, quick: bool) -> Result:
    """Run one benchmark, showing what it prints as it comes."""
    print(f"\n## {name}\n", flush=True)
    command = [*_BOUNDED, sys.executable, str(HERE / f"{name}.py"), *(["--quick"] if quick else [])]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        code = process.wait()
    return read(name, "".join(lines), code, datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"))


def read(name: str, output: str, exit_code: int, date: str) -> Result:
    """Return what a benchmark printed, apart: the text for people and the last line for machines."""
    text, _, last = output.rstrip().rpartition("\n")
    try:
        result = json.loads(last)
    except ValueError:
        return Result(name, date, None, f"{output}\nIt ended with exit code {exit_code} and without a result.")
    return Result(name, date, result if exit_code == 0 else None, text)


def save(result: Result) -> None:
    """Keep the run for the page."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{result.name}.json").write_text(json.dumps(asdict(result), ensure_ascii=False))


def load_all() -> list[Result]:
    """Return the last kept run of every benchmark that has one, in the order of NAMES."""
    files = [RESULTS / f"{name}.json" for name in NAMES]
    return [Result(**json.loads(file.read_text())) for file in files if file.exists()]


def facts() -> dict[str, str]:
    """Return the machine's facts and the versions that matter."""
    found = machine_facts()
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def page(results: Iterable[Result], machine: dict[str, str]) -> str:
    """Return docs/benchmarks.md."""
    results = list(results)
    machine_lines = "\n".join(f"- {key}: {value}" for key, value in machine.items())
    sections = [f"## {result.name}\n\n{result.date}\n\n{result.text.strip()}" for result in results]
    return "\n\n".join([_HEAD.strip(), f"Machine:\n\n{machine_lines}", summary(results), *sections]) + "\n"


def summary(results: Iterable[Result]) -> str:
    """Return every figure that has a target, and what is missed, as markdown."""
    rows: list[tuple[object, ...]] = []
    results = list(results)
    for name, figures in ((result.name, result.result) for result in results):
        if figures is None:
            rows.append((name, "", "", "", "did not run"))
            continue
        for key, (symbol, bound) in figures["targets"].items():
            value = figures["metrics"].get(key)
            target = f"{symbol} {format_number(bound)}"
            rows.append((name, f"`{key}`", value, target, verdict(value, (symbol, bound))))
    missed = [f"{row[0]} {row[1]}".strip() for row in rows if row[4] != "yes"]
    absent = [name for name in NAMES if name not in {result.name for result in results}]
    notes = [f"Not met: {', '.join(missed)}."] if missed else []
    notes += [f"Not run yet: {', '.join(absent)}."] if absent else []
    table = Table("Figures and targets", ("benchmark", "figure", "measured", "target", "met"), rows)
    return f"{markdown_table(table)}\n\n{' '.join(notes) or 'Every target is met.'}"


if __name__ == "__main__":
    sys.exit(main())
