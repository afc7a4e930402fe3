"""Reading an admin request: who asks, and what the body says. This module does not know what is done with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from litestar import Request
from msgspec.inspect import EnumType, ListType, LiteralType, StructType, Type, UnionType, type_info

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
    if not data:
        raise RequestError("the body is empty: it is to be JSON")
    try:
        return msgspec.json.decode(data, type=type)
    except msgspec.ValidationError as error:
        raise invalid(error, type) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    except RecursionError as error:
        raise RequestError("the body is nested too deeply") from error


def invalid(error: msgspec.ValidationError, type: Any = Any) -> InvalidInput:
    """Return our error for msgspec's, with the JSON path apart from the sentence, and the words that a field takes.

    type: of what was read.
    """
    text = str(error)
    found = _PATH.search(text)
    sentence, path = (text[: found.start()], found["path"]) if found else (text, "$")
    if sentence.startswith("Invalid enum value") and (words := _words(type_info(type), path.split(".")[1:])):
        sentence = f"{sentence}: it is one of {', '.join(map(str, words))}"
    return InvalidInput(sentence, path=path)


def _words(node: Type, fields: Sequence[str]) -> Sequence[object]:
    """Return what the field at a path may be, if that is one of some words; [] if it is anything else."""
    if isinstance(node, UnionType):
        return next((words for one in node.types if (words := _words(one, fields))), [])
    if isinstance(node, ListType):
        return _words(node.item_type, fields)
    if isinstance(node, LiteralType):
        return node.values
    if isinstance(node, EnumType):
        return [member.value for member in node.cls]
    if isinstance(node, StructType) and fields:
        name = fields[0].partition("[")[0]
        return next((_words(field.type, fields[1:]) for field in node.fields if field.encode_name == name), [])
    return []
