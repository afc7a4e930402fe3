"""One step of a model over the caches that it makes itself: rows of equal standing are one batch, its stack.

    prompts ──read, those of like length together──► stacks ──joined──► stack ──a token of each row──► row leaves

For layers that the paged cache does not know: state spaces, linear attention, convolutions, ALiBi, chunked attention.
What a model can do is found by trial: its logits have to be those of one plain forward, with rows that come and go, and
with prompts in pieces. What cannot be joined is a stack of its own; a prompt that cannot be read in pieces is read with
its last one; where sequences in turn disturb each other, nothing is kept. A stack whose forward failed is forgotten and
its rows are read again: there is no half a step.
Rows are padded to the longest of their stack, which is at most twice as long as the shortest. Prompts are read together
where padding takes less than a forward of their own, and padded only where nothing but attention would see it.
This module does not know who is scheduled when, nor how tokens are chosen.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterator
from collections.abc import Sequence as Row
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from samovar_instance.engines.generation import rows, trial
from samovar_instance.engines.generation.engine import Options
from samovar_instance.engines.generation.model import tolerance
from samovar_instance.engines.generation.scheduler import Run, Segment
from samovar_instance.engines.generation.weights import tile

log = logging.getLogger(__name__)

KEPT = ("cache", "past_key_values", "cache_params", "state")  # what models call what they want back, newest first
STRETCH = 2  # longest over shortest row of a stack
SHORT_TOKENS = 64  # rows below this are alike, and prompts are read whole
FORWARD_TOKENS = 16  # take about as long as what a forward takes whatever is in it: its weights
STATE_BLOCK_TOKENS = 1024  # blocks of an account in which tokens cost nothing


@dataclass(eq=False, slots=True)
class Stack:
    """Rows that are computed together. lengths: tokens of each that `kept` has seen; is_ready: prompts are read."""

    runs: list[Run]
    lengths: list[int]
    kept: dict[str, Any]
    is_ready: bool = False

    @property
    def has_lengths(self) -> bool:
        """Whether its rows take room for each token."""
        return any(map(rows.has_lengths, self.kept.values()))

    def join(self, others: Row[Stack]) -> None:
        """Take in the rows of other ones, which are used up. Raises: rows.Unjoinable."""
        stacks = (self, *others)
        self.runs = [run for stack in stacks for run in stack.runs]
        self.lengths = [length for stack in stacks for length in stack.lengths]
        if not self.kept:
            raise rows.Unjoinable("it keeps nothing")
        self.kept = {name: rows.join([s.kept[name] for s in stacks], max(self.lengths)) for name in self.kept}

    def keep(self, places: list[int]) -> None:
        """Let go of all rows but those at these places, one at least."""
        if len(places) == len(self.runs):
            return
        self.runs = [self.runs[place] for place in places]
        self.lengths = [self.lengths[place] for place in places]
        self.kept = {name: rows.select(kept, places, max(self.lengths)) for name, kept in self.kept.items()}


class StackedRunner:
    """A model and the stacks of those that run.

    joins: rows are put together. continues: prompts are read in pieces. pads: prompts are padded to be read together.
    """

    def __init__(self, model: Any, max_tiled_bytes: int = 0) -> None:
        """max_tiled_bytes: of weights that may be copied in tiles, once the model was tried; see `weights.py`."""
        self.model = model
        self.device = str(model.device)
        self.num_vocabulary: int = model.get_input_embeddings().num_embeddings
        self.joins = self.continues = self.pads = False
        self._whole_tokens = 0
        self._accepted = inspect.signature(model.forward).parameters
        self._keeps = self._has_states = True
        self._stacks: list[Stack] = []
        self._row_bytes, self._token_bytes = self._measure()
        if self._keeps:
            self._try()
        self._whole_tokens = SHORT_TOKENS
        self._max_tiled_bytes = max_tiled_bytes

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
        """Cut weights into tiles; blocks are an account of what the model's own caches may take."""
        if self.device == "cpu":
            tile(self.model, self._max_tiled_bytes)

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
            prompts = [segment for segment in segments if segment.run not in given and self._is_due(segment)]
            for together in self._together(prompts):
                given.update(zip([segment.run for segment in together], self._read(together), strict=True))
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

    def _is_due(self, segment: Segment) -> bool:
        """Return whether a piece of a prompt is read now: the last one, and any of long ones."""
        is_long = len(segment.run.tokens) > self._whole_tokens
        return segment.num_logits > 0 or (self.continues and is_long)

    def _together(self, segments: list[Segment]) -> Iterator[list[Segment]]:
        """Yield which prompts are read in one forward: those read whole, where padding takes less than a forward."""
        begun = {run for stack in self._stacks if len(stack.runs) == 1 for run in stack.runs}
        max_padding = FORWARD_TOKENS if self.pads else 0
        group: list[Segment] = []
        for segment in sorted(segments, key=lambda segment: -_end(segment)):
            if not self.joins or not segment.num_logits or segment.run in begun:
                yield [segment]
                continue
            if group and _end(group[0]) - _end(segment) > max_padding:
                yield group
                group = []
            group.append(segment)
        if group:
            yield group

    def _read(self, segments: list[Segment]) -> Tensor:
        """Read pieces of prompts, and whatever before them is not here; return what follows, [prompts, vocabulary]."""
        runs = [segment.run for segment in segments]
        stack = next((stack for stack in self._stacks if stack.runs == runs), None)
        if stack is None or not stack.kept:
            self._forget({*runs})
            stack = Stack(runs, [0] * len(runs), {})
            self._stacks.append(stack)
        starts = stack.lengths if stack.kept else [0] * len(runs)
        pieces = [segment.run.tokens[start : _end(segment)] for segment, start in zip(segments, starts, strict=True)]
        logits = self._call(stack, pieces)
        stack.is_ready = segments[0].num_logits > 0
        return logits

    def _call(self, stack: Stack, tokens: list[list[int]]) -> Tensor:
        """Run the model on the next tokens of all rows, equally many of each but of rows that begin."""
        num_new = max(map(len, tokens))
        ids = torch.tensor([[0] * (num_new - len(row)) + row for row in tokens], device=self.device)
        seen = stack.lengths if stack.kept else [0] * len(stack.runs)
        ends = [length + len(row) for length, row in zip(seen, tokens, strict=True)]
        keywords = self._places(ends, num_new)
        if min(ends) < max(ends) and (not stack.kept or stack.has_lengths):
            keywords |= self._padding(ends)
        if "logits_to_keep" in self._accepted:
            keywords["logits_to_keep"] = 1
        out = self.model(input_ids=ids, use_cache=self._keeps, **keywords, **stack.kept)
        name = next((name for name in KEPT if self._keeps and out.get(name) is not None), None)
        stack.kept = {name: out[name]} if name else {}
        stack.lengths = ends
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def _places(self, ends: list[int], num_new: int) -> dict[str, Any]:
        """Return where in their rows the new tokens are; left to themselves, some models begin at 0 again."""
        if "position_ids" not in self._accepted:
            return {}
        starts = torch.tensor(ends, device=self.device)[:, None] - num_new
        return {"position_ids": (starts + torch.arange(num_new, device=self.device)).clamp(min=0)}

    def _padding(self, ends: list[int]) -> dict[str, Any]:
        """Return where rows begin that are padded on the left."""
        begins = max(ends) - torch.tensor(ends, device=self.device)[:, None]
        columns = torch.arange(max(ends), device=self.device)
        return {"attention_mask": (columns >= begins).long()}

    def _merge(self) -> None:
        """Join stacks that can be, the shortest first."""
        if not self.joins:
            return
        groups: list[list[Stack]] = []
        for stack in sorted(self._stacks, key=lambda stack: (not stack.is_ready, min(stack.lengths))):
            if groups and stack.is_ready and groups[-1][0].is_ready and _are_alike([*groups[-1], stack]):
                groups[-1].append(stack)
            else:
                groups.append([stack])
        for first, *others in groups:
            if others:
                first.join(others)
        self._stacks = [first for first, *_ in groups]

    def _forget(self, runs: set[Run]) -> None:
        """Let go of the stacks that these are in; the other rows of them are read again."""
        self._stacks = [stack for stack in self._stacks if not runs.intersection(stack.runs)]

    @torch.inference_mode()
    def _measure(self) -> tuple[int, int]:
        """Return the bytes that a row takes whatever its length, and a token, as two lengths tell."""
        sizes = []
        for length in trial.LENGTHS:
            stack = Stack([trial.run(length, 0)], [0], {})
            self._call(stack, [stack.runs[0].tokens])
            self._keeps = bool(stack.kept)
            self._has_states = any(map(rows.has_states, stack.kept.values()))
            sizes.append(rows.num_bytes(stack.kept))
        token_bytes = max(0, -(-(sizes[1] - sizes[0]) // (trial.LENGTHS[1] - trial.LENGTHS[0])))
        return max(0, sizes[0] - trial.LENGTHS[0] * token_bytes), token_bytes

    def _try(self) -> None:
        """Find the best way that gives the logits of plain forwards; the last one is nothing else than these."""
        for self.joins, self.continues, self.pads in product((True, False), repeat=3):
            if self.pads and (self._has_states or not self.joins):
                continue
            try:
                error = trial.error(self)
            except Exception as failure:  # noqa: BLE001 (whatever it raises, it cannot do that)
                tried = f"joined={self.joins} padded={self.pads}"
                log.info("%s cannot be run %s: %s", type(self.model).__name__, tried, failure)
                continue
            finally:
                self._stacks = []
            if error <= min(tolerance(self.model), MAX_ERROR):
                return
        self._keeps = False


MAX_ERROR = 1.0  # of logits' spread, of models in 8 bits: rows that are mixed up are off by more


def _is_current(run: Run, length: int) -> bool:
    """Return whether a row is of a run that goes on where the row ends."""
    return run.is_running and run.table.num_tokens == length


def _end(segment: Segment) -> int:
    return segment.start + segment.count


def _are_alike(stacks: Row[Stack]) -> bool:
    """Return whether rows are alike enough to be padded to the same length."""
    lengths = [length for stack in stacks for length in stack.lengths]
    return not stacks[0].has_lengths or max(lengths) <= max(STRETCH * min(lengths), SHORT_TOKENS)
