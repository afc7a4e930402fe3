"""Reading an admin request: who asks, and what the body says. This module does not know what is done with it."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from litestar import Request

from samovar.errors import Forbidden, InvalidInput, RequestError, Unavailable, UnsupportedEncoding
from samovar_gateway.auth import Principal
from samovar_gateway.state import GatewayState

T = TypeVar("T")
AnyRequest = Request[Any, Any, Any]
_PATH = re.compile(r" - at `(?P<path>[^`]*)`$")


def gateway(request: AnyRequest) -> GatewayState:
    """Return the state of the gateway that serves this request."""
    state: GatewayState = request.app.state.gateway
    return state


def path_parameter(request: AnyRequest, name: str) -> str:
    """Return a part of the path by its name in the route."""
    return str(request.path_params[name])


def authenticate(request: AnyRequest) -> Principal:
    """Return who asks. Raises Unauthenticated; Unavailable while the keys are not known yet."""
    keys = gateway(request).keys
    if not keys.loaded:
        raise Unavailable("the gateway is starting and does not know the API keys yet", retry_after_s=1)
    header = request.headers.get("authorization")
    return keys.authenticate(header.encode("latin-1") if header is not None else None)


def authorise(request: AnyRequest, scope: str, name: str | None = None) -> Principal:
    """Return who asks, if they have `scope` and, when `name` is given, their key covers that function.

    Raises: Unauthenticated, Forbidden, FunctionNotFound (it covers others), Unavailable.
    """
    principal = authenticate(request)
    if name is not None:
        principal.require(scope, name)
    elif not principal.scopes & {scope, "admin"}:
        raise Forbidden(f"this key lacks the scope {scope!r}", scope=scope)
    return principal


def may_see(principal: Principal, name: str) -> bool:
    """Return whether a key covers the function `name`, whatever its scopes."""
    return principal.sees(name)


def require_sight(principal: Principal, name: str) -> None:
    """Raise FunctionNotFound unless the key covers the function `name`."""
    principal.require_sight(name)


async def read_body(request: AnyRequest, type: type[T]) -> T:
    """Return the JSON body as a `type`.

    Raises: RequestError (not JSON, or nested too deeply), InvalidInput with the path of what is wrong,
    UnsupportedEncoding.
    """
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedEncoding("send the body as it is: compressed bodies are not taken")
    data = await request.body()
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as error:
        raise invalid(error) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def invalid(error: msgspec.ValidationError) -> InvalidInput:
    """Return our error for msgspec's, with the JSON path apart from the sentence."""
    text = str(error)
    found = _PATH.search(text)
    return InvalidInput(text[: found.start()] if found else text, path=found["path"] if found else "$")
