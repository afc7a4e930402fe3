"""The live keys of `keys.py`: small asynchronous functions over redis.asyncio, one or two round trips each.

Every function raises StoreUnavailable when Redis does not answer in time, and BadCredential when it refuses us.
`now_s` is unix time. This module does not know who calls it: keys.py names the one writer of every key.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
import redis as redis_sync
import redis.asyncio as redis_async
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from samovar.errors import Conflict
from samovar.lifecycle import State
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.readable import readable, readable_rows
from samovar_storage.records import (
    BootFailure,
    Decision,
    Demand,
    InstanceRecord,
    LogLine,
    NodeStatus,
    VersionStatus,
    WarmRequest,
    dumps,
    loads,
)

SOCKET_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 3.0
HEALTH_CHECK_S = 15
MAX_CONNECTIONS = 64

# KEYS: lease, fence. ARGV: lifetime ms. Returns a new token, larger than any before, or 0 if someone leads.
_ACQUIRE_LEASE = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
local token = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], token, 'PX', ARGV[1])
return token
"""
# KEYS: lease, fence. ARGV: token, lifetime ms. Returns 1 while the lease is ours, or ran out and nobody led since.
_RENEW_LEASE = """
local held = redis.call('GET', KEYS[1])
if held and held ~= ARGV[1] then return 0 end
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
# KEYS: lease. ARGV: token.
_RELEASE_LEASE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""
# KEYS: fence, instances. ARGV: token, field, value ('' deletes), channel, message. Returns 0 if a newer leader exists.
_WRITE_INSTANCE = """
if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then return 0 end
if ARGV[3] == '' then redis.call('HDEL', KEYS[2], ARGV[2]) else redis.call('HSET', KEYS[2], ARGV[2], ARGV[3]) end
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 1
"""


def connect_async(url: str) -> redis_async.Redis:
    """Return a client whose every call ends within seconds: one quick retry, then the error. Connects at the first.

    At most MAX_CONNECTIONS calls are under way; more wait for their turn, for as long as a call may take.
    """
    retry = AsyncRetry(ExponentialBackoff(cap=0.2, base=0.05), 1)
    pool = redis_async.BlockingConnectionPool.from_url(url, timeout=SOCKET_TIMEOUT_S, retry=retry, **_options())
    return redis_async.Redis.from_pool(pool)


def connect_sync(url: str) -> redis_sync.Redis:
    """Return the blocking twin of `connect_async`."""
    return redis_sync.Redis.from_url(url, retry=Retry(ExponentialBackoff(cap=0.2, base=0.05), 1), **_options())


def _options() -> dict[str, Any]:
    return {
        "socket_timeout": SOCKET_TIMEOUT_S,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": HEALTH_CHECK_S,
        "max_connections": MAX_CONNECTIONS,
        "retry_on_error": [RedisConnectionError, RedisTimeoutError],
    }


# demand ---------------------------------------------------------------------------------------------------------


async def write_demand(
    redis: redis_async.Redis, gateway_id: str, demand: Mapping[str, Demand], now_s: float, wake: Iterable[str] = ()
) -> None:
    """The gateway's whole demand is `demand` afterwards, for 3 s, and the gateway counts as alive.

    Args:
        demand: ref → what is queued and running; refs left out have none.
        wake: refs that went from zero to non-zero: the pool manager is woken once per ref.
    """
    key = keys.demand(gateway_id)
    with translating("the demand"):
        async with redis.pipeline(transaction=True) as pipe:
            pipe.delete(key)
            if demand:
                pipe.hset(key, mapping={ref: dumps(value) for ref, value in demand.items()})
                pipe.expire(key, keys.DEMAND_LIFETIME_S)
            pipe.zadd(keys.GATEWAYS, {gateway_id: now_s})
            for ref in wake:
                pipe.publish(keys.CHANNEL_WAKE, ref)
            await pipe.execute()


async def read_demand(redis: redis_async.Redis, now_s: float) -> dict[str, Demand]:
    """Return ref → demand summed over the gateways heard of within 10 s; others are forgotten."""
    gateways = await live_gateways(redis, now_s)
    if not gateways:
        return {}
    with translating("the demand"):
        async with redis.pipeline(transaction=False) as pipe:
            for gateway_id in gateways:
                pipe.hgetall(keys.demand(gateway_id))
            rows = await pipe.execute()
    total: dict[str, Demand] = {}
    for row in rows:
        for ref, data in row.items():
            name = _text(ref)
            one = readable(f"a demand for {name}", data, Demand) or Demand(queued=0, running=0)
            sum_ = total.get(name, Demand(queued=0, running=0))
            total[name] = Demand(
                queued=sum_.queued + one.queued, running=sum_.running + one.running, jobs=sum_.jobs + one.jobs
            )
    return total


async def live_gateways(redis: redis_async.Redis, now_s: float) -> list[str]:
    """Return the gateways heard of within 10 s, after forgetting the others."""
    with translating("the list of gateways"):
        async with redis.pipeline(transaction=False) as pipe:
            pipe.zremrangebyscore(keys.GATEWAYS, "-inf", now_s - keys.GATEWAY_LIFETIME_S)
            pipe.zrange(keys.GATEWAYS, 0, -1)
            _, members = await pipe.execute()
    return [_text(member) for member in members]


async def remove_gateway(redis: redis_async.Redis, gateway_id: str) -> None:
    """The gateway and its demand are gone afterwards: called once it has drained."""
    with translating("the list of gateways"):
        async with redis.pipeline(transaction=True) as pipe:
            pipe.delete(keys.demand(gateway_id))
            pipe.zrem(keys.GATEWAYS, gateway_id)
            await pipe.execute()


async def wake(redis: redis_async.Redis, ref: str) -> None:
    """Wake the pool manager for a version."""
    with translating("a wake-up"):
        await redis.publish(keys.CHANNEL_WAKE, ref)


async def post_letter(redis: redis_async.Redis, gateway: str, letter: bytes) -> int:
    """Publish a letter to a gateway about a resumable stream; return how many took it, 0 if it does not listen."""
    with translating("a letter to another gateway"):
        return int(await redis.publish(keys.stream_channel(gateway), letter))


# instances ------------------------------------------------------------------------------------------------------


async def put_instance(redis: redis_async.Redis, record: InstanceRecord, fence: int | None = None) -> None:
    """The record is stored and published. Raises Conflict if a leader newer than the token `fence` exists."""
    await write_instances(redis, [record], fence)


async def remove_instance(redis: redis_async.Redis, record: InstanceRecord, fence: int | None = None) -> None:
    """The record is gone, and published with the state "gone". Raises Conflict as `put_instance` does."""
    await write_instances(redis, [msgspec.structs.replace(record, state=State.GONE)], fence)


async def write_instances(
    redis: redis_async.Redis, records: Sequence[InstanceRecord], fence: int | None = None
) -> None:
    """All records are stored, those in the state "gone" removed, and all are published, in one round trip.

    Raises Conflict if a leader newer than the token `fence` exists; then none was written from then on.
    """
    names = [keys.MANAGER_FENCE, keys.INSTANCES]
    token = fence if fence is not None else 2**53
    with translating("an instance record"):
        async with redis.pipeline(transaction=False) as pipe:
            for record in records:
                data = dumps(record)
                stored = b"" if record.state == State.GONE else data
                arguments: list[Any] = [token, record.instance_id, stored, keys.CHANNEL_INSTANCES, data]
                pipe.eval(_WRITE_INSTANCE, len(names), *names, *arguments)
            written = await pipe.execute()
    if not all(written):
        raise Conflict("another pool manager has taken over this cluster")


async def instances(redis: redis_async.Redis) -> dict[str, InstanceRecord]:
    """Return instance id → record of every instance."""
    with translating("the instances"):
        rows = await redis.hgetall(keys.INSTANCES)
    return readable_rows("instance", rows, InstanceRecord)


# boots, status, decisions ---------------------------------------------------------------------------------------


async def put_boot_failure(redis: redis_async.Redis, failure: BootFailure) -> None:
    """The failure is published and kept until its back-off is over, plus 5 s."""
    lifetime_s = max(5.0, failure.retry_at_s - failure.failed_at_s + 5.0)
    with translating("a boot failure"):
        async with redis.pipeline(transaction=True) as pipe:
            pipe.set(keys.boot(failure.ref), dumps(failure), px=int(lifetime_s * 1000))
            pipe.publish(keys.CHANNEL_BOOT, dumps(failure))
            await pipe.execute()


async def boot_failure(redis: redis_async.Redis, ref: str) -> BootFailure | None:
    """Return the version's last boot failure while it is remembered."""
    with translating("a boot failure"):
        data = await redis.get(keys.boot(ref))
    return readable(f"the boot failure of {ref}", data, BootFailure)


