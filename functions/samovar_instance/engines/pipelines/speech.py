"""Text to sound: speech, or whatever a model makes of a text. This module does not know batches."""

from __future__ import annotations

import base64
import io
import wave
from typing import Any

from samovar.errors import InvalidInput
from samovar_instance.engines.pipelines.base import Item, Pipeline, number_of
from samovar_instance.engines.pipelines.media import invalid
from samovar_instance.engines.pipelines.types import Sound

MAX_TEXT_CHARS = 5000
MAX_SOUND_TOKENS = 10_000
_BYTES = 2  # 16 bits
_LOUDEST = 32767


class TextToSay(Item, frozen=True, kw_only=True):
    """text: what is said, or described. seed: the same text with it gives the same sound; None = a new one.

    speaker: of models with several voices, from 0. max_tokens: of models that make sound token by token, how much.
    """

    text: str
    seed: int | None = None
    speaker: int | None = None
    max_tokens: int | None = None


class TextToAudio(Pipeline):
    """A text to a WAV file."""

    task = "text-to-audio"

    def __call__(self, items: list[TextToSay]) -> list[Sound]:
        """Return the sound of each text."""
        return self.answers(items)

    def content(self, item: TextToSay) -> Any:
        text = item.text
        if not text.strip():
            raise invalid("text", "is empty")
        if len(text) > MAX_TEXT_CHARS:
            raise invalid("text", f"{len(text)} characters, at most {MAX_TEXT_CHARS} are taken: send it in pieces")
        tokenizer = self.pipe.tokenizer
        silent = {tokenizer.pad_token_id, tokenizer.unk_token_id, *tokenizer.all_special_ids}
        if not set(tokenizer(text)["input_ids"]) - silent:
            raise invalid("text", "has nothing in it that the model knows")
        return text, item.seed

    def parameters(self, item: TextToSay, content: Any) -> dict[str, Any]:
        wanted: dict[str, Any] = {}
        config = self.pipe.model.config
        if item.speaker is not None:
            number_of(item, "speaker", 0, getattr(config, "num_speakers", 1) - 1)
            wanted["forward_params"] = {"speaker_id": item.speaker}
        if item.max_tokens is not None:
            if not self.pipe.model.can_generate():
                raise InvalidInput("$.max_tokens: this model says the whole text", path="$.max_tokens")
            wanted["generate_kwargs"] = {"max_new_tokens": number_of(item, "max_tokens", 1, MAX_SOUND_TOKENS)}
        return wanted

    def answer(self, item: TextToSay, found: Any) -> Sound:
        rate_hz = int(found["sampling_rate"])
        return {"audio": base64.b64encode(wav_of(found["audio"], rate_hz)).decode(), "sampling_rate": rate_hz}

    def _run(self, contents: list[Any], parameters: dict[str, Any]) -> list[Any]:
        """Say one after the other: each has a chance of its own."""
        return [self._say(text, seed, parameters) for text, seed in contents]

    def _say(self, text: str, seed: int | None, parameters: dict[str, Any]) -> Any:
        import torch
        from transformers.pipelines.base import Pipeline as Base

        if seed is None:
            return Base.__call__(self.pipe, text, **parameters)
        device = self.pipe.model.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed % (1 << 63))
            return Base.__call__(self.pipe, text, **parameters)  # one, not a list, whose loader draws a number


def wav_of(samples: Any, rate_hz: int) -> bytes:
    """Return a WAV file of 16 bits. samples: float [samples] or [channels, samples], from -1 to 1."""
    import numpy as np

    channels = np.atleast_2d(samples)
    frames = np.nan_to_num(np.clip(channels, -1, 1)) * _LOUDEST
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(len(channels))
        out.setsampwidth(_BYTES)
        out.setframerate(rate_hz)
        out.writeframes(np.round(frames).astype("<i2").T.tobytes())
    return file.getvalue()
