"""From what text-generation functions yield to OpenAI's answers, whole or in chunks. Pure.

| object                | of                    | a choice has
|-----------------------|-----------------------|----------------------------------------------
| chat.completion       | a chat                | message: role, content, refusal, tool_calls
| chat.completion.chunk | a chat, streamed      | delta: what is new; the role comes with a choice's first
| text_completion       | a completion, either  | text

The choices of prompt p are numbered from p * n. A choice whose function says no reason for its end has ended by
`stop`, or by its tool calls. It ends once: the first reason is told, and more of it afterwards is an error. Usage is
what the function said, over all prompts; null if it said nothing.
This module does not know how answers are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from samovar.errors import BadOutput
from samovar.tasks.generation import FinishReason, GenerationOutput, TokenLogprob, ToolCall, Usage
from samovar_gateway.openai import logprobs

NOTHING = GenerationOutput()


@dataclass
class Choice:
    """What was told of one choice so far. is_begun: some of it. num_calls: tool calls among it."""

    text: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    is_begun: bool = False
    num_calls: int = 0

    @property
    def end(self) -> FinishReason:
        """Why it ended, once it has."""
        return self.finish_reason or ("tool_calls" if self.num_calls else "stop")


class Shape(Protocol):
    """How chats and completions differ. prefix: of ids. whole, piece: the kinds of object. ends_apart: a choice's end
    is a chunk of its own, as clients that put chunks together expect."""

    prefix: str
    whole: str
    piece: str
    ends_apart: bool

    def delta(self, choice: Choice, item: GenerationOutput) -> dict[str, Any]:
        """Return what a chunk says of a choice that was as `choice` says before."""

    def told(self, choice: Choice) -> dict[str, Any]:
        """Return what a whole answer says of a choice."""

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Return log-probabilities."""


