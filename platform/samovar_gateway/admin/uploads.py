"""Routes under `/v1/uploads`: how blobs get into object storage without the client holding its credentials."""

from __future__ import annotations

import msgspec
from litestar import Controller, post

from samovar.spec import BlobRef
from samovar.values import Struct
from samovar_gateway.admin.manifests import check_sha256
from samovar_gateway.admin.requests import AnyRequest, authorise, path_parameter, read_body
from samovar_gateway.admin.services import services_of
from samovar_storage.blobs import Blobs, UploadPlan


class PlanBody(Struct, frozen=True, kw_only=True):
    """Which blobs a version needs. dry_run: only ask what is missing; nothing is begun."""

    blobs: list[BlobRef]
    dry_run: bool = False


class Plans(Struct, frozen=True, kw_only=True):
    blobs: list[UploadPlan]


class Part(Struct, frozen=True, kw_only=True):
    number: int
    etag: str


class CompleteBody(Struct, frozen=True, kw_only=True):
    """What was uploaded. parts: as the client saw them; the store's own list decides."""

    size_bytes: int
    parts: list[Part] = msgspec.field(default_factory=list)


class Completed(Struct, frozen=True, kw_only=True):
    sha256: str
    size_bytes: int
    verified: bool = True


class Uploads(Controller):
    """Blobs on their way."""

    path = "/v1/uploads"

    @post(status_code=200)
    async def plan(self, request: AnyRequest) -> Plans:
        """Return for each blob whether it is there, else presigned URLs for the parts that are missing."""
        services = services_of(request)
        authorise(request, "deploy")
        body = await read_body(request, PlanBody)
        if body.dry_run:
            return Plans(blobs=await services.stores.run(_what_is_missing, services.blobs, body.blobs))
        return Plans(blobs=await services.stores.run(services.blobs.plan, body.blobs))

    @post("/{sha256:str}/complete", status_code=200)
    async def complete(self, request: AnyRequest) -> Completed:
        """Join the parts and hash the stored bytes: 422, and they are deleted, if they are not what was promised."""
        sha256 = path_parameter(request, "sha256")
        services = services_of(request)
        authorise(request, "deploy")
        check_sha256(sha256)
        body = await read_body(request, CompleteBody)
        await services.hashing.run(services.blobs.complete, sha256, body.size_bytes)
        return Completed(sha256=sha256, size_bytes=body.size_bytes)


def _what_is_missing(blobs: Blobs, wanted: list[BlobRef]) -> list[UploadPlan]:
    for blob in wanted:
        check_sha256(blob.sha256)
    return [UploadPlan(sha256=blob.sha256, present=blobs.is_present(blob)) for blob in wanted]