async def boot_failures(redis: redis_async.Redis, refs: Sequence[str]) -> dict[str, BootFailure]:
    """Return ref → last boot failure of those refs that have one."""
    if not refs:
        return {}
    with translating("the boot failures"):
        rows = await redis.mget([keys.boot(ref) for ref in refs])
    return readable_rows("the boot failure of", dict(zip(refs, rows, strict=True)), BootFailure)


async def clear_boot_failure(redis: redis_async.Redis, ref: str) -> None:
    """The version has no boot failure afterwards."""
    with translating("a boot failure"):
        await redis.delete(keys.boot(ref))


async def put_status(redis: redis_async.Redis, *statuses: VersionStatus) -> None:
    """Each version's status is kept for 10 s; all are written in one round trip."""
    with translating("a version's status"):
        async with redis.pipeline(transaction=False) as pipe:
            for status in statuses:
                pipe.set(keys.status(status.ref), dumps(status), ex=keys.STATUS_LIFETIME_S)
            await pipe.execute()


async def statuses(redis: redis_async.Redis, refs: Sequence[str]) -> dict[str, VersionStatus]:
    """Return ref → status of those refs that have one."""
    if not refs:
        return {}
    with translating("the versions' status"):
        rows = await redis.mget([keys.status(ref) for ref in refs])
    return readable_rows("the status of", dict(zip(refs, rows, strict=True)), VersionStatus)


