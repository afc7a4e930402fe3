"""What `samovar up` tells the person or the program that started it: rich text, or one JSON object per line.

This module does not know when things happen.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.console import Console

from samovar.errors import SamovarError


class Reporter(Protocol):
    """Somebody who is told of the platform's way up and down."""

    def progress(self, text: str) -> None: ...

    def ready(self, url: str, admin_key: str, data_dir: Path, seconds: float) -> None: ...

    def failed(self, error: SamovarError) -> None: ...

    def stopped(self) -> None: ...


class TextReporter:
    """For people: progress and errors on stderr, the address and the key on stdout."""

    def __init__(self) -> None:
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)

    def progress(self, text: str) -> None:
        self._err.print(f"[dim]{text}[/dim]")

    def ready(self, url: str, admin_key: str, data_dir: Path, seconds: float) -> None:
        self._out.print(f"[bold green]samovar is up[/bold green] [dim](after {seconds:.1f} s)[/dim]")
        self._out.print(f"  URL          {url}")
        self._out.print(f"  admin key    {admin_key}")
        self._out.print(f"  data folder  {data_dir}")
        self._out.print("[dim]Ctrl-C finishes what runs and stops everything; twice hurries.[/dim]")

    def failed(self, error: SamovarError) -> None:
        self._err.print(f"[bold red]error[/bold red] {error.detail}")

    def stopped(self) -> None:
        self._err.print("[dim]stopped, nothing left running[/dim]")


class JsonReporter:
    """For programs: one JSON object per line on stdout, each with an `event`."""

    def progress(self, text: str) -> None:
        _write({"event": "progress", "text": text})

    def ready(self, url: str, admin_key: str, data_dir: Path, seconds: float) -> None:
        _write({"event": "ready", "url": url, "admin_key": admin_key, "data_dir": str(data_dir), "seconds": seconds})

    def failed(self, error: SamovarError) -> None:
        _write({"event": "error", "code": error.code, "detail": error.detail, "exit_code": error.exit_code})

    def stopped(self) -> None:
        _write({"event": "stopped"})


def _write(event: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()
