"""The pure parts of the benchmarks: what is read, what is decided, what is printed."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import peers as peers_benchmark
import pytest
import run_all
from harness import chaos, load, minilm, peers, processes, report, running
from hypothesis import given
from hypothesis import strategies as st

WRK = """Running 1s test @ http://127.0.0.1:8900/
  1 threads and 16 connections
JSON {"requests":5000,"duration_s":2.0,"bad":0,"socket_errors":0,"p50_ms":0.5,"p95_ms":1,"p99_ms":2.5,"max_ms":9}
Transfer/sec:     1.20MB
"""


def test_wrk_output_is_read() -> None:
    result = load.parse_wrk(WRK)
    assert (result.requests, result.p50_ms, result.p99_ms) == (5000, 0.5, 2.5)
    assert result.rps == 2500.0


def test_wrk_without_a_result_says_what_it_printed() -> None:
    with pytest.raises(load.BenchmarkError, match="unable to connect"):
        load.parse_wrk("unable to connect to 127.0.0.1:1 Connection refused")


def test_cpu_per_call_uses_the_servers_time() -> None:
    result = load.Load(1000, 1.0, 0, 0, 1.0, 1.0, 1.0, 1.0, cpu_s=0.25)
    assert result.cpu_ms_per_call == 0.25


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (10, 1), (50, 5), (51, 6), (90, 9), (99, 10), (100, 10)])
def test_percentile_is_the_nearest_rank(percent: float, expected: float) -> None:
    assert report.percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == expected


@given(st.lists(st.floats(allow_nan=False), min_size=1), st.floats(0, 100))
def test_percentile_covers_its_share(values: list[float], percent: float) -> None:
    found = report.percentile(values, percent)
    assert found in values
    assert sum(value <= found for value in values) >= len(values) * percent / 100 - 1e-9


def test_percentile_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        report.percentile([], 50)


def test_takes_alternate_their_order() -> None:
    order: list[str] = []
    sides = {name: lambda name=name: order.append(name) or len(order) for name in ("a", "b")}  # type: ignore[func-returns-value]
    results = report.interleave(3, sides)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert results == {"a": [1, 4, 5], "b": [2, 3, 6]}


@pytest.mark.parametrize(
    ("value", "target", "met"),
    [
        (1.05, (">=", 1.05), True),
        (1.04, (">=", 1.05), False),
        (0.75, ("<=", 0.75), True),
        (0.76, ("<=", 0.75), False),
        (0, ("==", 0), True),
        (1, ("==", 0), False),
        (None, ("<=", 1), False),
    ],
)
def test_targets(value: float | None, target: tuple[str, float], met: bool) -> None:
    assert report.is_met(value, target) is met


def test_a_missing_figure_is_never_met_and_travels_as_null() -> None:
    line = json.loads(
        report.json_line("peers", {"pss_over_mosec": None, "own": 12.345678}, {"pss_over_mosec": ("<=", 1.0)})
    )
    assert line == {
        "benchmark": "peers",
        "metrics": {"pss_over_mosec": None, "own": 12.346},
        "targets": {"pss_over_mosec": ["<=", 1.0]},
        "met": False,
    }


def test_figures_show_target_and_verdict() -> None:
    metrics: report.Metrics = {"fast": 80.0, "slow": 3.0, "other": 0.01234}
    table = report.figures_table(metrics, {"fast": (">=", 70), "slow": ("<=", 2), "gone": ("<=", 1)})
    assert report.markdown_table(table).splitlines() == [
        "**Figures**",
        "",
        "| figure  | measured | target | met          |",
        "|---------|----------|--------|--------------|",
        "| `fast`  | 80       | >= 70  | yes          |",
        "| `slow`  | 3        | <= 2   | NO           |",
        "| `gone`  | –        | <= 1   | not measured |",
        "| `other` | 0.0123   |        |              |",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (3, "3"), (1234.5, "1,234"), (0.1234, "0.123"), (5.678, "5.68"), (56.78, "56.8"), ("a", "a")],
)
def test_numbers_are_short(value: object, text: str) -> None:
    assert report.format_number(value) == text


@pytest.mark.parametrize(
    ("above", "below", "expected"), [(6.0, 2.0, 3.0), (None, 2.0, None), (1.0, None, None), (1.0, 0.0, None)]
)
def test_ratio_of_what_is_missing_is_missing(above: float | None, below: float | None, expected: float | None) -> None:
    assert report.ratio(above, below) == expected


def test_stat_with_a_strange_name_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_TICKS_PER_S", 100)
    times = processes.parse_stat("42 (a) b (c) S 7 42 42 0 -1 4194560 1 2 3 4 150 50 30 20 20 0 1 0")
    assert times == processes.ProcessTimes(parent=7, cpu_s=2.5)


def test_tree_follows_children_of_children() -> None:
    table = {pid: processes.ProcessTimes(parent, 0.0) for pid, parent in {1: 0, 2: 1, 3: 2, 4: 1, 5: 9}.items()}
    assert sorted(processes.tree(1, table)) == [1, 2, 3, 4]


def test_memory_is_read_in_bytes() -> None:
    lines = [
        "5555-7fff ---p 0 [rollup]",
        "Rss:  300 kB",
        "Pss:  200 kB",
        "Private_Clean: 40 kB",
        "Private_Dirty:  60 kB",
    ]
    text = "\n".join(lines)
    assert processes.parse_smaps_rollup(text) == processes.Memory(rss=300 * 1024, pss=200 * 1024, uss=100 * 1024)


def test_server_timing_is_read() -> None:
    header = 'queue;dur=1.5, claim;desc="blank";dur=0.25, load;dur=40, cache'
    assert running.parse_server_timing(header) == {"queue": 1.5, "claim": 0.25, "load": 40.0}


def test_page_shows_figures_and_names_what_is_missed() -> None:
    good = run_all.read(
        "memory", '**Figures**\n\n{"metrics": {"pss": 6.2}, "targets": {"pss": [">=", 5]}}\n', 0, "today"
    )
    slow = run_all.read("burst", '{"metrics": {"failed": 1, "own": 2}, "targets": {"failed": ["==", 0]}}\n', 0, "today")
    broken = run_all.read("peers", "half a table\n", 1, "today")
    page = run_all.page([good, slow, broken], {"usable cores": "2"})
    assert "- usable cores: 2" in page
    assert "| memory | `pss` | 6.20 | >= 5 | yes |" in " ".join(page.split())
    assert "Not met: burst `failed`, peers. Not run yet: cold_start, overhead, " in page
    assert "half a table" in page


def test_a_benchmark_that_failed_after_its_result_does_not_count() -> None:
    assert run_all.read("burst", '{"metrics": {}, "targets": {}}\n', 1, "today").result is None


def peer_row(**cell: float) -> dict[str, object]:
    cell = {"c": 16, "rps": 220.5, "p50": 70.0, "p99": 80.0, "cpu_ms_per_req": 4.5, "bad": 0, "sock_err": 0} | cell
    return {"peer": "mosec", "cold_s": 4.4, "mem_end": {"pss_mib": 515.9}, "cells": [cell]}


def test_a_drivers_row_is_read() -> None:
    taken = peers.parse_row(peer_row())
    assert (taken.cold_s, taken.pss_mib) == (4.4, 515.9)
    assert taken.loads == {16: peers.PeerLoad(220.5, 70.0, 80.0, 4.5)}


@pytest.mark.parametrize("key", ["bad", "sock_err"])
def test_a_peer_that_answers_wrongly_is_no_measure(key: str) -> None:
    with pytest.raises(load.BenchmarkError, match="mosec answered wrongly"):
        peers.parse_row(peer_row(**{key: 1}))


def test_a_missing_peer_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEERS_BENCH", str(tmp_path / "drivers"))
    monkeypatch.setenv("PEERS_ROOT", str(tmp_path / "venvs"))
    assert "no drivers" in str(peers.why_missing("mosec"))
    (tmp_path / "drivers").mkdir()
    (tmp_path / "drivers" / "run.py").touch()
    assert "no environment" in str(peers.why_missing("mosec"))
    python = tmp_path / "venvs" / "mosec" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    assert peers.why_missing("mosec") is None


def test_figures_against_a_missing_peer_are_missing() -> None:
    own = peers_benchmark.Run(0.06, 300.0, 900.0, {c: peers.PeerLoad(200.0, 10.0, 20.0, 4.0) for c in (1, 16, 64)})
    alone = peers_benchmark.ratios([own], {})
    assert set(peers_benchmark.TARGETS) <= alone.keys() and not any(alone.values())
    other = peers_benchmark.Run(6.0, 600.0, 600.0, {c: peers.PeerLoad(100.0 * c, 20.0, 20.0, 4.0) for c in (1, 16, 64)})
    figures = peers_benchmark.ratios([own], {"mosec": [other]})
    assert figures["w1_rps_over_mosec"] == 200 / 6400
    assert (figures["w1_p50_over_mosec"], figures["pss_over_mosec"]) == (0.5, 0.5)
    assert figures["cold_over_best_peer"] == pytest.approx(0.01)


def test_sentences_differ_and_have_twelve_words() -> None:
    bodies = minilm.sentences(200)
    texts = [json.loads(body)["text"] for body in bodies]
    assert len(set(texts)) == len(texts)
    assert {len(text.split()) for text in texts} == {12}


def test_what_became_of_jobs_is_judged_by_the_tokens_of_their_rows() -> None:
    def job(state: str, token: int = 2) -> dict[str, object]:
        return {"state": state, "token": token}

    jobs = {
        "good": job("finished"),
        "again": job("finished"),
        "twice": job("finished"),
        "without": job("finished"),
        "bad": job("failed"),
        "running": job("started"),
        "unknown": None,
    }
    rows = [
        {"job": "good", "token": 2},
        {"job": "again", "token": 1},
        {"job": "again", "token": 2},
        {"job": "twice", "token": 2},
        {"job": "twice", "token": 2},
        {"job": "without", "token": 1},
        {"job": "bad", "token": 2},
        {"job": "somebody else's", "token": 2},
    ]
    verdict = chaos.judge(jobs, rows)
    assert (verdict.accepted, verdict.lost, verdict.double_committed, verdict.not_terminal) == (7, 2, 1, 1)
    assert verdict.rows == 7 and verdict.states == {"finished": 4, "failed": 1, "started": 1}


def test_a_killer_kills_its_own_kind_alone(tmp_path: Path) -> None:
    """A process that does not mention the platform is left alone, whatever the list of victims says."""
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen([*command, str(tmp_path)]) as ours, subprocess.Popen(command, cwd="/") as other:
        killer = chaos.Killer(lambda: {"jobs": [ours.pid], "pool": [other.pid]}, str(tmp_path), every_s=0.01)
        with killer.at_work():
            assert ours.wait(10) == -signal.SIGKILL
        assert other.poll() is None
        other.kill()
    assert set(killer.killed) == {"jobs"}
