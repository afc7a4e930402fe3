"""Routes for looking: instances, nodes, logs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
from litestar import get
from litestar.response import Stream

from samovar.errors import InvalidInput, Unavailable
from samovar.spec import parse_ref
from samovar_gateway.admin.requests import AnyRequest, authenticate, authorise, may_see, path_parameter
from samovar_gateway.admin.services import Services, services_of
from samovar_storage import live
from samovar_storage.records import InstanceRecord, LogLine, NodeStatus

NDJSON = "application/x-ndjson"
MAX_LOG_LINES = 10_000
# each follower holds one of the gateway's connections to Redis
MAX_FOLLOWERS = 16
FOLLOW_WAIT_S = 2.0


@get("/v1/instances")
async def list_instances(request: AnyRequest) -> list[InstanceRecord]:
    """Return every instance the key covers, oldest first, without the tokens; blanks belong to nobody."""
    services = services_of(request)
    principal = authenticate(request)
    records = (await live.instances(services.state.redis)).values()
    seen = [record for record in records if may_see(principal, parse_ref(record.ref)[0] if record.ref else "")]
    seen.sort(key=lambda record: (record.started_at_s, record.instance_id))
    return [msgspec.structs.replace(record, token="") for record in seen]


@get("/v1/nodes")
async def list_nodes(request: AnyRequest) -> list[NodeStatus]:
    """Return every node heard of within 10 s."""
    services = services_of(request)
    authenticate(request)
    return await live.nodes(services.state.redis)


@get("/v1/functions/{name:str}/logs", media_type=NDJSON)
async def read_logs(request: AnyRequest) -> Stream:
    """Return what the function's instances printed, a JSON object a line; follow=1 goes on until the client leaves."""
    name = path_parameter(request, "name")
    services = services_of(request)
    authorise(request, "deploy", name)
    await services.record(name)
    num_lines = _number_of_lines(request.query_params.get("lines", "100"))
    if request.query_params.get("follow", "0") not in ("1", "true"):
        last, _ = await _last(services, name, num_lines)
        return Stream(_encoded(last), media_type=NDJSON)
    if services.num_followers >= MAX_FOLLOWERS:
        raise Unavailable(f"{MAX_FOLLOWERS} clients follow logs already", retry_after_s=10)
    return Stream(_follow(services, name, num_lines), media_type=NDJSON, headers={"cache-control": "no-store"})


def _number_of_lines(text: str) -> int:
    if not text.isdecimal() or int(text) > MAX_LOG_LINES:
        raise InvalidInput(f"lines must be a number from 0 to {MAX_LOG_LINES}", path="lines")
    return int(text)


async def _last(services: Services, name: str, num_lines: int) -> tuple[list[LogLine], str]:
    """Return the last lines and where to go on; at least one is asked for, because it tells where the end is."""
    found, after = await live.last_logs(services.state.redis, name, max(1, num_lines))
    return (found if num_lines else []), after


async def _encoded(lines: list[LogLine]) -> AsyncIterator[bytes]:
    if lines:
        yield b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


async def _follow(services: Services, name: str, num_lines: int) -> AsyncIterator[bytes]:
    """Yield lines as they come, until the client leaves, the function goes or the gateway drains."""
    services.num_followers += 1
    try:
        found, after = await _last(services, name, num_lines)
        while not services.state.leaving:
            async for chunk in _encoded(found):
                yield chunk
            found, after = await live.logs_after(services.state.redis, name, after, wait_s=FOLLOW_WAIT_S)
    finally:
        services.num_followers -= 1
