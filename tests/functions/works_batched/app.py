import time

import samovar as sv


@sv.function(
    name="works-batched",
    batch=sv.Batch(max_size=3, max_wait_ms=0),
    limits=sv.Limits(timeout_s=30, overrun_grace_s=0.3),
    example={"text": "tea"},
)
def works_batched(text: list[str], contexts: list[sv.Context]) -> list[str]:
    """Says with whom each was run; "slow" takes a while."""
    if "slow" in text:
        time.sleep(1.0)
    for own, context in zip(text, contexts, strict=True):
        context.log(f"{own} with {len(text)}")
    return [f"{context.job_id}:{'+'.join(text)}" for context in contexts]
