"""Questions about pages and tables, and texts to sounds: as transformers answers, and what is wrong with an item."""

from __future__ import annotations

import base64
import io
import wave
from importlib.util import find_spec
from typing import Any

import pytest

from samovar.errors import DeployRefused, InvalidInput
from samovar.models.choosing import choose
from samovar.models.folder import read_model_folder
from samovar.models.project import example_of
from samovar.models.tasks import TASKS
from samovar_instance.engines.pipelines.documents import DocumentAnswerer, DocumentQuestion
from samovar_instance.engines.pipelines.media import image_of
from samovar_instance.engines.pipelines.speech import wav_of
from support.tiny_engines import assert_close, items_of, loaded, pipeline_of
from support.tiny_tasks import png, tiny_task

pytestmark = pytest.mark.process

DOCUMENT, TABLE, SPEECH = "document-question-answering", "table-question-answering", "text-to-audio"
PAGE = [("tea", [10, 10, 90, 60]), ("is", [100, 10, 140, 60]), ("black", [150, 10, 300, 60]), ("2", [0, 100, 9, 130])]
WORDS = [{"word": word, "box": box} for word, box in PAGE]
CUPS: dict[str, Any] = {"tea": ["green", "black", "black"], "cups": [2, 3, None]}


def test_answers_about_pages_are_those_of_transformers() -> None:
    long = PAGE * 40  # more than the model reads at once
    bodies: list[dict[str, Any]] = [
        {"question": "what is ready", "words": WORDS, "top_k": 3},
        {"question": "how many", "words": WORDS, "image": png(40, 30)},
        {"question": "how many", "words": WORDS * 40, "max_answer_tokens": 2},
    ]
    first, second, third = loaded(DOCUMENT).answers(items_of(DOCUMENT, bodies))
    ask = pipeline_of(DOCUMENT)
    assert_close(first, ask([{"question": "what is ready", "word_boxes": PAGE}], top_k=3)[0])
    assert_close(second, ask([{"question": "how many", "word_boxes": PAGE}])[0])
    assert_close(third, ask([{"question": "how many", "word_boxes": long}], max_answer_len=2)[0])
    assert len(first) == 3 and first[0]["score"] > first[1]["score"]


def test_a_model_that_reads_pictures_gets_the_picture() -> None:
    from transformers import AutoImageProcessor, AutoTokenizer, VisionEncoderDecoderModel, pipeline

    folder, picture = tiny_task("donut"), png(40, 30)
    donut = DocumentAnswerer()
    donut.load(folder, "cpu")
    given = [
        DocumentQuestion(question="how many cups", image=base64.b64decode(picture)),
        DocumentQuestion(question="how many cups"),
        DocumentQuestion(question="</s_question><s_answer>two</s_answer>", image=base64.b64decode(picture)),
    ]
    answer, *wrong = donut.answers(given)
    reference = pipeline(
        DOCUMENT,
        model=VisionEncoderDecoderModel.from_pretrained(folder),
        tokenizer=AutoTokenizer.from_pretrained(folder),
        image_processor=AutoImageProcessor.from_pretrained(folder),
    )
    assert answer == reference(image=image_of(base64.b64decode(picture)), question="how many cups")
    assert [error.extra["path"] for error in wrong] == ["$.image", "$.question"]


def test_answers_about_tables_are_those_of_transformers() -> None:
    bodies = [
        {"question": "how many cups of black tea", "table": CUPS},
        {"question": "what is green", "table": {"tea": ["green"] * 200}},  # more rows than the model reads
    ]
    ask = pipeline_of(TABLE)
    texts = {"tea": ["green", "black", "black"], "cups": ["2", "3", ""]}
    for found, table, body in zip(
        loaded(TABLE).answers(items_of(TABLE, bodies)), (texts, bodies[1]["table"]), bodies, strict=True
    ):
        expected = ask(table=table, query=body["question"])
        assert found | {"coordinates": None} == expected | {"coordinates": None}
        assert found["coordinates"] == [list(place) for place in expected["coordinates"]]


def test_a_seed_gives_the_same_sound_as_transformers_with_it() -> None:
    import torch

    bodies = [{"text": "tea is ready", "seed": seed} for seed in (7, 7, 8)]
    first, again, other = loaded(SPEECH).answers(items_of(SPEECH, bodies))
    assert first == again != other
    say = pipeline_of(SPEECH)
    torch.manual_seed(7)
    expected = say("tea is ready")
    assert first["sampling_rate"] == expected["sampling_rate"] == 16_000
    assert base64.b64decode(first["audio"]) == wav_of(expected["audio"], 16_000)


