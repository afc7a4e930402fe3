"""Functions, versions and routes: object storage holds the truth, Redis an index of it.

A version is numbered by the first free `versions/<n>/manifest.json` (put if absent), a route is changed by a
read-change-write loop on the object's etag. That alone decides; a lock in Redis per function only spares two
deploys at once the seconds a contended conditional put takes. A deleted function leaves a route without shares, so that
its version numbers are never given out again: a version stays immutable even then.

Before the index of a function is touched its name goes into `sv:registry:dirty`, and leaves it afterwards; what a crash
left there is synchronised by the next `ensure_built`. An older route never replaces a newer one in the index.
This module does not know HTTP or who may deploy.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import redis as redis_sync
from redis.exceptions import LockError

from samovar.errors import Conflict, FunctionNotFound, InvalidInput, NotFound
from samovar.spec import Manifest, Route, check_name, stand_in
from samovar_storage import keys, routes
from samovar_storage.apikeys import ApiKeys
from samovar_storage.failures import translating
from samovar_storage.objects import ObjectStore, put_or_same
from samovar_storage.readable import readable_rows
from samovar_storage.records import FunctionRecord, dumps, loads

log = logging.getLogger(__name__)

MAX_ROUTE_ATTEMPTS = 100
NUM_READERS = 8
LOCK_LIFETIME_S, LOCK_WAIT_S = 30.0, 20.0
REBUILD_LIFETIME_S = 600.0

# KEYS: functions, dirty. ARGV: name, record ('' deletes), updated_at_s, channel. Older routes lose against newer ones,
# and all win against what cannot be read.
_INDEX = """
local stored = redis.call('HGET', KEYS[1], ARGV[1])
local is_read, updated_at_s = pcall(function() return tonumber(cjson.decode(stored).route.updated_at_s) end)
if not is_read or not updated_at_s or updated_at_s <= tonumber(ARGV[3]) then
  if ARGV[2] == '' then redis.call('HDEL', KEYS[1], ARGV[1]) else redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
end
redis.call('SREM', KEYS[2], ARGV[1])
return redis.call('PUBLISH', ARGV[4], ARGV[1])
"""


def manifest_key(name: str, version: int) -> str:
    """Return where a version's manifest is in object storage."""
    return f"functions/{name}/versions/{version}/manifest.json"


def route_key(name: str) -> str:
    """Return where a function's route is in object storage."""
    return f"functions/{name}/route.json"


