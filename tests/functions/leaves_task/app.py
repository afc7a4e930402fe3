import asyncio

import samovar as sv

_tasks: list[asyncio.Task[bool]] = []


@sv.function(name="leaves-task", example={"text": "tea"})
async def leaves_task(text: str) -> str:
    """Say it again; something goes on for ever beside it."""
    _tasks.append(asyncio.ensure_future(asyncio.Event().wait()))
    return text
