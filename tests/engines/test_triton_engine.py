"""The Triton adapter against a real server, where one is installed: tests/engines/run.sh makes such an environment."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar.context import Context
from samovar.errors import FunctionRaised
from samovar_instance.engines.triton import TritonModel, find_server
from support.waiting import wait_until

CONFIG = """\
name: "adds"
backend: "python"
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "b" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "sum" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
# a negative first number: so many seconds of sleep
MODEL = """\
import time
import triton_python_backend_utils as pb

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        a, b = (pb.get_input_tensor_by_name(request, name).as_numpy() for name in "ab")
        give_up_at_s = time.monotonic() + max(0.0, -float(a[0]))
        while time.monotonic() < give_up_at_s and not request.is_cancelled():
            time.sleep(0.01)
        return pb.InferenceResponse([pb.Tensor("sum", a + b)])
"""


def _missing() -> str:
    try:
        find_server()
    except RuntimeError as error:
        return str(error)
    return "" if importlib.util.find_spec("tritonclient") else "the package tritonclient is not installed"


pytestmark = [pytest.mark.process, pytest.mark.skipif(bool(_missing()), reason=_missing())]


class Adds(TritonModel):
    model = "adds"

    async def __call__(self, a: Any, b: Any, ctx: Context) -> Any:
        return (await self.infer({"a": a, "b": b}, ctx))["sum"]


@pytest.fixture(scope="module")
def adds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Adds]:
    repository = tmp_path_factory.mktemp("repository")
    (repository / "adds" / "1").mkdir(parents=True)
    (repository / "adds" / "config.pbtxt").write_text(CONFIG)
    (repository / "adds" / "1" / "model.py").write_text(MODEL)
    model = Adds()
    model.load(repository, "cpu")
    yield model
    model.unload()


def numbers(*values: float) -> Any:
    import numpy as np

    return np.array(values, dtype=np.float32)


def in_a_loop(model: Adds, work: Any) -> Any:
    model._client = None  # a client belongs to one loop
    return asyncio.run(work)


def test_it_answers_and_is_well(adds: Adds) -> None:
    adds.check()
    assert in_a_loop(adds, adds(numbers(1, 2), numbers(3, 4), Context())).tolist() == [4, 6]


def test_bad_input_is_told_in_tritons_words(adds: Adds) -> None:
    with pytest.raises(FunctionRaised, match="expected 2 inputs"):
        in_a_loop(adds, adds.infer({"a": numbers(1)}, Context()))


def test_a_deadline_ends_it(adds: Adds) -> None:
    with pytest.raises(FunctionRaised, match=r"(?i)deadline"):
        in_a_loop(adds, adds(numbers(-30), numbers(1), Context(deadline=time.monotonic() + 0.5)))
    assert in_a_loop(adds, adds(numbers(1), numbers(1), Context())).tolist() == [2]


def test_a_cancel_frees_the_model(adds: Adds) -> None:
    async def leave_and_come_again() -> Any:
        call = asyncio.create_task(adds(numbers(-30), numbers(1), Context()))
        _, pending = await asyncio.wait([call], timeout=0.5)
        assert pending, "it was answered at once"
        call.cancel()
        return await adds(numbers(5), numbers(6), Context(deadline=time.monotonic() + 20))

    assert in_a_loop(adds, leave_and_come_again()).tolist() == [11]


def test_a_server_that_dies_is_seen(tmp_path: Path) -> None:
    (tmp_path / "adds" / "1").mkdir(parents=True)
    (tmp_path / "adds" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "adds" / "1" / "model.py").write_text(MODEL)
    model = Adds()
    model.load(tmp_path, "cpu")
    assert model._server is not None
    process = model._server._process
    process.kill()
    wait_until(lambda: process.poll() is not None, 10, "the server is gone")
    with pytest.raises(RuntimeError, match="ended with -9"):
        model.check()
    model.unload()


def test_a_repository_that_cannot_be_served_says_so(tmp_path: Path) -> None:
    (tmp_path / "adds" / "1").mkdir(parents=True)
    (tmp_path / "adds" / "config.pbtxt").write_text(CONFIG)
    (tmp_path / "adds" / "1" / "model.py").write_text("raise ValueError('no tea')")
    with pytest.raises(RuntimeError, match="before it was ready"):
        Adds().load(tmp_path, "cpu")