class Registry:
    """Deploys, routes and deletes functions. Blocking: for worker threads; safe to share between them."""

    def __init__(self, store: ObjectStore, redis: redis_sync.Redis, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._redis = redis
        self._clock = clock
        self.keys = ApiKeys(store, redis, clock)

    def publish_version(
        self,
        manifest: Manifest,
        by: str = "",
        ready: Collection[int] = (),
        trial: routes.Trial | None = None,
        mirror: int = 0,
    ) -> Manifest:
        """The manifest is a new version and, unless asked otherwise or a newer one came meanwhile, has all the traffic.

        Args:
            by: key id of who deploys. ready: versions with ready instances, as far as known.
            trial: it is a canary. mirror: it only gets copies of this percent of calls, 0 = no mirror.
        Returns: the manifest with its number and time. Raises: DeployRefused (name), StoreUnavailable, and what
        `routes.deployed` does; a deploy that failed half-way leaves at most an unrouted version, never a route to a
        missing one.
        """
        check_name(manifest.name)
        with self._turn(manifest.name):
            route = self._read_route(manifest.name)[0]
            made = self._number(manifest, 1 + (route.latest if route else 0))
            author = routes.Author(by, self._clock(), ready)
            self._write_route(
                made.name, lambda old: routes.deployed(old, made.name, made.version, author, trial, mirror)
            )
            return made

    def update_route(self, name: str, change: Callable[[Route], Route]) -> Route:
        """The function's route is what `change` makes of the current one; `change` may be called several times.

        Raises: FunctionNotFound; InvalidInput (shares that do not sum to 100, a version that does not exist);
        VersionRejected; what `change` raises; Conflict after 100 lost races.
        """
        with self._turn(name):
            return self._write_route(name, lambda old: change(routes.existing(old, name)))

    def delete_function(self, name: str) -> None:
        """The function has no route, no versions and no index entry. Raises FunctionNotFound."""
        with self._turn(name):
            tombstone = self._write_route(name, lambda old: _replace(routes.existing(old, name), shares={}))
            for version in range(1, tombstone.latest + 1):
                self._store.delete(manifest_key(name, version))

    def record(self, name: str) -> FunctionRecord:
        """Return the index entry of a function. Raises FunctionNotFound; Conflict if what is stored cannot be read."""
        with translating("the registry"):
            data = self._redis.hget(keys.FUNCTIONS, name)
        if data is None:
            raise FunctionNotFound(f"no function named {name!r}")
        try:
            return loads(data, FunctionRecord)
        except msgspec.MsgspecError as error:
            text = f"{name} is stored in a way that this release refuses: {error}; deploy it again, or remove it"
            raise Conflict(text) from error

    def records(self) -> dict[str, FunctionRecord]:
        """Return name → index entry of every function that can be read."""
        with translating("the registry"):
            rows = self._redis.hgetall(keys.FUNCTIONS)
        return readable_rows("function", rows, FunctionRecord)

    def manifest(self, name: str, version: int) -> Manifest:
        """Return a version's manifest from object storage. Raises NotFound; msgspec.MsgspecError if it is none."""
        return loads(self._store.get(manifest_key(name, version))[0], Manifest)

    def ensure_built(self) -> int:
        """The index mirrors object storage: rebuilt if Redis was empty, else only where a crash left it behind.

        Returns: how many functions were read. Any number of processes may call it at once: one rebuilds, the others
        wait for it.
        """
        if not self._is_built():
            with self._lock(keys.lock("registry"), REBUILD_LIFETIME_S, REBUILD_LIFETIME_S):
                if not self._is_built():
                    return self.rebuild()
        with translating("the registry"):
            dirty = sorted(_text(name) for name in self._redis.smembers(keys.REGISTRY_DIRTY))
        return self._synchronise(dirty)

    def rebuild(self) -> int:
        """The index of functions and API keys mirrors object storage afterwards. Returns the number of functions."""
        started_s = self._clock()
        names = {_function_name(info.key) for info in self._store.list("functions/")} - {""}
        stale = set(self.records()) - names
        num_functions = self._synchronise(sorted(names | stale)) - len(stale)
        num_keys = self.keys.rebuild()
        with translating("the registry"):
            self._redis.set(keys.REGISTRY_BUILT, "1")
            self._redis.publish(keys.CHANNEL_FUNCTIONS, keys.ALL_FUNCTIONS)
        log.info("registry: %d functions, %d keys in %.1f s", num_functions, num_keys, self._clock() - started_s)
        return num_functions

    def _is_built(self) -> bool:
        with translating("the registry"):
            return bool(self._redis.exists(keys.REGISTRY_BUILT))

    def _synchronise(self, names: list[str]) -> int:
        """Bring the index of these functions up to date, several at a time. One unreadable function stops no other."""
        with ThreadPoolExecutor(NUM_READERS, thread_name_prefix="registry") as pool:
            return sum(pool.map(self._synchronise_one, names))

    def _synchronise_one(self, name: str) -> int:
        try:
            self._index(name, self._read_route(name)[0])
        except (NotFound, msgspec.MsgspecError) as error:
            log.error("registry: function %s is left out: %s", name, error)
            return 0
        return 1

    def _number(self, manifest: Manifest, first: int) -> Manifest:
        """Store the manifest under the first free number from `first`."""
        created_at_s, version = self._clock(), first
        while True:
            numbered = msgspec.structs.replace(manifest, version=version, created_at_s=created_at_s)
            if put_or_same(self._store, manifest_key(manifest.name, version), dumps(numbered)):
                return numbered
            version += 1

    def _read_route(self, name: str) -> tuple[Route | None, str | None]:
        try:
            data, etag = self._store.get(route_key(name))
        except NotFound:
            return None, None
        return loads(data, Route), etag

    def _write_route(self, name: str, change: Callable[[Route | None], Route]) -> Route:
        for _ in range(MAX_ROUTE_ATTEMPTS):
            old, etag = self._read_route(name)
            # strictly later than the one it replaces, whatever the clocks say: the index orders by it
            updated_at_s = max(self._clock(), (old.updated_at_s if old else 0.0) + 0.001)
            new = _replace(change(old), updated_at_s=updated_at_s)
            self._check(new, old)
            with translating("the registry"):
                self._redis.sadd(keys.REGISTRY_DIRTY, name)
            try:
                self._store.put(route_key(name), dumps(new), if_absent=etag is None, if_match=etag)
            except Conflict:
                continue
            self._index(name, new)
            return new
        raise Conflict(f"the route of {name} kept changing; nothing was changed by this call")

    def _check(self, new: Route, old: Route | None) -> None:
        routes.check(new)
        for version in routes.targets(new) - (routes.targets(old) if old else set()):
            if self._store.head(manifest_key(new.name, version)) is None:
                raise InvalidInput(f"{new.name} has no version {version}", path="$.version")

    def _index(self, name: str, route: Route | None) -> None:
        """Mirror the route (and the manifests it names) in Redis, unless a newer one is there, and tell everyone.

        A deleted function has a route without shares. None is one whose objects are gone, or whose first deploy is
        under way: what was indexed within the time that a deploy may hold its turn stays.
        """
        record, updated_at_s = b"", self._clock() - LOCK_LIFETIME_S
        if route is not None:
            updated_at_s = route.updated_at_s
            if route.shares:
                record = dumps(FunctionRecord(name=name, route=route, manifests=self._manifests(name, route)))
        with translating("the registry"):
            self._redis.eval(
                _INDEX, 2, keys.FUNCTIONS, keys.REGISTRY_DIRTY, name, record, repr(updated_at_s), keys.CHANNEL_FUNCTIONS
            )

    def _manifests(self, name: str, route: Route) -> dict[str, Manifest]:
        try:
            known = self.record(name).manifests
        except (FunctionNotFound, Conflict):
            known = {}
        found: dict[str, Manifest] = {}
        for version in sorted(route.receiving()):
            self._add_manifest(found, name, version, known)
        for other in {stand_in(route, manifest) for manifest in found.values()}:
            if other is not None and str(other) not in found:
                with contextlib.suppress(NotFound):
                    self._add_manifest(found, name, other, known)
        return found

    def _add_manifest(self, found: dict[str, Manifest], name: str, version: int, known: dict[str, Manifest]) -> None:
        """One unreadable version stops no other. Raises: NotFound."""
        try:
            found[str(version)] = known.get(str(version)) or self.manifest(name, version)
        except msgspec.MsgspecError as error:
            log.error("registry: version %d of %s is left out: %s", version, name, error)

    @contextlib.contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        """Wait for this function's turn. Fails early when Redis is away: nothing has been written yet."""
        with self._lock(keys.lock(f"function:{name}"), LOCK_LIFETIME_S, LOCK_WAIT_S):
            yield

    @contextlib.contextmanager
    def _lock(self, name: str, lifetime_s: float, wait_s: float) -> Iterator[None]:
        lock = self._redis.lock(name, timeout=lifetime_s, sleep=0.02, blocking_timeout=wait_s, thread_local=False)
        with translating("the registry"):
            held = lock.acquire()
        if not held:
            log.warning("registry: going on without %s, held for more than %.0f s", name, wait_s)
        try:
            yield
        finally:
            if held:
                # an expired lock is no failure: the conditional puts have kept writers apart
                with translating("the registry"), contextlib.suppress(LockError):
                    lock.release()


def _replace(route: Route, **changes: object) -> Route:
    return msgspec.structs.replace(route, **changes)


def _function_name(key: str) -> str:
    parts = key.split("/")
    return parts[1] if len(parts) == 3 and parts[2] == "route.json" else ""


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
