"""One table from the exceptions of redis, botocore and the operating system to ours.

The first matching row wins, so narrower classes stand above their bases. A programming mistake (a parameter of
the wrong type, an unknown method) maps to plain `SamovarError`: it is ours to fix, not the operator's to wait for.
This module does not know what was being attempted; `translating(what)` puts that into the sentence.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import botocore.exceptions as boto
import redis.exceptions as rds
from boto3.exceptions import Boto3Error

from samovar import errors
from samovar.errors import SamovarError

# S3 error codes, as the stores spell them; a HEAD has no body and reports the bare HTTP status.
S3_CODES: dict[str, type[SamovarError]] = {
    "NoSuchKey": errors.NotFound,
    "NoSuchUpload": errors.NotFound,
    "NoSuchBucket": errors.NotFound,
    "NotFound": errors.NotFound,
    "404": errors.NotFound,
    "PreconditionFailed": errors.Conflict,
    "ConditionalRequestConflict": errors.Conflict,
    "412": errors.Conflict,
    "409": errors.Conflict,
    "AccessDenied": errors.BadCredential,
    "InvalidAccessKeyId": errors.BadCredential,
    "SignatureDoesNotMatch": errors.BadCredential,
    "ExpiredToken": errors.BadCredential,
    "403": errors.BadCredential,
    "401": errors.BadCredential,
    "InvalidPart": errors.InvalidInput,
    "InvalidPartOrder": errors.InvalidInput,
    "EntityTooSmall": errors.InvalidInput,
    "EntityTooLarge": errors.BodyTooLarge,
    "InvalidBucketName": errors.ConfigError,
    "QuotaExceeded": errors.DiskFull,
    "XMinioStorageFull": errors.DiskFull,
}

REDIS: tuple[tuple[type[Exception], type[SamovarError]], ...] = (
    (rds.AuthenticationError, errors.BadCredential),
    (rds.AuthorizationError, errors.BadCredential),
    (rds.AuthenticationWrongNumberOfArgsError, errors.BadCredential),
    (rds.NoPermissionError, errors.BadCredential),
    (rds.ExternalAuthProviderError, errors.BadCredential),
    (rds.WatchError, errors.Conflict),
    (rds.LockError, errors.Conflict),
    (rds.DataError, SamovarError),
    (rds.InvalidPipelineStack, SamovarError),
    (rds.OutOfMemoryError, errors.StoreFull),
    (rds.RedisError, errors.StoreUnavailable),
    (rds.RedisClusterException, errors.StoreUnavailable),
)

BOTO: tuple[tuple[type[Exception], type[SamovarError]], ...] = (
    (boto.NoCredentialsError, errors.BadCredential),
    (boto.PartialCredentialsError, errors.BadCredential),
    (boto.CredentialRetrievalError, errors.BadCredential),
    (boto.TokenRetrievalError, errors.BadCredential),
    (boto.NoAuthTokenError, errors.BadCredential),
    (boto.SSOError, errors.BadCredential),
    (boto.LoginError, errors.BadCredential),
    (boto.ConnectionError, errors.StoreUnavailable),
    (boto.HTTPClientError, errors.StoreUnavailable),
    (boto.IncompleteReadError, errors.StoreUnavailable),
    (boto.ChecksumError, errors.StoreUnavailable),
    (boto.FlexibleChecksumError, errors.StoreUnavailable),
    (boto.CapacityNotAvailableError, errors.StoreUnavailable),
    (boto.ValidationError, SamovarError),
    (boto.ParamValidationError, SamovarError),
    (boto.UnknownClientMethodError, SamovarError),
    (boto.StubResponseError, SamovarError),
    # what is left are profiles, regions, endpoints and parameters of the installation
    (boto.BotoCoreError, errors.ConfigError),
    (Boto3Error, errors.ConfigError),
)

OS_ERRNO: dict[int, type[SamovarError]] = {
    errno.ENOSPC: errors.DiskFull,
    errno.EDQUOT: errors.DiskFull,
    # the largest file this process, or the file system, may hold
    errno.EFBIG: errors.DiskFull,
    errno.EACCES: errors.ConfigError,
    errno.EPERM: errors.ConfigError,
    errno.EROFS: errors.ConfigError,
}


def translate(error: BaseException, what: str = "") -> SamovarError | None:
    """Return our error for a lower library's one, or None when it is not from redis, botocore or the disk.

    Args:
        what: what was being attempted, as a noun phrase ("the object blobs/ab12"); becomes part of the sentence.
    """
    about = f"{what}: " if what else ""
    if isinstance(error, boto.ClientError):
        return _client_error(error, about)
    if isinstance(error, OSError) and error.errno in OS_ERRNO and not isinstance(error, rds.RedisError):
        return OS_ERRNO[error.errno](f"{about}{error.strerror}" + (f" ({error.filename})" if error.filename else ""))
    for lower, ours in (*REDIS, *BOTO):
        if isinstance(error, lower):
            return ours(f"{about}{_sentence(error)}")
    return None


@contextmanager
def translating(what: str = "") -> Iterator[None]:
    """Run the body; errors of redis, botocore and a full or forbidden disk leave it as ours, chained to the cause."""
    try:
        yield
    except Exception as error:
        ours = translate(error, what)
        if ours is None or isinstance(error, SamovarError):
            raise
        raise ours from error


def _client_error(error: boto.ClientError, about: str) -> SamovarError:
    described = error.response.get("Error", {})
    code, message = str(described.get("Code", "")), str(described.get("Message", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if "no space left" in message.lower():
        return errors.DiskFull(f"{about}the object store has no space left")
    ours = S3_CODES.get(code) or S3_CODES.get(str(status))
    if ours is None:
        ours = errors.StoreUnavailable if status >= 500 or status in (0, 429) else SamovarError
    return ours(f"{about}{message or code or 'the object store refused'} ({code or status})")


def _sentence(error: BaseException) -> str:
    """Return the error's own words; redis and botocore put no credential into them."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]
