"""From a ModelInferRequest to what is asked of a function, for both ways of inferring."""

from __future__ import annotations

from dataclasses import dataclass

from samovar.errors import SamovarError
from samovar_dispatch.ask import Ask
from samovar_gateway.calling import apart
from samovar_gateway.inference.core import Inference
from samovar_gateway.inference.messages import InferRequest
from samovar_gateway.rpc import translation
from samovar_gateway.rpc.exchange import Exchange
from samovar_gateway.rpc.translation import Received


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that was admitted. wants_end: a stream's last answer is to be followed by an empty one."""

    ask: Ask
    request: InferRequest
    wants_end: bool


async def admit(core: Inference, exchange: Exchange, received: Received, request_id: bytes) -> Asked:
    """Return what a message asks for; of a large one it is read in a thread. Raises: as `Inference.admit`; noted:
    RequestError, InvalidInput."""
    remaining_s = exchange.remaining_s()
    ask = await core.admit(received.model, received.version, exchange.header, request_id, timeout_s=remaining_s)
    try:
        request = await apart(received.num_bytes, translation.to_request, received)
        return Asked(ask, request, translation.wants_end(received))
    except SamovarError as error:
        raise core.caller.state.journey.refuse(ask, error) from None
