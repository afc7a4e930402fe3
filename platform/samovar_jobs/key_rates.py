"""The rate limits of API keys, as far as jobs of theirs have to keep to them. This module does not know jobs."""

from __future__ import annotations

from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar_dispatch.rates.gcra import Rate, rate_of
from samovar_storage import apikeys, keys
from samovar_storage.records import ApiKeyRecord
from samovar_storage.subscribe import subscribe


class KeyRates:
    """One per worker. A key that was revoked has no limit any more: what was accepted of it still runs."""

    def __init__(self) -> None:
        self._rates: dict[str, Rate] = {}

    def of(self, key_id: str) -> Rate | None:
        """Return the limit of a key, None if it has none or is not known."""
        return self._rates.get(key_id)

    async def run(self, redis: Redis) -> None:
        """Follow the keys until cancelled. Raises StoreUnavailable: run it again."""
        async for _ in subscribe(redis, keys.CHANNEL_API_KEYS):
            _, _, records = await apikeys.read(redis)
            self._rates = {record.key_id: rate for record in records if (rate := _rate(record)) is not None}


def _rate(record: ApiKeyRecord) -> Rate | None:
    try:
        return rate_of(record.rate, record.burst)
    except SamovarError:
        return None  # what no gateway takes either
