"""Everything in an image, cut out: models that are asked for a mask at each point of a grid (SAM).

Masks stay run lengths until they are told: a photo has hundreds of them, each as large as itself.
This module does not know batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from samovar_instance.engines.pipelines.base import number_of
from samovar_instance.engines.pipelines.images import ImageToSee, Viewer
from samovar_instance.engines.pipelines.media import image_of
from samovar_instance.engines.pipelines.types import Region, RunLengths

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

_MAX_PIXELS = 16_777_216  # three masks of that size are made for each point
_MAX_POINTS_PER_SIDE = 64
_MAX_MASKS = 1000
_MASKS_PER_POINT = 3
_MAX_POINTS_AT_ONCE = 64
_VALUES_AT_ONCE = 2**28  # of the masks of one forward, 1 GiB of fp32


class ImageToCut(ImageToSee, frozen=True, kw_only=True):
    """image: base64 of an image file. points_per_side: of the grid, 1 to 64. top_k: most that is told, best first.

    pred_iou_thresh, stability_score_thresh: lowest that the model thinks of a mask, and lowest share of it that stays
    at a stricter cut, 0 to 1. form: of masks, base64 of a PNG or run lengths as COCO has them.
    """

    points_per_side: int = 32
    pred_iou_thresh: float = 0.88
    stability_score_thresh: float = 0.95
    top_k: int = 100
    form: Literal["png", "rle"] = "png"


class MaskGenerator(Viewer):
    """An image to a mask of each thing in it, without saying what it is."""

    task = "mask-generation"

    def load(self, weights: Path, device: str) -> None:
        """Load it, with a choice among masks that needs no package beyond torch and leaves them run lengths."""
        super().load(weights, device)
        self.pipe.image_processor.post_process_for_mask_generation = best_masks

    def __call__(self, items: list[ImageToCut]) -> list[list[Region]]:
        """Return the masks of each image, best first."""
        return self.answers(items)

    def content(self, item: Any) -> Any:
        number_of(item, "top_k", 1, _MAX_MASKS)
        return image_of(item.image, max_pixels=_MAX_PIXELS)

    def parameters(self, item: ImageToCut, content: Image) -> dict[str, Any]:
        at_once = _VALUES_AT_ONCE // (_MASKS_PER_POINT * content.width * content.height)
        return {
            "points_per_crop": number_of(item, "points_per_side", 1, _MAX_POINTS_PER_SIDE),
            "points_per_batch": max(1, min(_MAX_POINTS_AT_ONCE, at_once)),
            "pred_iou_thresh": number_of(item, "pred_iou_thresh", 0, 1),
            "stability_score_thresh": number_of(item, "stability_score_thresh", 0, 1),
            "output_rle_mask": True,
            "output_bboxes_mask": True,
        }

    def answer(self, item: ImageToCut, found: Any) -> list[Any]:
        boxes = found["bounding_boxes"].int().tolist()
        told = list(zip(found["rle_mask"], found["scores"].tolist(), boxes, strict=True))[: item.top_k]
        return [
            {
                "mask": picture_of(runs) if item.form == "png" else runs,
                "score": score,
                "box": dict(zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)),
            }
            for runs, score, box in told
        ]


def best_masks(
    masks: list[RunLengths], scores: torch.Tensor, boxes: torch.Tensor, most_overlap: float
) -> tuple[list[Any], torch.Tensor, list[RunLengths], torch.Tensor]:
    """Return what an image processor's post_process_for_mask_generation does, but for the first: no masks unpacked.

    Args: scores: [masks]. boxes: [masks, 4], left, top, right and bottom. most_overlap: 0 to 1.
    Returns: nothing, and of the masks kept scores, run lengths and boxes, best first.
    """
    kept = suppressed(boxes.float(), scores, most_overlap)
    return [], scores[kept], [masks[index] for index in kept], boxes[kept]


def suppressed(boxes: torch.Tensor, scores: torch.Tensor, most_overlap: float) -> list[int]:
    """Return which boxes stay, best first, if a box goes that overlaps with a better one.

    Args: boxes: [boxes, 4], left, top, right and bottom. scores: [boxes]. most_overlap: shared area / that of both.
    Source: greedy non-maximum suppression, as in torchvision.ops.nms.
    """
    import torch

    left_top, right_bottom = boxes[:, :2], boxes[:, 2:]
    areas = (right_bottom - left_top).prod(1)
    kept: list[int] = []
    waiting = scores.argsort(descending=True, stable=True)
    while len(waiting):
        best, others = waiting[0], waiting[1:]
        kept.append(int(best))
        sides = torch.minimum(right_bottom[best], right_bottom[others]) - torch.maximum(
            left_top[best], left_top[others]
        )
        shared = sides.clamp(min=0).prod(1)
        # a box without area shares nothing with another: 0 / 0 is no reason to go
        overlap = (shared / (areas[best] + areas[others] - shared)).nan_to_num(0)
        waiting = others[overlap <= most_overlap]
    return kept


def picture_of(runs: Mapping[str, Any]) -> Image:
    """Return a mask as a picture, white where it is.

    Args: runs: "size", [height, width], and "counts": how many pixels are not, then are, then are not of it, … down
        the columns from the left.
    """
    import numpy as np
    from PIL import Image

    height, width = runs["size"]
    colours = np.zeros(len(runs["counts"]), np.uint8)
    colours[1::2] = 255
    columns = np.repeat(colours, runs["counts"]).reshape(width, height)
    return Image.fromarray(np.ascontiguousarray(columns.T))
