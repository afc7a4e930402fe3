"""The answers of a stream as REST has them: server-sent events with data alone, kept alive while nothing comes.

    data: {"model_name": …}             each answer
    : waiting, phase boot, 0 ahead      a comment while none comes, which clients skip
    data: {"error": TEXT}               it failed after something was sent: the connection is closed without the final
                                        chunk

What fails before anything was sent keeps its status. This module does not know requests, or what answers look like.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

import msgspec
from litestar.types import Send

from samovar.errors import SamovarError
from samovar.tensor_codec import Contents
from samovar_dispatch.ask import Ask
from samovar_gateway.calling import apart
from samovar_gateway.events import encoding
from samovar_gateway.events.answer import EventResponse
from samovar_gateway.events.pauses import with_pauses
from samovar_gateway.events.source import whereabouts
from samovar_gateway.inference.messages import InferAnswer
from samovar_gateway.state import GatewayState

Writer = Callable[[InferAnswer], Contents]


class AnswerStream:
    """One response; to be run once."""

    def __init__(self, state: GatewayState, ask: Ask, send: Send) -> None:
        self._state = state
        self._ask = ask
        self._response = EventResponse(send)

    @property
    def is_open(self) -> bool:
        """Whether its status is out."""
        return self._response.is_open

    async def run(self, answers: AsyncGenerator[InferAnswer], write: Writer) -> None:
        """Send every answer, each in the form that `write` gives it; close `answers`.

        Raises: SamovarError while nothing was sent; Cancelled when the caller left.
        """
        try:
            await self._tell(answers, write)
        except SamovarError as error:
            if not self.is_open:
                raise
            self._state.problems[error.code] += 1
            await self._write(msgspec.json.encode({"error": error.detail}))
            return  # leaving the response open makes the server close the connection: nobody takes it for a whole one
        await self._open(())
        await self._response.end()

    async def _tell(self, answers: AsyncGenerator[InferAnswer], write: Writer) -> None:
        told = with_pauses(answers, lambda: self._response.patience_s)
        try:
            async for answer in told:
                if answer is None:
                    await self._open(())
                    await self._response.write(encoding.comment(whereabouts(self._state, self._ask)))
                else:
                    data = await apart(answer.num_bytes, write, answer)
                    await self._open([(b"samovar-version", answer.version.encode())])
                    await self._write(data)
        finally:
            await told.aclose()

    async def _open(self, headers: list[tuple[bytes, bytes]] | tuple[()]) -> None:
        if not self.is_open:
            await self._response.open([(b"x-request-id", self._ask.request_id), *headers])

    async def _write(self, data: Contents) -> None:
        await self._response.write(b"data: %s\n\n" % data)
