"""Tools: how models of different families write calls, reading calls out of a text, and grammars that force them.

    hermes    <tool_call>\\n{"name": …, "arguments": {…}}\\n</tool_call>, any number          Qwen, Hermes, Granite
    llama3    {"name": …, "parameters": {…}}, the whole text, perhaps after <|python_tag|>    Llama 3.1 and later
    mistral   [TOOL_CALLS][{"name": …, "arguments": {…}}, …], the rest of the text            Mistral 7B v0.3, Nemo

Which one a model has, its chat template says. What looks like a call and is none, or calls what there is not, stays
text. Pure: this module does not know tokens, templates or requests' other fields.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from samovar.tasks.generation import FunctionCall, Tool, ToolCall
from samovar_instance.engines.generation.grammar import json_rule
from samovar_instance.engines.generation.stops import StopFinder

MAX_PARALLEL = 16  # calls that a grammar asks for at most

_json = json.JSONDecoder()
_call_or_calls = msgspec.json.Decoder(dict[str, msgspec.Raw] | list[dict[str, msgspec.Raw]])


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How calls are written. begin, end: what stands around them, end "" = they go on to the end of the text.

    is_bare: a text may be a call without `begin`. is_list: several calls are one JSON array. key: of the arguments.
    """

    name: str
    begin: str
    end: str = ""
    is_bare: bool = False
    is_list: bool = False
    key: str = "arguments"


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")
LLAMA3 = ToolFormat("llama3", "<|python_tag|>", is_bare=True, key="parameters")
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", is_list=True)
FORMATS = {tool_format.name: tool_format for tool_format in (HERMES, LLAMA3, MISTRAL)}


def format_of_template(template: str) -> ToolFormat | None:
    """Return how a model with this chat template writes calls, None if it takes no tools or in a way unknown here."""
    if "tools" not in template:
        return None
    if "<tool_call>" in template and "<function=" not in template and "<arg_key>" not in template:
        return HERMES
    if "[TOOL_CALLS]" in template and "[ARGS]" not in template:
        return MISTRAL
    if "<|python_tag|>" in template or '"parameters"' in template:
        return LLAMA3
    return None


class ToolReader:
    """Reads the calls out of one text as it comes; what is no call goes through. num_calls: found so far."""

    def __init__(self, tool_format: ToolFormat, tools: Sequence[Tool], new_id: Callable[[], str]) -> None:
        """new_id: returns an id that no other call has."""
        self._format = tool_format
        self._names = {tool.function.name for tool in tools}
        self._new_id = new_id
        self._seen = ""  # of the text's beginning, as long as it may turn out a bare call
        self._is_beginning = tool_format.is_bare
        self._before = StopFinder([tool_format.begin])
        self._inside: StopFinder | None = None
        self._marker = ""  # what began the call
        self._call = ""  # what stands between begin and end, so far
        self.num_calls = 0

    def add(self, piece: str) -> tuple[str, list[ToolCall]]:
        """Take the next piece; return the text that is no call for certain, and the calls that are complete."""
        if self._is_beginning:
            piece = self._begin(piece)
        texts: list[str] = []
        calls: list[ToolCall] = []
        while piece:
            if self._inside is None:
                texts.append(self._before.add(piece))
                piece = self._open(self._format.begin, self._before.rest) if self._before.found else ""
            else:
                piece = self._add_inside(piece, texts, calls)
        return self._text(texts), calls

    def flush(self) -> tuple[str, list[ToolCall]]:
        """The text is over: return what was held back."""
        if self._inside is None:
            held = self._seen + self._before.flush()
            self._seen = ""
            return self._text([held]), []
        texts: list[str] = []
        calls: list[ToolCall] = []
        self._call += self._inside.flush()
        self._close(texts, calls, is_ended=not self._format.end)
        return self._text(texts), calls

    def _begin(self, piece: str) -> str:
        """Return what to read on, "" while it is open whether the text is a bare call."""
        self._seen += piece
        start = self._seen.lstrip()
        if not start:
            return ""
        seen, self._seen, self._is_beginning = self._seen, "", False
        return self._open("", seen) if start.startswith("{") else seen

    def _open(self, marker: str, rest: str) -> str:
        """Return `rest`, which is to be read as of a call."""
        self._inside = StopFinder([self._format.end] if self._format.end else [])
        self._marker, self._call = marker, ""
        return rest

    def _add_inside(self, piece: str, texts: list[str], calls: list[ToolCall]) -> str:
        """Take a piece of a call; return what came after its end."""
        assert self._inside is not None
        self._call += self._inside.add(piece)
        if not self._inside.found:
            return ""
        rest = self._inside.rest
        self._close(texts, calls, is_ended=True)
        return rest

    def _close(self, texts: list[str], calls: list[ToolCall], is_ended: bool) -> None:
        found = read_calls(self._format, self._call) if is_ended else None
        if found and all(name in self._names for name, _ in found):
            calls += [ToolCall(id=self._new_id(), function=FunctionCall(name=n, arguments=a)) for n, a in found]
            self.num_calls += len(found)
        else:
            texts += [self._marker, self._call, self._format.end if is_ended else ""]
        self._inside, self._before = None, StopFinder([self._format.begin])

    def _text(self, texts: list[str]) -> str:
        """Return the joined texts; blanks alone beside calls are how calls are laid out."""
        text = "".join(texts)
        return "" if self.num_calls and not text.strip() else text


