"""The engine: sequences go in, every step gives each that runs its next token.

This module does not know text, nor how tokens are chosen (the sampler is given) or where keys and values are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

from samovar.acceleration.speculation import MAX_LOSS, MIN_GAIN, NUM_DRAFTS
from samovar.errors import DeployRefused
from samovar_instance.engines.generation.blocks import Blocks
from samovar_instance.engines.generation.contract import Sampler, Sequence, Token
from samovar_instance.engines.generation.model import Runner
from samovar_instance.engines.generation.profit import Profit
from samovar_instance.engines.generation.register import Register
from samovar_instance.engines.generation.scheduler import Limits, Run, Scheduler, Segment
from samovar_instance.engines.generation.speculation import Proposer, Speculation, states

log = logging.getLogger(__name__)

NO_LIMIT = 1 << 20  # of tokens, for models that say none


@dataclass(frozen=True, slots=True)
class Options:
    """How much an engine takes. cache_bytes: memory of keys and values; block_tokens: of one block of it. max_drafts:
    of one sequence in one step, if there is somebody who proposes some; min_gain, max_loss: when, see `Profit`.
    max_tiled_bytes: of weights that are copied in tiles, on CPUs."""

    cache_bytes: int = 1 << 30
    block_tokens: int = 4
    shares_prefixes: bool = True
    limits: Limits = field(default_factory=Limits)
    max_drafts: int = NUM_DRAFTS
    min_gain: float = MIN_GAIN
    max_loss: float = MAX_LOSS
    max_tiled_bytes: int = 2 << 30


@dataclass(frozen=True, slots=True)
class Stats:
    """What an engine is doing. Blocks and tokens of the cache: held by sequences, of those used, all there are."""

    num_running: int
    num_waiting: int
    num_blocks: int
    num_held_blocks: int
    num_held_tokens: int
    num_used_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    num_drafts: int
    num_right_drafts: int


class StepRunner(Protocol):
    """What computes a step: `model.Runner`, or `stacked.StackedRunner`, whose blocks are only an account."""

    device: str
    num_vocabulary: int

    @property
    def manner(self) -> str:
        """How it runs, in words."""

    @property
    def token_bytes(self) -> int:
        """Bytes that a token takes, at least 1."""

    def allocate(self, num_blocks: int, block_tokens: int) -> None:
        """Blocks may be used from now on."""

    def forward(self, segments: Row[Segment]) -> Any:
        """Compute segments. Returns: float32 [rows, vocabulary], the last `num_logits` rows of each, in order."""

    def clear(self, blocks: list[int]) -> None:
        """Nobody is to be given what is in these blocks."""


class Engine:
    """Continuous batching of one model; see `contract.GenerationEngine`."""

    def __init__(
        self,
        model: Any,
        sampler: Sampler,
        options: Options | None = None,
        proposer: Proposer | None = None,
        profit: Profit | None = None,
        runner: StepRunner | None = None,
    ) -> None:
        """proposer: of drafts; with it the sampler's states are `SamplingState`s. profit: says how many drafts pay.
        runner: of the model; else its layers attend over pages. Raises: Unsupported where they cannot."""
        options = options or Options()
        self._runner = runner or Runner(model, options.max_tiled_bytes)
        self._sampler = sampler
        size = options.block_tokens
        context = context_of(model)
        most = options.limits.max_running * -(-context // size)
        num_blocks = max(1, min(most, options.cache_bytes // (self._runner.token_bytes * size)))
        self._runner.allocate(num_blocks, size)
        self._blocks = Blocks(num_blocks, size, shares=options.shares_prefixes)
        self._scheduler = Scheduler(self._blocks, options.limits)
        self._speculation: Speculation | None = None
        if proposer is not None:
            self._speculation = Speculation(
                proposer,
                self._blocks,
                profit or Profit(options.min_gain, options.max_loss),
                max_drafts=options.max_drafts,
                max_rows=options.limits.max_step_tokens,
                # on a CPU, what others on the node compute meanwhile says nothing about what a step takes
                clock_s=time.thread_time if self._runner.device == "cpu" else time.perf_counter,
            )
        max_context_tokens = min(num_blocks * size, context)
        self._register = Register(self._runner.num_vocabulary, max_context_tokens, self._leave)
        self._num_cached_tokens = 0

    @property
    def manner(self) -> str:
        """How the model runs, in words."""
        return self._runner.manner

    @property
    def token_bytes(self) -> int:
        """Bytes of the cache that a token takes, at least 1."""
        return self._runner.token_bytes

    @property
    def max_context_tokens(self) -> int:
        """Prompt and generated tokens of one sequence together: by the model and by the cache's size."""
        return self._register.max_context_tokens

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return len(self._register) > 0

    def stats(self) -> Stats:
        """Return what the engine is doing now."""
        blocks, scheduler = self._blocks, self._scheduler
        return Stats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            num_blocks=blocks.num_blocks,
            num_held_blocks=blocks.num_held,
            num_held_tokens=blocks.num_held * blocks.block_tokens,
            num_used_tokens=scheduler.num_used_tokens,
            num_cached_tokens=self._num_cached_tokens,
            num_preemptions=scheduler.num_preemptions,
            num_drafts=self._speculation.num_drafts if self._speculation else 0,
            num_right_drafts=self._speculation.num_right if self._speculation else 0,
        )

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in. Raises: RequestError if it can never fit or has a token the model does not know."""
        self._scheduler.add(self._register.add(sequence))

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before the next step. Idempotent; of one that ended, nothing."""
        self._register.cancel(sequence)

    def step(self) -> None:
        """Compute one step and tell the listeners. What goes wrong with one sequence ends that one."""
        self._register.end_unwanted(time.monotonic())
        segments = self._scheduler.plan()
        if segments and self._speculation is not None:
            segments = self._speculation.drafted(segments)
        if segments:
            self._run(segments)

    def _run(self, segments: Row[Segment]) -> None:
        """Compute segments and tell what they give; if that fails, each alone: it fails for the one it fails with."""
        try:
            given = self._choose(self._runner.forward(segments), segments)
        except Exception as error:
            if len(segments) == 1:
                self._tell(segments[0].run, error)
                return
            log.exception("a step of %d sequences failed; each is tried alone", len(segments))
            for segment in segments:
                self._run([segment])
            return
        for segment, tokens in zip(segments, given, strict=True):
            self._scheduler.done(segment, segment.num_logits - len(tokens))
        for segment, tokens in zip(segments, given, strict=True):
            for token in tokens:
                if segment.run in self._register:
                    self._tell(segment.run, token)

    def _choose(self, logits: Any, segments: Row[Segment]) -> list[list[Token | Exception]]:
        """Return what each segment gives: nothing within a prompt, else a token, and one for each draft that is right.

        logits: float32 [rows, vocabulary], the segments' `num_logits` rows in order.
        """
        with_logits = [segment for segment in segments if segment.num_logits]
        if not with_logits:
            return [[] for _ in segments]
        rows = iter(self._sampler(logits, [state for segment in with_logits for state in states(segment)]))
        given = [list(islice(rows, segment.num_logits)) for segment in segments]
        if self._speculation is not None:
            given = [self._speculation.kept(*pair) if pair[1] else [] for pair in zip(segments, given, strict=True)]
            self._speculation.ran(segments, sum(map(len, given)))
        return given

    def _tell(self, run: Run, token: Token | Exception) -> None:
        if isinstance(token, Exception):
            # what is not a number would reach whoever gets these blocks next: a weight of 0 times NaN is NaN
            self._runner.clear(self._blocks.forget(run.table))
        self._register.tell(run, token)

    def _leave(self, run: Run) -> None:
        self._scheduler.remove(run)
        if self._speculation is not None:
            self._speculation.forget(run)
        self._num_cached_tokens += run.sequence.num_cached


def context_of(model: Any) -> int:
    """Return how many tokens the model was made for. Raises: DeployRefused if its configuration says none at all."""
    config = model.config.get_text_config(decoder=True)
    positions = getattr(config, "max_position_embeddings", None)
    if positions == 0:
        raise DeployRefused("the model's config.json says max_position_embeddings 0: no token fits it")
    return int(positions or NO_LIMIT)
