"""Tasks that listen: to a WAV file, base64 in JSON, or to samples. This module does not know batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from samovar.errors import InvalidInput
from samovar_instance.engines.pipelines.base import Item, Pipeline, sentences_of, top_of
from samovar_instance.engines.pipelines.media import sound_of
from samovar_instance.engines.pipelines.types import Label, Transcript


class SoundToHear(Item, frozen=True, kw_only=True):
    """audio: base64 of a WAV file, or samples from -1 to 1. sampling_rate: of samples, Hz, None = the model's own."""

    audio: bytes | list[float]
    sampling_rate: int | None = None


class Listener(Pipeline):
    """A pipeline that is given a sound."""

    pads = False  # models without an attention mask hear the padding

    def content(self, item: SoundToHear) -> Any:
        rate_hz = self.pipe.feature_extractor.sampling_rate
        return {"raw": sound_of(item.audio, item.sampling_rate, rate_hz), "sampling_rate": rate_hz}


class SoundToClassify(SoundToHear, frozen=True, kw_only=True):
    """audio, sampling_rate: as for SoundToHear. top_k: labels that are told, best first."""

    top_k: int = 5


class AudioClassifier(Listener):
    """Sound to labels with their scores."""

    task = "audio-classification"

    def __call__(self, items: list[SoundToClassify]) -> list[list[Label]]:
        """Return the likeliest labels of each sound."""
        return self.answers(items)

    def parameters(self, item: SoundToClassify, content: Any) -> dict[str, Any]:
        return top_of(item)


class SoundAndLabels(SoundToHear, frozen=True, kw_only=True):
    """audio, sampling_rate: as for SoundToHear. hypothesis: the sentence that is compared, {} is the label."""

    labels: list[str]
    hypothesis: str = "This is a sound of {}."


class ZeroShotAudioClassifier(Listener):
    """Sound to the scores of any labels, by a model that compares sounds and texts."""

    task = "zero-shot-audio-classification"
    pads = True  # every sound is made as long as the model hears

    def __call__(self, items: list[SoundAndLabels]) -> list[list[Label]]:
        """Return all labels of each sound, best first."""
        return self.answers(items)

    def pipeline_class(self) -> Any:
        from samovar_instance.engines.pipelines.adapted import Hearing

        return Hearing

    def content(self, item: SoundToHear) -> Any:
        return super().content(item)["raw"]

    def parameters(self, item: SoundAndLabels, content: Any) -> dict[str, Any]:
        return sentences_of(item, self.pipe.tokenizer)


class Speech(SoundToHear, frozen=True, kw_only=True):
    """audio, sampling_rate: as for SoundToHear. timestamps: tell when; which ones a model knows is its own.

    language, translate: of models that know several languages: what is spoken, and whether it is told in English.
    """

    timestamps: Literal["segment", "word", "char"] | None = None
    language: str | None = None
    translate: bool = False


class SpeechRecognizer(Listener):
    """Speech to text."""

    task = "automatic-speech-recognition"
    pads = True

    def load(self, weights: Path, device: str) -> None:
        """Load it; models that hear a fixed time (Whisper) take several at once, others would hear the padding."""
        super().load(weights, device)
        self._is_whisper = self.pipe.type == "seq2seq_whisper"
        self._may_pad = self._may_pad and self._is_whisper

    def __call__(self, items: list[Speech]) -> list[Transcript]:
        """Return the text of each."""
        return self.answers(items)

    def parameters(self, item: Speech, content: Any) -> dict[str, Any]:
        if item.timestamps in (("char",) if self._is_whisper else ("segment",)):
            raise InvalidInput(f"$.timestamps: this model cannot tell a {item.timestamps}", path="$.timestamps")
        generate = {"language": self._language(item.language)} if item.language is not None else {}
        if item.translate:
            self._language("en")
            generate["task"] = "translate"
        wanted: dict[str, Any] = {"generate_kwargs": generate} if generate else {}
        # beyond what Whisper hears at once it finds its way by the times that it tells
        is_long = self._is_whisper and len(content["raw"]) > self.pipe.feature_extractor.n_samples
        if item.timestamps or is_long:
            wanted["return_timestamps"] = True if item.timestamps in ("segment", None) else item.timestamps
        return wanted

    def answer(self, item: Speech, found: Any) -> Any:
        return found if item.timestamps else {"text": found["text"]}

    def _language(self, name: str) -> str:
        """Return the code of a language that the model knows. Raises: InvalidInput."""
        known = getattr(self.pipe.model.generation_config, "lang_to_id", None) if self._is_whisper else None
        if not known:
            raise InvalidInput("$.language: this model knows one language", path="$.language")
        from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

        code: str = TO_LANGUAGE_CODE.get(name.lower(), name.lower())
        if f"<|{code}|>" not in known:
            raise InvalidInput(f"$.language: {name!r} is no language that this model knows", path="$.language")
        return code
