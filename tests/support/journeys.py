"""What the tests of whole platforms do with them: deploy as the CLI does, invoke, look, wait for zero."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from samovar import deploying
from samovar.client import Client
from support.platform import Platform
from support.waiting import PATIENCE_S, wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]  # of one `samovar ARGUMENTS`
FUNCTIONS = Path(__file__).parents[1] / "functions"
INVOKE_TIMEOUT_S = 90.0


class Caller:
    """A person with an admin key. Every method returns what the platform said."""

    def __init__(self, url: str, key: str) -> None:
        self.client = Client(url, key)
        self.http = httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, timeout=INVOKE_TIMEOUT_S)

    @classmethod
    def of(cls, platform: Platform) -> Caller:
        """Return a caller of this platform."""
        return cls(platform.url, platform.admin_key)

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.http.close()
        self.client.close()

    def deploy(self, folder: str | Path, name: str | None = None) -> int:
        """Deploy <folder>/app.py, of tests/functions if relative, under another name if given; return the version."""
        return self.publish(deploying.prepare(deploying.inspect(str(FUNCTIONS / folder / "app.py")), name=name))

    def publish(self, package: deploying.Package) -> int:
        """Make a version of what was prepared, wait until it serves and return it."""
        deploying.upload(self.client, package, deploying.plan(self.client, package))
        deployed = deploying.create(self.client, package)
        deploying.wait_until_serving(self.client, deployed, package.manifest.limits.load_timeout_s)
        return deployed.version

    def invoke(self, name: str, value: Any, **headers: str) -> httpx.Response:
        """Invoke a function with a JSON value."""
        return self.http.post(f"/v1/functions/{name}/invoke", content=json.dumps(value), headers=headers)

    def answer(self, name: str, value: Any) -> Any:
        """Return the decoded answer of a call that must succeed."""
        response = self.invoke(name, value, **{"samovar-timeout-ms": "60000"})
        assert response.status_code == 200, response.text
        return response.json()

    def scale(self, name: str, **scaling: float) -> None:
        """Override the function's scaling."""
        self.http.post(f"/v1/functions/{name}/scale", json=scaling).raise_for_status()

    def instances(self, name: str, *states: str) -> list[dict[str, Any]]:
        """Return the function's instances, those in one of `states` if any are given."""
        records: list[dict[str, Any]] = self.http.get("/v1/instances").raise_for_status().json()
        mine = [record for record in records if record.get("ref", "").rpartition("@")[0] == name]
        return [record for record in mine if not states or record["state"] in states]

    def wait_for_zero(self, name: str, timeout_s: float = PATIENCE_S) -> None:
        """Return once the function has no instance."""
        wait_until(lambda: not self.instances(name), timeout_s, f"{name} at zero")

    def logs(self, name: str) -> list[str]:
        """Return the lines the function printed."""
        answer = self.http.get(f"/v1/functions/{name}/logs?lines=1000").raise_for_status()
        return [json.loads(line)["line"] for line in answer.text.splitlines()]


def phases(response: httpx.Response) -> dict[str, float]:
    """Return the phases of an answer's Server-Timing header, in milliseconds."""
    entries = [entry.strip().split(";dur=") for entry in response.headers["server-timing"].split(",")]
    return {name: float(duration) for name, duration in entries}
