"""The function that RQ's own workers run in `jobs_throughput`."""


def noop(value: int) -> int:
    """Return the value."""
    return value