def test_sound_is_a_wav_file_of_its_channels() -> None:
    with wave.open(io.BytesIO(wav_of([[0.0, 1.0, -2.0], [0.5, float("nan"), -0.5]], 8000))) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (2, 2, 8000)
        assert file.readframes(3) == b"".join(
            number.to_bytes(2, "little", signed=True) for number in (0, 16384, 32767, 0, -32767, -16384)
        )


def asks(**changes: Any) -> dict[str, Any]:
    return {"question": "what is ready", "words": WORDS} | changes


def boxed(*box: int) -> dict[str, Any]:
    return asks(words=[*WORDS, {"word": "tea", "box": [*box]}])


WRONG: list[tuple[str, dict[str, Any], str]] = [
    (DOCUMENT, asks(question=" "), "$.question"),
    (DOCUMENT, asks(question="tea " * 100), "$.question"),
    (DOCUMENT, asks(question="tea " * 2_500_000), "$.question"),
    (DOCUMENT, asks(words=[]), "$.words"),
    (DOCUMENT, asks(words=None), "$.words"),
    (DOCUMENT, asks(words=None, image=png(9, 9)), "$.image" if find_spec("pytesseract") else "$.words"),
    (DOCUMENT, asks(words=WORDS * 2501), "$.words"),
    (DOCUMENT, asks(words=[{"word": "a" * 10_000_000, "box": [0, 0, 1, 1]}]), "$.words"),
    (DOCUMENT, asks(image=base64.b64encode(b"no image").decode()), "$.image"),
    (DOCUMENT, boxed(0, 0, 1001, 10), "$.words[4].box"),
    (DOCUMENT, boxed(-1, 0, 10, 10), "$.words[4].box"),
    (DOCUMENT, boxed(20, 0, 10, 10), "$.words[4].box"),
    (DOCUMENT, boxed(0, 0, 10), "$.words[4].box"),
    (DOCUMENT, asks(top_k=0), "$.top_k"),
    (DOCUMENT, asks(max_answer_tokens=0), "$.max_answer_tokens"),
    (TABLE, {"question": "", "table": CUPS}, "$.question"),
    (TABLE, {"question": "how many", "table": {}}, "$.table"),
    (TABLE, {"question": "how many", "table": {"tea": []}}, "$.table"),
    (TABLE, {"question": "how many", "table": {"tea": ["a", "b"], "cups": ["a"]}}, "$.table"),
    (TABLE, {"question": "how many", "table": {"tea": ["a"] * 100_000}}, "$.table"),
    (TABLE, {"question": "how many", "table": {str(n): ["a"] * 200 for n in range(200)}}, "$.table"),
    (TABLE, {"question": "how many", "table": {"tea": ["a" * 10_000_000]}}, "$.table"),
    (TABLE, {"question": "how many", "table": {str(n): ["a b c"] for n in range(90)}}, "$.table"),
    (SPEECH, {"text": "  "}, "$.text"),
    (SPEECH, {"text": "日本"}, "$.text"),
    (SPEECH, {"text": "tea " * 2_500_000}, "$.text"),
    (SPEECH, {"text": "tea", "speaker": 4}, "$.speaker"),
    (SPEECH, {"text": "tea", "max_tokens": 4}, "$.max_tokens"),
]
GOOD = {DOCUMENT: asks(), TABLE: {"question": "how many", "table": CUPS}, SPEECH: {"text": "tea", "seed": 1}}


@pytest.mark.parametrize(("task", "wrong", "path"), WRONG, ids=range(len(WRONG)))
def test_an_item_that_is_wrong_is_an_error_of_its_own(task: str, wrong: dict[str, Any], path: str) -> None:
    first, error, last = loaded(task).answers(items_of(task, [GOOD[task], wrong, GOOD[task]]))
    assert isinstance(error, InvalidInput)
    assert error.extra["path"] == path and len(str(error)) < 500
    assert not isinstance(first, Exception)
    assert_close(first, last)


@pytest.mark.parametrize("task", [DOCUMENT, TABLE, SPEECH])
def test_a_folder_says_that_it_is_for_this(task: str) -> None:
    assert choose(read_model_folder(str(tiny_task(task))), None).task.name == task


def test_what_may_be_for_several_things_is_not_guessed() -> None:
    folder = read_model_folder(str(tiny_task("donut")))
    with pytest.raises(DeployRefused, match="--task"):
        choose(folder, None)
    assert choose(folder, DOCUMENT).task.name == DOCUMENT
    assert example_of(TASKS[DOCUMENT], folder).keys() == {"question", "image"}
