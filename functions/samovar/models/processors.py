"""What a model's folder says of how its input is prepared, in the files that transformers wrote over the years.

    preprocessor_config.json         one processor; of sounds, of images, or both in one
    video_preprocessor_config.json   of videos
    processor_config.json            newer: each in a field of its own

This module does not know transformers or tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

Kind = Literal["image_processor", "feature_extractor", "video_processor"]

_OF_IMAGES = frozenset({"image_processor_type", "image_mean", "do_resize"})
_KINDS: tuple[Kind, ...] = ("image_processor", "feature_extractor", "video_processor")


def processors_of(read: Callable[[str], Mapping[str, Any]]) -> frozenset[Kind]:
    """Return which processors a folder has; a feature extractor is of sounds.

    Args: read: gives a JSON file of the folder, {} if it is not there.
    """
    one, each = read("preprocessor_config.json"), read("processor_config.json")
    found: set[Kind] = {kind for kind in _KINDS if isinstance(each.get(kind), Mapping)}
    of_images = bool(_OF_IMAGES & one.keys())
    if of_images:
        found.add("image_processor")
    # image processors, too, were feature extractors once, and keep that name beside the new one
    if "sampling_rate" in one or ("feature_extractor_type" in one and not of_images):
        found.add("feature_extractor")
    if read("video_preprocessor_config.json"):
        found.add("video_processor")
    return frozenset(found)
