"""Pictures and sounds in a chat request, as text-generation functions take them: the bytes of a file. Pure.

    {"type": "image_url", "image_url": {"url": "data:image/png;base64,…"}}          ─► {"type": "image", "image": bytes}
    {"type": "input_audio", "input_audio": {"data": "…", "format": "wav"}}          ─► {"type": "audio", "audio": bytes}

Addresses are refused: an instance has no network, and what a caller names is not the gateway's to fetch.
This module does not know formats of pictures and sounds, nor models.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Any

from samovar.tasks.generation import refusal
from samovar_gateway.openai.fields import UNSUPPORTED, only

_MAX_SHOWN_CHARS = 40


def image_of(value: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the part of a picture. Raises: RequestError naming what cannot be taken."""
    told = only(value, ("type", "image_url"), path).get("image_url")
    path = f"{path}.image_url"
    image = only(told, ("url", "detail"), path)
    if image.get("detail", "auto") != "auto":
        detail = f"{path}.detail is auto: how closely a picture is looked at is the model's"
        raise refusal(f"{path}.detail", detail, reason=UNSUPPORTED)
    url = image.get("url")
    if not isinstance(url, str):
        raise refusal(f"{path}.url", f"{path}.url is a text")
    head, comma, data = url.partition(",")
    kind = head.lower()
    if not kind.startswith("data:"):
        raise refusal(
            f"{path}.url",
            f"{path}.url: {url[:_MAX_SHOWN_CHARS]!r} is not fetched, as functions have no network: send the picture as "
            "data:image/png;base64,…",
            reason=UNSUPPORTED,
        )
    if not (comma and kind.startswith("data:image/") and kind.endswith(";base64")):
        raise refusal(f"{path}.url", f"{path}.url: a picture begins as data:image/png;base64,…")
    return {"type": "image", "image": _bytes(data, f"{path}.url")}


def audio_of(value: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the part of a sound. Raises: RequestError naming what cannot be taken."""
    told = only(value, ("type", "input_audio"), path).get("input_audio")
    path = f"{path}.input_audio"
    audio = only(told, ("data", "format"), path)
    if audio.get("format") != "wav":
        raise refusal(f"{path}.format", f"{path}.format is wav", reason=UNSUPPORTED)
    return {"type": "audio", "audio": _bytes(audio.get("data"), f"{path}.data")}


# by OpenAI's type: the type that functions know, and what reads it
PARTS: dict[str, tuple[str, Callable[[dict[str, Any], str], dict[str, Any]]]] = {
    "image_url": ("image", image_of),
    "input_audio": ("audio", audio_of),
}


def _bytes(data: Any, path: str) -> bytes:
    try:
        found = base64.b64decode(data, validate=True) if isinstance(data, str) else b""
    except (binascii.Error, ValueError) as error:
        raise refusal(path, f"{path}: not base64: {error}") from None
    if not found:
        raise refusal(path, f"{path} has no bytes")
    return found
