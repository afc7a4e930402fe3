"""From a vector per token to a vector per text, in the ways that sentence-transformers has names for.

This module does not know models or files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Pooling = Literal["mean", "cls", "max", "lasttoken"]

# as 1_Pooling/config.json says them: by a switch each, or in newer files by name
POOLINGS: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "lasttoken": "lasttoken",
}


def pool(hidden: torch.Tensor, mask: torch.Tensor, how: Pooling) -> torch.Tensor:
    """Return a vector per text.

    Args:
        hidden: float [texts, tokens, dimensions]. mask: int [texts, tokens], 1 where a token is the text's own, which
            are at the front; at least one of each text.
    Returns: float [texts, dimensions].
    """
    if how == "cls":
        return hidden[:, 0]
    if how == "max":
        return hidden.masked_fill(mask.unsqueeze(-1) == 0, float("-inf")).amax(1)
    if how == "lasttoken":
        last = mask.sum(1) - 1
        return hidden[range(len(hidden)), last]
    return (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
