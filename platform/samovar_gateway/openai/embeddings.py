"""`POST /v1/embeddings`: each input is an invocation of its own; the instance puts them into batches.

This module does not know what is in requests and answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from samovar.errors import BadOutput
from samovar.tasks import EMBEDDINGS
from samovar.tasks.checks import text_field
from samovar.wire import Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call
from samovar_gateway import problems as native_problems
from samovar_gateway.calling import Given
from samovar_gateway.openai import problems, vectors
from samovar_gateway.openai.exchange import Exchange, parts_of
from samovar_gateway.timing import server_timing

TURN = 32  # embeddings that are put into the answer before others have their turn


async def answer_embeddings(exchange: Exchange) -> None:
    """Answer one request. Raises: SamovarError while nothing was sent; Cancelled if the client left."""
    ask, found = await exchange.ask((EMBEDDINGS,))
    wish = await exchange.noted(ask, vectors.wanted, found)
    schema = ask.entry.main.manifest.input_schema
    bodies = await exchange.noted(ask, vectors.bodies, wish, schema)
    exchange.names = {str(text_field(schema)): "input"}
    ask.accept_stream = False
    asks = parts_of(ask, len(bodies))
    given = await exchange.caller.outcomes(asks, bodies, exchange.receive)
    told: list[dict[str, Any]] = []
    num_tokens = 0
    for place, (_, outcome) in enumerate(given):
        if not isinstance(outcome, Result):
            raise BadOutput("the function streamed an embedding")
        embedding, taken = vectors.item(place, outcome.body, wish)
        told.append(embedding)
        num_tokens += taken
        if place % TURN == TURN - 1:
            await asyncio.sleep(0)
    body = vectors.answer(told, ask.entry.record.name, num_tokens)
    await exchange.respond(200, [problems.JSON, *_headers(asks, given)], body)


def _headers(asks: Sequence[Ask], given: Sequence[Given]) -> native_problems.Headers:
    """Return what the first answer says beside its body, and the receipt of the call that ended last."""
    first = given[0][0]
    headers = [(b"samovar-version", first.version.label)] if first is not None else []
    timed = [(call, result) for call, result in given if call is not None and isinstance(result, Result)]
    if timed:
        call, result = max(timed, key=_ended_s)
        headers.append((b"server-timing", server_timing(call, result.wait_us, result.run_us)))
    return [*headers, *asks[0].more_headers]


def _ended_s(one: tuple[Call, Result]) -> float:
    return one[0].ended_s
