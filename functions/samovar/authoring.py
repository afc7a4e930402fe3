"""What a function's author writes: `@sv.function` on a function or a class, and the options it takes.

    @sv.function(name="embed", batch=sv.Batch(max_size=16), weights=sv.Weights("model"))
    class Embed:
        def load(self, weights: Path, device: str) -> None: ...      # once, before the first call; optional
        def __call__(self, text: list[str]) -> list[Embedding]: ...  # the handler
        def check(self) -> None: ...                                 # optional: raises if the instance is unwell
        def unload(self) -> None: ...                                # optional: last call before the process exits

`definition_of` returns all of it as one frozen value. Options that are value objects may also be attributes of the
class; the same option in both places is refused. This module does not know deployment, JSON or processes.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, overload

import msgspec

from samovar.acceleration import options as acceleration
from samovar.acceleration.options import Acceleration, Precision
from samovar.acceleration.speculation import Speculation
from samovar.acceleration.speculation import check as check_speculation
from samovar.errors import DeployRefused
from samovar.options import Batch, Weights, check_option, class_options
from samovar.policies import Breaker, Cache, Fallback, Jobs, Log
from samovar.signature import HandlerSignature, InputStyle, location, read_signature
from samovar.spec import HandlerKind, Limits, Resources, Scaling, check_name
from samovar.values import require

MARK = "__samovar__"


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as its author defined it. `file` and `line`: of the decorator."""

    target: Any
    name: str
    task: str
    kind: Literal["class", "function"]
    signature: HandlerSignature
    batch: Batch | None
    scaling: Scaling
    resources: Resources
    limits: Limits
    fallback: Fallback | None
    cache: Cache | None
    breaker: Breaker
    jobs: Jobs
    log: Log
    hedge_after: str | None
    weights: Weights | None
    acceleration: Acceleration
    requirements: tuple[str, ...]
    retry_on_crash: bool
    example: Any
    has_check: bool
    file: str
    line: int

    @property
    def handler(self) -> HandlerKind:
        """How the handler answers: sync, async, generator or async_generator."""
        return self.signature.handler

    @property
    def input_style(self) -> InputStyle:
        """Whether the handler takes the whole body or its fields."""
        return self.signature.style

    @property
    def input_type(self) -> Any:
        """What one client's body is decoded to."""
        return self.signature.input_type

    @property
    def output_type(self) -> Any:
        """The type of one answer, or of one item of a stream."""
        return self.signature.output_type


@dataclass(frozen=True, slots=True)
class _Mark:
    """What the decorator leaves on its target; hints are read later, when every name in the file exists."""

    options: dict[str, Any]
    file: str
    line: int


T = TypeVar("T", bound=Callable[..., Any])


@overload
def function(target: T, /) -> T: ...
@overload
def function(
    *,
    name: str | None = None,
    task: str | None = None,
    batch: Batch | None = None,
    scaling: Scaling | None = None,
    resources: Resources | None = None,
    limits: Limits | None = None,
    fallback: Fallback | None = None,
    cache: Cache | None = None,
    breaker: Breaker | None = None,
    jobs: Jobs | None = None,
    log: Log | None = None,
    hedge_after: str | None = None,
    weights: Weights | None = None,
    precision: Precision | None = None,
    compile: str | None = None,
    engine: str | None = None,
    attention: str | None = None,
    speculation: Speculation | None = None,
    requirements: Sequence[str] | None = None,
    retry_on_crash: bool | None = None,
    example: Any = None,
) -> Callable[[T], T]: ...
def function(target: Any = None, /, **options: Any) -> Any:
    """Make a function or class deployable; it stays what it was and can be called and tested as before.

    Args:
        name: 1-63 of a-z, 0-9, '-'; default from the target's own name.
        task: what it is for: "text-generation", "image-text-to-text", "any-to-any" and "embeddings" are served by
            OpenAI's routes, too (samovar.tasks).
        batch, scaling, resources, limits, fallback, cache, breaker, jobs, log, weights: value objects, see each.
        hedge_after: a call that runs longer than this ("p95", "50ms") is sent to a second instance too.
        precision, compile, engine, attention, speculation: how its models are run (samovar.acceleration).
        requirements: extra pip requirements, such as "rapidfuzz>=3".
        retry_on_crash: whether a call may run again when its instance died; default True.
        example: an input of the handler, as a client would send it; used for the warm-up inference.
    Raises: DeployRefused with file and line for an option that is unknown, wrong, or set twice.
    """
    frame = sys._getframe(1)
    mark = _Mark({key: value for key, value in options.items() if value is not None}, "", 0)
    if target is not None:
        return _mark(target, mark, frame.f_code.co_filename, frame.f_lineno)

    def decorate(decorated: Any) -> Any:
        at = sys._getframe(1)
        return _mark(decorated, mark, at.f_code.co_filename, at.f_lineno)

    return decorate


def is_function(obj: Any) -> bool:
    """Return whether `obj` itself (not a base class of it) carries `@sv.function`."""
    return isinstance(getattr(obj, "__dict__", {}).get(MARK), _Mark)


def definition_of(obj: Any) -> Definition:
    """Return what the author defined.

    Raises: DeployRefused with file and line when it cannot be served: no handler, a wrong signature, a bad name.
    """
    if not is_function(obj):
        raise DeployRefused(f"{getattr(obj, '__name__', obj)!r} is not decorated with @sv.function")
    mark: _Mark = obj.__dict__[MARK]
    try:
        return _define(obj, mark)
    except DeployRefused as refused:
        refused.extra.setdefault("file", mark.file)
        refused.extra.setdefault("line", mark.line)
        raise


