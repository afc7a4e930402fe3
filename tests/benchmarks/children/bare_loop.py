"""The example's model in a bare loop, one torch thread, no server: for each line "BATCH SECONDS" on standard input,
print the sentences a second of calling the handler with BATCH sentences at a time."""

import sys
import time
from pathlib import Path

import torch
from harness.example import Example


def rate(example: Example, bodies: list[bytes], batch: int, seconds: float) -> float:
    """Return sentences a second over about `seconds` of batches of `batch` sentences, taken in turn."""
    items = [example.decode(body) for body in bodies]
    num_batches, started_s = 0, time.perf_counter()
    while time.perf_counter() - started_s < seconds:
        first = num_batches * batch
        example.handle([items[(first + i) % len(items)] for i in range(batch)])
        num_batches += 1
    return num_batches * batch / (time.perf_counter() - started_s)


def main() -> None:
    """Load, warm up, serve takes until standard input ends."""
    torch.set_num_threads(1)
    bodies = Path(sys.argv[2]).read_bytes().splitlines()
    example = Example(Path(sys.argv[1]))
    example.load()
    rate(example, bodies, 16, 0.5)
    print("ready", flush=True)
    for line in sys.stdin:
        batch, seconds = line.split()
        print(rate(example, bodies, int(batch), float(seconds)), flush=True)


if __name__ == "__main__":
    main()
