"""The command line as people run it: its own arguments, a real socket, an exit code, one sentence."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from samovar.cli.__main__ import run as run_command
from samovar.cli.root import VERBS
from samovar.values import NAME_PATTERN
from support.http_peer import Asked, Peer, Reply, http_peer

pytestmark = pytest.mark.process

Run = Callable[..., "Done"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `samovar ARGUMENTS` in an empty folder, with no platform known but the one given as `url`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAMOVAR_DATA_DIR", str(tmp_path / "data"))

    def samovar(*arguments: str, url: str = "", stdin: str = "") -> Done:
        monkeypatch.setenv("SAMOVAR_URL", url)
        monkeypatch.setenv("SAMOVAR_API_KEY", "sv_key" if url else "")
        with io.TextIOWrapper(io.BytesIO(stdin.encode())) as given:
            monkeypatch.setattr(sys, "stdin", given)
            capfd.readouterr()
            code = run_command(list(arguments))
        return Done(code, *capfd.readouterr())

    return samovar


def test_the_command_is_a_process_with_an_exit_code(tmp_path: Path) -> None:
    environ = {"SAMOVAR_DATA_DIR": str(tmp_path)}
    for arguments, code, text in ((["--version"], 0, "samovar 0."), (["ls"], 10, "samovar up"), (["brew"], 2, "brew")):
        command = [sys.executable, "-m", "samovar.cli", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, text in done.stdout + done.stderr) == (code, True)


def problem(status: int, code: str, detail: str, **extra: Any) -> Reply:
    return Reply(status, json.dumps({"code": code, "detail": detail, **extra}).encode())


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "up"])
def test_every_verb_has_help(run: Run, verb: str) -> None:
    done = run(verb, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith(f"Usage: samovar {verb}")


def test_help_lists_every_verb_and_version_is_short(run: Run) -> None:
    listed = run("--help").stdout
    assert all(f"\n  {verb} " in listed and text in listed for verb, (_, text) in VERBS.items())
    assert run("--version").stdout.startswith("samovar 0.")


def test_a_new_function_is_there_at_once_and_never_overwritten(run: Run, tmp_path: Path) -> None:
    assert run("init", "my-fn").returncode == 0
    app = (tmp_path / "my-fn" / "app.py").read_text()
    again = run("init", "my-fn")
    assert (again.returncode, again.stderr) == (6, "error my-fn exists already; nothing was changed\n")
    assert (tmp_path / "my-fn" / "app.py").read_text() == app
    code = "import app, json; f = app.MyFn(); f.load(None, 'cpu'); print(json.dumps(f(text='tea is ready')))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "my-fn", capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["words"] == 3
    assert run("init", "Bad_Name").returncode == 6
    assert NAME_PATTERN.match("3d")
    assert run("init", "3d").returncode == 0


@pytest.mark.parametrize(
    ("reply", "exit_code", "sentence"),
    [
        (problem(401, "unauthenticated", "the key is wrong"), 4, "the key is wrong"),
        (problem(404, "function_not_found", "no 'ad'; near: add"), 5, "no 'ad'; near: add"),
        (problem(422, "invalid_input", "$.text: Expected `str`", path="$.text"), 6, "$.text: Expected `str`"),
        (problem(500, "function_raised", "ValueError: no", type="ValueError"), 7, "ValueError: no"),
        (problem(503, "queue_full", "too many wait"), 8, "too many wait"),
        (problem(504, "deadline_exceeded", "too late", phase="run"), 9, "too late"),
        (problem(429, "rate_limited", "2/s", retry_after_s=0.71), 8, "2/s\n  try again in 0.7s"),
        (Reply(500, b"oops"), 1, "the gateway answered 500"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(run: Run, reply: Reply, exit_code: int, sentence: str) -> None:
    with http_peer(lambda asked: reply) as peer:
        done = run("invoke", "add", "--json", "{}", url=peer.url)
    assert (done.returncode, done.stdout, done.stderr) == (exit_code, "", f"error {sentence}\n")


def test_no_platform_and_nobody_there(run: Run) -> None:
    done = run("ls")
    assert (done.returncode, done.stderr.count("\n")) == (10, 1)
    assert "samovar up" in done.stderr
    done = run("ls", "--json", url="http://127.0.0.1:1")
    assert done.returncode == 3
    assert "samovar up" in run("ls", url="http://127.0.0.1:1").stderr
    assert json.loads(done.stderr)["error"]["code"] == "unreachable"
    assert "Traceback" in run("ls", "--debug", url="http://127.0.0.1:1").stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("brew",),
        ("invoke",),
        ("invoke", "add", "--json", "{}", "--file", "app.py"),
        ("warm", "add", "--for", "soon"),
        ("scale", "add"),
        ("scale", "add", "--max", "0"),
        ("rm", "add"),
        ("keys", "create", "me", "--scope", "root"),
    ],
)
def test_wrong_usage_is_exit_code_2(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments, url="http://127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_in_a_pipe_is_the_functions_own_bytes(run: Run) -> None:
    headers = {
        "Content-Type": "application/json",
        "Samovar-Version": "2",
        "Server-Timing": "queue;dur=1, run;dur=3",
    }
    with http_peer(lambda asked: Reply(body=b'{"sum":  3}', headers=headers)) as peer:
        by_flag = run("invoke", "add", "--json", '{"x": [1, 2]}', "--timeout", "2", "-v", url=peer.url)
        by_stdin = run("invoke", "add", url=peer.url, stdin='{"x": [3]}')
    assert by_flag.stdout == by_stdin.stdout == '{"sum":  3}\n'
    assert "add@2" in by_flag.stderr
    assert by_flag.stderr.count("█") == 40 + 13
    assert by_stdin.stderr == ""
    assert [asked.body for asked in peer.asked] == [b'{"x": [1, 2]}', b'{"x": [3]}']
    assert peer.asked[0].headers["samovar-timeout-ms"] == "2000"


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({"Samovar-Fallback": "cached", "Age": "7"}, "add@2 (fallback: cached, age in seconds: 7) answered"),
        ({"Samovar-Fallback": "function", "Samovar-Function": "sum"}, "sum@2 (fallback: function) answered"),
        ({"Cache-Status": "samovar; hit; ttl=4"}, "add@2 (cache: samovar; hit; ttl=4) answered"),
    ],
)
def test_a_receipt_says_what_stood_in(run: Run, headers: dict[str, str], sentence: str) -> None:
    with http_peer(lambda asked: Reply(headers={"Samovar-Version": "2"} | headers)) as peer:
        assert sentence in run("invoke", "add", "-v", url=peer.url).stderr


def test_a_stream_is_printed_line_by_line_and_its_error_ends_it(run: Run) -> None:
    failed = {"error": {"type": "urn:samovar:problem:function_raised", "code": "function_raised", "detail": "spilt"}}
    body = b'{"left":1}\n' + json.dumps(failed).encode() + b"\n"
    headers = {"Content-Type": "application/x-ndjson"}
    with http_peer(lambda asked: Reply(body=body, headers=headers, cut=True)) as peer:
        done = run("invoke", "countdown", url=peer.url)
    assert (done.returncode, done.stdout, done.stderr) == (7, '{"left":1}\n', "error spilt\n")


FUNCTION = {
    "name": "add",
    "route": {"name": "add", "shares": {"1": 10, "2": 90}, "latest": 2},
    "states": {"ready": 1},
}
DETAIL = {
    "status": {"add@2": {"ready": 1, "desired": 3}},
    "decisions": [{"at_s": 0, "action": "start", "rule": "panic", "desired": 3, "ready": 1, "ref": "add@2"}],
}
INSTANCE = {
    "instance_id": "i-1", "state": "ready", "ref": "add@2", "pid": 42, "memory_bytes": 20 * 2**20, "device": "cpu",
    "started_at_s": 1.0, "from_template": True, "boot_ms": {"load": 12.0, "import": 3.0},
}  # fmt: skip
KEY = {"key_id": "k1", "name": "ci", "scopes": ["deploy"], "functions": []}
LIMITED = KEY | {"rate": "20/s", "burst": 40, "max_priority": "low"}
AUDITED = {
    "at_s": 1000.0,
    "key_id": "k1",
    "method": "POST",
    "path": "/v1/keys",
    "status": 201,
    "change": {"name": "ci", "burst": 0},
}


def gateway(asked: Asked) -> Reply:
    answers: dict[str, Any] = {
        "GET /v1/functions": [FUNCTION],
        "GET /v1/functions/add": FUNCTION | DETAIL,
        "GET /v1/instances": [INSTANCE, {"instance_id": "i-2", "state": "blank", "started_at_s": 1.0}],
        "GET /v1/keys": [LIMITED],
        "POST /v1/keys": KEY | {"key": "sv_k1_secret"},
        "POST /v1/keys/k1/rotate": KEY | {"key": "sv_k1_another"},
        "GET /v1/audit?since_s=7200.000&limit=1000": [AUDITED, AUDITED | {"key_id": "", "status": 401, "change": None}],
    }
    return Reply(body=json.dumps(answers.get(f"{asked.method} {asked.path}", {})).encode())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ls",), ["add", "2", "1/3", "1: 10 %, 2: 90 %", "start (panic)"]),
        (("ps",), ["i-1", "add@2", "42", "20.0 MiB", "15 ms from template", "i-2", "blank"]),
        (("ps", "add"), ["i-1"]),
        (("keys", "ls"), ["k1", "ci", "deploy", "all", "20/s, bursts of 40; priority up to low", "never"]),
        (("keys", "list"), ["k1", "ci", "deploy", "all"]),
        (("keys", "rotate", "k1"), ["sv_k1_another"]),
        (("keys", "revoke", "k1"), ["revoked k1"]),
        (("audit", "--since", "2h"), ["1970-01-01 00:16:40", "POST /v1/keys", "201", "name=ci", "nobody", "401"]),
        (("keys", "create", "ci", "--scope", "deploy"), ["sv_k1_secret"]),
        (("warm", "add", "--instances", "2", "--for", "30m"), ["add: 2 instances kept ready for 30m00s"]),
        (("scale", "add", "--min", "1", "--window", "5m"), ["min_instances 1, scale_down_window_s 300"]),
        (("rm", "add", "--yes"), ["removed add"]),
        (("keys", "rm", "k1"), ["revoked k1"]),
    ],
)
def test_tables_and_sentences(run: Run, arguments: tuple[str, ...], words: list[str]) -> None:
    with http_peer(gateway) as peer:
        done = run(*arguments, url=peer.url)
        as_json = run(*arguments, "--json", url=peer.url)
    assert done.returncode == 0, done.stderr
    assert [word for word in words if word not in done.stdout] == []
    json.loads(as_json.stdout)
    assert "i-2" not in done.stdout or arguments != ("ps", "add")


def sent(peer: Peer) -> list[tuple[str, str, Any]]:
    return [(asked.method, asked.path, json.loads(asked.body) if asked.body else None) for asked in peer.asked]


def test_what_is_sent(run: Run) -> None:
    slow = {
        "name": "slow",
        "scopes": ["invoke"],
        "functions": [],
        "rate": "20/s",
        "burst": 40,
        "max_priority": "normal",
    }
    with http_peer(gateway) as peer:
        run("warm", "add", "--instances", "2", "--for", "1h", url=peer.url)
        run("scale", "add", "--max", "4", "--target-concurrency", "2.5", url=peer.url)
        run("rm", "add", "--yes", url=peer.url)
        run("keys", "create", "ci", "--scope", "invoke", "--function", "add", url=peer.url)
        run("keys", "create", "slow", "--rate", "20/s", "--burst", "40", "--max-priority", "normal", url=peer.url)
        run("keys", "rotate", "k1", "--overlap", "2h", url=peer.url)
        run("keys", "revoke", "k1", url=peer.url)
    assert sent(peer) == [
        ("POST", "/v1/functions/add/warm", {"instances": 2, "for_s": 3600.0}),
        ("POST", "/v1/functions/add/scale", {"max_instances": 4, "target_concurrency": 2.5}),
        ("DELETE", "/v1/functions/add", None),
        ("POST", "/v1/keys", {"name": "ci", "scopes": ["invoke"], "functions": ["add"]}),
        ("POST", "/v1/keys", slow),
        ("POST", "/v1/keys/k1/rotate", {"overlap_s": 7200.0}),
        ("DELETE", "/v1/keys/k1", None),
    ]


def test_an_expiry_is_sent_as_an_instant(run: Run) -> None:
    with http_peer(gateway) as peer:
        run("keys", "create", "brief", "--expires", "30d", url=peer.url)
    [(_, _, body)] = sent(peer)
    assert body["expires_at_s"] == pytest.approx(time.time() + 30 * 86_400, abs=60)


def test_logs(run: Run) -> None:
    line = {"at_s": 0, "ref": "add@2", "instance": "node-i-1", "stream": "stderr", "line": "poured"}
    body = json.dumps(line).encode() + b"\n"
    with http_peer(lambda asked: Reply(body=body, headers={"Content-Type": "application/x-ndjson"})) as peer:
        done, as_json = (
            run("logs", "add", "--lines", "5", url=peer.url),
            run("logs", "add", "-f", "--json", url=peer.url),
        )
    assert "add@2 node-i-1 poured" in done.stdout
    assert json.loads(as_json.stdout) == line
    assert [asked.path for asked in peer.asked] == [
        "/v1/functions/add/logs?lines=5&follow=0",
        "/v1/functions/add/logs?lines=100&follow=1",
    ]


def test_doctor_says_what_to_do(run: Run) -> None:
    done = run("doctor", "--json")
    verdicts = {verdict["what"]: verdict for verdict in json.loads(done.stdout)}
    assert done.returncode == 1
    assert verdicts["gateway"]["level"] == "fail"
    assert "samovar up" in verdicts["gateway"]["advice"]
    assert {"python", "torch", "valkey", "seaweedfs", "data folder", "disk", "memory", "sandbox"} <= set(verdicts)
