"""The request log of a real gateway: a record for every kind of outcome, found in Redis and in Parquet, none twice."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_sync

from samovar.cli.__main__ import run as run_command
from samovar.policies import Log
from samovar.spec import Limits
from samovar.tensors import TensorSpec
from samovar_dispatch.ask import PROTOCOLS
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.rpc import connected, floats, request
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process


Run = Callable[..., tuple[int, str, str]]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    """One gateway for this module; each test deploys a function of its own."""
    stores = stores_for_a_test(valkey, seaweed, 13)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder, body_timeout_s=2) as running:
            yield running
        store.close()


@pytest.fixture
def name() -> str:
    """The function of this test."""
    return f"logged-{next(_numbers)}"


@pytest.fixture
def run(gateway: Gateway, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `samovar logs --requests NAME ARGUMENTS` against the gateway: exit code, stdout, stderr."""
    monkeypatch.setenv("SAMOVAR_URL", gateway.url)
    monkeypatch.setenv("SAMOVAR_API_KEY", ADMIN_KEY)

    def logs(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_command(["logs", "--requests", name, *arguments])
        return (code, *capfd.readouterr())

    return logs


def records(gateway: Gateway, name: str, **query: str | int | float) -> list[dict[str, Any]]:
    """Return the records without those of `Gateway.deploy`, which asks with GET until the function is known."""
    return [record for record in every_record(gateway, name, **query) if record["status"] != 405]


def every_record(gateway: Gateway, name: str, **query: str | int | float) -> list[dict[str, Any]]:
    response = gateway.client.get(f"/v1/functions/{name}/requests", params=query)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["missing"] == []
    found: list[dict[str, Any]] = answer["records"]
    return found


def files(gateway: Gateway, name: str) -> list[str]:
    response = gateway.client.get(f"/v1/functions/{name}/requests/files")
    assert response.status_code == 200, response.text
    return [file["key"] for file in response.json()["files"]]


def test_a_call_has_one_record_in_redis_and_after_it_was_shipped(gateway: Gateway, name: str) -> None:
    version = gateway.deploy(name, log=Log(payload="full"))
    instance = gateway.start_instance(version.ref)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    answer = gateway.invoke(
        name, body={"x": [1, 2]}, x_request_id="r-1", traceparent=f"00-{trace_id}-b7ad6b7169203331-01"
    )
    assert answer.status_code == 200
    (live,) = records(gateway, name)
    assert len(files(gateway, name)) == 1
    (record,) = records(gateway, name)
    assert record == live, "one record, though it is in both stores now"
    assert record["request_id"] == "r-1" and record["trace_id"] == trace_id
    assert (record["function"], record["version"], record["instance"]) == (name, 1, instance.record.instance_id)
    assert (record["status"], record["code"], record["priority"]) == (200, "ok", "normal")
    assert record["key_id"] == "0123456789ab"
    assert json.loads(record["payload"]) == {"x": [1, 2]} and record["payload_form"] == "text"
    assert record["answer"] == answer.text and not record["answer_cut"]
    assert record["bytes_in"] == len(record["payload"]) and record["bytes_out"] == len(answer.content)
    assert 0 <= record["run_ms"] <= record["total_ms"] and record["batch_size"] >= 1
    assert not any(record[mark] for mark in ("cached", "fallback", "retried", "hedged", "shadow"))
    assert record["cold"] == (record.get("boot_load_ms") == 4.0)


def test_who_calls_by_which_protocol_is_counted_and_recorded(gateway: Gateway, name: str, run: Run) -> None:
    schema = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
    inputs = [TensorSpec(name="x", datatype="FP32", shape=[-1])]
    gateway.start_instance(gateway.deploy(name, task="embeddings", input_schema=schema, inputs=inputs).ref)
    assert gateway.invoke(name, {"x": [1]}).status_code == 200
    assert gateway.invoke(name, {"x": [1]}, accept="text/event-stream").status_code == 200
    gateway.client.post("/v1/embeddings", json={"model": name, "input": ["a", "b"]})
    gateway.client.post("/v1/chat/completions", json={"model": name, "messages": []})  # refused before it is a call
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}
    gateway.client.post(f"/v2/models/{name}/infer", json={"inputs": [tensor]})
    with connected(gateway.grpc) as rpc:
        rpc.refused(request(name, x=floats(1.0)).SerializeToString())
    seen = Counter(record["protocol"] for record in records(gateway, name))
    assert seen == {"native": 2, "openai": 3, "oip-rest": 1, "oip-grpc": 1}

    def calls(protocol: str) -> float:
        return gateway.metric(f'samovar_calls_total{{function="{name}",protocol="{protocol}"}}')

    by = {protocol: calls(protocol) for protocol in PROTOCOLS}
    assert by == {"native": 2, "openai": 2, "oip-rest": 1, "oip-grpc": 1, "job": 0}
    assert gateway.client.get(f"/v1/functions/{name}/why").json()["calls"] == {k: v for k, v in by.items() if v}
    table = run()[1]
    assert table.count("openai") == 3 and table.count("oip-") == 2 and "native" not in table


