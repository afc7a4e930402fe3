"""The floor: what is left of a cold start when there is no platform.

This process imports and warms once what a zygote does. For each line on standard input it forks a child that imports
the example's code, loads the model by memory-mapping, answers one sentence and sends the answer back through a pipe;
the milliseconds from fork to answer are printed.
"""

import gc
import os
import sys
import time
from pathlib import Path

import torch
from harness.example import Example

import samovar.tokenizer
import samovar.torch


def answer(app: Path, body: bytes) -> bytes:
    """Return the example's answer to `body`, everything done from its file on."""
    example = Example(app)
    example.load()
    return example.answer(body)


def take(app: Path, body: bytes) -> float:
    """Return the milliseconds from fork to answer of one child."""
    reader, writer = os.pipe()
    started_s = time.perf_counter()
    pid = os.fork()
    if pid == 0:
        os.write(writer, answer(app, body))
        os.close(writer)  # the end of the process would close it only after its memory is taken apart
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        received = pipe.read()
    elapsed_ms = 1000 * (time.perf_counter() - started_s)
    os.waitpid(pid, 0)
    if not received:
        raise SystemExit("the forked child gave no answer")
    return elapsed_ms


def main() -> None:
    """Serve takes until standard input ends."""
    app, body = Path(sys.argv[1]), sys.argv[2].encode()
    torch.set_num_threads(1)
    samovar.torch.prepare()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(take(app, body), flush=True)


if __name__ == "__main__":
    main()
