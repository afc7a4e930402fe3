"""The options of a function: the value objects authors write, and what is refused of them.

This module does not know the decorator, signatures or deployment.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from samovar.acceleration.options import Precision
from samovar.acceleration.speculation import Speculation
from samovar.errors import DeployRefused
from samovar.policies import Breaker, Cache, Fallback, Jobs, Log, check_hedge
from samovar.spec import BatchSpec, Limits, Resources, Scaling
from samovar.values import require

_REQUIREMENT = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?\s*(\[|@|[<>=!~;(]|$)")


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Dynamic batching: the handler takes a list of up to `max_size` items and returns as many answers.

    max_size: items per batch, >= 1. max_wait_ms: longest wait of the first item while the batch fills, >= 0; an idle
    instance never waits. cost: cost of one item (any unit, > 0), with max_cost the largest sum in one batch.
    length: for a handler that pads its items to the longest: tokens of one item (>= 0), by a function of it or, by its
    name, a method of the class. Then items of similar lengths are batched: max_tokens: of a padded batch, that is its
    longest item times its items, >= 1. max_padding: tokens an item is padded by at most, >= 0.
    """

    max_size: int = 16
    max_wait_ms: float = 5.0
    cost: Callable[[Any], float] | None = None
    max_cost: float | None = None
    length: Callable[[Any], int] | str | None = None
    max_tokens: int | None = None
    max_padding: int = 32

    def __post_init__(self) -> None:
        require(isinstance(self.max_size, int) and self.max_size >= 1, "Batch: max_size >= 1")
        require(isinstance(self.max_wait_ms, int | float) and self.max_wait_ms >= 0, "Batch: max_wait_ms >= 0")
        require((self.cost is None) == (self.max_cost is None), "Batch: cost and max_cost belong together")
        require(self.cost is None or callable(self.cost), "Batch: cost is a function of one item")
        require(self.max_cost is None or self.max_cost > 0, "Batch: max_cost > 0")
        require((self.length is None) == (self.max_tokens is None), "Batch: length and max_tokens belong together")
        is_length = self.length is None or isinstance(self.length, str) or callable(self.length)
        require(is_length, "Batch: length is a function of one item, or the name of a method")
        is_tokens = isinstance(self.max_tokens, int) and self.max_tokens >= 1
        require(self.max_tokens is None or is_tokens, "Batch: max_tokens is a whole number >= 1")
        is_padding = isinstance(self.max_padding, int) and self.max_padding >= 0
        require(is_padding, "Batch: max_padding is a whole number >= 0")

    @property
    def spec(self) -> BatchSpec:
        """The part that is stored in the manifest."""
        return BatchSpec(
            max_size=self.max_size,
            max_wait_ms=float(self.max_wait_ms),
            max_cost=self.max_cost,
            max_tokens=self.max_tokens,
            max_padding=self.max_padding,
        )


class Weights(msgspec.Struct, frozen=True):
    """Where the weight files are when the function is deployed: a folder, or one file.

    path: relative to the author's file, or absolute. package: an installed Python package that holds them; `path` is
    then relative to that package. Resolved at deploy only; `load` gets the platform's own read-only copy.
    """

    path: str = "."
    package: str | None = None


OPTION_TYPES: dict[str, type] = {
    "name": str,
    "task": str,
    "batch": Batch,
    "scaling": Scaling,
    "resources": Resources,
    "limits": Limits,
    "fallback": Fallback,
    "cache": Cache,
    "breaker": Breaker,
    "jobs": Jobs,
    "log": Log,
    "weights": Weights,
    "precision": Precision,
    "compile": str,
    "engine": str,
    "attention": str,
    "speculation": Speculation,
    "hedge_after": str,
    "requirements": list,
    "retry_on_crash": bool,
    "example": object,
}
_VALUE_OBJECTS = (
    "batch",
    "scaling",
    "resources",
    "limits",
    "fallback",
    "cache",
    "breaker",
    "jobs",
    "log",
    "weights",
    "precision",
    "speculation",
)


def class_options(target: type, given: dict[str, Any]) -> dict[str, Any]:
    """Return the options that are attributes of the class itself. Raises DeployRefused if one is in `given` too."""
    found = {}
    for key in _VALUE_OBJECTS:
        value = vars(target).get(key)
        if isinstance(value, OPTION_TYPES[key]):
            require(key not in given, f"{key} is set twice: in @sv.function and as {target.__name__}.{key}")
            check_option(key, value)
            found[key] = value
    return found


def check_option(key: str, value: Any) -> None:
    """Raise DeployRefused if there is no option `key`, or `value` is not one for it."""
    wanted = OPTION_TYPES.get(key)
    require(wanted is not None, f"@sv.function has no option {key!r}; it has {', '.join(OPTION_TYPES)}")
    if key == "requirements":
        _check_requirements(value)
        return
    require(isinstance(value, wanted or object), f"{key}= takes {_a(key)}, got {type(value).__name__}")
    if key == "hedge_after":
        check_hedge(value)
    if key != "batch" and key in _VALUE_OBJECTS:
        _check_fields(value)


def _a(key: str) -> str:
    return f"sv.{OPTION_TYPES[key].__name__}(…)" if key in _VALUE_OBJECTS else f"a {OPTION_TYPES[key].__name__}"


def _check_fields(value: msgspec.Struct) -> None:
    """Structs do not check the types of their fields when they are made; a deploy does."""
    try:
        msgspec.convert(msgspec.to_builtins(value), type(value))
    except msgspec.ValidationError as error:
        raise DeployRefused(f"{type(value).__name__}: {error}") from error


def _check_requirements(value: Any) -> None:
    listed = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    require(listed, 'requirements= takes a list of strings, such as ["rapidfuzz>=3"]')
    for item in value:
        require(bool(_REQUIREMENT.match(item)), f"{item!r} is not a pip requirement")


def resolve_weights(weights: Weights, base: Path) -> Path:
    """Return the weights' folder or file on this machine, `base` being the folder of the author's file.

    Raises: DeployRefused if the package is not installed or nothing is there.
    """
    root = base if weights.package is None else _package_folder(weights.package)
    path = (root / Path(weights.path).expanduser()).resolve()
    require(path.exists(), f"the weights {path} do not exist")
    return path


def require_draft_model(speculation: Speculation | None, weights: Path) -> None:
    """Raise DeployRefused if a model that is to draft is not within the weights."""
    if speculation is not None and speculation.folder:
        is_there = (weights / speculation.folder / "config.json").is_file()
        require(is_there, f"Speculation: there is no model in {weights / speculation.folder}")


def _package_folder(package: str) -> Path:
    from importlib.util import find_spec

    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise DeployRefused(f"the package {package!r} that holds the weights is not installed here")
    return Path(next(iter(spec.submodule_search_locations)))
