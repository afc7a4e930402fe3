"""What every value object of a manifest is built from: the frozen base, the rule check, the form of a name.

This module knows no value object.
"""

from __future__ import annotations

import re

import msgspec

from samovar.errors import DeployRefused

NAME_PATTERN = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


def require(condition: bool, rule: str) -> None:
    """Raise DeployRefused with `rule` unless `condition` holds."""
    if not condition:
        raise DeployRefused(rule)


class Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Base of the value objects: frozen, keyword-only; unknown fields are ignored: old readers survive new writers."""
