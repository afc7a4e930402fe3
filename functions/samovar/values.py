"""What every value object of a manifest is built from: the frozen base, the checks of rules, the form of a name.

This module knows no value object.
"""

from __future__ import annotations

import math
import re

import msgspec

from samovar.errors import DeployRefused

NAME_PATTERN = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\Z")


def require(condition: bool, rule: str) -> None:
    """Raise DeployRefused with `rule` unless `condition` holds."""
    if not condition:
        raise DeployRefused(rule)


def above(value: object, low: float) -> bool:
    """Return whether `value` is a finite number > `low`: authors may write anything."""
    return at_least(value, low) and value != low


def at_least(value: object, low: float) -> bool:
    """Return whether `value` is a finite number >= `low`: authors may write anything."""
    return isinstance(value, int | float) and not isinstance(value, bool) and low <= value and math.isfinite(value)


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of the value objects: frozen, keyword-only; unknown fields are ignored: old readers survive new writers."""
