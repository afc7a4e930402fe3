"""Scripts that run beside a benchmark in processes of their own, talked to by lines.

This module does not know what they do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from harness.load import BenchmarkError
from harness.processes import end, pinned

_CHILDREN = Path(__file__).parents[1] / "children"


class Child:
    """One of our scripts: it greets with a line when ready, then answers lines with lines until closed."""

    def __init__(self, script: str, *arguments: str, cores: str | None = None) -> None:
        environ = os.environ | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        environ["PYTHONPATH"] = str(_CHILDREN.parent)
        self._log = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            pinned([sys.executable, str(_CHILDREN / script), *arguments], cores),
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self.name = script
        self.greeting = ""

    def __enter__(self) -> Self:
        self.greeting = self.read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            end([self._process.pid])
        self._log.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, line: str = "") -> float:
        """Send one line, return the number it answers with."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return float(self.read())

    def read(self) -> str:
        """Return its next line. Raises BenchmarkError if it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._log.seek(0)
            said = self._log.read().decode(errors="replace")[-1500:]
            raise BenchmarkError(f"{self.name} ended with {code} and without an answer: {said}")
        return line
