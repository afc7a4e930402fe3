"""Routes under `/v1/keys`: API keys. A secret is shown once, when it is made; only its hash is kept."""

from __future__ import annotations

import msgspec
from litestar import Controller, delete, get, post

from samovar.errors import Conflict
from samovar.values import Struct
from samovar_gateway.admin.requests import AnyRequest, authorise, path_parameter, read_body
from samovar_gateway.admin.services import Services, services_of
from samovar_storage.records import ApiKeyRecord


class KeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to make. scopes: some of admin, deploy, invoke. functions: names it is bound to, empty = all."""

    name: str
    scopes: list[str]
    functions: list[str] = msgspec.field(default_factory=list)


class KeyView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key without its hash. key: the whole key, in the answer that made it and never again."""

    key_id: str
    name: str
    scopes: list[str]
    functions: list[str]
    created_at_s: float
    key: str = ""


class Keys(Controller):
    """API keys, for admins only."""

    path = "/v1/keys"

    @get()
    async def list_keys(self, request: AnyRequest) -> list[KeyView]:
        """Return every key, oldest first."""
        services = services_of(request)
        authorise(request, "admin")
        return [_view(record) for record in await services.stores.run(services.state.registry.keys.list)]

    @post(status_code=201)
    async def create_key(self, request: AnyRequest) -> KeyView:
        """Make a key and return it, this once."""
        services = services_of(request)
        authorise(request, "admin")
        body = await read_body(request, KeyBody)
        record, key = await services.stores.run(
            services.state.registry.keys.create, body.name, body.scopes, body.functions
        )
        return _view(record, key)

    @delete("/{key_id:str}", status_code=204)
    async def revoke_key(self, request: AnyRequest) -> None:
        """Revoke a key: gateways refuse it from the moment they hear of it. 409 for the last admin key."""
        key_id = path_parameter(request, "key_id")
        services = services_of(request)
        authorise(request, "admin")
        await services.stores.run(_revoke, services, key_id)


def _revoke(services: Services, key_id: str) -> None:
    keys = services.state.registry.keys
    admins = [record.key_id for record in keys.list() if "admin" in record.scopes]
    if admins == [key_id]:
        raise Conflict("this is the last admin key: make another first")
    keys.revoke(key_id)


def _view(record: ApiKeyRecord, key: str = "") -> KeyView:
    return KeyView(
        key_id=record.key_id,
        name=record.name,
        scopes=record.scopes,
        functions=record.functions,
        created_at_s=record.created_at_s,
        key=key,
    )
