"""How a gateway leaves, so that no caller notices.

    SIGTERM ─► /readyz 503, `Connection: close` on every answer      for drain_settle_s: proxies look elsewhere
            ─► no new connection is taken, unused ones are closed    who is connected and asks is still served;
                                                                     gRPC's clients are told GOAWAY
            ─► every call has its outcome, each by its own deadline  that is how long it may take
            ─► whatever comes now is refused, and the process ends

A second signal skips what is left of it. This module does not know how connections are closed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from samovar.errors import Draining
from samovar_gateway.server import Server
from samovar_gateway.state import GatewayState

if TYPE_CHECKING:
    from samovar_gateway.rpc.server import RpcServer

log = logging.getLogger("samovar.gateway")

POLL_S = 0.02
LAST_ANSWERS_S = 5.0  # for requests that are no calls: nothing else bounds them


class Departure:
    """One gateway's way out: `request` begins it, `wait` waits for that, `drain` goes it."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._asked = asyncio.Event()
        self._hurry = asyncio.Event()

    def request(self) -> None:
        """Begin to leave; asked a second time, do not wait for what runs."""
        if self._asked.is_set():
            self._hurry.set()
        self._asked.set()

    async def wait(self) -> None:
        """Return once asked to leave."""
        await self._asked.wait()

    async def drain(self, server: Server, rpc: RpcServer | None) -> None:
        """Go all the way to where nobody is owed an answer, by HTTP or gRPC; then take nothing in."""
        settings, state = self._state.settings, self._state
        state.leaving = True
        server.server_state.leave()
        log.info("leaving: %d calls run or wait", state.dispatcher.num_live)
        await self._pause(settings.drain_settle_s)
        state.watches.leave()
        await server.stop_listening()
        server.server_state.close_idle()
        if rpc is not None:
            await rpc.leave()
        state.journey.shadow.stop()
        await self._finish(server, rpc, time.monotonic() + (settings.drain_timeout_s or float("inf")))
        state.draining = True
        if state.dispatcher.num_live:
            log.warning("%d calls were not finished in time", state.dispatcher.num_live)
            state.dispatcher.give_up_all(Draining("this gateway ends now", retry_after_s=1.0))

    async def _finish(self, server: Server, rpc: RpcServer | None, until_s: float) -> None:
        """Wait for the calls, and for who may come back to a stream, then a little for other requests.

        Calls end by their deadlines, streams are forgotten: this ends.
        """
        called_s = now_s = time.monotonic()
        while now_s < until_s and not self._hurry.is_set():
            if self._state.dispatcher.num_live or self._state.streams.num_owed:
                called_s = now_s
            elif now_s - called_s > LAST_ANSWERS_S:
                return
            elif server.server_state.is_quiet(now_s) and (rpc is None or rpc.is_quiet):
                return
            await self._pause(POLL_S)
            now_s = time.monotonic()

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._hurry.wait()
        except TimeoutError:
            return
