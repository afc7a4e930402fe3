"""What a person does, start to finish, with the command line and the Python client against a whole platform."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import samovar
from samovar import errors
from support.journeys import Run
from support.platform import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
EXAMPLES = Path(__file__).parents[2] / "functions" / "examples"
BROKEN = """import samovar as sv

@sv.function(name="steps")
class Steps:
    def load(self, weights=None, device=None):
        raise OSError("no tea")

    def __call__(self) -> dict[str, int]:
        return {"v": 3}
"""


@pytest.fixture
def client(platform: Platform) -> Iterator[samovar.Client]:
    with samovar.Client(platform.url, platform.admin_key) as client:
        yield client


def decoded(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_from_nothing_to_an_answer(run: Run, platform: Platform) -> None:
    run("init", "my-fn")
    deployed = run("deploy", "my-fn/app.py")
    assert "my-fn@1 is live" in deployed.stdout
    assert f"curl -X POST {platform.url}/v1/functions/my-fn/invoke" in deployed.stdout
    assert platform.admin_key not in deployed.stdout + deployed.stderr, "a pipe may be a log"
    cold = run("invoke", "my-fn", "--json", '{"text": "tea is ready"}', "-v")
    assert decoded(cold) == {"text": "you said: tea is ready", "words": 3}
    assert "my-fn@1 answered" in cold.stderr
    assert "load" in cold.stderr, "the receipt of a cold start shows its phases"

    again = decoded(run("deploy", "my-fn/app.py", "--json"))
    assert (again["version"], again["num_uploaded"], again["uploaded_bytes"]) == (2, 0, 0)
    dry = decoded(run("deploy", "my-fn/app.py", "--dry-run", "--json"))
    assert (dry["upload_bytes"], [blob["present"] for blob in dry["blobs"]]) == (0, [True])
    (listed,) = [entry for entry in decoded(run("ls", "--json")) if entry["name"] == "my-fn"]
    assert listed["latest"] == 2, "a dry run makes no version"

    wrong = run("invoke", "my-fn", "--json", '{"text": 1}', ok=False)
    assert (wrong.returncode, wrong.stdout) == (6, "")
    assert "$.text" in wrong.stderr
    missing = run("invoke", "my-fm", "--json", "{}", ok=False)
    assert missing.returncode == 5
    assert "my-fn" in missing.stderr, "near names are told"


def test_weights_go_up_once(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "weighty" / "model"
    model.mkdir(parents=True)
    (model / "w.safetensors").write_bytes(os.urandom(20 * 2**20))
    (model / "twin.safetensors").write_bytes((model / "w.safetensors").read_bytes())
    app = tmp_path / "weighty" / "app.py"
    app.write_text(
        "import hashlib, samovar as sv\n"
        "@sv.function(name='weighty', weights=sv.Weights('model'))\n"
        "class Weighty:\n"
        "    def load(self, weights, device):\n"
        "        self.found = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in weights.iterdir()}\n"
        "    def __call__(self) -> dict[str, str]:\n"
        "        return self.found\n"
    )
    first = decoded(run("deploy", str(app), "--json"))
    assert (first["num_blobs"], first["num_uploaded"]) == (2, 2), "equal files are one blob"
    found = decoded(run("invoke", "weighty"))
    assert len(set(found.values())) == 1
    assert set(found) == {"w.safetensors", "twin.safetensors"}
    app.write_text(app.read_text() + "\n# changed\n")
    second = decoded(run("deploy", str(app), "--json"))
    assert (second["version"], second["num_uploaded"]) == (2, 1)

    (model / "old.pt").write_bytes(b"\x80\x04N.")
    refused = run("deploy", str(app), ok=False)
    assert refused.returncode == 6
    assert "safetensors" in refused.stderr
    assert decoded(run("deploy", str(app), "--allow-pickle", "--json"))["version"] == 3


def test_streams_arrive_item_by_item(run: Run, client: samovar.Client) -> None:
    run("deploy", str(EXAMPLES / "countdown" / "app.py"))
    lines = run("invoke", "countdown", "--json", '{"text": "one two", "pause_s": 0}').stdout.splitlines()
    assert [json.loads(line)["word"] for line in lines] == ["one", "two"]
    countdown = client.function("countdown")
    assert [item["left"] for item in countdown.stream({"text": "a b c", "pause_s": 0})] == [2, 1, 0]
    with pytest.raises(errors.InvalidInput, match=r"\$\.text"):
        list(countdown.stream({"text": None}))


def test_operating_a_function(run: Run, client: samovar.Client, tmp_path: Path) -> None:
    run("init", "tended")
    app = tmp_path / "tended" / "app.py"
    app.write_text(app.read_text().replace("        return {", "        print('poured', text)\n        return {"))
    run("deploy", str(app))
    run("warm", "tended", "--instances", "1", "--for", "10m")

    def ready() -> Any:
        return [i for i in decoded(run("ps", "tended", "--json")) if i["state"] == "ready"]

    (instance,) = wait_until(ready)
    assert instance["ref"] == "tended@1"
    assert "token" not in instance or not instance["token"]
    assert client.function("tended").invoke({"text": "tea"})["words"] == 1

    def printed() -> list[str]:
        return [json.loads(line)["line"] for line in run("logs", "tended", "--json").stdout.splitlines()]

    wait_until(lambda: "poured tea" in printed())
    assert "poured tea\n" in run("logs", "tended").stdout
    run("scale", "tended", "--max", "2", "--window", "5m")
    view = client.request("GET", "/v1/functions/tended")
    assert json.loads(view.content)["route"]["scaling"]["max_instances"] == 2
    for verb in ("ls", "ps"):
        assert "tended" in run(verb).stdout
    assert not [v for v in decoded(run("doctor", "--json")) if v["level"] == "fail"]
    run("rm", "tended", "--yes")
    assert run("invoke", "tended", ok=False).returncode == 5


def test_a_deploy_ends_when_the_new_version_answers_or_says_why_it_does_not(run: Run, tmp_path: Path) -> None:
    source = (
        "import samovar as sv\n\n@sv.function(name='steps', example={{}})\ndef steps() -> dict[str, int]:\n    {}\n"
    )
    app = tmp_path / "app.py"
    app.write_text(source.format("return {'v': 1}"))
    run("deploy", "app.py")
    assert decoded(run("invoke", "steps", "--json", "{}")) == {"v": 1}
    app.write_text(source.format("return {'v': 2}"))
    run("deploy", "app.py")
    assert decoded(run("invoke", "steps", "--json", "{}")) == {"v": 2}, "the first call after a deploy is the new one's"
    app.write_text(BROKEN)
    done = run("deploy", "app.py", ok=False)
    assert done.returncode == 7 and "no tea" in done.stderr and "goes on" in done.stderr
    assert decoded(run("invoke", "steps", "--json", "{}")) == {"v": 2}


def test_keys_open_what_they_are_for(run: Run, platform: Platform) -> None:
    run("deploy", str(EXAMPLES / "echo_sum"), "--name", "sums")
    key = run("keys", "create", "caller", "--scope", "invoke", "--function", "sums").stdout.strip()
    (listed,) = [entry for entry in decoded(run("keys", "ls", "--json")) if entry["name"] == "caller"]
    with samovar.Client(platform.url, key) as client:
        assert client.function("sums").invoke({"x": [1, 2.5]}) == {"sum": 3.5}
        with pytest.raises(errors.Forbidden):
            client.request("DELETE", "/v1/functions/sums")
        run("keys", "rm", listed["key_id"])
        with pytest.raises(errors.Unauthenticated):
            wait_until(lambda: client.function("sums").invoke({"x": []}) is None)


async def test_the_async_client_shares_its_connections(run: Run, platform: Platform) -> None:
    run("deploy", str(EXAMPLES / "echo_sum"), "--name", "many-sums")
    async with samovar.AsyncClient(platform.url, platform.admin_key, max_connections=4) as client:
        sums = client.function("many-sums")
        answers = await asyncio.gather(*(sums.invoke({"x": [n, 1]}, timeout_s=60) for n in range(50)))
    assert [answer["sum"] for answer in answers] == [n + 1 for n in range(50)]
