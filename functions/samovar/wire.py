"""The wire between gateway or pool manager and instance: length-prefixed msgpack frames, on one page.

A frame is a 4-byte big-endian length N (1 <= N <= MAX_FRAME_BYTES) and N bytes of msgpack: an array whose first element
is the message's tag, the others its fields in order. Whoever connects speaks first, with `Hello`; the instance answers
`Welcome`. Everything after that is multiplexed by `id`, chosen by the caller, unique per connection while in flight.

    caller → instance                            instance → caller
    Hello     version, token, role               Welcome    who answers, for which version
    Invoke    one call                           Result     its answer          (ends the id)
    Cancel    nobody wants it any more           Failure    its error           (ends the id)
    Credit    a stream may send more             Busy       never started here  (ends the id)
    Check     is it well?                                   (ends as an Invoke does)
                                                 Started    only if asked for by Invoke.notify_start
                                                 Chunk      one item of a stream; End ends the id
                                                 Progress, LogLine   only if Invoke.hear, or of a queued job
                                                 Goodbye    the instance drains: send no more
    role "manager" only:
    Specialise  become one of a version          Ready / BootFailed
    Drain       finish and exit                  Stats      pushed when it changed, at most once a second, and every 5 s
    Fork, Preload (zygote and templates)         Forked, Exited, Preloaded

The same two halves (`encode`, `Decoder`) serve blocking sockets, asyncio protocols and tests.
A frame that is malformed, empty, oversized or of the wrong direction raises ProtocolError: the receiver closes that
connection with the reason and harms no other. This module does not know sockets, queues or deadlines.
"""

from __future__ import annotations

import struct
from typing import Any, Generic, Literal, TypeVar

import msgspec

from samovar.errors import ProtocolError

PROTOCOL_VERSION = 1
MAX_FRAME_BYTES = 256 * 1024 * 1024
MAX_PIPELINED = 32  # calls beyond its slots that an instance holds back-to-back, so that it never idles between two
STREAM_WINDOW = 16  # chunks a stream may be ahead of its reader before it needs Credit

_LENGTH = struct.Struct(">I")
_NO_LENGTH = bytes(4)


class Message(msgspec.Struct, array_like=True, gc=False):
    """Base of all messages; fields travel in declaration order, new ones are only ever appended with a default."""


# ---- caller → instance -------------------------------------------------------------------------------------------


class Hello(Message, array_like=True, tag=1, gc=False):
    version: int
    token: str
    role: Literal["gateway", "manager"]
    peer: str = ""


class JobTag(Message, array_like=True, gc=False):
    """Which queued job a call is an attempt at. attempt: starts so far, >= 1. token: fencing token, rising."""

    job_id: str
    attempt: int
    token: int


class Invoke(Message, array_like=True, tag=2, gc=False):
    """One call. body: the client's bytes, untouched. timeout_ms: time left until its deadline when sent, > 0.

    job: it is an attempt at a queued job, which gives way: an instance admits it only while a slot is free.
    hear: the caller hears what the handler says meanwhile; of a job it always does. content_type: of the body; accept:
    of the answer, as far as the version can give it. tenant: id of the API key it came with."""

    id: int
    body: bytes
    timeout_ms: float
    notify_start: bool = False
    content_type: str = "application/json"
    accept_stream: bool = False
    request_id: str = ""
    traceparent: str = ""
    job: JobTag | None = None
    hear: bool = False
    accept: str = "application/json"
    tenant: str = ""


class Cancel(Message, array_like=True, tag=3, gc=False):
    """Nobody wants the answer. The id still ends with its usual frame, once the work has really stopped: that is when
    its slot is free. A call that had not started ends at once with Failure `cancelled` (status 499).

    if_waiting: only the place in the instance's queue is given up; a call that has started goes on to its answer.
    patient: the process is not to be ended for this; what cannot be stopped has until its own deadline."""

    id: int
    if_waiting: bool = False
    patient: bool = False


class Credit(Message, array_like=True, tag=4, gc=False):
    id: int
    num_chunks: int


class Specialise(Message, array_like=True, tag=5, gc=False):
    """Become an instance (or a template) of the version in `manifest` (JSON bytes). All paths are local, read-only.

    code_dir: extracted code archive. weights_dir: directory of weight files, "" if none. layer_dirs: pip layers, first
    wins. device: "cpu", "cuda:N" or, for several whole devices, "cuda:N,cuda:M". num_threads: torch threads. role
    "template" loads and warms on one thread, then serves Fork instead of calls. is_awaited: a call waits for it and the
    version has been ready here before, so that call is the warm-up.
    """

    manifest: bytes
    code_dir: str
    weights_dir: str
    layer_dirs: list[str]
    device: str
    num_threads: int
    role: Literal["instance", "template"] = "instance"
    instance_id: str = ""
    scratch_dir: str = ""
    is_awaited: bool = False


