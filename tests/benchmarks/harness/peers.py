"""The peers: their drivers live beside the repository, they themselves in environments of their own.

PEERS_BENCH names the folder of the drivers (default `../shared/peers-bench` beside the repository), PEERS_ROOT the
folder that holds one environment per peer (default `venvs` among the drivers). A peer that is missing is reported,
never silently left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.load import BenchmarkError
from harness.running import ROOT

Work = Literal["W0", "W1"]
_START_TIMEOUT_S = 240


@dataclass(frozen=True)
class PeerLoad:
    """A peer under one number of connections."""

    rps: float
    p50_ms: float
    p99_ms: float
    cpu_ms_per_call: float


@dataclass(frozen=True)
class PeerRun:
    """A peer from its start to its end. cold_s: start to first answer. pss_mib: all its processes after the load."""

    cold_s: float
    pss_mib: float
    loads: dict[int, PeerLoad]


def drivers() -> Path:
    """Return the folder of the drivers."""
    return Path(os.environ.get("PEERS_BENCH") or ROOT.parent / "shared" / "peers-bench")


def environments() -> Path:
    """Return the folder that holds one environment per peer."""
    return Path(os.environ.get("PEERS_ROOT") or drivers() / "venvs").absolute()


def why_missing(peer: str) -> str | None:
    """Return why `peer` cannot be measured here, or None if it can."""
    if not (drivers() / "run.py").exists():
        return f"{peer} not measured: no drivers in {drivers()} (set PEERS_BENCH)"
    if not (environments() / peer / "bin" / "python").exists():
        return f"{peer} not measured: no environment {environments() / peer} (set PEERS_ROOT)"
    return None


def parse_row(row: dict[str, Any]) -> PeerRun:
    """Return the run that a driver wrote as one JSON line. Raises BenchmarkError if any answer was bad."""
    bad = [cell for cell in row["cells"] if cell["bad"] or cell["sock_err"]]
    if bad:
        raise BenchmarkError(f"{row['peer']} answered wrongly: {bad}")
    loads = {
        cell["c"]: PeerLoad(cell["rps"], cell["p50"], cell["p99"], cell["cpu_ms_per_req"]) for cell in row["cells"]
    }
    return PeerRun(row["cold_s"], row["mem_end"]["pss_mib"], loads)


def run_peer(
    peer: str, work: Work, connections: Sequence[int], seconds: int, cores: str = "0", wrk_cores: str = "1"
) -> PeerRun:
    """Start the peer, time its first answer, load it at each number of connections, end it.

    Args:
        peer: a name of the drivers, such as "mosec", that `why_missing` has nothing against.
        seconds: of each load, >= 1.
    Raises: BenchmarkError with the driver's own words if it did not get there.
    """
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        out = Path(folder) / "row.jsonl"
        command = [sys.executable, str(drivers() / "run.py"), peer, work, "--secs", str(seconds), "--out", str(out)]
        command += ["--conc", ",".join(map(str, connections)), "--server-cpu", cores, "--wrk-cpu", wrk_cores]
        done = subprocess.run(
            command,
            env=os.environ | {"PEERS_ROOT": str(environments())},
            capture_output=True,
            text=True,
            timeout=_START_TIMEOUT_S + 2 * seconds * len(connections),
            check=False,
        )
        if not out.exists():
            raise BenchmarkError(f"{peer} {work}: {(done.stdout + done.stderr).strip()[-1500:]}")
        return parse_row(json.loads(out.read_text()))
