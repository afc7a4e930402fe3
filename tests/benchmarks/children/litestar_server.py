"""In-process baselines under the same server as the gateway: the sum of a list by a Litestar `post` handler, by one
that naps for 20 ms first, two at a time, and by a Litestar `asgi` handler that reads and writes bytes itself.
Prints its port, ends with its standard input."""

import asyncio
import sys
from typing import Any

import msgspec
import uvicorn
import uvloop
from litestar import Litestar, asgi, post
from litestar.types import Receive, Scope, Send


@post("/handler", status_code=200)
async def handler(data: dict[str, Any]) -> float:
    """Decode, sum and encode the framework's way."""
    return float(sum(data["values"]))


NAPPERS = asyncio.Semaphore(2)


@post("/nap", status_code=200)
async def nap(data: dict[str, Any]) -> float:
    """Hold one of two slots for 20 ms; whoever finds both taken waits for as long as it takes."""
    async with NAPPERS:
        await asyncio.sleep(0.02)
    return float(sum(data["values"]))


@asgi("/asgi", copy_scope=False)
async def raw(scope: Scope, receive: Receive, send: Send) -> None:
    """Decode, sum and encode by hand."""
    message: Any = await receive()
    body = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    answer = msgspec.json.encode(float(sum(msgspec.json.decode(body)["values"])))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer, "more_body": False})


async def main() -> None:
    """Serve until standard input ends."""
    app = Litestar([handler, nap, raw], openapi_config=None)
    config = uvicorn.Config(
        app, port=0, loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False, log_level="warning"
    )
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    serving = asyncio.create_task(server.serve([listener]))
    print(listener.getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    uvloop.run(main())
