"""The audit log on the real object store: what was noted is read back, and an outage loses nothing below the cap."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from samovar.errors import StoreUnavailable
from samovar_storage import audit
from samovar_storage.audit import AuditEntry, AuditLog
from samovar_storage.objects import ObjectStore
from support.stores import Stores

NOON_S = 1_800_014_400.0


@dataclass
class Clock:
    now_s: float = NOON_S

    def __call__(self) -> float:
        return self.now_s


def entry(at_s: float, path: str = "/v1/keys") -> AuditEntry:
    return AuditEntry(at_s=at_s, key_id="0123456789ab", method="POST", path=path, status=201, change={"name": "ci"})


def test_entries_of_several_gateways_and_days_are_read_in_order(object_store: ObjectStore) -> None:
    clock = Clock(NOON_S - 86_400)
    first, second = AuditLog(object_store, "g1", clock), AuditLog(object_store, "g2", clock)
    first.note(entry(clock.now_s, "/yesterday"))
    assert first.flush() == 1 and first.flush() == 0
    clock.now_s = NOON_S
    second.note(entry(NOON_S - 10, "/b"))
    second.flush()
    first.note(entry(NOON_S - 20, "/a"))
    first.note(entry(NOON_S - 5, "/c"))
    first.flush()
    assert [found.path for found in first.read(NOON_S - 3600, 100)] == ["/a", "/b", "/c"]
    assert [found.path for found in second.read(NOON_S - 2 * 86_400, 100)] == ["/yesterday", "/a", "/b", "/c"]
    assert [found.path for found in second.read(NOON_S - 15, 100)] == ["/b", "/c"]
    assert [found.path for found in second.read(NOON_S - 2 * 86_400, 1)] == ["/c"]
    newest = second.read(NOON_S - 3600, 100)[-1]
    assert (newest.gateway, newest.key_id, newest.status, newest.change) == ("g1", "0123456789ab", 201, {"name": "ci"})
    names = [info.key for info in object_store.list("audit/")]
    assert len(names) == 3 and names[0].startswith("audit/date=") and names[0].endswith(".jsonl")


def test_what_the_store_did_not_take_waits_up_to_a_cap(
    object_store: ObjectStore, stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = stores.settings(tmp_path)
    away = ObjectStore.from_settings(msgspec.structs.replace(settings, s3_endpoint="http://127.0.0.1:1"))
    monkeypatch.setattr(audit, "MAX_WAITING_BYTES", 1000)
    log, clock = AuditLog(away, "g1", Clock()), Clock()
    for number in range(50):
        log.note(entry(clock.now_s, f"/{number}"))
    with pytest.raises(StoreUnavailable):
        log.flush()
    away.close()
    kept = 50 - log.num_dropped
    assert 0 < kept < 50 and not log.is_empty()
    log._store = object_store  # it is back
    assert log.flush() == kept + 1 and log.is_empty()
    found = log.read(NOON_S - 60, 100)
    assert {f"/{number}" for number in range(kept)} <= {one.path for one in found}
    assert [one.change["dropped"] for one in found if not one.method] == [50 - kept]
    log.note(entry(clock.now_s, "/later"))
    assert log.flush() == 1


def test_strangers_cannot_fill_the_log(object_store: ObjectStore) -> None:
    log, stranger = AuditLog(object_store, "g1", Clock()), msgspec.structs.replace(entry(NOON_S), key_id="", status=401)
    for _ in range(audit.MAX_STRANGERS + 50):
        log.note(stranger)
    log.note(entry(NOON_S, "/real"))
    assert log.num_dropped == 50
    assert log.flush() == audit.MAX_STRANGERS + 2
    told = log.read(NOON_S - 60, 1000)
    assert "/real" in {one.path for one in told}
    assert [one.change["dropped"] for one in told if not one.method] == [50]
    log.note(stranger)
    assert log.flush() == 1, "there is room again"
