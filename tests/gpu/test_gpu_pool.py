"""What only a real GPU can show of the pool: contexts in blanks, placement by measured memory, release, the ledger.

Run by tests/gpu/run.sh; skipped with the reason where there is no GPU, or a torch that cannot use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from samovar.spec import Resources
from samovar_pool.devices import DeviceFacts, Devices, find_devices
from samovar_pool.ledger import SLACK_BYTES
from support.pool import Pool, call, quick_scaling, running_pool
from support.stores import Stores

pytestmark = pytest.mark.gpu

GIB = 1 << 30
HOLDS = """
import torch
import samovar as sv

@sv.function(name={name!r}, example={{"rows": 2}})
class Holds:
    def load(self, weights, device):
        self.device = device
        self.block = torch.zeros({gib} << 30, dtype=torch.uint8, device=device)
        self.matrix = torch.eye(64, device=device)

    def __call__(self, rows: int) -> str:
        total = float((self.matrix[:rows] @ self.matrix).sum())
        return f"{{self.device}} {{total:g}} {{torch.cuda.memory_allocated() >> 30}}"
"""


@pytest.fixture(scope="module")
def devices() -> Devices:
    found = find_devices(0, 0)
    if not found.read():
        pytest.skip("no GPU: the driver's library is missing or lists no device")
    torch = pytest.importorskip("torch")
    if not torch.version.cuda:
        pytest.skip(f"torch {torch.__version__} is a CPU build")
    return found


@pytest.fixture
def pool(devices: Devices, stores: Stores, tmp_path: Path) -> Iterator[Pool]:
    with running_pool(stores, tmp_path, min_blanks=1, max_blanks=2) as pool:
        yield pool


def used(devices: Devices) -> dict[str, int]:
    return {fact.device: fact.used_bytes for fact in devices.read()}


def test_the_driver_lists_devices_with_their_memory(devices: Devices) -> None:
    for fact in devices.read():
        assert isinstance(fact, DeviceFacts)
        assert 0 < fact.free_bytes <= fact.total_bytes and fact.name and not fact.simulated
        assert Path(f"/sys/bus/pci/devices/{fact.pci}").exists()


def test_blank_context_placement_ledger_and_release(pool: Pool, devices: Devices) -> None:
    idle = used(devices)
    share = Resources(gpu_memory_gib=2)
    ref = pool.write("holds", HOLDS.format(name="holds", gib=1), resources=share, scaling=quick_scaling()).ref
    pool.start()
    blank = pool.until(
        lambda: [r for r in pool.in_state("blank") if r.device.startswith("cuda")], what="a blank there"
    )[0]
    with_context = used(devices)
    assert with_context[blank.device] - idle[blank.device] > 50 << 20, "the blank has its context up"
    pool.demand(ref)
    (record,) = pool.ready(ref, timeout_s=60)
    assert record.device in idle and not record.simulated and not record.from_template
    assert call(record, b'{"rows": 2}') == f'"{record.device} 2 1"'.encode()
    assert used(devices)[record.device] - idle[record.device] >= GIB
    node = pool.until(lambda: (n := pool.node()) and n.devices and n)
    placed = next(device for device in node.devices if device.device == record.device)
    assert placed.free_bytes <= placed.memory_bytes - GIB
    pool.demand(ref, 0)
    pool.until(lambda: not pool.instances(ref), what="scale to zero")
    pool.until(lambda: used(devices)[record.device] <= with_context[record.device] + SLACK_BYTES, what="memory is back")
    assert "that no instance explains" not in pool.log()


def test_two_shares_fit_one_device_and_a_third_waits(pool: Pool, devices: Devices) -> None:
    smallest = min(fact.total_bytes for fact in devices.read())
    num_devices = len(devices.read())
    share = Resources(gpu_memory_gib=0.4 * smallest / GIB)
    scaling = quick_scaling(min_instances=2 * num_devices + 1, max_instances=2 * num_devices + 1)
    ref = pool.write("shares", HOLDS.format(name="shares", gib=1), resources=share, scaling=scaling).ref
    pool.start()
    ready = pool.ready(ref, 2 * num_devices, timeout_s=120)
    assert {record.device for record in ready} == {fact.device for fact in devices.read()}
    pool.until(lambda: "device" in [decision.rule for decision in pool.decisions("shares")], what="no room is said")


def test_load_pretrained_goes_straight_to_the_device(devices: Devices, tmp_path: Path) -> None:
    """Equal in every output bit to from_pretrained, without a copy on the host first."""
    import torch
    from transformers import BertConfig, BertModel

    from samovar.torch import load_pretrained

    torch.manual_seed(0)
    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256)
    BertModel(config).save_pretrained(tmp_path)
    device = devices.read()[0].device
    mine = load_pretrained(tmp_path, BertModel, device).eval()
    reference = BertModel.from_pretrained(tmp_path).to(device).eval()
    assert {parameter.device for parameter in mine.parameters()} == {torch.device(device)}
    ids = torch.randint(0, config.vocab_size, (2, 16), device=device)
    with torch.inference_mode():
        assert torch.equal(mine(ids).last_hidden_state, reference(ids).last_hidden_state)
