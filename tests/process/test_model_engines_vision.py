"""Models without code that find, cut out, match, watch and listen: answers beside transformers' own, and bad input."""

from __future__ import annotations

import base64
import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from samovar.errors import DeployRefused, InvalidInput
from samovar.models.choosing import ALIASES, choose
from samovar.models.folder import read_model_folder
from samovar.models.tasks import TASKS
from samovar_instance.engines.pipelines import frames
from samovar_instance.engines.pipelines.loading import missing_package
from samovar_instance.engines.pipelines.masks import ImageToCut, picture_of, suppressed
from samovar_instance.engines.pipelines.media import image_of, plain
from samovar_instance.engines.pipelines.sounds import SoundAndLabels
from samovar_instance.engines.pipelines.videos import VideoClassifier
from support.tiny_engines import assert_close, items_of, loaded, pipeline_of
from support.tiny_tasks import NUM_FRAMES, bomb, film, noise, png, tiny_task, wav

pytestmark = pytest.mark.process

SOUND = [((index * 37) % 200 - 100) / 128 for index in range(3200)]
LABELS = ["tea", "the old man", "milk"]


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


PICTURES = [noise(40, 30, seed) for seed in range(12)]
FRAMES = [text(picture) for picture in PICTURES]


FILM = text(film(PICTURES))
CASES: dict[str, list[dict[str, Any]]] = {
    "zero-shot-object-detection": [
        {"image": text(noise(80, 60, 1)), "labels": LABELS, "threshold": 0.0, "top_k": 7},
        {"image": text(noise(40, 90, 2)), "labels": ["tea"], "threshold": 0.0, "top_k": 7},
        {"image": text(noise(40, 90, 3)), "labels": ["tea"], "threshold": 1.0},
    ],
    "mask-generation": [
        {"image": text(noise(80, 60, seed)), "points_per_side": side, "stability_score_thresh": 0.3, "form": "rle"}
        for seed, side in ((1, 4), (2, 9))
    ],
    "keypoint-matching": [
        {"images": [text(noise(80, 60, 1)), text(noise(60, 60, 1))]},
        {"images": [text(noise(64, 48, 1)), text(noise(64, 48, 2))], "threshold": 0.001},
    ],
    "video-classification": [
        {"video": FILM},
        {"video": FILM, "frame_sampling_rate": 3, "top_k": 2},
        {"video": FILM, "frame_sampling_rate": 2},
    ],
    "zero-shot-audio-classification": [
        {"audio": SOUND, "labels": LABELS},
        {"audio": SOUND[:800], "labels": ["tea", "milk"], "hypothesis": "I hear {}!"},
        {"audio": SOUND[:1600], "labels": LABELS},
    ],
}


def transformers_answer(task: str, body: dict[str, Any], folder: Path) -> Any:
    """Return what transformers' own pipeline says."""
    pipe = pipeline_of(task)
    match task:
        case "zero-shot-object-detection":
            more = {key: body[key] for key in ("threshold", "top_k") if key in body}
            return pipe(opened(body["image"]), candidate_labels=body["labels"], **more)
        case "mask-generation":
            # its own needs torchvision
            pipe.image_processor.post_process_for_mask_generation = suppress_slowly
            wanted = {"points_per_crop": body["points_per_side"], "stability_score_thresh": 0.3}
            found = pipe(opened(body["image"]), output_rle_mask=True, output_bboxes_mask=True, **wanted)
            rows = zip(found["rle_mask"], found["scores"].tolist(), found["bounding_boxes"].tolist(), strict=True)
            sides = ("xmin", "ymin", "xmax", "ymax")
            return [{"mask": m, "score": s, "box": dict(zip(sides, box, strict=True))} for m, s, box in rows]
        case "keypoint-matching":
            return pipe(list(map(opened, body["images"])), threshold=body.get("threshold", 0.0))
        case "video-classification":
            file = folder / "film.mov"
            file.write_bytes(base64.b64decode(body["video"]))
            return pipe(str(file), frame_sampling_rate=body.get("frame_sampling_rate", 1), top_k=body.get("top_k", 5))
        case _:
            hypothesis = body.get("hypothesis", "This is a sound of {}.")
            sound = np.asarray(body["audio"], np.float32)
            return pipe(sound, candidate_labels=body["labels"], hypothesis_template=hypothesis)


def opened(image: str) -> Any:
    return image_of(base64.b64decode(image))


def suppress_slowly(rles: list[Any], scores: Any, boxes: Any, most_overlap: float) -> tuple[Any, ...]:
    kept: list[int] = []
    for index in sorted(range(len(rles)), key=lambda one: -float(scores[one])):
        if all(overlap(boxes[index].tolist(), boxes[other].tolist()) <= most_overlap for other in kept):
            kept.append(index)
    return [], scores[kept], [rles[index] for index in kept], boxes[kept]


def overlap(one: list[float], other: list[float]) -> float:
    width = max(0, min(one[2], other[2]) - max(one[0], other[0]))
    height = max(0, min(one[3], other[3]) - max(one[1], other[1]))
    both = sum((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)) - width * height
    return width * height / both if both else 0


