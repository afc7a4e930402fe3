"""The admin routes as one piece for the gateway's application. This module does not know what the routes do."""

from __future__ import annotations

from litestar.types import ControllerRouterHandler

from samovar_gateway.admin.audit import read_audit
from samovar_gateway.admin.functions import Functions
from samovar_gateway.admin.keys import Keys
from samovar_gateway.admin.operations import list_instances, list_nodes, read_logs
from samovar_gateway.admin.requests_log import list_request_files, list_requests, summarise_requests
from samovar_gateway.admin.rollout import Rollout
from samovar_gateway.admin.services import Services
from samovar_gateway.admin.uploads import Uploads
from samovar_gateway.state import GatewayState


class Admin:
    """What the application adds: `handlers` to its routes, `services` to its state as `admin`, `close` to its end."""

    handlers: tuple[ControllerRouterHandler, ...] = (
        Functions,
        Rollout,
        Uploads,
        Keys,
        list_instances,
        list_nodes,
        read_logs,
        list_requests,
        summarise_requests,
        list_request_files,
        read_audit,
    )

    def __init__(self, state: GatewayState) -> None:
        self.services = Services(state)

    def close(self) -> None:
        """Let go of threads and connections."""
        self.services.close()
