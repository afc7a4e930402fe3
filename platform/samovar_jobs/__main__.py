"""`python -m samovar_jobs --config FILE`: one job worker.

SIGTERM and SIGINT: takes no more, what runs finishes within `job_drain_timeout_s`, the rest is given back, exit 0. A
second one does not wait.
"""

from __future__ import annotations

import argparse
import logging
import sys

from samovar import settings as settings_reader
from samovar.errors import SamovarError
from samovar_jobs.rq_worker import SamovarWorker
from samovar_jobs.settings import JobsSettings
from samovar_jobs.worker import worker_name
from samovar_storage.live import connect_sync

log = logging.getLogger("samovar.jobs")


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; return the exit code of what went wrong, 0 if nothing did."""
    parser = argparse.ArgumentParser(prog="samovar_jobs", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", help="settings file (JSON, 0600); every setting may also be a SAMOVAR_ variable")
    parser.add_argument("--worker-name", help="name of this worker among others")
    flags = vars(parser.parse_args(argv))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = settings_reader.read(JobsSettings, flags)
        connection = connect_sync(settings.redis_url.reveal())
        SamovarWorker(name=worker_name(settings), connection=connection, settings=settings).work()
    except SamovarError as error:
        log.error("%s", error.detail)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
