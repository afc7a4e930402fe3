"""Text generation by our own engine: `@sv.function(task="text-generation", …) class Chat(TextGenerator): pass`.

How a request is answered is in `generation/handler.py`; here is which model, and which engine computes it.
This module does not know frames, protocols or who calls.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from transformers import AutoModelForCausalLM, AutoTokenizer

from samovar.acceleration import session as sessions
from samovar.acceleration.options import Acceleration
from samovar.acceleration.speculation import Speculation
from samovar.errors import DeployRefused
from samovar.torch import load_pretrained
from samovar.values import require
from samovar_instance.engines.generation.contract import GenerationEngine, Sequence
from samovar_instance.engines.generation.draft import DraftModel
from samovar_instance.engines.generation.engine import Engine, Options, context_of
from samovar_instance.engines.generation.handler import GenerationHandler, end_ids
from samovar_instance.engines.generation.ladder import engine_for
from samovar_instance.engines.generation.planning import Limits, Planner
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.scheduler import Limits as StepLimits
from samovar_instance.engines.generation.speculation import PromptLookup, Proposer
from samovar_instance.engines.generation.step_loop import StepLoop
from samovar_instance.engines.generation.tools import FORMATS

PrefixSharing = Literal["key", "function", "off"]
PROBE = "The kettle has boiled, the leaves are in the pot, and in a few minutes there will be"
LEAST_CONTEXT_TOKENS = 16  # of one request: the example and a few words
DRAFT_CACHE_SHARE = 4  # the draft model's cache is this much smaller


class TextGenerator(GenerationHandler):
    """A causal language model of transformers, from a folder. Subclasses set what differs from the defaults.

    cache_gib: memory for keys and values. block_tokens: of one block of it. max_running: sequences in one step.
    max_step_tokens: tokens in one step. tiled_gib: float32 weights up to this size are copied on CPUs in tiles,
    0 = none. max_context: tokens of one request, prompt and answer, None = what model and
    cache allow. prefix_sharing: whose prompts that begin alike are computed once: "key", those of one API key;
    "function", all; "off", nobody's. tool_format: "hermes", "llama3" or "mistral", "" = as the chat template says.
    Precision and speculation are options of the function.
    """

    cache_gib: ClassVar[float] = 1.0
    block_tokens: ClassVar[int] = 4
    max_running: ClassVar[int] = 64
    max_step_tokens: ClassVar[int] = 256
    tiled_gib: ClassVar[float] = 2.0
    max_context: ClassVar[int | None] = None
    prefix_sharing: ClassVar[PrefixSharing] = "key"
    tool_format: ClassVar[str] = ""
    takes_speculation: ClassVar[bool] = True  # what `@sv.function` asks a class

    def load(self, weights: Path, device: str) -> None:
        """Load model and tokenizer from a folder, and make the engine.

        Raises: DeployRefused if more than a precision is declared for it, or weights are missing; what transformers or
            the engine raises.
        """
        declared = _declared()
        check_sharing(self.prefix_sharing)
        model = load_pretrained(weights, AutoModelForCausalLM, device, may_lack=())
        tokenizer = AutoTokenizer.from_pretrained(weights, local_files_only=True)
        self._speculation, draft = declared.speculation, None
        if self._speculation is not None and self._speculation.folder:
            folder = weights / self._speculation.folder
            draft = load_pretrained(folder, AutoModelForCausalLM, device, may_lack=())
        self._loop = StepLoop(lambda: self.make_engine(model, draft))
        context = self._loop.engine.max_context_tokens
        context = min(context, self.max_context or context)
        if context < min(LEAST_CONTEXT_TOKENS, context_of(model)):
            raise DeployRefused(self._too_small(context))
        limits = Limits(context, model.config.get_text_config().vocab_size, end_ids(model.generation_config, tokenizer))
        self._probe = (tokenizer(PROBE).input_ids or [0], limits.num_logits)
        self._planner = Planner(tokenizer, limits, FORMATS[self.tool_format] if self.tool_format else None)

    def _too_small(self, context: int) -> str:
        """Return which option leaves so few tokens, and the least that it may be."""
        if context == self.max_context:
            return f"max_context {context} is too little for prompt and answer: give {LEAST_CONTEXT_TOKENS} or more"
        least_bytes = LEAST_CONTEXT_TOKENS * self._token_bytes
        least_gib = math.ceil(1000 * least_bytes / (1 << 30)) / 1000
        return f"cache_gib {self.cache_gib:g} holds {context} tokens of this model: give {least_gib:g} or more"

    def make_engine(self, model: Any, draft: Any) -> GenerationEngine:
        """Return a new engine for the model, by the options. draft: the model that drafts, None if none does."""
        options = Options(
            cache_bytes=int(self.cache_gib * (1 << 30)),
            block_tokens=self.block_tokens,
            shares_prefixes=self.prefix_sharing != "off",
            limits=StepLimits(max_running=self.max_running, max_step_tokens=self.max_step_tokens),
            max_tiled_bytes=int(self.tiled_gib * (1 << 30)),
        )
        speculation = self._speculation
        if speculation is None:
            return self._told(engine_for(model, TokenSampler(), options))
        options = replace(
            options,
            max_drafts=speculation.max_drafts,
            min_gain=speculation.min_gain,
            max_loss=speculation.max_loss,
        )
        return self._told(engine_for(model, TokenSampler(), options, self._proposer(model, speculation, draft)))

    def _told(self, engine: Engine) -> Engine:
        self.manner = engine.manner  # what the platform tells whoever deploys it
        self._token_bytes = engine.token_bytes
        return engine

    def _proposer(self, model: Any, speculation: Speculation, draft: Any) -> Proposer:
        if draft is not None:
            cache_bytes = int(self.cache_gib * (1 << 30)) // DRAFT_CACHE_SHARE
            return DraftModel(
                draft,
                num_vocabulary=model.get_input_embeddings().num_embeddings,
                cache_bytes=cache_bytes,
                block_tokens=self.block_tokens,
            )
        return PromptLookup(speculation.match_tokens)

    def precision_probe(self) -> list[float]:
        """Return the chance of every token of the vocabulary to follow PROBE: what a precision changes shows there."""
        prompt, num_logits = self._probe
        told = self.one_token(prompt, None, SamplingState(temperature=0.0, logprobs=num_logits))
        return [math.exp(logprob) for _, logprob in sorted(told.top)]

    def prepare(self, sequence: Sequence, tenant: str) -> None:
        """Say whose prompts a sequence may share what it begins with."""
        sequence.salt = salt_of(self.prefix_sharing, tenant)


def _declared() -> Acceleration:
    """Return what the version declares of its models.

    Raises: DeployRefused for what an engine that computes attention over pages cannot use.
    """
    session = sessions.current()
    declared = session.acceleration if session is not None else Acceleration()
    if declared.is_built or declared.attention:
        raise DeployRefused(
            "text generation by our engine takes precision and speculation, and no compile, engine or attention: it "
            "brings its own"
        )
    return declared


def salt_of(sharing: PrefixSharing, tenant: str) -> bytes:
    """Return what tells those apart who are to find nothing of each other's prompts in the cache."""
    return hashlib.blake2b(tenant.encode(), digest_size=16).digest() if sharing == "key" else b""


def check_sharing(sharing: str) -> None:
    """Raise DeployRefused for a word that an author made up."""
    require(sharing in get_args(PrefixSharing), 'prefix_sharing is "key", "function" or "off"')