class Chat:
    """Answers to /v1/chat/completions."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"
    ends_apart = True
    logprobs = staticmethod(logprobs.of_chat)

    def delta(self, choice: Choice, item: GenerationOutput) -> dict[str, Any]:
        """Return the delta of a chunk."""
        said: dict[str, Any] = {} if choice.is_begun else {"role": "assistant"}
        if item.text or (not choice.is_begun and not item.tool_calls):
            said["content"] = item.text
        if item.tool_calls:
            calls = enumerate(item.tool_calls, choice.num_calls)
            said["tool_calls"] = [{"index": place, **_call(call)} for place, call in calls]
        return {"delta": said}

    def told(self, choice: Choice) -> dict[str, Any]:
        """Return the message of a choice."""
        text = "".join(choice.text)
        message: dict[str, Any] = {"role": "assistant", "content": text or None, "refusal": None}
        if choice.tool_calls:
            message["tool_calls"] = [_call(call) for call in choice.tool_calls]
        elif not text:
            message["content"] = ""
        return {"message": message}


class Completion:
    """Answers to /v1/completions."""

    prefix = "cmpl"
    whole = piece = "text_completion"
    ends_apart = False
    logprobs = staticmethod(logprobs.of_completion)

    def delta(self, choice: Choice, item: GenerationOutput) -> dict[str, Any]:
        """Return the text of a chunk."""
        return {"text": item.text}

    def told(self, choice: Choice) -> dict[str, Any]:
        """Return the text of a choice."""
        return {"text": "".join(choice.text)}


class Answer:
    """One answer: takes what functions yield, gives chunks or the whole."""

    def __init__(
        self,
        shape: Shape,
        request_id: str,
        model: str,
        created_s: int,
        num_prompts: int,
        n: int,
        *,
        with_usage: bool = False,
    ) -> None:
        """created_s: unix seconds. n: choices of each prompt. with_usage: a chunk tells it, the others say null."""
        self._shape = shape
        self._no_usage: dict[str, Any] = {"usage": None} if with_usage else {}
        self._n = n
        self._choices = [Choice() for _ in range(num_prompts * n)]
        self._usages: dict[int, Usage] = {}
        self._head = {"id": f"{shape.prefix}-{request_id}", "created": created_s, "model": model}

    def chunks(self, prompt: int, item: GenerationOutput, fingerprint: str) -> list[bytes]:
        """Take the next item of a prompt; return what of it is for the caller, as chunks.

        fingerprint: which version gave it. Raises: BadOutput.
        """
        number, choice = self._take(prompt, item)
        told: list[bytes] = []
        end = item.finish_reason if choice.finish_reason is None else None
        is_apart = end is not None and self._shape.ends_apart
        if item.text or item.tool_calls or item.logprobs or (end is not None and not is_apart):
            said = self._shape.delta(choice, item)
            told.append(self._chunk(number, said, item.logprobs, None if is_apart else end, fingerprint))
            choice.is_begun = True
        if is_apart:
            told.append(self._chunk(number, self._shape.delta(choice, NOTHING), [], end, fingerprint))
        self._note(choice, item)
        return told

    def rest(self, fingerprint: str) -> list[bytes]:
        """Return the last chunks of choices whose end was not told."""
        open_choices = [(number, one) for number, one in enumerate(self._choices) if one.finish_reason is None]
        return [
            self._chunk(number, self._shape.delta(choice, NOTHING), [], choice.end, fingerprint)
            for number, choice in open_choices
        ]

    def usage_chunk(self, fingerprint: str) -> bytes:
        """Return the chunk that says what the answer took."""
        head = {**self._head, "object": self._shape.piece, "system_fingerprint": fingerprint}
        return msgspec.json.encode({**head, "choices": [], "usage": self._usage()})

    def collect(self, prompt: int, item: GenerationOutput) -> None:
        """Take the next item of a prompt, to be told with the whole. Raises: BadOutput."""
        _, choice = self._take(prompt, item)
        choice.text.append(item.text)
        choice.logprobs += item.logprobs
        choice.tool_calls += item.tool_calls
        self._note(choice, item)

    def all(self, fingerprint: str) -> bytes:
        """Return the whole answer, of what was collected."""
        head = {**self._head, "object": self._shape.whole, "system_fingerprint": fingerprint}
        choices = [
            self._choice(number, self._shape.told(choice), choice.logprobs, choice.end)
            for number, choice in enumerate(self._choices)
        ]
        return msgspec.json.encode({**head, "choices": choices, "usage": self._usage()})

    def _take(self, prompt: int, item: GenerationOutput) -> tuple[int, Choice]:
        if not 0 <= item.index < self._n:
            raise BadOutput(f"the function yielded choice {item.index} of {self._n}")
        if item.usage is not None:
            self._usages[prompt] = item.usage
        number = prompt * self._n + item.index
        choice = self._choices[number]
        if choice.finish_reason is not None and (item.text or item.tool_calls or item.logprobs):
            raise BadOutput(f"the function yielded more of choice {item.index} after its finish_reason")
        return number, choice

    def _note(self, choice: Choice, item: GenerationOutput) -> None:
        choice.num_calls += len(item.tool_calls)
        choice.finish_reason = choice.finish_reason or item.finish_reason

    def _chunk(
        self,
        number: int,
        said: dict[str, Any],
        tokens: Sequence[TokenLogprob],
        reason: FinishReason | None,
        fingerprint: str,
    ) -> bytes:
        choice = self._choice(number, said, tokens, reason)
        head = {**self._head, "object": self._shape.piece, "system_fingerprint": fingerprint}
        return msgspec.json.encode({**head, "choices": [choice], **self._no_usage})

    def _choice(
        self, number: int, said: dict[str, Any], tokens: Sequence[TokenLogprob], reason: FinishReason | None
    ) -> dict[str, Any]:
        told = self._shape.logprobs(tokens) if tokens else None
        return {"index": number, **said, "logprobs": told, "finish_reason": reason}

    def _usage(self) -> dict[str, Any] | None:
        """Return the sum over all prompts, None if any function did not say."""
        if len(self._usages) * self._n < len(self._choices):
            return None
        prompt, said, cached = (
            sum(getattr(usage, name) for usage in self._usages.values())
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens")
        )
        details = {"prompt_tokens_details": {"cached_tokens": cached}}
        return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said, **details}


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": call.type, "function": msgspec.to_builtins(call.function)}


_decode = msgspec.json.Decoder(GenerationOutput).decode


def item_of(chunk: bytes) -> GenerationOutput:
    """Return what a function yielded. Raises: BadOutput if it is of another kind."""
    try:
        return _decode(chunk)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadOutput(f"the function yielded no GenerationOutput: {error}") from None
