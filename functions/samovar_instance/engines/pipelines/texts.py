"""Tasks that read a text. This module does not know batches.

| a text longer than the model reads is | by tasks that
|---------------------------------------|------------------------------------------------------------------
| refused                               | answer something of each token or mask: what is cut off would lack
| judged by its beginning               | answer something of the whole, as transformers does it
"""

from __future__ import annotations

from typing import Any, Literal

from samovar.errors import InvalidInput
from samovar_instance.engines.pipelines.base import Item, Pipeline, sentences_of, text_of, top_of, whole_text_of
from samovar_instance.engines.pipelines.types import Entity, Filled, Label


class TextToClassify(Item, frozen=True, kw_only=True):
    """text_pair: of models that judge two texts. top_k: labels that are told, best first."""

    text: str
    text_pair: str | None = None
    top_k: int = 5


class TextClassifier(Pipeline):
    """A text to labels with their scores; what is longer than the model reads is cut off."""

    task = "text-classification"

    def __call__(self, items: list[TextToClassify]) -> list[list[Label]]:
        """Return the likeliest labels of each text."""
        return self.answers(items)

    def content(self, item: TextToClassify) -> Any:
        if item.text_pair is not None:
            return {"text": item.text, "text_pair": item.text_pair}
        return {"text": text_of(item, self.pipe.tokenizer)}

    def parameters(self, item: TextToClassify, content: Any) -> dict[str, Any]:
        return top_of(item) | {"truncation": True}


class TextToLabel(Item, frozen=True, kw_only=True):
    """aggregation: how tokens become words, as in transformers; "none" tells each token."""

    text: str
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"


class TokenClassifier(Pipeline):
    """A text to its words with labels, such as names of people and places."""

    task = "token-classification"

    def __call__(self, items: list[TextToLabel]) -> list[list[Entity]]:
        """Return what was found in each text, in order."""
        return self.answers(items)

    def content(self, item: TextToLabel) -> str:
        return whole_text_of(item, self.pipe.tokenizer)

    def parameters(self, item: TextToLabel, content: Any) -> dict[str, Any]:
        return {"aggregation_strategy": item.aggregation}

    def answer(self, item: TextToLabel, found: Any) -> list[dict[str, Any]]:
        return [
            {"label": one.get("entity_group", one.get("entity")), **{key: one[key] for key in _OF_ENTITY}}
            for one in found
        ]


_OF_ENTITY = ("score", "word", "start", "end")


class TextToFill(Item, frozen=True, kw_only=True):
    """text: with the model's own mask token in it. targets: only these words may be put there."""

    text: str
    top_k: int = 5
    targets: list[str] | None = None


class MaskFiller(Pipeline):
    """A text with masks to the likeliest words for each of them."""

    task = "fill-mask"

    def __call__(self, items: list[TextToFill]) -> list[list[list[Filled]]]:
        """Return, per text, a list for each mask: the likeliest words, best first."""
        return self.answers(items)

    def content(self, item: TextToFill) -> str:
        mask = self.pipe.tokenizer.mask_token
        if mask not in item.text:
            raise InvalidInput(f"$.text: has no mask; this model's is {mask}", path="$.text")
        return whole_text_of(item, self.pipe.tokenizer)

    def parameters(self, item: TextToFill, content: Any) -> dict[str, Any]:
        targets = {"targets": item.targets} if item.targets else {}
        return top_of(item) | targets

    def answer(self, item: TextToFill, found: Any) -> Any:
        return found if isinstance(found[0], list) else [found]


class TextToRead(Item, frozen=True, kw_only=True):
    text: str


class FeatureExtractor(Pipeline):
    """A text to the model's last hidden state: a vector per token."""

    task = "feature-extraction"
    pads = False  # what was padded would be in the answer

    def __call__(self, items: list[TextToRead]) -> list[list[list[float]]]:
        """Return [tokens, dimensions] per text."""
        return self.answers(items)

    def content(self, item: TextToRead) -> str:
        return whole_text_of(item, self.pipe.tokenizer)

    def answer(self, item: TextToRead, found: Any) -> Any:
        return found[0]


class TextAndLabels(Item, frozen=True, kw_only=True):
    """hypothesis: the sentence that is judged, {} is the label. multi_label: each label is judged by itself."""

    text: str
    labels: list[str]
    multi_label: bool = False
    hypothesis: str = "This example is {}."


class ZeroShotClassifier(Pipeline):
    """A text to the scores of any labels, by a model that judges whether a sentence follows from another."""

    task = "zero-shot-classification"

    def __call__(self, items: list[TextAndLabels]) -> list[list[Label]]:
        """Return all labels of each text, best first."""
        return self.answers(items)

    def content(self, item: TextAndLabels) -> str:
        return text_of(item, self.pipe.tokenizer)

    def parameters(self, item: TextAndLabels, content: Any) -> dict[str, Any]:
        return sentences_of(item, self.pipe.tokenizer) | {"multi_label": item.multi_label}

    def answer(self, item: TextAndLabels, found: Any) -> list[Label]:
        pairs = zip(found["labels"], found["scores"], strict=True)
        return [{"label": label, "score": score} for label, score in pairs]
