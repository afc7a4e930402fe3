"""From a manifest and local folders to a loaded, warmed version, phase by phase, in the model thread.

    import   the user's module, from its code folder and pip layers
    load     make the class, call load(weights, device)
    check    call check(), if there is one
    warmup   answer the manifest's example once, if there is one and no call waits that would do as well

A failure names its phase and the line of the user's code that raised. This module does not know sockets or forks.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import itertools
import logging
import sys
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from samovar.acceleration import session as sessions
from samovar.acceleration.options import FOLDER, Acceleration
from samovar.acceleration.session import Session
from samovar.authoring import Definition, definition_of
from samovar.errors import DeployRefused
from samovar.spec import Manifest
from samovar_instance import failures, user_loop
from samovar_instance.hints import hint_for
from samovar_instance.invoker import Invoker

logger = logging.getLogger("samovar.instance")

MAX_MANNER_CHARS = 200


class BootError(Exception):
    """The version cannot be brought up. phase: import, load, check, warmup; cause: what was raised."""

    def __init__(self, phase: str, cause: BaseException, file: str = "", line: int = 0) -> None:
        super().__init__(failures.describe(cause) + hint_for(cause))
        self.phase = phase
        self.cause = cause
        self.file = file
        self.line = line


@dataclass(slots=True)
class Loaded:
    """A version that can answer. loop: the event loop of an async handler, made before it was warmed; else None.

    loop_fds: what that loop has open for itself. manner: how an engine runs the model, in words; "" if the handler does
    not say.
    example: the input of the warm-up, None if the version has none. probe: of an engine whose answers are no numbers,
    numbers that show what a precision changes; None if there is none.
    """

    manifest: Manifest
    invoker: Invoker
    boot_ms: dict[str, float]
    modules: list[str]
    loop: asyncio.AbstractEventLoop | None = None
    unload: Callable[[], object] | None = None
    example: Any = None
    manner: str = ""
    probe: Callable[[], list[float]] | None = None
    loop_fds: dict[int, str] = field(default_factory=dict)

    @property
    def is_async(self) -> bool:
        """Whether its handler runs on an event loop."""
        return "async" in self.manifest.handler

    def have_loop(self) -> None:
        """Have an event loop, if it needs one: a fork of a template has none."""
        if self.is_async and self.loop is None:
            self.loop, self.loop_fds = user_loop.new_with_fds()


@contextmanager
def _phase(name: str, boot_ms: dict[str, float], code_dir: str) -> Iterator[None]:
    started_s = time.perf_counter()
    try:
        yield
    except BaseException as error:
        if not isinstance(error, DeployRefused):  # its sentence says it all
            failures.log(error)
        file, line = blame(error, code_dir)
        raise BootError(name, error, file, line) from error
    boot_ms[name] = (time.perf_counter() - started_s) * 1000


def load(
    manifest: Manifest,
    code_dir: str,
    layer_dirs: list[str],
    weights_dir: str,
    device: str,
    *,
    warm: bool = True,
    session: Session | None = None,
) -> Loaded:
    """Return the version, loaded, and warm unless `warm` is False. Raises BootError, its traceback already in the log.

    session: what is made of its models, None = what its manifest declares.
    Without the warm-up the first call is the one that pays for first times: right when that call waits for this load.
    """
    num_before = len(sys.modules)
    boot_ms: dict[str, float] = {}
    # the zygote froze its objects already; collecting while modules and weights come in only costs
    gc.disable()
    try:
        with _phase("import", boot_ms, code_dir):
            definition = _import(manifest.entry, code_dir, layer_dirs)
        with _phase("load", boot_ms, code_dir), sessions.opened(session or _session(manifest, weights_dir)):
            handler = _instantiate(definition, _weights_path(manifest, weights_dir, code_dir), device)
        loaded = Loaded(manifest, Invoker(definition, handler), boot_ms, [])
        loaded.example = manifest.example if manifest.example is not None else definition.example
        loaded.unload = getattr(handler, "unload", None) if definition.kind == "class" else None
        loaded.probe = getattr(handler, "precision_probe", None) if definition.kind == "class" else None
        loaded.manner = _manner(handler)
        if definition.has_check:
            with _phase("check", boot_ms, code_dir):
                handler.check()
        loaded.have_loop()
        with _phase("warmup", boot_ms, code_dir):
            if warm:
                answer_example(loaded)
        loaded.invoker.prove = partial(prove, loaded, handler.check if definition.has_check else None)
    finally:
        gc.freeze()
        gc.enable()
    loaded.modules = sorted(_installed_since(num_before, code_dir))
    return loaded


def _import(entry: str, code_dir: str, layer_dirs: list[str]) -> Definition:
    for path in reversed([code_dir, *layer_dirs]):
        sys.path.insert(0, path)
        # not importlib.invalidate_caches(): that touches every module's finder, 3 ms worth of shared pages
        sys.path_importer_cache.pop(path, None)
    name, _, attribute = entry.partition(":")
    module = importlib.import_module(name)
    file = getattr(module, "__file__", None) or ""
    if not Path(file).resolve().is_relative_to(Path(code_dir).resolve()):
        raise DeployRefused(f"the module name {name!r} belongs to {file or 'Python itself'}; rename the file")
    target: Any = module
    for part in attribute.split("."):
        target = getattr(target, part)
    return definition_of(target)


def _instantiate(definition: Definition, weights: Path, device: str) -> Any:
    if definition.kind == "function":
        return definition.target
    instance = definition.target()
    if hasattr(instance, "load"):
        instance.load(weights, device)
    return instance


def _manner(handler: Any) -> str:
    manner = getattr(handler, "manner", "")
    return manner[:MAX_MANNER_CHARS] if isinstance(manner, str) else ""


def _weights_path(manifest: Manifest, weights_dir: str, code_dir: str) -> Path:
    """Return what `load` is given: the weights, the code where there are none but what a build made."""
    has_own = any(not file.path.startswith(f"{FOLDER}/") for file in manifest.weights)
    return Path(weights_dir) if weights_dir and (has_own or not manifest.weights) else Path(code_dir)


def _session(manifest: Manifest, weights_dir: str) -> Session | None:
    """Return what is declared for the version's models, None if nothing is."""
    if manifest.acceleration == Acceleration():
        return None
    import torch

    return Session(
        manifest.acceleration,
        folder=Path(weights_dir) / FOLDER,
        num_threads=torch.get_num_threads(),
        kind=manifest.built.kind if manifest.built is not None else None,
    )


