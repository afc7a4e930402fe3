"""How a handler is called: read once from its signature and type hints.

    def embed(text: str, n: int = 3)          one JSON object {"text": …, "n": …}: parameters are its fields
    def embed(item: Item)                     Item is a struct, dataclass, TypedDict or dict: it is the whole body
    def embed(text: list[str])   (batch)      clients send {"text": …}; the handler gets a list of texts
    def embed(items: list[Item]) (batch)      clients send one Item;    the handler gets a list of Items

A parameter annotated Context (list[Context] with batching) is the call's own context: clients neither see nor send it.
The rule is the same with and without batching, so turning batching on never changes what clients send.
This module does not know options, JSON Schema or how the body is decoded.
"""

from __future__ import annotations

import collections.abc
import copy
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import msgspec.inspect

from samovar.context import Context
from samovar.errors import DeployRefused
from samovar.spec import HandlerKind

InputStyle = Literal["body", "fields"]

_STREAMS = (
    collections.abc.Iterator,
    collections.abc.Iterable,
    collections.abc.Generator,
    collections.abc.AsyncIterator,
    collections.abc.AsyncIterable,
    collections.abc.AsyncGenerator,
)
_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence)
_OBJECTS = (
    msgspec.inspect.StructType,
    msgspec.inspect.DataclassType,
    msgspec.inspect.TypedDictType,
    msgspec.inspect.DictType,
)


@dataclass(frozen=True, slots=True)
class HandlerSignature:
    """What a handler takes and gives.

    input_type: what one client's body is decoded to (a struct made from the parameters for style "fields").
    fields: parameter names in order, for style "fields".
    output_type: of one answer, or of one item of a stream; Any without a return hint.
    context_at: which of its arguments (from 0, without self) is the context, None if none is.
    """

    handler: HandlerKind
    style: InputStyle
    input_type: Any
    fields: tuple[str, ...]
    output_type: Any
    context_at: int | None = None


def location(function: Callable[..., Any]) -> tuple[str, int]:
    """Return (file, line) where `function` is defined; ("", 0) for one without Python source."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else ("", 0)


def handler_kind(function: Callable[..., Any]) -> HandlerKind:
    """Return how `function` answers; decorators that keep `__wrapped__` are looked through."""
    function = inspect.unwrap(function)
    if inspect.isasyncgenfunction(function):
        return "async_generator"
    if inspect.iscoroutinefunction(function):
        return "async"
    return "generator" if inspect.isgeneratorfunction(function) else "sync"


def read_signature(function: Callable[..., Any], *, is_method: bool, is_batch: bool) -> HandlerSignature:
    """Return how `function` is called.

    Args:
        function: the handler, unbound. is_method: its first parameter is `self`. is_batch: it takes a list of items.
    Raises: DeployRefused with file and line when the signature cannot serve requests.
    """
    file, line = location(function)
    handler = handler_kind(function)
    hints = _type_hints(function, file, line)
    parameters = _parameters(function, is_method, hints, file, line)
    context_at = _context_at(parameters, is_batch, file, line)
    if context_at is not None:
        del parameters[context_at]
    if is_batch:
        parameters = [_batch_item(parameters, handler, file, line)]
    style, input_type = _input_type(parameters)
    return HandlerSignature(
        handler=handler,
        style=style,
        input_type=input_type,
        fields=tuple(parameter.name for parameter in parameters) if style == "fields" else (),
        output_type=_output_type(hints.get("return", Any), handler, is_batch, file, line),
        context_at=context_at,
    )


def _refuse(detail: str, file: str, line: int) -> DeployRefused:
    return DeployRefused(detail, file=file, line=line)


def _type_hints(function: Callable[..., Any], file: str, line: int) -> dict[str, Any]:
    try:
        return typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError, SyntaxError, AttributeError) as error:
        raise _refuse(f"cannot read the type hints of {function.__name__}: {error}", file, line) from error


def _parameters(
    function: Callable[..., Any], is_method: bool, hints: dict[str, Any], file: str, line: int
) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if is_method:
        if not parameters:
            raise _refuse(f"{function.__name__} must take self", file, line)
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD:
            rule = "handlers take plain named parameters, none after * or before /"
            raise _refuse(f"{function.__name__}: parameter {parameter} is not possible: {rule}", file, line)
        if parameter.name not in hints:
            hint = ", such as sv.Context" if parameter.name in ("ctx", "context") else ""
            raise _refuse(f"{function.__name__}: parameter {parameter.name!r} needs a type hint{hint}", file, line)
    return [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]


def _context_at(parameters: list[inspect.Parameter], is_batch: bool, file: str, line: int) -> int | None:
    """Return the place of the one parameter that takes the call's context, or a list of them; None if none does."""
    hints = [_without_none(parameter.annotation) for parameter in parameters]
    found = [at for at, hint in enumerate(hints) if hint is Context or _list_item(hint) is Context]
    if not found:
        return None
    names = [parameters[at].name for at in found]
    if len(found) > 1:
        raise _refuse(f"a handler has one context, this one asks for {' and '.join(names)}", file, line)
    if is_batch is (hints[found[0]] is Context):
        whose, wanted = ("each item", "list[sv.Context]") if is_batch else ("the call", "sv.Context")
        raise _refuse(f"{names[0]!r} is the context of {whose}: write {names[0]}: {wanted}", file, line)
    return found[0]


