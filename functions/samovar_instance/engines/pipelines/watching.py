"""The pipeline of transformers that classifies videos, given frames: its own asks for a decoder and a file or address.

Importing this module imports transformers' pipelines. It does not know items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import VideoClassificationPipeline


class Watching(VideoClassificationPipeline):  # type: ignore[misc]
    """What it is made from, but for frames, uint8 [frames, height, width, 3], in place of a file's name."""

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
