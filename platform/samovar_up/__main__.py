"""`python -m samovar_up`: what `samovar up` runs."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from samovar.errors import ConnectError, SamovarError
from samovar.settings import PREFIX, Settings, describe, read
from samovar_gateway.settings import NO_PORT, GatewaySettings, port_of_grpc
from samovar_jobs.settings import JobsSettings
from samovar_pool.settings import PoolSettings
from samovar_up import leftovers, lock, plan
from samovar_up.checks import check_redis, check_s3, listen, prepare_data_dir
from samovar_up.gateways import Public
from samovar_up.report import JsonReporter, Reporter, TextReporter
from samovar_up.settings import UpSettings
from samovar_up.supervisor import RESTART_GATEWAYS, Supervisor

logger = logging.getLogger("samovar_up")
S = TypeVar("S", bound=Settings)
# Secrets come from the environment or a file: an argument list can be read by every user of the machine.
_NO_FLAG = frozenset({"s3_access_key", "s3_secret_key", "admin_key"})
_PROCESSES: tuple[type[Settings], ...] = (UpSettings, GatewaySettings, JobsSettings, PoolSettings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the platform until Ctrl-C; return the exit code."""
    flags = vars(_parser().parse_args(arguments))
    reporter: Reporter = JsonReporter() if flags.pop("json") else TextReporter()
    run = _restart_gateways if flags.pop("restart_gateways") else _run
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        run(flags, reporter)
    except SamovarError as error:
        reporter.failed(error)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="samovar up",
        description="Run the whole platform on this machine, in the foreground, until Ctrl-C.",
        epilog=f"Secrets are read from {PREFIX}S3_ACCESS_KEY, {PREFIX}S3_SECRET_KEY or the file of --config.",
    )
    parser.add_argument(
        "--restart-gateways",
        action="store_true",
        help="have the running platform of this data folder replace its gateways, one at a time, and end",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per event")
    parser.add_argument("--config", metavar="FILE", help="JSON file of settings")
    for name, text in _flags().items():
        parser.add_argument("--" + name.replace("_", "-"), dest=name, metavar="VALUE", help=text.replace("%", "%%"))
    return parser


def _flags() -> dict[str, str]:
    """Return every setting that may be a flag with its description: ours first, then what is handed to the children."""
    found: dict[str, str] = {}
    for process in _PROCESSES:
        for variable, default, description in describe(process):
            name = variable.removeprefix(PREFIX).lower()
            if name not in _NO_FLAG:
                found.setdefault(name, f"{description} [{default}]" if default else description)
    return found


def _settings(flags: dict[str, Any]) -> UpSettings:
    """Return our settings, having made sure that the children will accept theirs, too."""
    names = {name for process in _PROCESSES for name in process.__struct_fields__}
    variables = [PREFIX + name.upper() for name in names]

    def read_for(process: type[S]) -> S:
        own = {key: value for key, value in flags.items() if key in (*process.__struct_fields__, "config")}
        return read(process, own, known_variables=variables)

    for process in _PROCESSES[1:]:
        read_for(process)
    return read_for(UpSettings)


def _restart_gateways(flags: dict[str, Any], reporter: Reporter) -> None:
    """Tell the platform that runs in this data folder. Raises ConnectError if none does."""
    data_dir = _settings(flags).data_dir.expanduser().absolute()
    held_by = lock.holder(data_dir)
    if held_by is None:
        raise ConnectError(f"no samovar up runs in {data_dir}")
    os.kill(held_by.pid, RESTART_GATEWAYS)
    reporter.progress(f"samovar up with pid {held_by.pid} replaces its gateways; it says so when it is done")


def _run(flags: dict[str, Any], reporter: Reporter) -> None:
    settings = _settings(flags)
    if urlsplit(flags.get("redis_url") or "").password:
        logger.warning("every user of this machine can read the password in --redis-url: use %sREDIS_URL", PREFIX)
    settings = msgspec.structs.replace(settings, data_dir=settings.data_dir.expanduser().absolute())
    prepare_data_dir(settings.data_dir, settings.min_free_disk_bytes)
    with lock.hold(settings.data_dir) as held:
        leftovers.stop_recorded(settings.data_dir)
        public = _listen(settings)
        settings = _with_ports(settings, public)
        held.sign(lock.Holder(pid=os.getpid(), since_s=time.time(), url=plan.url_of(settings)))
        if not settings.embeds_redis:
            check_redis(settings.redis_url.reveal())
        if not settings.embeds_s3:
            check_s3(settings)
        passed = plan.passed_on(flags, os.environ, _PROCESSES[1:])
        if passed.get("simulate_gpus"):
            reporter.progress(f"the GPUs are simulated ({passed['simulate_gpus']}): everything runs on the CPU")
        work = plan.make(settings, passed, reporter, public)
        asyncio.run(Supervisor(work, reporter, settings.data_dir).run())
    reporter.stopped()


def _listen(settings: UpSettings) -> Public:
    grpc_port = port_of_grpc(settings.port, settings.grpc_port)
    http = listen(settings.host, settings.port)
    flag = f"--grpc-port ({NO_PORT} is for none)"
    return Public(http, listen(settings.host, grpc_port, flag) if grpc_port != NO_PORT else None)


def _with_ports(settings: UpSettings, public: Public) -> UpSettings:
    grpc_port = public.grpc.getsockname()[1] if public.grpc is not None else NO_PORT
    return msgspec.structs.replace(settings, port=public.http.getsockname()[1], grpc_port=grpc_port)


if __name__ == "__main__":
    sys.exit(main())
