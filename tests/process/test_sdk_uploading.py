"""Parts over real sockets: in parallel, retried, resumed, completed, and what ends an upload."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest

from samovar import errors, uploading
from samovar.client import Client
from samovar.uploading import BlobPlan, DonePart, Part, Source, upload_all
from support.http_peer import Asked, Peer, Reply, http_peer

pytestmark = pytest.mark.process

PART_BYTES = 1000


def source(content: bytes, path: Path | None = None) -> Source:
    if path is not None:
        path.write_bytes(content)
    return Source(hashlib.sha256(content).hexdigest(), len(content), "model.safetensors", path or content)


def plan_of(peer: Peer, blob: Source, done: tuple[int, ...] = ()) -> BlobPlan:
    num_parts = max(1, -(-blob.size_bytes // PART_BYTES))
    parts = [Part(n, f"{peer.url}/store/{blob.sha256}/{n}?signed=1") for n in range(1, num_parts + 1)]
    return BlobPlan(blob.sha256, False, PART_BYTES, num_parts, parts, [DonePart(n, f"e{n}") for n in done])


def stored(asked: Asked) -> Reply:
    return Reply(headers={"ETag": f"e{asked.path.partition('?')[0].rpartition('/')[2]}"})


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once."""
    monkeypatch.setattr(uploading, "FIRST_PAUSE_S", 0.0)


def test_every_part_arrives_once_and_the_blob_is_completed(tmp_path: Path) -> None:
    large, small = source(bytes(range(256)) * 15, tmp_path / "w"), source(b"tiny")
    told: list[int] = []
    with http_peer(stored) as peer, Client(peer.url, "sv_key") as client:
        plans = [plan_of(peer, large), plan_of(peer, small)]
        sent = upload_all(client, {large.sha256: large, small.sha256: small}, plans, told.append)
    assert sent == sum(told) == large.size_bytes + small.size_bytes
    parts = {asked.path: asked.body for asked in peer.asked_for(f"/store/{large.sha256}")}
    assert b"".join(parts[path] for path in sorted(parts)) == bytes(range(256)) * 15
    assert all("authorization" not in asked.headers for asked in peer.asked_for("/store")), "the key stays here"
    completed = {asked.path: json.loads(asked.body) for asked in peer.asked_for("/v1/uploads")}
    assert completed[f"/v1/uploads/{large.sha256}/complete"] == {
        "size_bytes": large.size_bytes,
        "parts": [{"number": n, "etag": f"e{n}"} for n in (1, 2, 3, 4)],
    }
    assert f"/v1/uploads/{small.sha256}/complete" in completed


def test_what_is_stored_is_not_sent_again(tmp_path: Path) -> None:
    blob = source(b"x" * 3500, tmp_path / "w")
    with http_peer(stored) as peer, Client(peer.url, "k") as client:
        assert upload_all(client, {blob.sha256: blob}, [plan_of(peer, blob, done=(1, 3))], lambda n: None) == 1500
        assert [asked.path[-10] for asked in sorted(peer.asked_for("/store"), key=lambda a: a.path)] == ["2", "4"]
        assert upload_all(client, {blob.sha256: blob}, [plan_of(peer, blob, done=(1, 2, 3, 4))], lambda n: None) == 0
    assert len(peer.asked_for("/v1/uploads")) == 2


def test_a_part_that_fails_is_sent_again_and_counted_once() -> None:
    blob, told = source(b"x" * 2500), list[int]()
    tries: Counter[str] = Counter()

    def flaky(asked: Asked) -> Reply:
        tries[asked.path] += 1
        return Reply(500) if "/store" in asked.path and tries[asked.path] < 3 else stored(asked)

    with http_peer(flaky) as peer, Client(peer.url, "k") as client:
        assert upload_all(client, {blob.sha256: blob}, [plan_of(peer, blob)], told.append) == 2500
    assert sum(told) == 2500
    assert len(peer.asked_for("/store")) == 9


def test_a_store_that_stays_broken_ends_it_with_advice() -> None:
    blob = source(b"x" * 100_000)
    with http_peer(lambda asked: Reply(403)) as peer, Client(peer.url, "k") as client:
        with pytest.raises(errors.StoreUnavailable, match=r"model.safetensors, part \d+: .* 403\. Deploy again"):
            upload_all(client, {blob.sha256: blob}, [plan_of(peer, blob)], lambda n: None)
    assert len(peer.asked_for("/store")) < 5 * 100, "the other parts were given up"
    assert not peer.asked_for("/v1/uploads")


def test_bytes_that_do_not_verify_raise_the_gateways_error() -> None:
    def answer(asked: Asked) -> Reply:
        problem = {"code": "deploy_refused", "detail": "the stored bytes have another SHA-256"}
        return Reply(422, json.dumps(problem).encode()) if "/complete" in asked.path else stored(asked)

    blob = source(b"tea")
    with http_peer(answer) as peer, Client(peer.url, "k") as client:
        with pytest.raises(errors.DeployRefused, match="another SHA-256"):
            upload_all(client, {blob.sha256: blob}, [plan_of(peer, blob)], lambda n: None)
