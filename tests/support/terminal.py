"""A command on a real terminal of its own: what a person would see, and type."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from support.waiting import PATIENCE_S

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A running command. shown: everything it has written so far."""

    def __init__(self, process: subprocess.Popen[bytes], screen: int) -> None:
        self.process = process
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._screen = screen
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """What was shown, without colours and with plain ends of lines."""
        return ESCAPES.sub("", self.shown).replace("\r\n", "\n")

    def type(self, text: str) -> None:
        """Type some keys; a lone surrogate is a byte that is no text."""
        os.write(self._screen, text.encode(errors="surrogateescape"))

    def see(self, expected: str, timeout_s: float = PATIENCE_S, after: int = 0) -> int:
        """Wait until a text is shown, `after` so many characters; return where it ends."""
        until_s = time.monotonic() + timeout_s
        while (place := self.text.find(expected, after)) < 0:
            assert time.monotonic() < until_s, f"{expected!r} is not in {self.text[after:]!r}"
            time.sleep(0.01)
        return place + len(expected)

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Wait until the command has ended; return its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join(5)
        return code

    def _read(self) -> None:
        while True:
            try:
                ready, _, _ = select.select([self._screen], [], [], 0.2)
                data = os.read(self._screen, 65536) if ready else None
            except (OSError, ValueError):
                return
            if data:
                self.shown += self._decoder.decode(data)
            elif data == b"" or self.process.poll() is not None:
                return


@contextmanager
def on_terminal(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a command on a terminal of its own for the body of a `with`; Ctrl-C reaches it as a key."""
    screen, keyboard = pty.openpty()
    process = subprocess.Popen(
        list(command),
        stdin=keyboard,
        stdout=keyboard,
        stderr=keyboard,
        env=dict(environment),
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(keyboard)
    try:
        yield Terminal(process, screen)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(60)
        os.close(screen)


def _take_terminal() -> None:
    """Make the terminal this process's own, so that its Ctrl-C is a signal to it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
