"""A pipeline of transformers from a local folder, its weights mapped rather than read.

This module does not know inputs, outputs or batches.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from samovar.errors import DeployRefused
from samovar.models.processors import processors_of

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")
_WATCH = frozenset({"video-classification"})
_PROCESSED = frozenset({"text-to-audio"})  # some of their models know voices by their processor alone
# Donut: the pipeline knows it, the classes that transformers names for the task do not
_MORE_CLASSES = {"document-question-answering": ("AutoModelForImageTextToText",)}
_LACKS = re.compile(
    r"requires the (?P<a>\S+) library but|Missing optional dependencies: (?P<b>\w+)|"
    r"requires `(?P<c>\w+)` to be installed|Package `(?P<d>\w+)` is required"
)
_ADD = 'add requirements=["{}"] to its @sv.function (`samovar deploy --model … --eject DIR` writes the file)'
# parts of the names of weights that models are saved without: used in training alone, or ahead of what is asked for
_UNUSED = ("masked_spec_embed", "num_batches_tracked", "position_ids")
_UNUSED_HEADS = ("pooler.", "vision_model.head.", "post_layernorm.")
_FIRST_POSITION = 2  # of models that count positions from behind the padding token


def load_pipeline(task: str, weights: Path, device: str, pipeline_class: Any = None) -> Any:
    """Return transformers' pipeline for `task` with the model in `weights`, on `device`.

    Args: pipeline_class: in place of the one that transformers has for the task.
    Raises: DeployRefused if this version of transformers has no such task, the model is not made for it, weights are
        missing, or it needs a package that is not there.
    """
    import transformers
    from transformers import AutoConfig, pipeline
    from transformers.pipelines import SUPPORTED_TASKS

    from samovar.torch import load_pretrained

    if task not in SUPPORTED_TASKS:
        raise DeployRefused(f"this version of transformers has no pipeline for {task}")
    config = AutoConfig.from_pretrained(weights, local_files_only=True)
    more = [getattr(transformers, name) for name in _MORE_CLASSES.get(task, ())]
    auto = _auto_class((*SUPPORTED_TASKS[task]["pt"], *more), config)
    if auto is None:
        raise DeployRefused(f"a model of the type {config.model_type} cannot do {task}")
    try:
        model = load_pretrained(weights, auto, device, may_lack=may_lack(task))
        processors = _processors(weights, config, watches=task in _WATCH)
        if task in _PROCESSED and (weights / "processor_config.json").is_file():
            processors["processor"] = transformers.AutoProcessor.from_pretrained(weights, local_files_only=True)
        return pipeline(task, model=model, device=device, pipeline_class=pipeline_class, **processors)
    except (ImportError, ValueError) as error:
        if package := missing_package(str(error)):
            raise DeployRefused(lacking(task, package)) from error
        raise


def may_lack(task: str) -> tuple[str, ...]:
    """Return parts of the names of weights that a model for `task` does not need: what classifies uses its pooler."""
    return _UNUSED if task.endswith("classification") else _UNUSED + _UNUSED_HEADS


def lacking(task: str, package: str) -> str:
    """Return that a package is missing, and what to do."""
    return f"{task} with this model needs the package {package}: {_ADD.format(package)}"


def missing_package(message: str) -> str:
    """Return the package that transformers says it lacks, "" if it says something else."""
    found = _LACKS.search(message)
    return next(filter(None, found.groups())).lower() if found else ""


def _auto_class(choices: tuple[Any, ...], config: Any) -> Any:
    """Return the class that makes the model as it was saved, else the first that knows its type; None if none does."""
    able = [auto for auto in choices if type(config) in auto._model_mapping]
    saved = (config.architectures or [""])[0]
    made = {auto: _names(auto._model_mapping[type(config)]) for auto in able}
    return next((auto for auto in able if saved in made[auto]), able[0] if able else None)


def _names(classes: Any) -> list[str]:
    return [one.__name__ for one in (classes if isinstance(classes, tuple) else (classes,))]


def _processors(weights: Path, config: Any, *, watches: bool) -> dict[str, Any]:
    """Return tokenizer, image processor and feature extractor, those that the folder has.

    Args: watches: also what prepares videos; where that lacks torchvision, and images can be prepared, it is left out.
    """
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, AutoVideoProcessor
    from transformers.utils import is_torchvision_available

    found: dict[str, Any] = {}
    if any((weights / name).is_file() for name in _TOKENIZER_FILES):
        found["tokenizer"] = AutoTokenizer.from_pretrained(weights, local_files_only=True)
        _limit(found["tokenizer"], config)
    kinds = processors_of(lambda name: json.loads((weights / name).read_bytes()) if (weights / name).is_file() else {})
    watches = watches and (is_torchvision_available() or "image_processor" not in kinds)
    for kind, auto in (
        ("image_processor", AutoImageProcessor),
        ("feature_extractor", AutoFeatureExtractor),
        ("video_processor", AutoVideoProcessor if watches else None),
    ):
        if kind in kinds and auto is not None:
            found[kind] = auto.from_pretrained(weights, local_files_only=True)
    return found


def _limit(tokenizer: Any, config: Any) -> None:
    """Have texts cut to the positions that the model has, where the tokenizer does not say a limit of its own."""
    texts = config.get_text_config()  # of models that see or hear, too, a part of it
    if positions := usable_positions(getattr(texts, "max_position_embeddings", None)):
        tokenizer.model_max_length = min(tokenizer.model_max_length, positions)


def usable_positions(positions: Any) -> int | None:
    """Return how many tokens fit a model of so many positions; None if it does not say.

    Models after RoBERTa have two more than they can use: 514 for 512 tokens.
    """
    if not isinstance(positions, int) or positions < 1:
        return None
    return positions - _FIRST_POSITION if positions % 64 == _FIRST_POSITION else positions
