"""Log-probabilities of generated tokens in OpenAI's two shapes: of chats, and of completions. Pure.

This module does not know where they come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samovar.tasks.generation import Alternative, TokenLogprob


def of_chat(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return them as chats have them: one entry a token, with the likeliest ones at its place."""
    content = [_entry(token) | {"top_logprobs": [_entry(one) for one in token.top]} for token in tokens]
    return {"content": content, "refusal": None}


def of_completion(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return them as completions have them: one list a property. The chosen token is always among the likeliest."""
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [
            {**{one.token: one.logprob for one in reversed(token.top)}, token.token: token.logprob} for token in tokens
        ],
        "text_offset": [token.offset for token in tokens],
    }


def _entry(token: TokenLogprob | Alternative) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": token.bytes}
