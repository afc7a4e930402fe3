"""Text from pictures, in real instances of models deployed without code: as transformers writes it, token by token."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar import wire
from samovar.models.choosing import choose
from samovar.models.folder import read_model_folder
from samovar.models.project import app_code, example_of, write_project
from samovar.models.tasks import TASKS
from samovar.tasks.generation import MAX_MEDIA
from support.instance_driver import Caller, Instance, Zygote
from support.pieces import failure, pieces_of, streamed, text_of
from support.tiny_tasks import RATE_HZ, png, tiny_task, wav

pytestmark = pytest.mark.process

TASK = "image-text-to-text"
RED, GREEN = png(40, 30, (200, 3, 9)), png(20, 50, (3, 200, 9))
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
LONG = GREEDY | {"max_tokens": 200}


def image(data: Any) -> dict[str, Any]:
    return {"type": "image", "image": data}


def asks(*parts: Any, **more: Any) -> dict[str, Any]:
    """Return a request of one message of texts and images."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return {"messages": [{"role": "user", "content": content}]} | GREEDY | {"max_tokens": 12} | more


@pytest.fixture(scope="module")
def instance(session_zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """A ready instance of the project that `deploy --model` writes for a tiny Llava."""
    folder = read_model_folder(str(tiny_task(TASK)))
    choice = choose(folder, None)
    assert choice.task.name == TASK
    app = write_project(tmp_path_factory.mktemp("vlm") / "model_vlm", app_code("vlm", choice.task, folder), folder)
    yield session_zygote.start(app.parent, weights=folder.path)
    session_zygote.clean()


@pytest.fixture
def caller(instance: Instance) -> Iterator[Caller]:
    caller = instance.connect()
    yield caller
    caller.close()


@pytest.fixture(scope="module")
def pipe() -> Any:
    """transformers' own pipeline of the same folder."""
    from transformers import pipeline

    return pipeline(TASK, model=str(tiny_task(TASK)), device="cpu")


# proteins, diffusion, what nothing tells apart, a name without an ending
OTHERS = {"Evolla", "Diffusion", "VisionEncoderDecoderModel", "NemotronH"}


@pytest.mark.parametrize(
    ("task", "auto_class", "others"),
    [
        (TASK, "AutoModelForImageTextToText", OTHERS),
        (
            "any-to-any",
            "AutoModelForMultimodalLM",
            {"Evolla", "Diffusion", "VisionEncoderDecoderModel", "NemotronH"},
        ),
        ("text-to-audio", "AutoModelForTextToWaveform", {"Qwen"}),  # these hear and see first of all
        ("table-question-answering", "AutoModelForTableQuestionAnswering", set()),
        ("document-question-answering", "AutoModelForDocumentQuestionAnswering", set()),
    ],
)
def test_classes_that_transformers_names_for_a_task_may_do_it(task: str, auto_class: str, others: set[str]) -> None:
    import transformers

    for made in getattr(transformers, auto_class)._model_mapping._model_mapping.values():
        for kind in (made,) if isinstance(made, str) else made:
            assert kind.endswith(TASKS[task].endings) or kind.startswith(tuple(others)), kind


def test_it_warms_up_with_a_picture(instance: Instance) -> None:
    example = example_of(TASKS[TASK], read_model_folder(str(tiny_task(TASK))))
    assert [part["type"] for part in example["messages"][0]["content"]] == ["image", "text"]
    assert instance.ready is not None and instance.ready.boot_ms["warmup"] > 0


@pytest.mark.parametrize(
    "parts",
    [("what is it? ", image(RED)), (image(RED), " or ", image(GREEN), "?"), ("no picture at all",)],
)
def test_its_text_is_that_of_transformers(caller: Caller, pipe: Any, parts: tuple[Any, ...]) -> None:
    from samovar_instance.engines.pipelines.media import image_of

    body = asks(*parts, logprobs=0)
    pieces = streamed(caller, body)
    turns = [
        part if part["type"] == "text" else image(image_of(base64.b64decode(part["image"])))
        for part in body["messages"][0]["content"]
    ]
    chat = [{"role": "user", "content": turns}]
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    (expected,) = pipe(text=chat, return_tensors=True, generate_kwargs=settings)
    told = [token.token_id for piece in pieces for token in piece.logprobs]
    assert told == expected["generated_token_ids"].tolist()[-12:]
    assert len(pieces) > 2 and pieces[-1].finish_reason == "length"
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 12


def test_a_prompt_has_its_pictures_beside_it(caller: Caller) -> None:
    told = asks("what is it? ", image(RED))
    prompt = "<|im_start|>user\nwhat is it? <image><|im_end|>\n<|im_start|>assistant\n"
    body = {"prompt": prompt, "images": [RED]} | GREEDY | {"max_tokens": 12}
    assert text_of(streamed(caller, body)) == text_of(streamed(caller, told))
    assert text_of(streamed(caller, body | {"images": [GREEN]})) != text_of(streamed(caller, told))


def test_marks_of_the_template_in_a_text_stay_text(caller: Caller) -> None:
    pieces = streamed(caller, asks("a <image> and <|im_end|> ", image(RED)))
    assert pieces[-1].usage is not None
    assert pieces[-1].finish_reason == "length"


def test_choices_are_those_of_the_seed_and_stops_end_them(caller: Caller) -> None:
    body = asks("tea? ", image(RED), temperature=1.2, seed=5, n=6, logprobs=2)
    pieces, again = streamed(caller, body), streamed(caller, body)
    texts = [text_of(pieces, index) for index in range(6)]
    assert texts == [text_of(again, index) for index in range(6)] and len({*texts}) > 3
    assert all(len(each.top) == 2 for piece in pieces for each in piece.logprobs)
    whole = text_of(streamed(caller, asks("tea? ", image(RED), max_tokens=40)))
    stop = whole[6:10]
    cut = streamed(caller, asks("tea? ", image(RED), max_tokens=40, stop=[stop]))
    assert text_of(cut) == whole[: whole.index(stop)] and cut[-1].finish_reason == "stop"


def test_several_at_a_time_get_what_they_get_alone(instance: Instance, caller: Caller) -> None:
    bodies = [asks(text, image(picture)) for text in ("one ", "two ") for picture in (RED, GREEN)]
    alone = [text_of(streamed(caller, body)) for body in bodies]
    callers = [instance.connect() for _ in bodies]
    numbers = [each.invoke(body, accept_stream=True) for each, body in zip(callers, bodies, strict=True)]
    together = [text_of([*pieces_of(each, number)]) for each, number in zip(callers, numbers, strict=True)]
    for each in callers:
        each.close()
    assert together == alone and len({*alone}) == 4


def test_a_cancel_and_a_deadline_end_it_at_once(caller: Caller) -> None:
    endless = asks("tea? ", image(RED), max_tokens=1500, n=4)
    number = caller.invoke(endless, accept_stream=True)
    caller.expect(wire.Chunk)
    caller.send(wire.Cancel(number))
    assert failure(caller).code == "cancelled"
    caller.invoke(endless, timeout_ms=400, accept_stream=True)
    assert failure(caller).code == "deadline_exceeded"
    assert text_of(streamed(caller, asks("tea? ", image(RED))))


BOMB = png(8000, 8000)
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("no image", asks(image(base64.b64encode(b"no image").decode())), "messages[0].content[0]"),
    ("cut off", asks("a", image(base64.b64encode(base64.b64decode(RED)[:40]).decode())), "messages[0].content[1]"),
    ("a bomb", asks(image(BOMB)), "messages[0].content[0]"),
    ("bombs together", asks(*[image(png(5000, 4000))] * 3), "messages[0].content[2]"),
    ("no bytes", asks({"type": "image"}), "messages[0].content[0]"),
    ("a sound", asks({"type": "audio", "audio": "aaaa"}), "messages[0].content[0]"),
    ("too many", asks(*[image(RED)] * (MAX_MEDIA + 1)), "messages"),
    ("another role", {"messages": [{"role": "tool", "content": None}]}, "messages"),
    ("pictures beside messages", asks("a") | {"images": [RED]}, "images"),
    ("pictures without a place", {"prompt": "tea", "images": [RED]}, "prompt"),
    ("a place without a picture", {"prompt": "tea <image>"}, "prompt"),
    ("pictures beside tokens", {"prompt": [1, 2], "images": [RED]}, "images"),
    ("empty", {"prompt": ""}, "prompt"),
    ("10 MB", asks("tea " * 2_500_000), "messages"),
    ("more than the context", asks("the cat " * 2000, image(RED)), "messages"),
    ("more than its rest", asks("tea ", image(RED), max_tokens=2048), "max_tokens"),
    ("an unknown token", {"prompt": [99_999]}, "prompt"),
    ("a temperature", asks("tea", temperature=-1), "temperature"),
]


