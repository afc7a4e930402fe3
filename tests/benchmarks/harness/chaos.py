"""Jobs while something is broken: who is killed or stopped, the effects that jobs had outside, and what must be true of
both afterwards.

A job's effect is a row that its handler appends to a book of ours, with the fencing token of its attempt. A row counts
as committed if its token is the one under which the job's result was committed: each finished job must have exactly
one. This module does not know how a platform is started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import uvloop

from harness.jobs import Line
from harness.load import BenchmarkError
from harness.processes import mentions

TERMINAL = ("finished", "failed", "canceled")
RETRY_S = 0.1

Jobs = dict[str, dict[str, Any] | None]  # by id, as GET /v1/jobs/{id} shows them; None: unknown


class Book(socketserver.ThreadingTCPServer):
    """Takes rows over TCP: one JSON line each, answered by one byte once it is in the book."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Writer)
        self.rows: list[dict[str, Any]] = []

    @property
    def port(self) -> int:
        """Where it listens on loopback."""
        port: int = self.server_address[1]
        return port


class _Writer(socketserver.StreamRequestHandler):
    timeout = 10

    def handle(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            row = json.loads(self.rfile.readline())
            assert isinstance(self.server, Book)
            self.server.rows.append(row)
            self.wfile.write(b".")


@contextmanager
def book() -> Iterator[Book]:
    """Keep a book open for the body of a `with`."""
    with Book() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@dataclass(frozen=True)
class Verdict:
    """What became of accepted jobs. lost: unknown, or finished without a committed row; double_committed: with more
    than one. states: how many ended how."""

    accepted: int
    lost: int
    double_committed: int
    not_terminal: int
    rows: int
    states: Counter[str]


def judge(jobs: Jobs, rows: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return what became of the accepted jobs."""
    committed = Counter(
        row["job"] for row in rows if (job := jobs.get(row["job"])) is not None and row["token"] == job.get("token")
    )
    finished = [job_id for job_id, job in jobs.items() if job is not None and job["state"] == "finished"]
    unknown = sum(job is None for job in jobs.values())
    return Verdict(
        accepted=len(jobs),
        lost=unknown + sum(committed[job_id] == 0 for job_id in finished),
        double_committed=sum(committed[job_id] > 1 for job_id in finished),
        not_terminal=sum(job is not None and job["state"] not in TERMINAL for job in jobs.values()),
        rows=sum(row["job"] in jobs for row in rows),
        states=Counter(str(job["state"]) for job in jobs.values() if job is not None),
    )


def platform_pids(data_dir: Path) -> dict[str, list[int]]:
    """Return the processes of a platform by kind: gateway, pool, jobs, valkey, instance."""
    pids: dict[str, list[int]] = {}
    with contextlib.suppress(OSError, ValueError):
        for child in json.loads((data_dir / "children.json").read_bytes())["children"]:
            pids.setdefault(child["name"].partition("-")[0], []).append(child["process"]["pid"])
    return pids


@dataclass(frozen=True)
class Site:
    """Where jobs of `name`, which is `tests/functions/effects`, are submitted to, and the book of their effects."""

    url: str
    key: str
    name: str
    rows: Book


@contextmanager
def stopped(pids: Sequence[int], after_s: float, for_s: float) -> Iterator[None]:
    """Stop these processes (SIGSTOP) `after_s` seconds into the body of a `with`, and let them go on `for_s` later."""

    def work() -> None:
        time.sleep(after_s)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            if number == signal.SIGSTOP:
                time.sleep(for_s)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


@dataclass
class Killer:
    """Kills one process a second, each kind as often as the others, until told to stop or `max_kills` are done: who is
    killed for ever comes up ever later, and then nothing is running that could be killed.

    victims: returns process ids by kind. marker: what each of ours mentions, see `mentions`: no other process is ever
    killed. killed: how many of each kind so far.
    """

    victims: Callable[[], Mapping[str, Sequence[int]]]
    marker: str
    seed: int = 1
    every_s: float = 1.0
    max_kills: int = 60
    killed: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def at_work(self) -> Iterator[Killer]:
        """Kill during the body of a `with`."""
        stopping = threading.Event()
        thread = threading.Thread(target=self._work, args=(stopping,))
        thread.start()
        try:
            yield self
        finally:
            stopping.set()
            thread.join()

    def _work(self, stopping: threading.Event) -> None:
        dice = random.Random(self.seed)
        while self.killed.total() < self.max_kills and not stopping.wait(self.every_s):
            victims = {kind: [*filter(self._is_ours, pids)] for kind, pids in self.victims().items()}
            if any(victims.values()):
                kind = dice.choice(sorted(kind for kind, pids in victims.items() if pids))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(dice.choice(victims[kind]), signal.SIGKILL)
                    self.killed[kind] += 1

    def _is_ours(self, pid: int) -> bool:
        return mentions(pid, self.marker)


def run_jobs(
    site: Site, broken: AbstractContextManager[object], num_jobs: int, rate: float, timeout_s: float, **value: Any
) -> Verdict:
    """Submit `num_jobs` jobs, about `rate` a second, while `broken` is entered; return what became of them.

    Each is repeated under an Idempotency-Key of its own until it gets a 202. value: more of each job's input.
    timeout_s: how long to wait for the end of all.
    """
    prefix = token_hex(4)
    inputs = [{"number": number, "port": site.rows.port} | value for number in range(num_jobs)]
    bodies = [json.dumps({"input": each}).encode() for each in inputs]
    with broken:
        ids = uvloop.run(_submit_all(site, bodies, rate, prefix))
    return judge(uvloop.run(_watch_to_the_end(site, ids, timeout_s)), site.rows.rows)


async def _submit_all(site: Site, bodies: Sequence[bytes], rate: float, prefix: str) -> list[str]:
    """Submit every body once, whatever it takes; return the ids that a 202 named, in order."""

    async def one(number: int, line: Line) -> str:
        key = f"Idempotency-Key: {prefix}-{number}\r\n"
        while True:
            try:
                reply = await line.ask("POST", f"/v1/functions/{site.name}/jobs", bodies[number], key)
            except BenchmarkError:
                await line.close()
            else:
                if reply.status == 202:
                    return str(json.loads(reply.body)["id"])
                if reply.status < 500 and reply.status not in (409, 429):
                    raise BenchmarkError(f"submit: {reply.status} {reply.body[:300]!r}")
            await asyncio.sleep(RETRY_S)

    async def work(numbers: Iterator[int], ids: list[str], started_s: float) -> None:
        line = Line(site.url, site.key)
        for number in numbers:
            await asyncio.sleep(max(0.0, started_s + number / rate - time.perf_counter()))
            ids[number] = await one(number, line)
        await line.close()

    ids = [""] * len(bodies)
    numbers = iter(range(len(bodies)))
    started_s = time.perf_counter()
    await asyncio.gather(*(work(numbers, ids, started_s) for _ in range(8)))
    return ids


async def _watch_to_the_end(site: Site, ids: Sequence[str], timeout_s: float) -> Jobs:
    """Return every job once all have ended, or as they are after `timeout_s`."""
    found: Jobs = {}
    line = Line(site.url, site.key)
    give_up_s = time.perf_counter() + timeout_s
    for job_id in ids:
        while True:
            job = await _look(line, job_id)
            if job is None or job["state"] in TERMINAL or time.perf_counter() > give_up_s:
                found[job_id] = job
                break
            await asyncio.sleep(RETRY_S)
    await line.close()
    return found


async def _look(line: Line, job_id: str) -> dict[str, Any] | None:
    """Return a job as it is now; one without a known state while nobody can say, None if it is unknown."""
    try:
        reply = await line.ask("GET", f"/v1/jobs/{job_id}")
    except BenchmarkError:
        await line.close()
        return {"state": "unreachable"}
    if reply.status == 404:
        return None
    job: dict[str, Any] = json.loads(reply.body) if reply.status == 200 else {"state": f"status {reply.status}"}
    return job
