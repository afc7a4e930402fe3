"""Tasks that look at an image: the bytes of a file, base64 in JSON. This module does not know batches."""

from __future__ import annotations

from typing import Any

from samovar.errors import InvalidInput
from samovar_instance.engines.pipelines.base import Item, Pipeline, hypothesis_of, labels_of, top_of
from samovar_instance.engines.pipelines.media import image_of
from samovar_instance.engines.pipelines.types import Detection, Label, Mask, Picture


class ImageToClassify(Item, frozen=True, kw_only=True):
    """image: base64 of an image file. top_k: labels that are told, best first."""

    image: bytes
    top_k: int = 5


class ImageClassifier(Pipeline):
    """An image to labels with their scores."""

    task = "image-classification"

    def __call__(self, items: list[ImageToClassify]) -> list[list[Label]]:
        """Return the likeliest labels of each image."""
        return self.answers(items)

    def content(self, item: ImageToClassify) -> Any:
        return image_of(item.image)

    def parameters(self, item: ImageToClassify, content: Any) -> dict[str, Any]:
        return top_of(item)


class ImageToSee(Item, frozen=True, kw_only=True):
    """image: base64 of an image file."""

    image: bytes


class ImageFeatures(Pipeline):
    """An image to the model's last hidden state: a vector per patch."""

    task = "image-feature-extraction"

    def __call__(self, items: list[ImageToSee]) -> list[list[list[float]]]:
        """Return [patches, dimensions] per image."""
        return self.answers(items)

    def content(self, item: ImageToSee) -> Any:
        return image_of(item.image)

    def parameters(self, item: ImageToSee, content: Any) -> dict[str, Any]:
        return {}

    def answer(self, item: ImageToSee, found: Any) -> Any:
        return found[0]


class ImageToSearch(Item, frozen=True, kw_only=True):
    """image: base64 of an image file. threshold: lowest score that is told, 0 to 1."""

    image: bytes
    threshold: float = 0.5


class ObjectDetector(Pipeline):
    """An image to what is in it, and where."""

    task = "object-detection"
    pads = False  # images keep their proportions

    def __call__(self, items: list[ImageToSearch]) -> list[list[Detection]]:
        """Return what was found in each image."""
        return self.answers(items)

    def content(self, item: ImageToSearch) -> Any:
        return image_of(item.image)

    def parameters(self, item: ImageToSearch, content: Any) -> dict[str, Any]:
        return _threshold(item)


class ImageSegmenter(Pipeline):
    """An image to masks of what is in it."""

    task = "image-segmentation"
    pads = False

    def __call__(self, items: list[ImageToSearch]) -> list[list[Mask]]:
        """Return a mask per thing that was found in each image."""
        return self.answers(items)

    def content(self, item: ImageToSearch) -> Any:
        return image_of(item.image)

    def parameters(self, item: ImageToSearch, content: Any) -> dict[str, Any]:
        return _threshold(item)


def _threshold(item: ImageToSearch) -> dict[str, Any]:
    if not 0 <= item.threshold <= 1:
        raise InvalidInput("$.threshold: a number from 0 to 1", path="$.threshold")
    return {"threshold": item.threshold}


class DepthEstimator(Pipeline):
    """An image to the depth of each pixel."""

    task = "depth-estimation"
    pads = False

    def __call__(self, items: list[ImageToSee]) -> list[Picture]:
        """Return a grey picture per image."""
        return self.answers(items)

    def content(self, item: ImageToSee) -> Any:
        return image_of(item.image)

    def parameters(self, item: ImageToSee, content: Any) -> dict[str, Any]:
        return {}

    def answer(self, item: ImageToSee, found: Any) -> Any:
        return {"image": found["depth"]}


class ImageAndLabels(Item, frozen=True, kw_only=True):
    """image: base64 of an image file. hypothesis: the sentence that is compared, {} is the label."""

    image: bytes
    labels: list[str]
    hypothesis: str = "This is a photo of {}."


class ZeroShotImageClassifier(Pipeline):
    """An image to the scores of any labels, by a model that compares images and texts."""

    task = "zero-shot-image-classification"
    pads = False

    def __call__(self, items: list[ImageAndLabels]) -> list[list[Label]]:
        """Return all labels of each image, best first."""
        return self.answers(items)

    def content(self, item: ImageAndLabels) -> Any:
        return image_of(item.image)

    def parameters(self, item: ImageAndLabels, content: Any) -> dict[str, Any]:
        return {"candidate_labels": labels_of(item), "hypothesis_template": hypothesis_of(item)}