def read_calls(tool_format: ToolFormat, text: str) -> list[tuple[str, str]] | None:
    """Return (name, arguments as they are written) of each call between begin and end, None if that is no calls."""
    values: list[dict[str, msgspec.Raw]] = []
    at = 0
    try:
        while at < len(text):
            if text[at] in " \t\r\n;":
                at += 1
                continue
            end = _json.raw_decode(text, at)[1]
            value = _call_or_calls.decode(text[at:end])
            values += value if isinstance(value, list) else [value]
            at = end
        found = [(msgspec.json.decode(value["name"], type=str), value[tool_format.key]) for value in values]
    except (ValueError, KeyError, RecursionError, msgspec.MsgspecError):
        return None
    is_fine = found and all(bytes(arguments).startswith(b"{") for _, arguments in found)
    return [(name, bytes(arguments).decode()) for name, arguments in found] if is_fine else None


def forced_calls(tool_format: ToolFormat, tools: Sequence[Tool], is_parallel: bool, mark: Callable[[str], str]) -> str:
    """Return the grammar of texts that are calls of these tools and nothing else.

    is_parallel: several calls are possible. mark: returns a marker in Lark, as a special token if it is one.
    """
    bodies, begin = _bodies(tool_format, tools), mark(tool_format.begin)
    if tool_format.is_list:
        return f'start: {begin} "[" {_many("body", ", ", is_parallel)} "]"\n{bodies}'
    if tool_format.is_bare:
        return f"start: {_many('body', '; ', is_parallel)}\n{bodies}"
    call = f'call: {begin} "\\n" body "\\n" {mark(tool_format.end)}'
    return f"start: {_many('call', chr(10), is_parallel)}\n{call}\n{bodies}"


def _many(rule: str, between: str, is_parallel: bool) -> str:
    return f"{rule} ({json.dumps(between)} {rule}){{0,{MAX_PARALLEL - 1}}}" if is_parallel else rule


def free_calls(tool_format: ToolFormat, tools: Sequence[Tool], mark: Callable[[str], str]) -> str:
    """Return the grammar of any text whose calls follow their schemas. mark: as of `forced_calls`."""
    bodies = _bodies(tool_format, tools)
    if tool_format.is_bare:
        return f"start: body | TEXT\nTEXT: /([^{{](.|\\n)*)?/\n{bodies}"
    marker = mark(tool_format.begin)
    lazy = "[lazy]" if marker.startswith('"') else ""  # a special token ends the text before it by itself
    head = f"head{lazy}: TEXT {marker}\nTEXT: /(.|\\n)*/"
    if tool_format.is_list:
        return f'start: TEXT | head "[" body (", " body)* "]"\n{head}\n{bodies}'
    return f'start: (head "\\n" body "\\n" {mark(tool_format.end)})* TEXT\n{head}\n{bodies}'


def _bodies(tool_format: ToolFormat, tools: Sequence[Tool]) -> str:
    """Return the rules of a call's JSON, `body`. Each schema stands by itself, so that its references hold."""
    rules = [f"body: {' | '.join(f'body_{place}' for place in range(len(tools)))}"]
    for place, tool in enumerate(tools):
        head = f'{{"name": {json.dumps(tool.function.name)}, "{tool_format.key}": '
        arguments = json_rule(tool.function.parameters or {"type": "object"})
        rules.append(f'body_{place}: {json.dumps(head)} {arguments} "}}"')
    return "\n".join(rules)
