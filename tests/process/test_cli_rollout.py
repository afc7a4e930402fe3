"""The rollout verbs: what they send, and what people read."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from samovar.cli.__main__ import run as run_command
from support.http_peer import Asked, Reply, http_peer

pytestmark = pytest.mark.process

ROUTE: dict[str, Any] = {
    "shares": {"1": 100},
    "latest": 3,
    "canary": {"version": 3, "percent": 10, "auto": True, "bake_s": 600.0},
    "mirror": {"version": 2, "percent": 5},
    "pinned": None,
    "rejected": [2],
    "previous": {"1": 100},
    "history": [],
}


@pytest.mark.parametrize(
    ("arguments", "command", "body"),
    [
        (("canary", "f", "--percent", "10"), "canary", {"version": 0, "percent": 10}),
        (
            ("canary", "f", "--to", "3", "--percent", "10", "--auto", "--bake", "10m", "--sticky", "key"),
            "canary",
            {"version": 3, "percent": 10, "auto": True, "bake_s": 600.0, "sticky": "key"},
        ),
        (("canary", "f", "--percent", "20", "--no-auto"), "canary", {"version": 0, "percent": 20, "auto": False}),
        (("promote", "f"), "promote", {}),
        (("rollback", "f", "--to", "2", "--reason", "wrong"), "rollback", {"to": 2, "reason": "wrong"}),
        (("pin", "f"), "pin", {"version": 0}),
        (("pin", "f", "2"), "pin", {"version": 2}),
        (("pin", "f", "--off"), "pin", {"off": True}),
        (("mirror", "f", "--to", "2", "--percent", "5"), "mirror", {"version": 2, "percent": 5}),
        (("undo", "f"), "undo", {}),
    ],
)
def test_each_verb_is_one_request(
    arguments: tuple[str, ...],
    command: str,
    body: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    answer = json.dumps({"name": "f", "route": ROUTE, "changed": "canary: version 3 at 10 %"}).encode()
    with http_peer(lambda _: Reply(200, answer)) as peer:
        monkeypatch.setenv("SAMOVAR_URL", peer.url)
        monkeypatch.setenv("SAMOVAR_API_KEY", "sv_key")
        assert run_command([*arguments]) == 0
        assert run_command([*arguments, "--json"]) == 0
    (asked, _) = peer.asked
    assert (asked.path, json.loads(asked.body)) == (f"/v1/functions/f/route/{command}", body)
    text, _, data = capfd.readouterr().out.rpartition("\n{")
    assert "canary 3: 10 %, by itself after 10m00s" in text and "rejected: 2" in text
    assert "version 1: 90 %" in text, "what it gets, not its share of what the canary leaves"
    assert json.loads("{" + data)["route"] == ROUTE


def test_why_tells_the_whole_story(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    now_s = time.time()
    found = {
        "name": "f",
        "route": ROUTE | {"history": [{"what": "deploy", "at_s": now_s - 5, "by": "abc", "reason": "version 3"}]},
        "serving": "previous",
        "ready": {"1": 2, "3": 0},
        "calls": {"openai": 12, "native": 3},
        "decisions": [
            {"at_s": now_s, "ref": "f@3", "action": "lost", "rule": "i-1: killed", "desired": 0},
            {"at_s": now_s, "ref": "f@3", "action": "scale", "rule": "rollout", "desired": 2},
        ],
        "boot_failures": {"f@3": {"ref": "f@3", "detail": "OSError: no such model"}},
        "breakers": {
            "f@1": {"state": "closed", "reason": "", "retry_after_s": 0.0},
            "f@2": {"state": "half_open", "reason": "crash_loop", "retry_after_s": 0.0},
            "f@3": {"state": "open", "reason": "error_rate", "retry_after_s": 3.94},
        },
        "trial": {"ref": "f@3", "action": "wait", "rule": "baking", "reason": "590 s to go"},
        "mirror": {"equal": 7, "different": 2, "failed": 0, "skipped": 1, "paths": {"$.score": 2}},
    }

    def answer(asked: Asked) -> Reply:
        return Reply(200, json.dumps(found).encode()) if asked.path == "/v1/functions/f/why" else Reply(404)

    with http_peer(answer) as peer:
        monkeypatch.setenv("SAMOVAR_URL", peer.url)
        monkeypatch.setenv("SAMOVAR_API_KEY", "sv_key")
        assert run_command(["why", "f"]) == 0
    text = capfd.readouterr().out
    for part in (
        "ready: version 1: 2, version 3: 0",
        "calls at this gateway: native 3, openai 12",
        "version 1 still serves: its successor is not ready",
        "f@3 does not come up: OSError: no such model",
        "f@2: its breaker lets probes through (crash loop)",
        "f@3: its breaker is open (error rate), next probe in 3.9s",
        "canary f@3: wait (baking): 590 s to go",
        "7 equal, 2 different, 0 failed, 1 skipped",
        "differs 2 times at $.score",
        "deploy: version 3 (by abc)",
        "f@3 lost (i-1: killed)\n",
        "f@3 scale (rollout), wanted 2",
    ):
        assert part in text, text
    assert "f@1: its breaker" not in text


def test_options_that_contradict_each_other_are_usage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMOVAR_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("SAMOVAR_API_KEY", "sv_key")
    for arguments in (
        ["pin", "f", "2", "--off"],
        ["canary", "f"],
        ["canary", "f", "--percent", "100"],
        ["deploy", "app.py", "--canary", "5", "--mirror", "5"],
        ["deploy", "app.py", "--auto"],
    ):
        assert run_command(arguments) == 2, arguments
