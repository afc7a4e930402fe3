"""`GET /v1/audit`, and the task that writes the log. This module does not know what becomes an entry."""

from __future__ import annotations

import asyncio
import logging
import time

from litestar import get

from samovar.errors import InvalidInput, SamovarError
from samovar_gateway.admin.requests import AnyRequest, authorise
from samovar_gateway.admin.services import Services, services_of
from samovar_storage.audit import AuditEntry, AuditLog

MAX_ENTRIES = 10_000
MAX_SINCE_S = 400 * 86_400.0
FLUSH_S, MAX_RETRY_S = 1.0, 5.0
LAST_FLUSH_S = 5.0

log = logging.getLogger(__name__)


@get("/v1/audit")
async def read_audit(request: AnyRequest) -> list[AuditEntry]:
    """Return what was changed in the last `since_s` seconds (3600), the newest `limit` entries (1000), oldest first.

    For admins. What another gateway noted within the last second may be missing.
    """
    services = services_of(request)
    authorise(request, "admin")
    query = request.query_params
    since_s = _number(query.get("since_s", "3600"), "since_s", MAX_SINCE_S)
    limit = int(_number(query.get("limit", "1000"), "limit", MAX_ENTRIES))
    return await services.stores.run(_read, services, since_s, limit)


async def write_audit(audit: AuditLog) -> None:
    """Flush what was noted, once a second while there is something, until cancelled; then once more."""
    retry_s = FLUSH_S
    try:
        while True:
            await asyncio.sleep(retry_s)
            if audit.is_empty():
                continue
            try:
                await asyncio.to_thread(audit.flush)
                retry_s = FLUSH_S
            except SamovarError as error:
                log.warning("the audit log waits in memory, %d entries dropped: %s", audit.num_dropped, error.detail)
                retry_s = min(MAX_RETRY_S, 2 * retry_s)
    finally:
        await _last_flush(audit)


async def _last_flush(audit: AuditLog) -> None:
    try:
        async with asyncio.timeout(LAST_FLUSH_S):
            await asyncio.to_thread(audit.flush)
    except (SamovarError, TimeoutError) as error:
        log.error("the end of the audit log is lost: %s", error)


def _read(services: Services, since_s: float, limit: int) -> list[AuditEntry]:
    services.audit.flush()
    return services.audit.read(time.time() - since_s, limit)


def _number(text: str, name: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= most:
        raise InvalidInput(f"{name} is a number above 0, at most {most:.0f}", path=name)
    return value
