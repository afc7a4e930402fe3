"""Settings of the pool manager process. This module does not know what is done with them."""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal

from msgspec import Meta

from samovar.errors import ConfigError
from samovar_storage.settings import StoreSettings

_SIMULATED = re.compile(r"^(\d{1,2})x(\d{1,4})$")
MEMORY_SHARE = 0.6


class PoolSettings(StoreSettings, frozen=True, kw_only=True):
    """What one node may use, and how it keeps its warm pool."""

    memory_budget_bytes: Annotated[
        int, Meta(ge=0, description="Memory all instances together may use, in bytes; 0 means 60 % of this machine's")
    ] = 0
    cache_bytes: Annotated[int, Meta(gt=0, description="Cap of the node cache for code and weights, in bytes")] = (
        100 << 30
    )
    min_blanks: Annotated[int, Meta(ge=0, le=64, description="Blank instances always kept, per device")] = 2
    max_blanks: Annotated[int, Meta(ge=0, le=256, description="Most blank instances kept, per device")] = 8
    tick_s: Annotated[float, Meta(gt=0, le=10, description="Longest time between two looks at the pool, seconds")] = 1.0
    min_residency_s: Annotated[
        float, Meta(ge=0, description="An instance is not evicted for another version before this age, seconds")
    ] = 10.0
    transport: Annotated[
        Literal["unix", "tcp"], Meta(description="How gateways reach instances: unix sockets, or tcp on loopback")
    ] = "unix"
    templates: Annotated[bool, Meta(description="Keep loaded templates to fork further instances from")] = True
    prepare_on_deploy: Annotated[
        bool, Meta(description="Fetch a version's files when it is deployed and, with templates, load one at once")
    ] = True
    preload: Annotated[str, Meta(description="Comma-separated modules to import in the zygote beyond the usual")] = ""
    simulate_gpus: Annotated[
        str, Meta(description="Fake devices for laptops and tests, such as 4x80: four of 80 GiB; empty for real ones")
    ] = ""
    sandbox: Annotated[
        Literal["off", "best-effort", "required"],
        Meta(description="Confinement of functions: off, every layer there is, or no start if one is missing"),
    ] = "best-effort"
    layer_timeout_s: Annotated[
        float, Meta(gt=0, description="Longest an installation of pip requirements may take, seconds")
    ] = 900.0

    def __post_init__(self) -> None:
        if self.min_blanks > self.max_blanks:
            raise ConfigError(f"min_blanks {self.min_blanks} is larger than max_blanks {self.max_blanks}")
        if self.simulate_gpus and not _SIMULATED.match(self.simulate_gpus):
            raise ConfigError(f"simulate_gpus {self.simulate_gpus!r} is not NUMBERxGIB, such as 4x80")


def simulated_gpus(settings: PoolSettings) -> tuple[int, int]:
    """Return (number, bytes each) of the simulated devices, (0, 0) without any."""
    match = _SIMULATED.match(settings.simulate_gpus)
    return (int(match[1]), int(match[2]) << 30) if match else (0, 0)


def memory_budget_bytes(settings: PoolSettings) -> int:
    """Return the budget: as set, else MEMORY_SHARE of this machine's memory."""
    if settings.memory_budget_bytes:
        return settings.memory_budget_bytes
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * MEMORY_SHARE)
