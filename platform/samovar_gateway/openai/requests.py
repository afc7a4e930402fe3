"""From the fields of a chat or completion request to what text-generation functions take. Pure.

    max_completion_tokens, max_tokens   both: must be equal
    logprobs, top_logprobs              of chat: a switch and a number; of completions: a number
    prompt                              text, tokens, or a list of either: each an input of its own, all with the same n
    stop                                a text or a list of them

Everything that `GenerationInput.check` refuses is refused here already: no instance is woken for it.
This module does not know functions or tokenizers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from samovar.errors import RequestError
from samovar.tasks.generation import MAX_CHOICES, MAX_TOP_LOGPROBS, GenerationInput, refusal
from samovar_gateway.openai import fields as table
from samovar_gateway.openai.messages import TEXT_ONLY, format_of, messages_of, tool_choice_of, tools_of

COMPLETION_TOKENS = 16  # OpenAI's default of max_tokens for completions
_PASSED_ON = (
    *("temperature", "top_p", "top_k", "min_p", "n", "seed", "presence_penalty", "frequency_penalty"),
    *("logit_bias", "user", "ignore_eos", "parallel_tool_calls", "echo"),
)
_AT = re.compile(r"^(?P<message>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)


@dataclass(frozen=True)
class Asked:
    """What a request asks for. inputs: one per prompt, each of n choices. is_stream: piece by piece; with_usage: and
    last, what it took. names: what a caller called fields that have another name inside."""

    inputs: list[GenerationInput]
    is_stream: bool = False
    with_usage: bool = False
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def n(self) -> int:
        """Choices of each prompt."""
        return self.inputs[0].n

    def bodies(self) -> list[bytes]:
        """Return each input as its function gets it."""
        return [msgspec.json.encode(one) for one in self.inputs]


def chat(fields: Mapping[str, Any], kinds: frozenset[str] = TEXT_ONLY) -> Asked:
    """Return what a chat request asks for. Raises: RequestError with `param`.

    Args: fields: without nulls. kinds: of parts of messages that the function takes.
    """
    given = table.honoured(fields, table.CHAT, table.CHAT_RULES)
    found = _sampling(given)
    found["messages"] = messages_of(given.get("messages", []), kinds)
    for name, read in (("tools", tools_of), ("tool_choice", tool_choice_of), ("response_format", format_of)):
        if name in given:
            found[name] = read(given[name])
    names = {}
    if "user" not in given and "safety_identifier" in given:
        names["user"] = "safety_identifier"
        found["user"] = given["safety_identifier"]
    if "max_completion_tokens" in given:
        names["max_tokens"] = "max_completion_tokens"
        found["max_tokens"] = _max_tokens(given)
    if (logprobs := _chat_logprobs(given)) is not None:
        found["logprobs"] = logprobs
    if "top_logprobs" in given:
        names["logprobs"] = "top_logprobs"
    return _asked(given, [_input(found, names)], names)


def completion(fields: Mapping[str, Any]) -> Asked:
    """Return what a completion request asks for. fields: without nulls. Raises: RequestError with `param`."""
    given = table.honoured(fields, table.COMPLETION, table.COMPLETION_RULES)
    found = {"max_tokens": COMPLETION_TOKENS} | _sampling(given)
    if "logprobs" in given:
        found["logprobs"] = given["logprobs"]
    if given.get("best_of", found.get("n", 1)) != found.get("n", 1):
        raise refusal("best_of", "best_of is supported only where it equals n", reason=table.UNSUPPORTED)
    prompts = prompts_of(given.get("prompt"))
    first = _input(found | {"prompt": prompts[0]}, {})
    if len(prompts) * first.n > MAX_CHOICES:
        raise refusal("prompt", f"at most {MAX_CHOICES} choices can be asked for at a time, over all prompts")
    inputs = [msgspec.structs.replace(first, prompt=prompt) for prompt in prompts]
    for one in inputs[1:]:
        one.check()
    return _asked(given, inputs, {})


def prompts_of(value: Any) -> list[str | list[int]]:
    """Return the prompts, each a text or token ids. Raises: RequestError if there is none, or of another kind."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(token) is int for token in value):
            return [value]
        if all(isinstance(prompt, str) for prompt in value):
            return value
        if all(isinstance(prompt, list) and all(type(token) is int for token in prompt) for prompt in value):
            return value
    raise refusal("prompt", "prompt is a text, a list of token ids, or a list of texts or of lists of token ids")


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what chats and completions have in common."""
    found = {name: given[name] for name in _PASSED_ON if name in given}
    if "max_tokens" in given:
        found["max_tokens"] = given["max_tokens"]
    if "stop" in given:
        found["stop"] = [given["stop"]] if isinstance(given["stop"], str) else given["stop"]
    return found


def _max_tokens(given: Mapping[str, Any]) -> Any:
    most = given["max_completion_tokens"]
    if given.get("max_tokens", most) != most:
        raise refusal("max_tokens", "max_tokens and max_completion_tokens differ: give one of them")
    return most


def _chat_logprobs(given: Mapping[str, Any]) -> int | None:
    """Return how many alternatives are told, None for no log-probabilities."""
    is_wanted, top = given.get("logprobs", False), given.get("top_logprobs")
    if not isinstance(is_wanted, bool):
        raise refusal("logprobs", "logprobs is true or false; top_logprobs is the number of alternatives")
    if top is None:
        return 0 if is_wanted else None
    if not is_wanted:
        raise refusal("top_logprobs", "top_logprobs needs logprobs to be true")
    if type(top) is not int or not 0 <= top <= MAX_TOP_LOGPROBS:
        raise refusal("top_logprobs", f"top_logprobs is a number from 0 to {MAX_TOP_LOGPROBS}")
    return top


def _input(found: dict[str, Any], names: Mapping[str, str]) -> GenerationInput:
    """Return the input, within every range. names: as in `Asked`."""
    try:
        made = msgspec.convert(found, GenerationInput)
    except msgspec.ValidationError as error:
        match = _AT.match(str(error))
        message, path = (match["message"], match["path"] or "") if match else (str(error), "")
        param = names.get(path, path)
        raise refusal(param, f"{param}: {message}") from None
    try:
        made.check()
    except RequestError as error:
        error.extra["param"] = names.get(error.extra["param"], error.extra["param"])
        raise
    return made


def _asked(given: Mapping[str, Any], inputs: list[GenerationInput], names: Mapping[str, str]) -> Asked:
    is_stream = given.get("stream", False)
    if not isinstance(is_stream, bool):
        raise refusal("stream", "stream is true or false")
    return Asked(inputs, is_stream, _with_usage(given, is_stream), names)


def _with_usage(given: Mapping[str, Any], is_stream: bool) -> bool:
    if "stream_options" not in given:
        return False
    if not is_stream:
        raise refusal("stream_options", "stream_options needs stream to be true")
    options = table.only(given["stream_options"], ("include_usage", "include_obfuscation"), "stream_options")
    if options.get("include_obfuscation", False) is not False:
        param = "stream_options.include_obfuscation"
        raise refusal(param, f"{param} is not supported: pieces are sent as they are", reason=table.UNSUPPORTED)
    with_usage = options.get("include_usage", False)
    if not isinstance(with_usage, bool):
        raise refusal("stream_options.include_usage", "stream_options.include_usage is true or false")
    return with_usage
