"""Images and sound as clients send them."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import numpy as np
import pytest

from samovar.errors import InvalidInput
from samovar_instance.engines.pipelines import media
from support.tiny_tasks import RATE_HZ, bomb, png, wav

WAVE = [0.0, 0.5, -0.5, 0.25, -1.0]


def packed(width: int) -> bytes:
    """Return WAVE as the frames of a WAV file with numbers of this width, bytes."""
    if width == 1:
        return bytes(round(128 + 127 * value) for value in WAVE)
    full = 2 ** (8 * width - 1)
    return b"".join(struct.pack("<i", round(value * (full - 1)))[:width] for value in WAVE)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_of_every_width_are_the_same_sound(width: int) -> None:
    found = media.sound_of(wav(packed(width), width=width), None, RATE_HZ)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx(WAVE, abs=0.01 if width == 1 else 1e-4)


def test_channels_are_mixed() -> None:
    frames = b"".join(struct.pack("<hh", left, right) for left, right in [(16384, 0), (-16384, -16384)])
    assert media.sound_of(wav(frames, channels=2), None, RATE_HZ).tolist() == [0.25, -0.5]


def test_a_frame_that_was_cut_off_is_left_out() -> None:
    whole = wav(packed(2))
    assert len(media.sound_of(whole[:-1], None, RATE_HZ)) == len(WAVE) - 1


@pytest.mark.parametrize(("rate_hz", "wanted_hz"), [(44_100, 16_000), (8_000, 16_000), (48_000, 16_000)])
def test_a_tone_is_the_same_tone_at_another_rate(rate_hz: int, wanted_hz: int) -> None:
    def tone(at_hz: int) -> Any:
        return np.sin(2 * math.pi * 440 * np.arange(at_hz) / at_hz).astype(np.float32)

    found = media.resample(tone(rate_hz), rate_hz, wanted_hz)
    assert found.dtype == np.float32
    assert np.abs(found - tone(wanted_hz)).max() < 1e-3


def test_what_is_above_the_new_rate_is_gone() -> None:
    high = np.sin(2 * math.pi * 12_000 * np.arange(48_000) / 48_000)
    assert np.abs(media.resample(high, 48_000, 16_000)).max() < 1e-3


BAD_SOUND: list[tuple[bytes | list[float], int | None, str, str]] = [
    ([], None, "$.audio", "no sound at all"),
    (wav(b""), None, "$.audio", "no sound at all"),
    (b"", None, "$.audio", "ends too soon"),
    (b"RIFF\x04\x00\x00\x00WAVE", None, "$.audio", "no WAV file"),
    (b"ID3 is not a WAV file at all", None, "$.audio", "no WAV file"),
    ([0.1], 0, "$.sampling_rate", "from 1 to"),
    ([0.1], 10**9, "$.sampling_rate", "from 1 to"),
    ([0.1, math.nan], None, "$.audio", "no numbers"),
    ([0.1, 1e39], None, "$.audio", "no numbers"),
    (wav(bytes(9000), rate_hz=1), None, "$.audio", "4500 s of sound, at most 3600"),
]


@pytest.mark.parametrize(("audio", "rate_hz", "path", "detail"), BAD_SOUND)
def test_what_is_no_sound_is_said(audio: bytes | list[float], rate_hz: int | None, path: str, detail: str) -> None:
    with pytest.raises(InvalidInput, match=detail) as raised:
        media.sound_of(audio, rate_hz, RATE_HZ)
    assert raised.value.extra["path"] == path


def test_images_come_in_rgb() -> None:
    image = media.image_of(base64.b64decode(png(3, 2, (9, 8, 7))))
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (3, 2), (9, 8, 7))
    assert media.image_of(base64.b64decode(media.png_of(image))).size == (3, 2)


BAD_IMAGES = [
    (b"", "no image"),
    (b"no image", "no image"),
    (base64.b64decode(png(40, 40))[:60], "cannot be read"),
    (bomb(), "10000000000 pixels"),
    (base64.b64decode(png(8000, 7000)), "8000 x 7000 pixels, at most"),
]


@pytest.mark.parametrize(("data", "detail"), BAD_IMAGES)
def test_what_is_no_image_is_said(data: bytes, detail: str) -> None:
    with pytest.raises(InvalidInput, match=detail) as raised:
        media.image_of(data)
    assert raised.value.extra["path"] == "$.image"


def test_answers_become_plain() -> None:
    found = media.plain({"a": np.float32(0.5), "b": [np.int64(3), float("nan")], "c": np.ones((1, 2)), 4: (True, None)})
    assert found == {"a": 0.5, "b": [3, None], "c": [[1.0, 1.0]], "4": [True, None]}
