"""Tasks that listen: to a WAV file, base64 in JSON, or to samples. This module does not know batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from samovar.errors import InvalidInput
from samovar_instance.engines.pipelines.base import Item, Pipeline, top_of
from samovar_instance.engines.pipelines.media import sound_of
from samovar_instance.engines.pipelines.types import Label, Transcript


class SoundToClassify(Item, frozen=True, kw_only=True):
    """audio: base64 of a WAV file, or samples from -1 to 1. sampling_rate: of samples, Hz, None = the model's own."""

    audio: bytes | list[float]
    sampling_rate: int | None = None
    top_k: int = 5


class AudioClassifier(Pipeline):
    """Sound to labels with their scores."""

    task = "audio-classification"
    pads = False  # models without an attention mask hear the padding

    def __call__(self, items: list[SoundToClassify]) -> list[list[Label]]:
        """Return the likeliest labels of each sound."""
        return self.answers(items)

    def content(self, item: SoundToClassify) -> Any:
        rate_hz = self.pipe.feature_extractor.sampling_rate
        return {"raw": sound_of(item.audio, item.sampling_rate, rate_hz), "sampling_rate": rate_hz}

    def parameters(self, item: SoundToClassify) -> dict[str, Any]:
        return top_of(item)


class Speech(Item, frozen=True, kw_only=True):
    """audio, sampling_rate: as for SoundToClassify. timestamps: tell when; which ones a model knows is its own.

    language, translate: of models that know several languages: what is spoken, and whether it is told in English.
    """

    audio: bytes | list[float]
    sampling_rate: int | None = None
    timestamps: Literal["segment", "word", "char"] | None = None
    language: str | None = None
    translate: bool = False


class SpeechRecognizer(Pipeline):
    """Speech to text."""

    task = "automatic-speech-recognition"

    def load(self, weights: Path, device: str) -> None:
        """Load it; models that hear a fixed time (Whisper) take several at once, others would hear the padding."""
        super().load(weights, device)
        self._may_pad = self.pipe.type == "seq2seq_whisper"

    def __call__(self, items: list[Speech]) -> list[Transcript]:
        """Return the text of each."""
        return self.answers(items)

    def content(self, item: Speech) -> Any:
        rate_hz = self.pipe.feature_extractor.sampling_rate
        return {"raw": sound_of(item.audio, item.sampling_rate, rate_hz), "sampling_rate": rate_hz}

    def parameters(self, item: Speech) -> dict[str, Any]:
        is_whisper = self.pipe.type == "seq2seq_whisper"
        wanted = {"language": item.language, "task": "translate" if item.translate else None}
        generate = {key: value for key, value in wanted.items() if value is not None}
        if generate and not is_whisper:
            raise InvalidInput("$.language: this model knows one language", path="$.language")
        if item.timestamps in (("char",) if is_whisper else ("segment",)):
            raise InvalidInput(f"$.timestamps: this model cannot tell a {item.timestamps}", path="$.timestamps")
        stamps = {"return_timestamps": item.timestamps if item.timestamps != "segment" else True}
        return (stamps if item.timestamps else {}) | ({"generate_kwargs": generate} if generate else {})
