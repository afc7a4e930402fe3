"""Whether a function's types are those of its task, and which field of its input takes the text.

All from JSON Schemas, so that deploy and gateway decide alike. This module does not know protocols or models.
"""

from __future__ import annotations

from typing import Any

from samovar.errors import DeployRefused
from samovar.spec import HandlerKind
from samovar.tasks import EMBEDDINGS, PARTS

_GENERATORS = ("generator", "async_generator")


def check_task(task: str, handler: HandlerKind, input_schema: dict[str, Any], output_schema: dict[str, Any]) -> None:
    """Return if a function of these types does what its task says. Raises: DeployRefused saying what it must take."""
    if task in PARTS:
        takes = {"messages", "prompt", "max_tokens"} <= input_schema.get("properties", {}).keys()
        if handler not in _GENERATORS or not takes:
            raise DeployRefused(
                f'task="{task}": the handler takes one samovar.tasks.generation.GenerationInput and yields '
                "GenerationOutputs"
            )
    elif task == EMBEDDINGS:
        gives = "embedding" in output_schema.get("properties", {})
        if handler in _GENERATORS or text_field(input_schema) is None or not gives:
            raise DeployRefused(
                'task="embeddings": the handler takes one text, such as (text: str), or (text: list[str]) with '
                "batching, and returns a samovar.tasks.embedding.Embedding"
            )


def text_field(input_schema: dict[str, Any]) -> str | None:
    """Return the one field that must be sent, if it may be a string; None if there is no such field."""
    required = input_schema.get("required", [])
    if len(required) != 1:
        return None
    return required[0] if takes(input_schema, required[0], "string") else None


def takes(input_schema: dict[str, Any], field: str, kind: str) -> bool:
    """Return whether a field of the input may be of a JSON type ("string", "array")."""
    schema = input_schema.get("properties", {}).get(field, {})
    return any(option.get("type") == kind for option in [schema, *schema.get("anyOf", [])])
