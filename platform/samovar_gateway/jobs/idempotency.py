"""Doing once what is asked with an `Idempotency-Key`: by this gateway, by others, after a restart.

    begin ─► mine: do it, then keep the answer, or release the key if the answer is none to keep
        └──► answered: the first answer again     └──► runs elsewhere: wait for it

Kept: 2xx, and errors that the request or the function is to blame for. Not kept: what may end otherwise next time. An
answer is kept before it is given, so nobody has one that the next caller could not get. When Redis is away at that
moment the caller still gets it, and it is kept as soon as Redis is back. A key that cannot be claimed is refused: it is
never ignored. This module does not know what is done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from samovar.errors import (
    Draining,
    IdempotencyReused,
    IdempotencyRunning,
    NotFound,
    SamovarError,
    StoreFull,
    StoreUnavailable,
)
from samovar_gateway.jobs.sameness import is_kept, kept_headers, replayed
from samovar_gateway.jobs.watch import WatchHub
from samovar_storage import keys
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.barrier import Barrier
from samovar_storage.jobs.idempotency import Claim, Idempotency, Kept, Slot, delete_expired, new_ids, object_key
from samovar_storage.objects import ObjectStore

log = logging.getLogger(__name__)

BEAT_S = 1.0
LAPSE_S = 3.0  # an owner that has not beaten for so long, as its waiters see it, is taken to be dead
LOOK_S = 0.5
SWEEP_S = 600.0
MAX_OWED, MAX_OWED_BYTES = 1000, 32 << 20
AGAIN_S, FULL_AGAIN_S = 1.0, 60.0


class Owed(NamedTuple):
    """What Redis is still to be told of a claim. kept: None = it is free."""

    slot: Slot
    print_: str
    claim: Claim
    kept: Kept | None


class Once:
    """What this gateway does once. One per process; `run` must run."""

    def __init__(self, claims: Idempotency, objects: ObjectStore, watches: WatchHub, barrier: Barrier) -> None:
        self.claims = claims
        self._objects = objects
        self._watches = watches
        self._barrier = barrier
        self._held: set[str] = set()
        self._owed: dict[str, Owed] = {}
        self._owed_bytes = 0

    async def begin(self, slot: Slot, print_: str, until_s: float) -> Turn | Kept:
        """Return the turn to do what is asked, or the answer that was given first.

        Args:
            print_: fingerprint of the request. until_s: monotonic seconds; so long is waited for a first one that runs.
        Raises: IdempotencyReused, IdempotencyRunning; StoreUnavailable; StoreFull when the answer could not be kept.
        """
        claim = await self.claims.claim(slot, print_)
        if claim.state == "running":
            claim = await self._wait(slot, print_, until_s)
        if claim.state == "reused":
            raise IdempotencyReused("this Idempotency-Key came before, with another request: take a new one")
        if claim.state == "full":
            raise StoreFull(
                "the answers kept for this API key take all the room they may; send fewer Idempotency-Keys, or wait",
                retry_after_s=FULL_AGAIN_S,
            )
        if claim.kept is not None:
            return await self._whole(claim.kept)
        return Turn(self, slot, print_, claim)

    async def _wait(self, slot: Slot, print_: str, until_s: float) -> Claim:
        """Wait for whoever has the claim to be done, or to be dead. Raises: IdempotencyRunning, Draining."""
        seen, since_s = None, 0.0
        with self._watches.watching(keys.idempotency_channel(slot.name)) as watch:
            while True:
                now_s = time.monotonic()
                silent = seen if seen is not None and now_s - since_s >= LAPSE_S else None
                claim = await self._look(slot, print_, silent, until_s)
                if claim is not None and claim.state != "running":
                    return claim
                if claim is None or seen is None or claim != seen:
                    seen, since_s = claim, time.monotonic()
                if self._watches.is_leaving:
                    raise Draining("this gateway is shutting down", retry_after_s=AGAIN_S)
                if until_s <= now_s:
                    raise IdempotencyRunning(
                        "the first request with this Idempotency-Key still runs", retry_after_s=AGAIN_S
                    )
                await watch.changed(min(LOOK_S, until_s - now_s))

    async def _look(self, slot: Slot, print_: str, silent: Claim | None, until_s: float) -> Claim | None:
        """Claim again; None while Redis is away, which says nothing about anybody's silence."""
        try:
            async with self._watches.looking():
                return await self.claims.claim(slot, print_, silent)
        except StoreFull:
            raise
        except StoreUnavailable:
            if time.monotonic() >= until_s:
                raise
            return None

    async def _whole(self, kept: Kept) -> Kept:
        if not kept.stored:
            return kept
        try:
            body, _ = await asyncio.to_thread(self._objects.get, kept.stored)
        except NotFound as error:
            raise StoreUnavailable("the first answer is not there any more: take a new Idempotency-Key") from error
        return msgspec.structs.replace(kept, body=body, stored="")

    # ---- what a turn tells -----------------------------------------------------------------------------------------

    def hold(self, slot: Slot) -> None:
        """A claim is held: this process beats."""
        self._held.add(slot.name)

    async def settle(self, owed: Owed) -> Kept | None:
        """A turn is over: its answer is kept, or its key is free; later, if Redis is away. Return the answer of
        another owner, if that one was first."""
        self._held.discard(owed.slot.name)
        try:
            return await self._settle(owed)
        except (SamovarError, TimeoutError) as error:
            log.warning("what became of an Idempotency-Key is told later: %s", error)
            self._owe(owed)
            return None

    async def _settle(self, owed: Owed) -> Kept | None:
        slot, print_, claim, kept = owed
        if kept is None:
            await self.claims.release(slot, claim)
            return None
        if len(kept.body) > self.claims.limits.inline_bytes:
            kept = await self._stored(slot, claim, kept)
        found = await self._keep(slot, print_, claim, kept)
        await self._barrier.passed()
        return found

    async def _keep(self, slot: Slot, print_: str, claim: Claim, kept: Kept) -> Kept | None:
        """Keep an answer, its body in object storage if Redis has no room for it."""
        try:
            found = await self.claims.keep(slot, print_, claim, kept)
        except StoreFull:
            found = False
        if found is False:
            found = await self.claims.keep(slot, print_, claim, await self._stored(slot, claim, kept))
        return found if isinstance(found, Kept) else None

    async def _stored(self, slot: Slot, claim: Claim, kept: Kept) -> Kept:
        if kept.stored:
            return kept
        key = object_key(slot, claim, self.claims.limits.lifetime_s, time.time())
        await asyncio.to_thread(self._objects.put, key, kept.body)
        return msgspec.structs.replace(kept, body=b"", stored=key)

    def _owe(self, owed: Owed) -> None:
        num_bytes = len(owed.kept.body) if owed.kept is not None else 0
        if self._owed_bytes + num_bytes > MAX_OWED_BYTES:
            owed, num_bytes = owed._replace(kept=None), 0
        if len(self._owed) < MAX_OWED:
            self._owed[owed.slot.name] = owed
            self._owed_bytes += num_bytes

    # ---- beside ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Beat, pay what is owed and delete what has expired, until cancelled."""
        sweeping = asyncio.ensure_future(self._sweep())
        try:
            while True:
                await asyncio.sleep(BEAT_S)
                if self._held or self._owed:
                    await self.claims.beat()
                await self._pay()
        finally:
            await end_tasks([sweeping])
            await self.claims.leave()

    async def _pay(self) -> None:
        for name, owed in [*self._owed.items()]:
            await self._settle(owed)
            del self._owed[name]
            self._owed_bytes -= len(owed.kept.body) if owed.kept is not None else 0

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            try:
                await asyncio.to_thread(delete_expired, self._objects, time.time())
            except SamovarError as error:
                log.warning("expired answers to Idempotency-Keys: %s", error.detail)


