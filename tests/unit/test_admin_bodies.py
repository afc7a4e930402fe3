"""What is said of a body of the wrong shape: which field, and what it could have been."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from samovar.jobs import CronJob
from samovar_gateway.admin.requests import invalid
from samovar_gateway.jobs.submit import SubmitBody


@pytest.mark.parametrize(
    ("type", "body", "path", "sentence"),
    [
        (SubmitBody, {"priority": "high"}, "$.priority", "Invalid enum value 'high': it is one of low, normal"),
        (SubmitBody, {"durability": "disk"}, "$.durability", "Invalid enum value 'disk': it is one of aof, fsync"),
        (CronJob, {"overlap": "x"}, "$.overlap", "Invalid enum value 'x': it is one of cancel, queue, skip"),
        (CronJob, {"options": {"priority": "x"}}, "$.options.priority", "Invalid enum value 'x': it is one of low, no"),
        (SubmitBody, {"retries": "3"}, "$.retries", "Expected `int | null`, got `str`"),
        (SubmitBody, {"retry": 3}, "$", "Object contains unknown field `retry`"),
    ],
)
def test_a_wrong_field_is_named_with_the_words_it_takes(
    type: Any, body: dict[str, Any], path: str, sentence: str
) -> None:
    whole = {"name": "n", "function": "f", "schedule": "* * * * *"} | body if type is CronJob else body
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(whole), type=type)
    error = invalid(caught.value, type)
    assert error.extra["path"] == path
    assert error.detail.startswith(sentence)
