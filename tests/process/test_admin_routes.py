"""The admin routes of a real gateway process, on the real stores."""

import hashlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import msgspec
import pytest
import redis as redis_sync

from samovar.policies import Fallback
from samovar.spec import BlobRef, FileRef, Manifest, Scaling, parse_ref
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_storage.records import (
    BootFailure,
    Decision,
    InstanceRecord,
    LogLine,
    NodeStatus,
    VersionStatus,
    WarmRequest,
    dumps,
    loads,
)
from support.processes import running
from support.stores import NUM_DATABASES, Stores, stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process
ADMIN = "sv_0123456789ab_this-is-a-test-key-and-no-secret"
CODE = b"not really a tar: nobody runs it here"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def stores(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> Stores:
    """A database and a bucket that this module's tests share, as they share the gateway: each has its own names."""
    stores = stores_for_a_test(valkey, seaweed, NUM_DATABASES - 1)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    return stores


@pytest.fixture(scope="module")
def admin(stores: Stores, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client with the admin key of a gateway process."""
    folder, port = tmp_path_factory.mktemp("gateway"), free_port()
    config = stores.write_settings_file(folder / "settings.json", folder, port=port, grpc_port=-1, admin_key=ADMIN)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR_")}
    command = [sys.executable, "-m", "samovar_gateway"]
    log = folder / "gateway.log"
    with (
        running(command, log, environ | {"SAMOVAR_CONFIG": str(config)}),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        wait_until(lambda: is_ready(client), what="a ready gateway")
        client.headers["authorization"] = f"Bearer {ADMIN}"
        yield client
    assert "Traceback" not in log.read_text(), log.read_text()


@pytest.fixture(autouse=True)
def empty(admin: httpx.Client) -> Iterator[None]:
    """No function is left over for the next test."""
    yield
    for entry in admin.get("/v1/functions").json():
        admin.delete(f"/v1/functions/{entry['name']}").raise_for_status()


def upload(client: httpx.Client, data: bytes) -> BlobRef:
    """Upload one small blob as the CLI does."""
    ref = BlobRef(sha256=sha256(data), size_bytes=len(data))
    plan = client.post("/v1/uploads", json={"blobs": [msgspec.to_builtins(ref)]}).raise_for_status().json()["blobs"][0]
    for part in plan.get("parts", ()):
        httpx.put(part["url"], content=data).raise_for_status()
    client.post(f"/v1/uploads/{ref.sha256}/complete", json={"size_bytes": len(data), "parts": []}).raise_for_status()
    return ref


def manifest(client: httpx.Client, name: str = "fn", **changes: Any) -> dict[str, Any]:
    base = Manifest(
        name=name,
        version=0,
        entry="app:fn",
        kind="function",
        handler="sync",
        code=upload(client, CODE),
        input_schema=msgspec.json.schema(list[float]),
        output_schema=msgspec.json.schema(float),
    )
    built: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(base, **changes))
    return built


def deploy(client: httpx.Client, name: str = "fn", **changes: Any) -> int:
    answer = client.post(f"/v1/functions/{name}/versions", json=manifest(client, name, **changes))
    assert answer.status_code == 201, answer.text
    return int(answer.json()["version"])


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that the answer is the problem document it should be, and return it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"].startswith("application/problem+json")
    body: dict[str, Any] = answer.json()
    assert (body["status"], body["code"], body["type"]) == (status, code, f"urn:samovar:problem:{code}")
    assert body["detail"] and body["request_id"]
    return body


def test_deploy_look_scale_and_remove(admin: httpx.Client) -> None:
    assert deploy(admin, "life") == 1
    assert deploy(admin, "life") == 2
    seen = admin.get("/v1/functions/life").json()
    assert seen["route"]["shares"] == {"2": 100} and seen["route"]["latest"] == 2
    assert seen["url"].endswith("/v1/functions/life/invoke")
    assert seen["route"]["previous"] == {"1": 100} and set(seen["manifests"]) == {"1", "2"}
    listed = admin.get("/v1/functions").json()
    assert [(entry["name"], entry["latest"], entry["states"]) for entry in listed] == [("life", 2, {})]

    scaled = admin.post("/v1/functions/life/scale", json={"min_instances": 1, "max_instances": 3}).json()
    assert (scaled["scaling"]["min_instances"], scaled["scaling"]["max_instances"]) == (1, 3)
    scaled = admin.post("/v1/functions/life/scale", json={"buffer_instances": 2}).json()
    assert (scaled["scaling"]["min_instances"], scaled["scaling"]["buffer_instances"]) == (1, 2)

    assert admin.delete("/v1/functions/life").status_code == 204
    problem(admin.get("/v1/functions/life"), 404, "function_not_found")
    problem(admin.delete("/v1/functions/life"), 404, "function_not_found")
    assert deploy(admin, "life") == 3, "a version's number is never given out again"


def test_a_deploy_says_what_may_not_be_meant(admin: httpx.Client) -> None:
    changed = manifest(admin, "warned", fallback=Fallback(function="later"))
    made = admin.post("/v1/functions/warned/versions", json=changed)
    assert made.status_code == 201, made.text
    assert "no function 'later' yet" in made.json()["warnings"][0]
    plain = admin.post("/v1/functions/warned/versions", json=manifest(admin, "warned"))
    assert plain.json()["warnings"] == []
    itself = admin.post(
        "/v1/functions/later/versions", json=manifest(admin, "later") | {"fallback": {"function": "later"}}
    )
    problem(itself, 422, "deploy_refused")


def test_many_deploys_at_once_lose_none(admin: httpx.Client) -> None:
    body = manifest(admin, "rush")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: admin.post("/v1/functions/rush/versions", json=body), range(12)))
    assert sorted(answer.json()["version"] for answer in answers) == list(range(1, 13))
    assert admin.get("/v1/functions/rush").json()["route"]["shares"] == {"12": 100}


def test_what_a_deploy_refuses(admin: httpx.Client) -> None:
    def refused(name: str = "fussy", **changes: Any) -> dict[str, Any]:
        body = manifest(admin, "fussy") | changes
        return problem(admin.post(f"/v1/functions/{name}/versions", json=body), 422, "deploy_refused")

    assert "send version 0" in refused(version=7)["detail"]
    assert "the manifest is for 'fussy'" in refused(name="other")["detail"]
    assert "min_instances <= max_instances" in refused(scaling={"min_instances": 5, "max_instances": 2})["detail"]
    pickled = [{"path": "model.pt", "sha256": "0" * 64, "size_bytes": 1}]
    assert "--allow-pickle" in refused(weights=pickled)["detail"]
    absent = msgspec.to_builtins([FileRef(path="model.safetensors", sha256="0" * 64, size_bytes=1)])
    missing = admin.post("/v1/functions/fussy/versions", json=manifest(admin, "fussy") | {"weights": absent})
    assert "upload it first" in problem(missing, 422, "invalid_input")["detail"]
    short = manifest(admin, "fussy")
    short["code"]["size_bytes"] += 1
    problem(admin.post("/v1/functions/fussy/versions", json=short), 422, "invalid_input")
    assert admin.get("/v1/functions").json() == []


def test_bodies_that_are_wrong(admin: httpx.Client) -> None:
    deploy(admin, "broken")
    path = "/v1/functions/broken/versions"
    problem(admin.post(path, content=b"{not json"), 400, "malformed")
    problem(admin.post(path, content=b"\xff\xfe"), 400, "malformed")
    wrong = problem(admin.post(path, json=manifest(admin, "broken") | {"weights": [{"path": 3}]}), 422, "invalid_input")
    assert wrong["path"] == "$.weights[0].path"
    assert problem(admin.post("/v1/functions/broken/scale", json={"mim": 1}), 422, "invalid_input")["path"] == "$.mim"
    assert (
        problem(admin.post("/v1/functions/broken/scale", json={"max_instances": "x"}), 422, "invalid_input")["path"]
        == "$.max_instances"
    )
    problem(admin.post("/v1/functions/broken/scale", json={"max_instances": 0}), 422, "deploy_refused")
    problem(admin.post("/v1/functions/broken/scale", json={}), 422, "invalid_input")
    problem(admin.post("/v1/functions/broken/warm", json={"instances": 99}), 422, "invalid_input")
    problem(admin.post("/v1/functions/broken/warm", json={"for_s": 0}), 422, "invalid_input")
    problem(admin.post("/v1/uploads", json={"blobs": [{"sha256": "x", "size_bytes": 1}]}), 422, "invalid_input")
    problem(admin.post("/v1/uploads/xyz/complete", json={"size_bytes": 1}), 422, "deploy_refused")
    problem(admin.get("/v1/functions/broken/logs?lines=many"), 422, "invalid_input")
    problem(admin.get("/v1/nothing"), 404, "not_found")
    problem(admin.put("/v1/functions"), 405, "method_not_allowed")
    near = problem(admin.get("/v1/functions/brokenn"), 404, "function_not_found")
    assert near["near"] == ["broken"] and "did you mean 'broken'?" in near["detail"]


def test_uploads_are_verified_and_deduplicated(admin: httpx.Client) -> None:
    data = os.urandom(1000)
    ref = {"sha256": sha256(data), "size_bytes": len(data)}
    dry = admin.post("/v1/uploads", json={"blobs": [ref], "dry_run": True}).json()["blobs"]
    assert dry == [{"sha256": ref["sha256"], "present": False}]
    (plan,) = admin.post("/v1/uploads", json={"blobs": [ref]}).json()["blobs"]
    assert "authorization" not in httpx.put(plan["parts"][0]["url"], content=b"x" * 1000).request.headers
    path = f"/v1/uploads/{ref['sha256']}/complete"
    wrong = problem(admin.post(path, json={"size_bytes": 1000, "parts": []}), 422, "invalid_input")
    assert "they were deleted" in wrong["detail"]
    upload(admin, data)
    assert admin.post("/v1/uploads", json={"blobs": [ref]}).json()["blobs"] == [
        {"sha256": ref["sha256"], "present": True}
    ]


def test_keys_and_what_they_may(admin: httpx.Client) -> None:
    deploy(admin, "fn")
    deploy(admin, "other")

    def key(**body: Any) -> httpx.Headers:
        made = admin.post("/v1/keys", json=body)
        assert made.status_code == 201, made.text
        return httpx.Headers({"authorization": f"Bearer {made.json()['key']}"})

    invoker = key(name="caller", scopes=["invoke"])
    bound = key(name="ci", scopes=["deploy"], functions=["fn"])
    wait_until(lambda: admin.get("/v1/functions", headers=bound).status_code == 200)
    wait_until(lambda: admin.get("/v1/functions", headers=invoker).status_code == 200)

    problem(
        admin.get("/v1/functions", headers={"authorization": "Bearer sv_000000000000_nope"}), 401, "unauthenticated"
    )
    problem(httpx.get(f"{admin.base_url}/v1/functions"), 401, "unauthenticated")
    problem(admin.post("/v1/functions/fn/scale", json={"max_instances": 2}, headers=invoker), 403, "forbidden")
    problem(admin.get("/v1/keys", headers=bound), 403, "forbidden")
    assert [entry["name"] for entry in admin.get("/v1/functions", headers=bound).json()] == ["fn"]
    problem(admin.get("/v1/functions/other", headers=bound), 404, "function_not_found")
    problem(admin.delete("/v1/functions/other", headers=bound), 404, "function_not_found")
    body = manifest(admin)
    assert admin.post("/v1/functions/fn/versions", json=body, headers=bound).status_code == 201
    assert admin.post("/v1/uploads", json={"blobs": [body["code"]]}, headers=bound).status_code == 200
    problem(admin.post("/v1/uploads", json={"blobs": []}, headers=invoker), 403, "forbidden")

    listed = admin.get("/v1/keys").json()
    assert {entry["name"] for entry in listed} >= {"caller", "ci"}
    assert not any("secret" in field or field == "key" for entry in listed for field in entry)
    (caller,) = [entry for entry in listed if entry["name"] == "caller"]
    assert admin.delete(f"/v1/keys/{caller['key_id']}").status_code == 204
    wait_until(
        lambda: admin.get("/v1/functions", headers=invoker).status_code == 401, what="the revoked key is refused"
    )
    problem(admin.delete(f"/v1/keys/{caller['key_id']}"), 404, "not_found")
    problem(admin.post("/v1/keys", json={"name": "x", "scopes": ["root"]}), 422, "invalid_input")
    (own,) = [entry for entry in listed if "admin" in entry["scopes"]]
    problem(admin.delete(f"/v1/keys/{own['key_id']}"), 409, "conflict")


def test_what_operators_look_at(admin: httpx.Client, redis: redis_sync.Redis) -> None:
    deploy(admin, "looked")
    instance = InstanceRecord(instance_id="i-1", state="ready", ref="looked@1", pid=7, token="hush", address="unix:/x")
    blank = InstanceRecord(instance_id="i-2", state="blank", started_at_s=1.0)
    redis.hset(keys.INSTANCES, mapping={"i-1": dumps(instance), "i-2": dumps(blank)})
    status = VersionStatus(ref="looked@1", desired=1, ready=1, starting=0, draining=0, reason="demand", at_s=1.0)
    redis.set(keys.status("looked@1"), dumps(status))
    redis.lpush(
        keys.decisions("looked"), dumps(Decision(at_s=1, ref="looked@1", action="start", rule="r", desired=1, ready=0))
    )
    failure = BootFailure(ref="looked@1", code="load_failed", status=500, detail="no", log_tail=["oh"])
    redis.set(keys.boot("looked@1"), dumps(failure))
    node = NodeStatus(
        node="n",
        blanks=1,
        blank_target=1,
        instances=2,
        memory_budget_bytes=1,
        memory_used_bytes=0,
        devices=[],
        at_s=1.0,
    )
    redis.set(keys.node("n"), dumps(node))

    instances = admin.get("/v1/instances").json()
    assert [entry["instance_id"] for entry in instances] == ["i-1", "i-2"]
    assert "hush" not in json.dumps(instances)
    assert admin.get("/v1/nodes").json()[0]["blanks"] == 1
    seen = admin.get("/v1/functions/looked").json()
    assert seen["status"]["looked@1"]["ready"] == 1 and seen["decisions"][0]["rule"] == "r"
    assert seen["boot_failures"]["looked@1"]["log_tail"] == ["oh"]
    assert admin.get("/v1/functions").json()[0]["states"] == {"ready": 1}


def test_warm_requests_reach_the_pool_manager(admin: httpx.Client, redis: redis_sync.Redis) -> None:
    deploy(admin, "warmth", scaling=Scaling(max_instances=2))
    answer = admin.post("/v1/functions/warmth/warm", json={"instances": 2, "for_s": 60}).json()
    stored = redis.get(keys.warm("warmth@1"))
    assert isinstance(stored, bytes) and loads(stored, WarmRequest).instances == 2
    assert parse_ref(answer["ref"]) == ("warmth", 1)
    admin.post("/v1/functions/warmth/warm", json={"instances": 0}).raise_for_status()
    assert redis.get(keys.warm("warmth@1")) is None


def test_logs_are_read_and_followed(admin: httpx.Client, redis: redis_sync.Redis) -> None:
    deploy(admin, "logged")

    def print_line(text: str) -> None:
        line = LogLine(at_s=1.0, ref="logged@1", instance="i-1", stream="stdout", line=text)
        redis.xadd(keys.logs("logged"), {"line": dumps(line)})

    for number in range(5):
        print_line(f"old {number}")
    answer = admin.get("/v1/functions/logged/logs?lines=2")
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert [json.loads(line)["line"] for line in answer.text.splitlines()] == ["old 3", "old 4"]
    assert admin.get("/v1/functions/logged/logs?lines=0").text == ""

    with admin.stream("GET", "/v1/functions/logged/logs?lines=1&follow=1") as followed:
        lines = followed.iter_lines()
        assert json.loads(next(lines))["line"] == "old 4"
        threading.Timer(0.2, print_line, ["fresh"]).start()
        assert json.loads(next(lines))["line"] == "fresh"


def test_a_function_describes_itself(admin: httpx.Client) -> None:
    deploy(admin, "described")
    found = admin.get("/v1/functions/described/openapi.json").json()
    assert found["openapi"].startswith("3.1") and found["info"] == {"title": "described", "version": "1"}
    body = found["paths"]["/v1/functions/described/invoke"]["post"]["requestBody"]["content"]["application/json"][
        "schema"
    ]
    assert body == {"type": "array", "items": {"type": "number"}}
    assert found["servers"] == [{"url": str(admin.base_url).rstrip("/")}]
