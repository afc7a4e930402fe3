"""Tensors of 64 MB go through, and no process holds more than a few copies of one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.gateway import ADMIN_KEY
from support.instance_driver import Zygote
from support.openai_gateway import Platform, running_platform

pytestmark = pytest.mark.process
NUM_BYTES = 64 << 20
# what came, as a frame, and what goes: measured 3.1 in the gateway and 2.8 in the instance, in and out together
MAX_COPIES = 3.5
# grpcio by itself holds 3.2 while it puts a message together, and 2.0 while it sends one; measured 3.9 for all of it
MAX_COPIES_GRPC = 4.9


@pytest.fixture(scope="module")
def platform(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote, max_body_bytes=200 << 20) as running:
        running.serve("mirrors")
        yield running


def memory_bytes(pid: int, which: str) -> int:
    """Return what a process has resident: VmRSS, or at its peak, VmHWM."""
    found = re.search(rf"{which}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def test_sixty_four_megabytes_there_and_back(platform: Platform) -> None:
    x = np.arange(NUM_BYTES // 4, dtype="f4").reshape(-1, 4096)
    tensor = triton.InferInput("fp32", list(x.shape), "FP32").set_data_from_numpy(x)
    pids = platform.gateway.process.pid, platform.instances["mirrors"].pid
    before = [memory_bytes(pid, "VmRSS") for pid in pids]
    with triton.InferenceServerClient(platform.gateway.url.removeprefix("http://"), network_timeout=60) as client:
        for _ in range(2):
            headers = {"authorization": f"Bearer {ADMIN_KEY}"}
            assert np.array_equal(client.infer("mirrors", [tensor], headers=headers).as_numpy("fp32"), x)
    copies = [(memory_bytes(pid, "VmHWM") - then) / NUM_BYTES for pid, then in zip(pids, before, strict=True)]
    assert max(copies) < MAX_COPIES, f"copies in gateway and instance: {copies}"


def test_sixty_four_megabytes_by_grpc(platform: Platform) -> None:
    x = np.arange(NUM_BYTES // 4, dtype="f4").reshape(-1, 4096)
    tensor = triton_grpc.InferInput("fp32", list(x.shape), "FP32").set_data_from_numpy(x)
    pid = platform.gateway.process.pid
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak begins anew
    before = memory_bytes(pid, "VmRSS")
    with triton_grpc.InferenceServerClient(platform.gateway.grpc) as client:
        for _ in range(2):
            headers = {"authorization": f"Bearer {ADMIN_KEY}"}
            answer = client.infer("mirrors", [tensor], headers=headers, client_timeout=60)
            assert np.array_equal(answer.as_numpy("fp32"), x)
    copies = (memory_bytes(pid, "VmHWM") - before) / NUM_BYTES
    assert copies < MAX_COPIES_GRPC, f"copies in the gateway: {copies}"
