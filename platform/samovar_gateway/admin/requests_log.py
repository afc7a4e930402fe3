"""Routes that read the request log: records, a summary by version, links to the files. For keys that may deploy.

This module does not know where records are kept.
"""

from __future__ import annotations

import re
import time
from typing import Any

from litestar import get

from samovar.errors import InvalidInput
from samovar_gateway.admin.requests import AnyRequest, authorise, path_parameter
from samovar_gateway.admin.services import services_of
from samovar_storage.requestlog.questions import MAX_RECORDS, Wanted

DEFAULT_SINCE_S = 3600.0
_STATUS = re.compile(r"^(\d{3})$|^(\d)xx$")


@get("/v1/functions/{name:str}/requests")
async def list_requests(request: AnyRequest) -> dict[str, Any]:
    """Return the newest records that fit, oldest first: `{"records": […], "missing": [stores that did not answer]}`.

    Query: since_s (seconds back, or from), until_s, status (`404`, `5xx`), slower_ms, version, limit.
    """
    return await _find(request, "records")


@get("/v1/functions/{name:str}/requests/summary")
async def summarise_requests(request: AnyRequest) -> dict[str, Any]:
    """Return calls by outcome and latency percentiles of each version: `{"versions": […], "missing": […]}`."""
    return await _find(request, "summary")


@get("/v1/functions/{name:str}/requests/files")
async def list_request_files(request: AnyRequest) -> dict[str, Any]:
    """Return the Parquet files that may hold such records: `{"files": [{"key", "url"}]}`; a link lives 15 minutes.

    What this gateway knows is shipped before; other gateways' calls of the last seconds may be missing.
    """
    return await _find(request, "files")


async def _find(request: AnyRequest, what: str) -> dict[str, Any]:
    name = path_parameter(request, "name")
    services = services_of(request)
    authorise(request, "deploy", name)
    await services.record(name)
    wanted = wanted_of(name, dict(request.query_params), time.time())
    return await services.state.requests.find(services.state.redis, what, wanted)


def wanted_of(name: str, query: dict[str, str], now_s: float) -> Wanted:
    """Return what a query asks for. Raises InvalidInput with the parameter's name.

    since_s and until_s are seconds back from `now_s` (unix) below 1e9, else unix seconds.
    """
    unknown = sorted(query.keys() - {"since_s", "until_s", "status", "slower_ms", "version", "limit"})
    if unknown:
        raise InvalidInput(f"no such parameter {unknown[0]!r}", path=unknown[0])
    since_s, until_s = _number(query, "since_s", DEFAULT_SINCE_S), _number(query, "until_s", 0.0)
    return Wanted(
        function=name,
        since_s=_instant(since_s, now_s),
        until_s=_instant(until_s, now_s),
        status=_statuses(query["status"]) if "status" in query else None,
        slower_ms=_number(query, "slower_ms", 0.0) if "slower_ms" in query else None,
        version=int(_number(query, "version", 0)) if "version" in query else None,
        limit=int(min(MAX_RECORDS, max(1, _number(query, "limit", 100)))),
    )


def _instant(given_s: float, now_s: float) -> float:
    return given_s if given_s >= 1e9 else now_s - given_s


def _number(query: dict[str, str], name: str, default: float) -> float:
    try:
        value = float(query.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise InvalidInput(f"{name} must be a number, 0 or more", path=name)
    return value


def _statuses(text: str) -> tuple[int, int]:
    found = _STATUS.match(text)
    if found is None:
        raise InvalidInput("status must be such as 404 or 5xx", path="status")
    if found[1]:
        return int(found[1]), int(found[1])
    return int(found[2]) * 100, int(found[2]) * 100 + 99
