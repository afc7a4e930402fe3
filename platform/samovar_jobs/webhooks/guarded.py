"""Connections of webhooks: the host is resolved here, every address checked, and the checked address is connected to.

No second look-up can lead elsewhere (DNS rebinding), and TLS still verifies the name in the URL. It stands below the
HTTP library (httpcore, which carries httpx), so whatever that connects to has passed here.
This module does not know what is sent.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore

from samovar_storage.jobs.webhook_urls import Allowed, refusal

Resolve = Callable[[str, int], Awaitable[list[str]]]
MAX_RESOLVING = 16
MAX_CONNECTIONS = 256
KEEP_ALIVE_S = 10.0


class Resolver:
    """The system's resolver, in threads of its own: a name server that hangs holds up only other look-ups."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_RESOLVING, "webhook-names")

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, in the system's order of preference. Raises OSError."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _addresses, host, port)
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Let go of the threads; a look-up under way is not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Connects where webhooks may go. Raises WebhookRefused elsewhere; httpcore.ConnectError, ConnectTimeout."""

    def __init__(self, allowed: Allowed, resolve: Resolve, lower: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._allowed = allowed
        self._resolve = resolve
        self._lower = lower or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's interface
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Return a connection to the first address of `host` that takes one, all of them having been checked.

        timeout: of the look-up and of all tries together, seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._resolve(host, port)
                if not addresses or not all(self._allowed.permits(host, address) for address in addresses):
                    raise refusal(host, addresses)
                return await self._first(addresses, port, socket_options)
        except TimeoutError as error:
            raise httpcore.ConnectTimeout(f"no connection to {host} within {timeout} s") from error
        except OSError as error:
            raise httpcore.ConnectError(f"{host} cannot be resolved: {error}") from error

    async def connect_unix_socket(self, path: str, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        """Raises ConnectError: no webhook leads to a socket of this machine."""
        raise httpcore.ConnectError("webhooks are not sent to Unix sockets")

    async def sleep(self, seconds: float) -> None:
        """Pause, as the library between its own retries."""
        await asyncio.sleep(seconds)

    async def _first(
        self, addresses: list[str], port: int, socket_options: Iterable[Any] | None
    ) -> httpcore.AsyncNetworkStream:
        for address in addresses[:-1]:
            try:
                return await self._lower.connect_tcp(address, port, socket_options=socket_options)
            except httpcore.ConnectError:
                continue
        return await self._lower.connect_tcp(addresses[-1], port, socket_options=socket_options)


def guarded_pool(
    allowed: Allowed, resolve: Resolve, verify: ssl.SSLContext | None = None
) -> httpcore.AsyncConnectionPool:
    """Return a pool of guarded connections: no proxies, no cookies, no redirects, no retries of its own."""
    return httpcore.AsyncConnectionPool(
        ssl_context=verify or ssl.create_default_context(),
        max_connections=MAX_CONNECTIONS,
        max_keepalive_connections=MAX_CONNECTIONS // 4,
        keepalive_expiry=KEEP_ALIVE_S,
        network_backend=GuardedBackend(allowed, resolve),
    )


def _addresses(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in found]
