"""Whether a model computes rows of its own cache rightly in some way: tried when it is loaded, against plain forwards.

    long    ──a piece──a piece──┬── with both ──┬── with both ──┬── with short ── leaves
    short                  read │ with the other│               │                       goes on alone
    other                  read │ with short    │               leaves

This module does not know how rows are kept.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from typing import Any, Protocol

import torch
from torch import Tensor

from samovar_instance.engines.generation.contract import Sequence
from samovar_instance.engines.generation.scheduler import Run, Segment

LENGTHS = SHORTER, LONGER = 11, 24
_PIECE = 8
_NOBODY = Sequence(prompt=[], max_tokens=1, sampling=None, listener=None)  # type: ignore[arg-type]


class Trialled(Protocol):
    """What is tried. pads: prompts of several lengths are read together; else only those of the same."""

    model: Any
    device: str
    num_vocabulary: int
    pads: bool

    def forward(self, segments: Row[Segment]) -> Tensor:
        """Compute segments. Returns: float32 [rows, vocabulary], one of each that has `num_logits`."""


def run(num_tokens: int, first: int) -> Run:
    """Return a run of nobody, of consecutive tokens."""
    return Run(_NOBODY, [*range(first, first + num_tokens)], is_running=True)


@torch.inference_mode()
def error(runner: Trialled) -> float:
    """Return how far logits of runs that meet and part are from those of plain forwards, in spreads of these."""
    long, short, other = run(LONGER + 3, 0), run(SHORTER + 3, 5), run(SHORTER + 3, 9)
    start = SHORTER - 4 if runner.pads else SHORTER
    plain = {}
    for each in (long, short, other):
        ids = torch.tensor([each.tokens], device=runner.device) % runner.num_vocabulary
        each.tokens = ids[0].tolist()
        plain[each] = runner.model(input_ids=ids, use_cache=False).logits[0].float()
    steps = [
        [Segment(long, 0, _PIECE, 0)],
        [Segment(long, _PIECE, LONGER - _PIECE, 1)],
        [Segment(long, LONGER, 1, 1), Segment(other, 0, start, 1), Segment(short, 0, SHORTER, 1)],
        [Segment(long, LONGER + 1, 1, 1), Segment(short, SHORTER, 1, 1), Segment(other, start, 1, 1)],
        [Segment(long, LONGER + 2, 1, 1), Segment(short, SHORTER + 1, 1, 1)],
        [Segment(short, SHORTER + 2, 1, 1)],
    ]
    worst = 0.0
    for step in steps:
        for each in plain:
            each.is_running = any(segment.run is each for segment in step)
        given = iter(runner.forward(step))
        for segment in step:
            end = segment.run.table.num_tokens = segment.start + segment.count
            if segment.num_logits:
                expected = plain[segment.run][end - 1]
                worst = max(worst, float((next(given) - expected).abs().max() / plain[segment.run].std()))
    return worst
