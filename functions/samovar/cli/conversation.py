"""What a chat consists of: its messages, its settings, the orders that are typed instead of messages. Pure.

This module does not know terminals or connections.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from samovar.errors import RequestError
from samovar.tasks.generation import GenerationInput, GenerationOutput, Usage

SETTINGS: dict[str, type[int | float | str]] = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "max_tokens": int,
    "seed": int,
    "presence_penalty": float,
    "frequency_penalty": float,
    "stop": str,
}
HELP = {
    "/system [TEXT]": "what the model is told before everything else; alone: shows it",
    "/set [NAME VALUE]": "temperature, max_tokens, seed, …; without a value: as the function has it; alone: shows all",
    "/reset": "forget the conversation",
    "/save FILE": "write the conversation as JSON",
    "/help": "this",
    "/exit": "leave, as Ctrl-D does",
}
SHORTEST_S = 0.05  # between first and last token, for a rate to mean something
ORDERS = tuple(usage.split(" ")[0] for usage in HELP)


@dataclass
class Conversation:
    """messages: role and content of each, without the system's. settings: fields of a GenerationInput."""

    system: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def request(self, text: str) -> dict[str, Any]:
        """Return the input that answers `text`, after all that was said."""
        return {"messages": [*self.all_messages(), {"role": "user", "content": text}], **self.settings}

    def all_messages(self) -> list[dict[str, str]]:
        """Return every message, the system's first."""
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.messages

    def enter(self, text: str, answer: str) -> None:
        """Remember a question and what was answered."""
        self.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def set(self, name: str, value: str) -> None:
        """Change a setting; "" takes it back. Raises: RequestError for one that does not exist, or a wrong value."""
        if name not in SETTINGS:
            raise RequestError(f"there is no setting {name!r}{_near(name, SETTINGS)}: {', '.join(SETTINGS)}")
        if not value:
            self.settings.pop(name, None)
            return
        try:
            converted: Any = SETTINGS[name](value)
        except ValueError:
            kind = "a whole number" if SETTINGS[name] is int else "a number"
            raise RequestError(f"{name} is {kind}, not {value!r}") from None
        self.check({name: [converted] if name == "stop" else converted})

    def check(self, settings: dict[str, Any]) -> None:
        """Take over settings if all of them are within their ranges. Raises: RequestError."""
        GenerationInput(prompt="x", **settings).check()
        self.settings |= settings


@dataclass
class Reply:
    """An answer as it comes. `_s` are monotonic seconds. num_pieces: of the text; usage: as the function counted."""

    asked_s: float
    text: str = ""
    num_pieces: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    finish_reason: str = ""
    usage: Usage | None = None

    def take(self, value: Any, now_s: float) -> str:
        """Take an item of the stream; return the text in it. Raises: msgspec.ValidationError if it is of no use."""
        output = msgspec.convert(value, GenerationOutput)
        self.usage = output.usage or self.usage
        self.finish_reason = output.finish_reason or self.finish_reason
        if output.text:
            self.text += output.text
            self.num_pieces += 1
            self.first_s = now_s if self.first_s is None else self.first_s
            self.last_s = now_s
        return output.text

    @property
    def num_tokens(self) -> int:
        """How many tokens it has; pieces, if the function does not count."""
        return self.usage.completion_tokens if self.usage is not None else self.num_pieces

    @property
    def tokens_per_s(self) -> float | None:
        """How fast the tokens after the first one came; None of too few."""
        if self.first_s is None or self.num_tokens < 2 or self.last_s - self.first_s < SHORTEST_S:
            return None
        return (self.num_tokens - 1) / (self.last_s - self.first_s)

    def facts(self) -> dict[str, Any]:
        """Return it with its figures, for programs."""
        first_s = self.first_s - self.asked_s if self.first_s is not None else None
        return {
            "role": "assistant",
            "content": self.text,
            "finish_reason": self.finish_reason or None,
            "usage": msgspec.to_builtins(self.usage),
            "first_token_s": round(first_s, 4) if first_s is not None else None,
            "tokens_per_s": round(self.tokens_per_s, 2) if self.tokens_per_s is not None else None,
        }

    def summary(self) -> str:
        """Return its figures, for people."""
        parts = [f"{self.num_tokens} token{'s' * (self.num_tokens != 1)}"]
        if self.tokens_per_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s")
        if self.first_s is not None:
            parts.append(f"first after {self.first_s - self.asked_s:.2f} s")
        if self.finish_reason == "length":
            parts.append("cut: max_tokens is reached, or the context full")
        return " · ".join(parts)


def order_of(line: str) -> tuple[str, str] | None:
    """Return order and argument of a line such as `/set seed 7`, None for a message. Raises: RequestError.

    A message that begins with / is typed with two.
    """
    if not line.startswith("/") or line.startswith("//"):
        return None
    name, _, argument = line.partition(" ")
    if name == "/quit":
        name = "/exit"
    if name not in ORDERS:
        raise RequestError(f"there is no {name}{_near(name, ORDERS)}; /help lists what there is")
    return name, argument.strip()


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""
