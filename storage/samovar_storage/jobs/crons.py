"""Cron jobs: their definitions in object storage (`crons/<name>.json`), when they last ran in Redis.

A lost Redis loses no schedule: the index `sv:crons` is made again from object storage, and what was due meanwhile is
forgotten with `last`. One step moves `last` and submits what follows from it, so however many schedulers try, a run is
submitted once. `last` is compared, not locked: it is replaced whenever a schedule changes, and gone with its cron job.
This module does not know when a schedule is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import redis.asyncio as redis_async

from samovar.errors import Conflict, InvalidInput, NotFound
from samovar.jobs import CronJob
from samovar.policies import Jobs as JobRules
from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs import codec, scripts, submission
from samovar_storage.jobs.payloads import Payloads, input_object, is_large
from samovar_storage.jobs.records import JobSpec, NewJob
from samovar_storage.jobs.specs import PUBLIC, spec_of
from samovar_storage.jobs.webhook_urls import Allowed
from samovar_storage.objects import ObjectInfo, ObjectStore
from samovar_storage.readable import readable_rows
from samovar_storage.records import dumps, loads

log = logging.getLogger(__name__)

PREFIX = "crons/"
# what is shown of a cron job beside its definition
_UNSTORED: dict[str, Any] = {"next_at_s": 0.0, "last_at_s": 0.0, "last_job": "", "upcoming_s": [], "notice": ""}
MAX_CRONS = 10_000


class CronState(Struct, frozen=True, kw_only=True):
    """When a cron job was last looked after, and what came of it.

    last: unix seconds up to which everything that was due is dealt with, as stored. last_run_s: when a job was last
    submitted, 0 = never; last_job: the newest. notice: what was not run the last time, and why.
    """

    last: str = ""
    last_run_s: float = 0.0
    last_job: str = ""
    notice: str = ""

    @property
    def last_s(self) -> float:
        """`last` as a number."""
        return float(self.last or 0)


class _Indexed(Struct, frozen=True, kw_only=True):
    """etag: of the object this is a copy of."""

    etag: str
    cron: CronJob


class Crons:
    """Reads and changes cron jobs. Methods raise StoreUnavailable when a store does not answer."""

    def __init__(self, redis: redis_async.Redis, objects: ObjectStore) -> None:
        self._redis = redis
        self._objects = objects
        self._payloads = Payloads(redis, objects)

    async def get(self, name: str) -> CronJob:
        """Return a definition, from object storage. Raises: NotFound."""
        return (await self._read(name))[0]

    async def all(self) -> list[CronJob]:
        """Return every definition, by name."""
        await self.ensure_built()
        with translating("the cron jobs"):
            rows = await self._redis.hgetall(keys.CRONS)
        crons = (indexed.cron for indexed in readable_rows("cron job", rows, _Indexed).values())
        return sorted(crons, key=lambda cron: cron.name)

    async def states(self, names: Sequence[str]) -> dict[str, CronState]:
        """Return when these were last looked after; those that never were have an empty state."""
        fields = CronState.__struct_fields__
        with translating("the cron jobs"):
            async with self._redis.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hmget(keys.cron(name), *fields)
                rows = await pipe.execute()
        return {name: _state(dict(zip(fields, row, strict=True))) for name, row in zip(names, rows, strict=True)}

    async def put(self, cron: CronJob, now_s: float) -> CronJob:
        """The definition is as given, but for what the first one said: whose it is, when it was made. Return it.

        What is due counts from `now_s` (unix seconds) if the schedule is new or another one, or was not enabled before.
        Raises: Conflict when somebody else changes it at the same time, or there are too many.
        """
        old, etag = await self._existing(cron.name)
        cron = msgspec.structs.replace(cron, created_at_s=now_s, **_UNSTORED)
        if old is not None:
            cron = msgspec.structs.replace(cron, key_id=old.key_id, created_at_s=old.created_at_s)
        elif await self._num() >= MAX_CRONS:
            raise Conflict(f"there are {MAX_CRONS} cron jobs: delete some first")
        key = object_key(cron.name)
        etag = await asyncio.to_thread(
            lambda: self._objects.put(key, dumps(cron), if_absent=old is None, if_match=etag or None)
        )
        starts_anew = old is None or _when(old) != _when(cron)
        await self._index(cron, etag, now_s if starts_anew else None)
        return cron

    async def delete(self, name: str) -> None:
        """The cron job is gone; jobs that it submitted are not touched. Raises: NotFound."""
        await self._read(name)
        await asyncio.to_thread(self._objects.delete, object_key(name))
        with translating("the cron jobs"):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hdel(keys.CRONS, name)
                pipe.delete(keys.cron(name))
                pipe.publish(keys.CHANNEL_CRONS, name)
                await pipe.execute()

    async def ensure_built(self) -> None:
        """The index mirrors object storage if Redis was empty."""
        with translating("the cron jobs"):
            is_built = await self._redis.exists(keys.CRONS_BUILT)
        if not is_built:
            await self.reconcile()

    async def reconcile(self) -> None:
        """The index mirrors object storage, also where a process died between the two."""
        infos = await asyncio.to_thread(lambda: [*self._objects.list(PREFIX)])
        with translating("the cron jobs"):
            rows = await self._redis.hgetall(keys.CRONS)
            now_s, micros = await self._redis.time()
        readable = readable_rows("cron job", rows, _Indexed)
        known = {_text(name): "" for name in rows} | {name: indexed.etag for name, indexed in readable.items()}
        stored = {_name_of(info): info for info in infos}
        for name in (name for name, info in stored.items() if known.get(name) != info.etag):
            try:
                cron, etag = await self._existing(name)
            except msgspec.MsgspecError as error:
                log.error("the cron job %s cannot be read, it stays as it was: %s", name, error)
                continue
            if cron is not None:
                await self._index(cron, etag, None)
        for name in known.keys() - stored.keys():
            # one that was made since the listing is not gone
            if (await self._existing(name))[0] is None:
                with translating("the cron jobs"):
                    async with self._redis.pipeline(transaction=True) as pipe:
                        pipe.hdel(keys.CRONS, name)
                        pipe.delete(keys.cron(name))
                        await pipe.execute()
        with translating("the cron jobs"):
            async with self._redis.pipeline(transaction=False) as pipe:
                for name in stored:
                    pipe.hsetnx(keys.cron(name), "last", repr(now_s + micros / 1e6))
                pipe.set(keys.CRONS_BUILT, 1)
                await pipe.execute()

    async def fire(self, name: str, expected: str, after: CronState, jobs: Sequence[NewJob] = ()) -> bool:
        """The state of a cron job becomes `after` and the jobs are accepted, in one step, if its `last` is `expected`.

        Return False if it is not: nothing was done. Jobs that are known already are not accepted again.
        Raises: StoreFull; NotUnique; JobNotFound for an unknown dependency: nothing was done either.
        """
        for job in jobs:
            if is_large(job.input):
                await self._payloads.put(job.id, input_object(job.id), job.input)
        turn = msgspec.msgpack.encode([expected, [*_flat(after)]])
        packed = submission.flat([codec.packed(job, is_large(job.input)) for job in jobs])
        with translating("the cron jobs"):
            script = self._redis.register_script(scripts.FIRE)
            reply: list[bytes] = await script(keys=[keys.cron(name)], args=[turn, *packed])
        if reply[0] == b"late":
            return False
        submission.accepted(reply)
        return True

    async def note_run(self, name: str, job_id: str) -> None:
        """The newest job of a cron job is one that somebody asked for."""
        with translating("the cron jobs"):
            await self._redis.hset(keys.cron(name), "last_job", job_id)

    async def _num(self) -> int:
        await self.ensure_built()
        with translating("the cron jobs"):
            return int(await self._redis.hlen(keys.CRONS))

    async def _read(self, name: str) -> tuple[CronJob, str]:
        try:
            data, etag = await asyncio.to_thread(self._objects.get, object_key(name))
        except NotFound as error:
            raise NotFound(f"there is no cron job {name[:100]!r}") from error
        return loads(data, CronJob), etag

    async def _existing(self, name: str) -> tuple[CronJob | None, str]:
        try:
            return await self._read(name)
        except NotFound:
            return None, ""

    async def _index(self, cron: CronJob, etag: str, last_s: float | None) -> None:
        """The index has this definition; what is due counts from `last_s`, None = from where it did."""
        with translating("the cron jobs"):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.hset(keys.CRONS, cron.name, dumps(_Indexed(etag=etag, cron=cron)))
                if last_s is not None:
                    pipe.hset(keys.cron(cron.name), "last", repr(last_s))
                pipe.publish(keys.CHANNEL_CRONS, cron.name)
                await pipe.execute()


def job_spec(
    cron: CronJob, rules: JobRules, now_s: float, *, low_only: bool = False, allowed: Allowed = PUBLIC
) -> JobSpec:
    """Return what a run of a cron job is that is submitted at `now_s` (unix seconds). rules: of its function.

    low_only, allowed: as for `spec_of`. Raises: InvalidInput; WebhookRefused.
    """
    if cron.options.depends_on:
        raise InvalidInput("each run of a cron job would wait for the same job", path="$.options.depends_on")
    try:
        spec = spec_of(cron.options, rules, cron.function, cron.key_id, now_s, low_only=low_only, allowed=allowed)
    except InvalidInput as error:
        error.extra["path"] = f"$.options{str(error.extra['path']).removeprefix('$')}"
        raise
    return msgspec.structs.replace(spec, cron=cron.name)


def object_key(name: str) -> str:
    """Return where the definition of a cron job is in object storage."""
    return f"{PREFIX}{name}.json"


def _name_of(info: ObjectInfo) -> str:
    return info.key.removeprefix(PREFIX).removesuffix(".json")


def _when(cron: CronJob) -> tuple[str, str, bool]:
    return cron.schedule, cron.tz, cron.enabled


def _state(row: Mapping[str, bytes | None]) -> CronState:
    known = {name: _text(value) for name, value in row.items() if value is not None}
    return msgspec.convert(known, CronState, strict=False)


def _flat(state: CronState) -> Iterator[str]:
    for name in CronState.__struct_fields__:
        value: Any = getattr(state, name)
        yield from (name, value if isinstance(value, str) else repr(value))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