class Turn:
    """The right to do what is asked with a key: it ends with `keep` or `release`, or is released by `async with`."""

    def __init__(self, once: Once, slot: Slot, print_: str, claim: Claim) -> None:
        self._once = once
        self._slot = slot
        self._print = print_
        self._claim = claim
        self._is_over = False
        self.new_id = new_ids(claim)
        once.hold(slot)

    async def keep(self, kept: Kept) -> Kept:
        """The answer is kept; return what the caller is to get: it, or what another owner kept before."""
        self._is_over = True
        stored = msgspec.structs.replace(kept, headers=kept_headers(kept.headers))
        other = await self._once.settle(Owed(self._slot, self._print, self._claim, stored))
        return kept if other is None else replayed(other)

    async def release(self) -> None:
        """The key is free for the next request. Idempotent, and nothing after `keep`."""
        if not self._is_over:
            self._is_over = True
            await self._once.settle(Owed(self._slot, self._print, self._claim, None))


async def done_once(once: Once, slot: Slot, print_: str, until_s: float, do: Callable[[Turn], Awaitable[Kept]]) -> Kept:
    """Return the answer to what is asked with a key: what `do` returns, or what it or another returned before.

    Raises: as `Once.begin`, and what `do` raises: then the key is free.
    """
    turn = await once.begin(slot, print_, until_s)
    if isinstance(turn, Kept):
        return replayed(turn)
    try:
        kept = await do(turn)
        return await turn.keep(kept) if is_kept(kept.status) else kept
    finally:
        await turn.release()
