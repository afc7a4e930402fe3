"""Tasks that find in images what a client names, or what two of them share. This module does not know batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samovar_instance.engines.pipelines.base import Item, Pipeline, labels_of, number_of
from samovar_instance.engines.pipelines.images import ImageToSee, Viewer, threshold_of
from samovar_instance.engines.pipelines.media import image_of
from samovar_instance.engines.pipelines.types import Detection, Match

_MAX_LABELS = 100  # each is looked for in a forward of its own
_MAX_ROWS = 16
_MAX_FOUND = 1000
_OF_ONE_SIZE = frozenset({"owlvit", "owlv2"})


class ImageAndNames(ImageToSee, frozen=True, kw_only=True):
    """image: base64 of an image file. labels: what is looked for, 1 to 100 of them.

    threshold: lowest score that is told, 0 to 1. top_k: most that is told, best first.
    """

    labels: list[str]
    threshold: float = 0.1
    top_k: int = 100


class ZeroShotObjectDetector(Viewer):
    """An image to where in it are things that the client names."""

    task = "zero-shot-object-detection"
    pads = True

    def load(self, weights: Path, device: str) -> None:
        """Load it; models that see every image in one size (OWL) look for several things at once."""
        super().load(weights, device)
        self._may_pad = self._may_pad and self.pipe.model.config.model_type in _OF_ONE_SIZE

    def __call__(self, items: list[ImageAndNames]) -> list[list[Detection]]:
        """Return what was found in each image, best first."""
        return self.answers(items)

    def content(self, item: Any) -> Any:
        labels = labels_of(item, self.pipe.tokenizer, most=_MAX_LABELS)
        return {"image": super().content(item), "candidate_labels": labels}

    def num_rows(self, contents: list[Any]) -> int:
        return min(_MAX_ROWS, sum(len(content["candidate_labels"]) for content in contents))

    def parameters(self, item: ImageAndNames, content: Any) -> dict[str, Any]:
        return threshold_of(item) | {"top_k": number_of(item, "top_k", 1, _MAX_FOUND)}


class ImagesToMatch(Item, frozen=True, kw_only=True):
    """images: base64 of two image files. threshold: lowest score of a match that is told, 0 to 1."""

    images: tuple[bytes, bytes]
    threshold: float = 0.0


class KeypointMatcher(Pipeline):
    """Two images to the points of both that show the same."""

    task = "keypoint-matching"
    pads = False  # each pair has another number of points

    def __call__(self, items: list[ImagesToMatch]) -> list[list[Match]]:
        """Return the matches of each pair, best first."""
        return self.answers(items)

    def content(self, item: ImagesToMatch) -> Any:
        return [image_of(data, f"images[{index}]") for index, data in enumerate(item.images)]

    def parameters(self, item: ImagesToMatch, content: Any) -> dict[str, Any]:
        return threshold_of(item)
