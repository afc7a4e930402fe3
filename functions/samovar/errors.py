"""Every error the platform raises on purpose, as one tree.

    SamovarError                     internal               500  exit 1
    ├── ConfigError                  bad_config             500  exit 10   a setting, port, folder or key is wrong
    │   ├── PortTaken                port_taken
    │   ├── DataDirHeld              data_dir_held
    │   ├── DiskFull                 disk_full
    │   └── BadCredential            bad_credential
    ├── RequestError                 malformed              400  exit 6    the caller must change something
    │   ├── Unauthenticated          unauthenticated        401  exit 4
    │   ├── Forbidden                forbidden              403  exit 4
    │   ├── NotFound                 not_found              404  exit 5
    │   │   ├── FunctionNotFound     function_not_found
    │   │   ├── JobNotFound          job_not_found
    │   │   ├── StreamNotFound       stream_not_found                      none that this key can go on with
    │   │   └── StreamGone           stream_gone            410            what was to follow is lost: call again
    │   ├── MethodNotAllowed         method_not_allowed     405
    │   ├── ClientTooSlow            client_too_slow        408
    │   ├── Conflict                 conflict               409
    │   │   ├── VersionRejected      version_rejected                      it was rolled back: deploy anew
    │   │   ├── JobEnded             job_ended                             what was asked makes no sense any more
    │   │   ├── StreamTaken          stream_taken                          a newer reader goes on with it
    │   │   ├── NotUnique            not_unique                            an unfinished job has this `unique`
    │   │   └── IdempotencyRunning   idempotency_running                   the first request still runs
    │   ├── BodyTooLarge             body_too_large         413
    │   ├── UnsupportedEncoding      unsupported_encoding   415            a compressed body
    │   ├── HeadTooLarge             head_too_large         431            too many headers, or too long
    │   ├── InvalidInput             invalid_input          422            input does not match the hints
    │   ├── IdempotencyReused        idempotency_reused     422            the key came with another request
    │   ├── WebhookRefused           webhook_refused        422            its address may not be called
    │   └── DeployRefused            deploy_refused         422            wrong code or options: file and line
    ├── FunctionError                function_failed        500  exit 7    the user's code is at fault
    │   ├── FunctionRaised           function_raised
    │   ├── LoadFailed               load_failed
    │   ├── BadOutput                bad_output
    │   ├── Quarantined              quarantined                           the job took down too many instances
    │   └── DependencyFailed         dependency_failed                     a job that it waited for did not finish
    ├── InstanceLost                 instance_lost          502  exit 7    the instance died and a retry is not allowed
    ├── ProtocolError                protocol_error         502  exit 7    a peer broke the wire format
    ├── RateLimited                  rate_limited           429  exit 8    this caller's rate; carries retry_after_s
    ├── Unavailable                  unavailable            503  exit 8    try again later; carries retry_after_s
    │   ├── Shed                     shed                                  refused so that others are served
    │   │   ├── QueueFull            queue_full
    │   │   ├── WouldBeLate          would_be_late                         its deadline cannot be met
    │   │   ├── QueueLate            queue_late                            the queue has stayed late
    │   │   ├── LowPriority          low_priority                          made room for more important calls
    │   │   └── ConcurrencyLimited   concurrency_limited                   the adaptive limit is reached
    │   ├── BreakerOpen              breaker_open                          the version fails too often
    │   ├── NoCapacity               no_capacity
    │   ├── Draining                 draining
    │   ├── StoreUnavailable         store_unavailable
    │   │   └── StoreFull            store_full                            Redis has no memory left: nothing was taken
    │   └── WeightsMissing           weights_missing
    ├── DeadlineExceeded             deadline_exceeded      504  exit 9    names the phase it died in
    │   └── JobNotDone               job_not_done                          a wait for a job ended, not the job (client)
    └── ConnectError                 unreachable            503  exit 3    the gateway cannot be reached (client side)

`Cancelled` stands apart: it derives from BaseException so that `except Exception` never swallows it.
This module does not know HTTP, Redis, S3 or the wire: tables elsewhere map those here.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar


class SamovarError(Exception):
    """An error with a stable code. `detail` is one clear sentence; `extra` goes into the problem document."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, detail: str, *, retry_after_s: float | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.extra: dict[str, Any] = extra


class ConfigError(SamovarError):
    code = "bad_config"
    exit_code = 10


class PortTaken(ConfigError):
    code = "port_taken"


class DataDirHeld(ConfigError):
    code = "data_dir_held"


class DiskFull(ConfigError):
    code = "disk_full"


class BadCredential(ConfigError):
    code = "bad_credential"


class RequestError(SamovarError):
    code = "malformed"
    status = 400
    exit_code = 6


class Unauthenticated(RequestError):
    code = "unauthenticated"
    status = 401
    exit_code = 4


class Forbidden(RequestError):
    code = "forbidden"
    status = 403
    exit_code = 4


class NotFound(RequestError):
    code = "not_found"
    status = 404
    exit_code = 5


class FunctionNotFound(NotFound):
    code = "function_not_found"


class JobNotFound(NotFound):
    code = "job_not_found"


class StreamNotFound(NotFound):
    code = "stream_not_found"


