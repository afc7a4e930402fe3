"""The life of a forked process: blank → specialised → ready, or template.

    run            forked from the zygote: wait for Specialise, load, then serve calls or forks
    _run_template  load is done: fork ready instances on request
    _run_fork      forked from a template: ready at once

Until a version is loaded the process has one thread. This module does not know frames' bytes, batches or handlers.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import time
from functools import partial
from typing import NoReturn

import msgspec

from samovar import wire
from samovar.errors import ProtocolError
from samovar.lifecycle import State
from samovar.spec import Manifest, concurrency
from samovar_instance import devices, introspect, loader, logs, rehearsal, serving, user_loop
from samovar_instance.confine import Needs
from samovar_instance.control import ControlServer, Peer
from samovar_instance.forkserver import Child, ForkServer
from samovar_instance.loader import BootError, Loaded
from samovar_instance.parking import ParkedChild
from samovar_instance.patience import Patience

logger = logging.getLogger("samovar.instance")

EXIT_FAILED = 1
REHEARSAL_AFTER_S = 0.2  # by then the instance whose place this blank takes has answered its first call

_manifest = msgspec.json.Decoder(Manifest)


def run(child: Child) -> NoReturn:
    """Be a blank instance and whatever comes of it; the process always ends here, never in its parent's code."""
    try:
        _run_blank(child)
    except BaseException as error:
        logger.critical("the instance failed", exc_info=error)
        logs.flush()
        os._exit(EXIT_FAILED)


def _run_blank(child: Child) -> NoReturn:
    """Wait for Specialise or Drain; once greeted and left alone, rehearse a load, so that the real one is quicker."""
    _settle(child)
    seed = devices.reseed()
    devices.bring_up(child.device)
    control = ControlServer(child.listener, child.token, lambda: _welcome(child, "", State.BLANK, 0))
    is_rehearsed, patience = False, Patience()
    while True:
        may_rehearse = not is_rehearsed and any(peer.hello is not None for peer in control.peers)
        received = control.next(REHEARSAL_AFTER_S if may_rehearse else None)
        if received is None:
            if may_rehearse and not patience.waits():
                rehearsal.rehearse()
                is_rehearsed = True
            continue
        peer, message = received
        try:
            _serve_blank(child, control, peer, message, seed)
        except ProtocolError as error:
            control.refuse(peer, wire.Goodbye("protocol", error.detail))


def _serve_blank(child: Child, control: ControlServer, peer: Peer, message: wire.ToInstance, seed: int | None) -> None:
    is_manager = peer.hello is not None and peer.hello.role == "manager"
    if isinstance(message, wire.Invoke):
        control.send(peer, wire.Busy(message.id, 0))
    elif isinstance(message, wire.Specialise) and is_manager:
        _specialise(child, control, peer, message, seed)
    elif isinstance(message, wire.Drain) and is_manager:
        os._exit(0)
    elif not isinstance(message, wire.Cancel | wire.Credit):
        raise ProtocolError(f"{type(message).__name__} is not for a blank instance")