@pytest.mark.parametrize("task", sorted(CASES))
def test_answers_in_a_batch_are_those_of_transformers(task: str, tmp_path: Path) -> None:
    answers = loaded(task).answers(items_of(task, CASES[task]))
    for body, answer in zip(CASES[task], answers, strict=True):
        assert_close(answer, plain(transformers_answer(task, body, tmp_path)))
    assert any(answers)


PLAYLIST = b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile:%b\n#EXT-X-ENDLIST\n"
DETECT, CUT, PAIR, WATCH, HEAR = CASES
WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    (DETECT, {"labels": []}, "$.labels", "at least one"),
    (DETECT, {"labels": ["tea"] * 10_000}, "$.labels", "10000 labels, at most 100"),
    (DETECT, {"labels": ["tea", "the old man " * 9]}, "$.labels[1]", "the model reads 16"),
    (DETECT, {"threshold": 2}, "$.threshold", "from 0 to 1"),
    (DETECT, {"top_k": 0}, "$.top_k", "from 1 to"),
    (DETECT, {"image": text(bomb())}, "$.image", "pixels"),
    (CUT, {"points_per_side": 65}, "$.points_per_side", "from 1 to 64"),
    (CUT, {"pred_iou_thresh": -1}, "$.pred_iou_thresh", "from 0 to 1"),
    (CUT, {"top_k": 10_000}, "$.top_k", "from 1 to"),
    (CUT, {"image": png(5000, 4000)}, "$.image", "at most 16777216"),
    (PAIR, {"images": [png(20, 20), text(b"no image")]}, "$.images[1]", "no image"),
    (PAIR, {"threshold": -0.1}, "$.threshold", "from 0 to 1"),
    (WATCH, {"video": text(b"no video")}, "$.video", "cannot be read"),
    (WATCH, {"video": text(base64.b64decode(FILM)[:200])}, "$.video", "cannot be read"),
    (WATCH, {"video": []}, "$.video", "0 frames, and the model looks at 4"),
    (
        WATCH,
        {"video": FILM, "frame_sampling_rate": 4},
        "$.video",
        "12 frames, and the model looks at 4 of the first 16",
    ),
    (WATCH, {"frame_sampling_rate": 0}, "$.frame_sampling_rate", "from 1 to"),
    (WATCH, {"video": [*FRAMES[:3], png(9, 9)]}, "$.video", "differ in size"),
    (WATCH, {"video": [FRAMES[0], text(b"no image"), *FRAMES]}, "$.video[1]", "no image"),
    (WATCH, {"video": [png(5000, 4000)] * 4}, "$.video[0]", "at most 8847360"),
    (HEAR, {"labels": [" "]}, "$.labels", "none that is empty"),
    (HEAR, {"labels": ["tea"] * 10_000}, "$.labels", "at most 1000"),
    (HEAR, {"hypothesis": "{} and {:>999999999}"}, "$.hypothesis", "no other brace"),
    (HEAR, {"audio": [0.1, 1e39]}, "$.audio", "no numbers"),
    (HEAR, {"sampling_rate": 0}, "$.sampling_rate", "from 1 to"),
    (HEAR, {"audio": text(wav(bytes(9000), rate_hz=1))}, "$.audio", "4500 s of sound"),
]


@pytest.mark.parametrize(("task", "change", "path", "detail"), WRONG)
def test_what_is_wrong_is_said_and_harms_no_other(task: str, change: dict[str, Any], path: str, detail: str) -> None:
    good = CASES[task][0]
    first, error, last = loaded(task).answers(items_of(task, [good, good | change, good]))
    assert isinstance(error, InvalidInput)
    assert error.extra["path"] == path
    assert detail in str(error)
    assert not isinstance(first, Exception)
    assert_close(first, last)


def test_numbers_that_are_none_are_no_sound() -> None:
    (error,) = loaded(HEAR).answers([SoundAndLabels(audio=[0.0, float("nan")], labels=["tea"])])
    assert isinstance(error, InvalidInput) and error.extra["path"] == "$.audio"


def test_of_a_sound_that_is_too_long_the_same_part_is_heard_in_any_company() -> None:
    rng = np.random.default_rng(5)
    long = [SoundAndLabels(audio=rng.uniform(-1, 1, 40_000).round(4).tolist(), labels=LABELS) for _ in range(2)]
    alone = [loaded(HEAR).answers([one])[0] for one in long]
    assert_close(loaded(HEAR).answers([*long, long[0]]), [*alone, alone[0]])


@pytest.mark.parametrize("images", [[], [png(9, 9)], [png(9, 9)] * 3])
def test_a_pair_is_two(images: list[str]) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"length 2.*\$\.images"):
        items_of(PAIR, [{"images": images}])


def test_frames_as_images_need_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [{"video": FILM, "frame_sampling_rate": 3}, {"video": FRAMES, "frame_sampling_rate": 3}]
    file, listed = loaded(WATCH).answers(items_of(WATCH, bodies))
    assert file == listed
    monkeypatch.setitem(sys.modules, "av", None)
    without = VideoClassifier()
    without.load(tiny_task(WATCH), "cpu")
    refused, again = without.answers(items_of(WATCH, bodies))
    assert again == listed
    assert isinstance(refused, InvalidInput) and 'requirements=["av"]' in str(refused)


