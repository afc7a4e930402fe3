"""The OpenAPI document of a function: complete, and free of dangling references."""

from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import pytest

from samovar.spec import BlobRef, Manifest
from samovar_gateway.admin.openapi import document


class Sentence(msgspec.Struct):
    text: Annotated[str, msgspec.Meta(min_length=1)]


class Cat(msgspec.Struct, tag="cat"):
    name: str


class Dog(msgspec.Struct, tag="dog"):
    friend: Sentence


def manifest(input_type: Any, output_schema: dict[str, Any], **changes: Any) -> Manifest:
    base = Manifest(
        name="my-fn",
        version=3,
        entry="app:f",
        kind="function",
        handler="sync",
        code=BlobRef(sha256="a" * 64, size_bytes=1),
        input_schema=msgspec.json.schema(input_type),
        output_schema=output_schema,
    )
    return msgspec.structs.replace(base, **changes)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            elif key == "mapping":
                yield from item.values()
            else:
                yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def check_structure(found: dict[str, Any]) -> None:
    """The parts OpenAPI 3.1 requires, and every reference lands."""
    assert found["openapi"].startswith("3.1.")
    assert set(found["info"]) >= {"title", "version"} and isinstance(found["info"]["version"], str)
    for path, item in found["paths"].items():
        assert path.startswith("/")
        for method, operation in item.items():
            assert method in {"get", "post"} and operation["operationId"].isidentifier()
            assert operation["responses"]
            for status, response in operation["responses"].items():
                assert status.isdigit() and response["description"]
            for parameter in operation["parameters"]:
                assert parameter["in"] in {"header", "query", "path"} and parameter["schema"]
    for reference in references(found):
        assert reference.startswith("#/components/schemas/"), reference
        assert reference.rpartition("/")[2] in found["components"]["schemas"], reference
    assert "$defs" not in str(found)


@pytest.mark.parametrize("input_type", [int, str, list[float], Sentence, Cat | Dog, dict[str, list[Sentence]], Any])
def test_any_input_type_gives_a_sound_document(input_type: Any) -> None:
    check_structure(document(manifest(input_type, msgspec.json.schema(list[Sentence])), "http://h:1"))


def test_a_name_that_means_two_things_keeps_both() -> None:
    output = {"$ref": "#/$defs/Sentence", "$defs": {"Sentence": {"type": "object", "properties": {"v": {}}}}}
    found = document(manifest(Sentence, output), "http://h:1")
    check_structure(found)
    schemas = found["components"]["schemas"]
    assert schemas["Sentence"]["properties"].keys() == {"text"}
    assert schemas["OutputSentence"]["properties"].keys() == {"v"}


def test_a_generator_answers_lines() -> None:
    found = document(manifest(int, {"type": "integer"}, handler="generator", example=3), "http://h:1")
    operation = found["paths"]["/v1/functions/my-fn/invoke"]["post"]
    assert list(operation["responses"]["200"]["content"]) == ["application/x-ndjson", "text/event-stream"]
    assert operation["requestBody"]["content"]["application/json"]["example"] == 3
