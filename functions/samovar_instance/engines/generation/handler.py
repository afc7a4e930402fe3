"""A request of generation from its plan to its last piece, whichever engine computes its tokens.

    request ─► plan (template, tokens, grammar, refusals) ─► sequences ─► engine ─► choices ─► pieces of the answer

It is a handler like any author's: the runner cancels it when its caller leaves or its deadline passes, and its
sequences are gone before the next step. This module does not know models, frames, protocols or who calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from samovar.context import Context
from samovar.tasks.generation import GenerationInput, GenerationOutput
from samovar_instance.engines.generation.contract import EndReason, Sequence, Token
from samovar_instance.engines.generation.planning import Planner
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.step_loop import StepLoop


class GenerationHandler:
    """Answers requests; `load` of the subclass sets what reads them and what computes them.

    proof: prompt and inputs of the sequence that `check` computes a token of.
    """

    _planner: Planner
    _loop: StepLoop
    proof: tuple[list[int], Any] = ([0], None)

    async def __call__(self, request: GenerationInput, ctx: Context) -> AsyncIterator[GenerationOutput]:
        """Yield the answer piece by piece; what waits for a slow reader is merged.

        Raises: RequestError naming the field, before the first piece; later whatever failed.
        """
        plan = await self._planner.plan(request)
        changed = asyncio.Event()
        answer = self._planner.begin(plan, changed.set, ctx.tenant, ctx.deadline)
        try:
            for sequence in answer.sequences:
                self.prepare(sequence, ctx.tenant)
                self._loop.add(sequence)
            while not answer.is_told:
                await changed.wait()
                changed.clear()
                for piece in answer.take():
                    yield piece
        finally:
            for sequence in answer.sequences:
                self._loop.leave(sequence)

    def prepare(self, sequence: Sequence, tenant: str) -> None:
        """Say of a sequence what else its engine is to know."""

    def check(self) -> None:
        """Generate one token, whoever else is being answered. Raises: what went wrong."""
        self.one_token(*self.proof, SamplingState(temperature=0.0))

    def one_token(self, prompt: list[int], inputs: Any, state: SamplingState) -> Token:
        """Return what follows a prompt, whoever else is being answered. Raises: what went wrong."""
        proof = _Proof()
        self._loop.run_now(Sequence(prompt, 1, state, proof, inputs=inputs), lambda: proof.is_ended)
        if proof.error is not None:
            raise proof.error
        assert proof.told is not None, "it ended without an error, so its token was told"
        return proof.told


class _Proof:
    """Hears one token."""

    def __init__(self) -> None:
        self.is_ended = False
        self.told: Token | None = None
        self.error: Exception | None = None

    def token(self, token: Token) -> None:
        """Keep it."""
        self.told = token

    def ended(self, reason: EndReason, error: Exception | None) -> None:
        """Keep what went wrong."""
        self.is_ended, self.error = True, error


def end_ids(config: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a text: of the generation config, or else the tokenizer's."""
    ids = config.eos_token_id
    if ids is None:
        ids = tokenizer.eos_token_id
    return frozenset(ids if isinstance(ids, list) else [] if ids is None else [ids])
