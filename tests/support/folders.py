"""Folders with short names: a Unix socket's path has room for 107 bytes, and pytest's own folders take most of them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_folder() -> Iterator[Path]:
    """A fresh folder directly under the temporary one, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="sv-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
