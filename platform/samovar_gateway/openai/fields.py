"""Which fields of OpenAI's requests are honoured, accepted or refused: one table a route. Pure.

A field that is null is as good as absent, as many clients send them all. Whatever is neither honoured nor accepted is
refused by its name: nothing is ignored. This module does not know what the honoured ones mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from samovar.errors import RequestError
from samovar.tasks.generation import refusal
from samovar_gateway import large_json

UNSUPPORTED, UNKNOWN = "unsupported_parameter", "unknown_parameter"
MAX_METADATA, MAX_NAME_CHARS = 16, 512


@dataclass(frozen=True)
class Rule:
    """What becomes of a field. is_fine: whether a value of it changes nothing here; without it every value is refused.
    instead: what a caller can do, for the refusal."""

    instead: str
    is_fine: Callable[[Any], bool] | None = None


def _one_of(*values: Any) -> Callable[[Any], bool]:
    return lambda value: value in values


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MAX_METADATA
        and all(isinstance(text, str) and len(text) <= MAX_NAME_CHARS for text in value.values())
    )


SAMPLING = frozenset(
    (
        *("model", "max_tokens", "temperature", "top_p", "top_k", "min_p", "stop", "n", "seed", "logprobs"),
        *("presence_penalty", "frequency_penalty", "logit_bias", "stream", "stream_options", "user", "ignore_eos"),
    )
)
CHAT = SAMPLING | {
    *("messages", "max_completion_tokens", "top_logprobs", "response_format"),
    *("tools", "tool_choice", "parallel_tool_calls", "safety_identifier"),
}
COMPLETION = SAMPLING | {"prompt", "echo", "best_of"}
EMBEDDING = frozenset(("model", "input", "encoding_format", "dimensions"))

CHAT_RULES: Mapping[str, Rule] = {
    "store": Rule("answers are not stored; the request log of the function may keep them", _one_of(False)),
    "metadata": Rule(
        "up to 16 texts of 512 characters are taken, for stored answers, of which there are none", _is_metadata
    ),
    "service_tier": Rule("say how important a call is by the header Samovar-Priority", _one_of("auto", "default")),
    "modalities": Rule("answers are text", _one_of(["text"])),
    "verbosity": Rule("only medium is possible: ask for it in the prompt", _one_of("medium")),
    "reasoning_effort": Rule("only none is possible", _one_of("none")),
    "prompt_cache_key": Rule("prompts share what they begin with, whatever this says", _is_name),
    "prompt_cache_retention": Rule("what is kept is kept in memory", _one_of("in_memory", "in-memory")),
    "prompt_cache_options": Rule("prompts share what they begin with by themselves"),
    "audio": Rule("answers are text"),
    "prediction": Rule("the function itself may decode speculatively"),
    "web_search_options": Rule("functions do not search the web; give the model a tool"),
    "moderation": Rule("there is no moderation; call a model of your own"),
    "functions": Rule("send tools"),
    "function_call": Rule("send tool_choice"),
}
COMPLETION_RULES: Mapping[str, Rule] = {
    "suffix": Rule("models continue a prompt, they do not fill it in"),
}
EMBEDDING_RULES: Mapping[str, Rule] = {
    "user": Rule("user is a text of at most 512 characters", _is_name),
}


def read(body: bytes) -> dict[str, Any]:
    """Return the fields of a request that are not null. Raises: RequestError if the body is no JSON object."""
    try:
        fields = large_json.read(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise RequestError(f"the body is not valid JSON: {error}" if body else "the body is empty") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    if not isinstance(fields, dict):
        raise RequestError("the body is a JSON object with the fields of the request")
    return given(fields)


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not null."""
    return {name: value for name, value in fields.items() if value is not None}


def model_of(fields: Mapping[str, Any]) -> str:
    """Return the model that a request names. Raises: RequestError."""
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise refusal("model", "model is the name of a function that has been deployed")
    return model


def honoured(fields: Mapping[str, Any], names: frozenset[str], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the fields that are honoured. names: these. rules: what becomes of others.

    Raises: RequestError naming the first field that is neither honoured nor accepted.
    """
    for name, value in fields.items():
        if name not in names:
            _require_fine(name, value, rules.get(name))
    return {name: value for name, value in fields.items() if name in names}


def only(value: Any, names: Iterable[str], path: str) -> dict[str, Any]:
    """Return the members of an object inside a request that are not null. names: those it may have.

    Raises: RequestError naming what is wrong.
    """
    if not isinstance(value, dict):
        raise refusal(path, f"{path} is an object")
    found = given(value)
    for name in found.keys() - set(names):
        raise refusal(f"{path}.{name}", f"{path}.{name} is not supported", reason=UNSUPPORTED)
    return found


def listed(value: Any, path: str) -> list[Any]:
    """Return a list inside a request. Raises: RequestError naming what is none."""
    if not isinstance(value, list):
        raise refusal(path, f"{path} is a list")
    return value


def _require_fine(name: str, value: Any, rule: Rule | None) -> None:
    if rule is None:
        raise refusal(name[:MAX_NAME_CHARS], f"there is no field {name[:MAX_NAME_CHARS]!r}", reason=UNKNOWN)
    if rule.is_fine is None:
        raise refusal(name, f"{name} is not supported: {rule.instead}", reason=UNSUPPORTED)
    if not rule.is_fine(value):
        raise refusal(name, f"{name} cannot have this value: {rule.instead}", reason=UNSUPPORTED)
