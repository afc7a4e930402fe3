"""What an audit entry says of a request's body: what was asked for, never a secret, a payload or a long value."""

from __future__ import annotations

import json

import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from samovar_gateway.admin import Admin
from samovar_gateway.admin.audit_trail import (
    LEFT_OUT,
    MAX_BODY_BYTES,
    MAX_CHANGE_BYTES,
    READING,
    REDACTED,
    describe,
    is_audited,
)

SECRET = "planted-5f3a9c"


@pytest.mark.parametrize(
    "body",
    [
        {"admin_key_secret": SECRET},
        {"deep": [{"er": {"api_key": SECRET}}]},
        {"password": SECRET, "name": "x"},
        {"key": SECRET},
        {"authorization": f"Bearer {SECRET}"},
        {"name": f"sv_0123456789ab_{SECRET}"},
        {"note": f"use sv_0123456789ab_{SECRET} for it"},
        {f"sv_0123456789ab_{SECRET}": 1},
        {"example": {"text": SECRET}, "name": "f"},
        {"fallback": {"value": {"text": SECRET}}},
        {"credentials": {"a": SECRET}},
        [{"token": SECRET}],
    ],
)
def test_no_secret_is_kept(body: object) -> None:
    assert SECRET not in json.dumps(describe(json.dumps(body).encode()))


def test_every_route_that_changes_something_is_audited() -> None:
    routes = Litestar(route_handlers=[*Admin.handlers], openapi_config=None).routes
    changing = [
        (method, route.path_format)
        for route in routes
        for method in (route.methods if isinstance(route, HTTPRoute) else ())
        if method not in READING
    ]
    assert len(changing) > 10
    assert [one for one in changing if not is_audited(*one)] == []


@pytest.mark.parametrize("path", ["/v1/functions/f/invoke", "/v1/functions/f/jobs", "/v1/chat/completions"])
def test_inputs_of_functions_are_not(path: str) -> None:
    assert not is_audited("POST", path)


def test_jobs_are_when_it_administers() -> None:
    assert is_audited("POST", "/v1/jobs/purge")
    assert not is_audited("POST", "/v1/jobs/0123/cancel") and not is_audited("DELETE", "/v1/jobs/0123")
    assert describe(b'{"function": "f", "input": {"text": "x"}}') == {"function": "f", "input": LEFT_OUT}


def test_what_was_asked_for_is_kept() -> None:
    body = {"name": "ci", "scopes": ["invoke"], "rate": "20/s", "burst": 40, "tokenizer": "a", "sha256": "ab"}
    assert describe(json.dumps(body).encode()) == body


def test_what_cannot_be_kept_is_named() -> None:
    assert describe(b"") is None
    assert describe(b"not json, with a secret") == {"bytes": 23}
    assert describe(b"[" * 5000 + b"]" * 5000) == {"bytes": 10_000}
    assert describe(b"x" * (MAX_BODY_BYTES + 1)) == {"bytes": f"> {MAX_BODY_BYTES}"}
    long = describe(json.dumps({"name": "f", "weights": [{"path": "x" * 150}] * 300, "text": "y" * 5000}).encode())
    assert long["name"] == "f" and "weights" not in long and len(json.dumps(long)) < MAX_CHANGE_BYTES
    assert describe(b'{"example": 1, "key": "k"}') == {"example": LEFT_OUT, "key": REDACTED}
