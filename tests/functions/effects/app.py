"""Has an effect outside: a row with the attempt's fencing token, appended by whoever listens, before it returns."""

import json
import socket
import time

import samovar as sv


@sv.function(
    name="effects",
    example={"number": 0, "port": 0},
    resources=sv.Resources(network=True),
    scaling=sv.Scaling(max_instances=2),
    jobs=sv.Jobs(retries=3, backoff_s=0.1, max_crashes=50),
)
def effects(number: int, port: int, ctx: sv.Context, sleep_s: float = 0.0) -> int:
    if port:
        time.sleep(sleep_s)
        row = {"job": ctx.job_id, "token": ctx.token, "number": number}
        with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
            peer.sendall(json.dumps(row).encode() + b"\n")
            peer.recv(1)
    return number