async def put_node(redis: redis_async.Redis, status: NodeStatus) -> None:
    """The node's status is kept for 10 s."""
    with translating("a node's status"):
        await redis.set(keys.node(status.node), dumps(status), ex=keys.STATUS_LIFETIME_S)


async def nodes(redis: redis_async.Redis) -> list[NodeStatus]:
    """Return the status of every node heard of within 10 s, by name."""
    with translating("the nodes"):
        names = [key async for key in redis.scan_iter(match=keys.node("*"), count=1000)]
        rows = await redis.mget(names) if names else []
    found = readable_rows("the node's status", dict(zip(names, rows, strict=True)), NodeStatus)
    return sorted(found.values(), key=lambda status: status.node)


async def add_decisions(redis: redis_async.Redis, name: str, decisions: Sequence[Decision]) -> None:
    """The decisions, oldest first, are the newest of the function; the newest 100 are kept."""
    if not decisions:
        return
    with translating("the decisions"):
        async with redis.pipeline(transaction=True) as pipe:
            pipe.lpush(keys.decisions(name), *(dumps(decision) for decision in decisions))
            pipe.ltrim(keys.decisions(name), 0, keys.MAX_DECISIONS - 1)
            await pipe.execute()


async def decisions(redis: redis_async.Redis, name: str, count: int = keys.MAX_DECISIONS) -> list[Decision]:
    """Return the function's last decisions, newest first."""
    with translating("the decisions"):
        rows = await redis.lrange(keys.decisions(name), 0, count - 1)
    decisions = (readable(f"a decision on {name}", row, Decision) for row in rows)
    return [decision for decision in decisions if decision is not None]


# logs -----------------------------------------------------------------------------------------------------------


async def add_logs(redis: redis_async.Redis, name: str, lines: Sequence[LogLine]) -> None:
    """The lines end the function's log stream; about the newest 10,000 are kept."""
    if not lines:
        return
    with translating("the log stream"):
        async with redis.pipeline(transaction=False) as pipe:
            for line in lines:
                pipe.xadd(keys.logs(name), {"line": dumps(line)}, maxlen=keys.MAX_LOG_LINES, approximate=True)
            await pipe.execute()


