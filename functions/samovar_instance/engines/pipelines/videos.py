"""Tasks that watch a video: a file, base64 in JSON, or a list of its frames. This module does not know batches."""

from __future__ import annotations

from typing import Any

from samovar_instance.engines.pipelines.base import Item, Pipeline, number_of, top_of
from samovar_instance.engines.pipelines.frames import frames_of
from samovar_instance.engines.pipelines.types import Label

_MAX_EVERY = 1000


class VideoToClassify(Item, frozen=True, kw_only=True):
    """video: base64 of a video file, or of an image file per frame. top_k: labels that are told, best first.

    frame_sampling_rate: how many frames of the video there are for one that the model looks at.
    """

    video: bytes | list[bytes]
    frame_sampling_rate: int = 1
    top_k: int = 5


class VideoClassifier(Pipeline):
    """A video to labels with their scores, by as many frames from its start as the model looks at."""

    task = "video-classification"

    def __call__(self, items: list[VideoToClassify]) -> list[list[Label]]:
        """Return the likeliest labels of each video."""
        return self.answers(items)

    def pipeline_class(self) -> Any:
        from samovar_instance.engines.pipelines.adapted import Watching

        return Watching

    def content(self, item: VideoToClassify) -> Any:
        every = number_of(item, "frame_sampling_rate", 1, _MAX_EVERY)
        return frames_of(item.video, indices_of(num_frames_of(self.pipe.model.config), every))

    def parameters(self, item: VideoToClassify, content: Any) -> dict[str, Any]:
        return top_of(item)


def num_frames_of(config: Any) -> int:
    """Return how many frames a model looks at."""
    found: int = getattr(config, "num_frames", None) or config.frames_per_clip
    return found


def indices_of(num_frames: int, every: int) -> list[int]:
    """Return which frames transformers takes: `num_frames` of the first `num_frames * every`, both ends among them."""
    import numpy as np

    found: list[int] = np.linspace(0, num_frames * every - 1, num=num_frames, dtype=np.int64).tolist()
    return found
