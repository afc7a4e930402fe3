"""Routes under `/v1/keys`: API keys. A secret is shown once, when it is made; only its hash is kept."""

from __future__ import annotations

import contextlib
import time

import msgspec
from litestar import Controller, delete, get, post

from samovar.errors import Conflict, Forbidden, NotFound, SamovarError
from samovar.values import Struct
from samovar_gateway.admin.requests import AnyRequest, authenticate, authorise, path_parameter, read_body
from samovar_gateway.admin.services import Services, services_of
from samovar_gateway.key_mirror import load_keys
from samovar_storage.apikeys import KeyTerms
from samovar_storage.records import ApiKeyRecord


class KeyBody(KeyTerms, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make. scopes: some of admin, deploy, invoke. functions: names it is bound to, empty = all."""

    name: str
    scopes: list[str]
    functions: list[str] = msgspec.field(default_factory=list)


class RotateBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """overlap_s: how long the old secret still works, 0 (not at all) to 30 days, in seconds."""

    overlap_s: float = 86_400.0


class KeyView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key without its hashes; times are unix seconds. last_used_at_s: up to 10 s behind, left out if never used.

    previous_until_s: until when the secret before the last rotation works. key: the whole key, in the answer that made
    it and never again.
    """

    key_id: str
    name: str
    scopes: list[str]
    functions: list[str]
    created_at_s: float
    rate: str = ""
    burst: int = 0
    max_priority: str = "high"
    expires_at_s: float = 0.0
    rotated_at_s: float = 0.0
    previous_until_s: float = 0.0
    last_used_at_s: float = 0.0
    key: str = ""


class Keys(Controller):
    """API keys, for admins; any key may look at itself."""

    path = "/v1/keys"

    @get()
    async def list_keys(self, request: AnyRequest) -> list[KeyView]:
        """Return every key, oldest first."""
        services = services_of(request)
        authorise(request, "admin")
        return await services.stores.run(_views, services)

    @get("/{key_id:str}")
    async def get_key(self, request: AnyRequest) -> KeyView:
        """Return one key; to keys that are not admins only themselves exist."""
        key_id = path_parameter(request, "key_id")
        services = services_of(request)
        principal = authenticate(request)
        if "admin" not in principal.scopes and principal.key_id != key_id:
            raise _no_such_key(key_id)
        found = [view for view in await services.stores.run(_views, services) if view.key_id == key_id]
        if not found:
            raise _no_such_key(key_id)
        return found[0]

    @post(status_code=201)
    async def create_key(self, request: AnyRequest) -> KeyView:
        """Make a key and return it, this once."""
        services = services_of(request)
        authorise(request, "admin")
        body = await read_body(request, KeyBody)
        record, key = await services.stores.run(_create, services, body)
        await _arrives(services)
        return _view(record, key=key)

    @post("/{key_id:str}/rotate", status_code=200)
    async def rotate_key(self, request: AnyRequest) -> KeyView:
        """Give a key a new secret and return it, this once; the old one works on for the overlap."""
        key_id = path_parameter(request, "key_id")
        services = services_of(request)
        _require_admin(request, key_id)
        body = await read_body(request, RotateBody) if await request.body() else RotateBody()
        record, key = await services.stores.run(services.state.registry.keys.rotate, key_id, body.overlap_s)
        await _arrives(services)
        return _view(record, key=key)

    @delete("/{key_id:str}", status_code=204)
    async def revoke_key(self, request: AnyRequest) -> None:
        """Revoke a key: refused here from now on, by every gateway within a second. 409 for the last admin key."""
        key_id = path_parameter(request, "key_id")
        services = services_of(request)
        _require_admin(request, key_id)
        await services.stores.run(_revoke, services, key_id)
        await _arrives(services)


async def _arrives(services: Services) -> None:
    """Let this gateway know the change at once; should that fail, it hears of it as the others do."""
    with contextlib.suppress(SamovarError):
        await load_keys(services.state.redis, services.state.keys)


def _require_admin(request: AnyRequest, key_id: str) -> None:
    """Raise NotFound for a key that belongs to somebody else, Forbidden for the caller's own, unless they are admin."""
    principal = authenticate(request)
    if "admin" in principal.scopes:
        return
    if principal.key_id == key_id:
        raise Forbidden("this key lacks the scope 'admin'", scope="admin")
    raise _no_such_key(key_id)


def _no_such_key(key_id: str) -> NotFound:
    return NotFound(f"no API key with the id {key_id[:100]!r}")


def _create(services: Services, body: KeyBody) -> tuple[ApiKeyRecord, str]:
    terms = KeyTerms(**{name: getattr(body, name) for name in KeyTerms.__struct_fields__})
    return services.state.registry.keys.create(body.name, body.scopes, body.functions, terms=terms)


def _revoke(services: Services, key_id: str) -> None:
    keys, now_s = services.state.registry.keys, time.time()
    admins = [key.key_id for key in keys.list() if "admin" in key.scopes and (key.expires_at_s or now_s + 1) > now_s]
    if admins == [key_id]:
        raise Conflict("this is the last admin key: make another first")
    keys.revoke(key_id)


def _views(services: Services) -> list[KeyView]:
    keys = services.state.registry.keys
    used = keys.last_used() | services.state.keys.used()
    return [_view(record, used.get(record.key_id, 0.0)) for record in keys.list()]


def _view(record: ApiKeyRecord, last_used_at_s: float = 0.0, key: str = "") -> KeyView:
    shared = {name: getattr(record, name) for name in KeyView.__struct_fields__ if hasattr(record, name)}
    return KeyView(**shared, last_used_at_s=last_used_at_s, key=key)
