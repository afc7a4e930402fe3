"""MiniLM, as everything here measures it: the example that is deployed, the sentences, and what it is held against.

Baseline: a fresh Python process. Floor: a forked child without the platform. Bare loop: the handler alone.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from harness.child import Child
from harness.processes import Memory, memory
from harness.running import EXAMPLES

APP = EXAMPLES / "minilm" / "app.py"
TEXT = "The quick brown fox jumps over the lazy dog near the river"
BODY = json.dumps({"text": TEXT}).encode()

WORDS = (
    "the old kettle sings while rain taps on every window of our small house and a grey cat sleeps beside the stove "
    "dreaming of fish in cold rivers far away where tall trees grow slowly under quiet stars"
).split()


def sentences(count: int) -> list[bytes]:
    """Return `count` different bodies, each a sentence of 12 words."""
    num_words = len(WORDS)
    starts = ((i % num_words, 1 + i // num_words) for i in range(count))
    texts = [" ".join(WORDS[(first + step * j) % num_words] for j in range(12)) for first, step in starts]
    return [json.dumps({"text": text}).encode() for text in texts]


def forked_floor() -> Child:
    """Return the floor: each `ask()` is one forked child's milliseconds from fork to answer."""
    return Child("forked_floor.py", str(APP), BODY.decode())


def fresh_process() -> tuple[float, Memory]:
    """Return the seconds a fresh Python process takes from its start to its answer, and its memory then."""
    started_s = time.perf_counter()
    with Child("fresh_process.py", TEXT) as child:
        elapsed_s = time.perf_counter() - started_s
        return elapsed_s, memory(child.pid)


class BareLoop(Child):
    """The example's handler in a loop of its own."""

    def __init__(self, bodies: Sequence[bytes], cores: str | None = None) -> None:
        with tempfile.NamedTemporaryFile(prefix="samovar-bench-", suffix=".bodies", delete=False) as file:
            file.write(b"\n".join(bodies))
        self._bodies = Path(file.name)
        super().__init__("bare_loop.py", str(APP), file.name, cores=cores)

    def __enter__(self) -> Self:
        super().__enter__()
        self._bodies.unlink()
        return self

    def rate(self, batch: int, seconds: float) -> float:
        """Return sentences a second at `batch` sentences a call, over about `seconds`."""
        return self.ask(f"{batch} {seconds}")
