"""Engines of pipelines with their tiny models, beside transformers' own pipelines; each is loaded once per process.

Importing this module imports no torch.
"""

from __future__ import annotations

import base64
import importlib
import typing
from typing import Any

import msgspec
import pytest

from samovar.models.tasks import TASKS
from samovar_instance.engines.pipelines.base import Pipeline
from samovar_instance.engines.pipelines.media import image_of, sound_of
from support.tiny_tasks import RATE_HZ, tiny_task

_loaded: dict[str, Pipeline] = {}
_references: dict[str, Any] = {}


def loaded(task: str) -> Pipeline:
    """Return the engine of a task with its tiny model, loaded once."""
    if task not in _loaded:
        module, name = TASKS[task].engine
        _loaded[task] = getattr(importlib.import_module(module), name)()
        _loaded[task].load(tiny_task(task), "cpu")
    return _loaded[task]


def pipeline_of(task: str) -> Any:
    """Return transformers' own, made from the folder as it does."""
    if task not in _references:
        from transformers import pipeline

        made = _references[task] = pipeline(task, model=str(tiny_task(task)), device="cpu")
        if made.tokenizer is not None and task == "text-classification":
            made.tokenizer.model_max_length = 64  # the folder does not say
    return _references[task]


def native(task: str, given: Any) -> Any:
    """Return what a Python caller of transformers would give it."""
    if isinstance(given, str) and TASKS[task].sees:
        return image_of(base64.b64decode(given))
    if isinstance(given, bytes | list):
        return {"raw": sound_of(given, None, RATE_HZ), "sampling_rate": RATE_HZ}
    return given


def items_of(task: str, bodies: list[dict[str, Any]]) -> list[Any]:
    """Return what an engine is given for what clients send."""
    kind = typing.get_args(typing.get_type_hints(type(loaded(task)).__call__)["items"])[0]
    return [msgspec.json.decode(msgspec.json.encode(body), type=kind) for body in bodies]


def answer_type(task: str) -> Any:
    """Return the type of one answer."""
    module, name = TASKS[task].engine
    handler = getattr(importlib.import_module(module), name).__call__
    return typing.get_args(typing.get_type_hints(handler)["return"])[0]


def assert_close(found: Any, expected: Any) -> None:
    """Batches add up in another order than single forwards: numbers differ in their last digits."""
    if isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_close(found[key], value)
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_close(one, other)
    else:
        assert found == expected
