"""Whether the whole platform can serve: what the gateway says, and what the pool manager wrote about this node.

All probes block for at most their timeout. This module does not know who starts what.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from contextlib import suppress

import msgspec
import redis

from samovar_storage import keys
from samovar_storage.records import NodeStatus, loads

_TIMEOUT_S = 2.0


class _Readiness(msgspec.Struct):
    gateway_id: str = ""
    missing: list[str] = []


def gateway_lacks(url: str, gateway_id: str = "") -> list[str]:
    """Return what keeps the gateway at `url` from serving, in words; empty when /readyz says 200.

    gateway_id: who must say so, if several may answer there.
    """
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=_TIMEOUT_S) as answer:  # noqa: S310 - our own http URL
            who = msgspec.json.decode(answer.read(), type=_Readiness).gateway_id
            return [] if gateway_id in ("", who) else ["gateway"]
    except urllib.error.HTTPError as error:
        with suppress(msgspec.MsgspecError, OSError):
            return msgspec.json.decode(error.read(), type=_Readiness).missing or ["gateway"]
        return ["gateway"]
    except (OSError, ValueError):
        return ["gateway"]


def pool_lacks(client: redis.Redis, node: str, since_s: float) -> list[str]:
    """Return what this node's pool manager still has to bring up; empty when a zygote and a blank stand ready.

    since_s: unix time; what was written before is of an earlier manager and does not count.
    """
    try:
        data = client.get(keys.node(node))
    except redis.RedisError:
        return ["redis"]
    if not isinstance(data, bytes):
        return ["pool manager"]
    try:
        status = loads(data, NodeStatus)
    except msgspec.MsgspecError:
        return ["pool manager"]
    if status.at_s < since_s:
        return ["pool manager"]
    return [
        what for what, ready in (("zygote", status.zygote_ready), ("blank instance", _has_blank(status))) if not ready
    ]


def _has_blank(status: NodeStatus) -> bool:
    return status.blanks > 0 or status.blank_target == 0
