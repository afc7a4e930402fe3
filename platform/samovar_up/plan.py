"""Which processes a platform of these settings consists of, and what each of them is told.

Children get their settings in a 0600 file, never in arguments or the environment. This module starts nothing.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from samovar.errors import ConfigError, InvalidInput
from samovar.settings import PREFIX, Secret, Settings
from samovar_gateway.settings import NO_PORT, GatewaySettings
from samovar_jobs.settings import JobsSettings
from samovar_storage.apikeys import new_token, split_token
from samovar_storage.embedded.folder import write_private
from samovar_storage.live import connect_sync
from samovar_up.child import ChildSpec
from samovar_up.gateways import Gateways, Public
from samovar_up.readiness import pool_lacks
from samovar_up.report import Addresses, Reporter
from samovar_up.settings import UpSettings
from samovar_up.stores import Stores

SETTINGS_FILE = "settings.json"
CONNECTION_FILE = "connection.json"
_DRAIN_SLACK_S = 10.0
JOBS = "jobs"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a supervisor runs.

    stages: children started together, stage after stage. missing: blocking probe that says, in words, what the platform
    still lacks. announce: called once with the seconds it took. gateways: those among the children, None without any.
    """

    stages: Sequence[Sequence[ChildSpec]]
    missing: Callable[[], list[str]]
    announce: Callable[[float], None]
    ready_timeout_s: float
    logs_dir: Path
    gateways: Gateways | None = None


def url_of(settings: UpSettings) -> str:
    """Return the address a person on this machine uses; a wildcard address is reached over loopback."""
    return f"http://{_host(settings)}:{settings.port}"


def grpc_of(settings: UpSettings) -> str:
    """Return the same for gRPC, as its clients take it: without a scheme. "" = there is none."""
    return "" if settings.grpc_port in (None, NO_PORT) else f"{_host(settings)}:{settings.grpc_port}"


def _host(settings: UpSettings) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared, not bound
    return f"[{host}]" if ":" in host else host


def make(settings: UpSettings, passed_on: Mapping[str, Any], reporter: Reporter, public: Public) -> Plan:
    """Return the plan of this platform and write the settings file its children read.

    public: the listening sockets of its ports.
    """
    stores = Stores(settings)
    settings = stores.settings
    settings = msgspec.structs.replace(settings, node=settings.node or socket.gethostname())
    admin_key = _admin_key(settings.data_dir, str(passed_on.get("admin_key") or ""))
    path = settings.data_dir / SETTINGS_FILE
    write_secret_file(path, dict(passed_on) | child_settings(settings, admin_key))
    client = connect_sync(settings.redis_url.reveal())
    url, since_s = url_of(settings), time.time()
    environ = child_environ(os.environ, path)
    stop_s = longest_stop_s(passed_on, settings.drain_timeout_s)
    process = partial(_python, settings.data_dir / "logs", environ, stop_s)
    worker = partial(_python, settings.data_dir / "logs", environ, job_stop_s(passed_on), "samovar_jobs")
    name = str(passed_on.get("gateway_id") or settings.node)
    gateways = Gateways(public, settings.gateways, name, partial(process, "samovar_gateway"))

    def announce(seconds: float) -> None:
        addresses = Addresses(url=url, grpc=grpc_of(settings), gateways=gateways.urls)
        connection = msgspec.structs.asdict(addresses) | {"admin_key": admin_key}
        write_secret_file(settings.data_dir / CONNECTION_FILE, connection)
        reporter.ready(addresses, admin_key, settings.data_dir, seconds)

    return Plan(
        stages=stages(
            stores, process("samovar_pool", "pool"), gateways, [*map(worker, job_names(settings.job_workers))]
        ),
        missing=lambda: gateways.lacking() + pool_lacks(client, settings.node, since_s),
        announce=announce,
        ready_timeout_s=settings.ready_timeout_s,
        logs_dir=settings.data_dir / "logs",
        gateways=gateways,
    )


