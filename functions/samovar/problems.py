"""What a client reads in HTTP answers: problem documents, retry times, phases, the lines of a stream; and how an error
is written as such a document.

A stream that fails after its first item ends with the line `{"error": <problem document>}`.
This module does not know httpx: it sees status, headers and bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Any

from samovar.errors import SamovarError, rebuild

PROBLEM_TYPE = "urn:samovar:problem:"
_STANDARD = frozenset({"type", "title", "status", "detail", "code", "instance"})


def standard(error: SamovarError) -> dict[str, Any]:
    """Return the members that every problem document of `error` has, whoever asks; they win over its extra fields."""
    members = {
        "type": f"{PROBLEM_TYPE}{error.code}",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
    }
    if error.retry_after_s is not None:
        members["retry_after_s"] = round(error.retry_after_s, 3)
    return members


def error_of(status: int, headers: Mapping[str, str], body: bytes) -> SamovarError:
    """Return the error that an answer with `status` >= 400 stands for; its `extra` keeps the problem's own fields."""
    return rebuilt(_problem(body), status, headers)


def stream_item(line: bytes) -> Any:
    """Return the item of one line of a stream. Raises the error that a last `{"error": …}` line describes."""
    item = json.loads(line)
    if isinstance(item, dict) and len(item) == 1 and isinstance(problem := item.get("error"), dict):
        if str(problem.get("type", "")).startswith(PROBLEM_TYPE):
            raise rebuilt(problem, int(problem.get("status", 500)))
    return item


class Lines:
    """Cuts a stream of bytes into lines at newlines alone; empty lines (heartbeats) are dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line for line in lines if line.strip()]

    def end(self) -> list[bytes]:
        """Return what is left when the stream has ended."""
        return [self._rest] if self._rest.strip() else []


def rebuilt(problem: Mapping[str, Any], status: int, headers: Mapping[str, str] = MappingProxyType({})) -> SamovarError:
    """Return the error that a problem document describes; its `extra` keeps the document's own fields."""
    extra: dict[str, Any] = {key: value for key, value in problem.items() if key not in _STANDARD}
    if "retry_after_s" not in extra and (seconds := retry_after_s(headers)) is not None:
        extra["retry_after_s"] = seconds
    detail = str(problem.get("detail") or problem.get("title") or f"the gateway answered {status}")
    return rebuild(str(problem.get("code", "")), status, detail, extra)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a `Retry-After` header, None if there is none or it is a date."""
    try:
        return max(0.0, float(headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def phases_of(headers: Mapping[str, str]) -> dict[str, float]:
    """Return the phases of a `Server-Timing` header in milliseconds, in order."""
    phases: dict[str, float] = {}
    for entry in headers.get("server-timing", "").split(","):
        name, _, rest = entry.strip().partition(";")
        for parameter in rest.split(";"):
            key, _, value = parameter.strip().partition("=")
            if key == "dur" and name:
                phases[name] = _number(value)
    return phases


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _problem(body: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
