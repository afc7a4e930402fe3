"""Two real gateways over one Valkey of their own, which a test may stop and start again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import Gateway, running_gateway
from support.processes import running
from support.stores import Stores, stores_for_a_test


@dataclass
class TwoGateways:
    """process: of Valkey; start: starts it again."""

    gateways: tuple[Gateway, Gateway]
    process: subprocess.Popen[bytes]
    start: Callable[[], subprocess.Popen[bytes]]
    stores: Stores
    store: ObjectStore


@contextmanager
def two_gateways(seaweed: EmbeddedSeaweed) -> Iterator[TwoGateways]:
    """Run both, `a` and `b`, for the length of the context."""
    with short_folder() as folder, ExitStack() as stack:
        server = EmbeddedValkey(folder / "valkey-data")
        log = folder / "valkey.log"

        def start() -> subprocess.Popen[bytes]:
            process = stack.enter_context(running(server.command(), log, server.environment(), server.stop_grace_s))
            server.wait_ready(20)
            return process

        process = start()
        stores = replace(stores_for_a_test(server, seaweed, 0), redis_url=server.redis_url)
        store = ObjectStore.from_settings(stores.settings(folder))
        stack.callback(store.close)
        for name in ("a", "b"):
            (folder / name).mkdir()
        first, second = (
            stack.enter_context(running_gateway(stores, store, folder / name, gateway_id=name)) for name in ("a", "b")
        )
        yield TwoGateways((first, second), process, start, stores, store)