def stages(
    stores: Stores, pool: ChildSpec, gateways: Gateways, job_workers: Sequence[ChildSpec]
) -> list[list[ChildSpec]]:
    """Return the children in the order they are started.

    The pool manager's imports and SeaweedFS's election take longest, so they run beside each other. What the gateways
    lack is told by `Plan.missing`: nothing waits for them, or for job workers.
    """
    edges = [msgspec.structs.replace(spec, answers=None) for spec in gateways.specs()]
    return [stage for stage in ([*stores.valkey()], [pool, *stores.seaweedfs()], [*edges, *job_workers]) if stage]


def job_names(count: int) -> list[str]:
    """Return what the job workers are called: `jobs`, `jobs-2`, …"""
    return [JOBS if number == 1 else f"{JOBS}-{number}" for number in range(1, count + 1)]


def job_stop_s(passed_on: Mapping[str, Any]) -> float:
    """Return how long a job worker may take to end, seconds: what runs may finish, the rest is stopped."""
    given = passed_on.get("job_drain_timeout_s")
    return (JobsSettings().job_drain_timeout_s if given is None else float(given)) + _DRAIN_SLACK_S


def longest_stop_s(passed_on: Mapping[str, Any], drain_timeout_s: float) -> float:
    """Return how long a gateway or the pool manager may take to end, seconds: the longest call that can be running.

    A call's own deadline is the one truth about when it ends, and this the largest a call may have; `drain_timeout_s`
    is the operator's cap on it, 0 for none.
    """
    defaults = GatewaySettings()
    given = {
        name: float(passed_on.get(name) or getattr(defaults, name)) for name in ("max_timeout_s", "drain_settle_s")
    }
    return given["drain_settle_s"] + (drain_timeout_s or given["max_timeout_s"]) + _DRAIN_SLACK_S


def _python(logs_dir: Path, environ: Mapping[str, str], stop_timeout_s: float, module: str, name: str) -> ChildSpec:
    return ChildSpec(
        name=name,
        argv=(sys.executable, "-m", module),
        environ=environ,
        log_path=logs_dir / f"{name}.log",
        stop_timeout_s=stop_timeout_s,
    )


def child_environ(environ: Mapping[str, str], config: Path) -> dict[str, str]:
    """Return the environment of the platform's own processes: no `SAMOVAR_` variable but the settings file."""
    kept = {name: value for name, value in environ.items() if not name.startswith(PREFIX)}
    return kept | {PREFIX + "CONFIG": str(config), "PYTHONUNBUFFERED": "1"}


def child_settings(settings: UpSettings, admin_key: str) -> dict[str, Any]:
    """Return what the supervisor decides for its children, ready for JSON; one file serves all of them."""
    values = {name: getattr(settings, name) for name in settings.__struct_fields__}
    values["admin_key"] = Secret(admin_key)
    return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Secret):
        return value.reveal()
    return str(value) if isinstance(value, Path) else value


def passed_on(
    flags: Mapping[str, Any], environ: Mapping[str, str], processes: Sequence[type[Settings]]
) -> dict[str, Any]:
    """Return the values given for the children's own settings: from the file, the environment and flags, last wins."""
    names = {name for process in processes for name in process.__struct_fields__}
    file = flags.get("config") or environ.get(PREFIX + "CONFIG")
    values = _read_object(Path(file)) if file else {}
    values |= {name: environ[PREFIX + name.upper()] for name in names if PREFIX + name.upper() in environ}
    values |= {name: value for name, value in flags.items() if value is not None}
    return {name: value for name, value in values.items() if name in names}


def _read_object(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigError(f"cannot read the settings file {path}: {error}") from error


def _admin_key(data_dir: Path, given: str) -> str:
    """Return the admin key: the given one, else this data folder's, which is made on the first start."""
    if given:
        try:
            split_token(given)
        except InvalidInput as error:
            raise ConfigError(f"admin_key: {error.detail}") from error
        return given
    path = data_dir / CONNECTION_FILE
    if path.exists():
        stored = _read_object(path).get("admin_key")
        if isinstance(stored, str) and stored:
            return stored
    admin_key = new_token()
    write_secret_file(path, {"url": "", "admin_key": admin_key})
    return admin_key


def write_secret_file(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as JSON so that only the owner can read it and nobody ever sees half of it."""
    write_private(path, msgspec.json.encode(value).decode())
