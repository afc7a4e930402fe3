"""Models whose weights are not all there: transformers makes up the rest at random, and answers would look right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from samovar.errors import DeployRefused
from samovar.torch import load_pretrained
from samovar_instance.engines.embeddings import Embedder
from samovar_instance.engines.pipelines.texts import FeatureExtractor, TextClassifier
from samovar_instance.engines.text_generation import TextGenerator
from support.tiny_models import tiny_model
from support.tiny_tasks import tiny_task

pytestmark = pytest.mark.process


def altered(tmp_path: Path, source: Path, **config: Any) -> Path:
    """Return a copy of a model's folder whose config.json says something else."""
    folder = tmp_path / "model"
    shutil.copytree(source, folder)
    said = json.loads((folder / "config.json").read_bytes())
    (folder / "config.json").write_text(json.dumps({**said, **config}))
    return folder


def test_layers_that_are_not_there_are_not_made_up(tmp_path: Path) -> None:
    folder = altered(tmp_path, tiny_model("llama"), num_hidden_layers=3)
    with pytest.raises(
        DeployRefused,
        match=r"the weights lack model\.layers\.2\.\S+ and 8 more, which would be random: either they are not",
    ):
        TextGenerator().load(folder, "cpu")
    assert load_pretrained(folder, device="cpu") is not None, "whoever loads it in code of their own may want that"


def test_the_config_of_another_model_is_noticed(tmp_path: Path) -> None:
    folder = altered(tmp_path, tiny_model("llama"))
    shutil.copy(tiny_model("gpt2") / "config.json", folder)
    with pytest.raises(DeployRefused, match=r"lack transformer\.h\.0\S+ and 27 more, .* that of another model"):
        TextGenerator().load(folder, "cpu")


def test_a_head_that_was_never_trained_does_not_answer(tmp_path: Path) -> None:
    folder = altered(tmp_path, tiny_model("bert"), architectures=["BertForSequenceClassification"])
    with pytest.raises(DeployRefused, match=r"lack classifier\.bias and 1 more"):
        TextClassifier().load(folder, "cpu")


@pytest.mark.parametrize("engine", [Embedder, FeatureExtractor])
def test_a_part_that_is_not_asked_may_be_missing(tmp_path: Path, engine: Any) -> None:
    model = engine()
    model.load(tiny_task("fill-mask"), "cpu")  # saved without a pooler, which vectors of tokens come before
    folder = altered(tmp_path, tiny_task("fill-mask"), num_hidden_layers=2)
    with pytest.raises(DeployRefused, match=r"lack encoder\.layer\.1\."):
        engine().load(folder, "cpu")