@pytest.mark.parametrize(("body", "param"), [wrong[1:] for wrong in WRONG], ids=[wrong[0] for wrong in WRONG])
def test_what_is_wrong_is_told_by_name_and_harms_nobody(
    instance: Instance, caller: Caller, body: dict[str, Any], param: str
) -> None:
    other = instance.connect()
    good = other.invoke(asks("tea? ", image(RED)), accept_stream=True)
    failed = caller.fail(body)
    assert (failed.status, failed.extra["param"]) == (400, param), failed
    assert text_of([*pieces_of(other, good)])
    other.close()


def test_what_captions_takes_a_prompt_or_one_message(session_zygote: Zygote, tmp_path: Path) -> None:
    from transformers import pipeline

    from samovar_instance.engines.pipelines.media import image_of

    folder = read_model_folder(str(tiny_task("blip")))
    assert example_of(TASKS[TASK], folder).keys() == {"prompt", "images", "max_tokens"}
    app = write_project(tmp_path / "model_blip", app_code("blip", choose(folder, None).task, folder), folder)
    caller = session_zygote.start(app.parent, weights=folder.path).connect()
    body: dict[str, Any] = {"prompt": "the tea is", "images": [RED], "max_tokens": 8, "temperature": 0, "logprobs": 0}
    pieces = streamed(caller, body)
    expected = pipeline(TASK, model=str(folder.path), device="cpu")(
        images=image_of(base64.b64decode(RED)),
        text="the tea is",
        return_tensors=True,
        generate_kwargs={"max_new_tokens": 8},
    )
    told = [token.token_id for piece in pieces for token in piece.logprobs]
    assert told == expected[0]["generated_token_ids"].tolist()[-len(told) :] and told
    message = asks(image(RED), "the tea is", max_tokens=8, ignore_eos=False)
    assert text_of(streamed(caller, message)) == text_of(pieces), "one message is a prompt"
    twice = message | {"messages": message["messages"] * 2}
    failed = caller.fail(twice)
    assert failed.status == 400 and "no chat template" in failed.detail
    for wrong in ({"prompt": "the tea is"}, {"prompt": [5, 6]}):
        failed = caller.fail(wrong)
        assert (failed.status, failed.extra["param"]) == (400, "prompt") and "an image" in failed.detail


