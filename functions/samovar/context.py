"""What a handler may know and say about the call it works on: a parameter annotated `sv.Context`, of any name.

    def train(rows: list[str], ctx: sv.Context) -> int:
        for done, row in enumerate(rows):
            ctx.raise_if_cancelled()
            learn(row)
            ctx.progress(done / len(rows), f"row {done}")

One made without arguments belongs to no job and is never cancelled by itself: that is what tests call handlers with.
This module does not know frames, queues or who listens.
"""

from __future__ import annotations

import math
import sys
import time

from samovar.errors import Cancelled, DeadlineExceeded


class Context:
    """One call, as its handler sees it. Every method may be called from any thread, also after the call has ended.

    job_id: "" for an invocation. attempt: starts of this job so far, >= 1. token: the fencing token of this attempt,
    which rises with each; 0 for an invocation. Write it beside whatever the handler changes elsewhere: of two attempts
    that both wrote, the one with the higher token counts. request_id: as the caller and the request log know it.
    tenant: id of the API key it came with, "" if unknown: what is shared out fairly is shared among these.
    deadline: monotonic seconds (`time.monotonic()`) after which nobody wants the answer; infinite without one.
    """

    __slots__ = ("_is_cancelled", "attempt", "deadline", "job_id", "request_id", "tenant", "token")

    def __init__(
        self,
        *,
        job_id: str = "",
        attempt: int = 1,
        token: int = 0,
        request_id: str = "",
        deadline: float = math.inf,
        tenant: str = "",
    ) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.token = token
        self.request_id = request_id
        self.deadline = deadline
        self.tenant = tenant
        self._is_cancelled = False

    @property
    def remaining_s(self) -> float:
        """Seconds until the deadline, 0 once it has passed; infinite without one."""
        return max(0.0, self.deadline - time.monotonic())

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the answer any more: the caller left, the job was cancelled, or the deadline passed.

        It becomes true while the handler computes. A handler that returns or raises then ends by itself; one that goes
        on for longer than `Limits.overrun_grace_s` is ended with its process.
        """
        return self._is_cancelled or time.monotonic() >= self.deadline

    def cancel(self) -> None:
        """Make `cancelled` true from now on. Idempotent."""
        self._is_cancelled = True

    def raise_if_cancelled(self) -> None:
        """Return if somebody still wants the answer.

        Raises: DeadlineExceeded if the deadline passed, else Cancelled, which `except Exception` does not catch.
        """
        if self.cancelled:
            if time.monotonic() >= self.deadline:
                raise DeadlineExceeded("the deadline passed in phase run", phase="run")
            raise Cancelled

    def progress(self, fraction: float, message: str = "") -> None:
        """Say how far it is, to who watches the queued job, or reads the invocation's events (docs/streaming.md).

        Cheap enough for an inner loop: about ten a second are passed on, the last one always.

        Args:
            fraction: 0 to 1; what is outside is cut to that. message: up to 1 KiB of text for people.
        Raises: ValueError for NaN, TypeError for what is no number.
        """
        fraction = float(fraction)
        if math.isnan(fraction):
            raise ValueError("progress takes a number from 0 to 1, not NaN")
        self._say_progress(min(1.0, max(0.0, fraction)), str(message))

    def log(self, text: str) -> None:
        """Write a line to the function's log, and to the events of the job or the invocation; several lines one by one.

        Of a line the events keep 8 KiB, of a call 100 lines a second; how many more there were is said in their place.
        """
        for line in str(text).splitlines():
            sys.stdout.write(line + "\n")
            self._say_line(line)

    def _say_progress(self, fraction: float, message: str) -> None:
        """Pass it on: to nobody, here."""

    def _say_line(self, line: str) -> None:
        """Pass it on: to nobody, here."""
