"""Conversations as the model was trained to read them: through the tokenizer's own chat template, in its sandbox.

Text of a caller that looks like one of the template's own markers stays text: nobody can speak as another role. What
the template refuses, such as roles out of turn, is the caller's error. This module does not know tools' formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from samovar.errors import DeployRefused
from samovar.tasks.generation import Message, Part, Tool, refusal

MAX_REASON_CHARS = 300
_DEVELOPER = re.compile(r"\bdeveloper\b")


class ChatTemplate:
    """The template of one tokenizer. source: its text, "" if it has none."""

    def __init__(self, tokenizer: Any) -> None:
        """tokenizer: of transformers. Raises: DeployRefused, with the line, if its template is not written right."""
        self._tokenizer = tokenizer
        template = tokenizer.chat_template
        if isinstance(template, dict):
            template = template.get("default", "")
        self.source: str = template or ""
        if self.source:
            _refuse_broken(self.source)

    @property
    def takes_tools(self) -> bool:
        """Whether the template tells the model of tools."""
        return "tools" in self.source

    def tokens(self, messages: Sequence[Message], tools: Sequence[Tool]) -> list[int]:
        """Return the token ids of a conversation, up to where the model is to answer.

        Raises: RequestError naming messages if the model has no template, or it does not take this conversation.
        """
        if not self.source:
            raise refusal("messages", "the model has no chat template: send `prompt` instead of messages")
        turns = [self._turn(place, message) for place, message in enumerate(messages)]
        try:
            ids: list[int] = self._tokenizer.apply_chat_template(
                turns,
                tools=[msgspec.to_builtins(tool) for tool in tools] or None,
                chat_template=self.source,
                add_generation_prompt=True,
                sanitize_control_tokens=True,
                return_dict=False,
            )
        except Exception as error:  # a template is a program of its own, and may raise anything
            raise refusal(
                "messages", f"the model's chat template refuses these messages: {reason_of(error)}"
            ) from error
        return ids

    def _turn(self, place: int, message: Message) -> dict[str, Any]:
        """Return one message as templates take it: content as text, arguments of calls as objects."""
        role = message.role
        if role == "developer" and not _DEVELOPER.search(self.source):
            role = "system"
        if message.content is None and not message.tool_calls:
            raise refusal("messages", f"messages[{place}] has no content")
        turn: dict[str, Any] = {"role": role, "content": _text(place, message.content)}
        if message.name is not None:
            turn["name"] = message.name
        if message.tool_call_id is not None:
            turn["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            turn["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}
                for call in message.tool_calls
                for arguments in [_arguments(place, call.function.arguments)]
            ]
        return turn


def _refuse_broken(source: str) -> None:
    """Raise DeployRefused if a template cannot be compiled: else every conversation would be told that it is wrong."""
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        render_jinja_template(conversations=[[]], chat_template=source)
    except TemplateSyntaxError as error:
        raise DeployRefused(f"the model's chat template is broken in line {error.lineno}: {error.message}") from error
    except Exception:  # noqa: BLE001 - it compiles, and may refuse a conversation without messages
        return


def num_chars(message: Message) -> int:
    """Return how long the texts of a message are."""
    content = message.content or ""
    texts = [content] if isinstance(content, str) else [part.text for part in content]
    return sum(map(len, texts)) + sum(len(call.function.arguments) for call in message.tool_calls or [])


def _text(place: int, content: str | list[Part] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    for part in content:
        if part.type != "text":
            raise refusal("messages", f"messages[{place}] has a part of type {part.type!r}: the model takes text only")
    return "".join(part.text for part in content)


def _arguments(place: int, text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise refusal("messages", f"messages[{place}] has a tool call whose arguments are not JSON") from None


def reason_of(error: Exception) -> str:
    """Return what a template or a processor raised, for the error that a caller gets."""
    return (str(error) or type(error).__name__)[:MAX_REASON_CHARS]
