"""What every HTTP edge does with an invocation, whatever its protocol: admit, begin, wait, watch for who leaves.

    caller.read ─► caller.admit ─► caller.outcome ─► Result or ChunkStream, to be written in the edge's own form
                                       └─ caller.outcomes: of several asks that are one request

Errors are ours (SamovarError, Cancelled): how they are told is the edge's business. This module does not know what is
in bodies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeAlias, TypeVar

from samovar.errors import Cancelled, Conflict, FunctionNotFound, SamovarError
from samovar.wire import Result
from samovar_dispatch.ask import NATIVE, Ask
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.functions import near_names, unknown_function
from samovar_dispatch.stream import ChunkStream
from samovar_gateway.admission import Admission
from samovar_gateway.body import BodyReader
from samovar_gateway.state import GatewayState
from samovar_gateway.sweep import Receive, Sweeper

if TYPE_CHECKING:
    from collections.abc import Iterator

Header: TypeAlias = dict[bytes, bytes]
Answer: TypeAlias = tuple[Call | None, Outcome]
Given: TypeAlias = tuple[Call | None, Result | ChunkStream]

P = ParamSpec("P")
T = TypeVar("T")

LARGE_BYTES = 256 << 10  # what is larger is worked on in a thread: the loop has others to serve
MAX_TOGETHER = 64  # asks of one request that are under way at a time


class Caller:
    """One per gateway. admission: what path and headers say; sweeper: sees slow bodies, and callers who left."""

    def __init__(self, state: GatewayState, admission: Admission, sweeper: Sweeper) -> None:
        settings = state.settings
        self.state = state
        self.admission = admission
        self.sweeper = sweeper
        self._body = BodyReader(
            sweeper, state.dispatcher.room.backlog, settings.max_body_bytes, settings.body_timeout_s
        )

    async def read(self, header: Header, receive: Receive, ask: Ask | None = None) -> bytes:
        """Return the body, within limits. ask: if it is known already, then a refusal is noted.

        Raises: BodyTooLarge, ClientTooSlow, QueueFull; Cancelled if the client left.
        """
        arrived_s = ask.arrived_s if ask is not None else time.monotonic()
        try:
            return await self._body.read(header.get(b"content-length"), receive, arrived_s)
        except SamovarError as error:
            raise error if ask is None else self.state.journey.refuse(ask, error) from None

    async def admit(self, name: str, method: str, header: Header, request_id: bytes, protocol: str = NATIVE) -> Ask:
        """Return the ask for function `name`, as `Admission.check`; one nobody told us of is looked for once.

        protocol: by which it came, one of `ask.PROTOCOLS`.
        Raises: FunctionNotFound with the near names that this caller may see; else as `Admission.check`.
        """
        check = partial(self.admission.check, name, method, header, request_id, protocol)
        try:
            try:
                return check()
            except FunctionNotFound:
                if not await self.state.mirror.find(name):
                    raise
                return check()
        except FunctionNotFound:
            raise await self.unknown(name, header) from None

    async def outcome(self, ask: Ask, body: bytes, receive: Receive | None = None) -> Given:
        """Begin the ask and return what it comes to. Whoever reads a stream ends with `abandon`.

        receive: ASGI's; given, the ask is cancelled when the caller leaves.
        Raises: SamovarError, Cancelled. A task that is cancelled meanwhile cancels the ask.
        """
        answer = self._begin(ask, body)
        with self.watching(ask, receive):
            return await _outcome(ask, answer)

    async def outcomes(
        self, asks: Sequence[Ask], bodies: Sequence[bytes], receive: Receive | None = None
    ) -> list[Given]:
        """Return what several asks of one request come to, in order, MAX_TOGETHER of them under way at a time.

        Raises: what the first that fails comes to; the others are cancelled. Where the first is refused by a rate
            limit, none of the others begins.
        """
        turn = asyncio.Semaphore(MAX_TOGETHER)
        pays_for_all(asks)
        first = self._begin(asks[0], bodies[0])

        async def one(ask: Ask, body: bytes) -> Given:
            async with turn:
                return await _outcome(ask, first if ask is asks[0] else self._begin(ask, body))

        with self.watching_all(asks, receive):
            tasks = [asyncio.ensure_future(one(ask, body)) for ask, body in zip(asks, bodies, strict=True)]
            try:
                return await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    @contextmanager
    def watching(self, ask: Ask, receive: Receive | None) -> Iterator[None]:
        """Have the ask cancelled when its caller leaves while the context lasts."""
        if receive is None:
            yield
            return
        waiting = self.sweeper.waiting
        waiting[ask] = receive
        try:
            yield
        finally:
            waiting.pop(ask, None)

    def watching_all(self, asks: Sequence[Ask], receive: Receive | None) -> AbstractContextManager[None]:
        """Have all asks of one request cancelled when its caller leaves while the context lasts."""
        return self.watching(_All(asks), receive)  # type: ignore[arg-type]  # of an ask, only its handle is looked at

    def _begin(self, ask: Ask, body: bytes) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        ask.deliver = partial(_resolve, answer)
        self.state.journey.begin(ask, body)
        return answer

    async def unknown(self, name: str, header: Header) -> FunctionNotFound | Conflict:
        """Return the error with near names; of functions that the caller's key does not cover nothing is told."""
        principal = self.state.keys.authenticate(header.get(b"authorization"))
        near = await asyncio.to_thread(near_names, name, [*filter(principal.sees, self.state.functions.entries)])
        return self.state.functions.missing(name, near) if principal.sees(name) else unknown_function(name, near)


def pays_for_all(asks: Sequence[Ask]) -> None:
    """The first of several asks of one request pays for all of them at the rate limits."""
    for ask in asks:
        ask.num_paid = 0
    asks[0].num_paid = len(asks)


class _All:
    """Stands for all asks of one request where only their cancelling counts."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self._asks = asks
        self.handle = self

    def cancel(self) -> None:
        for ask in self._asks:
            abandon(ask)


async def apart(num_bytes: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what `work` gives; it is done in a thread if it is about more than LARGE_BYTES."""
    return await asyncio.to_thread(work, *args, **kwargs) if num_bytes > LARGE_BYTES else work(*args, **kwargs)


def abandon(ask: Ask) -> None:
    """Nobody wants the answer any more. Idempotent, and of no effect once all of it was read."""
    if ask.handle is not None:
        ask.handle.cancel()


def release(ask: Ask) -> None:
    """Let go of the body and the answer of an ask that was answered: it and its call refer to each other, so that they
    would stay until the next garbage collection, however large they are."""
    ask.body, ask.deliver = b"", _forget


def _forget(_call: Call | None, _outcome: Outcome) -> None:
    """Drop an outcome: there is one only."""


async def _outcome(ask: Ask, answer: asyncio.Future[Answer]) -> Given:
    try:
        call, outcome = await answer
    except asyncio.CancelledError:
        abandon(ask)
        raise
    if isinstance(outcome, SamovarError | Cancelled):
        raise outcome
    return call, outcome


def _resolve(answer: asyncio.Future[Answer], call: Call | None, outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result((call, outcome))
