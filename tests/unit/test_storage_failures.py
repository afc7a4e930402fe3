"""The table of lower errors has no gaps, and says what an operator needs to know."""

from __future__ import annotations

import errno
import inspect

import botocore.exceptions
import pytest
import redis.exceptions
from botocore.exceptions import ClientError

from samovar import errors
from samovar_storage.failures import BOTO, REDIS, S3_CODES, translate, translating

REDIS_CLASSES: list[type[Exception]] = [
    cls
    for _, cls in inspect.getmembers(redis.exceptions, inspect.isclass)
    if issubclass(cls, redis.exceptions.RedisError | redis.exceptions.RedisClusterException)
]
BOTO_CLASSES: list[type[Exception]] = [
    cls
    for _, cls in inspect.getmembers(botocore.exceptions, inspect.isclass)
    if issubclass(cls, botocore.exceptions.BotoCoreError)
]


def made(cls: type[Exception]) -> Exception:
    """Return an instance without calling its constructor, which wants all kinds of arguments."""
    error = cls.__new__(cls)
    error.args = ("it broke",)
    return error


@pytest.mark.parametrize("cls", REDIS_CLASSES + BOTO_CLASSES, ids=lambda cls: cls.__name__)
def test_every_lower_error_becomes_one_of_ours(cls: type[Exception]) -> None:
    assert isinstance(translate(made(cls), "the thing"), errors.SamovarError)


@pytest.mark.parametrize("table", [REDIS, BOTO], ids=["redis", "boto"])
def test_no_row_is_hidden_by_an_earlier_one(table: tuple[tuple[type[Exception], type[Exception]], ...]) -> None:
    for index, (cls, _) in enumerate(table):
        assert not any(issubclass(cls, earlier) for earlier, _ in table[:index]), cls


@pytest.mark.parametrize(
    ("cls", "ours"),
    [
        (redis.exceptions.ConnectionError, errors.StoreUnavailable),
        (redis.exceptions.TimeoutError, errors.StoreUnavailable),
        (redis.exceptions.BusyLoadingError, errors.StoreUnavailable),
        (redis.exceptions.AuthenticationError, errors.BadCredential),
        (redis.exceptions.WatchError, errors.Conflict),
        (botocore.exceptions.EndpointConnectionError, errors.StoreUnavailable),
        (botocore.exceptions.ReadTimeoutError, errors.StoreUnavailable),
        (botocore.exceptions.NoCredentialsError, errors.BadCredential),
        (botocore.exceptions.NoRegionError, errors.ConfigError),
    ],
)
def test_the_cases_that_matter(cls: type[Exception], ours: type[errors.SamovarError]) -> None:
    assert type(translate(made(cls))) is ours


@pytest.mark.parametrize(("code", "ours"), S3_CODES.items())
def test_s3_codes(code: str, ours: type[errors.SamovarError]) -> None:
    error = ClientError({"Error": {"Code": code, "Message": "told"}}, "GetObject")
    translated = translate(error, "the object x")
    assert type(translated) is ours
    assert translated is not None and "the object x: told" in translated.detail


@pytest.mark.parametrize(
    ("status", "ours"),
    [
        (500, errors.StoreUnavailable),
        (503, errors.StoreUnavailable),
        (429, errors.StoreUnavailable),
        (404, errors.NotFound),
    ],
)
def test_an_unknown_s3_code_is_judged_by_its_status(status: int, ours: type[errors.SamovarError]) -> None:
    error = ClientError(
        {"Error": {"Code": "Odd"}, "ResponseMetadata": {"HTTPStatusCode": status}},  # type: ignore[typeddict-item]
        "GetObject",
    )
    assert type(translate(error)) is ours


def test_a_full_disk_here_or_there() -> None:
    assert isinstance(translate(OSError(errno.ENOSPC, "No space left on device", "/x")), errors.DiskFull)
    remote = ClientError({"Error": {"Code": "InternalError", "Message": "write /data: No space left on device"}}, "Put")
    assert isinstance(translate(remote), errors.DiskFull)


def test_other_errors_pass_and_ours_are_left_alone() -> None:
    assert translate(ValueError("mine")) is None
    with pytest.raises(ValueError, match="mine"), translating("x"):
        raise ValueError("mine")
    with pytest.raises(errors.Conflict, match="as it was"), translating("x"):
        raise errors.Conflict("as it was")
    with pytest.raises(errors.StoreUnavailable) as caught, translating("the registry"):
        raise redis.exceptions.ConnectionError("refused")
    assert isinstance(caught.value.__cause__, redis.exceptions.ConnectionError)
