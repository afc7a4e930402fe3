"""What `samovar up` tells the person or the program that started it: rich text, or one JSON object per line.

A reader that went away stops nothing: what it would have read is dropped. This module does not know when things happen.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import msgspec
from rich.console import Console
from rich.markup import escape

from samovar.errors import SamovarError


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """Where the platform is reached. grpc: host and port, "" = it has none. gateways: the address of each one's own."""

    url: str
    grpc: str
    gateways: Mapping[str, str]


class Reporter(Protocol):
    """Somebody who is told of the platform's way up and down."""

    def progress(self, text: str) -> None: ...

    def ready(self, addresses: Addresses, admin_key: str, data_dir: Path, seconds: float) -> None: ...

    def failed(self, error: SamovarError) -> None: ...

    def stopped(self) -> None: ...


class TextReporter:
    """For people: progress and errors on stderr, the address and the key on stdout."""

    def __init__(self) -> None:
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)

    def progress(self, text: str) -> None:
        _print(self._err, f"[dim]{text}[/dim]")

    def ready(self, addresses: Addresses, admin_key: str, data_dir: Path, seconds: float) -> None:
        gateways = addresses.gateways
        lines = [
            f"[bold green]samovar is up[/bold green] [dim](after {seconds:.1f} s)[/dim]",
            f"  URL          {addresses.url}",
            *([f"  gRPC         {addresses.grpc}"] if addresses.grpc else []),
            *(f"  {place:<12} {own} [dim](its metrics)[/dim]" for place, own in gateways.items() if len(gateways) > 1),
            f"  admin key    {admin_key}",
            f"  data folder  {escape(str(data_dir))}",
            "[dim]Ctrl-C finishes what runs and stops everything; twice hurries.[/dim]",
        ]
        _print(self._out, "\n".join(lines))

    def failed(self, error: SamovarError) -> None:
        _print(self._err, f"[bold red]error[/bold red] {escape(error.detail)}")

    def stopped(self) -> None:
        _print(self._err, "[dim]stopped, nothing left running[/dim]")


class JsonReporter:
    """For programs: one JSON object per line on stdout, each with an `event`."""

    def progress(self, text: str) -> None:
        _write({"event": "progress", "text": text})

    def ready(self, addresses: Addresses, admin_key: str, data_dir: Path, seconds: float) -> None:
        found = msgspec.structs.asdict(addresses) | {"admin_key": admin_key, "data_dir": str(data_dir)}
        _write({"event": "ready", **found, "seconds": seconds})

    def failed(self, error: SamovarError) -> None:
        _write({"event": "error", "code": error.code, "detail": error.detail, "exit_code": error.exit_code})

    def stopped(self) -> None:
        _write({"event": "stopped"})


def _print(console: Console, text: str) -> None:
    with suppress(OSError, SystemExit):  # rich's way to end at a broken pipe
        console.print(text)


def _write(event: dict[str, Any]) -> None:
    with suppress(OSError):
        sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
        sys.stdout.flush()