class Drain(Message, array_like=True, tag=6, gc=False):
    """Admit nothing more, give back what has not started, finish what runs, then exit 0; 72 if timeout_s passed first.

    timeout_s: None = as long as the calls in flight have, and their grace: only the instance knows their deadlines.
    if_idle: answer Stats and go on if any work is in flight.
    """

    timeout_s: float | None
    if_idle: bool = False


class Fork(Message, array_like=True, tag=7, gc=False):
    """Fork a child that serves the listening socket, sent with this frame as SCM_RIGHTS: [listen_fd, stdout_fd,
    stderr_fd]. The last two take what the child prints.

    From the zygote the child is a blank; from a template it is a ready instance. token: what its callers must present.
    memory_bytes: what the child may allocate of its own once it is specialised (RLIMIT_DATA, on top of what it
    inherits and of mapped weights); 0 leaves it to the manifest's memory_gib. uid: what a child of the zygote runs as,
    0 = as its parent; a child of a template keeps the template's.
    """

    instance_id: str
    token: str
    memory_bytes: int = 0
    device: str = "cpu"
    num_threads: int = 1
    uid: int = 0


class Preload(Message, array_like=True, tag=8, gc=False):
    """Import these modules in the zygote, so that later forks have them. Import failures are reported, not fatal."""

    modules: list[str]


class Check(Message, array_like=True, tag=9, gc=False):
    """Find out whether the instance is well: in its turn, it runs the version's `check()` and answers its example, each
    if there is one, as at boot. Ends as an Invoke does: Result `null`, Failure, or Busy."""

    id: int
    timeout_ms: float


# ---- instance → caller -------------------------------------------------------------------------------------------


class Welcome(Message, array_like=True, tag=32, gc=False):
    """state is an instance state name (samovar.lifecycle); ref "" for a blank. concurrency: its slots.

    sandbox: the confinement layers that are on. A fork of a template is ready from the start: its Welcome says so.
    """

    version: int
    instance_id: str
    ref: str
    state: str
    concurrency: int
    pid: int = 0
    boot_ms: dict[str, float] = {}
    sandbox: list[str] = []


class Result(Message, array_like=True, tag=33, gc=False):
    """An answer. wait_us: received → started; run_us: in the handler; load: calls in flight here after this one."""

    id: int
    body: bytes
    wait_us: int
    run_us: int
    batch_size: int
    load: int
    content_type: str = "application/json"


class Failure(Message, array_like=True, tag=34, gc=False):
    """An error. code and status as in samovar.errors; extra: fields of the problem document; started: ran user code."""

    id: int
    code: str
    status: int
    detail: str
    extra: dict[str, Any]
    wait_us: int
    run_us: int
    load: int
    started: bool = True


class Busy(Message, array_like=True, tag=35, gc=False):
    """Never started: no slot here (or draining). The caller may dispatch it elsewhere.

    An instance takes its `concurrency` calls and MAX_PIPELINED more, which wait for a slot here; then it is busy.
    """

    id: int
    load: int
    draining: bool = False


class Started(Message, array_like=True, tag=36, gc=False):
    id: int


class Chunk(Message, array_like=True, tag=37, gc=False):
    id: int
    body: bytes


class End(Message, array_like=True, tag=38, gc=False):
    id: int
    wait_us: int
    run_us: int
    load: int


class Goodbye(Message, array_like=True, tag=39, gc=False):
    """reason: "drain", "protocol", "version", "token", "hello" (none came), "overrun", "abandoned" (an overrun that
    only callers who left would have waited for), "device_lost".

    The connection closes once its ids have ended. Exit codes of an instance: 0 drained, 1 boot failed or a bug of ours,
    70 a call overran its deadline, or its caller's leaving, and the grace, 71 the device context is lost, 72 the drain
    took too long.
    """

    reason: str
    detail: str = ""


class Ready(Message, array_like=True, tag=40, gc=False):
    """boot_ms: phases import, load, warmup. modules: imported here beyond the parent's (to preload). num_os_threads: of
    the process after loading (1 = may be a template). templatable: no foreign threads, sockets or device context.
    sandbox: the confinement layers that are on. manner: how an engine runs the model, in words, "" if none says."""

    ref: str
    boot_ms: dict[str, float]
    modules: list[str]
    num_os_threads: int
    templatable: bool
    memory_bytes: int
    sandbox: list[str] = []
    manner: str = ""


class BootFailed(Message, array_like=True, tag=41, gc=False):
    """The version could not be brought up here; the process exits after sending it.

    phase: import, load, check, warmup; template if it is up but cannot be forked from. file: relative to the code.
    """

    ref: str
    phase: str
    type_name: str
    detail: str
    file: str = ""
    line: int = 0


