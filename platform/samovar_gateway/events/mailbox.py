"""How letters travel between gateways: published in Redis, each gateway subscribed to a channel of its own.

Nothing of it is on the way of a call: only who comes back to another gateway than before causes letters.
"""

from __future__ import annotations

from contextlib import aclosing

from redis.asyncio import Redis

from samovar.errors import StoreUnavailable
from samovar_gateway.events.borrowing import Borrower
from samovar_gateway.events.lending import Lender
from samovar_gateway.events.letters import Got, Left, Letter, Read, Unwanted, decode, encode
from samovar_gateway.events.streams import Streams
from samovar_storage import keys
from samovar_storage.live import post_letter
from samovar_storage.subscribe import Message, subscribe


class Mailbox:
    """One gateway's. borrower: what it reads of others; lender: what others read of it."""

    def __init__(self, redis: Redis, streams: Streams) -> None:
        self.borrower = Borrower(streams.gateway, self.post)
        self.lender = Lender(streams, self.post)
        self._redis = redis
        self._channel = keys.stream_channel(streams.gateway)

    async def post(self, gateway: str, letter: Letter) -> int:
        """Send a letter; return how many took it: 0 if no such gateway listens now. Raises: StoreUnavailable."""
        try:
            return await post_letter(self._redis, gateway, encode(letter))
        except StoreUnavailable as error:
            detail = f"the stream is at another gateway, which is asked by way of Redis: {error.detail}"
            raise StoreUnavailable(detail, retry_after_s=1.0) from error

    async def run(self) -> None:
        """Take letters until cancelled."""
        async with aclosing(subscribe(self._redis, self._channel)) as heard:
            async for message in heard:
                letter = decode(message.data) if isinstance(message, Message) else None
                if isinstance(letter, Read | Got | Left | Unwanted):
                    self.lender.hear(letter)
                elif letter is not None:
                    self.borrower.hear(letter)

    async def close(self) -> None:
        """End what is under way."""
        await self.lender.close()
        await self.borrower.close()
