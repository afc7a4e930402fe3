"""What a request asks for, as sequences for the engine and choices for its reader, or why it is refused.

Everything that can be wrong with a request is found here, before the engine hears of it. Long texts are read in a
thread: those who are being answered do not wait for it. This module does not know steps, caches or frames.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from samovar.tasks.generation import (
    CONTEXT_EXCEEDED,
    GenerationInput,
    GenerationOutput,
    NamedTool,
    Tool,
    Usage,
    refusal,
)
from samovar_instance.engines.generation import grammar, tools
from samovar_instance.engines.generation.choice import Choice
from samovar_instance.engines.generation.contract import Sequence
from samovar_instance.engines.generation.detokenize import Vocabulary
from samovar_instance.engines.generation.sampling_state import Grammar, SamplingState, seed_of_choice
from samovar_instance.engines.generation.templates import ChatTemplate, num_chars
from samovar_instance.engines.generation.tools import ToolFormat, ToolReader

LONG_TEXT_CHARS = 20_000  # some ten milliseconds to read
MESSAGE_CHARS = 200  # of text that takes as long as one message by itself
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the model. context_tokens: of prompt and answer; num_logits: tokens it knows; end_ids: of them, text ends."""

    context_tokens: int
    num_logits: int
    end_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that can be done. max_tokens: of each choice. grammar: at its beginning, None = free text.

    inputs: as in `Sequence`.
    """

    request: GenerationInput
    prompt: list[int]
    prefix: str
    max_tokens: int
    grammar: Grammar | None
    tools: list[Tool]
    inputs: Any = None


class Answer:
    """The choices of one request, and what they come to.

    sequences: what the engine is to compute. is_told: the last piece was taken.
    """

    def __init__(self, sequences: list[Sequence], choices: list[Choice]) -> None:
        self.sequences = sequences
        self.is_told = False
        self._choices = choices

    def take(self) -> list[GenerationOutput]:
        """Return what waits, a piece per choice as a rule; the last piece of all has the usage.

        Raises: what the first choice that failed came to.
        """
        for choice in self._choices:
            if choice.error is not None:
                raise choice.error
        pieces = [piece for choice in self._choices for piece in iter(choice.take, None)]
        if all(choice.is_ended for choice in self._choices):
            self.is_told = True
            last = pieces.pop() if pieces else GenerationOutput()
            pieces.append(msgspec.structs.replace(last, usage=self._usage()))
        return pieces

    def _usage(self) -> Usage:
        first = self.sequences[0]
        return Usage(
            prompt_tokens=len(first.prompt),
            completion_tokens=sum(choice.num_tokens for choice in self._choices),
            cached_tokens=first.num_cached,
        )


class Planner:
    """Reads requests for one model."""

    def __init__(self, tokenizer: Any, limits: Limits, tool_format: ToolFormat | None = None) -> None:
        """tokenizer: of transformers. tool_format: how the model writes calls, None = as its template says."""
        if tokenizer.is_fast:  # what is set so need not be changed for a call while another thread reads a text
            tokenizer.backend_tokenizer.no_truncation()
            tokenizer.backend_tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._limits = limits
        self._vocabulary = Vocabulary(tokenizer)
        self._template = ChatTemplate(tokenizer)
        self._tool_format = tool_format or tools.format_of_template(self._template.source)
        self._grammars = grammar.GrammarMaker(tokenizer, limits.num_logits, limits.end_ids)
        self._longest_token = 0  # characters; 0 = not looked for yet

    async def plan(self, request: GenerationInput) -> Plan:
        """Return what is to be done. Raises: RequestError naming the field that is wrong or cannot be done."""
        request.check()
        self._check(request)
        wanted_tools = self._tools(request)
        prompt, inputs = await self._prompt(request, wanted_tools)
        max_tokens = self._max_tokens(request, len(prompt))
        prefix = self._tokenizer.decode(prompt) if request.echo and not isinstance(request.prompt, str) else ""
        if request.echo and isinstance(request.prompt, str):
            prefix = request.prompt
        rules = await self._grammar(request, wanted_tools)
        return Plan(request, prompt, prefix, max_tokens, rules, wanted_tools, inputs)

    def begin(self, plan: Plan, wake: Callable[[], object], tenant: str, deadline_s: float) -> Answer:
        """Return the answer to a plan, not begun yet. wake: called when there is something to take."""
        request = plan.request
        seed = secrets.randbits(63) if request.seed is None else request.seed
        end_ids = frozenset[int]() if request.ignore_eos else self._limits.end_ids
        state = SamplingState(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
            biases={int(token): bias for token, bias in request.logit_bias.items()},
            logprobs=request.logprobs,
            grammar=plan.grammar,
        )
        sequences, choices = [], []
        for index in range(request.n):
            own = replace(state.ahead(()), seed=seed_of_choice(seed, index))
            choice = self._choice(plan, index, own, wake, end_ids)
            choices.append(choice)
            sequences.append(
                Sequence(
                    plan.prompt,
                    plan.max_tokens,
                    own,
                    choice,
                    end_ids,
                    tenant=tenant,
                    deadline_s=deadline_s,
                    inputs=plan.inputs,
                )
            )
        return Answer(sequences, choices)

    def _choice(
        self, plan: Plan, index: int, state: SamplingState, wake: Callable[[], object], end_ids: frozenset[int]
    ) -> Choice:
        tool_format = self._tool_format if plan.tools else None
        shown_ids = self._marker_ids(tool_format) if tool_format else frozenset[int]()
        return Choice(
            index,
            self._vocabulary,
            self._vocabulary.detokenizer(shown_ids, is_reply=plan.request.messages is not None),
            state,
            wake,
            stops=plan.request.stop,
            end_ids=end_ids,
            tools=ToolReader(tool_format, plan.tools, _new_call_id(tool_format)) if tool_format else None,
            is_one_call=not plan.request.parallel_tool_calls,
            prefix=plan.prefix,
        )

    def _check(self, request: GenerationInput) -> None:
        """Refuse what the ranges of `GenerationInput` leave open."""
        known = self._limits.num_logits
        for token in request.logit_bias:
            if int(token) >= known:
                raise refusal("logit_bias", f"logit_bias: the model has no token {token}, it has 0 to {known - 1}")
        if request.echo and request.logprobs is not None:
            raise refusal("echo", "echo together with logprobs is not possible: of the prompt there are none")
        is_formatted = request.response_format is not None and request.response_format.type != "text"
        if is_formatted and request.tools and request.tool_choice != "none":
            raise refusal(
                "response_format", "response_format together with tools is possible with tool_choice none only"
            )

    def _tools(self, request: GenerationInput) -> list[Tool]:
        """Return the tools that may be called. Raises: RequestError naming tools if the model cannot call any."""
        if not request.tools or request.tool_choice == "none":
            return []
        if request.messages is None:
            raise refusal("tools", "tools go with messages, not with a prompt")
        if not self._template.takes_tools:
            raise refusal("tools", "the model's chat template has no place for tools")
        if self._tool_format is None:
            raise refusal("tools", "how this model writes calls of tools is not known here")
        return request.tools

    async def _prompt(self, request: GenerationInput, wanted_tools: list[Tool]) -> tuple[list[int], Any]:
        """Return the prompt's tokens, at least one, all known, fewer than the context, and what goes beside them."""
        if request.images:
            raise refusal("images", "the model takes text only")
        if request.messages is not None:
            messages = request.messages
            self._check_room(len(messages), "messages", "at least ")  # no template writes nothing for a message
            size = sum(map(num_chars, messages))
            self._check_size(size, "messages")
            work = size + MESSAGE_CHARS * len(messages) + len(msgspec.json.encode(wanted_tools))
            ids = await _off_loop(work, lambda: self._template.tokens(messages, wanted_tools))
            self._check_room(len(ids), "messages")
            return ids, None
        prompt = request.prompt
        if isinstance(prompt, str):
            self._check_size(len(prompt), "prompt")
            ids = await _off_loop(len(prompt), lambda: self._tokenizer(prompt).input_ids)
        else:
            ids = prompt or []
        known = self._limits.num_logits
        if not ids:
            raise refusal("prompt", "prompt has no tokens: it needs at least one")
        self._check_room(len(ids), "prompt")
        if min(ids) < 0 or max(ids) >= known:
            raise refusal("prompt", f"prompt has a token that the model does not know: it has 0 to {known - 1}")
        return ids, None

    def _check_size(self, num_chars: int, param: str) -> None:
        """Refuse, unread, a text that would not fit if it were of the longest tokens there are."""
        if num_chars <= self._limits.context_tokens:
            return
        if not self._longest_token:
            self._longest_token = max(map(len, self._tokenizer.get_vocab()))
        self._check_room(num_chars // self._longest_token, param, "at least ")

    def _check_room(self, num_tokens: int, param: str, how: str = "") -> None:
        limit = self._limits.context_tokens
        if num_tokens >= limit:
            raise refusal(
                param,
                f"the prompt has {how}{num_tokens} tokens, and the model's context is {limit} with the answer",
                reason=CONTEXT_EXCEEDED,
            )

    def _max_tokens(self, request: GenerationInput, num_prompt: int) -> int:
        """Return how many tokens a choice may have: what is asked for, or what the context leaves."""
        limit = self._limits.context_tokens
        room = limit - num_prompt
        if request.max_tokens is not None and request.max_tokens > room:
            raise refusal(
                "max_tokens",
                f"the prompt has {num_prompt} tokens and the answer may have {request.max_tokens}: "
                f"together more than the model's context of {limit}",
                reason=CONTEXT_EXCEEDED,
            )
        return request.max_tokens or room

    async def _grammar(self, request: GenerationInput, wanted_tools: list[Tool]) -> Grammar | None:
        """Return what the answer must follow. Raises: RequestError naming the field whose schema cannot be followed."""
        if not wanted_tools and request.response_format is None:
            return None
        return await asyncio.to_thread(self._make_grammar, request, wanted_tools)

    def _make_grammar(self, request: GenerationInput, wanted_tools: list[Tool]) -> Grammar | None:
        if wanted_tools:
            text, param = self._tool_grammar(request, wanted_tools), "tools"
        else:
            assert request.response_format is not None
            text, param = grammar.of_format(request.response_format), "response_format"
        return None if text is None else self._grammars.make(text, param)

    def _tool_grammar(self, request: GenerationInput, wanted_tools: list[Tool]) -> str | None:
        tool_format, choice = self._tool_format, request.tool_choice
        assert tool_format is not None, "tools are refused without one"
        if choice == "auto":
            is_strict = any(tool.function.strict for tool in wanted_tools)
            return tools.free_calls(tool_format, wanted_tools, self._mark) if is_strict else None
        if isinstance(choice, NamedTool):
            wanted_tools = [tool for tool in wanted_tools if tool.function.name == choice.function.name]
        return tools.forced_calls(tool_format, wanted_tools, request.parallel_tool_calls, self._mark)

    def _mark(self, marker: str) -> str:
        """Return a marker of calls in Lark: as the special token that it is, or as text."""
        ids = self._special_ids([marker])
        return f"<[{ids[0]}]>" if ids else json.dumps(marker)

    def _marker_ids(self, tool_format: ToolFormat) -> frozenset[int]:
        return frozenset(self._special_ids([tool_format.begin, tool_format.end]))

    def _special_ids(self, markers: list[str]) -> list[int]:
        ids = [self._tokenizer.convert_tokens_to_ids(marker) for marker in markers if marker]
        return [token_id for token_id in ids if token_id is not None and self._vocabulary.is_special(token_id)]


async def _off_loop(num_chars: int, work: Callable[[], T]) -> T:
    """Return what `work` returns; a long text is worked on in a thread."""
    return work() if num_chars < LONG_TEXT_CHARS else await asyncio.to_thread(work)


def _new_call_id(tool_format: ToolFormat) -> Callable[[], str]:
    """Return a maker of ids; templates of Mistral take ids of nine letters and digits only."""
    if tool_format is tools.MISTRAL:
        return lambda: secrets.token_hex(5)[:9]
    return lambda: f"call_{secrets.token_hex(12)}"