def _specialise(
    child: Child, control: ControlServer, peer: Peer, message: wire.Specialise, seed: int | None
) -> NoReturn:
    """Load the version and serve it; a failure is told to `peer` and ends the process."""
    manifest = _read_manifest(message)
    is_template = message.role == "template"
    memory_bytes = child.memory_bytes or int((manifest.resources.memory_gib or 0) * 1024**3)
    if is_template:
        rehearsal.keep_listener()
    child.sandbox.at_specialise(
        Needs(
            folders=(message.code_dir, message.weights_dir, *message.layer_dirs),
            scratch_dir=message.scratch_dir,
            weights_dir=message.weights_dir,
            memory_bytes=memory_bytes,
            allow_subprocess=manifest.resources.allow_subprocess,
            is_template=is_template,
        )
    )
    num_threads = 1 if is_template else message.num_threads
    devices.set_num_threads(num_threads)
    fds_before = introspect.open_fds()
    try:
        loaded = loader.load(
            manifest,
            message.code_dir,
            message.layer_dirs,
            message.weights_dir,
            message.device,
            warm=not message.is_awaited,
        )
    except BootError as error:
        _report_boot_error(control, peer, manifest.ref, error)
    why_not = _why_not_templatable(loaded, fds_before, num_threads - 1, is_template)
    ready = wire.Ready(
        ref=manifest.ref,
        boot_ms=loaded.boot_ms,
        modules=loaded.modules,
        num_os_threads=introspect.num_os_threads(),
        templatable=not why_not,
        memory_bytes=introspect.memory_bytes(),
        sandbox=child.sandbox.on,
        manner=loaded.manner,
    )
    if is_template and why_not:
        cause = RuntimeError(f"it cannot be a template: {why_not}")
        _report_boot_error(control, peer, manifest.ref, BootError("template", cause))
    if is_template:
        _run_template(child, loaded, control, peer, ready, seed)
    welcome = _welcome(child, manifest.ref, State.READY, concurrency(manifest), loaded.boot_ms)
    handover = serving.Handover(
        child.listener, child.token, welcome, control.detach(), list(control.backlog), peer, ready
    )
    serving.serve(loaded, handover)


def _why_not_templatable(loaded: Loaded, fds_before: dict[int, str], num_pool_threads: int, is_template: bool) -> str:
    """Return why the process cannot be forked from, "" if it can be; a template has given up its event loop then."""
    if is_template:
        why_not = loader.leave_loop(loaded)
    else:
        why_not = user_loop.why_not_left(loaded.loop) if loaded.loop is not None else ""
    return why_not or introspect.why_not_templatable(fds_before | loaded.loop_fds, num_pool_threads)


def _read_manifest(message: wire.Specialise) -> Manifest:
    try:
        return _manifest.decode(message.manifest)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"the manifest cannot be read: {error}") from error


def _report_boot_error(control: ControlServer, peer: Peer, ref: str, error: BootError) -> NoReturn:
    name = type(error.cause).__name__
    control.send(peer, wire.BootFailed(ref, error.phase, name, str(error), error.file, error.line))
    logs.flush()
    os._exit(EXIT_FAILED)


def _run_template(
    template: Child, loaded: Loaded, control: ControlServer, peer: Peer, ready: wire.Ready, seed: int | None
) -> NoReturn:
    """Serve Fork from this loaded process; each child is a ready instance of the same version."""
    gc.collect()
    gc.freeze()
    control.send(peer, ready)
    limits = loaded.manifest.limits
    parked = ParkedChild(partial(rehearsal.rehearse_call, loaded), limits.timeout_s + limits.overrun_grace_s)
    child = ForkServer(control, template.sandbox, is_zygote=False, parked=parked).serve()
    if child is None:
        logs.flush()
        os._exit(0)
    _run_fork(child, loaded, seed)


def _run_fork(child: Child, loaded: Loaded, seed: int | None) -> NoReturn:
    """Be a ready instance at once."""
    started_s = time.perf_counter()
    _settle(child)
    devices.reseed(seed)
    devices.set_num_threads(child.num_threads)
    loaded.have_loop()
    boot_ms = {"load": (time.perf_counter() - started_s) * 1000}
    welcome = _welcome(child, loaded.manifest.ref, State.READY, concurrency(loaded.manifest), boot_ms)
    serving.serve(loaded, serving.Handover(child.listener, child.token, welcome, []))


def _settle(child: Child) -> None:
    """Make a fork a process of its own: its log, its signals."""
    logs.capture(child.stdout_fd, child.stderr_fd)
    signal.signal(signal.SIGTERM, lambda signum, frame: os._exit(0))


def _welcome(
    child: Child,
    ref: str,
    state: State,
    num_slots: int,
    boot_ms: dict[str, float] | None = None,
) -> wire.Welcome:
    return wire.Welcome(
        version=wire.PROTOCOL_VERSION,
        instance_id=child.instance_id,
        ref=ref,
        state=state,
        concurrency=num_slots,
        pid=os.getpid(),
        boot_ms=boot_ms or {},
        sandbox=list(child.sandbox.on),
    )
