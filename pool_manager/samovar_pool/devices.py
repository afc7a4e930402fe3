"""The accelerators of this node: through NVML when there are any, fake ones on request. None are needed.

Every answer is the driver's, never torch's: no context is made here. This module does not know placement or ledgers.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

logger = logging.getLogger("samovar.pool")


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One accelerator as its driver sees it. pci: bus address in /sys form, "" for a fake one."""

    device: str
    name: str
    total_bytes: int
    free_bytes: int
    pci: str = ""
    simulated: bool = False

    @property
    def used_bytes(self) -> int:
        """What the driver counts as taken, by whomever."""
        return self.total_bytes - self.free_bytes


class Devices(Protocol):
    """Lists the accelerators with their memory as measured now."""

    simulated: bool

    def read(self) -> list[DeviceFacts]:
        """Return every device. Blocks for about a millisecond; never raises."""


class NoDevices:
    """A node without accelerators."""

    simulated = False

    def read(self) -> list[DeviceFacts]:
        """Return nothing."""
        return []


class SimulatedDevices:
    """Fake devices, for laptops and tests; instances placed on them run on the CPU. Always free: the ledger counts."""

    simulated = True

    def __init__(self, num: int, each_bytes: int) -> None:
        self._facts = [
            DeviceFacts(f"cuda:{i}", "simulated device", each_bytes, each_bytes, simulated=True) for i in range(num)
        ]

    def read(self) -> list[DeviceFacts]:
        """Return the fake devices."""
        return self._facts


class NvmlDevices:
    """Real devices, through the driver's management library."""

    simulated = False

    def __init__(self) -> None:
        import pynvml

        self._nvml = pynvml
        pynvml.nvmlInit()
        self._handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]

    def read(self) -> list[DeviceFacts]:
        """Return what the driver says; a device that fell off the bus is left out, and logged."""
        found = []
        for index, handle in enumerate(self._handles):
            try:
                found.append(self._facts(index, handle))
            except self._nvml.NVMLError as error:
                logger.error("device cuda:%d does not answer: %s", index, error)
        return found

    def _facts(self, index: int, handle: object) -> DeviceFacts:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        name = self._nvml.nvmlDeviceGetName(handle)
        bus = self._nvml.nvmlDeviceGetPciInfo(handle).busId
        text = bus.decode() if isinstance(bus, bytes) else str(bus)
        name = name.decode() if isinstance(name, bytes) else str(name)
        return DeviceFacts(f"cuda:{index}", name, int(memory.total), int(memory.free), sys_address(text))


def sys_address(bus_id: str) -> str:
    """Return an NVML bus id (`00000000:3B:00.0`) as /sys spells it (`0000:3b:00.0`)."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def find_devices(num_simulated: int, each_bytes: int) -> Devices:
    """Return the simulated devices if any are asked for, else the driver's, else none."""
    if num_simulated:
        return SimulatedDevices(num_simulated, each_bytes)
    try:
        devices = NvmlDevices()
    except Exception as error:  # noqa: BLE001 (no library, no driver, no permission: all mean no device here)
        logger.info("no accelerator here: %s", error)
        return NoDevices()
    logger.info("accelerators: %s", ", ".join(f"{d.device} {d.name}" for d in devices.read()))
    return devices
