"""Has an effect outside: a row with the attempt's fencing token, appended by whoever listens, before it returns."""

import json
import os
import signal
import socket

import samovar as sv


@sv.function(
    name="effects",
    example={"number": 0, "port": 0},
    resources=sv.Resources(network=True),
    scaling=sv.Scaling(max_instances=2),
    jobs=sv.Jobs(retries=3, backoff_s=0.1, max_crashes=4),
)
def effects(number: int, port: int, ctx: sv.Context, padding: str = "", poison_every: int = 0) -> int:
    if poison_every and number % poison_every == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    if port:
        row = {"job": ctx.job_id, "token": ctx.token, "number": number}
        with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
            peer.sendall(json.dumps(row).encode() + b"\n")
            peer.recv(1)
    return number
