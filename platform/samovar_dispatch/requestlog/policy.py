"""What a version's `sv.Log` means for one payload: decided on the hot path, carried out beside it.

This module does not know records or where they go.
"""

from __future__ import annotations

from dataclasses import dataclass

from samovar.policies import Log
from samovar_dispatch.requestlog.redaction import Path, digest, keep, parse_path
from samovar_storage.requestlog.rows import HASH, NONE


@dataclass(frozen=True, slots=True)
class PayloadPolicy:
    """`sv.Log` made ready. keeps: payloads are wanted at all. is_plain: "full" without paths to redact."""

    keeps: bool
    is_plain: bool
    hashes: bool
    sample: float
    max_bytes: int
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, log: Log) -> PayloadPolicy:
        """Return the policy a manifest's `log` asks for."""
        return cls(
            keeps=log.payload != "none" and log.sample > 0,
            is_plain=log.payload == "full" and not log.redact,
            hashes=log.payload == "hash",
            sample=log.sample,
            max_bytes=log.max_bytes,
            paths=tuple(parse_path(path) for path in log.redact),
        )

    def apply(self, data: bytes | None) -> tuple[bytes | None, int]:
        """Return what is kept of a payload, and its form."""
        if data is None:
            return None, NONE
        return (digest(data), HASH) if self.hashes else keep(data, self.max_bytes, self.paths)


UNTREATED = -1  # the form of a payload whose policy is still to be applied; never leaves this process
NOTHING = PayloadPolicy(False, False, False, 0.0, 0, ())
