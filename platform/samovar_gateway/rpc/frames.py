"""Where one HTTP/2 frame ends and the next begins, and the frame that says a server is leaving. Pure.

    frame:  3 bytes length · type · flags · 4 bytes stream · length bytes        RFC 9113, section 4.1

A stream of bytes may be joined by a frame of our own where `is_between`.
"""

from __future__ import annotations

HEAD_BYTES = 9
# GOAWAY (type 7) on stream 0: the last stream that will be served is the largest there can be, no error. Whoever gets
# it opens no stream here any more, and is answered on those that are open (section 6.8).
GOAWAY = b"\x00\x00\x08\x07\x00\x00\x00\x00\x00" + b"\x7f\xff\xff\xff" + b"\x00\x00\x00\x00"


class Frames:
    """Counts the frames of one direction of a connection as they pass. has_begun: a whole one has: SETTINGS, with which
    a server begins."""

    def __init__(self) -> None:
        self.has_begun = False
        self._head = b""
        self._num_left = 0  # bytes of the frame under way after its head

    @property
    def is_between(self) -> bool:
        """Whether what passed so far ends with a whole frame."""
        return not self._num_left and not self._head

    def feed(self, data: bytes) -> None:
        """These bytes pass."""
        position, end = 0, len(data)
        while position < end:
            if self._num_left:
                step = min(self._num_left, end - position)
                self._num_left -= step
            else:
                step = min(HEAD_BYTES - len(self._head), end - position)
                self._head += data[position : position + step]
                if len(self._head) == HEAD_BYTES:
                    self._num_left = int.from_bytes(self._head[:3], "big")
                    self._head = b""
            position += step
            self.has_begun = self.has_begun or self.is_between
