"""The engine for models that only their own `generate` can run: with encoders, pictures, positions in space.

    step ─► thread of a sequence: generate … its forward … asks for the next token ─► stands still until the next step

`generate` prepares whatever a model wants and is asked to choose greedily among one token: the sampler's. So sampling,
stops, grammars, cancelling and deadlines are those of every engine, and nothing of a model has to be known. Sequences
take turns, a token each per step: no batch, no shared prefix; a prompt and its pictures are one step.
This module does not know text, pictures or how tokens are chosen.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList

from samovar_instance.engines.generation.contract import Sampler, Sequence, Token
from samovar_instance.engines.generation.engine import context_of
from samovar_instance.engines.generation.register import Register
from samovar_instance.engines.generation.scheduler import Run

NO_TOKEN = (1 << 31) - 1  # no model has it, so it ends nothing: who is over is decided outside
# in place of what the model's own generation config says; the rest of it stays, such as tokens that are suppressed
_ONE_BY_ONE = {
    "do_sample": False,
    "num_beams": 1,
    "num_return_sequences": 1,
    "eos_token_id": NO_TOKEN,
    "cache_implementation": "dynamic",
    "return_dict_in_generate": False,
    "use_cache": True,
}


class StepwiseEngine:
    """One forward after the other, of the sequences in turn; see `contract.GenerationEngine`.

    `Sequence.inputs` are keywords of `generate`; without them the prompt is `input_ids`.
    """

    def __init__(self, model: Any, sampler: Sampler, num_vocabulary: int, max_running: int) -> None:
        """num_vocabulary: tokens that a prompt may have. max_running: sequences that take turns, the rest wait."""
        self._model = model
        self._sampler = sampler
        # these keep where a picture is in the model itself, and would find that of another sequence
        is_forgetful = any(hasattr(module, "rope_deltas") for module in model.modules())
        self._max_running = 1 if is_forgetful else max_running
        self._register = Register(num_vocabulary, context_of(model), self._leave)
        self._waiting: list[Run] = []
        self._running: dict[Run, _Generation] = {}

    @property
    def max_context_tokens(self) -> int:
        """Prompt and generated tokens of one sequence together, by the model."""
        return self._register.max_context_tokens

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return len(self._register) > 0

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in. Raises: RequestError if it can never fit or has a token the model does not know."""
        self._waiting.append(self._register.add(sequence))

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before the next step. Idempotent; of one that ended, nothing."""
        self._register.cancel(sequence)

    def step(self) -> None:
        """Give each sequence that runs its next token. What goes wrong with one sequence ends that one."""
        self._register.end_unwanted(time.monotonic())
        while self._waiting and len(self._running) < self._max_running:
            run = self._next_waiting()
            self._running[run] = _Generation(self._model, run.sequence)
        for run, generation in [*self._running.items()]:
            if run in self._register:
                self._advance(run, generation)

    def _next_waiting(self) -> Run:
        """Take the first of those whose tenant has the fewest running."""
        num_running = Counter(run.sequence.tenant for run in self._running)
        run = min(self._waiting, key=lambda waiting: num_running[waiting.sequence.tenant])
        self._waiting.remove(run)
        return run

    def _advance(self, run: Run, generation: _Generation) -> None:
        token: Token | Exception
        try:
            (token,) = self._sampler(generation.logits(), [run.sequence.sampling])
        except _Done:
            self._register.end(run, "stop")
            return
        except Exception as error:  # noqa: BLE001 (whatever goes wrong is this sequence's)
            token = error
        if isinstance(token, Token):
            generation.token_id = token.id
        self._register.tell(run, token)

    def _leave(self, run: Run) -> None:
        generation = self._running.pop(run, None)
        if generation is None:
            self._waiting.remove(run)
        else:
            generation.end()


class _Over(BaseException):
    """Nobody wants more of a sequence: its `generate` is left by this."""


class _Done(Exception):
    """`generate` has ended by itself: some models tell it of an end that their configuration does not name."""


class _Generation(LogitsProcessor):  # type: ignore[misc]
    """`generate` of one sequence, in a thread of its own that only runs while `logits` waits for it.

    token_id: what comes after the logits that were returned last; set before the next ones are asked for.
    """

    def __init__(self, model: Any, sequence: Sequence) -> None:
        self.token_id = NO_TOKEN
        self._told: SimpleQueue[Tensor | BaseException] = SimpleQueue()
        self._wanted: SimpleQueue[int | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=(model, sequence), name="generate", daemon=True)

    def logits(self) -> Tensor:
        """Compute and return the logits of the next token, float32 [1, vocabulary]. Raises: what `generate` raises."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._wanted.put(self.token_id)
        found = self._told.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def end(self) -> None:
        """Leave `generate`, wherever it stands."""
        if self._thread.ident is not None:
            self._wanted.put(None)
            self._thread.join()

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Tell the logits and stand still; return scores that leave one token."""
        self._told.put(scores.float())
        wanted = self._wanted.get()
        if wanted is None:
            raise _Over
        only = torch.full_like(scores, -torch.inf)
        only[:, wanted] = 0.0
        return only

    def _run(self, model: Any, sequence: Sequence) -> None:
        inputs = sequence.inputs
        if inputs is None:
            ids = torch.tensor([sequence.prompt], device=model.device)
            inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        config = GenerationConfig(max_new_tokens=sequence.max_tokens + 1, **_ONE_BY_ONE)
        try:
            model.generate(**inputs, generation_config=config, logits_processor=LogitsProcessorList([self]))
        except _Over:
            return
        except Exception as error:  # noqa: BLE001 (told to who waits for the logits)
            self._told.put(error)
            return
        self._told.put(_Done())
