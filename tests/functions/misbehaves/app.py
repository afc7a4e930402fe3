import ctypes
import os
import sys
import time
from typing import Any, Literal

import samovar as sv

Deed = Literal[
    "nothing",
    "segfault",
    "raise",
    "exit",
    "interrupt",
    "nan",
    "unencodable",
    "memory",
    "invalid",
    "sleep",
    "print",
    "environ",
    "big",
]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@sv.function(name="misbehaves", limits=sv.Limits(timeout_s=5, overrun_grace_s=0.8))
def misbehaves(deed: Deed, amount: float = 0.0) -> Any:
    if deed == "raise" and amount == 2:
        raise ValueError("tea\udcff")  # such as a file's name that is no UTF-8
    if deed == "raise":
        raise KeyError("tea") if amount == 0 else Unprintable
    if deed == "segfault":
        ctypes.string_at(0)
    if deed == "exit":
        sys.exit(3)
    if deed == "interrupt":
        raise KeyboardInterrupt
    if deed == "memory":
        return len(bytearray(int(amount)))
    if deed == "invalid":
        raise sv.errors.InvalidInput("$.amount: too much tea", path="$.amount")
    if deed == "sleep":
        time.sleep(amount)
    if deed == "print":
        print("said on stdout")
        print("said on stderr", file=sys.stderr)
        os.write(1, b"said natively\n")
    answers: dict[str, Any] = {"nan": {"a": [1.0, float("nan")]}, "unencodable": object(), "environ": dict(os.environ)}
    return "x" * int(amount) if deed == "big" else answers.get(deed, "done")