def test_every_kind_of_outcome_has_its_record(gateway: Gateway, name: str) -> None:
    version = gateway.deploy(name, limits=Limits(timeout_s=10.0, max_queue=0))
    assert gateway.invoke(name, body={"x": [0]}).status_code == 503
    gateway.start_instance(version.ref)
    wait_until(lambda: gateway.invoke(name, body={"x": [1]}).status_code == 200, what="an instance answers")
    assert gateway.invoke(name, body={"fail": "no"}).status_code == 500
    assert gateway.invoke(name, body={"sleep_s": 5}, samovar_timeout_ms="50").status_code == 504
    with gateway.connect() as leaving:
        leaving.sendall(gateway.raw(name, b'{"sleep_s": 30}'))
        wait_until(lambda: gateway.metric("samovar_running") >= 1, what="it runs")
    wait_until(lambda: any(r["status"] == 499 for r in records(gateway, name)), what="the caller who left is noted")
    seen = {(r["status"], r["code"]) for r in records(gateway, name)}
    assert {(200, "ok"), (503, "queue_full"), (504, "deadline_exceeded"), (500, "function_raised")} <= seen
    assert (499, "cancelled") in seen
    assert [r["status"] for r in records(gateway, name, status="5xx")].count(504) == 1
    assert all(r["total_ms"] > 40 for r in records(gateway, name, slower_ms=40))
    assert {r["code"] for r in every_record(gateway, name, status="405")} == {"method_not_allowed"}
    assert len(every_record(gateway, name, limit=1)) == 1
    assert records(gateway, name, version=9) == [] == records(gateway, name, status="418")


def test_a_stream_is_recorded_when_it_has_ended(gateway: Gateway, name: str) -> None:
    version = gateway.deploy(name, log=Log(payload="full"), handler="generator")
    gateway.start_instance(version.ref)
    answer = gateway.invoke(name, body={"stream": 3})
    assert answer.status_code == 200 and len(answer.text.splitlines()) == 3
    (record,) = wait_until(lambda: records(gateway, name), what="the stream's record")
    assert (record["status"], record["code"], record["answer"]) == (200, "ok", answer.text)
    assert record["bytes_out"] == len(answer.content)


def test_the_summary_counts_by_version_and_tells_percentiles(gateway: Gateway, name: str) -> None:
    version = gateway.deploy(name)
    gateway.start_instance(version.ref)
    for _ in range(20):
        assert gateway.invoke(name, body={"x": [1]}).status_code == 200
    gateway.invoke(name, body={"fail": "no"})
    *_, summary = gateway.client.get(f"/v1/functions/{name}/requests/summary").json()["versions"]
    assert (summary["version"], summary["ok"], summary["failed"], summary["shed"]) == (1, 20, 1, 0)
    assert summary["calls"] - summary["client"] == 21
    assert 0 < summary["total_p50_ms"] <= summary["total_p99_ms"]


def test_a_question_that_makes_no_sense_is_refused(gateway: Gateway, name: str) -> None:
    gateway.deploy(name)
    for query in ({"status": "bad"}, {"limit": "x"}, {"since_s": "-1"}, {"colour": "red"}):
        response = gateway.client.get(f"/v1/functions/{name}/requests", params=query)
        assert response.status_code == 422 and response.json()["code"] == "invalid_input"
    assert gateway.client.get("/v1/functions/nobody/requests").status_code == 404
    assert gateway.client.get(f"/v1/functions/{name}/requests", headers={"authorization": ""}).status_code == 401


def test_the_command_line_shows_calls_as_records_summary_and_sql(gateway: Gateway, name: str, run: Run) -> None:
    version = gateway.deploy(name, log=Log(payload="full"))
    gateway.start_instance(version.ref)
    for number in range(5):
        assert gateway.invoke(name, body={"x": [number]}).status_code == 200
    gateway.invoke(name, body={"fail": "no"})
    gateway.invoke(name, body={"sleep_s": 2.0})
    code, out, _ = run("--json", "--since", "10m", "--version", "1")
    assert code == 0 and len([r for r in json.loads(out) if r["status"] == 200]) == 6
    assert [r["status"] for r in json.loads(run("--json", "--status", "5xx")[1])] == [500]
    assert [r["payload"] for r in json.loads(run("--json", "--slower", "1500ms")[1])] == ['{"sleep_s": 2.0}']
    assert "function_raised" in run("--status", "500")[1]
    assert run("--status", "418")[1:] == ("", "no such calls\n")
    summary = {one["version"]: one for one in json.loads(run("--summary", "--json")[1])}
    assert summary[1]["ok"] == 6 and summary[1]["total_p99_ms"] > 1500
    assert "run p99" in run("--summary")[1]
    sql = "select version, count(*) as calls from requests where status = 200 group by version"
    assert json.loads(run("--sql", sql, "--json")[1]) == [{"version": 1, "calls": 6}]
    assert "calls" in run("--sql", sql)[1]
    assert json.loads(run("--sql", "select payload->'x' as x from requests where payload like '%[4]%'", "--json")[1])


def test_sql_can_change_and_read_nothing_else(gateway: Gateway, name: str, run: Run, tmp_path: Path) -> None:
    gateway.deploy(name)
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    outside = (f"from read_csv('{tmp_path}/secret.csv')", f"copy requests to '{tmp_path}/x.csv'")
    for sql in (*outside, "select nonsense", "set enable_external_access = true"):
        code, out, err = run("--sql", sql)
        assert code == 6 and not out and err.startswith("error SQL: ")
    assert not (tmp_path / "x.csv").exists()


def test_without_duckdb_the_command_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    code, _, err = run("--sql", "select 1")
    assert code == 10 and "pip install 'samovar[sql]'" in err


def test_options_of_requests_need_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["logs", "echo", "--status", "5xx"]) == 2
    assert "need --requests" in capfd.readouterr().err
    for contradiction in (["--follow"], ["--summary", "--sql", "select 1"]):
        assert run_command(["logs", "--requests", "echo", *contradiction]) == 2
