"""The routes of jobs in the memory of one process: what a client does when the other side is slow, away, or cut off.

Jobs end when a test lets them: `run` answers one, `is_held` keeps them queued. This module does not know Samovar's own
implementation; `docs/jobs.md` is what it follows.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from support.http_peer import Asked, Peer, Reply, http_peer

TERMINAL = ("finished", "failed", "canceled")
Run = Callable[[Any], Any]


class Failed(Exception):
    """What a job's function raises. problem: of the job."""

    def __init__(self, **problem: Any) -> None:
        self.problem = {"status": 500, "code": "function_raised", "detail": "it spilt", "type": "ValueError"} | problem


@dataclass
class JobsPeer:
    """A running peer. keys: answers by idempotency key. before: may answer a request instead; None lets it through."""

    run: Run
    url: str = ""
    is_held: bool = False
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)
    reduces: dict[str, str] = field(default_factory=dict)
    keys: dict[str, Reply] = field(default_factory=dict)
    uploads: dict[str, bytes] = field(default_factory=dict)
    crons: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    before: Callable[[Asked], Reply | None] = lambda asked: None
    after: Callable[[Asked, Reply], Reply] = lambda asked, reply: reply

    def __post_init__(self) -> None:
        self._lock = threading.RLock()

    def answer(self, asked: Asked) -> Reply:
        """Return what the route answers."""
        if (instead := self.before(asked)) is not None:
            return instead
        with self._lock:
            return self.after(asked, self._answer(asked))

    def release(self) -> None:
        """Run every job that waits."""
        with self._lock:
            self.is_held = False
            for job in self.jobs.values():
                self._run(job)

    def _answer(self, asked: Asked) -> Reply:
        parts = urlsplit(asked.path)
        query = dict(parse_qsl(parts.query))
        match (asked.method, *parts.path.split("/")[2:]):
            case ("GET", "jobs"):
                return told({"jobs": self._listed(query), "cursor": ""})
            case ("POST", "jobs", "purge"):
                return told({"deleted": self._purge(json.loads(asked.body))})
            case (method, "jobs", job_id, *deed) if job_id in self.jobs:
                return self._of_job(method, self.jobs[job_id], deed, asked)
            case (method, "groups", group, *_) if group in self.groups:
                return self._of_group(method, group)
            case (_, "jobs" | "groups", name, *_):
                return problem(404, "job_not_found", f"there is no job {name!r}")
            case ("GET", "crons"):
                return told([*self.crons.values()])
            case (method, "crons", name, *deed) if method == "PUT" or name in self.crons:
                return self._of_cron(method, name, deed, asked.body)
        return self._taken_in(asked, parts.path.split("/")[2:])

    def _taken_in(self, asked: Asked, parts: list[str]) -> Reply:
        key = asked.headers.get("idempotency-key", "")
        match (asked.method, *parts):
            case ("POST", "functions", name, "jobs"):
                if key not in self.keys:
                    self.keys[key] = self._submit(name, json.loads(asked.body))
                return self.keys[key]
            case ("POST", "functions", name, "jobs", "uploads"):
                upload = f"up{len(self.uploads)}"
                self.uploads[upload] = b""
                return told({"upload": upload, "url": f"{self.url}/v1/put/{upload}", "expires_at_s": 0})
            case ("PUT", "put", upload):
                self.uploads[upload] = asked.body
                return told({})
        return problem(404, "not_found", f"no {asked.path}")

    def _of_group(self, method: str, group: str) -> Reply:
        if method == "POST":
            for job_id in self.groups[group]:
                self._cancel(self.jobs[job_id])
        return told(self._group(group))

    def _submit(self, name: str, body: dict[str, Any]) -> Reply:
        if name not in ("echo", "embed", "join"):
            return problem(404, "function_not_found", f"there is no function {name!r}; near: embed")
        if "input" in body:
            return told(self._view(self._new(name, body["input"], body)), 202)
        inputs = body.get("inputs") or [json.loads(line) for line in self.uploads[body["upload"]].splitlines()]
        group = f"g{len(self.groups):023x}"
        made = [self._new(name, value, body, group, index) for index, value in enumerate(inputs)]
        self.groups[group] = [job["id"] for job in made]
        answer = {"group": group, "num_jobs": len(made), "jobs": self.groups[group] if "inputs" in body else []}
        if (reduce := body.get("reduce")) is not None:
            results = [job["result"] for job in made]
            answer["reduce"] = self._new(reduce.get("function") or name, results, {})["id"]
        return told(answer, 202)

    def _new(self, name: str, value: Any, body: dict[str, Any], group: str = "", index: int = 0) -> dict[str, Any]:
        job = {
            "id": f"{len(self.jobs):024x}",
            "function": name,
            "state": "queued",
            "created_at_s": time.time(),
            "retries": body.get("retries", 0),
            "input": value,
            "group": group,
            "index": index,
            "wait_reason": "cold_start",
            "result": None,
        }
        self.jobs[job["id"]] = job
        if not self.is_held:
            self._run(job)
        return job

    def _run(self, job: dict[str, Any]) -> None:
        if job["state"] in TERMINAL:
            return
        job |= {"state": "finished", "wait_reason": "", "attempt": 1, "started_at_s": time.time()}
        try:
            job["result"] = self.run(job["input"])
            job["result_bytes"] = len(json.dumps(job["result"]))
        except Failed as failed:
            job |= {"state": "failed", "error": failed.problem}
        job["ended_at_s"] = time.time()

    def _of_job(self, method: str, job: dict[str, Any], deed: list[str], asked: Asked) -> Reply:
        match (method, *deed):
            case ("GET",):
                return told(self._view(job))
            case ("POST", "cancel") | ("DELETE",):
                if job["state"] in TERMINAL:
                    return problem(409, "job_ended", f"the job is {job['state']}", state=job["state"])
                return told(self._view(self._cancel(job)))
            case ("POST", "retry"):
                return told(self._view(self._new(job["function"], job["input"], {})), 202)
            case ("GET", "result"):
                return Reply(body=json.dumps(job["result"]).encode(), headers={"Content-Type": "application/json"})
            case ("GET", "events"):
                return self._events(job, asked.headers.get("last-event-id", ""))
        return problem(404, "not_found", "no such deed")

    def _events(self, job: dict[str, Any], last_id: str) -> Reply:
        told_of: list[tuple[str, str, dict[str, Any]]] = [
            ("1-0", "queued", {}),
            ("2-0", "started", {"attempt": 1}),
            ("3-0", "log", {"line": "poured"}),
        ]
        if job["state"] in TERMINAL:
            told_of.append(("4-0", job["state"], {}))
        fresh = [event for event in told_of if event[0] > last_id]
        if not fresh and job["state"] in TERMINAL:
            return Reply(204, b"")
        lines = [f"id: {i}\nevent: {kind}\ndata: {json.dumps({'at_s': 1.0, **data})}\n\n" for i, kind, data in fresh]
        body = "retry: 1000\n\n: hello\n\n" + "".join(lines)
        return Reply(body=body.encode(), headers={"Content-Type": "text/event-stream; charset=utf-8"})

    def _of_cron(self, method: str, name: str, deed: list[str], body: bytes) -> Reply:
        if deed:
            return told(self._view(self._new(self.crons[name]["function"], self.crons[name]["input"], {})), 202)
        if method == "PUT":
            now_s = time.time()
            self.crons[name] = {"name": name, "next_at_s": now_s + 60, **json.loads(body)}
            return told(self.crons[name] | {"upcoming_s": [now_s + 60, now_s + 120, now_s + 180]})
        return told(self.crons[name] if method == "GET" else self.crons.pop(name))

    def _purge(self, body: dict[str, Any]) -> int:
        gone = [job for job in self.jobs.values() if job["state"] in TERMINAL and job["function"] == body["function"]]
        for job in gone:
            del self.jobs[job["id"]]
        return len(gone)

    def _cancel(self, job: dict[str, Any]) -> dict[str, Any]:
        if job["state"] not in TERMINAL:
            job |= {"state": "canceled", "ended_at_s": time.time(), "wait_reason": ""}
        return job

    def _listed(self, query: dict[str, str]) -> list[dict[str, Any]]:
        fits = [
            job
            for job in reversed(self.jobs.values())
            if all(job[name] == query[name] for name in ("function", "state", "group") if query.get(name))
        ]
        return [self._view(job) for job in fits]

    def _group(self, group: str) -> dict[str, Any]:
        states = [self.jobs[job_id]["state"] for job_id in self.groups[group]]
        counts = {state: states.count(state) for state in set(states)}
        return {"id": group, "function": "echo", "num_jobs": len(states), "counts": counts}

    def _view(self, job: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in job.items() if name != "input"}


def told(content: Any, status: int = 200) -> Reply:
    """Return a JSON answer."""
    return Reply(status, json.dumps(content).encode(), {"Content-Type": "application/json"})


def problem(status: int, code: str, detail: str, **extra: Any) -> Reply:
    """Return a problem document."""
    return told({"type": f"urn:samovar:problem:{code}", "code": code, "detail": detail, **extra}, status)


@contextmanager
def jobs_peer(run: Run = lambda value: value, **more: Any) -> Iterator[JobsPeer]:
    """A peer whose jobs answer what `run` returns."""
    peer = JobsPeer(run=run, **more)
    server: Peer
    with http_peer(peer.answer) as server:
        peer.url, peer.asked = server.url, server.asked
        yield peer
