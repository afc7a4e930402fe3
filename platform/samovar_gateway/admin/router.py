"""The admin routes as one piece for the gateway's application. This module does not know what the routes do."""

from __future__ import annotations

from typing import Any

from litestar.di import Provide
from litestar.types import ControllerRouterHandler

from samovar_gateway.admin.functions import Functions
from samovar_gateway.admin.keys import Keys
from samovar_gateway.admin.operations import list_instances, list_nodes, read_logs
from samovar_gateway.admin.services import Services
from samovar_gateway.admin.uploads import Uploads
from samovar_gateway.state import GatewayState


class Admin:
    """What the application adds: `handlers` to its routes, `dependencies` to its own, `close` to its shutdown."""

    def __init__(self, state: GatewayState) -> None:
        self._services = Services(state)
        self.handlers: list[ControllerRouterHandler] = [
            Functions,
            Uploads,
            Keys,
            list_instances,
            list_nodes,
            read_logs,
        ]
        self.dependencies: dict[str, Any] = {"services": Provide(self._provide, sync_to_thread=False)}

    def close(self) -> None:
        """Let go of threads and connections."""
        self._services.close()

    def _provide(self) -> Services:
        return self._services
