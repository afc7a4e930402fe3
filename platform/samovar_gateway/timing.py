"""`Server-Timing`, the receipt of a call: where its time went, in milliseconds. Pure."""

from __future__ import annotations

from samovar_dispatch.call import Call

BOOT_PHASES = ("claim", "fetch", "import", "load", "warmup")


def phases_ms(call: Call, wait_us: int, run_us: int) -> dict[str, float]:
    """Return the same by name, for answers whose headers are sent before it is known."""
    parts = (part.split(";dur=") for part in server_timing(call, wait_us, run_us).decode().split(", "))
    return {name: float(value) for name, value in parts}


def server_timing(call: Call, wait_us: int, run_us: int) -> bytes:
    """Return the header's value: queue, run, total; after a cold start also the phases of the instance's boot.

    Args:
        wait_us, run_us: as the instance reported them: received → started, and in the handler.
    """
    queue_ms = (call.sent_s - call.submitted_s) * 1e3 + wait_us * 1e-3
    total_ms = (call.ended_s - call.submitted_s) * 1e3
    value = "queue;dur=%.3f, run;dur=%.3f, total;dur=%.3f" % (queue_ms, run_us * 1e-3, total_ms)  # noqa: UP031  faster
    if call.cold and call.seat is not None:
        boot_ms = call.seat.owner.record.boot_ms
        value += "".join(f", {phase};dur={boot_ms[phase]:.3f}" for phase in BOOT_PHASES if phase in boot_ms)
    return value.encode()
