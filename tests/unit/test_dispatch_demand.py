"""Demand as it is read off versions, without Redis."""

from __future__ import annotations

from samovar.spec import BlobRef, Manifest
from samovar_dispatch.call import Version
from samovar_dispatch.demand import DemandWriter
from samovar_storage.records import Demand


def version() -> Version:
    """Return a version nobody has called."""
    blob = BlobRef(sha256="0" * 64, size_bytes=1)
    return Version(Manifest(name="f", version=1, entry="a:f", kind="function", handler="sync", code=blob))


async def test_a_call_that_ended_between_two_looks_still_counts_once() -> None:
    writer, called = DemandWriter("g"), version()
    called.active = True
    called.stats.submitted = 1
    writer.notice(called)
    assert writer.snapshot() == {"f@1": Demand(queued=0, running=1)}
    assert called.written_demand == 1
    assert writer.snapshot() == {}
    assert not called.active and called.written_demand == 0
    assert writer.snapshot() == {}


async def test_steady_traffic_is_never_seen_as_none() -> None:
    writer, called = DemandWriter("g"), version()
    writer.notice(called)
    for submitted in range(1, 5):
        called.stats.submitted = submitted
        assert writer.snapshot() == {"f@1": Demand(queued=0, running=1)}


async def test_all_that_a_job_worker_holds_counts_as_running() -> None:
    writer, called = DemandWriter("jobs-w", of_jobs=True), version()
    writer.notice(called)
    called.suspects.extend([None, None])  # type: ignore[list-item]  # who waits does not matter here
    assert writer.snapshot() == {"f@1": Demand(queued=0, running=2, jobs=2)}
