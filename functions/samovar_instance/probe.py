"""`python -m samovar_instance.probe`: which layers of the sandbox can be had here, without a zygote or a function.

Goes through the three stages as an instance would, in a fork, and writes what is on and why the rest is off as JSON.
`samovar doctor` and a pool manager that requires a sandbox ask it. It imports none of what makes a zygote slow.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import replace

import msgspec

from samovar_instance.confine import Needs, Sandbox
from samovar_instance.zygote import add_sandbox_options, policy_of


def main(argv: list[str] | None = None) -> int:
    """Write the report to stdout."""
    parser = argparse.ArgumentParser(prog="samovar_instance.probe")
    add_sandbox_options(parser)
    parser.add_argument("--uid", type=int, default=0, help="what an instance would run as")
    arguments = parser.parse_args(argv)
    logging.disable(logging.CRITICAL)  # the report says it
    policy = policy_of(arguments)
    if policy.mode == "required":
        policy = replace(policy, mode="best-effort")  # all gaps are wanted, not the first one
    read, write = os.pipe()
    sandbox = Sandbox(policy)
    sandbox.at_zygote()
    if os.fork() == 0:
        _report(sandbox, arguments.uid, write)
    os.close(write)
    with open(read, "rb") as report:
        sys.stdout.buffer.write(report.read())
    return 0


def _report(sandbox: Sandbox, uid: int, write: int) -> None:
    try:
        sandbox.at_fork((write,), uid)
        sandbox.at_specialise(Needs(memory_bytes=1 << 30))
        if not uid and "user_namespace" not in sandbox.on:
            sandbox.off["uid"] = "only root can give each instance its own"
        os.write(write, msgspec.json.encode({"on": sandbox.on, "off": sandbox.off}))
    finally:
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
