"""A pipeline of transformers from a local folder, its weights mapped rather than read.

This module does not know inputs, outputs or batches.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samovar.errors import DeployRefused

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "spiece.model")
_PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json")
_FIRST_POSITION = 2  # of models that count positions from behind the padding token


def load_pipeline(task: str, weights: Path, device: str) -> Any:
    """Return transformers' pipeline for `task` with the model in `weights`, on `device`.

    Raises: DeployRefused if this version of transformers has no such task, or the model is not made for it.
    """
    from transformers import AutoConfig, pipeline
    from transformers.pipelines import SUPPORTED_TASKS

    from samovar.torch import load_pretrained

    if task not in SUPPORTED_TASKS:
        raise DeployRefused(f"this version of transformers has no pipeline for {task}")
    config = AutoConfig.from_pretrained(weights, local_files_only=True)
    auto = _auto_class(SUPPORTED_TASKS[task]["pt"], config)
    if auto is None:
        raise DeployRefused(f"a model of the type {config.model_type} cannot do {task}")
    model = load_pretrained(weights, auto, device)
    return pipeline(task, model=model, device=device, **_processors(weights, config))


def _auto_class(choices: tuple[Any, ...], config: Any) -> Any:
    """Return the class that makes the model as it was saved, else the first that knows its type; None if none does."""
    able = [auto for auto in choices if type(config) in auto._model_mapping]
    saved = (config.architectures or [""])[0]
    made = {auto: _names(auto._model_mapping[type(config)]) for auto in able}
    return next((auto for auto in able if saved in made[auto]), able[0] if able else None)


def _names(classes: Any) -> list[str]:
    return [one.__name__ for one in (classes if isinstance(classes, tuple) else (classes,))]


def _processors(weights: Path, config: Any) -> dict[str, Any]:
    """Return tokenizer, image processor and feature extractor, those that the folder has."""
    from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer

    found: dict[str, Any] = {}
    if _has(weights, _TOKENIZER_FILES):
        found["tokenizer"] = AutoTokenizer.from_pretrained(weights, local_files_only=True)
        _limit(found["tokenizer"], config)
    if _has(weights, _PROCESSOR_FILES):
        for key, auto, sign in (
            ("image_processor", AutoImageProcessor, "image_processor_type"),
            ("feature_extractor", AutoFeatureExtractor, "feature_extractor_type"),
        ):
            if any(sign in (weights / name).read_text() for name in _PROCESSOR_FILES if (weights / name).is_file()):
                found[key] = auto.from_pretrained(weights, local_files_only=True)
    return found


def _has(weights: Path, names: tuple[str, ...]) -> bool:
    return any((weights / name).is_file() for name in names)


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
