"""Pipelines of transformers, changed where a service needs something else of them.

Importing this module imports transformers' pipelines. It does not know items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import VideoClassificationPipeline, ZeroShotAudioClassificationPipeline


class Watching(VideoClassificationPipeline):  # type: ignore[misc]
    """Takes frames, uint8 [frames, height, width, 3], in place of the name of a file."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # past the parent's own, which refuses to be where there is no decoder
        super(VideoClassificationPipeline, self).__init__(*args, **kwargs)

    def preprocess(self, video: np.ndarray[Any, Any], **_: Any) -> Any:
        """Return the model's input for the frames of one video."""
        if self.video_processor is None:
            inputs = self.image_processor(list(video), return_tensors="pt")
        else:
            inputs = self.video_processor(video, do_sample_frames=False, return_tensors="pt")
        return inputs.to(self.dtype)


class Hearing(ZeroShotAudioClassificationPipeline):  # type: ignore[misc]
    """Hears the same part of a sound that is too long, whenever it is sent and with whatever others."""

    def preprocess(self, audio: np.ndarray[Any, Any], **parameters: Any) -> Any:
        """Return the model's input for one sound and all labels."""
        state = np.random.get_state()
        np.random.seed(0)  # the feature extractor draws the part from numpy's own generator
        try:
            return super().preprocess(audio, **parameters)
        finally:
            np.random.set_state(state)
