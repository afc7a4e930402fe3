"""Drafts as an option of the function: from the author's file through the manifest into a real instance."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import msgspec
import pytest

import samovar as sv
from samovar import wire
from samovar.acceleration.options import Acceleration
from samovar.deploying import inspect
from samovar.errors import DeployRefused
from samovar.tasks.generation import GenerationOutput
from support.engines import expected
from support.instance_driver import FUNCTIONS, Caller, Instance, Zygote
from support.tiny_models import tiny_model
from support.waiting import wait_until

pytestmark = pytest.mark.process

NUM_TOKENS = 160
PROMPT = (70, 80, 90) * 6
COUNTS = re.compile(r"drafts (\d+) right (\d+)")

APP = """\
import samovar as sv
from samovar_instance.engines.text_generation import TextGenerator

@sv.function(
    task="text-generation",
    weights=sv.Weights("weights"),
    speculation=sv.Speculation("draft-model", folder="small"),
)
class Chat(TextGenerator): ...
"""


def answer(caller: Caller) -> list[int]:
    """Return the tokens of one greedy answer."""
    body = {"prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0, "logprobs": 0}
    caller.invoke(body)
    lines = caller.expect(wire.Result).body.splitlines()
    pieces = [msgspec.json.decode(line, type=GenerationOutput) for line in lines]
    return [told.token_id for piece in pieces for told in piece.logprobs]


def counts(instance: Instance) -> tuple[int, int]:
    """Return how many drafts the instance says that it made, and how many were right."""
    wait_until(lambda: COUNTS.search(instance.log_text()) is not None)
    made, right = COUNTS.findall(instance.log_text())[-1]
    return int(made), int(right)


@pytest.fixture(scope="module")
def declared() -> Acceleration:
    return inspect(str(FUNCTIONS / "drafts" / "app.py")).manifest.acceleration


def test_what_the_author_declares_is_in_the_manifest(declared: Acceleration) -> None:
    assert declared.speculation == sv.Speculation(
        "prompt-lookup", match_tokens=(2, 1), max_drafts=4, min_gain=1.0, max_loss=1.0
    )


def test_an_instance_drafts_and_says_what_generate_does(zygote: Zygote, declared: Acceleration) -> None:
    instance = zygote.start(FUNCTIONS / "drafts", weights=tiny_model("llama"), acceleration=declared)
    assert answer(instance.connect()) == expected("llama", PROMPT, NUM_TOKENS)
    made, right = counts(instance)
    assert 0 < right <= made


def test_nothing_is_drafted_that_is_not_declared(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "drafts", weights=tiny_model("llama"))
    assert answer(instance.connect())
    assert counts(instance) == (0, 0)


def test_a_draft_model_is_among_the_weights(tmp_path: Path) -> None:
    shutil.copytree(tiny_model("llama"), tmp_path / "weights")
    (tmp_path / "app.py").write_text(APP)
    with pytest.raises(DeployRefused, match=r"there is no model in .*weights/small"):
        inspect(str(tmp_path / "app.py"))
    shutil.copytree(tiny_model("llama"), tmp_path / "weights" / "small")
    draft = inspect(str(tmp_path / "app.py"))
    assert draft.manifest.acceleration.speculation == sv.Speculation("draft-model", folder="small")