def _without_none(hint: Any) -> Any:
    """Return `hint` without the None of `… | None = None`: so that tests may call a handler without a context."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint
    members = [member for member in typing.get_args(hint) if member is not types.NoneType]
    return members[0] if len(members) == 1 else hint


def _batch_item(parameters: list[inspect.Parameter], handler: HandlerKind, file: str, line: int) -> inspect.Parameter:
    """Return the one list parameter of a batch handler, annotated with its item type."""
    if handler in ("generator", "async_generator"):
        raise _refuse("a batch handler returns a list; it cannot yield", file, line)
    if len(parameters) != 1:
        rule = "a batch handler takes one list of items, beside which only list[sv.Context] may stand"
        raise _refuse(f"{rule}; this one takes {len(parameters)}", file, line)
    item = _list_item(parameters[0].annotation)
    if item is None:
        rule = f"a batch handler must take a list, such as {parameters[0].name}: list[str]"
        raise _refuse(rule, file, line)
    return parameters[0].replace(annotation=item, default=inspect.Parameter.empty)


def _list_item(hint: Any) -> Any:
    """Return the item type of a list hint, Any for a bare list, None if it is no list."""
    if hint in _LISTS:
        return Any
    if typing.get_origin(hint) is typing.Annotated:
        return _list_item(typing.get_args(hint)[0])
    return typing.get_args(hint)[0] if typing.get_origin(hint) in _LISTS else None


def _input_type(parameters: list[inspect.Parameter]) -> tuple[InputStyle, Any]:
    if len(parameters) == 1 and _is_object(parameters[0].annotation):
        return "body", parameters[0].annotation
    fields = [_field(parameter) for parameter in parameters]
    return "fields", msgspec.defstruct("Input", fields, kw_only=True, forbid_unknown_fields=True)


def _field(parameter: inspect.Parameter) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, parameter.annotation
    if isinstance(parameter.default, list | dict | set | bytearray):
        default = parameter.default
        return parameter.name, parameter.annotation, msgspec.field(default_factory=lambda: copy.deepcopy(default))
    return parameter.name, parameter.annotation, parameter.default


def _is_object(hint: Any) -> bool:
    """Return whether JSON objects are what `hint` describes."""
    return _is_object_info(msgspec.inspect.type_info(hint))


def _is_object_info(info: msgspec.inspect.Type) -> bool:
    if isinstance(info, msgspec.inspect.Metadata):
        return _is_object_info(info.type)
    if isinstance(info, msgspec.inspect.UnionType):
        members = [member for member in info.types if not isinstance(member, msgspec.inspect.NoneType)]
        return all(_is_object_info(member) for member in members)
    if isinstance(info, msgspec.inspect.StructType):
        return not info.array_like
    return isinstance(info, _OBJECTS)


def _output_type(hint: Any, handler: HandlerKind, is_batch: bool, file: str, line: int) -> Any:
    if handler in ("generator", "async_generator"):
        return typing.get_args(hint)[0] if typing.get_origin(hint) in _STREAMS else Any
    if not is_batch or hint is Any:
        return hint
    item = _list_item(hint)
    if item is None:
        raise _refuse("a batch handler must return a list, one answer per item", file, line)
    return _without_errors(item)


def _without_errors(hint: Any) -> Any:
    """Return `hint` without the exceptions that may stand for single failed items of a batch."""
    members = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    kept = [m for m in members if not (isinstance(m, type) and issubclass(m, BaseException))]
    return typing.Union[tuple(kept)] if kept else Any  # noqa: UP007 (built from a list)
