"""Which runs of a cron job are to be made now, and which are left out: pure.

| what was due since it was last looked at     | `missed` = skip      | last                 | all
|----------------------------------------------|----------------------|----------------------|--------------------------
| one, within the last 60 s                    | it runs              | it runs              | it runs
| several, the newest within the last 60 s     | the newest runs      | the newest runs      | each runs, one by one
| some, all of them longer ago                 | none runs            | the newest runs, now | each runs, one by one

Of more than 100 the oldest are left out. Runs that are made up for wait for one another. While the last run has not
ended, `overlap` says what becomes of those to be made:

| skip             | queue                        | cancel
|------------------|------------------------------|---------------------------------------------
| they are not     | the first waits for its end  | it is cancelled, only the newest of them runs

This module does not know Redis, jobs' states or the clock.
"""

from __future__ import annotations

import hashlib

from samovar.jobs import CronJob
from samovar.schedule import due_after, due_between
from samovar.values import Struct
from samovar_storage.records import ApiKeyRecord

MAX_MISSED = 100
GRACE_S = 60.0


class Plan(Struct, frozen=True, kw_only=True):
    """What is to be done about a cron job. `_s` are unix seconds.

    runs: when those to be made were due, rising. upto_s: everything up to then is dealt with, 0 = nothing was due.
    next_s: when it is due next. notice: what is left out, "" = nothing.
    """

    runs: list[float]
    upto_s: float = 0.0
    next_s: float
    notice: str = ""


def plan(cron: CronJob, last_s: float, now_s: float) -> Plan:
    """Return what is to be done at `now_s` about what was due after `last_s`. Raises: InvalidInput."""
    after_s = max(last_s, now_s)
    next_s = next(iter(due_after(cron.schedule, cron.tz, after_s, 1)), float("inf"))
    found = due_between(cron.schedule, cron.tz, last_s, now_s, MAX_MISSED + 1) if last_s < now_s else []
    if not found:
        return Plan(runs=[], next_s=next_s)
    due, is_more = found[-MAX_MISSED:], len(found) > MAX_MISSED
    is_on_time = now_s - due[-1] <= GRACE_S
    runs = due if cron.missed == "all" else due[-1:] if is_on_time or cron.missed == "last" else []
    num_left_out = len(due) - len(runs)
    left_out = f"more than {num_left_out}" if is_more else str(num_left_out)
    notice = f"{left_out} missed runs were left out" if num_left_out or is_more else ""
    return Plan(runs=runs, upto_s=due[-1], next_s=next_s, notice=notice)


def overlapping(cron: CronJob, wanted: Plan) -> Plan:
    """Return a plan as `overlap` has it while the last run has not ended."""
    if cron.overlap == "queue" or not wanted.runs:
        return wanted
    if cron.overlap == "skip":
        notice = f"{len(wanted.runs)} runs were left out: the last one had not ended"
        return Plan(runs=[], upto_s=wanted.upto_s, next_s=wanted.next_s, notice=notice)
    return Plan(runs=wanted.runs[-1:], upto_s=wanted.upto_s, next_s=wanted.next_s, notice=wanted.notice)


def may_run(key: ApiKeyRecord, function: str, now_s: float) -> bool:
    """Return whether an API key may call a function at `now_s`."""
    is_valid = not key.expires_at_s or now_s < key.expires_at_s
    return is_valid and bool({"admin", "invoke"} & {*key.scopes}) and (not key.functions or function in key.functions)


def run_id(name: str, due_s: float) -> str:
    """Return the id of the job of the run that was due at `due_s`: the same, whoever submits it, however often."""
    return f"{int(due_s * 1000):012x}{hashlib.blake2b(name.encode(), digest_size=6).hexdigest()}"
