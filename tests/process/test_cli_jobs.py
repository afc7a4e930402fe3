"""`samovar jobs` and `samovar cron` as people run them, against the routes as `docs/jobs.md` has them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from samovar.cli.__main__ import run as run_command
from support.http_peer import Asked, Reply
from support.jobs_peer import Failed, JobsPeer, jobs_peer, problem, told
from support.waiting import wait_until

pytestmark = pytest.mark.process

NUM_LINES = 500


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `samovar ARGUMENTS` in an empty folder against `peer`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAMOVAR_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("SAMOVAR_API_KEY", "sv_key")

    def samovar(peer: JobsPeer, *arguments: str) -> Done:
        monkeypatch.setenv("SAMOVAR_URL", peer.url)
        with io.TextIOWrapper(io.BytesIO(b"")) as nothing:
            monkeypatch.setattr(sys, "stdin", nothing)
            capfd.readouterr()
            code = run_command(list(arguments))
        return Done(code, *capfd.readouterr())

    return samovar


def spill(value: Any) -> Any:
    if value == {"n": 3}:
        raise Failed()
    return value


def in_two_jobs(peer: JobsPeer, run: Run) -> tuple[str, str]:
    """Return the ids of a job that finished and of one that failed."""
    good, bad = (
        run(peer, "jobs", "submit", "embed", "--json", text).stdout.strip() for text in ('{"n": 1}', '{"n": 3}')
    )
    return good, bad


def test_a_job_is_queued_and_its_id_printed(run: Run) -> None:
    with jobs_peer() as peer:
        done = run(peer, "jobs", "submit", "embed", "--json", '{"text": "tea"}')
        assert (done.code, done.stdout) == (0, f"{next(iter(peer.jobs))}\n")
        shown = run(peer, "jobs", "submit", "embed", "--json", '{"text": "tea"}', "--json")
        assert json.loads(shown.stdout)["state"] == "finished"
        awaited = run(peer, "jobs", "submit", "embed", "--json", '{"text": "tea"}', "--wait")
        assert json.loads(awaited.stdout) == {"text": "tea"}
        shown = run(peer, "jobs", "submit", "embed", "--json", "--wait", "--json", "[1]")
        assert json.loads(shown.stdout)["result"] == [1]
        watched = run(peer, "jobs", "submit", "embed", "--progress")
        assert [line.split(" ", 1)[1] for line in watched.stderr.splitlines()[1:]] == [
            "queued",
            "started attempt=1",
            "poured",
            "finished",
        ]


def test_every_option_of_a_job_is_sent(run: Run) -> None:
    options = (
        "--retries 3 --retry-on TimeoutError --retry-on OSError --give-up-on ValueError --timeout 90s --deadline 2h "
        "--delay 10m --keep 7d --priority low --webhook https://example.com/h --durability fsync --unique doc-42 "
        "--after 0a --after 0b --allow-failed --tag of=monday --tag by=me --idempotency-key key-1"
    )
    with jobs_peer() as peer:
        assert run(peer, "jobs", "submit", "embed", "--json", "{}", *options.split()).code == 0
    (asked,) = peer.asked
    assert asked.headers["idempotency-key"] == "key-1"
    assert json.loads(asked.body) == {
        "input": {},
        "retries": 3,
        "retry_on": ["TimeoutError", "OSError"],
        "give_up_on": ["ValueError"],
        "timeout_s": 90.0,
        "deadline_s": 7200.0,
        "delay_s": 600.0,
        "result_ttl_s": 604800.0,
        "priority": "low",
        "webhook": "https://example.com/h",
        "durability": "fsync",
        "unique": "doc-42",
        "depends_on": ["0a", "0b"],
        "allow_failed": True,
        "tags": {"of": "monday", "by": "me"},
    }


def test_jobs_are_listed_shown_and_awaited(run: Run) -> None:
    with jobs_peer(spill) as peer:
        good, bad = in_two_jobs(peer, run)
        listed = run(peer, "jobs", "ls", "--function", "embed")
        assert [line.split()[0] for line in listed.stdout.splitlines()] == ["job", bad, good]
        assert "function_raised: it spilt" in listed.stdout
        assert [job["id"] for job in json.loads(run(peer, "jobs", "ls", "--state", "failed", "--json").stdout)] == [bad]
        assert len(json.loads(run(peer, "jobs", "ls", "--limit", "1", "--json").stdout)) == 1
        shown = run(peer, "jobs", "get", bad).stdout
        assert [
            word for word in ("embed", "failed", "1 of at most 1", "function_raised: it spilt") if word not in shown
        ] == []
        assert json.loads(run(peer, "jobs", "get", good, "--json").stdout)["result"] == {"n": 1}
        assert run(peer, "jobs", "get", good, "--result").stdout == '{"n": 1}\n'
        assert run(peer, "jobs", "get", bad, "--result").code == 7
        assert run(peer, "jobs", "wait", good).code == 0
        both = run(peer, "jobs", "wait", good, bad, "--json")
        assert (both.code, [job["state"] for job in json.loads(both.stdout)]) == (7, ["finished", "failed"])


def test_a_job_that_waits_says_why(run: Run) -> None:
    with jobs_peer(is_held=True) as peer:
        job_id = run(peer, "jobs", "submit", "embed").stdout.strip()
        assert "queued; an instance is starting" in run(peer, "jobs", "get", job_id).stdout
        assert "an instance is starting" in run(peer, "jobs", "ls").stdout
        late = run(peer, "jobs", "wait", job_id, "--timeout", "0", "--json")
        assert late.code == 9
        assert json.loads(late.stderr)["error"] | {"detail": ""} == {
            "code": "job_not_done",
            "detail": "",
            "exit_code": 9,
            "phase": "queue",
            "job": job_id,
            "state": "queued",
            "wait_reason": "cold_start",
        }


def test_cancel_retry_and_purge(run: Run) -> None:
    with jobs_peer(is_held=True) as peer:
        first, second = (run(peer, "jobs", "submit", "embed").stdout.strip() for _ in range(2))
        assert run(peer, "jobs", "cancel", first).stdout == f"{first} cancelled\n"
        assert json.loads(run(peer, "jobs", "cancel", second, "--json").stdout)[0]["state"] == "canceled"
        again = run(peer, "jobs", "cancel", first)
        assert (again.code, again.stderr) == (6, "error the job is canceled\n")
        peer.is_held = False
        retried = json.loads(run(peer, "jobs", "retry", first, "--json").stdout)
        assert retried[0]["state"] == "finished"
        assert run(peer, "jobs", "retry", first, second).stdout.count("\n") == 2
        assert run(peer, "jobs", "purge", "embed").code == 2, "nobody can be asked"
        assert json.loads(run(peer, "jobs", "purge", "embed", "--yes", "--json").stdout) == {"deleted": 5}
        done = run(peer, "jobs", "purge", "embed", "--yes", "--state", "failed", "--older-than", "1d")
        assert done.stdout == "embed: 0 jobs deleted\n"
    assert json.loads(peer.asked[-1].body) == {"function": "embed", "older_than_s": 86400.0, "state": "failed"}


def test_what_a_job_logged(run: Run) -> None:
    with jobs_peer() as peer:
        job_id = run(peer, "jobs", "submit", "embed").stdout.strip()
        assert run(peer, "jobs", "logs", job_id).stdout.endswith(" poured\n")
        (line,) = run(peer, "jobs", "logs", job_id, "-f", "--json").stdout.splitlines()
        assert json.loads(line) == {"id": "3-0", "kind": "log", "at_s": 1.0, "data": {"line": "poured"}}
        assert len(run(peer, "jobs", "logs", job_id, "--events").stdout.splitlines()) == 4


def test_near_names_are_told(run: Run) -> None:
    with jobs_peer() as peer:
        job_id = run(peer, "jobs", "submit", "embed").stdout.strip()
        cut = run(peer, "jobs", "get", job_id[4:])
        assert (cut.code, cut.stderr) == (5, f"error there is no job '{job_id[4:]}'; did you mean {job_id}?\n")
        assert "near: embed" in run(peer, "jobs", "submit", "embd", "--json", "{}").stderr
        run(peer, "cron", "add", "nightly", "embed", "--schedule", "0 3 * * *")
        assert "did you mean nightly?" in run(peer, "cron", "get", "nightli").stderr
        assert run(peer, "cron", "rm", "nightli").code == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ("submit", "embed", "--json", "tea"),
        ("submit", "embed", "--json", "1", "--json", "2"),
        ("submit", "embed", "--output", "x"),
        ("submit", "embed", "--json", "{}", "--file", "inputs.jsonl"),
        ("submit", "embed", "--file", "/dev/null"),
        ("submit", "embed", "--tag", "monday"),
        ("cancel",),
        ("cancel", "a", "--group", "b"),
        ("wait",),
        ("ls", "--state", "asleep"),
    ],
)
def test_wrong_usage(run: Run, arguments: tuple[str, ...]) -> None:
    with jobs_peer() as peer:
        done = run(peer, "jobs", *arguments)
    assert (done.code, peer.asked) == (2, [])
    assert "Traceback" not in done.stderr


def test_cron_jobs(run: Run) -> None:
    terms = ("--schedule", "0 3 * * *", "--tz", "Europe/Lisbon")
    with jobs_peer() as peer:
        made = run(peer, "cron", "add", "nightly", "embed", *terms, "--json", '{"text": "tea"}', "--retries", "2")
        assert made.stdout.splitlines()[0] == "nightly calls embed"
        assert made.stdout.count("  next  ") == 3
        assert peer.crons["nightly"]["input"] == {"text": "tea"}
        assert peer.crons["nightly"]["options"]["retries"] == 2
        shown = json.loads(run(peer, "cron", "get", "nightly", "--json").stdout)
        assert (shown["schedule"], shown["tz"]) == ("0 3 * * *", "Europe/Lisbon")
        assert "0 3 * * * (Europe/Lisbon)" in run(peer, "cron", "get", "nightly").stdout
        assert [one["name"] for one in json.loads(run(peer, "cron", "ls", "--json").stdout)] == ["nightly"]
        assert "nightly" in run(peer, "cron", "ls").stdout
        assert json.loads(run(peer, "cron", "run", "nightly", "--json").stdout)["result"] == {"text": "tea"}
        assert json.loads(run(peer, "cron", "pause", "nightly", "--json").stdout)["enabled"] is False
        assert "paused" in run(peer, "cron", "ls").stdout
        assert "nightly runs again" in run(peer, "cron", "resume", "nightly").stdout
        assert json.loads(run(peer, "cron", "rm", "nightly", "--json").stdout) == {"name": "nightly", "removed": True}
        assert "no cron jobs yet" in run(peer, "cron", "ls").stdout


WEBHOOKS = {
    "events": [
        {"id": "0a.finished", "job": "0a", "function": "embed", "url": "https://x/h", "created_at_s": 1.0,
         "attempts": 3, "last_error": "[503] later"},
        {"id": "0b.failed", "job": "0b", "function": "embed", "url": "https://x/h", "created_at_s": 1.0,
         "gave_up_at_s": 2.0},
    ],
    "endpoints": [{"url": "https://x/h", "failures": 9, "failing_since_s": 1.0, "last_error": "no answer"}],
    "dropped": 7,
}  # fmt: skip


def webhook_routes(asked: Asked) -> Reply:
    secret = {"secret": "whsec_tea", "created_at_s": 1.0}
    answers: dict[str, Any] = {
        "GET /v1/webhooks": WEBHOOKS,
        "POST /v1/webhooks/replay": {"replayed": 1},
        "POST /v1/webhooks/enable": {"replayed": 2},
        "GET /v1/webhooks/secret": secret,
        "POST /v1/webhooks/secret/rotate": secret | {"secret": "whsec_fresh"},
    }
    return told(answers[f"{asked.method} {asked.path}"])


@pytest.mark.parametrize(
    ("arguments", "words", "body"),
    [
        (
            ("ls",),
            ["https://x/h", "no answer", "is tried", "0a.finished", "[503] later", "0b.failed", "given up"],
            None,
        ),
        (("replay", "0a.finished"), ["1 event is sent now"], {"event": "0a.finished"}),
        (("replay", "--job", "0a"), ["1 event is sent now"], {"job": "0a"}),
        (("enable", "https://x/h"), ["https://x/h is told again; 2 events are sent now"], {"url": "https://x/h"}),
        (("secret",), ["whsec_tea"], None),
        (("secret", "--rotate", "--overlap", "2h"), ["whsec_fresh"], {"overlap_s": 7200.0}),
    ],
)
def test_webhooks(run: Run, arguments: tuple[str, ...], words: list[str], body: Any) -> None:
    with jobs_peer(before=webhook_routes) as peer:
        done = run(peer, "webhooks", *arguments)
        as_json = run(peer, "webhooks", *arguments, "--json")
    assert done.code == 0, done.stderr
    assert [word for word in words if word not in done.stdout] == []
    json.loads(as_json.stdout)
    assert (json.loads(peer.asked[0].body) if peer.asked[0].body else None) == body
    assert "whsec" not in done.stderr


def test_nothing_undelivered_and_nothing_said(run: Run) -> None:
    with jobs_peer(before=lambda asked: told({"events": [], "endpoints": []})) as peer:
        assert run(peer, "webhooks", "ls").stdout == "everything was delivered\n"
        assert run(peer, "webhooks", "replay").code == 2


# ---- a file of jobs ------------------------------------------------------------------------------------------------


def inputs(folder: Path, count: int = 10) -> list[dict[str, int]]:
    """Write inputs.jsonl and return what is in it."""
    values = [{"n": n} for n in range(count)]
    (folder / "inputs.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    return values


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_job_for_every_line_and_its_result_on_the_same_line(run: Run, tmp_path: Path) -> None:
    values = inputs(tmp_path)
    command = ("jobs", "submit", "embed", "--file", "inputs.jsonl", "--batch", "3", "--retries", "1")
    with jobs_peer(spill) as peer:
        done = run(peer, *command, "--progress", "--output", "out.jsonl")
        assert (done.code, done.stdout) == (7, "9 of 10 finished, 1 failed: out.jsonl\n")
        assert "embed: 10 of 10 (100%), 1 failed" in done.stderr
        found = results(tmp_path / "out.jsonl")
        assert [row["line"] for row in found] == list(range(1, 11))
        assert [row.get("result") for row in found] == [*values[:3], None, *values[4:]]
        assert found[3]["error"]["code"] == "function_raised"
        assert all(job["retries"] == 1 for job in peer.jobs.values())

        again = run(peer, *command, "--output", "out.jsonl", "--json")
        assert json.loads(again.stdout) == {
            "function": "embed",
            "num_jobs": 10,
            "finished": 9,
            "failed": 1,
            "output": "out.jsonl",
        }
        assert len(peer.jobs) == 10, "nothing is submitted twice"
        run(peer, *command, "--output", "out.jsonl", "--restart")
        assert len(peer.jobs) == 20


def test_without_wait_a_file_is_only_submitted_and_collected_later(run: Run, tmp_path: Path) -> None:
    values = inputs(tmp_path)
    with jobs_peer(is_held=True) as peer:
        done = run(peer, "jobs", "submit", "embed", "--file", "inputs.jsonl", "--json")
        assert json.loads(done.stdout)["num_jobs"] == 10
        assert not (tmp_path / "inputs.results.jsonl").exists()
        peer.release()
        assert run(peer, "jobs", "submit", "embed", "--file", "inputs.jsonl", "--wait").code == 0
        assert len(peer.jobs) == 10
    assert [row["result"] for row in results(tmp_path / "inputs.results.jsonl")] == values


def test_what_was_changed_or_is_somebody_elses_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    inputs(tmp_path)
    command = ("jobs", "submit", "embed", "--file", "inputs.jsonl", "--wait")
    with jobs_peer() as peer:
        (tmp_path / "inputs.results.jsonl").write_text("mine\n")
        assert "is there already: --restart replaces it" in run(peer, *command).stderr
        (tmp_path / "inputs.results.jsonl").unlink()
        assert run(peer, *command).code == 0
        inputs(tmp_path, 11)
        changed = run(peer, *command)
        assert (changed.code, "differs in the file's content" in changed.stderr) == (6, True)
        (tmp_path / "inputs.jsonl").write_text('{"n": 1}\n{"n":\n')
        broken = run(peer, *command, "--output", "other.jsonl")
        assert broken.stderr.startswith("error inputs.jsonl:2: not JSON")
    assert len(peer.jobs) == 10


def test_a_whole_file_is_reduced(run: Run, tmp_path: Path) -> None:
    inputs(tmp_path, 4)
    with jobs_peer() as peer:
        done = run(peer, "jobs", "submit", "embed", "--file", "inputs.jsonl", "--wait", "--reduce", "join", "--json")
    assert json.loads(done.stdout)["reduced"] == [{"n": n} for n in range(4)]
    assert json.loads(peer.asked[0].body)["reduce"] == {"function": "join", "allow_failed": False}


def test_only_so_many_are_unfinished_at_a_time(run: Run, tmp_path: Path) -> None:
    inputs(tmp_path, 50)
    most = 0

    def count(asked: Asked, reply: Reply) -> Reply:
        nonlocal most
        most = max(most, sum(job["state"] == "queued" for job in peer.jobs.values()))
        if asked.method == "GET":
            peer.release()
            peer.is_held = True
        return reply

    with jobs_peer(is_held=True, after=count) as peer:
        command = ("jobs", "submit", "embed", "--file", "inputs.jsonl", "--batch", "5", "--max-in-flight", "20")
        assert run(peer, *command, "--wait").code == 0
    assert 15 < most <= 20


def test_results_that_were_forgotten_say_so(run: Run, tmp_path: Path) -> None:
    inputs(tmp_path, 2)
    with jobs_peer(is_held=True) as peer:
        run(peer, "jobs", "submit", "embed", "--file", "inputs.jsonl")
        peer.groups.clear()
        assert run(peer, "jobs", "submit", "embed", "--file", "inputs.jsonl", "--wait").code == 7
    assert [row["error"]["code"] for row in results(tmp_path / "inputs.results.jsonl")] == ["job_not_found"] * 2


def test_a_refusal_in_the_middle_is_gone_on_from(run: Run, tmp_path: Path) -> None:
    values = inputs(tmp_path)
    command = ("jobs", "submit", "embed", "--file", "inputs.jsonl", "--batch", "2", "--wait")
    with jobs_peer() as peer:
        full = problem(503, "store_full", "no memory left", retry_after_s=600)
        peer.before = lambda asked: full if len(peer.jobs) >= 4 and asked.path.endswith("/jobs") else None
        done = run(peer, *command)
        assert (done.code, len(peer.jobs)) == (8, 4)
        assert "no memory left" in done.stderr
        peer.before = lambda asked: None
        assert run(peer, *command).code == 0
        assert len(peer.jobs) == 10
    assert [row["result"] for row in results(tmp_path / "inputs.results.jsonl")] == values


@pytest.mark.parametrize("when", ["before an answer arrives", "while results are fetched"])
def test_killed_and_run_again_it_submits_nothing_twice(tmp_path: Path, when: str) -> None:
    values = inputs(tmp_path, NUM_LINES)
    is_late = when.startswith("while")
    process: subprocess.Popen[bytes] | None = None

    def kill(asked: Asked, reply: Reply) -> Reply:
        """The client dies at the moment the test is about; the peer has done what it was asked by then."""
        has_sent = len(peer.groups) >= 3
        is_due = has_sent and ("state=finished" in asked.path if is_late else asked.path.endswith("/jobs"))
        if process is not None and is_due:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
        return reply

    with jobs_peer(after=kill) as peer:
        environ = os.environ | {"SAMOVAR_URL": peer.url, "SAMOVAR_API_KEY": "k", "SAMOVAR_DATA_DIR": str(tmp_path)}
        command = [sys.executable, "-m", "samovar.cli", "jobs", "submit", "embed", "--file", "inputs.jsonl", "--wait"]
        command += ["--batch", "50", "--max-in-flight", "150"]
        with subprocess.Popen(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL) as process:
            code = process.wait(60)
        assert code == -signal.SIGKILL
        assert 0 < len(peer.jobs) < NUM_LINES
        process = None
        subprocess.run(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, check=True, timeout=60)
    assert [row["result"] for row in results(tmp_path / "inputs.results.jsonl")] == values
    assert len(peer.jobs) == NUM_LINES


@pytest.mark.parametrize("flags", [[], ["--cancel-on-interrupt"]])
def test_ctrl_c_leaves_the_jobs_running_unless_told_otherwise(tmp_path: Path, flags: list[str]) -> None:
    inputs(tmp_path)
    with jobs_peer(is_held=True) as peer:
        environ = os.environ | {"SAMOVAR_URL": peer.url, "SAMOVAR_API_KEY": "k", "SAMOVAR_DATA_DIR": str(tmp_path)}
        command = [sys.executable, "-m", "samovar.cli", "jobs", "submit", "embed", "--file", "inputs.jsonl", "--wait"]
        with subprocess.Popen(
            [*command, *flags], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            wait_until(lambda: [asked for asked in peer.asked if "/groups/" in asked.path])
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        states = {job["state"] for job in peer.jobs.values()}
    assert states == ({"canceled"} if flags else {"queued"})
    assert ("is cancelled" if flags else "10 of 10 lines are jobs and go on") in said
    assert "Traceback" not in said