class Stats(Message, array_like=True, tag=42, gc=False):
    """in_flight: calls here now. idle_s: since the last one ended (0 while busy). overrun_s: the running call is this
    long past its deadline, 0 if not. memory_bytes: resident. device_memory_bytes: peak, 0 on CPU."""

    state: str
    in_flight: int
    completed: int
    failed: int
    idle_s: float
    overrun_s: float
    memory_bytes: int
    device_memory_bytes: int = 0


class Forked(Message, array_like=True, tag=43, gc=False):
    instance_id: str
    pid: int
    fork_ms: float


class Exited(Message, array_like=True, tag=44, gc=False):
    """A child of this zygote or template ended: exit code >= 0, or minus the signal."""

    pid: int
    exit_code: int


class Preloaded(Message, array_like=True, tag=45, gc=False):
    modules: list[str]
    failed: dict[str, str] = {}


class Progress(Message, array_like=True, tag=46, gc=False):
    """The handler says how far its call is. fraction: 0..1."""

    id: int
    fraction: float
    message: str = ""


class LogLine(Message, array_like=True, tag=47, gc=False):
    """The handler says this about its call."""

    id: int
    line: str


ToInstance = Hello | Invoke | Cancel | Credit | Specialise | Drain | Fork | Preload | Check
FromInstance = (
    Welcome
    | Result
    | Failure
    | Busy
    | Started
    | Chunk
    | End
    | Goodbye
    | Ready
    | BootFailed
    | Stats
    | Forked
    | Exited
    | Preloaded
    | Progress
    | LogLine
)
AnyMessage = ToInstance | FromInstance

_encoder = msgspec.msgpack.Encoder()
_to_instance = msgspec.msgpack.Decoder(ToInstance)
_from_instance = msgspec.msgpack.Decoder(FromInstance)

M = TypeVar("M")


def encode(message: Message) -> bytes:
    """Return the frame of `message`. Raises ProtocolError if it is larger than MAX_FRAME_BYTES."""
    buffer = bytearray()
    append(buffer, message)
    return bytes(buffer)


def append(buffer: bytearray, message: Message) -> None:
    """Put the frame of `message` at the end of `buffer`: how writers join the frames of one loop turn.

    Raises ProtocolError, leaving `buffer` as it was, if the frame is larger than MAX_FRAME_BYTES.
    """
    start = len(buffer)
    buffer += _NO_LENGTH
    _encoder.encode_into(message, buffer, -1)
    size = len(buffer) - start - 4
    if size > MAX_FRAME_BYTES:
        del buffer[start:]
        raise ProtocolError(f"frame of {size} bytes is larger than {MAX_FRAME_BYTES}")
    _LENGTH.pack_into(buffer, start, size)


class Decoder(Generic[M]):
    """Turns a stream of bytes into messages of one direction. Not thread-safe; after an error it must be dropped.

    max_frame_bytes may be changed between calls, such as after a Hello was accepted.
    """

    def __init__(self, decoder: msgspec.msgpack.Decoder[M], max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        self._decode = decoder.decode
        self._buffer = bytearray()

    @property
    def num_pending_bytes(self) -> int:
        """Bytes of a half frame received so far (non-zero at end of stream = the peer died mid-frame)."""
        return len(self._buffer)

    def feed(self, data: bytes) -> list[M]:
        """Return the messages completed by `data`, in order.

        Raises ProtocolError on a bad frame; whole frames that came in front of it in the same `data` go with it, as the
        connection is closed anyway.
        """
        view = memoryview(data)
        if self._buffer:
            self._buffer += data
            if not self._has_frame():
                return []
            view, self._buffer = memoryview(self._buffer), bytearray()  # not copied: it may be a hundred megabytes
        messages: list[M] = []
        position, end = 0, len(view)
        while end - position >= 4:
            size = _LENGTH.unpack_from(view, position)[0]
            if not 1 <= size <= self.max_frame_bytes:
                raise ProtocolError(f"frame length {size} is not within 1..{self.max_frame_bytes}")
            stop = position + 4 + size
            if stop > end:
                break
            try:
                messages.append(self._decode(view[position + 4 : stop]))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise ProtocolError(f"malformed frame: {error}") from error
            position = stop
        if position < end:
            self._buffer += view[position:]
        return messages

    def _has_frame(self) -> bool:
        """Whether the buffer holds a whole frame, or a length that `feed` must refuse."""
        if len(self._buffer) < 4:
            return False
        size = _LENGTH.unpack_from(self._buffer, 0)[0]
        return not 1 <= size <= self.max_frame_bytes or len(self._buffer) >= 4 + size


def instance_side(max_frame_bytes: int = MAX_FRAME_BYTES) -> Decoder[ToInstance]:
    """Return the decoder an instance reads its callers with."""
    return Decoder(_to_instance, max_frame_bytes)


def caller_side(max_frame_bytes: int = MAX_FRAME_BYTES) -> Decoder[FromInstance]:
    """Return the decoder a gateway or the pool manager reads an instance with."""
    return Decoder(_from_instance, max_frame_bytes)
