"""Samovar: model functions that stay warm. `import samovar as sv`.

Every name below is loaded on first use, so that `import samovar` costs next to nothing: it must stay cheap inside the
command line, inside instances and inside the user's own tests. This module knows only where each name lives.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samovar.acceleration.options import Precision as Precision
    from samovar.acceleration.speculation import Speculation as Speculation
    from samovar.async_client import AsyncClient as AsyncClient
    from samovar.authoring import function as function
    from samovar.client import Client as Client
    from samovar.context import Context as Context
    from samovar.errors import SamovarError as SamovarError
    from samovar.options import Batch as Batch
    from samovar.options import Weights as Weights
    from samovar.policies import Breaker as Breaker
    from samovar.policies import Cache as Cache
    from samovar.policies import Cached as Cached
    from samovar.policies import Fallback as Fallback
    from samovar.policies import Jobs as Jobs
    from samovar.policies import Log as Log
    from samovar.spec import Limits as Limits
    from samovar.spec import Resources as Resources
    from samovar.spec import Scaling as Scaling
    from samovar.tensors import Tensor as Tensor

__version__ = "0.1.0"

_HOMES = {
    "function": "samovar.authoring",
    "Batch": "samovar.options",
    "Weights": "samovar.options",
    "AsyncClient": "samovar.async_client",
    "Client": "samovar.client",
    "Context": "samovar.context",
    "Breaker": "samovar.policies",
    "Cache": "samovar.policies",
    "Cached": "samovar.policies",
    "Fallback": "samovar.policies",
    "Jobs": "samovar.policies",
    "Log": "samovar.policies",
    "Precision": "samovar.acceleration.options",
    "Speculation": "samovar.acceleration.speculation",
    "Limits": "samovar.spec",
    "Resources": "samovar.spec",
    "Scaling": "samovar.spec",
    "SamovarError": "samovar.errors",
    "Tensor": "samovar.tensors",
}

__all__ = [
    "AsyncClient",
    "Batch",
    "Breaker",
    "Cache",
    "Cached",
    "Client",
    "Context",
    "Fallback",
    "Jobs",
    "Limits",
    "Log",
    "Precision",
    "Resources",
    "SamovarError",
    "Scaling",
    "Speculation",
    "Tensor",
    "Weights",
    "__version__",
    "function",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("samovar.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'samovar' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
