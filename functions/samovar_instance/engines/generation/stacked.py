"""One step of a model over the caches that it makes itself: rows of equal standing are one batch, its stack.

    prompt ──read, alone──► stack of one ──joined──► stack ──a token of each row per step──► row leaves

For layers that the paged cache does not know: state spaces, linear attention, convolutions, ALiBi, chunked attention.
What a model can do is found by trial: its logits have to be those of one plain forward, with rows that come and go, and
with prompts in pieces. What cannot be joined is a stack of its own; a prompt that cannot be read in pieces is read with
its last one; where sequences in turn disturb each other, nothing is kept. A stack whose forward failed is forgotten and
its rows are read again: there is no half a step.
Rows are padded to the longest of their stack, which is at most twice as long as the shortest.
This module does not know who is scheduled when, nor how tokens are chosen.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from collections.abc import Sequence as Row
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from samovar_instance.engines.generation import rows
from samovar_instance.engines.generation.contract import Sequence
from samovar_instance.engines.generation.engine import Options
from samovar_instance.engines.generation.model import tolerance
from samovar_instance.engines.generation.scheduler import Run, Segment

log = logging.getLogger(__name__)

KEPT = ("cache", "past_key_values", "cache_params", "state")  # what models call what they want back, newest first
STRETCH = 2  # longest over shortest row of a stack
SHORT_TOKENS = 64  # rows below this are alike
STATE_BLOCK_TOKENS = 1024  # blocks of an account in which tokens cost nothing


@dataclass(eq=False, slots=True)
class Stack:
    """Rows that are computed together. lengths: tokens of each that `kept` has seen; is_ready: prompts are read."""

    runs: list[Run]
    lengths: list[int]
    kept: dict[str, Any]
    is_ready: bool = False

    @property
    def is_level(self) -> bool:
        """Whether no row is padded."""
        return min(self.lengths) == max(self.lengths) or not self.has_lengths

    @property
    def has_lengths(self) -> bool:
        """Whether its rows take room for each token."""
        return any(map(rows.has_lengths, self.kept.values()))

    def can_join(self, other: Stack) -> bool:
        """Return whether rows of both are alike enough to be padded to the same length."""
        lengths = self.lengths + other.lengths
        return not self.has_lengths or max(lengths) <= max(STRETCH * min(lengths), SHORT_TOKENS)

    def join(self, other: Stack) -> None:
        """Take in the rows of another one, which is used up. Raises: rows.Unjoinable."""
        self.runs, self.lengths = self.runs + other.runs, self.lengths + other.lengths
        if not self.kept:
            raise rows.Unjoinable("it keeps nothing")
        self.kept = {name: rows.join(kept, other.kept[name], max(self.lengths)) for name, kept in self.kept.items()}

    def keep(self, places: list[int]) -> None:
        """Let go of all rows but those at these places, one at least."""
        if len(places) == len(self.runs):
            return
        self.runs = [self.runs[place] for place in places]
        self.lengths = [self.lengths[place] for place in places]
        self.kept = {name: rows.select(kept, places, max(self.lengths)) for name, kept in self.kept.items()}


class StackedRunner:
    """A model and the stacks of those that run.

    joins: rows are put together. continues: prompts are read in pieces.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = str(model.device)
        self.num_vocabulary: int = model.get_input_embeddings().num_embeddings
        self.joins = self.continues = False
        self._accepted = inspect.signature(model.forward).parameters
        self._keeps = True
        self._stacks: list[Stack] = []
        self._row_bytes, self._token_bytes = self._measure()
        if self._keeps:
            self._try()

    @property
    def manner(self) -> str:
        """How it runs, in words."""
        if not self._keeps:
            return "one by one, reading all of the text for each token"
        how = "in batches" if self.joins else "one by one"
        return f"{how} over its own cache{'' if self.continues else ', reading prompts whole'}"

    @property
    def token_bytes(self) -> int:
        """Bytes that a token takes at most, padding included; 1 where it takes none."""
        return max(1, STRETCH * self._token_bytes)

    def fitted(self, options: Options) -> Options:
        """Return options whose limits hold for this model: states of all that run take half of the cache at most."""
        limits, cache_bytes = options.limits, options.cache_bytes
        if self._row_bytes:
            max_running = max(1, min(limits.max_running, cache_bytes // 2 // self._row_bytes))
            limits, cache_bytes = replace(limits, max_running=max_running), cache_bytes - max_running * self._row_bytes
        return replace(
            options,
            limits=limits,
            cache_bytes=cache_bytes,
            block_tokens=options.block_tokens if self._token_bytes else STATE_BLOCK_TOKENS,
            shares_prefixes=False,
        )

    def allocate(self, num_blocks: int, block_tokens: int) -> None:
        """Nothing is allocated ahead: blocks are an account of what the model's own caches may take."""

    def clear(self, blocks: list[int]) -> None:
        """Nothing is cleared: what a row wrote goes with it."""

    @torch.inference_mode()
    def forward(self, segments: Row[Segment]) -> Tensor:
        """Compute segments.

        Args:
            segments: in any order, at most one of each run; no drafts. A run whose past is not here is read again.
        Returns: float32 [rows, vocabulary], the last row of each segment that has `num_logits`, in order.
        """
        given: dict[Run, Tensor] = {}
        try:
            for stack in self._asked(segments):
                given.update(zip(stack.runs, self._advance(stack), strict=True))
            for segment in segments:
                if segment.run not in given and (segment.num_logits or self.continues):
                    given[segment.run] = self._read(segment)
            self._merge()
        except Exception:
            self._forget({segment.run for segment in segments})
            raise
        wanted = [given[segment.run] for segment in segments if segment.num_logits]
        return torch.stack(wanted) if wanted else torch.empty(0, self.num_vocabulary)

    def _asked(self, segments: Row[Segment]) -> Iterator[Stack]:
        """Yield the stacks of which a token per row is asked; rows that are not asked or over are let go before."""
        nexts = {segment.run for segment in segments if segment.count == 1}
        stacks, self._stacks = self._stacks, []
        for stack in stacks:
            places = [place for place, run in enumerate(stack.runs) if _is_current(run, stack.lengths[place])]
            asked = [place for place in places if stack.runs[place] in nexts]
            if not places:
                continue
            stack.keep(asked if asked and stack.is_ready else places)
            self._stacks.append(stack)
        yield from [stack for stack in self._stacks if stack.is_ready and nexts.intersection(stack.runs)]

    def _advance(self, stack: Stack) -> Tensor:
        """Give each row of a stack its next token; return what follows, float32 [rows, vocabulary]."""
        pending = [
            run.tokens[length if stack.kept else 0 : length + 1]
            for run, length in zip(stack.runs, stack.lengths, strict=True)
        ]
        return self._call(stack, pending)

    def _read(self, segment: Segment) -> Tensor:
        """Read a piece of a prompt, and whatever before it is not here; return what follows, float32 [vocabulary]."""
        run, end = segment.run, segment.start + segment.count
        stack = next((stack for stack in self._stacks if run in stack.runs), None)
        if stack is None or not stack.kept or len(stack.runs) > 1:
            self._forget({run})
            stack = Stack([run], [0], {})
            self._stacks.append(stack)
        logits = self._call(stack, [run.tokens[stack.lengths[0] : end]])
        stack.is_ready = segment.num_logits > 0
        return logits[0]

    def _call(self, stack: Stack, tokens: list[list[int]]) -> Tensor:
        """Run the model on the next tokens of all rows, equally many of each."""
        ids = torch.tensor(tokens, device=self.device)
        seen = stack.lengths if stack.kept else [0] * len(stack.runs)
        keywords = self._places(seen, ids.shape[1]) | ({} if stack.is_level else self._padding(seen, ids.shape[1]))
        if "logits_to_keep" in self._accepted:
            keywords["logits_to_keep"] = 1
        out = self.model(input_ids=ids, use_cache=self._keeps, **keywords, **stack.kept)
        name = next((name for name in KEPT if self._keeps and out.get(name) is not None), None)
        stack.kept = {name: out[name]} if name else {}
        stack.lengths = [length + ids.shape[1] for length in seen]
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def _places(self, lengths: list[int], num_new: int) -> dict[str, Any]:
        """Return where in their rows the new tokens are; left to themselves, some models begin at 0 again."""
        if "position_ids" not in self._accepted:
            return {}
        ends = torch.tensor(lengths, device=self.device)[:, None]
        return {"position_ids": ends + torch.arange(num_new, device=self.device)}

    def _padding(self, lengths: list[int], num_new: int) -> dict[str, Any]:
        """Return where rows begin that are padded on the left."""
        begins = max(lengths) - torch.tensor(lengths, device=self.device)[:, None]
        columns = torch.arange(max(lengths) + num_new, device=self.device)
        return {"attention_mask": (columns >= begins).long()}

    def _merge(self) -> None:
        """Join stacks that can be, the shortest first."""
        if not self.joins:
            return
        merged: list[Stack] = []
        for stack in sorted(self._stacks, key=lambda stack: (not stack.is_ready, min(stack.lengths))):
            if merged and merged[-1].is_ready and stack.is_ready and merged[-1].can_join(stack):
                merged[-1].join(stack)
            else:
                merged.append(stack)
        self._stacks = merged

    def _forget(self, runs: set[Run]) -> None:
        """Let go of the stacks that these are in; the other rows of them are read again."""
        self._stacks = [stack for stack in self._stacks if not runs.intersection(stack.runs)]

    @torch.inference_mode()
    def _measure(self) -> tuple[int, int]:
        """Return the bytes that a row takes whatever its length, and a token, as two lengths tell."""
        sizes = []
        for length in (SHORTER, LONGER):
            stack = Stack([_run(length, 0)], [0], {})
            self._call(stack, [stack.runs[0].tokens])
            self._keeps = bool(stack.kept)
            sizes.append(rows.num_bytes(stack.kept))
        token_bytes = max(0, -(-(sizes[1] - sizes[0]) // (LONGER - SHORTER)))
        return max(0, sizes[0] - SHORTER * token_bytes), token_bytes

    def _try(self) -> None:
        """Find the best way that gives the logits of plain forwards; the last one is nothing else than these."""
        for self.joins, self.continues in ((True, True), (True, False), (False, True), (False, False)):
            try:
                error = _error(self)
            except Exception as failure:  # noqa: BLE001 (whatever it raises, it cannot do that)
                log.info("%s cannot be run joined=%s: %s", type(self.model).__name__, self.joins, failure)
                continue
            finally:
                self._stacks = []
            if error <= min(tolerance(self.model), MAX_ERROR):
                return
        self._keeps = False


MAX_ERROR = 1.0  # of logits' spread, of models in 8 bits: rows that are mixed up are off by more
SHORTER, LONGER = 11, 24
_PIECE = 8
_NOBODY = Sequence(prompt=[], max_tokens=1, sampling=None, listener=None)  # type: ignore[arg-type]


def _is_current(run: Run, length: int) -> bool:
    """Return whether a row is of a run that goes on where the row ends."""
    return run.is_running and run.table.num_tokens == length


def _run(num_tokens: int, first: int) -> Run:
    return Run(_NOBODY, [*range(first, first + num_tokens)], is_running=True)


@torch.inference_mode()
def _error(runner: StackedRunner) -> float:
    """Return how far logits of two runs that meet and part are from those of plain forwards, in spreads of these."""
    long, short = _run(LONGER + 3, 0), _run(SHORTER + 3, 5)
    plain = {}
    for run in (long, short):
        ids = torch.tensor([run.tokens], device=runner.device) % runner.num_vocabulary
        run.tokens = ids[0].tolist()
        plain[run] = runner.model(input_ids=ids, use_cache=False).logits[0].float()
    steps = [
        [Segment(long, 0, _PIECE, 0)],
        [Segment(long, _PIECE, LONGER - _PIECE, 1)],
        [Segment(long, LONGER, 1, 1), Segment(short, 0, SHORTER, 1)],
        [Segment(long, LONGER + 1, 1, 1), Segment(short, SHORTER, 1, 1)],
        [Segment(long, LONGER + 2, 1, 1), Segment(short, SHORTER + 1, 1, 1)],
        [Segment(short, SHORTER + 2, 1, 1)],
    ]
    worst = 0.0
    for step in steps:
        long.is_running = any(segment.run is long for segment in step)
        given = iter(runner.forward(step))
        for segment in step:
            end = segment.run.table.num_tokens = segment.start + segment.count
            if segment.num_logits:
                expected = plain[segment.run][end - 1]
                worst = max(worst, float((next(given) - expected).abs().max() / plain[segment.run].std()))
    return worst
