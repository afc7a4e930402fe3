import asyncio

import samovar as sv

_bell = asyncio.Event()


@sv.function(name="bound-to-loop", example={"text": "tea"})
async def bound_to_loop(text: str) -> str:
    """Say it again, after waiting for what belongs to the event loop that waited first."""
    _bell.clear()
    asyncio.get_running_loop().call_soon(_bell.set)
    await _bell.wait()
    return text
