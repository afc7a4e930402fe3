"""`python -m samovar_storage.requestlog.keeper`: the process that ships, merges, expires and reads the request log.

One per gateway, started by it when there is something to do, so that pyarrow, compression and uploads cost the calls
neither their interpreter's lock nor memory. It speaks with its gateway in JSON lines: the first line on stdin is a
`Setup` (credentials never stand in arguments or the environment), each further one a `Question`; stdout carries one
`Reply` per question, and `Report`s in between. When stdin ends, it ships what is ready and leaves.
This module does not know HTTP or how records come to be.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import redis as redis_sync

from samovar.errors import SamovarError
from samovar.settings import Secret
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.live import connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.requestlog import merging, query, shipping, spool
from samovar_storage.requestlog.questions import Question, Reply, Report, Setup
from samovar_storage.settings import StoreSettings

log = logging.getLogger("samovar.requestlog")

NICENESS = 10
GC_THRESHOLD = 200_000  # rows are lists by the ten thousand, never in cycles: looking through them doubles the work
SHIP_EVERY_S = 1.0
TEND_EVERY_S = 60.0
MAX_PAUSE_S = 30.0
LEASE_S = 600.0
LINK_LIFETIME_S = 900
END_WITHIN_S = 15


class Keeper:
    """The work of the process, shared by its two threads."""

    def __init__(self, setup: Setup, store: ObjectStore, redis: redis_sync.Redis) -> None:
        self._setup = setup
        self._store = store
        self._redis = redis
        self._folder = Path(setup.folder)
        self._shipping = threading.Lock()
        self._writing = threading.Lock()
        self._stopped = threading.Event()
        self._report = Report()

    def work(self) -> None:
        """Ship every second and tend every minute, until stopped; a store that is away is asked less and less often."""
        pause_s, tend_at_s = SHIP_EVERY_S, time.monotonic()
        while not self._stopped.wait(pause_s):
            try:
                self.ship()
                pause_s = SHIP_EVERY_S
                if time.monotonic() >= tend_at_s:
                    tend_at_s = time.monotonic() + TEND_EVERY_S
                    self.tend()
            except SamovarError as error:
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
                self._failed(error.detail)
            except Exception:
                log.exception("the request log's keeper failed at something")
                pause_s = MAX_PAUSE_S
                self._failed("a bug")

    def ship(self) -> None:
        """What is ready in the spool is in object storage."""
        with self._shipping:
            shipped = shipping.ship(self._store, self._folder)
        if shipped.num_segments:
            old = self._report
            self._tell(
                Report(
                    shipped_files=old.shipped_files + shipped.num_files,
                    shipped_records=old.shipped_records + shipped.num_records,
                    failures=old.failures,
                )
            )

    def tend(self) -> None:
        """Merge small files and delete old ones, unless another keeper is at it."""
        lock = self._redis.lock(keys.lock("request-log"), timeout=LEASE_S, thread_local=False)
        with translating("the request log's lease"):
            if not lock.acquire(blocking=False):
                return
        try:
            merging.expire(self._store, time.time(), self._setup.keep_s, self._setup.keep_bytes)
            merging.merge_all(self._store, time.time())
        finally:
            with translating("the request log's lease"):
                if lock.owned():
                    lock.release()

    def answer(self, line: bytes) -> None:
        """Write the reply to one question."""
        question = msgspec.json.decode(line, type=Question)
        try:
            if question.ship:
                self.ship()
            answer = self._find(question)
            self._write(Reply(id=question.id, answer=answer))
        except SamovarError as error:
            self._write(Reply(id=question.id, code=error.code, detail=error.detail))
        except Exception:
            log.exception("a question to the request log failed")
            self._write(Reply(id=question.id, code="internal", detail="the request log could not be read"))

    def stop(self) -> None:
        """End `work`, and ship what is ready if the store is there."""
        self._stopped.set()
        try:
            self.ship()
        except SamovarError as error:
            log.warning("the spool keeps the rest of the request log: %s", error.detail)

    def _find(self, question: Question) -> dict[str, Any]:
        if question.what == "summary":
            return query.summary(self._store, self._redis, question.wanted)
        if question.what == "files":
            found = [partition.prefix + name for partition, name in query.files(self._store, question.wanted)]
            return {"files": [{"key": key, "url": self._store.presign_get(key, LINK_LIFETIME_S)} for key in found]}
        return query.records(self._store, self._redis, question.wanted)

    def _failed(self, why: str) -> None:
        log.warning("the request log stays in its spool (%d bytes): %s", spool.spooled_bytes(self._folder), why)
        old = self._report
        self._tell(msgspec.structs.replace(old, failures=old.failures + 1))

    def _tell(self, report: Report) -> None:
        self._report = report
        self._write(report)

    def _write(self, message: Reply | Report) -> None:
        with self._writing:
            sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
            sys.stdout.buffer.flush()


def main() -> int:
    """Keep the request log until stdin ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    os.nice(NICENESS)
    gc.set_threshold(GC_THRESHOLD)
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setup)
    store = ObjectStore.from_settings(_settings(setup))
    keeper = Keeper(setup, store, connect_sync(setup.redis_url))
    worker = threading.Thread(target=keeper.work, name="keeper", daemon=True)
    worker.start()
    for line in sys.stdin.buffer:
        keeper.answer(line)
    signal.alarm(END_WITHIN_S)  # a store that hangs must not keep us: what is half shipped is shipped again
    keeper.stop()
    return 0


def _settings(setup: Setup) -> StoreSettings:
    return StoreSettings(
        redis_url=Secret(setup.redis_url),
        s3_endpoint=setup.s3_endpoint,
        s3_bucket=setup.s3_bucket,
        s3_region=setup.s3_region,
        s3_access_key=Secret(setup.s3_access_key),
        s3_secret_key=Secret(setup.s3_secret_key),
    )


if __name__ == "__main__":
    sys.exit(main())
