"""Moving traffic on all real processes, under load: nothing is dropped, and what is not fit gets nothing."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from samovar import deploying
from support.journeys import Caller
from support.platform import Platform, environment
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

GOOD = """import samovar as sv

@sv.function(name="{name}", example={{"n": 0}}, scaling=sv.Scaling(max_instances=2))
def f(n: int) -> dict[str, int]:
    {body}
"""
BROKEN = """import samovar as sv

@sv.function(name="{name}")
class F:
    def load(self, weights=None, device=None):
        raise OSError("no such model")

    def __call__(self, n: int) -> dict[str, int]:
        return {{"n": n}}
"""


class Rolling:
    """One function whose versions are written by the test. answers: what callers got so far, by status and version."""

    def __init__(self, platform: Platform, caller: Caller, name: str, folder: Path) -> None:
        self.platform, self.caller, self.name = platform, caller, name
        self.answers: Counter[tuple[int, str]] = Counter()
        self.bodies: list[Any] = []
        self._folder = folder

    def deploy(self, body: str, source: str = GOOD, **rollout: int | float | str) -> int:
        """Deploy the next version, with the query of the deploy."""
        (self._folder / "app.py").write_text(source.format(name=self.name, body=body))
        package = deploying.prepare(deploying.inspect(str(self._folder / "app.py")))
        deploying.upload(self.caller.client, package, deploying.plan(self.caller.client, package))
        return deploying.create(self.caller.client, package, rollout).version

    def cli(self, verb: str, *arguments: str) -> Any:
        """Return what `samovar VERB NAME … --json` printed."""
        command = [sys.executable, "-m", "samovar.cli", verb, self.name, *arguments, "--json"]
        environ = environment(SAMOVAR_DATA_DIR=str(self.platform.data_dir))
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def why(self) -> dict[str, Any]:
        found: dict[str, Any] = self.caller.http.get(f"/v1/functions/{self.name}/why").raise_for_status().json()
        return found

    @contextmanager
    def load(self, num_callers: int = 2) -> Iterator[None]:
        """Call the function all the while, each caller after the other's answer."""
        over = threading.Event()
        threads = [threading.Thread(target=self._call, args=(over,)) for _ in range(num_callers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _call(self, over: threading.Event) -> None:
        with Caller.of(self.platform) as mine:
            while not over.wait(0.01):
                answer = mine.invoke(self.name, {"n": 1})
                self.answers[answer.status_code, answer.headers.get("samovar-version", "")] += 1
                if answer.status_code == 200:
                    self.bodies.append(answer.json())

    def until_answered_by(self, version: int, num_calls: int = 20) -> None:
        """Wait for so many more answers of a version."""
        before = self.answers[200, str(version)]
        wait_until(lambda: self.answers[200, str(version)] >= before + num_calls, what=f"version {version} answers")

    def failed(self) -> dict[tuple[int, str], int]:
        return {key: count for key, count in self.answers.items() if key[0] != 200}


@pytest.fixture
def rolling(platform: Platform, caller: Caller, request: pytest.FixtureRequest, tmp_path: Path) -> Rolling:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:40].strip("-")
    return Rolling(platform, caller, name, tmp_path)


def test_deploys_and_rollbacks_drop_nothing(rolling: Rolling) -> None:
    rolling.deploy('return {"n": n}')
    rolling.caller.answer(rolling.name, {"n": 1})
    with rolling.load():
        rolling.until_answered_by(1)
        assert rolling.deploy('return {"n": n + 1}') == 2
        rolling.until_answered_by(2)
        assert rolling.deploy("", BROKEN) == 3
        wait_until(lambda: rolling.why()["boot_failures"], what="version 3 does not come up")
        rolling.until_answered_by(2)
        found = rolling.cli("why")
        assert found["serving"] == "previous" and "no such model" in str(found["boot_failures"])
        assert rolling.cli("rollback")["route"]["rejected"] == [3]
        rolling.until_answered_by(2)
        assert rolling.cli("rollback", "--to", "1", "--reason", "two is wrong")["route"]["shares"] == {"1": 100}
        rolling.until_answered_by(1)
        assert rolling.cli("undo")["route"]["shares"] == {"2": 100}
        rolling.until_answered_by(2)
        rolling.deploy('return {"n": n}', canary=50, sticky="")
        rolling.until_answered_by(4)
        rolling.until_answered_by(2)
        rolling.cli("promote")
        rolling.until_answered_by(4)
    assert rolling.failed() == {}, rolling.platform.log_tail()
    assert {version for _, version in rolling.answers} == {"1", "2", "4"}


def test_a_mirror_answers_nobody(rolling: Rolling) -> None:
    rolling.deploy('return {"n": n}')
    rolling.caller.answer(rolling.name, {"n": 1})
    with rolling.load(1):
        rolling.deploy('return {"n": n + 1}', mirror=100)
        wait_until(lambda: (rolling.why()["mirror"] or {}).get("different", 0) >= 5, what="answers are compared")
        rolling.cli("mirror", "--percent", "0")
        rolling.cli("pin", "1")
        rolling.deploy('return {"n": n + 1}')
        rolling.until_answered_by(1, 5)
    assert rolling.failed() == {} and {str(body) for body in rolling.bodies} == {"{'n': 1}"}


def test_a_failing_canary_rolls_back_by_itself(rolling: Rolling) -> None:
    rolling.deploy('return {"n": n}')
    rolling.caller.answer(rolling.name, {"n": 1})
    with rolling.load():
        rolling.deploy('return {"n": 1 // (1 - n)}', canary=30, auto=1, bake_s=60)
        wait_until(lambda: rolling.why()["route"]["rejected"] == [2], what="rolled back")
        found = rolling.why()
        assert found["route"]["canary"] is None and found["route"]["history"][0]["by"] == "auto"
        assert "of its calls fail" in found["route"]["history"][0]["reason"]
        wait_until(lambda: "rollback" in [decision["action"] for decision in rolling.why()["decisions"]], what="noted")
        rolling.answers.clear()
        rolling.until_answered_by(1, 50)
    assert {key for key in rolling.answers if key[1] == "1"} == {(200, "1")}
