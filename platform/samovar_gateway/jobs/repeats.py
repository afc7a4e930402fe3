"""Invocations and submissions that come with an `Idempotency-Key`, told by `idempotency.py` whether to be done.

An invocation with a key is not cancelled when its caller leaves: whoever repeats it gets what it came to. A generator's
answer is not kept, so it takes no key. A submission names its jobs after the seed of its claim: the next owner of the
claim submits the same jobs, which is to submit none. This module does not know where answers are kept.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from litestar import Response
from litestar.types import Message, Send

from samovar.errors import Draining, RequestError, SamovarError, rebuild
from samovar.wire import Result
from samovar_dispatch.ask import CACHED, Ask
from samovar_dispatch.call import Call, Outcome
from samovar_gateway import problems
from samovar_gateway.admin.requests import AnyRequest
from samovar_gateway.admission import Admission, answer_headers
from samovar_gateway.auth import Principal
from samovar_gateway.jobs.idempotency import Turn, done_once
from samovar_gateway.jobs.sameness import HEADER, is_kept_error, key_of, print_of
from samovar_storage.jobs.idempotency import Kept, slot_of
from samovar_storage.jobs.layout import new_job_id

if TYPE_CHECKING:
    from samovar_gateway.jobs.prefer import Deferral, Preference
    from samovar_gateway.state import GatewayState

Answer: TypeAlias = tuple[Call | None, Outcome]
NewId: TypeAlias = Callable[[int], str]

SUBMIT_WAIT_S = 10.0  # for a first submission that runs


class Repeats:
    """Answers invocations that come with a key. Everything it raises is noted."""

    def __init__(self, state: GatewayState, admission: Admission, deferral: Deferral) -> None:
        self._state = state
        self._admission = admission
        self._deferral = deferral

    async def answer(self, ask: Ask, body: bytes, wanted: Preference | None, send: Send) -> None:
        """Do it once and send the answer. wanted: it is to become a job.

        Raises: RequestError for a key that is none, or of a generator; as `Once.begin`; what an invocation raises.
        """
        is_done_here = False

        async def do(turn: Turn) -> Kept:
            nonlocal is_done_here
            is_done_here = True
            if wanted is None:
                return await self._invoke(ask, body)
            return await recorded(partial(self._deferral.answer, ask, body, wanted, new_id=turn.new_id))

        try:
            if ask.entry.streams and wanted is None:
                raise RequestError("an answer that is streamed is not kept: send no Idempotency-Key, or submit a job")
            slot = slot_of(ask.key_id, "invoke", ask.entry.record.name, key_of(ask.header[HEADER]))
            print_ = print_of(ask.header, body, b"job" if wanted is not None else b"")
            kept = await done_once(self._state.once, slot, print_, ask.deadline_s, do)
        except SamovarError as error:
            if is_done_here:
                raise
            raise self._state.journey.refuse(ask, error) from None
        if not is_done_here:
            self._note(ask, kept)
        await _send(kept, ask.request_id, send)

    async def _invoke(self, ask: Ask, body: bytes) -> Kept:
        """Return the answer to be kept. Raises: SamovarError that is not to be kept."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        ask.deliver = partial(_resolve, answer)
        self._state.journey.begin(ask, body)
        try:
            call, outcome = await answer
        finally:
            if not answer.done() and ask.handle is not None:
                ask.handle.cancel()
        if isinstance(outcome, Result):
            return Kept(200, answer_headers(ask, call, outcome), outcome.body)
        if isinstance(outcome, SamovarError):
            if not is_kept_error(outcome):
                raise outcome
            headers, document = self._admission.refusal(outcome, ask.request_id)
            return Kept(outcome.status, headers, document)
        raise Draining("the call was given up", retry_after_s=1.0)

    def _note(self, ask: Ask, kept: Kept) -> None:
        """Note an invocation that got an earlier one's answer."""
        ask.marks |= CACHED
        version = dict(kept.headers).get(b"samovar-version", b"").decode()
        ask.answered_by = f"{ask.entry.record.name}@{version}" if version else ""
        if kept.status < 400:
            self._state.journey.note(ask, None, Result(0, kept.body, 0, 0, 1, 0), "ok")
            return
        problem = msgspec.json.decode(kept.body)
        error = rebuild(problem["code"], kept.status, problem["detail"])
        self._state.journey.note(ask, None, error, error.code)


async def submit_once(
    request: AnyRequest,
    state: GatewayState,
    principal: Principal,
    name: str,
    submit: Callable[[NewId], Awaitable[Response[Any]]],
) -> Response[Any]:
    """Return the answer to a submission: done once if it comes with an `Idempotency-Key`.

    submit: is given what makes ids. Raises: RequestError for a key that is none; as `Once.begin`; what `submit` does.
    """
    header = dict(request.scope["headers"])
    if HEADER not in header:
        return await submit(new_job_id)

    async def do(turn: Turn) -> Kept:
        return _kept(await submit(turn.new_id))

    slot = slot_of(principal.key_id, "jobs", name, key_of(header[HEADER]))
    print_ = print_of(header, await request.body())
    kept = await done_once(state.once, slot, print_, time.monotonic() + SUBMIT_WAIT_S, do)
    headers = {key.decode(): value.decode("latin-1") for key, value in kept.headers}
    return Response(kept.body, status_code=kept.status, headers=headers, media_type=headers.get("content-type"))


async def recorded(answer: Callable[..., Awaitable[None]]) -> Kept:
    """Return what `answer` sends."""
    status, headers, body = 500, list[tuple[bytes, bytes]](), bytearray()

    async def send(message: Message) -> None:
        nonlocal status, headers
        if message["type"] == "http.response.start":
            status, headers = message["status"], [*message["headers"]]
        elif message["type"] == "http.response.body":
            body.extend(message["body"])

    await answer(send=send)
    return Kept(status, headers, bytes(body))


def _kept(response: Response[Any]) -> Kept:
    headers = [(name.encode(), str(value).encode("latin-1")) for name, value in response.headers.items()]
    body = msgspec.json.encode(response.content)
    return Kept(response.status_code or 200, [*headers, (b"content-type", b"application/json")], body)


async def _send(kept: Kept, request_id: bytes, send: Send) -> None:
    delivery = ((b"content-length", b"%d" % len(kept.body)), (b"x-request-id", request_id))
    names = {name for name, _ in delivery}
    headers: problems.Headers = [*(pair for pair in kept.headers if pair[0] not in names), *delivery]
    await send({"type": "http.response.start", "status": kept.status, "headers": headers})
    await send({"type": "http.response.body", "body": kept.body, "more_body": False})


def _resolve(answer: asyncio.Future[Answer], call: Call | None, outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result((call, outcome))
