"""The gateway's end of the request log's keeper (`samovar_storage.requestlog.keeper`): started when first needed, kept
alive, asked questions, ended with the gateway. Credentials reach it over its stdin.

This module does not know what the keeper does with the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from samovar.errors import StoreUnavailable, rebuild
from samovar_gateway.settings import GatewaySettings
from samovar_storage.requestlog.questions import Question, Reply, Report, Setup, Wanted
from samovar_storage.requestlog.spool import READY, SEGMENT_AGE_S, SPOOL_FOLDER

log = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 60.0
LOOK_EVERY_S = 1.0
# one keeper serves all gateways of a node, since they share the spool: another is started only for what stays there
MIN_PATIENCE_S, MAX_PATIENCE_S = 2.0, 6.0
RESTART_S = 5.0
END_TIMEOUT_S = 20.0
MAX_LINE_BYTES = 64 << 20
MAX_WAITING = 16
_DAY_S = 86_400.0


class LogKeeper:
    """One per gateway. report: what the keeper last said it had done, over all its starts."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.folder = settings.data_dir / SPOOL_FOLDER
        self._settings = settings
        self._patience_s = random.uniform(MIN_PATIENCE_S, MAX_PATIENCE_S)  # noqa: S311  so that not all start at once
        self._past = Report()
        self._current = Report()
        self._process: asyncio.subprocess.Process | None = None
        self._wanted = asyncio.Event()
        self._up = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Reply]] = {}
        self._ids = itertools.count(1)

    @property
    def report(self) -> Report:
        """Return what all keepers of this gateway have done."""
        past, current = self._past, self._current
        return Report(
            shipped_files=past.shipped_files + current.shipped_files,
            shipped_records=past.shipped_records + current.shipped_records,
            failures=past.failures + current.failures,
        )

    async def run(self) -> None:
        """Keep a keeper alive from the moment it is needed until cancelled."""
        await self._needed()
        process = await self._start()
        try:
            await self._listen(process)
            log.warning("the request log's keeper ended with %s and is started again", await process.wait())
            await asyncio.sleep(RESTART_S)
        finally:
            self._past, self._current = self.report, Report()
            self._up.clear()
            self._fail_all()
            await self._end(process)

    async def ask(self, what: str, wanted: Wanted, ship: bool = False) -> dict[str, Any]:
        """Return the keeper's answer. ship: what is ready in the spool is shipped before.

        Raises: StoreUnavailable, also when the keeper is away or too busy, and what else it ran into.
        """
        if len(self._answers) >= MAX_WAITING:
            raise StoreUnavailable("too many questions to the request log at once", retry_after_s=5.0)
        self._wanted.set()
        number = next(self._ids)
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await self._up.wait()
                await self._send(Question(id=number, what=what, wanted=wanted, ship=ship))
                reply = await answer
        except (TimeoutError, OSError) as error:
            raise StoreUnavailable("the request log does not answer", retry_after_s=5.0) from error
        finally:
            self._answers.pop(number, None)
        if reply.answer is None:
            raise rebuild(reply.code, 0, reply.detail, {})
        return reply.answer

    async def _needed(self) -> None:
        """Return once something has been waiting to be shipped for a while, or somebody asks."""
        while not self._wanted.is_set():
            if await asyncio.to_thread(_is_neglected, self.folder, self._patience_s, time.time()):
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wanted.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        command = (sys.executable, "-P", "-m", "samovar_storage.requestlog.keeper")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR_")}
        self._process = process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_LINE_BYTES,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the gateway, which ends it in order
        )
        await self._send(self._setup())
        self._up.set()
        return process

    def _setup(self) -> Setup:
        settings = self._settings
        return Setup(
            redis_url=settings.redis_url.reveal(),
            s3_endpoint=settings.s3_endpoint,
            s3_bucket=settings.s3_bucket,
            s3_region=settings.s3_region,
            s3_access_key=settings.s3_access_key.reveal(),
            s3_secret_key=settings.s3_secret_key.reveal(),
            folder=str(self.folder),
            keep_s=settings.request_log_keep_days * _DAY_S,
            keep_bytes=settings.request_log_keep_bytes,
        )

    async def _send(self, message: Setup | Question) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(message) + b"\n")
        await self._process.stdin.drain()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Take in what the keeper says until it ends."""
        assert process.stdout is not None
        while line := await process.stdout.readline():
            message = msgspec.json.decode(line, type=Reply | Report)
            if isinstance(message, Report):
                self._current = message
            elif (answer := self._answers.get(message.id)) is not None and not answer.done():
                answer.set_result(message)

    def _fail_all(self) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(StoreUnavailable("the request log's keeper ended", retry_after_s=5.0))

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """The keeper is gone: it ships what is ready when its stdin ends, and is killed if that takes too long."""
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            log.warning("the request log's keeper did not end in time; the spool keeps what it had not shipped")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _is_neglected(folder: Path, patience_s: float, now_s: float) -> bool:
    """Return whether the spool holds a segment that nobody ships, or one that its gateway left open when it died."""
    try:
        for path in folder.iterdir():
            stat = path.stat()
            waited_s = now_s - max(stat.st_mtime, stat.st_ctime)
            if waited_s > patience_s + (0 if path.suffix == READY else SEGMENT_AGE_S):
                return True
    except OSError:
        return False  # there is no spool yet, or a segment was shipped while we looked
    return False
