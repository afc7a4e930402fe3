"""The processor of a model's folder: what makes its inputs of texts, images and sounds.

Many models see images and videos; what prepares videos needs torchvision, and conversations have none: where only that
is missing, the processor is made without it. Leans on internals of transformers 5: when they have moved, torchvision is
asked for. This module does not know models or requests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from samovar.errors import DeployRefused
from samovar_instance.engines.pipelines.loading import lacking, missing_package

_NAMING = ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def load_processor(weights: Path, task: str) -> Any:
    """Return the model's processor, with a tokenizer. Raises: DeployRefused naming what is missing."""
    from transformers import AutoProcessor

    try:
        processor = AutoProcessor.from_pretrained(weights, local_files_only=True)
    except (ImportError, ValueError) as error:
        package = missing_package(str(error))
        processor = _without_videos(weights) if package == "torchvision" else None
        if processor is None and package:
            raise DeployRefused(lacking(task, package)) from error
        if processor is None:
            raise
    if getattr(processor, "tokenizer", None) is None:
        raise DeployRefused(f"{task}: the folder has no processor of texts with images: processor_config.json lacks")
    return processor


def _without_videos(weights: Path) -> Any | None:
    """Return the processor without its part for videos, None if it lacks something else."""
    import transformers

    read = (json.loads((weights / name).read_bytes()) for name in _NAMING if (weights / name).is_file())
    name = next((found["processor_class"] for found in read if "processor_class" in found), "")
    try:
        kind: Any = getattr(transformers, name)
        attributes = [attribute for attribute in kind.get_attributes() if attribute != "video_processor"]
        blind: Any = type(kind.__name__, (kind,), {"get_attributes": classmethod(lambda cls: attributes)})
        return blind.from_pretrained(weights, local_files_only=True)
    except Exception:  # noqa: BLE001 (whatever it wants beside, the first error names what to add)
        return None