class StreamGone(NotFound):
    code = "stream_gone"
    status = 410


class MethodNotAllowed(RequestError):
    code = "method_not_allowed"
    status = 405


class ClientTooSlow(RequestError):
    code = "client_too_slow"
    status = 408


class Conflict(RequestError):
    code = "conflict"
    status = 409


class VersionRejected(Conflict):
    code = "version_rejected"


class JobEnded(Conflict):
    """`extra["state"]` is the one it ended in."""

    code = "job_ended"


class StreamTaken(Conflict):
    code = "stream_taken"


class NotUnique(Conflict):
    """`extra["job"]` is the id of the one that has it."""

    code = "not_unique"


class IdempotencyRunning(Conflict):
    code = "idempotency_running"
    retryable = True


class BodyTooLarge(RequestError):
    code = "body_too_large"
    status = 413


class UnsupportedEncoding(RequestError):
    code = "unsupported_encoding"
    status = 415


class HeadTooLarge(RequestError):
    code = "head_too_large"
    status = 431


class InvalidInput(RequestError):
    """`extra["path"]` is the JSON path of the offending value, such as `$.text`."""

    code = "invalid_input"
    status = 422


class IdempotencyReused(RequestError):
    code = "idempotency_reused"
    status = 422


class WebhookRefused(RequestError):
    code = "webhook_refused"
    status = 422


class DeployRefused(RequestError):
    """`extra` may hold `file` and `line` of what was refused."""

    code = "deploy_refused"
    status = 422


class FunctionError(SamovarError):
    code = "function_failed"
    exit_code = 7


class FunctionRaised(FunctionError):
    """`extra["type"]` is the exception's class name; the traceback goes to the instance's log only."""

    code = "function_raised"


class LoadFailed(FunctionError):
    """The version cannot be brought up; `extra["log_tail"]` holds the last lines of the user's log."""

    code = "load_failed"


class BadOutput(FunctionError):
    code = "bad_output"


class Quarantined(FunctionError):
    """`extra["crashes"]`: how many instances the job took down."""

    code = "quarantined"


class DependencyFailed(FunctionError):
    """`extra["job"]` is the id of the one that did not finish."""

    code = "dependency_failed"


class InstanceLost(SamovarError):
    code = "instance_lost"
    status = 502
    retryable = True
    exit_code = 7


class ProtocolError(SamovarError):
    code = "protocol_error"
    status = 502
    exit_code = 7


class RateLimited(SamovarError):
    """`extra`: `limit` (which one: key, function, key-and-function), `policy` (the rate and burst in force)."""

    code = "rate_limited"
    status = 429
    retryable = True
    exit_code = 8


class Unavailable(SamovarError):
    code = "unavailable"
    status = 503
    retryable = True
    exit_code = 8


class Shed(Unavailable):
    """Refused before it ran, so that those who can be served are."""

    code = "shed"


class QueueFull(Shed):
    code = "queue_full"


class WouldBeLate(Shed):
    """`extra["predicted_wait_s"]`: what it would have had to wait."""

    code = "would_be_late"


class QueueLate(Shed):
    code = "queue_late"


class LowPriority(Shed):
    code = "low_priority"


class ConcurrencyLimited(Shed):
    code = "concurrency_limited"


class BreakerOpen(Unavailable):
    code = "breaker_open"


class NoCapacity(Unavailable):
    code = "no_capacity"


class Draining(Unavailable):
    code = "draining"


class StoreUnavailable(Unavailable):
    code = "store_unavailable"


class StoreFull(StoreUnavailable):
    code = "store_full"


class WeightsMissing(Unavailable):
    code = "weights_missing"


class DeadlineExceeded(SamovarError):
    """`extra["phase"]` is one of queue, boot, run, connect."""

    code = "deadline_exceeded"
    status = 504
    retryable = True
    exit_code = 9


class JobNotDone(DeadlineExceeded, TimeoutError):
    """`extra`: `job`, `state`, `wait_reason` when it was last seen."""

    code = "job_not_done"


class ConnectError(SamovarError):
    code = "unreachable"
    status = 503
    retryable = True
    exit_code = 3


class Cancelled(BaseException):
    """The caller left; nobody wants the answer any more."""


def _walk(cls: type[SamovarError]) -> list[type[SamovarError]]:
    return [cls, *(found for child in cls.__subclasses__() for found in _walk(child))]


def by_code() -> dict[str, type[SamovarError]]:
    """Return every error class by its code. Codes are unique (a test checks)."""
    return {cls.code: cls for cls in _walk(SamovarError)}


def rebuild(code: str, status: int, detail: str, extra: dict[str, Any] | None = None) -> SamovarError:
    """Return the error a peer described; an unknown code keeps its nature by status class."""
    cls = by_code().get(code)
    if cls is None:
        cls = RequestError if 400 <= status < 500 else Unavailable if status == 503 else SamovarError
    extra = dict(extra or {})
    wait_s = extra.pop("retry_after_s", None)
    is_time = isinstance(wait_s, int | float) and 0 <= wait_s < math.inf
    return cls(detail, retry_after_s=wait_s if is_time else None, **extra)
