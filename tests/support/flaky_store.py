"""A store that misbehaves on request: a proxy in front of a real one that answers 500, or lets every request wait.

It forwards bytes and knows nothing of them; "500" is said to whoever speaks HTTP. Runs in a thread of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

_500 = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class FlakyStore:
    """A running proxy. answers_500: every request is refused. delay_s: every request waits so long; 0 = none.

    Both may be changed at any time and hold for what is sent from then on, on old connections, too.
    """

    def __init__(self, target: str) -> None:
        parts = urlsplit(target)
        assert parts.hostname is not None and parts.port is not None
        self.answers_500 = False
        self.delay_s = 0.0
        self.num_requests = 0
        self.port = 0
        self._target = target
        self._host, self._target_port = parts.hostname, parts.port

    @property
    def url(self) -> str:
        """The target's URL, with this proxy's port."""
        return self._target.replace(f":{self._target_port}", f":{self.port}")

    async def serve(self, is_up: threading.Event, stop: asyncio.Event) -> None:
        """Forward until told to stop, then end every connection."""
        tasks: set[asyncio.Task[None]] = set()

        def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._forward(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        is_up.set()
        await stop.wait()
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream = None
        try:
            with suppress(OSError):
                from_store, upstream = await asyncio.open_connection(self._host, self._target_port)
                answers = asyncio.ensure_future(_copy(from_store, writer))
                try:
                    await self._requests(reader, writer, upstream)
                finally:
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
        finally:
            for end in (writer, upstream):
                if end is not None:
                    end.close()

    async def _requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: asyncio.StreamWriter
    ) -> None:
        """Pass on what the client sends. What follows within a moment belongs to the same request and waits no more."""
        loop, passed_s = asyncio.get_running_loop(), 0.0
        while data := await reader.read(1 << 16):
            if loop.time() - passed_s > 0.05:
                self.num_requests += 1
                await asyncio.sleep(self.delay_s)
            if self.answers_500:
                writer.write(_500)
                await writer.drain()
                return
            upstream.write(data)
            await upstream.drain()
            passed_s = loop.time()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@contextmanager
def flaky_store(target: str) -> Iterator[FlakyStore]:
    """Run a proxy in front of the store at URL `target` for the body of a `with`."""
    store, is_up, stop = FlakyStore(target), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(store.serve(is_up, stop)), name="flaky store")
    thread.start()
    assert is_up.wait(10)
    try:
        yield store
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