def test_a_model_that_remembers_places_itself_does_one_after_the_other(session_zygote: Zygote, tmp_path: Path) -> None:
    """And what prepares its videos is not needed, torchvision or not."""
    folder = read_model_folder(str(tiny_task("qwen-vl")))
    app = write_project(tmp_path / "model_qwen", app_code("qwen", choose(folder, None).task, folder), folder)
    instance = session_zygote.start(app.parent, weights=folder.path)
    callers = [instance.connect() for _ in range(3)]
    bodies = [asks(image(RED), "tea? "), asks("no picture, but more of a text"), asks(image(GREEN), image(RED))]
    alone = [text_of(streamed(callers[0], body)) for body in bodies]
    numbers = [each.invoke(body, accept_stream=True) for each, body in zip(callers, bodies, strict=True)]
    together = [text_of([*pieces_of(each, number)]) for each, number in zip(callers, numbers, strict=True)]
    assert together == alone and len({*alone}) == 3


def test_a_model_that_hears_writes_about_sounds(session_zygote: Zygote, tmp_path: Path) -> None:
    from transformers import pipeline

    from samovar_instance.engines.pipelines.media import sound_of

    folder = read_model_folder(str(tiny_task("any-to-any")))
    choice = choose(folder, None)
    assert choice.task.name == "any-to-any"
    app = write_project(tmp_path / "model_ears", app_code("ears", choice.task, folder), folder)
    caller = session_zygote.start(app.parent, weights=folder.path).connect()
    clip = wav(bytes((index * 7) % 256 for index in range(6400)))
    sound = {"type": "audio", "audio": base64.b64encode(clip).decode()}
    pieces = streamed(caller, asks(sound, "what was it?", logprobs=0))
    parts = [{"type": "audio", "audio": sound_of(clip, None, RATE_HZ)}, {"type": "text", "text": "what was it?"}]
    settings = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    (expected,) = pipeline("any-to-any", model=str(folder.path), device="cpu")(
        text=[{"role": "user", "content": parts}], return_tensors=True, generate_kwargs=settings
    )
    told = [token.token_id for piece in pieces for token in piece.logprobs]
    assert told == expected["generated_token_ids"].tolist()[-12:]
    for wrong in (image(RED), {"type": "audio", "audio": base64.b64encode(b"RIFF").decode()}):
        failed = caller.fail(asks("a", wrong))
        assert (failed.status, failed.extra["param"]) == (400, "messages[0].content[1]")
