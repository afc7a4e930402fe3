"""What bad input gets, on the real processes: each row of the list, and nothing hangs past its deadline."""

import json
from collections.abc import Iterator

import httpx
import msgspec
import pytest

from samovar.settings import Secret
from samovar.spec import Manifest
from samovar_storage.live import connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry
from samovar_storage.settings import StoreSettings
from support.journeys import Caller
from support.platform import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def deployed(caller: Caller) -> Caller:
    """The caller, with `misbehaves` and `sums` deployed and warm."""
    caller.deploy("misbehaves")
    caller.deploy("echo_sum", "sums")
    caller.answer("sums", {"values": []})
    return caller


@pytest.fixture
def registry(platform: Platform) -> Iterator[Registry]:
    """The platform's own registry, written to behind the gateway's back."""
    settings = json.loads((platform.data_dir / "settings.json").read_bytes())
    store = ObjectStore.from_settings(
        StoreSettings(
            s3_endpoint=settings["s3_endpoint"],
            s3_bucket=settings["s3_bucket"],
            s3_access_key=Secret(settings["s3_access_key"]),
            s3_secret_key=Secret(settings["s3_secret_key"]),
        )
    )
    with connect_sync(settings["redis_url"]) as redis:
        yield Registry(store, redis)
    store.close()


def test_an_unknown_function_is_404_with_near_names(deployed: Caller) -> None:
    answer = deployed.invoke("misbehavez", {})
    assert answer.status_code == 404 and answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "function_not_found" and "misbehaves" in json.dumps(answer.json())


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"values": [1, "two"]}, "$.values[1]"),
        ({"values": 3}, "$.values"),
        ({}, "$.values"),
        ([1], "$"),
    ],
)
def test_a_wrong_type_is_422_with_the_json_path(deployed: Caller, value: object, path: str) -> None:
    answer = deployed.invoke("sums", value)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] == "invalid_input" and answer.json()["path"] == path, answer.text


def test_a_body_over_the_limit_is_413_before_it_was_read(deployed: Caller) -> None:
    num_sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal num_sent
        while num_sent < 256 * 2**20:
            num_sent += 2**20
            yield b"x" * 2**20

    answer = deployed.http.post("/v1/functions/sums/invoke", content=endless())
    assert answer.status_code == 413 and answer.json()["code"] == "body_too_large"
    assert num_sent < 256 * 2**20


def test_broken_json_is_400(deployed: Caller) -> None:
    answer = deployed.http.post("/v1/functions/sums/invoke", content=b'{"values": [1,')
    assert answer.status_code == 400 and answer.json()["code"] == "malformed", answer.text


@pytest.mark.parametrize(
    ("body", "is_good"),
    [
        (b"[" * 500_000 + b"]" * 500_000, False),
        (b'{"values": ' + b"[" * 500_000 + b"]" * 500_000 + b"}", False),
        (b'{"x": ' * 100_000 + b"1" + b"}" * 100_000, False),
        (b'{"values": [1], "name": "\xff\xfe"}', False),
        (b'{"values": [1], "values": [2]}', True),
    ],
    ids=["deep list", "deep values", "deep object", "no UTF-8", "a key twice"],
)
def test_bodies_made_to_harm_a_decoder(deployed: Caller, body: bytes, is_good: bool) -> None:
    answer = deployed.http.post("/v1/functions/sums/invoke", content=body)
    assert answer.status_code in ((200,) if is_good else (400, 422)), answer.text
    assert deployed.invoke("sums", {"values": [1, 2]}).status_code == 200, "the function goes on"


def test_a_function_that_raises_is_500_with_type_and_message(deployed: Caller) -> None:
    answer = deployed.invoke("misbehaves", {"deed": "raise"})
    assert answer.status_code == 500, answer.text
    body = answer.json()
    assert body["code"] == "function_raised" and body["type"] == "urn:samovar:problem:function_raised"
    assert "KeyError" in answer.text and "tea" in body["detail"] and "Traceback" not in answer.text


def test_a_wrong_key_is_401(deployed: Caller) -> None:
    answer = deployed.invoke("sums", {"values": []}, authorization="Bearer sv_000000000000_wrong")
    assert answer.status_code == 401 and answer.json()["code"] == "unauthenticated"


def test_a_deadline_that_passes_is_504_long_before_the_call_ends(deployed: Caller) -> None:
    answer = deployed.invoke("misbehaves", {"deed": "sleep", "amount": 300}, **{"Samovar-Timeout-Ms": "700"})
    assert answer.status_code == 504 and answer.json()["code"] == "deadline_exceeded", answer.text
    assert deployed.answer("misbehaves", {"deed": "sleep", "amount": 0}) == "done"


def test_a_load_that_raises_fails_the_calls_that_wait_with_the_log(caller: Caller) -> None:
    caller.deploy("raises_in_load")
    answer = caller.invoke("raises-in-load", {"text": "x"})
    assert answer.status_code == 500 and answer.json()["code"] == "load_failed", answer.text
    assert "the kettle is empty" in answer.text


def test_weights_missing_in_the_store_fail_that_function_alone(deployed: Caller, registry: Registry) -> None:
    deployed.deploy("weighs", "replete")
    manifest = msgspec.convert(deployed.http.get("/v1/functions/replete").json()["manifests"]["1"], Manifest)
    lost = msgspec.structs.replace(manifest.weights[0], sha256="0" * 64)
    registry.publish_version(msgspec.structs.replace(manifest, name="empty-handed", version=0, weights=[lost]))
    answer = wait_until(lambda: _known(deployed.invoke("empty-handed", {"prefix": ""})))
    assert answer.status_code == 503 and answer.json()["code"] == "weights_missing", answer.text
    assert deployed.answer("sums", {"values": [7]}) == 7


def _known(answer: httpx.Response) -> httpx.Response | None:
    """Return the answer unless the gateway had not heard of the function yet."""
    return None if answer.status_code == 404 else answer
