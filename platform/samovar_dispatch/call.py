"""The two things the dispatcher keeps: a call, and the live state of a version. No logic beyond reading it.

This module does not know sockets, Redis or HTTP.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from samovar.errors import Cancelled, SamovarError
from samovar.spec import Manifest, concurrency, streams
from samovar.wire import Result
from samovar_dispatch.answers.fallbacks import recipe_of
from samovar_dispatch.ask import Ask
from samovar_dispatch.health.breaker import Breaker
from samovar_dispatch.retries.hedging import hedging_of
from samovar_dispatch.retries.retry_budget import RETRY_FLOOR_PER_S, RETRY_SHARE, Budget
from samovar_dispatch.slots import Seat, SeatTable
from samovar_dispatch.stats import VersionStats
from samovar_dispatch.waiting.concurrency import is_adaptive
from samovar_dispatch.waiting.pace import Boots, Pace
from samovar_dispatch.waiting.queue import Backlog, CallQueue
from samovar_dispatch.waiting.shedding import Backup
from samovar_storage.records import BootFailure

if TYPE_CHECKING:
    from samovar_dispatch.connection import InstanceConnection
    from samovar_dispatch.dispatcher import Dispatcher
    from samovar_dispatch.stream import ChunkStream

Outcome: TypeAlias = "Result | ChunkStream | SamovarError | Cancelled"


class Owner(Protocol):
    """Whoever submitted a call. Neither method may raise."""

    def deliver(self, call: Call, outcome: Outcome) -> None:
        """The call has its outcome: at the first chunk of a stream already, else when it ended. Called once."""

    def ended(self, call: Call, outcome: Outcome, code: str) -> None:
        """The call is over, counted under `code` ("ok" for answers). Called once, after `deliver`."""


class Call:
    """One attempt at an ask with one version. All `_s` times are monotonic seconds.

    owner: is told the outcome. done: nobody waits any more; delivered: the owner was told, at the first chunk of a
    stream already. id: on the connection of `seat`. num_attempts: runs that ended in a lost instance, and may be why it
    was lost; lost_on: the last such. started: the instance said so (only when asked to). cold: it had to wait for an
    instance to come up. recalled: its instance was asked to give it back. probe: the round of the breaker it is a probe
    of, 0 = it is none. freed: see `when_freed`.
    """

    __slots__ = (
        "ask",
        "cold",
        "deadline_s",
        "delivered",
        "dispatcher",
        "done",
        "ended_s",
        "freed",
        "id",
        "lost_on",
        "num_attempts",
        "owner",
        "probe",
        "recalled",
        "seat",
        "sent_s",
        "seq",
        "started",
        "stream",
        "submitted_s",
        "version",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        version: Version,
        ask: Ask,
        owner: Owner,
        seq: int,
        now_s: float,
    ) -> None:
        self.dispatcher = dispatcher
        self.version = version
        self.ask = ask
        self.owner = owner
        self.seq = seq
        self.submitted_s = self.sent_s = self.ended_s = now_s
        self.deadline_s = ask.deadline_s
        self.id = 0
        self.num_attempts = 0
        self.lost_on = ""
        self.probe = 0
        self.seat: Seat[InstanceConnection] | None = None
        self.stream: ChunkStream | None = None
        self.freed: Callable[[bool], object] | None = None
        self.done = self.delivered = self.started = self.cold = self.recalled = False

    @property
    def priority(self) -> int:
        """The ask's."""
        return self.ask.priority

    @property
    def num_bytes(self) -> int:
        """What its body takes while it waits."""
        return len(self.ask.body)

    def cancel(self) -> None:
        """Nobody wants the answer any more: the outcome is Cancelled; what runs is told to stop. Idempotent."""
        self.dispatcher.cancel(self)

    def place(self) -> int | None:
        """Return how many calls wait in front of this one in its version's queue; None if it does not wait there."""
        return self.version.queue.place(self)

    def when_freed(self, then: Callable[[bool], object]) -> None:
        """Have `then` called, once, when no instance holds this call any more: at once if none does.

        A call that was given up keeps its slot until its instance has ended it. then: told whether the instance had to
        be ended for that, or was lost; must not raise.
        """
        seat = self.seat
        if seat is not None and seat.owner.in_flight.get(self.id) is self:
            self.freed = then
        else:
            then(False)

    def let_go(self, *, with_instance: bool = False) -> None:
        """No instance holds this call any more. with_instance: because the instance is gone, or goes."""
        then, self.freed = self.freed, None
        if then is not None:
            then(with_instance)


class Version:
    """What this dispatcher knows about one version: who waits, who serves, and why it may not come up.

    suspects: calls to be retried alone, oldest first. isolated: the seat set aside for them. boot_failure: the last
    one, until an instance comes up. breaker: whether calls may go to it. retries: what a second run is paid from.
    compared_s: when its instances were last compared.
    hedging: when a second copy of a call is sent, None = never. recipe: its wishes for cache and fallback, None for
    most. label: its number as edges print it. streams: it answers item by item. active: the demand writer watches it.
    """

    __slots__ = (
        "active",
        "adapts",
        "backup",
        "boot_failure",
        "boots",
        "breaker",
        "compared_s",
        "hedging",
        "isolated",
        "label",
        "lanes_each",
        "manifest",
        "members",
        "notify_start",
        "pace",
        "queue",
        "recipe",
        "ref",
        "retries",
        "seats",
        "service_s",
        "stats",
        "streams",
        "suspects",
        "written_demand",
    )

    def __init__(self, manifest: Manifest, backlog: Backlog | None = None) -> None:
        self.ref = manifest.ref
        self.label = str(manifest.version).encode()
        self.manifest = manifest
        self.notify_start = not manifest.retry_on_crash
        self.queue: CallQueue[Call] = CallQueue(manifest.limits.max_queue, backlog)
        self.seats: SeatTable[InstanceConnection] = SeatTable()
        self.members: dict[str, InstanceConnection] = {}
        self.suspects: deque[Call] = deque()
        self.isolated: Seat[InstanceConnection] | None = None
        self.service_s = 0.0
        self.backup, self.boots = Backup(), Boots()
        self.lanes_each = 1.0 if manifest.batch is not None else float(concurrency(manifest))
        self.adapts = is_adaptive(manifest)
        self.streams = streams(manifest)
        self.pace = Pace(streams=self.streams)
        self.boot_failure: BootFailure | None = None
        self.breaker = Breaker(manifest.breaker, random.random)
        self.compared_s = 0.0
        self.hedging = hedging_of(manifest)
        self.retries = Budget(RETRY_SHARE, RETRY_FLOOR_PER_S)
        self.recipe = recipe_of(manifest)
        self.active = False
        self.written_demand = 0
        self.stats = VersionStats()

    @property
    def num_lanes(self) -> float:
        """Calls, or batches, that can be worked on at a time; 0 while no instance is there."""
        seats = self.seats
        lanes = seats.num_open if self.manifest.batch is not None else seats.num_slots
        return lanes or len(self.members) * self.lanes_each  # all closed for a moment

    @property
    def is_limited(self) -> bool:
        """Whether an adaptive limit holds slots back."""
        return self.adapts and self.seats.num_slots < self.seats.num_open * self.lanes_each

    @property
    def num_queued(self) -> int:
        """Calls that wait for a slot now."""
        return len(self.queue) + len(self.suspects)

    @property
    def num_running(self) -> int:
        """Calls that instances hold now, those whose caller left included."""
        return sum(len(member.in_flight) for member in self.members.values())
