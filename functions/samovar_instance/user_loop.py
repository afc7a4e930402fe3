"""The event loop of a version's coroutines: made before the warm-up, and given up by a process that is forked from.

A fork cannot go on with its parent's loop, so a template closes its own and each fork makes one. Whether the version's
objects bear that is tried, not guessed: the template answers the example on a second loop. What is left of the first
one (a task that never ends, a lock or a connection bound to it) shows then, and the version has no template.
This module does not know versions, frames or forks.
"""

from __future__ import annotations

import asyncio

import uvloop

from samovar_instance import introspect

SETTLE_S = 1.0  # what a warm-up may leave running that ends by itself


def new() -> asyncio.AbstractEventLoop:
    """Return a loop that is the one of this thread."""
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def new_with_fds() -> tuple[asyncio.AbstractEventLoop, dict[int, str]]:
    """Return a loop like `new`, and the descriptors that it opened for itself, with what they refer to."""
    before = introspect.open_fds()
    loop = new()
    loop.run_until_complete(asyncio.sleep(0))  # the first run opens what signals need
    return loop, {fd: target for fd, target in introspect.open_fds().items() if before.get(fd) != target}


def why_not_left(loop: asyncio.AbstractEventLoop) -> str:
    """Return what still runs on a loop that was stopped, "" if nothing does: then it can be closed."""
    names = sorted(_name(task) for task in asyncio.all_tasks(loop))
    return f"the warm-up left a task running: {', '.join(names)}" if names else ""


def close(loop: asyncio.AbstractEventLoop) -> str:
    """Close a loop that has answered its calls. Returns why it cannot be left, "" if it was."""
    loop.run_until_complete(_settle())
    if why_not := why_not_left(loop):
        return why_not
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    asyncio.set_event_loop(None)
    return ""


async def _settle() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=SETTLE_S)


def _name(task: asyncio.Task[object]) -> str:
    return getattr(task.get_coro(), "__qualname__", task.get_name())
