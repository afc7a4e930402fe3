"""Models of a Triton server, for who has one: a repository that is served here, or an endpoint elsewhere.

    class Detect(TritonModel):
        model = "yolo"  # weights=sv.Weights("repository"), or endpoint = …
        async def __call__(self, image: np.ndarray, ctx: sv.Context) -> np.ndarray:
            return (await self.infer({"image": image}, ctx))["boxes"]

A repository is served by a `tritonserver` of the instance's own, found on PATH or in the package nvidia-pytriton; that
needs sv.Resources(allow_subprocess=True, network=True), an endpoint network=True alone. A call that is cancelled or
late is cancelled in Triton; a server that died fails the instance's check. Needs tritonclient[grpc] (requirements=).
This module does not know what tensors mean.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from samovar.context import Context
from samovar.errors import FunctionRaised
from samovar_instance.kernel import die_with_parent

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 10.0
_POLL_S = 0.05


class TritonModel:
    """Subclasses say which model, and define `__call__` with the types that clients see.

    model: its name in the repository. endpoint: "host:port" of a server's gRPC port, "" = serve the weights folder as a
    repository. server_options: further arguments of tritonserver.
    """

    model: ClassVar[str] = ""
    endpoint: ClassVar[str] = ""
    server_options: ClassVar[Sequence[str]] = ()

    def load(self, weights: Path, device: str) -> None:
        """Start the server and return once it is ready. Raises: RuntimeError with what it printed if it does not come
        up, or is nowhere to be found."""
        self._server = None if self.endpoint else TritonServer(weights, self.server_options)
        self._address = self.endpoint or f"127.0.0.1:{self._server.grpc_port}"  # type: ignore[union-attr]
        self._client: Any = None

    async def infer(self, inputs: Mapping[str, Any], ctx: Context) -> dict[str, Any]:
        """Return the model's outputs by name, numpy arrays, as the inputs are.

        Raises: FunctionRaised with Triton's message. When the call is cancelled, Triton's request is.
        """
        import grpc
        from tritonclient.grpc import InferInput
        from tritonclient.grpc.aio import InferenceServerClient
        from tritonclient.utils import InferenceServerException, np_to_triton_dtype

        if self._client is None:
            self._client = InferenceServerClient(self._address)
        tensors = []
        for name, array in inputs.items():
            tensor = InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        timeout_s = min(ctx.remaining_s, 24 * 3600.0)
        try:
            answer = await self._client.infer(self.model, tensors, client_timeout=timeout_s)
        except (InferenceServerException, grpc.RpcError) as error:
            raise FunctionRaised(f"Triton: {error}", type=type(error).__name__) from error
        return {output.name: answer.as_numpy(output.name) for output in answer.get_response().outputs}

    def check(self) -> None:
        """Return if the server that is ours lives and its model is ready. Raises: RuntimeError."""
        if self._server is not None:
            self._server.check(self.model)

    def unload(self) -> None:
        """End the server that is ours."""
        if self._server is not None:
            self._server.stop()


class TritonServer:
    """A tritonserver process of ours on loopback. grpc_port, http_port: where it listens."""

    def __init__(self, repository: Path, options: Sequence[str] = ()) -> None:
        """Start it and wait until every model is ready. Raises: RuntimeError."""
        self.http_port, self.grpc_port = _free_port(), _free_port()
        binary = find_server()
        command = [
            str(binary),
            f"--model-repository={repository}",
            "--http-address=127.0.0.1",
            f"--http-port={self.http_port}",
            "--grpc-address=127.0.0.1",
            f"--grpc-port={self.grpc_port}",
            "--allow-metrics=false",
            "--exit-on-error=true",
            *_bundled_options(binary),
            *options,
        ]
        # its output is the instance's, and so in the function's log
        self._process = subprocess.Popen(command, env=_environment(), preexec_fn=die_with_parent)  # noqa: S603
        self._wait_until_ready()

    def check(self, model: str) -> None:
        """Return if it lives and a model is ready. Raises: RuntimeError."""
        code = self._process.poll()
        if code is not None:
            raise RuntimeError(f"tritonserver ended with {code}")
        if not self._is_ready(f"/v2/models/{model}/ready"):
            raise RuntimeError(f"tritonserver does not say that its model {model!r} is ready")

    def stop(self) -> None:
        """End the process, by force if it takes longer than STOP_TIMEOUT_S."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_until_ready(self) -> None:
        give_up_at_s = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready("/v2/health/ready"):
            code = self._process.poll()
            if code is not None:
                raise RuntimeError(f"tritonserver ended with {code} before it was ready; its output is in the log")
            if time.monotonic() > give_up_at_s:
                self.stop()
                raise RuntimeError(f"tritonserver was not ready within {START_TIMEOUT_S:.0f} s")
            time.sleep(_POLL_S)

    def _is_ready(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def _environment() -> dict[str, str]:
    """Return the server's environment: models written in Python find this interpreter's library and packages."""
    libraries = f"{sysconfig.get_config_var('LIBDIR')}:{os.environ.get('LD_LIBRARY_PATH', '')}".rstrip(":")
    path = f"{Path(sys.exec_prefix) / 'bin'}:{os.environ.get('PATH', os.defpath)}"
    return os.environ | {"LD_LIBRARY_PATH": libraries, "PATH": path}


def find_server() -> Path:
    """Return the tritonserver on PATH, or the one that nvidia-pytriton brings. Raises: RuntimeError without any."""
    found = shutil.which("tritonserver")
    if found is not None:
        return Path(found)
    spec = importlib.util.find_spec("pytriton")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        binary = Path(folder) / "tritonserver" / "bin" / "tritonserver"
        if binary.is_file():
            return binary
    raise RuntimeError("no tritonserver on PATH, and the package nvidia-pytriton is not installed")


def _bundled_options(binary: Path) -> list[str]:
    """Return where a server that came in a package has its backends: with the stub for this Python among them."""
    root = binary.parent.parent
    if not (root / "backends").is_dir():
        return []
    made = Path(tempfile.mkdtemp(prefix="triton-backends-"))
    for backend in (root / "backends").iterdir():
        (made / backend.name).mkdir()
        for file in backend.iterdir():
            (made / backend.name / file.name).symlink_to(file)
    stub = root / "python_backend_stubs" / sysconfig.get_python_version() / "triton_python_backend_stub"
    if stub.is_file() and (made / "python").is_dir():
        (made / "python" / stub.name).symlink_to(stub)
    return [f"--backend-directory={made}"]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
