"""Which way a model runs: over pages, else over its own caches in batches, else over them one by one.

This module does not know how any of them works.
"""

from __future__ import annotations

import logging
from typing import Any

from samovar_instance.engines.generation.contract import Sampler
from samovar_instance.engines.generation.engine import Engine, Options
from samovar_instance.engines.generation.model import Unsupported
from samovar_instance.engines.generation.speculation import Proposer
from samovar_instance.engines.generation.stacked import StackedRunner

log = logging.getLogger(__name__)


def engine_for(
    model: Any, sampler: Sampler, options: Options | None = None, proposer: Proposer | None = None
) -> Engine:
    """Return the engine for a causal language model, by the best way there is; the log says which, and why.

    Over its own caches a model has no shared prefixes and no drafts: what was read cannot be taken back.
    """
    options = options or Options()
    try:
        return Engine(model, sampler, options, proposer)
    except Unsupported as reason:
        runner = StackedRunner(model, options.max_tiled_bytes)
        drafts = "" if proposer is None else "; speculation is declared, and there are no drafts this way"
        name = type(model).__name__
        log.warning("%s runs %s, not over pages: %s%s", name, runner.manner, reason, drafts)
        return Engine(model, sampler, runner.fitted(options), runner=runner)
