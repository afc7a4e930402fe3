"""Messages, tools and formats of a chat request, as far as text-generation functions take them. Pure.

What a model cannot take is refused with its place, such as `messages[2].content[0]`. Members that are null, and those
that clients repeat from earlier answers without meaning anything by them, are left out.
This module does not know templates.
"""

from __future__ import annotations

from typing import Any

from samovar.tasks.generation import MAX_MESSAGES, ROLES, refusal
from samovar_gateway.openai import media
from samovar_gateway.openai.fields import UNSUPPORTED, listed, only

MESSAGE = ("role", "content", "name", "tool_calls", "tool_call_id", "annotations")
TOOL = ("type", "function")
FUNCTION = ("name", "description", "parameters", "strict")
FORMAT = ("type", "json_schema")
SCHEMA = ("name", "description", "schema", "strict")
TEXT_ONLY = frozenset(("text",))


def messages_of(value: Any, kinds: frozenset[str] = TEXT_ONLY) -> list[dict[str, Any]]:
    """Return the messages of a request. Raises: RequestError naming what cannot be taken.

    kinds: of parts that the function takes, in its own words: "text", "image", "audio".
    """
    messages = listed(value, "messages")
    if len(messages) > MAX_MESSAGES:
        raise refusal("messages", f"messages has more than {MAX_MESSAGES}")
    return [_message(message, f"messages[{place}]", kinds) for place, message in enumerate(messages)]


def _message(value: Any, path: str, kinds: frozenset[str]) -> dict[str, Any]:
    message = only(value, MESSAGE, path)
    if message.pop("annotations", []) != []:  # of an earlier answer, sent back whole
        raise refusal(f"{path}.annotations", f"{path}.annotations is not supported", reason=UNSUPPORTED)
    if message.get("role") not in ROLES:
        raise refusal(f"{path}.role", f"{path}.role is one of {', '.join(ROLES)}")
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [_part(part, f"{path}.content[{place}]", kinds) for place, part in enumerate(content)]
    if "tool_calls" in message:
        calls = listed(message["tool_calls"], f"{path}.tool_calls")
        message["tool_calls"] = [
            _typed(call, ("id", *TOOL), ("name", "arguments"), f"{path}.tool_calls[{place}]")
            for place, call in enumerate(calls)
        ]
    if message.get("role") == "tool" and "tool_call_id" not in message:
        raise refusal(f"{path}.tool_call_id", f"{path}.tool_call_id says which call a message of role tool answers")
    if "content" not in message and not message.get("tool_calls"):
        raise refusal(f"{path}.content", f"{path} has no content")
    return message


def _part(value: Any, path: str, kinds: frozenset[str]) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("type") == "text":
        part = only(value, ("type", "text"), path)
        if "text" not in part:
            raise refusal(f"{path}.text", f"{path}.text: a part of type text has one")
        return part
    kind, read = media.PARTS.get(str(value.get("type")), ("", None))
    if read is None or kind not in kinds:
        taken = " or ".join(["text", *(name for name, (kind, _) in media.PARTS.items() if kind in kinds)])
        raise refusal(path, f"{path}: parts of a message are of type {taken} here", reason=UNSUPPORTED)
    return read(value, path)


def tools_of(value: Any) -> list[dict[str, Any]]:
    """Return the tools of a request. Raises: RequestError naming what cannot be taken."""
    return [_typed(tool, TOOL, FUNCTION, f"tools[{place}]") for place, tool in enumerate(listed(value, "tools"))]


def tool_choice_of(value: Any) -> Any:
    """Return which tool is to be called. Raises: RequestError for kinds of choices that cannot be made."""
    return value if isinstance(value, str) else _typed(value, TOOL, ("name",), "tool_choice")


def format_of(value: Any) -> dict[str, Any]:
    """Return how the answer is to be written. Raises: RequestError naming what cannot be taken."""
    found = only(value, FORMAT, "response_format")
    if "json_schema" in found:
        found["json_schema"] = only(found["json_schema"], SCHEMA, "response_format.json_schema")
    if (found.get("type") == "json_schema") != ("json_schema" in found):
        detail = "response_format.json_schema belongs to the type json_schema, which needs it"
        raise refusal("response_format.json_schema", detail)
    return found


def _typed(value: Any, names: tuple[str, ...], of_function: tuple[str, ...], path: str) -> dict[str, Any]:
    """Return an object of type function with its function."""
    if isinstance(value, dict) and value.get("type", "function") != "function":
        raise refusal(f"{path}.type", f"{path}: only the type function is supported", reason=UNSUPPORTED)
    found = only(value, names, path)
    return found | {"function": only(found.get("function"), of_function, f"{path}.function")}
