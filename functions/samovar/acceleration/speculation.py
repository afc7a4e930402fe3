"""What authors declare about drafts: tokens guessed ahead, several of which a model checks in one forward.

    @sv.function(task="text-generation", speculation=sv.Speculation("prompt-lookup"))

Answers stay the same, token by token; what changes is how many forwards they take (docs/generation.md). This module
does not know models, engines or files.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Literal

from samovar.tasks import TEXT_GENERATION
from samovar.values import Struct, above, at_least, require

Method = Literal["prompt-lookup", "draft-model"]

MATCH_TOKENS = (5, 3)  # two in a row match by chance too often
MAX_MATCH_TOKENS = 32
NUM_DRAFTS = 15
MAX_DRAFTS = 64
MIN_GAIN = 1.03  # less is noise
MAX_LOSS = 0.02


class Speculation(Struct, frozen=True):
    """Where drafts come from, and when they are left alone.

    method: "prompt-lookup", out of the sequence's own text · "draft-model", by a small model with the same vocabulary.
    folder: of that model, within the weights. match_tokens: for prompt lookup, how many of the newest tokens have to
    occur before, the longest tried first, each 1 … 32. max_drafts: of one sequence in one step, 1 … 64. min_gain: they
    are made where they promise so many times the tokens per second, >= 1. max_loss: share of the time that wrong drafts
    may cost before they are switched off for a while, 0 < max_loss <= 1.
    """

    method: Method
    folder: str = ""
    match_tokens: tuple[int, ...] = MATCH_TOKENS
    max_drafts: int = NUM_DRAFTS
    min_gain: float = MIN_GAIN
    max_loss: float = MAX_LOSS

    def __post_init__(self) -> None:
        by_model = self.method == "draft-model"
        require(by_model or self.method == "prompt-lookup", 'Speculation: "prompt-lookup" or "draft-model"')
        require(bool(self.folder) == by_model, 'Speculation: folder= belongs to "draft-model", and that needs it')
        require(not by_model or _is_within(self.folder), "Speculation: folder is a path within the weights")
        require(_are_sizes(self.match_tokens), "Speculation: match_tokens are whole numbers 1 to 32, largest first")
        is_plain = not by_model or tuple(self.match_tokens) == MATCH_TOKENS
        require(is_plain, 'Speculation: match_tokens= belongs to "prompt-lookup"')
        is_count = isinstance(self.max_drafts, int) and at_least(self.max_drafts, 1) and self.max_drafts <= MAX_DRAFTS
        require(is_count, f"Speculation: max_drafts is a whole number 1 to {MAX_DRAFTS}")
        require(at_least(self.min_gain, 1), "Speculation: min_gain is a number >= 1")
        require(above(self.max_loss, 0) and self.max_loss <= 1, "Speculation: max_loss is a number above 0, at most 1")


def check(speculation: Speculation, target: Any, task: str, *, has_weights: bool) -> None:
    """Return if a function of this `task` by this `target` makes use of it. Raises: DeployRefused with the reason."""
    require(
        task == TEXT_GENERATION,
        f'speculation= is for task="{TEXT_GENERATION}"' + (f", this one is {task!r}" if task else ""),
    )
    takes = getattr(target, "takes_speculation", False)
    require(takes, "speculation= is for samovar_instance.engines.text_generation.TextGenerator: no other one drafts")
    is_there = speculation.method != "draft-model" or has_weights
    require(is_there, "Speculation: a draft model is a folder within the weights: weights=sv.Weights(…)")


def _is_within(folder: Any) -> bool:
    path = PurePosixPath(folder) if isinstance(folder, str) else PurePosixPath("/")
    return not path.is_absolute() and ".." not in path.parts and path.parts != ()


def _are_sizes(sizes: Any) -> bool:
    if not isinstance(sizes, tuple | list) or not sizes:
        return False
    are_whole = all(isinstance(size, int) and at_least(size, 1) and size <= MAX_MATCH_TOKENS for size in sizes)
    return are_whole and list(sizes) == sorted(set(sizes), reverse=True)
