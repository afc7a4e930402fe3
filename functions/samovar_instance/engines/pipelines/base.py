"""A pipeline of transformers as a batch handler, whatever its task.

Items that ask for different things (`top_k`, `labels`) run one group after the other. An item that is wrong is an error
of its own; when the pipeline itself raises, the platform runs the members of the batch one by one.
This module does not know how batches are filled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec

from samovar.errors import InvalidInput, RequestError
from samovar_instance.engines.pipelines.media import invalid, plain

MAX_TEXT_CHARS = 100_000  # of one field: to tokenize these takes 0.2 s, in which nobody else of the batch is served
_MAX_TOP_K = 1000
_MAX_LABELS = 1000


class Item(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What clients send; each task adds its fields."""


class Pipeline(ABC):
    """A pipeline of transformers as a batch handler. Subclasses name the task and say how an item becomes a call of it.

    pads: items of different sizes may share a forward, and come to the same as alone.
    """

    task: ClassVar[str]
    pads: ClassVar[bool] = True

    def load(self, weights: Path, device: str) -> None:
        """Load model and processors of the task from `weights`."""
        from samovar_instance.engines.pipelines.loading import load_pipeline

        self.pipe = load_pipeline(self.task, weights, device, self.pipeline_class())
        tokenizer = self.pipe.tokenizer
        self._may_pad = self.pads and (tokenizer is None or tokenizer.pad_token_id is not None)

    def pipeline_class(self) -> Any:
        """Return the class of transformers' pipeline, None = the one it has for the task."""
        return None

    @abstractmethod
    def content(self, item: Any) -> Any:
        """Return what the pipeline is given for one item. Raises: RequestError."""

    def parameters(self, item: Any, content: Any) -> dict[str, Any]:
        """Return what the pipeline is asked for beside `content`, alike for all of a forward. Raises: RequestError."""
        return {}

    def num_rows(self, contents: list[Any]) -> int:
        """Return how many rows of the pipeline's own go through a forward together."""
        return len(contents)

    def answer(self, item: Any, found: Any) -> Any:
        """Return the answer to one item, given what the pipeline found."""
        return found

    def answers(self, items: Sequence[Any]) -> list[Any]:
        """Return an answer or a RequestError per item, in order."""
        answers: list[Any] = [None] * len(items)
        groups: dict[str, list[tuple[int, Any]]] = {}
        parameters: dict[str, dict[str, Any]] = {}
        for index, item in enumerate(items):
            try:
                _require_bounds(item)
                content = self.content(item)
                wanted = self.parameters(item, content)
            except RequestError as error:
                answers[index] = error
                continue
            key = repr(wanted)
            parameters[key] = wanted
            groups.setdefault(key, []).append((index, content))
        for key, members in groups.items():
            for (index, _), found in zip(members, self._run([one for _, one in members], parameters[key]), strict=True):
                answers[index] = plain(self.answer(items[index], found))
        return answers

    def _run(self, contents: list[Any], parameters: dict[str, Any]) -> list[Any]:
        from transformers.pipelines.base import Pipeline as Base

        size = self.num_rows(contents) if self._may_pad else 1
        # past the __call__ of single pipelines: each has its own idea of what a list of one item comes to
        found: list[Any] = Base.__call__(self.pipe, contents, batch_size=size, **parameters)
        return found


def _require_bounds(item: Any) -> None:
    """Return if no field has more text than one item may. Raises: InvalidInput."""
    for name in item.__struct_fields__:
        value = getattr(item, name)
        texts = value if isinstance(value, list) and value and isinstance(value[0], str) else [value]
        num_chars = sum(len(text) for text in texts if isinstance(text, str))
        if num_chars > MAX_TEXT_CHARS:
            raise invalid(name, f"{num_chars} characters, at most {MAX_TEXT_CHARS} are taken: send it in pieces")


def text_of(item: Any, tokenizer: Any) -> str:
    """Return the item's text. Raises: InvalidInput if nothing of it is left for the model."""
    text: str = item.text
    if not text.strip() and not tokenizer(text)["input_ids"]:
        raise InvalidInput("$.text: is empty", path="$.text")
    return text


def whole_text_of(item: Any, tokenizer: Any) -> str:
    """Return the item's text, all of which the model reads: for tasks that answer something of each token.

    Raises: InvalidInput if nothing of it is left for the model, or it is longer than the model reads.
    """
    text = text_of(item, tokenizer)
    num_tokens, limit = len(tokenizer(text, verbose=False)["input_ids"]), tokenizer.model_max_length
    if num_tokens > limit:
        told = f"$.text: {num_tokens} tokens, and the model reads {limit}: send it in pieces"
        raise InvalidInput(told, path="$.text")
    return text


def top_of(item: Any) -> dict[str, Any]:
    """Return how many labels are wanted. Raises: InvalidInput."""
    return {"top_k": number_of(item, "top_k", 1, _MAX_TOP_K)}


def number_of(item: Any, name: str, low: float, high: float) -> Any:
    """Return a number of the item's. Raises: InvalidInput if it is not within the bounds."""
    value = getattr(item, name)
    if not low <= value <= high:
        raise InvalidInput(f"$.{name}: a number from {low} to {high}", path=f"$.{name}")
    return value


def labels_of(item: Any, tokenizer: Any, *, hypothesis: str = "{}", most: int = _MAX_LABELS) -> list[str]:
    """Return the labels to choose from.

    Args: hypothesis: the sentence that each is put into. most: of them.
    Raises: InvalidInput if there are none or too many, or one is empty or longer than the model reads.
    """
    labels: list[str] = item.labels
    if not labels or not all(label.strip() for label in labels):
        raise InvalidInput("$.labels: at least one label, and none that is empty", path="$.labels")
    if len(labels) > most:
        raise InvalidInput(f"$.labels: {len(labels)} labels, at most {most} are taken", path="$.labels")
    for index, label in enumerate(labels):
        num_tokens = len(tokenizer(hypothesis.format(label))["input_ids"])
        if num_tokens > tokenizer.model_max_length:
            path = f"$.labels[{index}]"
            limit = tokenizer.model_max_length
            raise InvalidInput(f"{path}: {num_tokens} tokens, and the model reads {limit}", path=path)
    return labels


def hypothesis_of(item: Any) -> str:
    """Return the sentence that a label is put into. Raises: InvalidInput if it has no place for one, or several."""
    hypothesis: str = item.hypothesis
    before, place, after = hypothesis.partition("{}")
    if not place or set("{}") & set(before + after):
        raise InvalidInput(
            "$.hypothesis: has {} once, where the label belongs, and no other brace", path="$.hypothesis"
        )
    return hypothesis


def sentences_of(item: Any, tokenizer: Any) -> dict[str, Any]:
    """Return labels, and the sentence that each is put into, as pipelines take them. Raises: InvalidInput."""
    hypothesis = hypothesis_of(item)
    labels = labels_of(item, tokenizer, hypothesis=hypothesis)
    return {"candidate_labels": labels, "hypothesis_template": hypothesis}
