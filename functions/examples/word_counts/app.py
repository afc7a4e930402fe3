"""Counting words in many texts as queued jobs: one job per text, then one that adds all of them up.

    samovar deploy app.py:count_words && samovar deploy app.py:add_up
    samovar jobs submit count-words --file texts.jsonl --reduce add-up --progress      # lines such as {"text": "…"}

From Python: `client.function("count-words").submit_many(({"text": text} for text in texts), reduce="add-up")`.
"""

from __future__ import annotations

from collections import Counter

import samovar as sv


@sv.function(
    jobs=sv.Jobs(retries=3, give_up_on=["ValueError"], max_running_per_key=64),
    example={"text": "tea is ready"},
)
def count_words(text: str) -> dict[str, int]:
    """Return how often each word is in `text`."""
    if not text.strip():
        raise ValueError("there is no text to count words in")
    return Counter(text.lower().split())


@sv.function(example={"results": [{"tea": 1}]})
def add_up(results: list[dict[str, int] | None]) -> dict[str, int]:
    """Return how often each word is in all texts; those that failed are None (`--allow-failed`)."""
    return sum((Counter(counts) for counts in results if counts is not None), Counter())