def test_a_playlist_opens_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "secret.mov").write_bytes(base64.b64decode(FILM))
    with pytest.raises(InvalidInput, match="cannot be read"):
        frames.frames_of(PLAYLIST % bytes(tmp_path / "secret.mov"), range(NUM_FRAMES))


def test_a_long_video_is_not_decoded_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_DECODED_PIXELS", 40 * 30 * 5)
    film_of_ten = base64.b64decode(FILM)
    assert frames.frames_of(film_of_ten, [0, 4]).shape == (2, 30, 40, 3)
    with pytest.raises(InvalidInput, match="frame 5 is looked at, too far into a video of 40 x 30"):
        frames.frames_of(film_of_ten, [0, 5])


def test_a_mask_is_a_picture_of_its_run_lengths() -> None:
    runs = {"size": [2, 3], "counts": [1, 2, 3]}
    assert (np.asarray(picture_of(runs)) == [[0, 255, 0], [255, 0, 0]]).all()
    (told,) = loaded(CUT).answers(items_of(CUT, [CASES[CUT][0] | {"form": "png"}]))
    (measured,) = loaded(CUT).answers(items_of(CUT, CASES[CUT][:1]))
    pictures = [np.asarray(image_of(base64.b64decode(one["mask"])).convert("L")) for one in told]
    assert [picture.shape for picture in pictures] == [(60, 80)] * len(told)
    assert all((found == picture_of(one["mask"])).all() for found, one in zip(pictures, measured, strict=True))


def test_boxes_that_overlap_with_better_ones_go() -> None:
    import torch

    rng = np.random.default_rng(3)
    corners = rng.integers(0, 30, (200, 2))
    boxes = torch.tensor(np.concatenate([corners, corners + rng.integers(0, 20, (200, 2))], 1)).float()
    scores = torch.tensor(rng.random(200))
    _, _, expected, _ = suppress_slowly(list(range(200)), scores, boxes, 0.5)
    assert suppressed(boxes, scores, 0.5) == expected
    assert 1 < len(expected) < 200
    assert suppressed(boxes[:0], scores[:0], 0.5) == []


def test_the_larger_an_image_the_fewer_points_at_once() -> None:
    def at_once(side: int) -> Any:
        image = image_of(base64.b64decode(png(side, side)))
        return loaded(CUT).parameters(ImageToCut(image=b""), image)["points_per_batch"]

    assert (at_once(500), at_once(2000), at_once(4096)) == (64, 22, 5)


@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="torchvision is there")
def test_a_model_that_lacks_a_package_is_refused_with_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_task(WATCH), folder)
    (folder / "preprocessor_config.json").unlink()
    (folder / "video_preprocessor_config.json").write_text('{"video_processor_type": "VideoMAEVideoProcessor"}')
    assert choose(read_model_folder(str(folder)), None).task.name == WATCH
    with pytest.raises(DeployRefused, match=r'needs the package torchvision: add requirements=\["torchvision"\]'):
        VideoClassifier().load(folder, "cpu")


# OmDet wants the names of classes in a form that the pipeline does not have; the other compares videos and texts
NO_CLASSES_OF_OURS = {"OmDetTurboForObjectDetection", "VideoPrismClipModel"}
OF_ANY_MODEL = {"zero-shot-audio-classification", "image-feature-extraction"}


@pytest.mark.parametrize(
    "task",
    sorted(
        name
        for name, task in TASKS.items()
        if (task.sees or task.hears) and not task.generates and name not in OF_ANY_MODEL
    ),
)
def test_all_classes_that_transformers_names_for_a_task_may_do_it(task: str) -> None:
    from transformers.pipelines import SUPPORTED_TASKS

    classes: set[str] = set()
    for auto in SUPPORTED_TASKS[task]["pt"]:
        for named in auto._model_mapping._model_mapping.values():
            classes.update((named,) if isinstance(named, str) else named)
    assert {name for name in classes if not name.endswith(TASKS[task].endings)} <= NO_CLASSES_OF_OURS


def test_packages_are_known_by_what_transformers_says_of_them() -> None:
    one = "AutoVideoProcessor requires the Torchvision library but it was not found in your environment."
    other = "None of these classes could be imported. Missing optional dependencies: torchvision. Please install"
    assert [missing_package(text) for text in (one, other, "no such file")] == ["torchvision", "torchvision", ""]


def test_every_pipeline_of_transformers_is_served_or_refused_with_a_reason() -> None:
    from transformers.pipelines import SUPPORTED_TASKS, TASK_ALIASES

    folder = read_model_folder(str(tiny_task(WATCH)))
    for name in {*SUPPORTED_TASKS, *TASK_ALIASES} - {*TASKS, *ALIASES}:
        with pytest.raises(DeployRefused, match=r"there is no task '.*' \(.+\); there are"):
            choose(folder, name)
