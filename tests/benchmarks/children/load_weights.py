"""Loads safetensors files as an instance does, apart from the process that prefetches.

This process imports what a zygote does and keeps one blank forked. For each line on standard input, a path, the blank
brings up the example as its specialisation would, up to where the first weight is touched; then it prints the seconds
of mapping every tensor of the path and touching each of its pages, and ends.
"""

import gc
import os
import sys
import time
from pathlib import Path

import torch
from harness.example import Example
from safetensors import safe_open

import samovar.tokenizer
import samovar.torch


def load(path: str) -> float:
    """Return the seconds it took to touch every page of every tensor."""
    started_s = time.perf_counter()
    with safe_open(path, framework="pt") as file:
        for name in file.keys():
            file.get_tensor(name).view(torch.uint8)[::4096].sum()
    return time.perf_counter() - started_s


def serve_as_blank(app: Path) -> int:
    """Wait for a path, bring up the example, load, answer; return whether there was one as an exit code."""
    line = os.read(0, 4096).decode()
    if not line:
        return 1
    # the code and the model without its pages: an instance maps the weights and touches them in its first forward
    Example(app).load()
    os.write(1, f"{load(line.strip())}\n".encode())
    return 0


def main() -> None:
    """Serve takes, each in a blank of its own, until standard input ends."""
    app = Path(sys.argv[1])
    torch.set_num_threads(1)
    samovar.torch.prepare()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    while True:
        pid = os.fork()
        if pid == 0:
            os._exit(serve_as_blank(app))
        _, status = os.waitpid(pid, 0)
        if status:
            return


if __name__ == "__main__":
    main()
