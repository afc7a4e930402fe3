"""One delivery over HTTP: a POST, up to three redirects, and never more of the answer than is needed.

This module does not know what the answer means for the event (`outcome.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from urllib.parse import urljoin, urlsplit

import httpcore

from samovar.errors import WebhookRefused
from samovar_jobs.webhooks.outcome import Answer
from samovar_storage.jobs.webhook_urls import Allowed, check_url

CONNECT_S, TOTAL_S = 5.0, 15.0
MAX_REDIRECTS = 3
MAX_ANSWER_BYTES = 64 * 1024
_KEEP_METHOD, _TO_GET = (307, 308), (301, 302, 303)


async def post(
    pool: httpcore.AsyncConnectionPool,
    allowed: Allowed,
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    total_s: float = TOTAL_S,
) -> Answer:
    """Return what came of sending `body` to `url`, within `total_s` seconds, redirects included. Never raises for a
    host's faults.

    A redirect that keeps the method (307, 308) is followed with a POST, each target checked as the first one was. Any
    other one would lose the body: it is not followed, and counts as a failure.
    """
    try:
        async with asyncio.timeout(total_s):
            return await _follow(pool, allowed, url, headers, body)
    except TimeoutError:
        return Answer(error=f"no answer within {total_s:g} s", kind="silent")
    except WebhookRefused as error:
        return Answer(error=error.detail, kind="refused")
    except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
        return Answer(error=f"{type(error).__name__}: {error}", kind="silent")
    except (httpcore.UnsupportedProtocol, ValueError) as error:
        return Answer(error=f"cannot be sent there: {error}", kind="refused")


async def _follow(
    pool: httpcore.AsyncConnectionPool, allowed: Allowed, url: str, headers: Mapping[str, str], body: bytes
) -> Answer:
    for _ in range(1 + MAX_REDIRECTS):
        check_url(url, allowed)
        status, found = await _send(pool, url, headers, body)
        if status in _TO_GET:
            return Answer(
                status=status, error=f"answered {status}: only 307 and 308 keep a POST, use the final address"
            )
        if status not in _KEEP_METHOD:
            return Answer(status=status, retry_after=found.get("retry-after", ""))
        if "location" not in found:
            return Answer(status=status, error=f"answered {status} without a location")
        url = urljoin(url, found["location"])
    return Answer(status=status, error=f"answered with more than {MAX_REDIRECTS} redirects")


async def _send(
    pool: httpcore.AsyncConnectionPool, url: str, headers: Mapping[str, str], body: bytes
) -> tuple[int, dict[str, str]]:
    timeouts = {"connect": CONNECT_S, "read": TOTAL_S, "write": TOTAL_S, "pool": TOTAL_S}
    parts = urlsplit(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    to = httpcore.URL(scheme=parts.scheme, host=parts.hostname or "", port=parts.port, target=target)
    sent = [("host", parts.netloc), ("content-length", str(len(body))), *headers.items()]
    async with pool.stream("POST", to, headers=sent, content=body, extensions={"timeout": timeouts}) as response:
        num_read = 0
        # read so that the connection can serve again; whoever sends more loses it
        async for chunk in response.aiter_stream():
            num_read += len(chunk)
            if num_read > MAX_ANSWER_BYTES:
                break
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return response.status, found
