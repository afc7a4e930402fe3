"""Tasks that look at an image: the bytes of a file, base64 in JSON. This module does not know batches."""

from __future__ import annotations

from typing import Any

from samovar_instance.engines.pipelines.base import Item, Pipeline, number_of, sentences_of, top_of
from samovar_instance.engines.pipelines.media import image_of
from samovar_instance.engines.pipelines.types import Detection, Label, Mask, Picture


class ImageToSee(Item, frozen=True, kw_only=True):
    """image: base64 of an image file."""

    image: bytes


class Viewer(Pipeline):
    """A pipeline that is given an image."""

    pads = False  # images keep their proportions

    def content(self, item: ImageToSee) -> Any:
        return image_of(item.image)


class ImageToClassify(ImageToSee, frozen=True, kw_only=True):
    """image: base64 of an image file. top_k: labels that are told, best first."""

    top_k: int = 5


class ImageClassifier(Viewer):
    """An image to labels with their scores."""

    task = "image-classification"
    pads = True

    def __call__(self, items: list[ImageToClassify]) -> list[list[Label]]:
        """Return the likeliest labels of each image."""
        return self.answers(items)

    def parameters(self, item: ImageToClassify, content: Any) -> dict[str, Any]:
        return top_of(item)


class ImageFeatures(Viewer):
    """An image to the model's last hidden state: a vector per patch."""

    task = "image-feature-extraction"
    pads = True

    def __call__(self, items: list[ImageToSee]) -> list[list[list[float]]]:
        """Return [patches, dimensions] per image."""
        return self.answers(items)

    def answer(self, item: ImageToSee, found: Any) -> Any:
        return found[0]


class ImageToSearch(ImageToSee, frozen=True, kw_only=True):
    """image: base64 of an image file. threshold: lowest score that is told, 0 to 1."""

    threshold: float = 0.5


class ObjectDetector(Viewer):
    """An image to what is in it, and where."""

    task = "object-detection"

    def __call__(self, items: list[ImageToSearch]) -> list[list[Detection]]:
        """Return what was found in each image."""
        return self.answers(items)

    def parameters(self, item: ImageToSearch, content: Any) -> dict[str, Any]:
        return threshold_of(item)


class ImageSegmenter(Viewer):
    """An image to masks of what is in it."""

    task = "image-segmentation"

    def __call__(self, items: list[ImageToSearch]) -> list[list[Mask]]:
        """Return a mask per thing that was found in each image."""
        return self.answers(items)

    def parameters(self, item: ImageToSearch, content: Any) -> dict[str, Any]:
        return threshold_of(item)


def threshold_of(item: Any) -> dict[str, Any]:
    """Return the lowest score that is told. Raises: InvalidInput."""
    return {"threshold": number_of(item, "threshold", 0, 1)}


class DepthEstimator(Viewer):
    """An image to the depth of each pixel."""

    task = "depth-estimation"

    def __call__(self, items: list[ImageToSee]) -> list[Picture]:
        """Return a grey picture per image."""
        return self.answers(items)

    def answer(self, item: ImageToSee, found: Any) -> Any:
        return {"image": found["depth"]}


class ImageAndLabels(ImageToSee, frozen=True, kw_only=True):
    """image: base64 of an image file. hypothesis: the sentence that is compared, {} is the label."""

    labels: list[str]
    hypothesis: str = "This is a photo of {}."


class ZeroShotImageClassifier(Viewer):
    """An image to the scores of any labels, by a model that compares images and texts."""

    task = "zero-shot-image-classification"

    def __call__(self, items: list[ImageAndLabels]) -> list[list[Label]]:
        """Return all labels of each image, best first."""
        return self.answers(items)

    def parameters(self, item: ImageAndLabels, content: Any) -> dict[str, Any]:
        return sentences_of(item, self.pipe.tokenizer)
