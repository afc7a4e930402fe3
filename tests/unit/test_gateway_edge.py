"""What the edge decides without a socket: keys, problems, near names, the receipt."""

from __future__ import annotations

import hashlib
import json

import pytest

from samovar import errors
from samovar.errors import Forbidden, FunctionNotFound, SamovarError, Unauthenticated, Unavailable
from samovar_dispatch.ask import HIGH, NORMAL
from samovar_dispatch.functions import near_names
from samovar_gateway import problems
from samovar_gateway.auth import KeyTable
from samovar_storage.records import ApiKeyRecord

SECRET = "s" * 24


def table(**changes: object) -> KeyTable:
    """Return a table of one key."""
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    fields = {"key_id": "abc", "name": "k", "secret_sha256": digest, "scopes": ["invoke"], "functions": []}
    keys = KeyTable()
    keys.replace([ApiKeyRecord(**(fields | changes))])  # type: ignore[arg-type]
    return keys


def test_a_good_key_is_known_twice_and_forgotten_when_keys_change() -> None:
    keys, header = table(), f"Bearer sv_abc_{SECRET}".encode()
    assert keys.authenticate(header) is keys.authenticate(header)
    keys.replace([])
    with pytest.raises(Unauthenticated):
        keys.authenticate(header)


def test_a_header_blown_up_with_white_space_is_good_but_not_kept() -> None:
    keys = table()
    header = f"Bearer {' ' * 60_000}sv_abc_{SECRET}".encode()
    assert keys.authenticate(header).key_id == "abc"
    assert keys.authenticate(header) is not keys.authenticate(header)


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"Basic abc",
        b"Bearer",
        b"Bearer sv_abc_",
        b"Bearer sv_abc",
        b"Bearer sv_abc_wrong",
        f"Bearer xx_abc_{SECRET}".encode(),
        f"Bearer sv_abd_{SECRET}".encode(),
        b"Bearer \xff_\xff_\xff",
    ],
)
def test_a_bad_key_is_refused(header: bytes | None) -> None:
    with pytest.raises(Unauthenticated) as raised:
        table().authenticate(header)
    assert SECRET not in str(raised.value)


def test_no_key_is_judged_before_keys_are_known() -> None:
    with pytest.raises(Unavailable):
        KeyTable().authenticate(b"Bearer sv_abc_x")


@pytest.mark.parametrize(
    ("scopes", "functions", "scope", "function", "refused"),
    [
        (["invoke"], [], "invoke", "a", None),
        (["admin"], [], "invoke", "a", None),
        (["deploy"], [], "invoke", "a", Forbidden),
        (["invoke"], ["a"], "invoke", "a", None),
        (["invoke"], ["a"], "deploy", "a", Forbidden),
        (["invoke"], ["a"], "invoke", "b", FunctionNotFound),
        (["invoke"], ["a"], "deploy", "b", FunctionNotFound),
        (["admin"], ["a"], "deploy", None, Forbidden),
    ],
)
def test_scopes_and_bound_functions(
    scopes: list[str], functions: list[str], scope: str, function: str | None, refused: type[SamovarError] | None
) -> None:
    principal = table(scopes=scopes, functions=functions).authenticate(f"Bearer sv_abc_{SECRET}".encode())
    if refused is None:
        principal.require(scope, function)
    else:
        with pytest.raises(refused):
            principal.require(scope, function)


def test_a_remembered_header_ends_when_its_key_does() -> None:
    clock, header = [1000.0], f"Bearer sv_abc_{SECRET}".encode()
    keys = table(expires_at_s=2000.0)
    keys._clock = lambda: clock[0]
    assert keys.authenticate(header) is keys.authenticate(header)
    clock[0] = 2000.0
    with pytest.raises(Unauthenticated, match="expired at 1970-01-01 00:33 UTC"):
        keys.authenticate(header)


def test_both_secrets_of_a_rotated_key_work_until_the_overlap_ends() -> None:
    clock, old, new = [1000.0], f"Bearer sv_abc_{SECRET}".encode(), b"Bearer sv_abc_" + b"n" * 24
    digests = [hashlib.sha256(secret).hexdigest() for secret in (b"n" * 24, SECRET.encode())]
    keys = table(secret_sha256=digests[0], previous_sha256=digests[1], previous_until_s=1060.0)
    keys._clock = lambda: clock[0]
    assert keys.authenticate(old).key_id == keys.authenticate(new).key_id == "abc"
    clock[0] = 1060.0
    assert keys.authenticate(new).key_id == "abc"
    with pytest.raises(Unauthenticated, match="replaced"):
        keys.authenticate(old)
    assert keys.take_used() == {"abc": 1060.0} and keys.take_used() == {}


def test_a_key_without_a_previous_secret_has_no_empty_one() -> None:
    for header in (b"Bearer sv_abc_", b"Bearer sv_abc"):
        with pytest.raises(Unauthenticated):
            table(previous_sha256="").authenticate(header)


def test_terms_become_the_principal_s() -> None:
    principal = table(rate="20/s", burst=40, max_priority="normal").authenticate(f"Bearer sv_abc_{SECRET}".encode())
    assert principal.rate is not None and (principal.rate.per_s, principal.rate.burst) == (20, 40)
    assert principal.max_priority == NORMAL
    plain = table().authenticate(f"Bearer sv_abc_{SECRET}".encode())
    assert plain.rate is None and plain.max_priority == HIGH


def test_a_rate_limit_is_told_in_the_form_of_the_draft() -> None:
    policy = {"rate": "20/s", "burst": 40, "window_s": 2}
    error = errors.RateLimited("slower", retry_after_s=2.1, limit="key", policy=policy)
    headers = dict(problems.headers(error))
    assert headers[b"ratelimit-policy"] == b'"key";q=40;w=2' and headers[b"ratelimit"] == b'"key";r=0;t=3'
    assert headers[b"retry-after"] == b"3"


@pytest.mark.parametrize("cls", errors._walk(errors.SamovarError))
def test_every_error_has_a_problem_document(cls: type[errors.SamovarError]) -> None:
    error = cls("tea is cold", status="overridden?", path="$.x")
    document = json.loads(problems.encode(error, "id-1"))
    assert (document["status"], document["code"], document["request_id"]) == (cls.status, cls.code, "id-1")
    assert document["title"] and document["path"] == "$.x"
    names = dict(problems.headers(error))
    assert (b"retry-after" in names) is (cls.status == 503)
    assert (b"www-authenticate" in names) is (cls.status == 401)


def test_retry_after_is_rounded_up() -> None:
    error = errors.QueueFull("full", retry_after_s=1.2)
    assert dict(problems.headers(error))[b"retry-after"] == b"2"
    assert problems.document(error, "x")["retry_after_s"] == 1.2


def test_near_names_are_few_and_cheap() -> None:
    known = [f"function-{n}" for n in range(5000)] + ["embedder"]
    assert near_names("embeder", known) == near_names("EMBEDDER", known) == ["embedder"]
    assert len(near_names("function-77", known)) == 3
    assert near_names("x" * 1000, known) == []
