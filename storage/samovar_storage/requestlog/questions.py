"""What a gateway and the request log's keeper say to each other, as JSON lines.

This module knows neither of them.
"""

from __future__ import annotations

from typing import Any

from samovar.values import Struct

MAX_RECORDS = 1_000


class Wanted(Struct, frozen=True, kw_only=True):
    """Which records of a function. since_s, until_s: arrival, unix seconds. status: (lowest, highest) or None.

    slower_ms: only calls that took longer. version: only this one, None = all. limit: the newest so many.
    """

    function: str
    since_s: float
    until_s: float
    status: tuple[int, int] | None = None
    slower_ms: float | None = None
    version: int | None = None
    limit: int = 100


class Setup(Struct, frozen=True, kw_only=True):
    """Where the stores and the spool are, and how much is kept."""

    redis_url: str
    s3_endpoint: str
    s3_bucket: str
    s3_region: str
    s3_access_key: str
    s3_secret_key: str
    folder: str
    keep_s: float
    keep_bytes: int


class Question(Struct, frozen=True, kw_only=True):
    """what: records, summary, or files (counting ones, with links). ship: ship what is ready first."""

    id: int
    what: str
    wanted: Wanted
    ship: bool = False


class Reply(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """The answer to question `id`, or why there is none (code and detail of our error)."""

    id: int
    answer: dict[str, Any] | None = None
    code: str = ""
    detail: str = ""


class Report(Struct, frozen=True, kw_only=True, omit_defaults=True, tag=True):
    """What was shipped so far, and how often it could not be."""

    shipped_files: int = 0
    shipped_records: int = 0
    failures: int = 0
