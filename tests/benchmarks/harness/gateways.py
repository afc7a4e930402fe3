"""Further gateways of a running platform, each on a port of its own, and the processes a platform consists of.

This module does not know what is measured.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.load import BenchmarkError
from harness.processes import command, end, tree
from harness.running import Platform, wait_until


def process_of(platform: Platform, part: str) -> int:
    """Return the first process of the platform whose command line holds `part`. Raises BenchmarkError."""
    for pid in tree(platform.pid):
        if part in command(pid):
            return pid
    raise BenchmarkError(f"the platform has no process {part!r}")


@contextmanager
def further_gateways(platform: Platform, count: int) -> Iterator[list[str]]:
    """Run `count` more gateways for the body of a `with`; yield the addresses of all, the platform's own first."""
    environ = Path(f"/proc/{process_of(platform, '-m samovar_gateway')}/environ").read_bytes().split(b"\0")
    config = next(entry.partition(b"=")[2] for entry in environ if entry.startswith(b"SAMOVAR_CONFIG="))
    started = []
    try:
        for number in range(count):
            log = platform.folder / f"gateway-{number}.log"
            arguments = ["-m", "samovar_gateway", "--port", "0", "--gateway-id", f"further-{number}"]
            with log.open("wb") as output:
                started.append(
                    subprocess.Popen(
                        [sys.executable, *arguments],
                        env=os.environ | {"SAMOVAR_CONFIG": config.decode()},
                        stdout=output,
                        stderr=output,
                    )
                )
        yield [platform.url.rstrip("/"), *(_address(platform, number) for number in range(count))]
    finally:
        end([process.pid for process in started])


def _address(platform: Platform, number: int) -> str:
    log = platform.folder / f"gateway-{number}.log"
    found = re.compile(r"listening on (http://\S+)")
    wait_until(lambda: found.search(log.read_text()) is not None, 60, f"gateway {number} listens")
    address = found.search(log.read_text())
    assert address is not None
    return address[1]
