"""One embedding, asked for by every protocol: native, OpenAI's, and the Open Inference Protocol by JSON, by binary
tensors and by gRPC. A text of 1 KB, then 4 MB of FP32 (OpenAI's has no tensors); the function itself costs next to
nothing. Requests are prepared, protocols take turns; platform on core 0, client on core 1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import uvloop
from harness.processes import tree_cpu_s
from harness.protocol_load import GrpcCall, HttpCall, Loop, closed_loop
from harness.report import Measured, Metrics, Options, Table, interleave, median_of, ratio, run
from harness.running import ROOT, Platform

from samovar_gateway.rpc import schema

TARGETS = {
    # what a protocol adds to a small call is told, and promised to nobody; what binary tensors are for is promised
    "oip_rest_binary_p50_over_native_4mb": ("<=", 0.2),
    "oip_grpc_p50_over_native_4mb": ("<=", 0.25),
}
FUNCTIONS = ROOT / "tests" / "functions"
TEXT = ("Tea is ready, " * 80)[:1024]
SHAPE = [4096, 256]  # 4 MiB of FP32
INFER = f"/{schema.SERVICE}/ModelInfer"

Calls = Mapping[str, HttpCall | GrpcCall]


@dataclass(frozen=True)
class Take:
    """One take of one protocol: a single caller, and many."""

    one: Loop
    many: Loop


def post(platform: Platform, path: str, body: bytes, **headers: str) -> HttpCall:
    """Return a request; header names are written with underscores."""
    lines = [f"POST {path} HTTP/1.1", "host: x", f"authorization: Bearer {platform.key}"]
    sent = {"content-type": "application/json", "content-length": str(len(body))} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines += [f"{name}: {value}" for name, value in sent.items()]
    return HttpCall(platform.url, "\r\n".join([*lines, "", ""]).encode() + body)


def binary(platform: Platform, path: str, tensor: dict[str, object], contents: bytes) -> HttpCall:
    """Return a request with its tensor behind the JSON, and wanting the answer's so, too."""
    described = tensor | {"parameters": {"binary_data_size": len(contents)}}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    headers = {"content_type": "application/octet-stream", "inference_header_content_length": str(len(head))}
    return post(platform, path, head + contents, **headers)


def rpc(platform: Platform, model: str, tensor: dict[str, object], contents: bytes) -> GrpcCall:
    """Return a ModelInfer with raw contents."""
    message = schema.message("ModelInferRequest")(model_name=model, inputs=[tensor], raw_input_contents=[contents])
    return GrpcCall(platform.grpc, INFER, message.SerializeToString(), (("authorization", f"Bearer {platform.key}"),))


def text_calls(platform: Platform, name: str) -> Calls:
    """Return a request for the embedding of a text by each protocol."""
    tensor: dict[str, object] = {"name": "text", "datatype": "BYTES", "shape": [1]}
    contents = len(TEXT).to_bytes(4, "little") + TEXT.encode()
    infer = f"/v2/models/{name}/infer"
    return {
        "native": post(platform, f"/v1/functions/{name}/invoke", json.dumps({"text": TEXT}).encode()),
        "openai": post(platform, "/v1/embeddings", json.dumps({"model": name, "input": TEXT}).encode()),
        "oip_rest_json": post(platform, infer, json.dumps({"inputs": [tensor | {"data": [TEXT]}]}).encode()),
        "oip_rest_binary": binary(platform, infer, tensor, contents),
        "oip_grpc": rpc(platform, name, tensor, contents),
    }


def array_calls(platform: Platform, name: str) -> Calls:
    """Return a request for the embedding of an array by each protocol that has tensors, or lists of numbers."""
    x = np.random.default_rng(0).standard_normal(SHAPE, "f4").round(3)
    tensor: dict[str, object] = {"name": "x", "datatype": "FP32", "shape": SHAPE}
    rows = [[round(float(one), 3) for one in row] for row in x]
    infer = f"/v2/models/{name}/infer"
    return {
        "native": post(platform, f"/v1/functions/{name}/invoke", json.dumps({"x": rows}).encode()),
        "oip_rest_json": post(platform, infer, json.dumps({"inputs": [tensor | {"data": rows}]}).encode()),
        "oip_rest_binary": binary(platform, infer, tensor, x.tobytes()),
        "oip_grpc": rpc(platform, name, tensor, x.tobytes()),
    }


def take(call: HttpCall | GrpcCall, connections: int, seconds: float, cpu_s: Callable[[], float]) -> Take:
    """Return one take of one protocol."""
    one = uvloop.run(closed_loop(call, 1, seconds, cpu_s))
    return Take(one, uvloop.run(closed_loop(call, connections, seconds, cpu_s)))


def metrics_of(takes: Mapping[str, list[Take]], suffix: str) -> Metrics:
    """Return each protocol's figures over the native route's."""
    columns: dict[str, Callable[[Take], float]] = {
        "p50": lambda taken: taken.one.p50_ms,
        "rps": lambda taken: taken.many.rps,
    }
    return {
        f"{name}_{column}_over_native{suffix}": ratio(median_of(taken, value), median_of(takes["native"], value))
        for column, value in columns.items()
        for name, taken in takes.items()
        if name != "native"
    }


def table(title: str, connections: int, takes: Mapping[str, list[Take]]) -> Table:
    """Return the medians of every protocol."""
    columns: dict[str, Callable[[Take], float]] = {
        "c1 p50 ms": lambda taken: taken.one.p50_ms,
        "c1 CPU ms/call": lambda taken: taken.one.cpu_ms,
        f"c{connections} calls/s": lambda taken: taken.many.rps,
        f"c{connections} p50 ms": lambda taken: taken.many.p50_ms,
        f"c{connections} CPU ms/call": lambda taken: taken.many.cpu_ms,
    }
    rows = [(name, *(median_of(taken, value) for value in columns.values())) for name, taken in takes.items()]
    return Table(title, ("protocol", *columns), rows)


def measure(options: Options) -> Measured:
    """Measure both sizes, one after the other."""
    metrics: Metrics = {}
    tables: list[Table] = []
    with Platform(cores="0", settings={"SAMOVAR_MAX_BODY_BYTES": str(64 << 20)}) as platform:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        cpu_s = partial(tree_cpu_s, platform.pid)
        for title, folder, calls_of, connections, seconds, suffix in (
            ("A text of 1 KB", "embeds_text", text_calls, 16, options.pick(1.5, 0.5), ""),
            ("4 MB of FP32", "embeds_array", array_calls, 4, options.pick(2.0, 1.0), "_4mb"),
        ):
            name = platform.deploy(FUNCTIONS / folder / "app.py")
            platform.scale(name, min_instances=1, max_instances=1)
            platform.wait_ready(name, 1)
            calls = calls_of(platform, name)
            sides = {key: partial(take, call, connections, seconds, cpu_s) for key, call in calls.items()}
            takes = interleave(options.pick(5, 1), sides)
            metrics |= metrics_of(takes, suffix)
            tables.append(table(title, connections, takes))
            platform.scale(name, min_instances=0, max_instances=1)
    note = "gRPC's client library takes about 0.15 ms of its p50, the others' clients far less; CPU is the platform's"
    return Measured(metrics, tables, [note])


if __name__ == "__main__":
    run("protocols", TARGETS, measure)
