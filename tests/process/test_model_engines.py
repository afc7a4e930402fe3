"""Models deployed without code, in real instances: each task answers, as transformers itself would, and in batches."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from samovar.errors import InvalidInput
from samovar.models.choosing import choose
from samovar.models.folder import read_model_folder
from samovar.models.project import app_code, example_of, write_project
from samovar.models.tasks import TASKS
from samovar_instance.engines.pipelines.base import MAX_TEXT_CHARS
from samovar_instance.engines.pipelines.media import plain
from samovar_instance.engines.pipelines.sounds import Speech, SpeechRecognizer
from support.instance_driver import Instance, Zygote
from support.tiny_engines import answer_type, assert_close, items_of, loaded, native, pipeline_of
from support.tiny_models import tiny_model
from support.tiny_tasks import MASK, RATE_HZ, png, tiny_task, wav

pytestmark = pytest.mark.process

SOUND = [((index * 37) % 200 - 100) / 128 for index in range(3200)]
SPEECH = wav(bytes((index * 7) % 256 for index in range(6400)))

# of each task: bodies that a client sends together, and what transformers' own pipeline is given for them
CASES: dict[str, list[tuple[dict[str, Any], Any, dict[str, Any]]]] = {
    "text-classification": [
        ({"text": "tea is ready"}, "tea is ready", {"top_k": 5}),
        ({"text": "the kettle " * 40}, "the kettle " * 40, {"top_k": 5, "truncation": True}),
        ({"text": "tea", "text_pair": "milk", "top_k": 1}, {"text": "tea", "text_pair": "milk"}, {"top_k": 1}),
    ],
    "token-classification": [
        ({"text": "the old man"}, "the old man", {"aggregation_strategy": "simple"}),
        ({"text": "there", "aggregation": "none"}, "there", {"aggregation_strategy": "none"}),
    ],
    "fill-mask": [({"text": f"the {MASK} and the dog", "top_k": 3}, f"the {MASK} and the dog", {"top_k": 3})],
    "feature-extraction": [({"text": "tea"}, "tea", {}), ({"text": "more tea"}, "more tea", {})],
    "zero-shot-classification": [
        ({"text": "tea", "labels": ["hot", "cold", "wet"]}, "tea", {"candidate_labels": ["hot", "cold", "wet"]}),
        (
            {"text": "tea", "labels": ["hot", "cold"], "multi_label": True},
            "tea",
            {"candidate_labels": ["hot", "cold"], "multi_label": True},
        ),
    ],
    "image-classification": [
        ({"image": png(30, 20)}, png(30, 20), {"top_k": 5}),
        ({"image": png(8, 50, (3, 200, 9)), "top_k": 2}, png(8, 50, (3, 200, 9)), {"top_k": 2}),
    ],
    "image-feature-extraction": [({"image": png(30, 20)}, png(30, 20), {})],
    "object-detection": [
        ({"image": png(30, 20), "threshold": 0.1}, png(30, 20), {"threshold": 0.1}),
        ({"image": png(20, 50), "threshold": 0.1}, png(20, 50), {"threshold": 0.1}),
    ],
    "image-segmentation": [({"image": png(30, 20)}, png(30, 20), {})],
    "depth-estimation": [({"image": png(64, 64)}, png(64, 64), {})],
    "zero-shot-image-classification": [
        ({"image": png(30, 20), "labels": ["tea", "milk"]}, png(30, 20), {"candidate_labels": ["tea", "milk"]})
    ],
    "automatic-speech-recognition": [
        ({"audio": SOUND, "sampling_rate": RATE_HZ}, SOUND, {}),
        ({"audio": base64.b64encode(SPEECH).decode()}, SPEECH, {}),
        ({"audio": SOUND, "timestamps": "char"}, SOUND, {"return_timestamps": "char"}),
    ],
    "audio-classification": [({"audio": SOUND, "top_k": 2}, SOUND, {"top_k": 2})],
}


def folder_of(task: str) -> Path:
    return tiny_model("bert") if task == "embeddings" else tiny_task(task)


@pytest.fixture(params=sorted(name for name, task in TASKS.items() if not task.generates))
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def instance(task: str, zygote: Zygote, tmp_path: Path) -> Iterator[Instance]:
    """A ready instance of the project that `deploy --model` writes for a tiny model of the task."""
    folder = read_model_folder(str(folder_of(task)))
    code = app_code("it", choose(folder, task).task, folder)
    app = write_project(tmp_path / f"model_{task.replace('-', '_')}", code, folder)
    yield zygote.start(app.parent, weights=folder.path)  # not the links to it: its sandbox ends there


def test_every_task_answers_the_example_of_its_warmup(task: str, instance: Instance) -> None:
    folder = read_model_folder(str(folder_of(task)))
    example = example_of(TASKS[task], folder)
    caller = instance.connect()
    msgspec.convert(caller.call(example), answer_type(task), strict=True)
    assert instance.ready is not None and instance.ready.boot_ms["warmup"] > 0


@pytest.mark.parametrize("task", sorted(CASES))
def test_answers_are_those_of_transformers(task: str) -> None:
    handler, reference = loaded(task), pipeline_of(task)
    items = items_of(task, [body for body, _, _ in CASES[task]])
    answers = handler.answers(items)
    for item, (_, given, wanted), answer in zip(items, CASES[task], answers, strict=True):
        expected = handler.answer(item, reference(native(task, given), **wanted))
        assert_close(answer, plain(expected))


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("text-classification", {"text": "tea", "top_k": 0}, "$.top_k"),
    ("text-classification", {"text": "x" * (MAX_TEXT_CHARS + 1)}, "$.text"),
    ("token-classification", {"text": ""}, "$.text"),
    ("token-classification", {"text": "the kettle " * 40}, "$.text"),
    ("fill-mask", {"text": "no mask"}, "$.text"),
    ("fill-mask", {"text": "the kettle " * 40 + MASK}, "$.text"),
    ("feature-extraction", {"text": "the kettle " * 40}, "$.text"),
    ("zero-shot-classification", {"text": "tea", "labels": []}, "$.labels"),
    ("zero-shot-classification", {"text": "tea", "labels": ["a"], "hypothesis": "always"}, "$.hypothesis"),
    ("zero-shot-classification", {"text": "tea", "labels": ["hot" * MAX_TEXT_CHARS, "cold"]}, "$.labels"),
    ("image-classification", {"image": base64.b64encode(b"no image").decode()}, "$.image"),
    ("object-detection", {"image": png(9, 9), "threshold": 2}, "$.threshold"),
    ("automatic-speech-recognition", {"audio": []}, "$.audio"),
    ("automatic-speech-recognition", {"audio": SOUND, "language": "fr"}, "$.language"),
    ("automatic-speech-recognition", {"audio": SOUND, "timestamps": "segment"}, "$.timestamps"),
]


@pytest.mark.parametrize(("task", "wrong", "path"), WRONG)
def test_an_item_that_is_wrong_is_an_error_of_its_own(task: str, wrong: dict[str, Any], path: str) -> None:
    good = CASES[task][0][0]
    first, error, last = loaded(task).answers(items_of(task, [good, wrong, good]))
    assert isinstance(error, InvalidInput)
    assert error.extra["path"] == path
    assert not isinstance(first, Exception)
    assert_close(first, last)


def test_a_text_that_is_too_long_is_told_how_long_it_is() -> None:
    handler = loaded("token-classification")
    num_tokens = len(handler.pipe.tokenizer("the kettle " * 40)["input_ids"])
    (error,) = handler.answers(items_of("token-classification", [{"text": "the kettle " * 40}]))
    assert error.detail.startswith(f"$.text: {num_tokens} tokens, and the model reads 64")


def test_models_of_fixed_length_hear_several_at_once_and_longer_than_that() -> None:
    whisper = SpeechRecognizer()
    whisper.load(tiny_task("whisper"), "cpu")
    two = [Speech(audio=SOUND), Speech(audio=SOUND[:1600])]
    alone = [whisper.answers([speech])[0] for speech in two]
    assert whisper.answers(two) == alone
    long = SOUND * 155  # 31 s
    short, other, timed = whisper.answers([two[0], Speech(audio=long), Speech(audio=long, timestamps="segment")])
    assert short == alone[0]
    assert other == {"text": timed["text"]} and timed["chunks"][-1]["timestamp"][0] > 30
    for wrong in (Speech(audio=SOUND, language="Klingon"), Speech(audio=SOUND, timestamps="char")):
        assert isinstance(whisper.answers([wrong])[0], InvalidInput)
    french = whisper.answers([Speech(audio=SOUND, language="French"), Speech(audio=SOUND, language="fr")])
    assert french[0] == french[1]
