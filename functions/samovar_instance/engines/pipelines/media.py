"""Images and sound as clients send them, and what models make of them as JSON has it.

An image is a file's bytes (base64 in JSON), whatever Pillow reads. Sound is a WAV file's bytes, or numbers with their
rate. What is wrong with one is said with its path. This module does not know models.
"""

from __future__ import annotations

import base64
import io
import math
import wave
from typing import TYPE_CHECKING, Any

from samovar.errors import InvalidInput
from samovar.schema import to_plain

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

MAX_PIXELS = 50_000_000  # a bomb of a few kilobytes unpacks to any size: looked at before it is
MAX_RATE_HZ = 384_000
MAX_SOUND_S = 3600  # a file of a few megabytes that claims a rate of 1 Hz would be resampled to terabytes


def image_of(data: bytes, field: str = "image", max_pixels: int = MAX_PIXELS) -> Image:
    """Return the picture, upright and in RGB.

    Args: field: where it was sent, such as "images[0]". max_pixels: its width times its height.
    Raises: InvalidInput if it is none, or larger.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > max_pixels:
                raise invalid(field, f"{image.width} x {image.height} pixels, at most {max_pixels} are taken")
            upright: Image.Image = ImageOps.exif_transpose(image).convert("RGB")
            return upright
    except UnidentifiedImageError:
        raise invalid(field, "no image in a known format") from None
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise invalid(field, f"an image that cannot be read: {error}") from None


def sound_of(audio: bytes | list[float], rate_hz: int | None, wanted_hz: int) -> np.ndarray[Any, Any]:
    """Return float32 [samples] at `wanted_hz`, one channel.

    Args:
        audio: a WAV file, or samples from -1 to 1. rate_hz: of samples, None = `wanted_hz`; a WAV file has its own.
    Raises: InvalidInput.
    """
    import numpy as np

    if isinstance(audio, bytes):
        samples, rate_hz = _wav(audio)
    else:
        with np.errstate(over="ignore"):  # what is too large is found below
            samples = np.asarray(audio, np.float32)
    if not samples.size:
        raise invalid("audio", "no sound at all")
    if not np.isfinite(samples).all():
        raise invalid("audio", "samples that are no numbers, or too large for one")
    rate_hz = wanted_hz if rate_hz is None else rate_hz
    if not 1 <= rate_hz <= MAX_RATE_HZ:
        raise invalid("sampling_rate", f"{rate_hz} Hz, and it is from 1 to {MAX_RATE_HZ}")
    if len(samples) > MAX_SOUND_S * rate_hz:
        raise invalid("audio", f"{len(samples) / rate_hz:.0f} s of sound, at most {MAX_SOUND_S} are taken")
    return samples if rate_hz == wanted_hz else resample(samples, rate_hz, wanted_hz)


def resample(samples: np.ndarray[Any, Any], rate_hz: int, wanted_hz: int) -> np.ndarray[Any, Any]:
    """Return float32 [round(samples * wanted / rate)]: the same sound up to half the lower rate, nothing above it.

    Source: the spectrum of the whole, cut or filled with zeros.
    """
    import numpy as np

    count = max(1, round(len(samples) * wanted_hz / rate_hz))
    spectrum = np.fft.rfft(samples)
    cut = np.zeros(count // 2 + 1, spectrum.dtype)
    kept = min(len(cut), len(spectrum))
    cut[:kept] = spectrum[:kept]
    made: np.ndarray[Any, Any] = np.fft.irfft(cut, count) * (count / len(samples))
    return made.astype(np.float32)


def _wav(data: bytes) -> tuple[np.ndarray[Any, Any], int]:
    """Return the samples of a WAV file, its channels mixed, and their rate."""
    import numpy as np

    try:
        with wave.open(io.BytesIO(data)) as file:
            width, channels, rate_hz = file.getsampwidth(), file.getnchannels(), file.getframerate()
            frames = file.readframes(file.getnframes())
    except (wave.Error, EOFError, ValueError, RuntimeError) as error:
        raise invalid("audio", f"no WAV file of whole numbers (PCM): {str(error) or 'it ends too soon'}") from None
    raw = np.frombuffer(frames[: len(frames) // (width * channels) * width * channels], np.uint8).reshape(-1, width)
    if width == 1:
        numbers = raw[:, 0].astype(np.float32) - 128
    else:
        # the top bytes of 32-bit numbers, so that 16, 24 and 32 bits are one case
        padded = np.zeros((len(raw), 4), np.uint8)
        padded[:, 4 - width :] = raw
        numbers = (padded.view("<i4")[:, 0] / 2 ** (32 - 8 * width)).astype(np.float32)
    return numbers.reshape(-1, channels).mean(1) / 2 ** (8 * width - 1), rate_hz


def plain(value: Any) -> Any:
    """Return what a pipeline answered as JSON has it: arrays as lists, pictures as base64 of PNG, NaN as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "save") and hasattr(value, "getbands"):
        return png_of(value)
    return plain(to_plain(value))


def png_of(image: Image) -> str:
    """Return a picture as base64 of a PNG file."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def invalid(field: str, what: str) -> InvalidInput:
    """Return the error for what is wrong with a field of an item."""
    return InvalidInput(f"$.{field}: {what}", path=f"$.{field}")
