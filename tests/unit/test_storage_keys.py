"""The page of Redis keys is complete: every constant and function of `keys.py` is a row of its table."""

from __future__ import annotations

import inspect
import re

from samovar_storage import keys


def test_every_key_and_channel_is_a_row() -> None:
    rows = set(re.findall(r"^\| (sv:[^ ]+) ", keys.__doc__ or "", re.MULTILINE))
    constants = {value for name, value in vars(keys).items() if name.isupper() and str(value).startswith("sv:")}
    functions = inspect.getmembers(keys, inspect.isfunction)
    patterns = {re.sub("x{3}", "*", function("xxx")) for _, function in functions}
    assert constants <= rows
    assert patterns == {re.sub(r"\{[^}]+\}", "*", row) for row in rows if "{" in row}
    assert {row for row in rows if "{" not in row} == constants
