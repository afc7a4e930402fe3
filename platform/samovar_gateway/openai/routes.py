"""The ASGI handler of OpenAI's routes: which path is whose, and what becomes of errors.

They are matched before the router, as invoke is: their errors have a shape of their own, and their answers are streams.
This module does not know functions.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import msgspec
from litestar.types import HTTPScope, Receive, Send

from samovar.errors import Cancelled, NotFound, SamovarError
from samovar.values import NAME_PATTERN
from samovar_gateway.calling import Caller
from samovar_gateway.openai import models, problems, requests
from samovar_gateway.openai.answers import Chat, Completion
from samovar_gateway.openai.embeddings import answer_embeddings
from samovar_gateway.openai.exchange import Exchange
from samovar_gateway.openai.generation import Generation

log = logging.getLogger(__name__)

MODELS = "/v1/models"
PARTS = (  # that a path below /v1/ may begin with to be of OpenAI's API
    *("responses", "conversations", "moderations", "images", "audio", "videos", "files", "batches", "fine_tuning"),
    *("realtime", "assistants", "threads", "vector_stores", "containers", "evals"),
    *("organization", "projects", "skills", "chat", "completions", "embeddings", "models"),
)
POSTS: dict[str, Callable[[Exchange], Awaitable[None]]] = {
    "/v1/chat/completions": Generation(Chat(), requests.chat),
    "/v1/completions": Generation(Completion(), lambda fields, _: requests.completion(fields)),
    "/v1/embeddings": answer_embeddings,
}


class OpenAIRoutes:
    """One per gateway."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @staticmethod
    def serves(path: str) -> bool:
        """Return whether a path is one of these routes', or one of OpenAI's that there is not here."""
        return path.startswith("/v1/") and path[4:].partition("/")[0] in PARTS

    async def __call__(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """Answer one request; every error becomes an error object."""
        exchange = Exchange(self._caller, scope, receive, send)
        try:
            await _handler(scope["path"])(exchange)
        except SamovarError as error:
            await exchange.refuse(error)
        except Cancelled:
            return
        except Exception:
            log.exception("%s %s of %s failed", exchange.method, scope["path"], exchange.request_id.decode("latin-1"))
            await exchange.refuse(SamovarError("an error inside the gateway; its log says more"))


def _handler(path: str) -> Callable[[Exchange], Awaitable[None]]:
    is_models = path == MODELS or (path.startswith(MODELS + "/") and path != MODELS + "/")
    return POSTS.get(path) or (_tell_models(path) if is_models else _refuse)


async def _refuse(exchange: Exchange) -> None:
    exchange.principal()
    raise NotFound(f"this part of OpenAI's API is not served here; there are {', '.join([MODELS, *POSTS])}")


def _tell_models(path: str) -> Callable[[Exchange], Awaitable[None]]:
    """Return what answers with all models, or with the one that the path names."""

    async def tell(exchange: Exchange) -> None:
        exchange.require_method("GET")
        principal, functions = exchange.principal(), exchange.state.functions
        name = path[len(MODELS) + 1 :]
        if name not in functions.entries and NAME_PATTERN.fullmatch(name):
            await exchange.state.mirror.find(name)
        found = models.one(functions, principal, name) if name else models.listing(functions, principal)
        if found is None:
            raise await exchange.unknown(name)
        await exchange.respond(200, [problems.JSON], msgspec.json.encode(found))

    return tell
