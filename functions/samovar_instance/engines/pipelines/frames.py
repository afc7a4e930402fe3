"""Frames of a video as clients send it: a file, or its frames as images.

A file is read by FFmpeg through the package av, from memory alone: formats that name other files or addresses, such as
playlists, are not among those that are read. What is wrong is said with its path. This module does not know models.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from samovar_instance.engines.pipelines.media import image_of, invalid

if TYPE_CHECKING:
    import numpy as np

MAX_FRAME_PIXELS = 8_847_360  # 4096 x 2160
MAX_SEEN_PIXELS = 150_000_000  # of the frames that a model looks at, together
MAX_DECODED_PIXELS = 2_000_000_000  # a few seconds of a core: 240 frames of 4096 x 2160, 960 of full HD
_FORMATS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,gif,mpegts,mpeg,mpegvideo,m4v,h264,hevc,flv,ogg,asf,ivf"
_FROM_MEMORY_ALONE = {"format_whitelist": _FORMATS, "protocol_whitelist": "none"}


def frames_of(video: bytes | list[bytes], indices: Sequence[int]) -> np.ndarray[Any, Any]:
    """Return uint8 [frames, height, width, 3]: the frames of a video that `indices` names.

    Args: video: a file, or a file of an image per frame. indices: from 0, ascending; one may be there twice.
    Raises: InvalidInput if it is no video, ends before, or its frames are too large or differ in size.
    """
    import numpy as np

    max_pixels = min(MAX_FRAME_PIXELS, MAX_SEEN_PIXELS // len(indices))
    found = _listed(video, indices, max_pixels) if isinstance(video, list) else _decoded(video, indices, max_pixels)
    if len({frame.shape for frame in found.values()}) > 1:
        raise invalid("video", "its frames differ in size")
    return np.stack([found[index] for index in indices])


def _listed(video: list[bytes], indices: Sequence[int], max_pixels: int) -> dict[int, Any]:
    """Return the frames by index, of a list of images; the others are not looked at."""
    import numpy as np

    _refuse_short(len(video), indices)
    return {index: np.asarray(image_of(video[index], f"video[{index}]", max_pixels)) for index in set(indices)}


def _decoded(data: bytes, indices: Sequence[int], max_pixels: int) -> dict[int, Any]:
    """Return the frames by index, of a file; nothing behind the last of them is decoded."""
    try:
        import av
    except ImportError:
        raise invalid(
            "video",
            'a file, and this function has no decoder: it needs requirements=["av"]; '
            "frames as a list of images need none",
        ) from None
    found: dict[int, Any] = {}
    num_frames = num_pixels = 0
    try:
        with av.open(io.BytesIO(data), options=_FROM_MEMORY_ALONE) as container:
            if not container.streams.video:
                raise invalid("video", "there are no pictures in it")
            stream = container.streams.video[0]
            _refuse_large(stream.codec_context, max_pixels)
            for frame in container.decode(stream):
                _refuse_large(frame, max_pixels)
                num_pixels += frame.width * frame.height
                if num_pixels > MAX_DECODED_PIXELS:
                    what = f"frame {indices[-1]} is looked at, too far into a video of {frame.width} x {frame.height}"
                    raise invalid("video", what)
                if num_frames in indices:
                    found[num_frames] = frame.to_ndarray(format="rgb24")
                num_frames += 1
                if num_frames > indices[-1]:
                    break
    except av.FFmpegError as error:
        raise invalid("video", f"a file that cannot be read: {error.strerror}") from None
    _refuse_short(num_frames, indices)
    return found


def _refuse_large(picture: Any, max_pixels: int) -> None:
    if picture.width * picture.height > max_pixels:
        what = f"frames of {picture.width} x {picture.height} pixels, at most {max_pixels} are taken"
        raise invalid("video", what)


def _refuse_short(num_frames: int, indices: Sequence[int]) -> None:
    if num_frames <= indices[-1]:
        what = f"{num_frames} frames, and the model looks at {len(indices)} of the first {indices[-1] + 1}"
        raise invalid("video", what)
