from collections.abc import AsyncIterator

import samovar as sv
from samovar.tasks.generation import GenerationInput, GenerationOutput
from samovar_instance.engines.text_generation import TextGenerator


@sv.function(
    name="drafts",
    task="text-generation",
    scaling=sv.Scaling(target_concurrency=64),
    speculation=sv.Speculation("prompt-lookup", match_tokens=(2, 1), max_drafts=4, min_gain=1.0, max_loss=1.0),
)
class Drafts(TextGenerator):
    cache_gib = 0.01

    async def __call__(self, request: GenerationInput, ctx: sv.Context) -> AsyncIterator[GenerationOutput]:
        """Say in the log what drafts have come to."""
        async for piece in super().__call__(request, ctx):
            yield piece
        stats = self._loop.engine.stats()  # type: ignore[attr-defined]
        print(f"drafts {stats.num_drafts} right {stats.num_right_drafts} of {stats.num_running}", flush=True)
