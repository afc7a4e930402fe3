"""What a version declares of its models, on a whole platform: built at deploy, served in the sandbox by templates."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar import deploying
from samovar.errors import DeployRefused
from support.journeys import Caller
from support.tiny_models import tiny_model

pytestmark = pytest.mark.e2e
needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler to deploy with"
)

APP = """
from pathlib import Path

import torch
from transformers import BertModel

import samovar as sv
from samovar.torch import load_pretrained


@sv.function(name="{name}", weights=sv.Weights("model"), batch=sv.Batch(max_size=4), {example} {options})
class Embed:
    def load(self, weights: Path, device: str) -> None:
        self.net = load_pretrained(weights, BertModel, device)

    @torch.inference_mode()
    def __call__(self, ids: list[list[int]]) -> list[list[float]]:
        longest = max(map(len, ids))
        rows = torch.tensor([row + [0] * (longest - len(row)) for row in ids])
        mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        hidden = self.net(input_ids=rows, attention_mask=mask).last_hidden_state
        return hidden[:, 0].float().tolist()
"""
DECLARED = """
from pathlib import Path

import samovar as sv


@sv.function(name="{name}", weights=sv.Weights("model"), {example} {options})
class Declared:
    def load(self, weights: Path, device: str) -> None: ...

    def __call__(self, ids: list[int]) -> list[float]:
        return []
"""
INPUTS = ([5, 6, 7], [9], list(range(10, 60)))
EXAMPLE = 'example={"ids": [5, 6, 7, 8]},'


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path, name: str, options: str, example: str = EXAMPLE, app: str = APP) -> Path:
    """Write a project whose function embeds rows of token ids, as `options` say."""
    folder.mkdir()
    shutil.copytree(tiny_model("bert"), folder / "model")
    (folder / "app.py").write_text(app.format(name=name, options=options, example=example))
    return folder


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / (math.hypot(*a) * math.hypot(*b))


@pytest.fixture(scope="module")
def plain(caller: Caller, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[float]]]:
    """The answers of the function as torch runs it in fp32."""
    caller.deploy(write(tmp_path_factory.mktemp("plain") / "app", "acc-plain", ""))
    yield [caller.answer("acc-plain", {"ids": ids}) for ids in INPUTS]


@pytest.mark.parametrize(
    ("options", "least_cosine"),
    [
        pytest.param('compile="inductor"', 0.99999, marks=needs_compiler),
        ('engine="onnx"', 0.99999),
        ('precision=sv.Precision("bf16")', 0.999),
        ('precision=sv.Precision("int8")', 0.98),
        ('engine="onnx", precision=sv.Precision("int8")', 0.95),
        ('attention="eager"', 0.99999),
    ],
)
def test_what_is_declared_is_built_and_served(
    caller: Caller, plain: list[list[float]], tmp_path: Path, options: str, least_cosine: float
) -> None:
    name = "acc-" + "".join(filter(str.isalnum, options)).lower()[:40]
    folder = write(tmp_path / "app", name, options)
    draft = deploying.inspect(str(folder / "app.py"))
    caller.publish(deploying.prepare(draft))
    answers = [caller.answer(name, {"ids": ids}) for ids in INPUTS]
    for ours, theirs in zip(answers, plain, strict=True):
        assert cosine(ours, theirs) >= least_cosine
    if "precision" in options:
        assert answers != plain, "it computed in fp32"
    assert "as they are" not in "\n".join(caller.logs(name)), "torch ran what was to be run by what was built"
    built: list[Any] = []
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "samovar").glob("builds/*/.samovar/*")}
    found = deploying.prepare(draft, on_build=built.append).manifest.built
    assert all(path.stat().st_mtime_ns == written_ns for path, written_ns in made.items()), "it was built again"
    if "attention" in options:
        assert found is None and not built
        return
    assert bool(made) == ("compile" in options or "engine" in options)
    assert found is not None and found.difference is not None
    assert found.difference.cosine is not None and least_cosine <= found.difference.cosine <= 1.000001
    assert found.difference.speedup > 0


@pytest.mark.parametrize(
    ("options", "example", "says"),
    [
        ('compile="inductor"', "", "needs example="),
        ('compile="inductor", engine="onnx"', EXAMPLE, "take one"),
        ('engine="tensorrt"', EXAMPLE, "runs on GPUs"),
        ('attention="flash_attention_2"', EXAMPLE, "runs on GPUs"),
        ('precision=sv.Precision("int8"), compile="inductor"', EXAMPLE, "do not go together"),
        ('precision=sv.Precision("int4")', EXAMPLE, "int4"),
        ('engine="onnxx"', EXAMPLE, "onnxx"),
    ],
)
def test_what_cannot_be_is_refused_when_it_is_read(tmp_path: Path, options: str, example: str, says: str) -> None:
    folder = write(tmp_path / "app", "acc-refused", options, example, DECLARED)
    with pytest.raises(DeployRefused, match=says):
        deploying.inspect(str(folder / "app.py"))


def test_what_this_machine_cannot_build_is_refused_at_deploy(tmp_path: Path) -> None:
    folder = write(tmp_path / "app", "acc-refused", 'engine="tensorrt", resources=sv.Resources(gpus=1)')
    with pytest.raises(DeployRefused, match="has none"):
        deploying.prepare(deploying.inspect(str(folder / "app.py")))