def default_name(name: str) -> str:
    """Return the function name made from a Python name: `MyModel` and `my_model` become `my-model`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-").strip("-").lower()


def _mark(target: Any, mark: _Mark, file: str, line: int) -> Any:
    try:
        require(inspect.isclass(target) or inspect.isfunction(target), "@sv.function goes on a function or a class")
        require(not is_function(target), f"@sv.function is on {target.__name__} twice")
        options = dict(mark.options)
        for key, value in options.items():
            check_option(key, value)
        if inspect.isclass(target):
            options |= class_options(target, options)
        setattr(target, MARK, _Mark(options, file, line))
    except DeployRefused as refused:
        refused.extra |= {"file": file, "line": line}
        raise
    return target


def _define(obj: Any, mark: _Mark) -> Definition:
    options, is_class = mark.options, inspect.isclass(obj)
    if is_class:
        _check_class(obj)
        _check_length(obj, options.get("batch"))
    elif isinstance(getattr(options.get("batch"), "length", None), str):
        raise DeployRefused("Batch: length= of a function is itself a function of one item, not the name of a method")
    elif "weights" in options:
        raise DeployRefused("weights= needs a class with load(self, weights, device): a function has no load")
    batch: Batch | None = options.get("batch")
    return Definition(
        target=obj,
        name=check_name(options.get("name") or default_name(obj.__name__)),
        task=options.get("task", ""),
        kind="class" if is_class else "function",
        signature=read_signature(obj.__call__ if is_class else obj, is_method=is_class, is_batch=batch is not None),
        batch=batch,
        scaling=options.get("scaling", Scaling()),
        resources=options.get("resources", Resources()),
        limits=options.get("limits", Limits()),
        fallback=options.get("fallback"),
        cache=options.get("cache"),
        breaker=options.get("breaker", Breaker()),
        jobs=options.get("jobs", Jobs()),
        log=options.get("log", Log()),
        hedge_after=options.get("hedge_after"),
        weights=options.get("weights"),
        acceleration=_acceleration(obj, options),
        requirements=tuple(options.get("requirements", ())),
        retry_on_crash=options.get("retry_on_crash", True),
        example=options.get("example"),
        has_check=is_class and hasattr(obj, "check"),
        file=mark.file,
        line=mark.line,
    )


def _acceleration(target: Any, options: dict[str, Any]) -> Acceleration:
    """Return what is declared about models. Raises: DeployRefused for what does not go together."""
    precision: Precision | None = options.get("precision")
    said: dict[str, Any] = {key: options[key] for key in ("compile", "engine", "attention") if key in options}
    try:
        declared = msgspec.convert({**said, "precision": precision.name if precision else ""}, Acceleration)
    except msgspec.ValidationError as error:
        raise DeployRefused(f"how the models are run: {error}") from error
    gpus = options.get("resources", Resources()).gpus
    acceleration.check(declared, num_gpus=gpus, has_example=options.get("example") is not None)
    speculation: Speculation | None = options.get("speculation")
    if speculation is None:
        return declared
    check_speculation(speculation, target, options.get("task", ""), has_weights="weights" in options)
    return msgspec.structs.replace(declared, speculation=speculation)


def _check_class(cls: type) -> None:
    if not inspect.isfunction(_own(cls, "__call__")):
        raise DeployRefused(f"{cls.__name__} has no handler: define __call__(self, …)")
    required = [p for p in _parameters_of(_own(cls, "__init__")) if p.default is p.empty and p.kind not in _VARIADIC]
    if required:
        file, line = location(_own(cls, "__init__"))
        raise DeployRefused(
            f"{cls.__name__}.__init__ may take no arguments: put set-up into load(self, weights, device)",
            file=file,
            line=line,
        )
    for name, parameters in (("load", ["weights", "device"]), ("check", []), ("unload", [])):
        _check_method(cls, name, parameters)


def _check_length(cls: type, batch: Batch | None) -> None:
    """A length may be a method: it needs what `load` made, such as a tokenizer."""
    if batch is None or not isinstance(batch.length, str):
        return
    if len(_parameters_of(_own(cls, batch.length))) != 1:
        raise DeployRefused(
            f"Batch: length={batch.length!r} must name a method {batch.length}(self, item) of the class"
        )


_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _own(cls: type, name: str) -> Any:
    """Return the attribute as written in the class or a base other than object, else None."""
    return next((vars(base)[name] for base in cls.__mro__ if base is not object and name in vars(base)), None)


def _parameters_of(method: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(method).parameters.values())[1:] if inspect.isfunction(method) else []


def _check_method(cls: type, name: str, wanted: list[str]) -> None:
    method = _own(cls, name)
    if method is None:
        return
    file, line = location(method)
    call = f"{name}({', '.join(['self', *wanted])})"
    if not inspect.isfunction(method) or [p.name for p in _parameters_of(method)] != wanted:
        raise DeployRefused(f"{cls.__name__}.{name} must be a method {call}", file=file, line=line)
    if inspect.iscoroutinefunction(inspect.unwrap(method)):
        raise DeployRefused(f"{cls.__name__}.{name} must be a plain def, not async", file=file, line=line)
