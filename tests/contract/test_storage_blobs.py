"""Uploads through presigned URLs: one PUT or parts, resumed half-way, verified over the stored bytes."""

from __future__ import annotations

import httpx
import pytest
import redis as redis_sync

from samovar.errors import InvalidInput
from samovar.spec import BlobRef
from samovar_storage.blobs import Blobs, UploadPlan, blob_key, verified_key
from samovar_storage.objects import ObjectStore
from support.versions import sha256

MIB = 1024 * 1024
SMALL = b"small blob"
LARGE = b"".join(bytes([number]) * (16 * MIB) for number in range(2)) + b"tail"


@pytest.fixture
def blobs(object_store: ObjectStore, redis: redis_sync.Redis) -> Blobs:
    return Blobs(object_store, redis)


def ref(data: bytes) -> BlobRef:
    return BlobRef(sha256=sha256(data), size_bytes=len(data))


def send(plan: UploadPlan, data: bytes, numbers: set[int] | None = None) -> None:
    """PUT the plan's parts (or only those numbered so), as the CLI does: with no credential but the URLs."""
    with httpx.Client(timeout=60) as client:
        for part in plan.parts:
            if numbers is None or part.number in numbers:
                start = (part.number - 1) * plan.part_bytes
                answer = client.put(part.url, content=data[start : start + plan.part_bytes])
                assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("data", [SMALL, b"", LARGE], ids=["small", "empty", "large"])
def test_an_upload_is_planned_sent_and_verified(blobs: Blobs, object_store: ObjectStore, data: bytes) -> None:
    (plan,) = blobs.plan([ref(data)])
    assert not plan.present and len(plan.parts) == plan.num_parts
    send(plan, data)
    blobs.complete(sha256(data), len(data))
    assert object_store.get(blob_key(sha256(data)))[0] == data
    assert object_store.get(verified_key(sha256(data)))[0].startswith(b"%d " % len(data))
    assert blobs.plan([ref(data)]) == [UploadPlan(sha256=sha256(data), present=True)]
    blobs.complete(sha256(data), len(data))


def test_a_half_upload_goes_on_where_it_stopped(blobs: Blobs) -> None:
    (plan,) = blobs.plan([ref(LARGE)])
    assert [part.number for part in plan.parts] == [1, 2, 3] and plan.part_bytes == 16 * MIB
    send(plan, LARGE, {2})
    with pytest.raises(InvalidInput, match="part 1"):
        blobs.complete(sha256(LARGE), len(LARGE))
    (rest,) = blobs.plan([ref(LARGE)])
    assert [part.number for part in rest.parts] == [1, 3]
    assert [part.number for part in rest.done_parts] == [2]
    send(rest, LARGE)
    blobs.complete(sha256(LARGE), len(LARGE))
    assert blobs.is_present(ref(LARGE))


def test_what_arrived_but_was_never_verified_only_has_to_be(blobs: Blobs) -> None:
    (plan,) = blobs.plan([ref(SMALL)])
    send(plan, SMALL)
    (again,) = blobs.plan([ref(SMALL)])
    assert not again.present and not again.parts and [part.number for part in again.done_parts] == [1]
    blobs.complete(sha256(SMALL), len(SMALL))
    assert blobs.is_present(ref(SMALL))


@pytest.mark.parametrize("wrong", [b"other blob", b"shorter"], ids=["content", "size"])
def test_other_bytes_than_promised_are_deleted(blobs: Blobs, object_store: ObjectStore, wrong: bytes) -> None:
    (plan,) = blobs.plan([ref(SMALL)])
    send(plan, wrong)
    with pytest.raises(InvalidInput, match="SHA-256"):
        blobs.complete(sha256(SMALL), len(SMALL))
    assert object_store.head(blob_key(sha256(SMALL))) is None
    assert not blobs.is_present(ref(SMALL))
    (again,) = blobs.plan([ref(SMALL)])
    send(again, SMALL)
    blobs.complete(sha256(SMALL), len(SMALL))


def test_a_link_that_outlives_the_verification_changes_nothing_unseen(blobs: Blobs, object_store: ObjectStore) -> None:
    (plan,) = blobs.plan([ref(SMALL)])
    send(plan, SMALL)
    blobs.complete(sha256(SMALL), len(SMALL))
    send(plan, SMALL)
    assert blobs.is_present(ref(SMALL))
    send(plan, SMALL[::-1])
    assert not blobs.is_present(ref(SMALL))
    with pytest.raises(InvalidInput, match="SHA-256"):
        blobs.complete(sha256(SMALL), len(SMALL))
    (again,) = blobs.plan([ref(SMALL)])
    send(again, SMALL)
    blobs.complete(sha256(SMALL), len(SMALL))
    assert object_store.get(blob_key(sha256(SMALL)))[0] == SMALL


def test_links_of_parts_end_with_their_upload(blobs: Blobs, object_store: ObjectStore) -> None:
    (plan,) = blobs.plan([ref(LARGE)])
    send(plan, LARGE)
    blobs.complete(sha256(LARGE), len(LARGE))
    assert httpx.put(plan.parts[0].url, content=b"late").status_code == 404
    assert object_store.get(blob_key(sha256(LARGE)))[0] == LARGE
    assert blobs.is_present(ref(LARGE))


def test_nothing_sent_is_nothing_completed(blobs: Blobs) -> None:
    blobs.plan([ref(SMALL)])
    with pytest.raises(InvalidInput, match="nothing was uploaded"):
        blobs.complete(sha256(SMALL), len(SMALL))
    with pytest.raises(InvalidInput, match="nothing was uploaded"):
        blobs.complete(sha256(LARGE), len(LARGE))


def test_two_clients_share_one_upload_and_a_lost_one_starts_again(
    blobs: Blobs, object_store: ObjectStore, redis: redis_sync.Redis
) -> None:
    (one,), (other,) = blobs.plan([ref(LARGE)]), blobs.plan([ref(LARGE)])
    send(one, LARGE, {1})
    send(other, LARGE, {2, 3})
    blobs.complete(sha256(LARGE), len(LARGE))
    object_store.delete(blob_key(sha256(LARGE)))
    # the store has forgotten the upload that Redis still names
    redis.set(f"sv:upload:{sha256(LARGE)}", b'{"upload_id": "unknown", "size_bytes": %d}' % len(LARGE))
    (again,) = blobs.plan([ref(LARGE)])
    assert len(again.parts) == 3


def test_plans_keep_the_order_and_refuse_nonsense(blobs: Blobs) -> None:
    plans = blobs.plan([ref(b"a"), ref(b"b")])
    assert [plan.sha256 for plan in plans] == [sha256(b"a"), sha256(b"b")]
    for blob in (BlobRef(sha256="../x", size_bytes=1), BlobRef(sha256="A" * 64, size_bytes=1)):
        with pytest.raises(InvalidInput):
            blobs.plan([blob])
    with pytest.raises(InvalidInput):
        blobs.plan([BlobRef(sha256="a" * 64, size_bytes=-1)])
    with pytest.raises(InvalidInput):
        blobs.plan([ref(b"a")] * 1001)
