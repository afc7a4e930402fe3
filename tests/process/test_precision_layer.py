"""What a precision costs is measured at deploy; what it needs and this environment lacks comes as a layer for that."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from samovar import deploying
from samovar.errors import DeployRefused
from support.pool import make_wheel
from support.tiny_models import tiny_model

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(importlib.util.find_spec("torchao") is not None, reason="torchao is installed already"),
]

APP = """
from pathlib import Path

import torch
from transformers import BertModel

import samovar as sv
from samovar.torch import load_pretrained


@sv.function(weights=sv.Weights("model"), precision=sv.Precision("int8-weight"), example={"ids": [5, 6, 7]})
class Embed:
    def load(self, weights: Path, device: str) -> None:
        self.net = load_pretrained(weights, BertModel, device)

    @torch.inference_mode()
    def __call__(self, ids: list[int]) -> list[float]:
        return self.net(input_ids=torch.tensor([ids])).last_hidden_state[0, 0].tolist()
"""
WRITES = """
import samovar as sv
from samovar_instance.engines.text_generation import TextGenerator


@sv.function(
    task="text-generation",
    weights=sv.Weights("weights"),
    precision=sv.Precision("bf16"),
    example={"prompt": "tea is", "max_tokens": 2},
)
class Writes(TextGenerator):
    cache_gib = 0.01
"""
# what is called of torchao, rounding more than it does
TORCHAO = """
import sys
import types

import torch


def quantize_(model, config):
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.weight = torch.nn.Parameter((module.weight * 8).round() / 8)


quantization = types.ModuleType("torchao.quantization")
quantization.quantize_ = quantize_
quantization.Int8WeightOnlyConfig = quantization.Int8DynamicActivationInt8WeightConfig = object
sys.modules["torchao.quantization"] = quantization
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An author's file, on a machine whose index of packages is a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    (tmp_path / "app").mkdir()
    shutil.copytree(tiny_model("bert"), tmp_path / "app" / "model")
    (tmp_path / "app" / "app.py").write_text(APP)
    return tmp_path / "app" / "app.py"


def test_a_precision_is_measured_with_what_it_needs(app: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "index", "torchao", "0.10.0", TORCHAO)  # too old for transformers to look at it
    manifest = deploying.prepare(deploying.inspect(str(app))).manifest
    assert manifest.requirements == ["torchao>=0.10"], "instances get it as a layer of the version's own"
    assert manifest.built is not None and manifest.built.difference is not None
    assert manifest.built.difference.cosine is not None and 0.5 < manifest.built.difference.cosine < 0.99999
    assert importlib.util.find_spec("torchao") is None, "this environment stays as it was"


def test_of_a_model_that_writes_the_chances_of_its_tokens_are_compared(app: Path) -> None:
    """Two texts that differ are no measure of an error."""
    shutil.copytree(tiny_model("llama"), app.parent / "weights")
    app.write_text(WRITES)
    built = deploying.prepare(deploying.inspect(str(app))).manifest.built
    assert built is not None and built.difference is not None
    assert built.difference.cosine is not None and 0.9 < built.difference.cosine < 1
    assert built.difference.max_abs is not None and 0 < built.difference.max_abs < 0.2


def test_what_cannot_be_installed_is_said_with_what_to_type(app: Path) -> None:
    with pytest.raises(DeployRefused, match=r"needs torchao>=0\.10: .*try: pip install 'torchao>=0\.10'"):
        deploying.prepare(deploying.inspect(str(app)))