def leave_loop(loaded: Loaded) -> str:
    """Give up the event loop of a version that is warm, so that the process can be forked from.

    Returns: why it cannot be done, "" if it was; then the version has no loop until `have_loop`.
    """
    if loaded.loop is None:
        return ""
    if why_not := _close_loop(loaded):
        return why_not
    loaded.have_loop()
    try:
        answer_example(loaded)
    except Exception as error:  # noqa: BLE001 (user code)
        failures.log(error)
        return f"its example fails on a second event loop: {failures.describe(error)}"
    return _close_loop(loaded)


def _close_loop(loaded: Loaded) -> str:
    assert loaded.loop is not None
    why_not = user_loop.close(loaded.loop)
    if not why_not:
        loaded.loop, loaded.loop_fds = None, {}
    return why_not


def answer_example(loaded: Loaded) -> bytes:
    """Answer the example, if there is one, the way a call would; of a stream, only as far as its first item.

    Returns: the answer or first item, b"" if there is none. Raises whatever the handler raises.
    """
    if loaded.example is None:
        return b""
    invoker, body = loaded.invoker, msgspec.json.encode(loaded.example)
    if invoker.batch is not None:
        run = loaded.loop.run_until_complete if loaded.loop is not None else _refuse_coroutine
        output = invoker.outputs([invoker.decode(body)], run)[0]
        if isinstance(output, Exception):
            raise output
        return invoker.encode(output)
    if invoker.kind == "sync":
        return invoker.answer(body)
    if invoker.kind == "generator":
        return _first(invoker, body)
    assert loaded.loop is not None
    return loaded.loop.run_until_complete(_first_async(invoker, body))


def _first(invoker: Invoker, body: bytes) -> bytes:
    items = invoker.items(body)
    try:
        return next((invoker.encode(item) for item in items), b"")
    finally:
        getattr(items, "close", lambda: None)()


def prove(loaded: Loaded, check: Callable[[], object] | None) -> Coroutine[Any, Any, bytes] | None:
    """Run `check` and answer the example, as at boot: what is left to await if the handler's own loop runs here.

    Raises whatever either raises.
    """
    if check is not None:
        check()
    if loaded.loop is None or loaded.invoker.batch is not None:
        answer_example(loaded)
        return None
    return _first_async(loaded.invoker, msgspec.json.encode(loaded.example)) if loaded.example is not None else None


async def _first_async(invoker: Invoker, body: bytes) -> bytes:
    if not invoker.is_stream:
        return await invoker.answer_async(body)
    items, first = invoker.items_async(body), b""
    async for item in items:
        first = invoker.encode(item)
        break
    if inspect.isasyncgen(items):
        await items.aclose()
    return first


def _refuse_coroutine(awaitable: Any) -> Any:
    raise DeployRefused("a plain batch handler returned a coroutine; write it as async def")


def _installed_since(num_before: int, code_dir: str) -> Iterator[str]:
    """Yield the modules imported since that are not the user's own: what the next zygote could have ready.

    Only the newest entries are looked at: touching the name of every module copies 6 ms worth of shared pages.
    """
    for name in list(itertools.islice(reversed(sys.modules), max(0, len(sys.modules) - num_before))):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and not file.startswith(code_dir) and not name.startswith("samovar"):
            yield name


def blame(error: BaseException, code_dir: str) -> tuple[str, int]:
    """Return (file relative to `code_dir`, line) of the user's code that raised, ("", 0) if none did."""
    root = str(Path(code_dir).resolve())
    places = [(frame.filename, frame.lineno or 0) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 0))
    if isinstance(error, DeployRefused):
        places.append((str(error.extra.get("file", "")), int(error.extra.get("line", 0))))
    for filename, line in reversed(places):
        if filename and Path(filename).resolve().is_relative_to(root):
            return str(Path(filename).resolve().relative_to(root)), line
    return "", 0
