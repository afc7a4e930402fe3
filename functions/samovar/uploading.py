"""Sending blobs to object storage: parts in parallel over signed links, retried, resumable, then verified.

What a broken upload already stored is in the next plan's `done_parts` and is not sent again.
This module does not know manifests or progress bars.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import msgspec

from samovar.client import Client
from samovar.errors import StoreUnavailable
from samovar.transport import is_loopback, transport_error

NUM_STREAMS = 4
MAX_ATTEMPTS = 5
FIRST_PAUSE_S = 0.25
# the gateway hashes the stored bytes before it answers: about a second per gigabyte
COMPLETE_TIMEOUT_S = 1800.0
_PART_TIMEOUT = httpx.Timeout(60.0, connect=5.0)
_CHUNK_BYTES = 1024 * 1024

OnBytes = Callable[[int], None]


def ignore_bytes(count: int) -> None:
    """Take notice of nothing."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where the bytes of one blob are on this machine. label: what people call it."""

    sha256: str
    size_bytes: int
    label: str
    content: bytes | Path = field(repr=False)

    def read(self, start: int, size: int) -> Iterator[bytes]:
        """Yield `size` bytes from offset `start` in chunks."""
        if isinstance(self.content, bytes):
            yield self.content[start : start + size]
            return
        with self.content.open("rb") as file:
            file.seek(start)
            while size > 0 and (chunk := file.read(min(size, _CHUNK_BYTES))):
                size -= len(chunk)
                yield chunk


class Part(msgspec.Struct, frozen=True):
    """One part of a multipart upload and the signed link it goes to; numbers start at 1."""

    number: int
    url: str


class DonePart(msgspec.Struct, frozen=True):
    """One part that is stored."""

    number: int
    etag: str


class BlobPlan(msgspec.Struct, frozen=True):
    """What the gateway says of one blob: it is there, or how to send it."""

    sha256: str
    present: bool
    part_bytes: int = 0
    num_parts: int = 0
    parts: list[Part] = []
    done_parts: list[DonePart] = []


def upload_all(client: Client, sources: dict[str, Source], plans: list[BlobPlan], on_sent: OnBytes) -> int:
    """Send every part of `plans` that is not stored yet, complete each blob, and return the bytes sent.

    Args:
        sources: by SHA-256. on_sent: told of bytes as they leave, from several threads; negative when a part restarts.
    Raises: StoreUnavailable when a part fails five times; the gateway's error when a blob does not verify.
    """
    uploads = [_Upload(sources[plan.sha256], plan) for plan in plans]
    for upload in uploads:
        on_sent(upload.num_done_bytes)
    sender = _Sender(client, on_sent)
    with _store_client(uploads) as store, ThreadPoolExecutor(NUM_STREAMS) as pool:
        try:
            tasks = [
                pool.submit(sender.send, store, upload, part) for upload in uploads for part in upload.plan_of_parts()
            ]
            tasks += [pool.submit(sender.complete, upload) for upload in uploads if not upload.missing]
            _finish(tasks)
        finally:
            # Ctrl-C or a failed part: the other streams stop at their next chunk
            sender.stop.set()
            pool.shutdown(cancel_futures=True)
    return sender.num_sent_bytes


def _store_client(uploads: list[_Upload]) -> httpx.Client:
    """Return a client for the signed links; it carries no key of ours."""
    is_local = any(is_loopback(part.url) for upload in uploads for part in upload.plan.parts[:1])
    return httpx.Client(timeout=_PART_TIMEOUT, trust_env=not is_local)


def _finish(tasks: list[Future[None]]) -> None:
    done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
    for task in done:
        task.result()


class _Upload:
    """One blob on its way; its part list grows under its lock."""

    def __init__(self, source: Source, plan: BlobPlan) -> None:
        self.source = source
        self.plan = plan
        self.lock = threading.Lock()
        self.done = {part.number: part.etag for part in plan.done_parts}
        self.missing = {part.number for part in plan.parts} - set(self.done)

    def plan_of_parts(self) -> list[Part]:
        return [part for part in self.plan.parts if part.number in self.missing]

    @property
    def num_done_bytes(self) -> int:
        return sum(self.size_of(number) for number in self.done)

    def size_of(self, number: int) -> int:
        start = (number - 1) * self.plan.part_bytes
        return max(0, min(self.plan.part_bytes, self.source.size_bytes - start))

    def store(self, number: int, etag: str) -> bool:
        """Note a stored part and return whether it was the last one."""
        with self.lock:
            self.done[number] = etag
            self.missing.discard(number)
            return not self.missing


class _Stopped(Exception):
    """Another stream failed first; its error is the one to tell."""


class _Sender:
    """The work of one stream; shared by all of them."""

    def __init__(self, client: Client, on_sent: OnBytes) -> None:
        self._client = client
        self._on_sent = on_sent
        self._lock = threading.Lock()
        self.stop = threading.Event()
        self.num_sent_bytes = 0

    def send(self, store: httpx.Client, upload: _Upload, part: Part) -> None:
        """Send one part, with back-off between attempts; complete the blob after its last part."""
        for attempt in range(MAX_ATTEMPTS):
            failure = self._attempt(store, upload, part)
            if failure is None:
                return
            if self.stop.wait(FIRST_PAUSE_S * 2**attempt):
                raise _Stopped
        raise StoreUnavailable(
            f"{upload.source.label}, part {part.number}: {failure}. Deploy again to go on where this ended"
        )

    def _attempt(self, store: httpx.Client, upload: _Upload, part: Part) -> str | None:
        """Return why it failed and is worth another try, or None when the part is stored."""
        size = upload.size_of(part.number)
        counted = _Counted(self._on_sent, self.stop)
        body = counted.over(upload.source.read((part.number - 1) * upload.plan.part_bytes, size))
        try:
            response = store.put(part.url, content=body, headers={"Content-Length": str(size)})
        except httpx.HTTPError as error:
            counted.take_back()
            return transport_error(error, str(httpx.URL(part.url).copy_with(query=None))).detail
        if response.status_code != 200:
            counted.take_back()
            return f"object storage answered {response.status_code}"
        with self._lock:
            self.num_sent_bytes += size
        if upload.store(part.number, response.headers["etag"]):
            self.complete(upload)
        return None

    def complete(self, upload: _Upload) -> None:
        """Have the gateway join the parts and verify them. Raises its error."""
        parts = [{"number": number, "etag": etag} for number, etag in sorted(upload.done.items())]
        body = msgspec.json.encode({"size_bytes": upload.source.size_bytes, "parts": parts})
        path = f"/v1/uploads/{upload.source.sha256}/complete"
        self._client.request("POST", path, body, timeout_s=COMPLETE_TIMEOUT_S)


class _Counted:
    """Tells of the bytes of one attempt, and takes them back when it fails."""

    def __init__(self, on_sent: OnBytes, stop: threading.Event) -> None:
        self._on_sent = on_sent
        self._stop = stop
        self._count = 0

    def over(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self._stop.is_set():
                raise _Stopped
            yield chunk
            self._count += len(chunk)
            self._on_sent(len(chunk))

    def take_back(self) -> None:
        self._on_sent(-self._count)
        self._count = 0
