"""Pictures and sounds in OpenAI's messages: what becomes of them, and what is refused by its place."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import RequestError
from samovar.tasks import ANY_TO_ANY, IMAGE_TEXT_TO_TEXT, PARTS, TEXT_GENERATION
from samovar.tasks.generation import MAX_MEDIA, GenerationInput, Message, Part
from samovar_gateway.openai import requests

DATA = base64.b64encode(b"a picture").decode()
URL = f"data:image/png;base64,{DATA}"


def picture(**changes: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": URL, "detail": "auto"} | changes}


def sound(**changes: Any) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": DATA, "format": "wav"} | changes}


def asked(*parts: Any, task: str = ANY_TO_ANY) -> list[Part]:
    fields = {"model": "m", "messages": [{"role": "user", "content": [*parts]}]}
    (found,) = requests.chat(fields, PARTS[task]).inputs
    assert found.messages is not None and isinstance(found.messages[0].content, list)
    # as its function gets it
    sent = msgspec.json.decode(msgspec.json.encode(found), type=GenerationInput)
    assert sent == found
    return found.messages[0].content


@given(st.binary(min_size=1, max_size=200), st.sampled_from(["image/png", "IMAGE/svg+xml", "image/x;a=b"]))
def test_bytes_of_a_picture_arrive(data: bytes, kind: str) -> None:
    url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
    text, image = asked({"type": "text", "text": "what?"}, picture(url=url), task=IMAGE_TEXT_TO_TEXT)
    assert (text.text, image) == ("what?", Part(type="image", image=data))


def test_bytes_of_a_sound_arrive() -> None:
    assert asked(sound()) == [Part(type="audio", audio=b"a picture")]


AT = "messages[0].content[0]"


@pytest.mark.parametrize(
    ("part", "task", "param"),
    [
        (picture(), TEXT_GENERATION, AT),
        (sound(), TEXT_GENERATION, AT),
        (sound(), IMAGE_TEXT_TO_TEXT, AT),
        ({"type": "file", "file": {}}, ANY_TO_ANY, AT),
        ({"type": ["image_url"]}, ANY_TO_ANY, AT),
        ({"type": "image", "image": DATA}, ANY_TO_ANY, AT),
        ("a picture", ANY_TO_ANY, AT),
        ({"type": "image_url"}, ANY_TO_ANY, f"{AT}.image_url"),
        ({"type": "image_url", "image_url": URL}, ANY_TO_ANY, f"{AT}.image_url"),
        (picture() | {"text": "x"}, ANY_TO_ANY, f"{AT}.text"),
        (picture(detail="high"), ANY_TO_ANY, f"{AT}.image_url.detail"),
        (picture(size=3), ANY_TO_ANY, f"{AT}.image_url.size"),
        (picture(url=7), ANY_TO_ANY, f"{AT}.image_url.url"),
        (picture(url="https://example.org/a.png"), ANY_TO_ANY, f"{AT}.image_url.url"),
        (picture(url="/etc/passwd"), ANY_TO_ANY, f"{AT}.image_url.url"),
        (picture(url=f"data:text/html;base64,{DATA}"), ANY_TO_ANY, f"{AT}.image_url.url"),
        (picture(url="data:image/png,%00"), ANY_TO_ANY, f"{AT}.image_url.url"),
        (picture(url="data:image/png;base64,@@@"), ANY_TO_ANY, f"{AT}.image_url.url"),
        (picture(url="data:image/png;base64,é"), ANY_TO_ANY, f"{AT}.image_url.url"),
        (picture(url="data:image/png;base64,"), ANY_TO_ANY, f"{AT}.image_url.url"),
        (sound(format="mp3"), ANY_TO_ANY, f"{AT}.input_audio.format"),
        (sound(data=None), ANY_TO_ANY, f"{AT}.input_audio.data"),
        ({"type": "input_audio"}, ANY_TO_ANY, f"{AT}.input_audio"),
    ],
)
def test_what_is_no_picture_is_refused_by_its_place(part: Any, task: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        asked(part, task=task)
    assert (caught.value.status, caught.value.extra["param"]) == (400, param)


def test_addresses_are_refused_with_what_to_do_instead() -> None:
    with pytest.raises(RequestError, match=r"not fetched.*no network.*data:image/png;base64") as caught:
        asked(picture(url="https://example.org/" + "a" * 1000))
    assert len(str(caught.value)) < 300


def test_there_are_only_so_many() -> None:
    assert len(asked(*[picture()] * MAX_MEDIA)) == MAX_MEDIA
    with pytest.raises(RequestError, match="33 pictures"):
        asked(*[picture()] * MAX_MEDIA, sound())


def test_a_part_of_text_is_sent_as_it_always_was() -> None:
    assert msgspec.json.encode(Message(role="user", content=[Part(type="text", text="tea")])) == (
        b'{"role":"user","content":[{"type":"text","text":"tea"}]}'
    )