async def last_logs(redis: redis_async.Redis, name: str, count: int) -> tuple[list[LogLine], str]:
    """Return the last `count` lines, oldest first, and the stream id to go on from with `logs_after`."""
    with translating("the log stream"):
        rows: Any = await redis.xrevrange(keys.logs(name), count=count)
    lines = [loads(fields[b"line"], LogLine) for _, fields in reversed(rows)]
    return lines, _text(rows[0][0]) if rows else "0-0"


async def logs_after(redis: redis_async.Redis, name: str, after: str, wait_s: float) -> tuple[list[LogLine], str]:
    """Return up to 1,000 lines after the stream id, waiting `wait_s` (< 5 s) for a first, and the id to go on from."""
    with translating("the log stream"):
        answer = await redis.xread({keys.logs(name): after}, count=1000, block=max(1, int(wait_s * 1000)))
    if not answer:
        return [], after
    rows = _only_stream(answer)
    return [loads(fields[b"line"], LogLine) for _, fields in rows], _text(rows[-1][0])


async def follow_logs(redis: redis_async.Redis, name: str, after: str) -> AsyncGenerator[LogLine, None]:
    """Yield lines after the stream id as they come, until the caller stops asking."""
    while True:
        lines, after = await logs_after(redis, name, after, wait_s=SOCKET_TIMEOUT_S / 2)
        for line in lines:
            yield line


# warm requests --------------------------------------------------------------------------------------------------


async def put_warm(redis: redis_async.Redis, request: WarmRequest, now_s: float) -> None:
    """The request holds until its time, and the pool manager is woken. One in the past withdraws it."""
    remaining_ms = int((request.until_s - now_s) * 1000)
    with translating("a warm request"):
        async with redis.pipeline(transaction=True) as pipe:
            if remaining_ms > 0:
                pipe.set(keys.warm(request.ref), dumps(request), px=remaining_ms)
            else:
                pipe.delete(keys.warm(request.ref))
            pipe.publish(keys.CHANNEL_WAKE, request.ref)
            await pipe.execute()


async def warm_requests(redis: redis_async.Redis, refs: Sequence[str]) -> dict[str, WarmRequest]:
    """Return ref → warm request of those refs that have one."""
    if not refs:
        return {}
    with translating("the warm requests"):
        rows = await redis.mget([keys.warm(ref) for ref in refs])
    return readable_rows("the warm request for", dict(zip(refs, rows, strict=True)), WarmRequest)


# the manager's lease --------------------------------------------------------------------------------------------


async def acquire_lease(redis: redis_async.Redis, lifetime_s: float = keys.LEASE_LIFETIME_S) -> int | None:
    """Return a fencing token larger than any before if nobody leads now, else None."""
    with translating("the manager's lease"):
        args = [int(lifetime_s * 1000)]
        token = await _eval(redis, _ACQUIRE_LEASE, [keys.MANAGER_LEASE, keys.MANAGER_FENCE], args)
    return int(token) or None


async def renew_lease(redis: redis_async.Redis, token: int, lifetime_s: float = keys.LEASE_LIFETIME_S) -> bool:
    """Return whether the lease is ours for another `lifetime_s`: also one that ran out while nobody else led."""
    with translating("the manager's lease"):
        names = [keys.MANAGER_LEASE, keys.MANAGER_FENCE]
        return bool(await _eval(redis, _RENEW_LEASE, names, [token, int(lifetime_s * 1000)]))


async def release_lease(redis: redis_async.Redis, token: int) -> None:
    """The lease is not ours afterwards; another's is left alone."""
    with translating("the manager's lease"):
        await _eval(redis, _RELEASE_LEASE, [keys.MANAGER_LEASE], [token])


async def _eval(redis: redis_async.Redis, script: str, names: Sequence[str], args: Sequence[Any]) -> Any:
    return await redis.eval(script, len(names), *names, *args)


def _only_stream(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Return the entries of the one stream in an XREAD answer, a list in RESP2 and a mapping in RESP3."""
    if isinstance(answer, dict):
        (entries,) = answer.values()
        return list(entries[0]) if entries and isinstance(entries[0], list) else list(entries)
    return list(answer[0][1])


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
