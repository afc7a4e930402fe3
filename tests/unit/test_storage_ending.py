"""Tasks end although some of what they await swallows a cancellation."""

from __future__ import annotations

import asyncio

from samovar_storage.ending import end_tasks


async def deaf(num_times: int) -> None:
    """Go on after so many cancellations, as a loop does whose call to Redis swallowed one."""
    for _ in range(num_times):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue
    await asyncio.Event().wait()


async def raises() -> None:
    raise ValueError("tea spilt")


async def test_every_task_ends_however_often_it_must_be_told() -> None:
    tasks = [asyncio.ensure_future(deaf(num_times)) for num_times in (0, 1, 3)] + [asyncio.ensure_future(raises())]
    await asyncio.sleep(0)
    await end_tasks(tasks)
    assert all(task.done() for task in tasks)
    await end_tasks([])
