"""`samovar jobs submit NAME --file inputs.jsonl`: a job per line, results to a file, from where an earlier run ended.

    read the file ─► ledger ─► submit batches, while fewer than so many jobs are unfinished ─► look at their groups
                                   └── a group is done ─► its results go to the output ─► all done: sort it

All that must survive a kill is in the ledger and in the platform; the output says which lines have been written.
This module does not know how results are kept (`bulk_results`) or progress is drawn (`bulk_progress`).
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from samovar.cli.bulk_progress import Meter
from samovar.cli.bulk_results import Outcome, Results
from samovar.cli.bulk_state import Batch, Inputs, Ledger, Sent, Uploaded, batch_size_of, new_head, open_ledger
from samovar.errors import JobNotFound, SamovarError
from samovar.job_client import JobGroup, submit_body, upload_lines
from samovar.job_requests import WAIT_WORDS, job_path, list_path, many_body, needs_upload, num_done, upload_body
from samovar.jobs import TERMINAL

if TYPE_CHECKING:
    from samovar.cli.session import Session
    from samovar.job_client import Job

_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.1, 1.0
_SECOND_THOUGHT_S = 3.0  # after Ctrl-C: another one cancels
_PATIENT_S = 2.0  # so long nothing may run before it is asked why
SOME_FAILED = 7


@dataclass(frozen=True, slots=True)
class Wishes:
    """How a run over a file is wanted: see the options of `jobs submit`."""

    output: Path | None = None
    wait: bool = False
    progress: bool = False
    batch_size: int = 200
    max_in_flight: int = 5000
    reduce: str | None = None
    allow_failed: bool = False
    restart: bool = False
    cancel_on_interrupt: bool = False


def run(session: Session, function: str, file: Path, terms: dict[str, Any], wishes: Wishes) -> int:
    """Submit what is not yet, and unless told otherwise wait for all; return the exit code."""
    if file.exists() and not file.is_file():
        raise click.UsageError(f"{file} is no regular file: it is read more than once, and again by a run that goes on")
    output = wishes.output or file.with_name(f"{file.stem}.results.jsonl")
    state = output.with_name(f"{output.name}.state")
    if wishes.restart:
        for path in (output, state):
            path.unlink(missing_ok=True)
    elif output.exists() and not state.exists():
        raise click.UsageError(f"{output} is there already: --restart replaces it, --output takes another place")
    size = batch_size_of(state) or wishes.batch_size
    inputs = Inputs(file, None if wishes.reduce is not None else size)
    reduce = None if wishes.reduce is None else {"function": wishes.reduce, "allow_failed": wishes.allow_failed}
    ledger = open_ledger(state, new_head(function, inputs, size, terms, reduce))
    bulk = Bulk(session, inputs, ledger, wishes)
    if ledger.sent:
        session.note(f"going on: {bulk.num_sent:,} of {inputs.num_lines:,} lines were submitted before")
    try:
        if not wishes.wait:
            bulk.submit_all()
            return bulk.say_submitted(output)
        return bulk.finish(output)
    except KeyboardInterrupt:
        bulk.interrupted()
        raise
    finally:
        ledger.close()


@dataclass(slots=True)
class _Open:
    """A group that is not written yet. counts: as last seen."""

    batch: Batch
    group: JobGroup
    num_jobs: int
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def num_ended(self) -> int:
        return sum(count for state, count in self.counts.items() if state in TERMINAL)


class Bulk:
    """One run over a file."""

    def __init__(self, session: Session, inputs: Inputs, ledger: Ledger, wishes: Wishes) -> None:
        self._session = session
        self._client = session.client
        self._inputs = inputs
        self._ledger = ledger
        self._head = ledger.head
        self._wishes = wishes
        self._open: dict[int, _Open] = {}
        self._moved_s = 0.0
        self._reason = ""

    @property
    def num_sent(self) -> int:
        """Lines that are jobs."""
        return sum(sent.num_jobs for sent in self._ledger.sent.values())

    # ---- submitting ------------------------------------------------------------------------------------------------

    def submit_all(self) -> None:
        """Submit every line that is not a job yet."""
        with self._meter() as meter:
            for batch in self._inputs.batches:
                self._send(batch)
                meter.show(self.num_sent, {})

    def say_submitted(self, output: Path) -> int:
        """Say what was submitted and how to come by the results."""
        groups = [sent.group for sent in self._ledger.sent.values()]
        data = {"function": self._head.function, "num_jobs": self.num_sent, "groups": groups, "output": str(output)}
        more = f"the same command with --wait or --progress writes the results to {output}"
        self._session.emit(data, lambda: f"{self.num_sent:,} jobs are queued; {more}")
        return 0

    def _send(self, batch: Batch) -> Sent:
        """Return the group of a batch; it is submitted unless it was. Asked again after a death, nothing doubles."""
        if (sent := self._ledger.sent.get(batch.number)) is None:
            group = self._submitted(self._inputs.read(batch), f"{self._head.run}-{batch.number}")
            reduce = group.reduced.id if group.reduced is not None else ""
            sent = Sent(batch=batch.number, group=group.id, num_jobs=len(batch.lines), reduce=reduce)
            self._ledger.note(sent)
        return sent

    def _submitted(self, lines: list[bytes], key: str) -> JobGroup:
        head, reduce = self._head, self._head.reduce
        if needs_upload(lines) and not self._ledger.upload:
            self._ledger.note(Uploaded(upload=upload_lines(self._client, head.function, lines)))
        upload = self._ledger.upload
        body = upload_body(upload, head.terms, reduce) if upload else many_body(lines, head.terms, reduce)
        return submit_body(self._client, head.function, body, key)

    # ---- awaiting --------------------------------------------------------------------------------------------------

    def finish(self, output: Path) -> int:
        """Submit, wait and write until every line has its result; return the exit code."""
        results = Results(output)
        try:
            self._drive(results)
            results.finish()
        finally:
            results.close()
        return self._say_done(results)

    def _drive(self, results: Results) -> None:
        left = [batch for batch in self._inputs.batches if not results.lines.issuperset(batch.lines)]
        left.reverse()
        pause_s, self._moved_s = _FIRST_LOOK_S, time.monotonic()
        with self._meter() as meter:
            while left or self._open:
                num_before = len(results.lines)
                while left and self._num_unfinished() < self._wishes.max_in_flight:
                    self._follow(left.pop())
                    self._show(meter, results)
                for one in list(self._open.values()):
                    self._look(one, results)
                self._show(meter, results)
                if left or self._open:
                    time.sleep(pause_s)
                pause_s = _FIRST_LOOK_S if len(results.lines) > num_before else min(_LONGEST_LOOK_S, pause_s * 1.5)

    def _follow(self, batch: Batch) -> None:
        sent = self._send(batch)
        self._open[batch.number] = _Open(batch, JobGroup(self._client, sent.group), sent.num_jobs)

    def _num_unfinished(self) -> int:
        return sum(one.num_jobs - one.num_ended for one in self._open.values())

    def _look(self, one: _Open, results: Results) -> None:
        """See how far a group is; write its results once it is done."""
        try:
            view = one.group.status()
        except JobNotFound:
            results.add(_missing(one.batch, {}))  # its jobs were forgotten before anyone asked
            del self._open[one.batch.number]
            return
        one.counts = dict(view.counts)
        if num_done(view) >= one.num_jobs:
            ended = {job.view.index: job for job in one.group if job.view is not None}
            outcomes = [_outcome(line, ended[at]) for at, line in enumerate(one.batch.lines) if at in ended]
            results.add(outcomes + _missing(one.batch, ended))
            del self._open[one.batch.number]

    def _meter(self) -> Meter:
        return Meter(self._session.err, self._head.function, self._inputs.num_lines, self._wishes.progress)

    def _show(self, meter: Meter, results: Results) -> None:
        counts = Counter(failed=results.counts["failed"])
        for one in self._open.values():
            counts.update(one.counts)
        meter.show(len(results.lines) + sum(one.num_ended for one in self._open.values()), counts, self._why(counts))

    def _why(self, counts: Counter[str]) -> str:
        """Return what the jobs wait for, when none has run for a while."""
        now_s = time.monotonic()
        if not self._wishes.progress or counts["started"] or not counts["queued"]:
            self._moved_s, self._reason = now_s, ""
        elif now_s - self._moved_s > _PATIENT_S:
            self._moved_s = now_s
            self._reason = self._ask_why()
        return self._reason

    def _ask_why(self) -> str:
        """Return what the newest waiting job waits for, "" if that cannot be found out now."""
        group = next(one.group.id for one in self._open.values() if one.counts.get("queued"))
        try:
            listed = self._session.get(list_path(group=group, state="queued", limit=1))["jobs"]
            reason = self._session.get(job_path(listed[0]["id"])).get("wait_reason", "") if listed else ""
        except SamovarError:
            return ""
        return WAIT_WORDS.get(reason, reason)

    def _say_done(self, results: Results) -> int:
        num_failed = results.counts["failed"]
        data: dict[str, Any] = {
            "function": self._head.function,
            "num_jobs": self._inputs.num_lines,
            "finished": results.counts["finished"],
            "failed": num_failed,
            "output": str(results.path),
        }
        code = self._reduced(data) or (SOME_FAILED if num_failed else 0)
        self._session.emit(data, lambda: _done_text(data))
        return code

    def _reduced(self, data: dict[str, Any]) -> int:
        """Note what the reducing job made of all results, if there is one, and return its exit code."""
        try:
            for sent in self._ledger.sent.values():
                if sent.reduce:
                    data["reduced"] = _plain(self._client.job(sent.reduce).result())
        except SamovarError as error:
            data["reduce_error"] = {"code": error.code, "detail": error.detail}
            return error.exit_code
        return 0

    # ---- Ctrl-C ----------------------------------------------------------------------------------------------------

    def interrupted(self) -> None:
        """Say what goes on and how to come back to it; cancel it if that was asked for, or Ctrl-C comes again."""
        if self._wishes.cancel_on_interrupt:
            self._cancel()
            return
        say = self._session.note
        say(
            f"\n{self.num_sent:,} of {self._inputs.num_lines:,} lines are jobs and go on. Run again, this goes on, too."
        )
        if not (self._ledger.sent and sys.stdin is not None and sys.stdin.isatty()):
            return
        say(f"Ctrl-C again within {_SECOND_THOUGHT_S:.0f} s cancels them.")
        try:
            time.sleep(_SECOND_THOUGHT_S)
        except KeyboardInterrupt:
            self._cancel()

    def _cancel(self) -> None:
        for sent in self._ledger.sent.values():
            try:
                self._client.group(sent.group).cancel()
            except SamovarError as error:
                self._session.note(f"group {sent.group}: {error.detail}")
        self._session.note("what had not ended is cancelled")


def _outcome(line: int, job: Job) -> Outcome:
    try:
        return Outcome(line=line, job=job.id, result=_plain(job.result()))
    except SamovarError as error:
        problem = {"code": error.code, "detail": error.detail} | {k: v for k, v in error.extra.items() if k != "job"}
        return Outcome(line=line, job=job.id, error=msgspec.to_builtins(problem, enc_hook=str))


def _missing(batch: Batch, ended: dict[int, Job]) -> list[Outcome]:
    """Return outcomes for the lines whose jobs are no longer known."""
    problem = {"code": JobNotFound.code, "detail": "its result was forgotten before it was fetched: see --keep"}
    return [Outcome(line=line, error=problem) for at, line in enumerate(batch.lines) if at not in ended]


def _plain(result: Any) -> Any:
    """Return a result as JSON can carry it."""
    return result.decode(errors="replace") if isinstance(result, bytes) else result


def _done_text(data: dict[str, Any]) -> str:
    failed = f", {data['failed']:,} failed" if data["failed"] else ""
    lines = [f"{data['finished']:,} of {data['num_jobs']:,} finished{failed}: {data['output']}"]
    if "reduced" in data:
        lines.append(json.dumps(data["reduced"], ensure_ascii=False))
    if "reduce_error" in data:
        lines.append(f"not reduced: {data['reduce_error']['detail']}")
    return "\n".join(lines)
