"""What text-generation functions take and yield: one vocabulary for our engine, the adapters and every protocol.

    GenerationInput ─► function ─► GenerationOutput, GenerationOutput, … one row per choice, interleaved by `index`

Whatever is asked for is done or refused: a function that cannot do it raises RequestError with `param`, the name of the
field, before its first item, and `context_length_exceeded` in `reason` for what does not fit. Ranges are checked here.
This module does not know models, tokenizers or HTTP.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import msgspec

from samovar.errors import RequestError

MAX_CHOICES = 128
MAX_MESSAGES = 10_000  # a template is a program that runs over each
MAX_BIAS_DIGITS = 9
MAX_MEDIA = 32  # pictures and sounds of one request
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_TOP_LOGPROBS = 20
MAX_BIASES = 1024
CONTEXT_EXCEEDED = "context_length_exceeded"

FinishReason = Literal["stop", "length", "tool_calls"]


class Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A piece of a message. type: "text", or of models that see or hear "image", "audio"; others refuse those.

    image: the bytes of an image file, base64 in JSON. audio: those of a WAV file.
    """

    type: str
    text: str = ""
    image: bytes | None = None
    audio: bytes | None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """arguments: JSON, as text."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model wants called."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: tuple[str, ...] = get_args(Role)


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn of a conversation."""

    role: Role
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ToolFunction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """parameters: JSON Schema of its arguments. strict: arguments follow it exactly."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    function: ToolFunction
    type: Literal["function"] = "function"


class JsonSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"json_schema": "schema"}):
    """A schema that the answer must follow. json_schema: JSON Schema, `schema` in JSON."""

    name: str = ""
    description: str | None = None
    json_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the answer is written: text, any JSON object, or JSON of one schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class NamedFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class NamedTool(msgspec.Struct, frozen=True, kw_only=True):
    """The one tool to be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


class GenerationInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One request, of exactly one of `messages` and `prompt`.

    messages: a conversation, at least one, put through the model's own chat template. prompt: text or token ids, as it
    is. max_tokens: of each choice, >= 1, None = what the context leaves. temperature: 0 (greedy) to 2. top_p: (0, 1].
    top_k: >= 1, 0 = off. min_p: [0, 1). stop: strings that end a choice, not part of its text. n: choices, each with
    its own chance. seed: the same request with it gives the same answer, whoever else is served meanwhile.
    logprobs: None = none, else how many alternatives beside the chosen token are told, 0 to 20. presence_penalty,
    frequency_penalty: -2 to 2, over generated tokens. logit_bias: token id as text to -100 … 100. response_format,
    tools, tool_choice: as in OpenAI's API. echo: the prompt is part of the text. ignore_eos: only max_tokens ends it.
    user: for whom the caller asks, in the caller's own words; changes nothing in the answer, a function may note it.
    images: of models that see, what a prompt speaks of: bytes of image files; those of messages are parts of them.
    """

    messages: list[Message] | None = None
    prompt: str | list[int] | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    stop: list[str] = msgspec.field(default_factory=list)
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    response_format: ResponseFormat | None = None
    tools: list[Tool] = msgspec.field(default_factory=list)
    tool_choice: Literal["auto", "none", "required"] | NamedTool = "auto"
    parallel_tool_calls: bool = True
    echo: bool = False
    ignore_eos: bool = False
    user: str | None = None
    images: list[bytes] = msgspec.field(default_factory=list)

    def check(self) -> None:
        """Return if every field is within its range. Raises: RequestError with `param`.

        Not in `__post_init__`: there an error of ours would become one of msgspec's, without the field.
        """
        if (self.messages is None) == (self.prompt is None):
            raise refusal("messages", "give either messages or prompt")
        if self.messages is not None and not 1 <= len(self.messages) <= MAX_MESSAGES:
            told = "is empty: it needs at least one" if not self.messages else f"has more than {MAX_MESSAGES}"
            raise refusal("messages", f"messages {told}")
        if self.prompt is not None and len(self.prompt) == 0:
            raise refusal("prompt", "prompt is empty: it needs at least one token")
        self._check_media()
        if self.max_tokens is not None and self.max_tokens < 1:
            raise refusal("max_tokens", "max_tokens is at least 1")
        for param, low, high in _RANGES:
            value = getattr(self, param)
            if not low <= value <= high:  # NaN is in no range
                raise refusal(param, f"{param} is a number from {low:g} to {high:g}, not {value}")
        if self.top_p == 0:
            raise refusal("top_p", "top_p is above 0")
        if self.logprobs is not None and not 0 <= self.logprobs <= MAX_TOP_LOGPROBS:
            raise refusal("logprobs", f"at most {MAX_TOP_LOGPROBS} alternatives are told")
        self._check_stops()
        self._check_biases()
        self._check_tools()

    def _check_media(self) -> None:
        if self.images and self.messages is not None:
            raise refusal("images", "images go with a prompt; those of messages are parts of type image")
        for param, num in (("images", len(self.images)), ("messages", sum(map(_num_media, self.messages or [])))):
            if num > MAX_MEDIA:
                raise refusal(param, f"{param} has {num} pictures and sounds, at most {MAX_MEDIA} are taken")

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOPS:
            raise refusal("stop", f"stop has {len(self.stop)} strings, at most {MAX_STOPS} are possible")
        for text in self.stop:
            if not 0 < len(text) <= MAX_STOP_CHARS:
                raise refusal("stop", f"a stop string has 1 to {MAX_STOP_CHARS} characters")

    def _check_biases(self) -> None:
        if len(self.logit_bias) > MAX_BIASES:
            raise refusal("logit_bias", f"logit_bias has at most {MAX_BIASES} tokens")
        for token, bias in self.logit_bias.items():
            is_id = token.isascii() and token.isdecimal() and len(token) <= MAX_BIAS_DIGITS
            if not is_id or not math.fabs(bias) <= 100:
                raise refusal("logit_bias", "logit_bias maps token ids to numbers from -100 to 100")

    def _check_tools(self) -> None:
        names = {tool.function.name for tool in self.tools}
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise refusal("tool_choice", f"tools has no function {self.tool_choice.function.name!r}")
        if self.tool_choice == "required" and not names:
            raise refusal("tool_choice", "tool_choice is required, and there are no tools")


def _num_media(message: Message) -> int:
    """Return how many pictures and sounds a message has."""
    return 0 if isinstance(message.content, str) else sum(part.type != "text" for part in message.content or [])


_RANGES = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("top_k", 0, 1_000_000),
    ("min_p", 0, 0.999999),
    ("n", 1, MAX_CHOICES),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
)


def refusal(param: str, detail: str, *, reason: str = "") -> RequestError:
    """Return the error for a field that is wrong or cannot be done. reason: such as CONTEXT_EXCEEDED."""
    extra: dict[str, Any] = {"param": param, "reason": reason} if reason else {"param": param}
    return RequestError(detail, **extra)


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of one request. cached_tokens: of the prompt, that did not have to be computed."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
    """A token that could have been. logprob: natural logarithm, by the model's own distribution. bytes: of its text."""

    token: str
    token_id: int
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token that was chosen, and the likeliest ones at its place. offset: of its text within the choice's, chars."""

    token: str
    token_id: int
    logprob: float
    bytes: list[int]
    top: list[Alternative] = msgspec.field(default_factory=list)
    offset: int = 0


class GenerationOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The next piece of one choice; any field may be empty.

    index: of the choice, from 0. text: whole characters only. logprobs: of the tokens whose text is here. tool_calls:
    whole ones. finish_reason: with the last piece of this choice. usage: of the whole request, with its last piece.
    """

    index: int = 0
    text: str = ""
    logprobs: list[TokenLogprob] = msgspec.field(default_factory=list)
    tool_calls: list[ToolCall] = msgspec.field(default_factory=list)
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
